//! Paths as models write them, and the one form they are brought into: relative to the workspace, `/`-separated, no
//! empty part, no `.`, no `..`. This is the form a [`ResourceKey::File`] asks for, so that two spellings of a file
//! meet in one lock.

use std::fmt;

use choir_messages::tool::ResourceKey;
use rustix::io::Errno;

use crate::limits::{NAME_BYTES, PATH_BYTES};
use crate::text::quote;

/// Where the workspace is mounted inside a container (`choir §15.1`); models may always call it that.
pub const MOUNT: &str = "/workspace";

/// The staging area, which has a lock of its own (`choir §9.2`).
pub const CHOIRTMP: &str = ".choirtmp";

/// A normalised path inside the workspace. The root is the empty path and prints as `.`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WsPath(String);

/// Why a path cannot be used. Each sentence is written for the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing was named.
    #[error("the path is empty; name a path relative to the workspace, or \".\" for the workspace itself")]
    Empty,
    /// Longer than the system takes.
    #[error("the path is too long: at most {PATH_BYTES} bytes, and {NAME_BYTES} between two slashes")]
    TooLong,
    /// It holds a zero byte.
    #[error("the path contains a NUL character; remove it")]
    Nul,
    /// It holds `..`.
    #[error("the path \"{0}\" contains \"..\"; write it relative to the workspace without \"..\"")]
    DotDot(String),
    /// An absolute path that is not below the workspace.
    #[error("the path \"{0}\" is outside the workspace; use a path relative to the workspace")]
    Outside(String),
    /// A symbolic link on the way leaves the workspace.
    #[error(
        "the path \"{0}\" leads out of the workspace through a symbolic link; only the workspace can be used"
    )]
    LinkOutside(String),
    /// Links that lead in a circle.
    #[error("the path \"{0}\" goes through too many symbolic links")]
    Links(String),
    /// A link's target is not UTF-8.
    #[error("the symbolic link at \"{0}\" points to a name that is not UTF-8; use choir.exec for it")]
    NotUtf8(String),
    /// Nothing there.
    #[error("\"{0}\" does not exist; list its directory with choir.fs.read to see what does")]
    NotFound(String),
    /// A file where a directory is needed.
    #[error("\"{0}\" is not a directory")]
    NotADirectory(String),
    /// A directory where a file is needed.
    #[error("\"{0}\" is a directory, not a file")]
    IsADirectory(String),
    /// A device, FIFO or socket.
    #[error("\"{0}\" is a {1}; only regular files and directories can be used")]
    Special(String, &'static str),
    /// A part of the path became a link or was replaced after the call was checked.
    #[error("\"{0}\" was replaced while the call was waiting; look at it again, then repeat the call")]
    Moved(String),
    /// No permission.
    #[error("no permission for \"{0}\"")]
    Denied(String),
    /// Nothing more can be stored.
    #[error(
        "the disk is full or the quota is used up, \"{0}\" was not changed; free some space, then repeat"
    )]
    Full(String),
    /// Larger than the system or its limits allow.
    #[error("\"{0}\" would become larger than the system allows; it was not changed")]
    FileTooLarge(String),
    /// The file system cannot be written.
    #[error("\"{0}\" is on a read-only file system")]
    ReadOnly(String),
    /// Anything else the system said.
    #[error("\"{0}\": the system says: {1}")]
    Io(String, String),
}

impl PathError {
    /// What the system said about this path.
    #[must_use]
    pub fn from_errno(path: &WsPath, errno: Errno) -> Self {
        let path = path.to_string();
        match errno {
            Errno::NOENT => Self::NotFound(path),
            Errno::NOTDIR => Self::NotADirectory(path),
            Errno::ISDIR => Self::IsADirectory(path),
            // A link where the checked path had none, or a mount that moved.
            Errno::LOOP | Errno::XDEV | Errno::AGAIN => Self::Moved(path),
            Errno::ACCESS | Errno::PERM => Self::Denied(path),
            Errno::NOSPC | Errno::DQUOT => Self::Full(path),
            Errno::FBIG => Self::FileTooLarge(path),
            Errno::ROFS => Self::ReadOnly(path),
            Errno::NAMETOOLONG => Self::TooLong,
            Errno::NXIO | Errno::NODEV => Self::Special(path, "device, FIFO or socket"),
            other => Self::Io(path, std::io::Error::from(other).to_string()),
        }
    }

    /// As [`PathError::from_errno`], for an error of the standard library.
    #[must_use]
    pub fn from_io(path: &WsPath, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Self::from_errno(path, errno),
            None => Self::Io(path.to_string(), error.to_string()),
        }
    }
}

impl WsPath {
    /// The workspace itself.
    pub const ROOT: Self = Self(String::new());

