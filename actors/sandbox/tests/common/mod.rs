//! What the tests share: an agent that is a shell script, and events instead of pauses.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use choir_messages::secret::Secret;
use choir_sandbox::{
    BubblewrapSandbox, ExitStatusInfo, Limits, Network, ProcessSandbox, Running, Sandbox, SandboxError,
    SandboxPaths, SandboxSpec,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::time::timeout;

pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The folders of one agent.
pub(crate) struct Place {
    pub(crate) root: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("choir-sandbox").tempdir().unwrap();
        let place = Self { root: dir.path().to_owned(), _dir: Some(dir) };
        for name in ["workspace", "socket", "choir", "elsewhere"] {
            fs::create_dir(place.root.join(name)).unwrap();
        }
        fs::write(place.root.join("choir/SOUL.md"), "be kind\n").unwrap();
        fs::create_dir(place.root.join("choir/bin")).unwrap();
        fs::write(place.root.join("choir/bin/git-cred-helper"), "helper\n").unwrap();
        fs::write(place.root.join("elsewhere/private"), "not for agents\n").unwrap();
        place
    }

    /// One that another process made.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), _dir: None }
    }

    /// Makes everything usable by every user of the machine.
    pub(crate) fn open_to_all(&self) {
        for name in ["", "workspace", "socket", "choir", "elsewhere"] {
            fs::set_permissions(self.root.join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.root.join("workspace")
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.workspace().join(name)).unwrap_or_else(|e| {
            panic!("{name}: {e}; the log says: {}", fs::read_to_string(self.log()).unwrap_or_default())
        })
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.root.join("logs/agent.log")
    }

    /// An agent that is `/bin/sh` with this script, in the workspace.
    pub(crate) fn spec(&self, label: &str, script: &str) -> SandboxSpec {
        SandboxSpec {
            label: label.to_owned(),
            paths: SandboxPaths {
                binary: fs::canonicalize("/bin/sh").unwrap(),
                workspace: self.workspace(),
                socket_dir: self.root.join("socket"),
                choir_dir: Some(self.root.join("choir")),
            },
            args: vec!["-c".into(), script.into()],
            limits: Limits::default(),
            network: Network::Shared,
            bootstrap: Secret::new("{\"bootstrap\":\"canary-7f3a\"}".into()),
            log_file: self.log(),
        }
    }

    /// A named pipe in the workspace. Whoever holds its writing end is alive: end of file proves that all are gone.
    pub(crate) fn pipe(&self, name: &str) -> Alive {
        let path = self.workspace().join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        Alive(BufReader::new(OpenOptions::new().open_receiver(&path).unwrap()))
    }
}

/// The reading end of a pipe that agents hold open.
pub(crate) struct Alive(BufReader<Receiver>);

impl Alive {
    /// The next line an agent writes.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        let wait = async {
            // A pipe without writers reads as ended; the first writer is still to come.
            while self.0.read_line(&mut line).await.unwrap() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, wait).await.expect("the agent writes a line in time");
        line.trim_end().to_owned()
    }

    /// Waits until nobody holds the pipe.
    pub(crate) async fn all_gone(mut self) {
        let mut rest = Vec::new();
        timeout(DEADLINE, self.0.read_to_end(&mut rest)).await.expect("every writer ends in time").unwrap();
    }
}

pub(crate) async fn bubblewrap() -> Arc<dyn Sandbox> {
    match BubblewrapSandbox::probe().await {
        Ok(sandbox) => Arc::new(sandbox),
        Err(error @ SandboxError::NotInstalled) => {
            panic!("this test needs bubblewrap: apt-get install bubblewrap ({error})")
        }
        Err(error) => panic!("this test needs bubblewrap to work: {error}"),
    }
}

pub(crate) async fn both() -> Vec<Arc<dyn Sandbox>> {
    vec![Arc::new(ProcessSandbox::new().unwrap()), bubblewrap().await]
}

pub(crate) async fn end(agent: &dyn Running) -> ExitStatusInfo {
    timeout(DEADLINE, agent.wait()).await.expect("the agent ends in time")
}

/// A label no other test uses.
pub(crate) fn label(name: &str) -> String {
    format!("{name}.{}", std::process::id())
}
