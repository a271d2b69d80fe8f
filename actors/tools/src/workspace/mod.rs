//! The workspace: the only files the tools touch. Every open goes through `openat2` beneath the workspace's own
//! descriptor and follows no symbolic link, so no race can lead out of it; links inside the workspace are resolved
//! beforehand, when a call is validated, and the real path is what is locked.

mod list;
mod path;
mod replace;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat};
use rustix::io::Errno;

use crate::limits::{LINKS_FOLLOWED, OPEN_TRIES};

pub use list::{Entry, Listing};
pub use path::{CHOIRTMP, MOUNT, PathError, WsPath};
pub use replace::{Identity, ReplaceError, Staged};

/// How every path is opened: beneath the workspace, through no link of any kind.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_SYMLINKS);

/// Why a directory cannot be a workspace.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// It cannot be opened.
    #[error(
        "the workspace {path} cannot be opened: {error}; create the directory or name another in config.json"
    )]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The root of the file system, or a name that is not UTF-8.
    #[error("{0} cannot be a workspace; name a directory of its own, with a UTF-8 name")]
    NotAllowed(PathBuf),
    /// The kernel is too old, or a filter forbids the call.
    #[error(
        "the kernel offers no openat2 ({0}), without which files cannot be confined; Linux 5.6 or newer is needed"
    )]
    NoOpenat2(std::io::Error),
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Something that must not be opened, by its name.
    Special(&'static str),
}

impl Kind {
    fn of(stat: &Stat) -> Self {
        Self::of_type(FileType::from_raw_mode(stat.st_mode))
    }

    /// The kind a directory entry's type says.
    #[must_use]
    pub fn of_type(kind: FileType) -> Self {
        match kind {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Link,
            FileType::Fifo => Self::Special("FIFO"),
            FileType::Socket => Self::Special("socket"),
            FileType::CharacterDevice | FileType::BlockDevice => Self::Special("device"),
            FileType::Unknown => Self::Special("file of unknown kind"),
        }
    }
}

/// An open workspace. Cheap to share; holds one descriptor.
#[derive(Debug)]
pub struct Workspace {
    root: OwnedFd,
    /// The real, absolute path, for commands to start in and for absolute paths models write.
    real: String,
}

impl Workspace {
    /// Opens the workspace at this directory and makes sure that the kernel can confine what happens in it.
    pub fn open(path: &Path) -> Result<Self, WorkspaceError> {
        let unusable = |error| WorkspaceError::Unusable { path: path.to_owned(), error };
        let real = path.canonicalize().map_err(unusable)?;
        let text = real.to_str().filter(|text| *text != "/");
        let Some(text) = text else { return Err(WorkspaceError::NotAllowed(path.to_owned())) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, text, flags, Mode::empty()).map_err(|e| unusable(e.into()))?;
        openat2(&root, ".", flags, Mode::empty(), CONFINED)
            .map_err(|e| WorkspaceError::NoOpenat2(e.into()))?;
        Ok(Self { root, real: text.to_owned() })
    }

    /// The real, absolute path.
    #[must_use]
    pub fn real_path(&self) -> &str {
        &self.real
    }

