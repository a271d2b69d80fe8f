//! Where a verifier reads: a folder on disk, or parts in memory (for fuzzing and for archives). Reading only.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A home to verify. Paths are relative and come from [`crate::layout`].
pub trait Home: Sync {
    /// The file at this path, or nothing if there is none.
    fn open(&self, path: &Path) -> io::Result<Option<Box<dyn Read + '_>>>;

    /// The names in the folder of traces; empty if there is no such folder.
    fn traces(&self) -> io::Result<Vec<String>>;
}

/// A home in a folder.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// The home in this folder.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

/// Opens a regular file for reading. Anything else, a pipe that would block for one, is an error.
fn open_regular(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

impl Home for Folder {
    fn open(&self, path: &Path) -> io::Result<Option<Box<dyn Read + '_>>> {
        match open_regular(&self.0.join(path)) {
            Ok(file) => Ok(Some(Box::new(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn traces(&self) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(self.0.join(crate::layout::TRACES)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }
}

/// A home in memory: bytes by path.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    /// A home without files.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a file there.
    pub fn insert(&mut self, path: impl Into<PathBuf>, bytes: Vec<u8>) {
        self.0.insert(path.into(), bytes);
    }

    /// The bytes of a file, to change them.
    pub fn get_mut(&mut self, path: &Path) -> Option<&mut Vec<u8>> {
        self.0.get_mut(path)
    }

    /// All files.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.0.iter().map(|(path, bytes)| (path.as_path(), bytes.as_slice()))
    }

    /// Reads a whole folder into memory.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let mut home = Self::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(relative) = folders.pop() {
            for entry in std::fs::read_dir(folder.join(&relative))? {
                let entry = entry?;
                let path = relative.join(entry.file_name());
                if entry.file_type()?.is_dir() {
                    folders.push(path);
                } else {
                    home.insert(path, std::fs::read(entry.path())?);
                }
            }
        }
        Ok(home)
    }
}

impl Home for Memory {
    fn open(&self, path: &Path) -> io::Result<Option<Box<dyn Read + '_>>> {
        Ok(self.0.get(path).map(|bytes| Box::new(bytes.as_slice()) as Box<dyn Read + '_>))
    }

    fn traces(&self) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = self
            .0
            .keys()
            .filter_map(|path| path.strip_prefix(crate::layout::TRACES).ok()?.iter().next()?.to_str())
            .map(str::to_owned)
            .collect();
        names.dedup();
        Ok(names)
    }
}

/// Reads a whole file of at most `limit` bytes; nothing if there is none.
pub(super) fn read_bounded(home: &dyn Home, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = home.open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("longer than {limit} bytes")));
    }
    Ok(Some(bytes))
}
