//! Walking the workspace for a search: confined, sorted, bounded, and honouring ignore files. The walk opens every
//! directory and every ignore file through the workspace, so neither a link that appears midway nor a FIFO named
//! `.gitignore` can lead it astray or hold it up.

use std::io::Read;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::Override;

use crate::limits::{IGNORE_FILE_BYTES, SEARCH_DEPTH, SEARCH_FILES};
use crate::stop::{Stop, Stopped};
use crate::workspace::{CHOIRTMP, Entry, Kind, PathError, Workspace, WsPath};

/// Files whose rules are honoured, later ones above earlier ones.
const IGNORE_FILES: [&str; 2] = [".gitignore", ".ignore"];

/// What a walk left out, for the report.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Left {
    /// Directories or files that could not be opened.
    pub unreadable: u64,
    /// FIFOs, sockets and devices.
    pub special: u64,
    /// Names that are not UTF-8.
    pub not_utf8: u64,
    /// Whether a bound ended the walk early.
    pub bounded: bool,
}

/// What to walk.
#[derive(Debug)]
pub struct Walk<'a> {
    /// The workspace.
    pub workspace: &'a Workspace,
    /// Which paths are wanted; empty for all.
    pub glob: &'a Override,
    /// Whether hidden and ignored files are walked too.
    pub all: bool,
    /// The switch.
    pub stop: &'a Stop,
}

/// Whether the walk goes on after a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It does.
    Go,
    /// Enough was found.
    Enough,
}

impl Walk<'_> {
    /// Visits every wanted file below `start`, a resolved directory, in order of their names.
    pub fn run(
        &self,
        start: &WsPath,
        mut visit: impl FnMut(&WsPath) -> Result<Next, Stopped>,
    ) -> Result<Left, WalkError> {
        let mut left = Left::default();
        let mut files = 0;
        // Rules of the directories above count too: a search in a part of a tree finds what one in the whole finds.
        let mut rules = Vec::new();
        let mut here = WsPath::ROOT;
        if !self.all {
            for part in start.parts() {
                rules.push(self.rules(&here));
                here = here.child(part);
            }
        }
        let first = self.level(start, &mut left)?;
        rules.push(self.rules(start));
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            self.stop.check()?;
            let Some(entry) = level.entries.next() else {
                levels.pop();
                rules.pop();
                continue;
            };
            let path = level.path.child(&entry.name);
            if !entry.exact {
                left.not_utf8 += 1;
                continue;
            }
            if self.skipped(&path, &entry, &rules) {
                continue;
            }
            match entry.kind {
                Kind::Directory if levels.len() >= SEARCH_DEPTH => left.bounded = true,
                Kind::Directory => match self.level(&path, &mut left) {
                    Ok(level) => {
                        rules.push(self.rules(&path));
                        levels.push(level);
                    }
                    Err(_) => left.unreadable += 1,
                },
                Kind::File => {
                    if files == SEARCH_FILES {
                        left.bounded = true;
                        break;
                    }
                    files += 1;
                    if visit(&path)? == Next::Enough {
                        break;
                    }
                }
                // A link's target is walked where it really is, if it is in the workspace.
                Kind::Link => {}
                Kind::Special(_) => left.special += 1,
            }
        }
        Ok(left)
    }

    fn level(&self, path: &WsPath, left: &mut Left) -> Result<Level, PathError> {
        let listing = self.workspace.list(path)?;
        left.bounded |= listing.more;
        Ok(Level { path: path.clone(), entries: listing.entries.into_iter() })
    }

    fn skipped(&self, path: &WsPath, entry: &Entry, rules: &[Gitignore]) -> bool {
        let is_dir = entry.kind == Kind::Directory;
        // The staging area has a lock of its own, which a search of the workspace does not hold.
        if path.as_str() == CHOIRTMP {
            return true;
        }
        if !self.glob.is_empty() {
            match self.glob.matched(path.as_str(), is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) if !is_dir => return false,
                Match::Whitelist(_) | Match::None => {}
            }
        }
        if self.all {
            return false;
        }
        if entry.name.starts_with('.') {
            return true;
        }
        for rule in rules.iter().rev() {
            match rule.matched(path.as_str(), is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    /// The rules of one directory's ignore files. What cannot be read or is no rule is passed over, as git does.
    fn rules(&self, dir: &WsPath) -> Gitignore {
        if self.all {
            return Gitignore::empty();
        }
        let mut builder = GitignoreBuilder::new(dir.as_str());
        for name in IGNORE_FILES {
            let Ok((file, _)) = self.workspace.open_file(&dir.child(name)) else { continue };
            let mut bytes = Vec::new();
            if file.take(IGNORE_FILE_BYTES).read_to_end(&mut bytes).is_err() {
                continue;
            }
            for line in String::from_utf8_lossy(&bytes).lines() {
                let _ = builder.add_line(None, line);
            }
        }
        builder.build().unwrap_or_else(|_| Gitignore::empty())
    }
}

struct Level {
    path: WsPath,
    entries: std::vec::IntoIter<Entry>,
}

/// Why a walk ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    /// The directory it starts from cannot be listed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The call has to end.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
