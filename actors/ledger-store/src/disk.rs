//! Files and folders: private, written whole or not at all, and synced with the folder that names them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::bounds::{LOCK_POLL, LOCK_WAIT};
use crate::error::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Makes a private folder and those above it, and syncs the folders that got an entry.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        make_folder(above)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        // Another thread or process may have been faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => return Ok(()),
        Err(error) => return Err(StoreError::io("make the folder", path, error)),
    }
    sync_above(path)
}

/// Syncs the folder itself, so that what was named in it stays named.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|error| StoreError::io("sync the folder", path, error))
}

fn sync_above(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_folder)
}

/// Opens a private file to be written.
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A name beside this one that nobody else uses.
fn beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".tmp-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    path.with_file_name(name)
}

/// Writes the file under another name and syncs it; the caller renames it.
pub(crate) fn write_beside(path: &Path, bytes: &[u8]) -> Result<PathBuf> {
    let temporary = beside(path);
    let written = create_new(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    match written {
        Ok(()) => Ok(temporary),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(StoreError::io("write", path, error))
        }
    }
}

/// Gives a file its name, in the place of an older one.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|error| {
        let _ = fs::remove_file(from);
        StoreError::io("write", to, error)
    })
}

/// Writes the file whole or not at all, in the place of an older one, and syncs it and its folder.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = write_beside(path, bytes)?;
    rename(&temporary, path)?;
    sync_above(path)
}

/// Reads a document of at most so many bytes; `None` if there is none.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let failed = |error| StoreError::io("read", path, error);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(StoreError::unreadable(path, format!("it is longer than {limit} bytes")));
    }
    Ok(Some(bytes))
}

/// Reads a text document of at most so many bytes; `None` if there is none.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<Option<String>> {
    let Some(bytes) = read(path, limit)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| StoreError::unreadable(path, "it is not UTF-8"))
}

/// The names in a folder, sorted; none if there is no such folder.
pub(crate) fn names(path: &Path) -> Result<Vec<String>> {
    let failed = |error| StoreError::io("list", path, error);
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is no text is none of ours.
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The right to write something, held until dropped. The system takes it back when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, or says who is asked to wait. `what` is what the lock is for.
    pub(crate) fn take(file: &Path, what: &Path) -> Result<Self> {
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(file);
        let opened = opened.map_err(|error| StoreError::io("lock", file, error))?;
        match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: opened }),
            Err(Errno::WOULDBLOCK) => Err(StoreError::Locked(what.to_owned())),
            Err(error) => Err(StoreError::io("lock", file, error.into())),
        }
    }
}

impl Lock {
    /// As [`Lock::take`], but waits for a holder that is busy for a moment.
    pub(crate) fn wait(file: &Path, what: &Path) -> Result<Self> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match Self::take(file, what) {
                Err(StoreError::Locked(_)) if Instant::now() < until => std::thread::sleep(LOCK_POLL),
                taken => return taken,
            }
        }
    }
}

/// The end of a ledger, where it grows. A trait so that tests can let the disk fail.
pub(crate) trait Tail: Send {
    /// Writes all bytes at the end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns when everything written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Makes the ledger this long again, and syncs that.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Tail for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)?;
        self.sync_all()
    }
}

/// Opens a ledger to be appended to.
pub(crate) fn open_tail(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    opened.map_err(|error| StoreError::io("open", path, error))
}
