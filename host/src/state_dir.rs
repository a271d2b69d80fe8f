//! The state directory (`choir §6.3`): where everything of one choird lives, private to its user, held by one choird
//! at a time.

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use choir_messages::id::AgentId;
use rustix::fs::FlockOperation;

use crate::limits;

/// The environment variable that names the state directory.
pub const STATE_DIR_ENV: &str = "CHOIR_STATE_DIR";

/// Paths of one state directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDir {
    root: PathBuf,
}

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Neither `--state-dir`, nor the variable, nor a home.
    #[error(
        "no state directory: give --state-dir or set {STATE_DIR_ENV} (there is no HOME to put .choir.d into)"
    )]
    NoHome,
    /// Not there.
    #[error("there is no state directory at {0}; `choirctl init` creates it")]
    Missing(PathBuf),
    /// The system refuses.
    #[error("cannot use {path}: {reason}{}", if .reason.kind() == std::io::ErrorKind::StorageFull { "; free some space" } else { "" })]
    Io {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        reason: std::io::Error,
    },
    /// Others could write or read in it.
    #[error("{path} {what}; {fix}")]
    Exposed {
        /// Which directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// The command that cures it.
        fix: String,
    },
    /// Its sockets would have paths longer than the system takes.
    #[error(
        "the path {path} is {} bytes too long for a Unix socket; choose a shorter --state-dir",
        .path.as_os_str().len() - limits::SOCKET_PATH_BYTES
    )]
    TooLong {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another choird holds it.
    #[error(
        "another choird (pid {pid}) is using {path}; stop it with `choirctl shutdown`, or use another --state-dir"
    )]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Its holder, as the pid file says.
        pid: String,
    },
}

impl StateDir {
    /// The directory by flag, else by environment, else `~/.choir.d`. Made absolute, so that a later change of the
    /// working directory does not matter.
    pub fn locate(flag: Option<&Path>) -> Result<Self, StateDirError> {
        let named = flag
            .map(Path::to_path_buf)
            .or_else(|| std::env::var_os(STATE_DIR_ENV).filter(|v| !v.is_empty()).map(PathBuf::from));
        let root = match named {
            Some(path) => path,
            None => {
                let home = std::env::var_os("HOME").filter(|v| !v.is_empty()).ok_or(StateDirError::NoHome)?;
                PathBuf::from(home).join(".choir.d")
            }
        };
        let root = std::path::absolute(&root).map_err(|reason| StateDirError::Io { path: root, reason })?;
        Ok(Self { root })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.root.join("config.json")
    }

    /// The last `config.json` that choird accepted.
    #[must_use]
    pub fn last_good_config(&self) -> PathBuf {
        self.root.join("config.last-good.json")
    }

    /// `secrets.json`.
    #[must_use]
    pub fn secrets(&self) -> PathBuf {
        self.root.join("secrets.json")
    }

