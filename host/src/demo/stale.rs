//! Folders of demos that were killed: each holds a key and a database, and nobody comes back for it. A demo locks a file in
//! its folder for as long as it lives; a folder whose lock is free has lost its owner, and the next demo removes it.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::state_dir::StateDir;

/// How a demo's own folder is called, with a random end.
pub(super) const PREFIX: &str = "choir-demo-";

/// The file that is locked while the demo lives. It is in no folder that is to be kept.
const LOCK: &str = "demo.lock";

/// The name of the lock file until it is locked: whoever sees [`LOCK`] sees it locked, or orphaned.
const UNLOCKED: &str = "demo.lock.new";

/// Folders that one demo looks at: a folder of temporary files may hold anything.
const LOOKED_AT: usize = 1000;

/// The hold on a folder, which ends with the process, however it ends.
#[derive(Debug)]
pub(super) struct Held {
    _lock: File,
    path: PathBuf,
}

impl Held {
    /// Marks a folder as this process's for as long as it lives.
    pub(super) fn take(root: &Path) -> std::io::Result<Self> {
        let (unlocked, path) = (root.join(UNLOCKED), root.join(LOCK));
        let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(unlocked, &path)?;
        Ok(Self { _lock: lock, path })
    }

    /// The folder stays: no later demo takes it for orphaned.
    pub(super) fn leave(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes orphaned folders of this user under `bases`; returns which. What cannot be removed is left to the next sweep.
pub(super) fn sweep(bases: &[PathBuf]) -> Vec<PathBuf> {
    let mut removed = Vec::new();
    for base in bases {
        let entries = fs::read_dir(base).into_iter().flatten().filter_map(Result::ok);
        let ours =
            entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        for entry in ours.take(LOOKED_AT) {
            let root = entry.path();
            if orphaned(&root).is_some_and(|_lock| fs::remove_dir_all(&root).is_ok()) {
                removed.push(root);
            }
        }
    }
    removed
}

/// The lock of a folder that a demo of this user left behind, none if it is anything else. Somebody else's folder may
/// imitate a demo's, so nothing in it is followed or believed before the folder itself is known to be this user's alone.
fn orphaned(root: &Path) -> Option<File> {
    let found = fs::symlink_metadata(root).ok()?;
    let mine = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o7777 == 0o700;
    if !mine {
        return None;
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).ok()?;
    let lock = File::options().write(true).custom_flags(flags).open(root.join(LOCK)).ok()?;
    if !lock.metadata().is_ok_and(|meta| meta.is_file()) {
        return None;
    }
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    // What the dead demo started ends by itself; until it has, the folder is in use.
    let state = StateDir::locate(Some(root)).ok()?;
    let in_use = state.holder().is_some() || database_runs(root);
    (!in_use).then_some(lock)
}

/// Whether a process runs on the folder's database.
fn database_runs(root: &Path) -> bool {
    let data = root.join("postgres/data");
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let Some(pid) = text.lines().next().and_then(|line| line.trim().parse::<u32>().ok()) else {
        return false;
    };
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    line.split(|byte| *byte == 0).any(|argument| argument == data.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};

    fn folder(base: &Path, name: &str, mode: u32) -> PathBuf {
        let root = base.join(name);
        fs::DirBuilder::new().mode(0o700).create(&root).unwrap();
        fs::write(root.join("secrets.json"), "canary").unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
        root
    }

    #[test]
    fn only_private_folders_of_demos_that_are_gone_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        let orphan = folder(base, "choir-demo-orphan", 0o700);
        drop(Held::take(&orphan).unwrap());
        let living = folder(base, "choir-demo-living", 0o700);
        let held = Held::take(&living).unwrap();
        let open = folder(base, "choir-demo-open", 0o755);
        drop(Held::take(&open).unwrap());
        let unmarked = folder(base, "choir-demo-unmarked", 0o700);
        let other = folder(base, "someone-elses", 0o700);
        drop(Held::take(&other).unwrap());
        let kept = folder(base, "choir-demo-kept", 0o700);
        Held::take(&kept).unwrap().leave();
        let half = folder(base, "choir-demo-half", 0o700);
        fs::write(half.join(UNLOCKED), "").unwrap();
        let linked = base.join("choir-demo-linked");
        symlink(&other, &linked).unwrap();
        let trap = folder(base, "choir-demo-trap", 0o700);
        symlink(other.join(LOCK), trap.join(LOCK)).unwrap();

        let bases = [base.to_path_buf(), base.to_path_buf(), base.join("nowhere")];
        assert_eq!(sweep(&bases), [orphan]);
        for left in [&living, &open, &unmarked, &other, &kept, &half, &trap] {
            assert_eq!(fs::read_to_string(left.join("secrets.json")).unwrap(), "canary");
        }
        assert!(fs::symlink_metadata(&linked).is_ok());
        drop(held);
        assert_eq!(sweep(&[base.to_path_buf()]), [living]);
    }

    #[test]
    fn a_folder_whose_choird_still_ends_is_left_to_the_next_sweep() {
        let dir = tempfile::tempdir().unwrap();
        let root = folder(dir.path(), "choir-demo-ending", 0o700);
        drop(Held::take(&root).unwrap());
        let state = StateDir::locate(Some(&root)).unwrap();
        state.create().unwrap();
        let choird = state.hold().unwrap();
        assert!(sweep(&[dir.path().to_path_buf()]).is_empty());
        drop(choird);
        assert_eq!(sweep(&[dir.path().to_path_buf()]), [root]);
    }
}
