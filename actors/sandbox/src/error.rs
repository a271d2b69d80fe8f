//! What can go wrong with a sandbox, in sentences for the operator.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a sandbox could not be made, started or ended.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// A path of the specification is not there or not of the right kind.
    #[error("the {what} {} {problem}", .path.display())]
    Path {
        /// `workspace`, `agent binary`, ...
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The bootstrap line is too long or has a line end in it.
    #[error("the bootstrap line must be one line of at most {limit} bytes")]
    Bootstrap {
        /// The limit in bytes.
        limit: usize,
    },
    /// The label is not usable.
    #[error("the sandbox label must be 1 to {limit} letters, digits, '.', '-' or '_'")]
    Label {
        /// The limit in bytes.
        limit: usize,
    },
    /// `bwrap` is not on this machine.
    #[error("bubblewrap is not installed; install it with `apt-get install bubblewrap`")]
    NotInstalled,
    /// The kernel or a security module refuses namespaces to this user.
    #[error(
        "bubblewrap may not create namespaces here ({detail}); as root, allow them with `sysctl -w \
         kernel.unprivileged_userns_clone=1` (Debian) or `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` \
         (Ubuntu), and check that `sysctl user.max_user_namespaces` is not 0"
    )]
    NamespacesRefused {
        /// What bwrap said.
        detail: String,
    },
    /// bubblewrap is there and does not work, for another reason.
    #[error("bubblewrap does not work here: {detail}; try it with `bwrap --unshare-all --ro-bind / / true`")]
    BubblewrapFails {
        /// What bwrap said.
        detail: String,
    },
    /// This sandbox cannot do what the specification asks.
    #[error("the {sandbox} sandbox cannot {what}; use the bubblewrap sandbox")]
    Unsupported {
        /// Name of the sandbox.
        sandbox: &'static str,
        /// What it cannot do.
        what: &'static str,
    },
    /// The program did not start.
    #[error("{program} could not be started: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The log file cannot be written.
    #[error("the log file {} cannot be opened: {source}", .path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent did not take the bootstrap line.
    #[error("the agent did not take its bootstrap line within {0:?}; its log says why")]
    StartDeadline(Duration),
    /// There is no such process any more.
    #[error("the process has already ended")]
    Gone,
    /// The pid now belongs to another process, or the machine was restarted since: nothing was killed.
    #[error("process {pid} is not the one that was recorded; it was left alone")]
    NotTheSame {
        /// The pid.
        pid: u32,
    },
    /// Killed, and still there.
    #[error("process {pid} is still there {after:?} after it was killed; it may be waiting for a disk")]
    NotDead {
        /// The pid.
        pid: u32,
        /// How long was waited.
        after: Duration,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl SandboxError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
