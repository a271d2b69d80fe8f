//! Listing one directory, confined and bounded.

use rustix::fs::{AtFlags, Dir, FileType, statat};

use super::{Kind, PathError, Workspace, WsPath, replace::is_temp_name};
use crate::limits::DIRECTORY_ENTRIES;

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name; with U+FFFD where it is not UTF-8.
    pub name: String,
    /// Whether the name is exactly its name, so that it can be used in a path.
    pub exact: bool,
    /// What it is; a link is not followed.
    pub kind: Kind,
}

/// A directory's entries, sorted by name.
#[derive(Debug)]
pub struct Listing {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Whether there are more than were looked at.
    pub more: bool,
}

impl Workspace {
    /// Lists a resolved directory without following links. Looks at no more than [`DIRECTORY_ENTRIES`]; half-written
    /// files of the tools themselves are left out.
    pub fn list(&self, path: &WsPath) -> Result<Listing, PathError> {
        let fault = |errno| PathError::from_errno(path, errno);
        let fd = self.open_dir(path)?;
        let mut dir = Dir::read_from(&fd).map_err(fault)?;
        let mut entries = Vec::new();
        let mut more = false;
        while let Some(entry) = dir.read() {
            let entry = entry.map_err(fault)?;
            let raw = entry.file_name();
            let exact = raw.to_str().is_ok();
            let name = raw.to_string_lossy().into_owned();
            if name == "." || name == ".." || is_temp_name(&name) {
                continue;
            }
            if entries.len() == DIRECTORY_ENTRIES {
                more = true;
                break;
            }
            let kind = match entry.file_type() {
                // Some file systems do not say; an entry that is gone meanwhile is left out.
                FileType::Unknown => match statat(&fd, raw, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                known => known,
            };
            entries.push(Entry { name, exact, kind: Kind::of_type(kind) });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Listing { entries, more })
    }
}
