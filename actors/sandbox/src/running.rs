//! One started agent: its input, its output, its end.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use choir_messages::id::RequestId;
use choir_messages::secret::Secret;
use choir_messages::wire::{BOOTSTRAP_BYTES, BoxFuture};
use rustix::process::{Pid, Signal};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe::Sender;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::child::{ChildSetup, prepare};
use crate::limits::{
    DRAIN_DEADLINE, KILL_DEADLINE, LABEL_BYTES, OPEN_FILES, START_DEADLINE, SWEEP_PAUSE, SWEEP_ROUNDS,
};
use crate::log::{self, Tail};
use crate::pidfd::{End, PidFd};
use crate::procfs::{self, ProcessIdentity};
use crate::spawner::Spawner;
use crate::{ExitStatusInfo, Running, SandboxError, SandboxPaths, SandboxSpec};

/// Where the agent's own process is, seen from the process that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentAt {
    /// It is that process.
    Leader,
    /// It is its grandchild: bubblewrap, its init, the agent. An exit code above 128 then stands for a signal.
    Grandchild,
}

/// What both sandboxes check before anything is started.
pub(crate) fn check(spec: &SandboxSpec) -> Result<(), SandboxError> {
    let label_ok = (1..=LABEL_BYTES).contains(&spec.label.len())
        && spec.label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if !label_ok {
        return Err(SandboxError::Label { limit: LABEL_BYTES });
    }
    let line = spec.bootstrap.expose();
    if line.len() > BOOTSTRAP_BYTES || line.contains('\n') {
        return Err(SandboxError::Bootstrap { limit: BOOTSTRAP_BYTES });
    }
    let SandboxPaths { binary, workspace, socket_dir, choir_dir } = &spec.paths;
    let must = |what: &'static str, path: &std::path::Path, file: bool| {
        let problem = match std::fs::metadata(path) {
            _ if !path.is_absolute() => "is not an absolute path".to_owned(),
            Err(error) => format!("cannot be used: {error}"),
            Ok(meta) if file && !meta.is_file() => "is not a file".to_owned(),
            Ok(meta) if !file && !meta.is_dir() => "is not a directory".to_owned(),
            Ok(_) => return Ok(()),
        };
        Err(SandboxError::Path { what, path: path.to_owned(), problem })
    };
    must("agent binary", binary, true)?;
    must("workspace", workspace, false)?;
    must("socket directory", socket_dir, false)?;
    choir_dir.as_deref().map_or(Ok(()), |dir| must("choir directory", dir, false))
}

/// A new marker for a sandbox of this installation.
pub(crate) fn new_marker(label: &str) -> String {
    format!("{label}/{}", RequestId::fresh())
}

/// What to start, and how.
pub(crate) struct Launch {
    pub(crate) command: Command,
    pub(crate) inherit: Vec<OwnedFd>,
    pub(crate) marker: String,
    pub(crate) agent_at: AgentAt,
}

/// Starts the command, takes charge of it and hands it the bootstrap line.
pub(crate) async fn launch(
    spawner: &Spawner,
    spec: SandboxSpec,
    launch: Launch,
) -> Result<Box<dyn Running>, SandboxError> {
    let Launch { mut command, inherit, marker, agent_at } = launch;
    let file = log::open(&spec.log_file)?;
    let (output, writer) =
        std::io::pipe().map_err(SandboxError::system("a pipe for the output cannot be made"))?;
    let second =
        writer.try_clone().map_err(SandboxError::system("a pipe for the output cannot be shared"))?;
    command.stdin(Stdio::piped()).stdout(writer).stderr(second);
    prepare(
        &mut command,
        ChildSetup { memory_bytes: spec.limits.memory_bytes, open_files: OPEN_FILES, inherit },
    );
    let mut child = spawner.spawn(command).await?;
    let input = child.stdin.take();

    // From here on the child has an owner whose drop kills it.
    let tail = Tail::default();
    let pid = child.id();
    let identity =
        ProcessIdentity::of(pid).unwrap_or(ProcessIdentity { pid, started: 0, boot: procfs::boot_id() });
    let core = Arc::new(Core {
        pid,
        marker,
        child: Mutex::new(Some(child)),
        lifeline: Mutex::new(None),
        tail: tail.clone(),
        exit: watch::Sender::new(None),
        agent_at,
        _spawner: spawner.clone(),
    });
    let handle = Handle { identity, core: Arc::clone(&core) };
    let end = match PidFd::open(pid).and_then(PidFd::watch) {
        Ok(end) => end,
        Err(error) => {
            core.reap_now();
            return Err(SandboxError::system("the agent's process cannot be watched")(error));
        }
    };
    let pump = tokio::spawn(log::pump(output.into(), file, tail));
    tokio::spawn(see_to_its_end(Orphaned(core), end, pump));

    if let Some(input) = input {
        handle.introduce(input.into(), &spec.bootstrap).await?;
    }
    Ok(Box::new(handle))
}

