//! The tables, as they follow the journal: what is durable there is brought in, batch by batch, by a thread of its own,
//! with the number of the newest record in the same transaction. A crash in between repeats nothing: a record that is in
//! says so.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use choir_messages::chap::Change;
use rusqlite::Connection;

use super::journal::Journal;
use super::record::{Key, Record};
use super::shared::{Durable, Shared, Work};
use super::{file, write};
use crate::error::StoreError;
use crate::limits;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// Pages that a workspace's changes touch at least: its own, an object's, an entry's, and their indexes'.
const PAGES_EACH: usize = 8;

/// The connection that writes.
#[derive(Debug)]
pub(super) struct Tables {
    path: PathBuf,
    connection: Connection,
    /// Pages of SQLite's own log since it was last moved into the tables, by estimate.
    log_pages: usize,
}

impl Tables {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: path.to_owned(), connection: file::writer(path)?, log_pages: 0 })
    }

    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What makes the journal's records its own, and the newest of them that is in.
    pub(super) fn journal(&self) -> Result<(Key, u64), StoreError> {
        let (key, applied): (Vec<u8>, i64) =
            self.connection
                .query_row("SELECT key, applied FROM journal", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let key = key.try_into().map_err(|_| StoreError::corrupt("the journal's key"))?;
        Ok((key, u64::try_from(applied).map_err(|_| StoreError::corrupt("the journal's place"))?))
    }

    /// Overwrites the journal, if it still has the text of something that was erased. All of it must be in the tables.
    pub(super) fn wipe(&mut self, journal: &mut Journal) -> Result<(), StoreError> {
        let to_wipe: bool = self.connection.query_row("SELECT to_wipe FROM journal", [], |row| row.get(0))?;
        if to_wipe {
            self.settle()?;
            journal
                .wipe()
                .map_err(|error| StoreError::Unavailable(format!("the journal: {error}").into()))?;
            self.connection.execute("UPDATE journal SET to_wipe = 0", [])?;
        }
        Ok(())
    }

    /// In a transaction that erases, what is overwritten or freed is zeroed: an erased record must not stay in the file's
    /// unused corners.
    fn erasing(&self, erases: bool) -> Result<(), StoreError> {
        self.connection.pragma_update(None, "secure_delete", erases)?;
        Ok(())
    }

    /// Brings records in, in one transaction; the whole batch or nothing. Each workspace's changes keep their order.
    fn apply(&mut self, batch: &[Durable]) -> Result<(), StoreError> {
        let Some(newest) = batch.last() else { return Ok(()) };
        let mut workspaces: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
        for change in batch.iter().flat_map(|durable| &durable.changes) {
            workspaces.entry(&change.workspace).or_default().push(change);
        }
        let erases = workspaces.values().flatten().any(|change| write::erases(change));
        self.erasing(erases)?;
        let done = within(&self.connection, || {
            for (workspace, changes) in &workspaces {
                if !write::changes(&self.connection, changes)? {
                    let what = format!("workspace {workspace} is not where the journal left it");
                    return Err(StoreError::corrupt(what));
                }
            }
            let newest = i64::try_from(newest.number).map_err(|_| StoreError::Invalid("too many records"))?;
            self.connection
                .prepare_cached("UPDATE journal SET applied = ?1, to_wipe = to_wipe OR ?2")?
                .execute((newest, erases))?;
            Ok(())
        });
        let texts: usize = batch.iter().map(|durable| durable.bytes).sum();
        self.log_pages += workspaces.len() * PAGES_EACH + texts / PAGE_BYTES;
        done
    }

    /// Makes everything that is in the tables safe: SQLite's own log is synced and moved into the file, and that is synced.
    /// Whether all of it could be moved; a read under way may hold some back.
    fn secure(&mut self) -> Result<bool, StoreError> {
        let (log, moved): (i64, i64) =
            self.connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?;
        self.log_pages = 0;
        Ok(log == moved)
    }

    /// The same for all of it, waiting for readers, and SQLite's log is cut to nothing.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        let busy: bool =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
        self.log_pages = 0;
        if busy { Err(StoreError::Unavailable("a read holds SQLite's log".into())) } else { Ok(()) }
    }

    /// Brings in what a crash left in the journal.
    pub(super) fn recover(&mut self, pending: Vec<Record>) -> Result<(), StoreError> {
        if pending.is_empty() {
            return Ok(());
        }
        tracing::info!(records = pending.len(), "the journal has records that are not in the tables yet");
        let durable = |record: Record| Durable { number: record.number, changes: record.changes, bytes: 0 };
        let batch: Vec<Durable> = pending.into_iter().map(durable).collect();
        self.apply(&batch)
    }

    /// Commits a change that no journal holds. It is safe when this returns.
    pub(super) fn commit_alone(&mut self, change: &Change) -> Result<(), StoreError> {
        self.erasing(write::erases(change))?;
        self.connection.pragma_update(None, "synchronous", "full")?;
        let done = within(&self.connection, || {
            if !write::changes(&self.connection, &[change])? {
                return Err(StoreError::corrupt("a workspace moved while it was looked at"));
            }
            if write::erases(change) {
                self.connection.execute("UPDATE journal SET to_wipe = 1", [])?;
            }
            Ok(())
        });
        self.log_pages += PAGES_EACH + super::super::merge::weight(change) / PAGE_BYTES;
        self.connection.pragma_update(None, "synchronous", "normal")?;
        done
    }
}