    /// Reads a path as a model wrote it. `root` is the workspace's real place: an absolute path may begin with it or
    /// with [`MOUNT`]. Looks at no file.
    pub fn parse(text: &str, root: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.len() > PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if text.contains('\0') {
            return Err(PathError::Nul);
        }
        let relative = if text.starts_with('/') {
            below(text, root).or_else(|| below(text, MOUNT)).ok_or_else(|| PathError::Outside(quote(text)))?
        } else {
            text
        };
        let mut path = String::with_capacity(relative.len());
        for part in relative.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(PathError::DotDot(quote(text))),
                _ if part.len() > NAME_BYTES => return Err(PathError::TooLong),
                _ => push(&mut path, part),
            }
        }
        Ok(Self(path))
    }

    /// The path made of these parts, which are names without slashes.
    pub(crate) fn of_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut path = String::new();
        for part in parts {
            push(&mut path, part);
        }
        Self(path)
    }

    /// The normalised text; empty for the workspace itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the workspace itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Its parts.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// The directory it is in and its name there; `None` for the workspace itself.
    #[must_use]
    pub fn split(&self) -> Option<(Self, &str)> {
        match self.0.rsplit_once('/') {
            Some((parent, name)) => Some((Self(parent.to_owned()), name)),
            None if self.0.is_empty() => None,
            None => Some((Self::ROOT, &self.0)),
        }
    }

    /// A name in this directory.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let mut path = self.0.clone();
        push(&mut path, name);
        Self(path)
    }

    /// Whether it is the staging area or inside it.
    #[must_use]
    pub fn is_choirtmp(&self) -> bool {
        self.parts().next() == Some(CHOIRTMP)
    }

    /// What is locked for it (`choir §9.2`): its file; the staging area's own lock for what is in there; `file:.` for
    /// the workspace's root, which covers every file and yet is a file's lock, so that edge may still look around
    /// while a core job holds the workspace (`choir §9.4`).
    #[must_use]
    pub fn resource(&self) -> ResourceKey {
        if self.is_choirtmp() { ResourceKey::ChoirTmp } else { ResourceKey::File(self.to_string()) }
    }
}

impl fmt::Display for WsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

fn push(path: &mut String, part: &str) {
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(part);
}

/// What follows `root` in an absolute path, if the path is the root or below it. A root of `/` has nothing outside,
/// which is why no workspace may be `/`.
pub(crate) fn below<'a>(text: &'a str, root: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<String, PathError> {
        WsPath::parse(text, "/srv/ws").map(|p| p.0)
    }

    #[test]
    fn one_file_has_one_spelling() {
        for text in ["a/b", "./a/b", "a//b/", "a/./b", "/workspace/a/b", "/srv/ws/a/b", "/srv/ws//a/b/."] {
            assert_eq!(parse(text).unwrap(), "a/b", "{text}");
        }
        for text in [".", "./", "/workspace", "/workspace/", "/srv/ws"] {
            assert_eq!(parse(text).unwrap(), "", "{text}");
        }
        // A relative path is never taken for the mount.
        assert_eq!(parse("workspace/a").unwrap(), "workspace/a");
    }

    #[test]
    fn a_path_that_leaves_is_refused_with_the_reason() {
        assert_eq!(parse(""), Err(PathError::Empty));
        assert_eq!(parse("a\0b"), Err(PathError::Nul));
        for text in ["..", "a/../b", "/workspace/../etc/passwd", "a/.."] {
            assert!(matches!(parse(text), Err(PathError::DotDot(_))), "{text}");
        }
        for text in ["/etc/passwd", "/workspaces/a", "/srv/wsx", "/"] {
            assert!(matches!(parse(text), Err(PathError::Outside(_))), "{text}");
        }
        assert_eq!(parse(&"a".repeat(NAME_BYTES + 1)), Err(PathError::TooLong));
        assert_eq!(parse(&"a/".repeat(PATH_BYTES)), Err(PathError::TooLong));
    }

    #[test]
    fn the_staging_area_and_the_root_have_locks_of_their_own() {
        let key = |text: &str| WsPath::parse(text, "/srv/ws").unwrap().resource();
        assert_eq!(key("."), ResourceKey::File(".".into()));
        assert_eq!(key(".choirtmp"), ResourceKey::ChoirTmp);
        assert_eq!(key(".choirtmp/send/a.ogg"), ResourceKey::ChoirTmp);
        assert_eq!(key(".choirtmpx"), ResourceKey::File(".choirtmpx".into()));
        assert_eq!(key("a/.choirtmp"), ResourceKey::File("a/.choirtmp".into()));
    }

    proptest! {
        #[test]
        fn a_normalised_path_obeys_the_rules_of_a_resource_key(
            text in "(/workspace|/srv/ws)?[a-z./\\\\é \u{0}]{0,40}"
        ) {
            let Ok(path) = WsPath::parse(&text, "/srv/ws") else { return Ok(()) };
            for part in path.0.split('/').filter(|_| !path.is_root()) {
                prop_assert!(!part.is_empty() && part != "." && part != "..");
            }
            // Normalising again changes nothing, nor does any equal spelling.
            if !path.is_root() {
                prop_assert_eq!(&WsPath::parse(&path.0, "/srv/ws").unwrap(), &path);
                prop_assert_eq!(&WsPath::parse(&format!("{MOUNT}//./{}/", path.0), "/srv/ws").unwrap(), &path);
                let key = path.resource();
                prop_assert_eq!(key.to_string().parse::<ResourceKey>().unwrap(), key);
            }
        }
    }
}
