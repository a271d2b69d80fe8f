//! The folders of a private cluster.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use choir_messages::chain::Digest;

use super::error::ClusterError;

/// Longest path of a Unix socket, in bytes (`sun_path` less its closing zero).
const SOCKET_PATH_BYTES: usize = 107;

/// What Postgres puts into the socket folder.
const SOCKET_NAME: &str = "/.s.PGSQL.5432";

/// What it puts beside it: who listens there.
const SOCKET_LOCK: &str = ".s.PGSQL.5432.lock";

/// The log is started anew beyond this size; one older log is kept.
const LOG_BYTES: u64 = 8 * 1024 * 1024;

/// Room that must be free before a cluster is made or started, in MiB: a new cluster takes about 40, and a server that
/// starts on a full disk fails in its recovery, with a far less clear message.
pub const FREE_MIB: u64 = 64;

/// Where everything is.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
    pub(super) data: PathBuf,
    pub(super) sockets: PathBuf,
    pub(super) log: PathBuf,
    lock: PathBuf,
}

impl Layout {
    /// Makes the folders under `<state>/postgres` that are missing.
    pub(super) fn prepare(state: &Path) -> Result<Self, ClusterError> {
        let state = std::path::absolute(state).map_err(|e| ClusterError::file(state, &e))?;
        let root = state.join("postgres");
        private_dir(&root)?;
        let sockets = socket_folder(&root)?;
        Ok(Self {
            data: root.join("data"),
            log: root.join("postgres.log"),
            lock: root.join("manager.lock"),
            sockets,
            root,
        })
    }

    /// Locks the cluster for this manager. The lock goes with the process, however it ends.
    pub(super) fn lock(&self) -> Result<File, ClusterError> {
        let open = || File::options().create(true).append(true).mode(0o600).open(&self.lock);
        let file = open().map_err(|e| ClusterError::file(&self.lock, &e))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(std::fs::TryLockError::WouldBlock) => Err(ClusterError::Managed { dir: self.root.clone() }),
            Err(std::fs::TryLockError::Error(e)) => Err(ClusterError::file(&self.lock, &e)),
        }
    }

    /// Removes the socket's lock file, which a killed server leaves behind. While its number is not reaped, or after
    /// another process got it, the next server would take the socket for used. Only for a cluster that nobody runs.
    pub(super) fn remove_socket_lock(&self) -> Result<(), ClusterError> {
        let path = self.sockets.join(SOCKET_LOCK);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(ClusterError::file(&path, &e)),
            _ => Ok(()),
        }
    }

    /// Opens the log for appending, and says where new lines will start.
    pub(super) fn open_log(&self) -> Result<(File, u64), ClusterError> {
        let fail = |e: std::io::Error| ClusterError::file(&self.log, &e);
        if std::fs::metadata(&self.log).is_ok_and(|m| m.len() > LOG_BYTES) {
            std::fs::rename(&self.log, self.log.with_extension("log.1")).map_err(fail)?;
        }
        let file = File::options().create(true).append(true).mode(0o600).open(&self.log).map_err(fail)?;
        let start = file.metadata().map_err(fail)?.len();
        Ok((file, start))
    }

    /// Refuses when the disk is nearly full.
    pub(super) fn check_room(&self) -> Result<(), ClusterError> {
        let free_mib = self.free_mib();
        if free_mib < FREE_MIB {
            Err(ClusterError::DiskFull { dir: self.root.clone(), free_mib })
        } else {
            Ok(())
        }
    }

    /// What is free on the cluster's disk, in MiB; plenty if the system does not say.
    pub(super) fn free_mib(&self) -> u64 {
        rustix::fs::statvfs(&self.root)
            .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize) / (1024 * 1024))
    }
}

/// A folder of ours that nobody else can enter; made if it is missing.
pub(super) fn private_dir(dir: &Path) -> Result<(), ClusterError> {
    let fail = |e: std::io::Error| ClusterError::file(dir, &e);
    match DirBuilder::new().recursive(true).mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) => return Err(fail(e)),
    }
    let found = std::fs::symlink_metadata(dir).map_err(fail)?;
    if !found.is_dir() {
        return Err(ClusterError::File { path: dir.to_owned(), why: "it is not a folder".to_owned() });
    }
    if found.mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).map_err(fail)?;
    }
    Ok(())
}

/// `<root>/sock`, or a folder with a short name where that would be too long for a socket. The short name is made from
/// the long one, so that the next choird finds the same.
fn socket_folder(root: &Path) -> Result<PathBuf, ClusterError> {
    let usual = root.join("sock");
    if fits(&usual) {
        private_dir(&usual)?;
        return Ok(usual);
    }
    let digest = Digest::of(root.as_os_str().as_encoded_bytes()).to_string();
    let name = format!("choir-{}", digest.get(..16).unwrap_or_default());
    let uid = rustix::process::geteuid().as_raw();
    let mut why = "none was tried".to_owned();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    for base in runtime.into_iter().chain([PathBuf::from("/tmp")]) {
        let dir = base.join(&name);
        match owned_dir(&dir, uid) {
            Ok(()) if fits(&dir) => return Ok(dir),
            Ok(()) => why = format!("{} is too long for a socket", dir.display()),
            Err(reason) => why = reason,
        }
    }
    Err(ClusterError::NoSocketFolder { why })
}

fn fits(dir: &Path) -> bool {
    dir.as_os_str().len() + SOCKET_NAME.len() <= SOCKET_PATH_BYTES
}

/// A folder in a place where strangers may write: it must be a real folder, ours, and closed to others. One that is not
/// is never repaired, since somebody put it there.
fn owned_dir(dir: &Path, uid: u32) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(format!("{}: {e}", dir.display())),
    }
    let found = std::fs::symlink_metadata(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(format!("{} is not a private folder of this user", dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_state_folder_gets_a_short_socket_folder_and_always_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(100));
        let first = Layout::prepare(&long).unwrap();
        assert!(fits(&first.sockets), "{}", first.sockets.display());
        assert_eq!(Layout::prepare(&long).unwrap().sockets, first.sockets);
        assert_eq!(std::fs::metadata(&first.sockets).unwrap().mode() & 0o777, 0o700);
        std::fs::remove_dir(&first.sockets).unwrap();
        let short = Layout::prepare(&dir.path().join("s")).unwrap();
        assert!(short.sockets.starts_with(dir.path()));
    }

    #[test]
    fn a_socket_folder_that_others_can_enter_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert!(owned_dir(&open, uid).is_err());
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(owned_dir(&link, uid).is_err());
        assert!(owned_dir(&dir.path().join("mine"), uid).is_ok());
    }

    #[test]
    fn only_one_manager_has_a_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(dir.path()).unwrap();
        let held = layout.lock().unwrap();
        assert!(matches!(layout.lock(), Err(ClusterError::Managed { .. })));
        drop(held);
        assert!(layout.lock().is_ok());
    }

    #[test]
    fn a_large_log_is_started_anew() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(dir.path()).unwrap();
        File::create(&layout.log).unwrap().set_len(LOG_BYTES + 1).unwrap();
        let (_, start) = layout.open_log().unwrap();
        assert_eq!(start, 0);
        assert!(dir.path().join("postgres/postgres.log.1").exists());
    }
}