/// Shared by the handle and the task that awaits the end.
struct Core {
    pid: u32,
    marker: String,
    /// Present until reaped. While it is, the pid is this process's and nobody else's.
    child: Mutex<Option<Child>>,
    /// The writing end of the agent's standard input.
    lifeline: Mutex<Option<Sender>>,
    tail: Tail,
    exit: watch::Sender<Option<ExitStatusInfo>>,
    agent_at: AgentAt,
    /// Keeps the thread alive that the kernel takes for the agent's parent.
    _spawner: Spawner,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Kills the group of the process that was started, if it has not been reaped.
    fn kill_group(&self) {
        if lock(&self.child).is_some()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // An error means there is nobody left to kill.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// Kills whoever else belongs to the sandbox, until nobody does. The leader is dead and not reaped meanwhile.
    fn sweep(&self) {
        for _ in 0..SWEEP_ROUNDS {
            let left = procfs::members(self.pid, &self.marker);
            if left.is_empty() {
                return;
            }
            for process in left {
                procfs::kill_exactly(process.pid, process.started);
            }
            std::thread::sleep(SWEEP_PAUSE);
        }
        tracing::warn!(pid = self.pid, "processes of an ended sandbox are still there after many kills");
    }

    fn reap(&self) -> Option<ExitStatus> {
        let mut child = lock(&self.child);
        let status = child.as_mut()?.try_wait().ok()??;
        *child = None;
        Some(status)
    }

    /// The end without a task: kill and reap on this thread.
    fn reap_now(&self) {
        self.kill_group();
        if let Some(mut child) = lock(&self.child).take() {
            let _ = child.wait();
        }
    }

    fn agent_pid(&self) -> Option<u32> {
        if self.exit.borrow().is_some() {
            return None;
        }
        match self.agent_at {
            AgentAt::Leader => procfs::stat(self.pid).filter(|s| !s.is_dead()).map(|s| s.pid),
            AgentAt::Grandchild => {
                let all = procfs::living();
                let init = all.iter().find(|s| s.parent == self.pid)?;
                all.iter().find(|s| s.parent == init.pid).map(|s| s.pid)
            }
        }
    }
}

/// The waiting task's share of the core: if the task is dropped with the runtime, the agent is killed all the same.
struct Orphaned(Arc<Core>);

impl Drop for Orphaned {
    fn drop(&mut self) {
        self.0.kill_group();
    }
}

async fn see_to_its_end(owner: Orphaned, end: End, pump: tokio::task::JoinHandle<()>) {
    // The dead process stays unreaped until everything else of the sandbox is gone too.
    if end.reached().await.is_err() {
        return;
    }
    let core = Arc::clone(&owner.0);
    let swept = tokio::task::spawn_blocking(move || {
        core.kill_group();
        core.sweep();
    });
    let _ = swept.await;
    let abort = pump.abort_handle();
    if timeout(DRAIN_DEADLINE, pump).await.is_err() {
        abort.abort();
    }
    let status = owner.0.reap();
    let (mut code, mut signal) = (status.and_then(|s| s.code()), status.and_then(|s| s.signal()));
    if let (AgentAt::Grandchild, Some(above @ 129..=192)) = (owner.0.agent_at, code) {
        (code, signal) = (None, Some(above - 128));
    }
    let info = ExitStatusInfo { code, signal, last_words: owner.0.tail.text() };
    lock(&owner.0.lifeline).take();
    owner.0.exit.send_replace(Some(info));
}

/// What the caller holds.
struct Handle {
    identity: ProcessIdentity,
    core: Arc<Core>,
}

impl Handle {
    /// Writes the bootstrap line and keeps the pipe as the lifeline.
    async fn introduce(&self, input: OwnedFd, bootstrap: &Secret) -> Result<(), SandboxError> {
        let mut input = Sender::from_owned_fd(input)
            .map_err(SandboxError::system("the agent's standard input cannot be used"))?;
        let write = async {
            input.write_all(bootstrap.expose().as_bytes()).await?;
            input.write_all(b"\n").await
        };
        // An agent that ended before it read its line is reported by `wait`, with its last words.
        match timeout(START_DEADLINE, write).await {
            Err(_) => return Err(SandboxError::StartDeadline(START_DEADLINE)),
            Ok(Err(error)) => tracing::debug!(%error, "the agent closed its standard input"),
            Ok(Ok(())) => {}
        }
        *lock(&self.core.lifeline) = Some(input);
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.kill_group();
    }
}

impl Running for Handle {
    fn pid(&self) -> u32 {
        self.core.pid
    }

    fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    fn agent_pid(&self) -> Option<u32> {
        self.core.agent_pid()
    }

    fn wait(&self) -> BoxFuture<'_, ExitStatusInfo> {
        let mut exit = self.core.exit.subscribe();
        Box::pin(async move {
            // The sender lives in the core, which this handle holds: the channel cannot close before the value is there.
            exit.wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|seen| seen.clone())
                .unwrap_or(ExitStatusInfo { code: None, signal: None, last_words: String::new() })
        })
    }

    fn terminate(&self) -> Result<(), SandboxError> {
        let pid = self.core.agent_pid().ok_or(SandboxError::Gone)?;
        let process = PidFd::open(pid).map_err(|_| SandboxError::Gone)?;
        // The pid was looked up before the pidfd was taken: make sure it is still the agent's.
        if self.core.agent_pid() != Some(pid) {
            return Err(SandboxError::Gone);
        }
        process.signal(Signal::TERM).map_err(SandboxError::system("the agent could not be signalled"))
    }

    fn cut_lifeline(&self) {
        lock(&self.core.lifeline).take();
    }

    fn kill(&self) -> BoxFuture<'_, Result<ExitStatusInfo, SandboxError>> {
        Box::pin(async move {
            self.core.kill_group();
            timeout(KILL_DEADLINE, self.wait())
                .await
                .map_err(|_| SandboxError::NotDead { pid: self.core.pid, after: KILL_DEADLINE })
        })
    }
}
