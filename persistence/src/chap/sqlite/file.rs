//! The file: made private, opened with what durability needs, and recognised.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::StoreError;
use crate::limits;

/// Marks the file as a Coordinator's: the letters "chap" as a number.
const APPLICATION: i64 = 0x6368_6170;

/// The version of the schema that this program makes and reads.
const SCHEMA: i64 = 1;

const TABLES: &str = include_str!("schema.sql");

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        let text = || error.to_string().into();
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::DiskFull,
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::OperationInterrupted
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly,
            ) => Self::Unavailable(text()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Corrupt(text()),
            Some(ErrorCode::PermissionDenied) => Self::Forbidden(text()),
            Some(_) => Self::Sql(text()),
            // A value that does not fit its type, which is the row's fault and not the server's.
            None => Self::Corrupt(text()),
        }
    }
}

/// The tables' file in the folder.
pub(super) const NAME: &str = "workspaces.sqlite";

/// The file in the folder that says that it is in use.
const LOCK: &str = "lock";

/// Makes the folder if it is not there, for its owner alone.
pub(super) fn make(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Holds a folder for as long as the file is open.
pub(super) fn hold(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join(LOCK);
    let unavailable =
        |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", path.display()).into());
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(unavailable)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(StoreError::InUse),
        Err(error) => Err(unavailable(error.into())),
    }
}

/// Makes the file if it is not there, for its owner alone, and brings the schema.
pub(super) fn create(path: &Path) -> Result<(), StoreError> {
    let unavailable =
        |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", path.display()).into());
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(unavailable)?;
    // Another program's file is left as it is, so it is looked at before anything of it is set.
    recognised(&open(path)?, path)?;
    let mut connection = writer(path)?;
    let schema = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been quicker since.
    if recognised(&schema, path)? == Found::Nothing {
        schema.execute_batch(TABLES)?;
        schema.pragma_update(None, "application_id", APPLICATION)?;
        schema.pragma_update(None, "user_version", SCHEMA)?;
    }
    schema.commit()?;
    Ok(())
}

/// Makes the names of the folder's files, and its own, outlast a power failure.
pub(super) fn sync_names(folder: &Path) -> std::io::Result<()> {
    for folder in [Some(folder), folder.parent().filter(|parent| !parent.as_os_str().is_empty())] {
        folder.map_or(Ok(()), |folder| File::open(folder)?.sync_all())?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A new file.
    Nothing,
    /// A Coordinator's, of this version.
    Ours,
}

fn recognised(connection: &Connection, path: &Path) -> Result<Found, StoreError> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (pragma("application_id")?, pragma("user_version")?, tables) {
        (APPLICATION, SCHEMA, _) => Ok(Found::Ours),
        (0, 0, 0) => Ok(Found::Nothing),
        (APPLICATION, version, _) if version > SCHEMA => {
            Err(StoreError::NewerDatabase { version, newest: SCHEMA })
        }
        _ => Err(StoreError::Schema(format!("{} is another program's database", path.display()).into())),
    }
}

/// A connection that writes. What it commits is whole after any crash, and safe once SQLite's log has been moved into the
/// file; until then the journal has it.
pub(super) fn writer(path: &Path) -> Result<Connection, StoreError> {
    let connection = open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    // Its owner moves the log into the tables itself, when it is long enough.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -limits::CHAP_WRITER_CACHE_KIB)?;
    Ok(connection)
}

/// A connection that reads.
pub(super) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = open(path)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cache_size", -limits::CHAP_READER_CACHE_KIB)?;
    Ok(connection)
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    // No mutex: a connection is used by one thread at a time here. The file is not made by SQLite, which would make it
    // readable for others.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(limits::LOCK_WITHIN)?;
    connection.set_prepared_statement_cache_capacity(limits::CHAP_STATEMENTS);
    Ok(connection)
}