    /// Reads a path as a model wrote it and follows the symbolic links in it, which must not lead out. What does not
    /// exist yet stays as it was written.
    pub fn resolve(&self, text: &str) -> Result<WsPath, PathError> {
        let asked = WsPath::parse(text, &self.real)?;
        let mut todo: VecDeque<String> = asked.parts().map(str::to_owned).collect();
        let mut done: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == ".." {
                // Only links bring these in; what is done is real, so its parent is the one before.
                done.pop().ok_or_else(|| PathError::LinkOutside(asked.to_string()))?;
                continue;
            }
            done.push(part);
            let here = WsPath::of_parts(done.iter().map(String::as_str));
            match self.look(&here)? {
                Some((Kind::Link, link)) => {
                    links += 1;
                    if links > LINKS_FOLLOWED {
                        return Err(PathError::Links(asked.to_string()));
                    }
                    done.pop();
                    let target = self.link_target(&here, &link)?;
                    let rest = if target.starts_with('/') {
                        done.clear();
                        path::below(&target, &self.real)
                            .or_else(|| path::below(&target, MOUNT))
                            .ok_or_else(|| PathError::LinkOutside(asked.to_string()))?
                    } else {
                        target.as_str()
                    };
                    let parts = rest.split('/').filter(|part| !part.is_empty() && *part != ".");
                    for part in parts.rev() {
                        todo.push_front(part.to_owned());
                    }
                }
                Some((Kind::Directory, _)) => {}
                Some(_) if todo.is_empty() => {}
                Some(_) => return Err(PathError::NotADirectory(here.to_string())),
                None if todo.iter().any(|part| part == "..") => {
                    return Err(PathError::NotFound(here.to_string()));
                }
                None => done.extend(todo.drain(..)),
            }
        }
        Ok(WsPath::of_parts(done.iter().map(String::as_str)))
    }

    fn link_target(&self, path: &WsPath, link: &OwnedFd) -> Result<String, PathError> {
        // An empty name means the link that was opened, so that it cannot be exchanged in between.
        let target = readlinkat(link, "", Vec::new()).map_err(|e| PathError::from_errno(path, e))?;
        target.into_string().map_err(|_| PathError::NotUtf8(path.to_string()))
    }

    /// What stands at a resolved path, and a descriptor that can be looked at but not read; `None` if nothing does.
    pub fn look(&self, path: &WsPath) -> Result<Option<(Kind, OwnedFd)>, PathError> {
        match self.confined(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => {
                let stat = fstat(&fd).map_err(|e| PathError::from_errno(path, e))?;
                Ok(Some((Kind::of(&stat), fd)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(PathError::from_errno(path, errno)),
        }
    }

    /// Opens a regular file for reading. Never blocks on a FIFO and never touches a device.
    pub fn open_file(&self, path: &WsPath) -> Result<(File, Stat), PathError> {
        match self.look(path)? {
            None => return Err(PathError::NotFound(path.to_string())),
            Some((Kind::File, _)) => {}
            Some((kind, _)) => return Err(not_a_file(path, kind)),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.confined(path, flags, Mode::empty()).map_err(|e| PathError::from_errno(path, e))?;
        // It may have been exchanged since it was looked at.
        let stat = fstat(&fd).map_err(|e| PathError::from_errno(path, e))?;
        match Kind::of(&stat) {
            Kind::File => Ok((File::from(fd), stat)),
            kind => Err(not_a_file(path, kind)),
        }
    }

    /// Opens a directory, so that it can be listed or files in it be created.
    pub fn open_dir(&self, path: &WsPath) -> Result<OwnedFd, PathError> {
        self.confined(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(|e| PathError::from_errno(path, e))
    }

    fn confined(&self, path: &WsPath, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let name = if path.is_root() { "." } else { path.as_str() };
        open_beneath(&self.root, name, flags, mode)
    }
}

/// Opens a name beneath a directory through no link.
fn open_beneath(dir: &OwnedFd, name: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    for _ in 0..OPEN_TRIES {
        match openat2(dir, name, flags | OFlags::CLOEXEC, mode, CONFINED) {
            // The kernel saw a rename next to the path and could not be sure.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn not_a_file(path: &WsPath, kind: Kind) -> PathError {
    let path = path.to_string();
    match kind {
        Kind::Directory => PathError::IsADirectory(path),
        Kind::Special(what) => PathError::Special(path, what),
        // The path was resolved, so a link is new.
        Kind::Link | Kind::File => PathError::Moved(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("ws");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "outside").unwrap();
        let workspace = Workspace::open(&root).unwrap();
        (dir, workspace)
    }

    #[test]
    fn links_inside_are_followed_to_the_real_path() {
        let (dir, ws) = workspace();
        let root = dir.path().join("ws");
        std::fs::create_dir_all(root.join("real/deep")).unwrap();
        std::fs::write(root.join("real/deep/file"), "x").unwrap();
        symlink("real", root.join("relative")).unwrap();
        symlink("../real/deep", root.join("real/back")).unwrap();
        symlink(root.join("real"), root.join("absolute")).unwrap();
        symlink("/workspace/real", root.join("mounted")).unwrap();
        symlink("real/new", root.join("dangling")).unwrap();
        for (asked, real) in [
            ("relative/deep/file", "real/deep/file"),
            ("real/back/file", "real/deep/file"),
            ("absolute/deep", "real/deep"),
            ("mounted/deep/file", "real/deep/file"),
            ("dangling", "real/new"),
            ("relative/no/such", "real/no/such"),
            ("no/such", "no/such"),
        ] {
            assert_eq!(ws.resolve(asked).unwrap().as_str(), real, "{asked}");
        }
    }

    #[test]
    fn links_that_leave_or_circle_are_refused() {
        let (dir, ws) = workspace();
        let root = dir.path().join("ws");
        symlink("../secret", root.join("up")).unwrap();
        symlink(dir.path().join("secret"), root.join("abs")).unwrap();
        symlink("/dev/zero", root.join("zero")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for name in ["up", "abs", "zero", "magic/etc/passwd"] {
            assert!(matches!(ws.resolve(name), Err(PathError::LinkOutside(_))), "{name}");
        }
        assert!(matches!(ws.resolve("loop"), Err(PathError::Links(_))));
    }

    #[test]
    fn a_link_that_appears_after_the_check_is_not_followed() {
        let (dir, ws) = workspace();
        let root = dir.path().join("ws");
        std::fs::create_dir(root.join("d")).unwrap();
        std::fs::write(root.join("d/secret"), "inside").unwrap();
        let path = ws.resolve("d/secret").unwrap();
        let mut text = String::new();
        ws.open_file(&path).unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        std::fs::rename(root.join("d"), root.join("e")).unwrap();
        symlink("..", root.join("d")).unwrap();
        assert!(matches!(ws.open_file(&path), Err(PathError::Moved(_))));
        assert!(matches!(ws.open_dir(&path), Err(PathError::Moved(_))));
    }

    #[test]
    fn fifos_sockets_and_devices_are_refused_without_blocking() {
        let (dir, ws) = workspace();
        let root = dir.path().join("ws");
        rustix::fs::mkfifoat(CWD, root.join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        for (name, kind) in [("fifo", "FIFO"), ("socket", "socket")] {
            let path = ws.resolve(name).unwrap();
            assert_eq!(ws.open_file(&path).unwrap_err(), PathError::Special(name.into(), kind));
        }
        assert_eq!(Kind::of_type(FileType::CharacterDevice), Kind::Special("device"));
    }

    #[test]
    fn the_whole_file_system_or_a_missing_directory_is_no_workspace() {
        assert!(matches!(Workspace::open(Path::new("/")), Err(WorkspaceError::NotAllowed(_))));
        assert!(matches!(Workspace::open(Path::new("/no/such")), Err(WorkspaceError::Unusable { .. })));
    }
}
