//! Replacing a file's content so that at every moment, and after a crash at any moment, the path holds either the old
//! content or the new: a temporary file beside it, flushed, renamed over it, and the directory flushed.

use std::os::fd::{AsFd, OwnedFd};

use choir_messages::id::InvocationId;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, fchmod, fchown, fsync, mkdirat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::{Kind, PathError, Workspace, WsPath, open_beneath};
use crate::limits::CHUNK_BYTES;
use crate::stop::{Stop, Stopped};

/// Which file stood at a path, and in which state: enough to see that it was exchanged or written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    size: i64,
    changed: (i64, u64),
}

impl Identity {
    /// The identity of the file with this status.
    #[must_use]
    // The fields' widths differ between architectures.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    pub fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            size: stat.st_size as i64,
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }
}

/// Why a file was not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// The path cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The call has to end.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Renamed, but the directory could not be flushed: the new content is there and may not outlive a power cut.
    #[error("the content was written, but the system could not make it durable: {0}")]
    NotDurable(PathError),
}

/// New content that lies ready beside its place. Dropping it removes it.
#[derive(Debug)]
pub struct Staged<'a> {
    path: &'a WsPath,
    dir: OwnedFd,
    temp: String,
    name: &'a str,
    old: Option<Identity>,
}

/// The name of a call's temporary file: it follows from the call, so that a repeat after a crash clears what the first
/// run left behind.
fn temp_name(invocation: InvocationId) -> String {
    format!(".choir-{invocation}.part")
}

/// Whether a name is one of ours, which listings and searches leave out.
pub(crate) fn is_temp_name(name: &str) -> bool {
    name.strip_prefix(".choir-")
        .and_then(|rest| rest.strip_suffix(".part"))
        .is_some_and(|id| id.parse::<InvocationId>().is_ok())
}

impl Workspace {
    /// Removes what a run of this call that was cut short left beside the path. Nothing there is fine.
    pub fn clear_staged(&self, path: &WsPath, invocation: InvocationId) {
        if let Some((parent, _)) = path.split()
            && let Ok(dir) = self.open_dir(&parent)
        {
            let _ = unlinkat(&dir, temp_name(invocation), AtFlags::empty());
        }
    }

    /// Writes new content beside a resolved path, creating its directories, and flushes it. `old` is the file that
    /// stands there, `None` for none. A new file gets the usual mode, an existing one keeps mode and owner; hard links
    /// and extended attributes are not kept.
    pub fn stage<'a>(
        &self,
        path: &'a WsPath,
        content: &[u8],
        old: Option<&Stat>,
        invocation: InvocationId,
        stop: &Stop,
    ) -> Result<Staged<'a>, ReplaceError> {
        let Some((parent, _)) = path.split() else {
            return Err(PathError::IsADirectory(path.to_string()).into());
        };
        let name = path.as_str().rsplit('/').next().unwrap_or_default();
        let dir = self.make_dirs(&parent, stop)?;
        let temp = temp_name(invocation);
        let fault = |errno| PathError::from_errno(path, errno);

        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let create = || open_beneath(&dir, &temp, flags, Mode::from_raw_mode(mode));
        let file = match create() {
            Err(Errno::EXIST) => {
                unlinkat(&dir, &temp, AtFlags::empty()).map_err(fault)?;
                create()
            }
            other => other,
        }
        .map_err(fault)?;
        // From here on whatever fails removes the temporary file.
        let staged = Staged { path, dir, temp, name, old: old.map(Identity::of) };
        for chunk in content.chunks(CHUNK_BYTES) {
            stop.check()?;
            write_all(&file, chunk).map_err(fault)?;
        }
        if let Some(stat) = old {
            // Only root can keep a foreign owner; for others the file becomes theirs, as with any editor.
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            let _ = fchown(&file, Some(uid), Some(gid));
            fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(fault)?;
        }
        fsync(&file).map_err(fault)?;
        Ok(staged)
    }

    /// Opens a directory, creating it and the ones above it.
    fn make_dirs(&self, path: &WsPath, stop: &Stop) -> Result<OwnedFd, ReplaceError> {
        let mut dir = self.open_dir(&WsPath::ROOT)?;
        let mut here = WsPath::ROOT;
        for part in path.parts() {
            here = here.child(part);
            let fault = |errno| PathError::from_errno(&here, errno);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let next = match open_beneath(&dir, part, flags, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match stop.commit(|| mkdirat(&dir, part, Mode::from_raw_mode(0o777)))? {
                        Ok(()) => fsync(&dir).map_err(fault)?,
                        // Somebody else made it meanwhile.
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(fault(errno).into()),
                    }
                    open_beneath(&dir, part, flags, Mode::empty())
                }
                other => other,
            };
            dir = next.map_err(fault)?;
        }
        Ok(dir)
    }
}

impl Staged<'_> {
    /// Puts the new content in its place, unless the call has to end or the file is no longer the one it was.
    pub fn put(self, stop: &Stop) -> Result<(), ReplaceError> {
        let renamed = stop.commit(|| {
            if self.now_there()? != self.old {
                return Err(PathError::Moved(self.path.to_string()));
            }
            self.rename().map_err(|errno| match errno {
                Errno::EXIST => PathError::Moved(self.path.to_string()),
                errno => PathError::from_errno(self.path, errno),
            })
        })?;
        renamed?;
        fsync(&self.dir).map_err(|e| ReplaceError::NotDurable(PathError::from_errno(self.path, e)))
    }

    fn now_there(&self) -> Result<Option<Identity>, PathError> {
        match statat(&self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if Kind::of(&stat) == Kind::File => Ok(Some(Identity::of(&stat))),
            Ok(_) => Err(PathError::Moved(self.path.to_string())),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::from_errno(self.path, errno)),
        }
    }

    fn rename(&self) -> Result<(), Errno> {
        if self.old.is_none() {
            // A file that appears this late is not overwritten, where the file system can promise that.
            match renameat_with(&self.dir, &self.temp, &self.dir, self.name, RenameFlags::NOREPLACE) {
                Err(Errno::INVAL | Errno::NOSYS) => {}
                other => return other,
            }
        }
        renameat(&self.dir, &self.temp, &self.dir, self.name)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // After the rename nothing of this name is left, and that is as well.
        let _ = unlinkat(&self.dir, &self.temp, AtFlags::empty());
    }
}

fn write_all(file: &impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
