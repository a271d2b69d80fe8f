//! The key that signs the Coordinator's transparency log: made once, and kept in the state directory. Whoever replaces it
//! begins a new log; receipts of the old one hold, but are not given any more.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use choir_chap::Log;
use choir_messages::sign::SigningKey;
use zeroize::Zeroizing;

use crate::state_dir::{StateDir, make_private};

/// Bytes of a seed.
const SEED: usize = 32;

/// Why there is no log key.
#[derive(Debug, thiserror::Error)]
pub enum LogKeyError {
    /// The file cannot be read or made.
    #[error("the log key {path} cannot be read or made: {why}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Others may read it.
    #[error("the log key {0} is open to others; run `chmod 600 {0}`, and consider it known to them")]
    Exposed(PathBuf),
    /// It holds something else.
    #[error(
        "{0} is no log key of {SEED} bytes; restore it from a backup, or move it away to begin a new log"
    )]
    Malformed(PathBuf),
}

/// The log of a Coordinator that keeps nothing: its key ends with the process.
pub(super) fn fleeting() -> Result<Log, LogKeyError> {
    let why = |error: choir_messages::sign::SignatureError| error.to_string();
    let key =
        SigningKey::generate().map_err(|error| LogKeyError::Io { path: PathBuf::new(), why: why(error) })?;
    Ok(Log::of_key(key))
}

/// The log whose key is in the state directory, made if there is none.
pub(crate) fn kept(state: &StateDir) -> Result<Log, LogKeyError> {
    let folder = state.root().join("keys");
    let path = folder.join("log.key");
    let io = |why: String| LogKeyError::Io { path: path.clone(), why };
    make_private(&folder).map_err(|error| io(error.to_string()))?;
    if !path.exists() {
        let key = SigningKey::generate().map_err(|error| io(error.to_string()))?;
        make(&path, &key.seed()).map_err(|error| io(error.to_string()))?;
        tracing::info!(path = %path.display(), "a log key was made");
    }
    let mode = fs::metadata(&path).map_err(|error| io(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(LogKeyError::Exposed(path));
    }
    let bytes = Zeroizing::new(fs::read(&path).map_err(|error| io(error.to_string()))?);
    let seed: &[u8; SEED] = bytes.as_slice().try_into().map_err(|_| LogKeyError::Malformed(path.clone()))?;
    Ok(Log::of_key(SigningKey::from_seed(seed)))
}

/// Writes it beside its place first, so that a crash leaves a whole key or none. An existing key is never replaced.
fn make(path: &Path, seed: &[u8; SEED]) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(seed)?;
    file.sync_all()?;
    let linked = fs::hard_link(&beside, path);
    fs::remove_file(&beside)?;
    if let Some(folder) = path.parent() {
        fs::File::open(folder)?.sync_all()?;
    }
    match linked {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&dir.path().join("s"))).unwrap();
        state.create().unwrap();
        (dir, state)
    }

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let (_dir, state) = state();
        let first = kept(&state).unwrap();
        assert_eq!(kept(&state).unwrap(), first);
        let path = state.root().join("keys/log.key");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(fleeting().unwrap(), first);
    }

    #[test]
    fn a_key_that_others_can_read_or_that_was_cut_off_is_refused() {
        let (_dir, state) = state();
        kept(&state).unwrap();
        let path = state.root().join("keys/log.key");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(kept(&state), Err(LogKeyError::Exposed(_))));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, [1; 31]).unwrap();
        assert!(matches!(kept(&state), Err(LogKeyError::Malformed(_))));
    }
}