    /// The control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.root.join("socks/choird.sock")
    }

    /// The socket of choird's CHAP Coordinator: HTTP for this user alone.
    #[must_use]
    pub fn coordinator_socket(&self) -> PathBuf {
        self.root.join("socks/chap.sock")
    }

    /// The folder of a Coordinator by itself that keeps its workspaces without a server.
    #[must_use]
    pub fn coordinator_folder(&self) -> PathBuf {
        self.root.join("coordinator")
    }

    /// The home of the signed ledger.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.root.join("ledger")
    }

    /// The directory that holds one agent's link socket and nothing else; it is what a sandbox is shown.
    #[must_use]
    pub fn link_dir(&self, agent: &AgentId) -> PathBuf {
        self.root.join("socks").join(agent.as_str())
    }

    /// Logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The log of `choird` or of one agent.
    #[must_use]
    pub fn log_file(&self, source: &str) -> PathBuf {
        self.logs().join(format!("{source}.log"))
    }

    fn pid_file(&self) -> PathBuf {
        self.root.join("run/choird.pid")
    }

    /// Creates the directories, mode 0700; what exists is checked and kept.
    pub fn create(&self) -> Result<(), StateDirError> {
        for dir in [
            self.root.clone(),
            self.root.join("socks"),
            self.logs(),
            self.logs().join("archive"),
            self.root.join("repos"),
            self.root.join("run"),
        ] {
            let io = |reason| StateDirError::Io { path: dir.clone(), reason };
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(io)?;
        }
        self.check()
    }

    /// Checks that the directory exists, is the user's own, is private, and that its sockets' paths fit.
    pub fn check(&self) -> Result<(), StateDirError> {
        let io = |reason: std::io::Error| StateDirError::Io { path: self.root.clone(), reason };
        let meta = match fs::metadata(&self.root) {
            Ok(meta) if meta.is_dir() => meta,
            Ok(_) => return Err(io(std::io::Error::other("it is not a directory"))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(StateDirError::Missing(self.root.clone()));
            }
            Err(e) => return Err(io(e)),
        };
        let me = rustix::process::geteuid().as_raw();
        let path = self.root.clone();
        if meta.uid() != me {
            let what = format!("belongs to user {} and not to user {me}, who runs this", meta.uid());
            return Err(StateDirError::Exposed { path, what, fix: "use another --state-dir".into() });
        }
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let fix = format!("run `chmod 700 {}`", self.root.display());
            return Err(StateDirError::Exposed {
                path,
                what: format!("is open to others (mode {mode:04o})"),
                fix,
            });
        }
        fits_a_socket(&self.control_socket())
    }

    /// Takes the directory for this process. The lock is the kernel's, so it ends with the process, however it ends.
    pub fn hold(&self) -> Result<Held, StateDirError> {
        let path = self.pid_file();
        let io = |reason: std::io::Error| StateDirError::Io { path: path.clone(), reason };
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = (&mut file).take(32).read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown".into() } else { pid.trim().to_owned() };
                return Err(StateDirError::Busy { path: self.root.clone(), pid });
            }
            Err(e) => return Err(io(e.into())),
        }
        file.set_len(0).map_err(io)?;
        file.rewind().map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Held { _file: file })
    }

    /// The pid of the choird that holds the directory now, if any.
    #[must_use]
    pub fn holder(&self) -> Option<u32> {
        let mut file = fs::File::open(self.pid_file()).ok()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                (&mut file).take(32).read_to_string(&mut pid).ok()?;
                pid.trim().parse().ok()
            }
            _ => None,
        }
    }
}

/// Makes a directory with mode 0700; one that exists gets that mode.
pub(crate) fn make_private(dir: &Path) -> Result<(), StateDirError> {
    let io = |reason| StateDirError::Io { path: dir.to_path_buf(), reason };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(io)
}

/// Whether a path fits into a socket's address.
pub fn fits_a_socket(path: &Path) -> Result<(), StateDirError> {
    if path.as_os_str().len() > limits::SOCKET_PATH_BYTES {
        Err(StateDirError::TooLong { path: path.to_path_buf() })
    } else {
        Ok(())
    }
}

/// The hold of a state directory; ends when dropped or when the process ends.
#[derive(Debug)]
pub struct Held {
    _file: fs::File,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, StateDir) {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&temp.path().join("s"))).unwrap();
        (temp, state)
    }

    #[test]
    fn a_new_directory_is_private_and_can_be_made_twice() {
        let (_temp, state) = dir();
        assert!(matches!(state.check(), Err(StateDirError::Missing(_))));
        state.create().unwrap();
        state.create().unwrap();
        assert_eq!(fs::metadata(state.root()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn one_process_holds_it_at_a_time_and_a_dropped_hold_is_free_again() {
        let (_temp, state) = dir();
        state.create().unwrap();
        assert_eq!(state.holder(), None);
        let held = state.hold().unwrap();
        // A second open file description conflicts even within one process.
        let error = state.hold().unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        assert_eq!(state.holder(), Some(std::process::id()));
        drop(held);
        state.hold().unwrap();
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let (_temp, state) = dir();
        state.create().unwrap();
        fs::set_permissions(state.root(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = state.check().unwrap_err().to_string();
        assert!(error.contains("mode 0755") && error.contains("chmod 700"), "{error}");
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_said_by_how_much() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&temp.path().join("x".repeat(120)))).unwrap();
        let error = state.create().unwrap_err().to_string();
        assert!(error.contains("bytes too long for a Unix socket"), "{error}");
    }
}