/// Runs statements as one transaction.
fn within(connection: &Connection, work: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
    let run = |sql: &str| -> Result<(), StoreError> {
        connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    };
    run("BEGIN IMMEDIATE")?;
    let done = work().and_then(|()| run("COMMIT"));
    if done.is_err() && !connection.is_autocommit() {
        let _ = run("ROLLBACK");
    }
    done
}

/// Brings into the tables what waits, until nothing more will come.
pub(super) fn follow(tables: &Mutex<Tables>, shared: &Shared) {
    let locked = || tables.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match shared.work() {
            Work::Apply(batch) => {
                if !brought_in(tables, shared, &batch) {
                    return;
                }
                shared.applied(&batch);
                let mut tables = locked();
                if tables.log_pages >= limits::CHAP_LOG_PAGES || shared.should_secure() {
                    secure(&mut tables, shared);
                }
            }
            Work::Secure => {
                if !secure(&mut locked(), shared) {
                    std::thread::sleep(limits::CHAP_SETTLE_PAUSE);
                }
            }
            Work::End => {
                if let Err(error) = locked().settle() {
                    tracing::warn!(%error, "SQLite's log was not moved into the tables; the next start does that");
                }
                return;
            }
        }
    }
}

/// Brings a batch in, however long it takes: it is durable and was acknowledged, so there is no way but forward. Gives up
/// only when the store is being closed; the next start finds the batch in the journal.
fn brought_in(tables: &Mutex<Tables>, shared: &Shared, batch: &[Durable]) -> bool {
    let since = Instant::now();
    loop {
        let mut held = tables.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic would be a defect; what it left begun is left behind with the connection.
        let applied = catch_unwind(AssertUnwindSafe(|| held.apply(batch))).unwrap_or_else(|_| {
            held.connection = file::writer(&held.path)?;
            Err(StoreError::corrupt("a defect: bringing the journal in panicked"))
        });
        drop(held);
        let Err(error) = applied else { return true };
        if shared.in_trouble(error.clone()) {
            tracing::error!(%error, "what is in the journal cannot be brought into the tables yet");
        }
        if shared.is_closing() && since.elapsed() > limits::CHAP_SETTLE_WITHIN {
            return false;
        }
        std::thread::sleep(limits::CHAP_SETTLE_PAUSE);
    }
}

fn secure(tables: &mut Tables, shared: &Shared) -> bool {
    let applied = shared.newest_applied();
    match tables.secure() {
        Ok(true) => {
            shared.secured(applied);
            true
        }
        Ok(false) => false,
        Err(error) => {
            // Where it is wanted it is tried again and again; one line is enough.
            if !shared.should_secure() || shared.in_trouble(error.clone()) {
                tracing::warn!(%error, "SQLite's log was not moved into the tables; it stays as it is until later");
            }
            false
        }
    }
}
