//! The sandbox that is none: the agent is an ordinary process of the host's user. It is there for machines without
//! bubblewrap, and it says what it does not do.

use std::process::Command;

use choir_messages::wire::BoxFuture;

use crate::running::{self, AgentAt, Launch};
use crate::spawner::Spawner;
use crate::{MARKER, Network, Running, Sandbox, SandboxError, SandboxPaths, SandboxSpec};

/// Starts agents as plain processes: own session, clean environment, killed with the host and with all they started.
#[derive(Debug)]
pub struct ProcessSandbox {
    spawner: Spawner,
}

impl ProcessSandbox {
    /// Makes one; it owns the thread that its agents take for their parent.
    pub fn new() -> Result<Self, SandboxError> {
        Ok(Self { spawner: Spawner::new()? })
    }

    async fn launch(&self, spec: SandboxSpec) -> Result<Box<dyn Running>, SandboxError> {
        running::check(&spec)?;
        if spec.network == Network::None {
            return Err(SandboxError::Unsupported { sandbox: "process", what: "cut off the network" });
        }
        let marker = running::new_marker(&spec.label);
        let mut command = Command::new(&spec.paths.binary);
        command
            .args(&spec.args)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", &spec.paths.workspace)
            .env("LANG", "C.UTF-8")
            .env(MARKER, &marker)
            .current_dir(&spec.paths.workspace);
        let launch = Launch { command, inherit: Vec::new(), marker, agent_at: AgentAt::Leader };
        running::launch(&self.spawner, spec, launch).await
    }
}

impl Sandbox for ProcessSandbox {
    fn name(&self) -> &'static str {
        "process"
    }

    fn isolates(&self) -> bool {
        false
    }

    fn caveats(&self) -> Vec<String> {
        vec![
            "The process sandbox does not isolate: the agent can read and change everything this user can."
                .into(),
            "A limit on processes is not enforced, and one on memory only for each process by itself.".into(),
        ]
    }

    fn inside(&self, paths: &SandboxPaths) -> SandboxPaths {
        paths.clone()
    }

    fn start(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Box<dyn Running>, SandboxError>> {
        Box::pin(self.launch(spec))
    }
}
