//! Under which user Postgres runs. It refuses uid 0, so root needs another one.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::error::ClusterError;

/// uid and gid of `nobody` on every Linux system, and the kernel's own overflow id.
const NOBODY: u32 = 65534;

/// Longest wait for the trial of a user namespace.
const TRIAL_WITHIN: Duration = Duration::from_secs(10);

/// How to start a program that must not be root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunAs {
    /// An ordinary user runs it as itself.
    Myself,
    /// Root runs it in a user namespace that shows it uid 65534; outside its files stay root's.
    Mapped,
    /// Root gives it away to `nobody`, and with it the cluster's folders.
    Nobody,
}

impl RunAs {
    /// What this system allows.
    pub(super) async fn choose() -> Result<Self, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Myself);
        }
        let Err(mapped) = trial(Self::Mapped.command("true")).await else { return Ok(Self::Mapped) };
        let Err(nobody) = trial(Self::Nobody.command("true")).await else { return Ok(Self::Nobody) };
        Err(ClusterError::Root { why: format!("unshare: {mapped}; nobody: {nobody}") })
    }

    /// A command for `program`, in its own process group, so that a Ctrl-C in the terminal reaches choird only, with an
    /// environment that cannot change what Postgres does.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self {
            Self::Myself => Command::new(program),
            Self::Mapped => {
                let mut unshare = Command::new("unshare");
                unshare.args(["-U", "--map-user=65534", "--map-group=65534", "--"]).arg(program);
                unshare
            }
            Self::Nobody => {
                let mut given = Command::new(program);
                given.uid(NOBODY).gid(NOBODY);
                given
            }
        };
        command.env_clear().env("LC_ALL", "C").current_dir("/").process_group(0).stdin(Stdio::null());
        for kept in ["PATH", "LD_LIBRARY_PATH"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
    }

    /// Gives a folder to the user that will run in it.
    pub(super) fn give(self, dir: &Path) -> Result<(), ClusterError> {
        if self != Self::Nobody {
            return Ok(());
        }
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).map_err(|e| ClusterError::file(dir, &e))
    }

    /// Gives a folder and everything in it.
    pub(super) fn give_all(self, dir: &Path) -> Result<(), ClusterError> {
        self.give(dir)?;
        if self != Self::Nobody || !dir.is_dir() {
            return Ok(());
        }
        for entry in std::fs::read_dir(dir).map_err(|e| ClusterError::file(dir, &e))? {
            self.give_all(&entry.map_err(|e| ClusterError::file(dir, &e))?.path())?;
        }
        Ok(())
    }

    /// Whether that user can reach what it needs; a folder above may be closed to it.
    pub(super) async fn check_reach(self, dir: &Path, program: &Path) -> Result<(), ClusterError> {
        if self != Self::Nobody {
            return Ok(());
        }
        for path in [dir, program] {
            let mut look = self.command("test");
            look.arg("-x").arg(path);
            if trial(look).await.is_err() {
                let why =
                    format!("no user namespaces, and the user \"nobody\" cannot reach {}", path.display());
                return Err(ClusterError::Root { why });
            }
        }
        Ok(())
    }
}

async fn trial(mut command: Command) -> Result<(), String> {
    let run = command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).output();
    match tokio::time::timeout(TRIAL_WITHIN, run).await {
        Err(_) => Err("no answer".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(format!(
            "{} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim().chars().take(200).collect::<String>()
        )),
    }
}
