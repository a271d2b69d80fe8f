//! Sandboxes: how choird starts a choir-agent, what the agent may see, and how it is certain to end (`choir §14.1`,
//! `choir §15`). The session supervisor of the host calls [`detect`] once and [`Sandbox::start`] for each lease.
//!
//! Promises, for every sandbox: the agent starts with a clean environment; the link's secret reaches it on standard
//! input only; that input stays open as a lifeline, so end of file means the host is gone; the agent is killed by the
//! kernel when the host dies, even by `kill -9`; [`Running::kill`] returns when the agent and everything it started
//! have ended; what outlives a host all the same is found by its marker ([`find_orphans`]) and killed only after its
//! identity is checked. [`BubblewrapSandbox`] isolates files and processes; [`ProcessSandbox`] isolates nothing and
//! says so. Linux 5.3 or newer (pidfd).

mod bubblewrap;
mod child;
mod detect;
mod error;
mod limits;
mod log;
mod orphans;
mod pidfd;
mod process;
mod procfs;
mod running;
mod spawner;

pub use bubblewrap::BubblewrapSandbox;
pub use detect::{Detected, Preference, detect};
pub use error::SandboxError;
pub use limits::{KILL_DEADLINE, LAST_WORDS_BYTES, LOG_BYTES, OPEN_FILES, START_DEADLINE, TMPFS_BYTES};
pub use orphans::{Orphan, end_orphans, find_orphans, kill_orphan};
pub use process::ProcessSandbox;
pub use procfs::ProcessIdentity;

use std::path::PathBuf;

use choir_messages::secret::Secret;
use choir_messages::wire::BoxFuture;

/// The environment variable by which processes of a sandbox are recognised: `<label>/<id>`. It is no secret, but it
/// must survive in what the agent starts, so that nothing is left behind where there is no process namespace.
pub const MARKER: &str = "CHOIR_SANDBOX";

/// The directories and files a sandbox needs. The same type says where they are on the host and where the agent sees
/// them ([`Sandbox::inside`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPaths {
    /// The agent's executable.
    pub binary: PathBuf,
    /// The workspace, readable and writable.
    pub workspace: PathBuf,
    /// The directory that holds the link's socket. The directory and not the socket, so that a restarted host can
    /// bind a new one in it.
    pub socket_dir: PathBuf,
    /// Identity files, tools and skills (`choir §15.1`), read-only.
    pub choir_dir: Option<PathBuf>,
}

/// Limits of one sandbox. [`Sandbox::caveats`] says which of them a sandbox cannot enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Bytes of private memory a single process may map (`RLIMIT_DATA`).
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once (`RLIMIT_NPROC`).
    pub processes: Option<u32>,
}

/// Whether the agent reaches the network (`choir §18.1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The host's network, loopback included: version 1's documented trade-off.
    #[default]
    Shared,
    /// None; models must then be reached through the host.
    None,
}

/// Everything that is needed to start one agent.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// Names the installation (such as a short hash of the state folder): leftovers of an earlier host are found by it.
    /// Letters, digits, `.`, `-` and `_`, at most 64.
    pub label: String,
    /// Where things are on the host; absolute.
    pub paths: SandboxPaths,
    /// Arguments of the agent. Visible to every user of the machine: nothing secret.
    pub args: Vec<String>,
    /// Limits.
    pub limits: Limits,
    /// Network.
    pub network: Network,
    /// The bootstrap line, without its line end, at most [`choir_messages::wire::BOOTSTRAP_BYTES`].
    pub bootstrap: Secret,
    /// Where the agent's standard output and error are appended, mode 0600, at most [`LOG_BYTES`] per start. The host
    /// writes it: the agent holds a pipe and can neither truncate nor read it.
    pub log_file: PathBuf,
}

/// How an agent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitStatusInfo {
    /// Exit code, if it exited by itself.
    pub code: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// The end of its output, at most [`LAST_WORDS_BYTES`], control characters replaced. From inside the sandbox:
    /// show it, never act on it.
    pub last_words: String,
}

impl ExitStatusInfo {
    /// Whether it exited by itself with code 0.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }
}

impl std::fmt::Display for ExitStatusInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exited with code {code}"),
            (None, Some(signal)) => write!(f, "ended by signal {signal}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

/// A way to start agents.
pub trait Sandbox: Send + Sync {
    /// Its name in configuration and status: `bubblewrap`, `process`.
    fn name(&self) -> &'static str;

    /// Whether files and processes of the host are out of the agent's reach.
    fn isolates(&self) -> bool;

    /// What an operator must know about this sandbox on this machine, one sentence each.
    fn caveats(&self) -> Vec<String>;

    /// Where the agent sees these paths: what the bootstrap line must name.
    fn inside(&self, paths: &SandboxPaths) -> SandboxPaths;

    /// Starts an agent. Must be called inside a tokio runtime with I/O and time. Dropping the future, or later the
    /// [`Running`], kills what was started.
    fn start(&self, spec: SandboxSpec) -> BoxFuture<'_, Result<Box<dyn Running>, SandboxError>>;
}

/// A started agent. Dropping it kills it.
pub trait Running: Send + Sync {
    /// The process the host started (under bubblewrap that is `bwrap`, whose end is the sandbox's end).
    fn pid(&self) -> u32;

    /// The same with its start time: what the host records, to recognise it after a crash of its own.
    fn identity(&self) -> &ProcessIdentity;

    /// The agent's own process as the host sees it, for operators; absent until it runs and once it is gone.
    fn agent_pid(&self) -> Option<u32>;

    /// Resolves when the agent and everything it started have ended; any number of callers, at any time.
    fn wait(&self) -> BoxFuture<'_, ExitStatusInfo>;

    /// Asks the agent to end (SIGTERM). [`SandboxError::Gone`] if there is none.
    fn terminate(&self) -> Result<(), SandboxError>;

    /// Closes the lifeline: the agent reads end of file, as if the host had died.
    fn cut_lifeline(&self);

    /// Kills everything in the sandbox and waits for its end, at most [`KILL_DEADLINE`]. Harmless if it has ended.
    fn kill(&self) -> BoxFuture<'_, Result<ExitStatusInfo, SandboxError>>;
}
