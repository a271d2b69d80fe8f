//! The store in a folder: durable without a server, for a Coordinator by itself.
//!
//! ```text
//! commits ── queue ──▶ writer ──▶ journal.0, journal.1     one record and one sync a group; then they are answered
//!                        │
//!                     [shared]    what is durable and not in the tables yet
//!                        ▼
//!                      follow ──▶ workspaces.sqlite        the tables and their indexes, batch by batch, no syncs
//!                                       ▲
//! reads ── wait until the tables have all that was answered
//! ```
//!
//! The journal makes a commit cost one sync of a few blocks that are written over in place; the tables make reads cost the
//! same whatever the log's length. The journal is written over when what it has is safe in the tables, and after a crash
//! what the tables lack is brought in from it. Reads of a few rows are carried out where they are asked for: they touch a
//! few pages, as a rule cached ones, and handing them to another thread would take longer. All others run beside the
//! runtime.

mod file;
mod journal;
mod read;
mod record;
mod shared;
mod tables;
mod write;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use choir_messages::chap::{Change, EntryPage, EntryQuery, Notice, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use rusqlite::Connection;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::queue::Queue;
use super::{CommitError, Done, Due, WorkspaceSummary};
use crate::error::StoreError;
use crate::limits;
use journal::Journal;
use read::Upto;
use shared::Shared;
use tables::Tables;
use writer::Writer;

#[derive(Debug, Clone)]
pub(crate) struct Sqlite {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    commits: Queue,
    shared: Arc<Shared>,
    /// For what is written beside commits.
    tables: Arc<Mutex<Tables>>,
    /// The writer's and the one that follows it.
    threads: Mutex<Vec<JoinHandle<()>>>,
    reading: Arc<Semaphore>,
    /// Connections that nobody reads with just now.
    readers: Mutex<Vec<Connection>>,
}

/// A connection on loan.
struct Loan {
    inner: Arc<Inner>,
    connection: Connection,
    _permit: OwnedSemaphorePermit,
}

impl Loan {
    /// Gives the connection back if what was done with it went well.
    fn with<T>(self, read: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let result = read(&self.connection)?;
        self.inner.readers.lock().unwrap_or_else(PoisonError::into_inner).push(self.connection);
        Ok(result)
    }
}

impl Sqlite {
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        let unavailable =
            |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", folder.display()).into());
        file::make(folder).map_err(unavailable)?;
        let held = file::hold(folder)?;
        let path = folder.join(file::NAME);
        file::create(&path)?;
        let mut tables = Tables::open(&path)?;
        let (key, applied) = tables.journal()?;
        let (mut journal, found) = Journal::open(folder, &key).map_err(unavailable)?;
        file::sync_names(folder).map_err(unavailable)?;
        let pending = record::pending(found, applied)?;
        let newest = pending.last().map_or(applied, |record| record.number);
        tables.recover(pending)?;
        // Only then may the journal be written over.
        tables.settle()?;
        journal.restart(newest.saturating_add(1));
        tables.wipe(&mut journal)?;
        let shared = Arc::new(Shared::new(newest));
        let tables = Arc::new(Mutex::new(tables));
        let (commits, queue) = Queue::new();
        let reader = file::reader(&path)?;
        let writer = Writer {
            journal,
            key,
            shared: Arc::clone(&shared),
            tables: Arc::clone(&tables),
            reader,
            heads: HashMap::new(),
            runtime: Handle::try_current().ok(),
        };
        let (follow_shared, follow_tables) = (Arc::clone(&shared), Arc::clone(&tables));
        let threads = vec![
            thread("chap-tables", move || {
                tables::follow(&follow_tables, &follow_shared);
                // The folder is free for another only when nothing is written to it any more.
                drop(held);
            })?,
            thread("chap-journal", move || writer::run(writer, queue))?,
        ];
        let inner = Inner {
            path,
            commits,
            shared,
            tables,
            threads: Mutex::new(threads),
            reading: Arc::new(Semaphore::new(limits::CHAP_READERS)),
            readers: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn waiting(&self) -> usize {
        self.inner.commits.waiting()
    }

    pub(crate) async fn close(&self) {
        self.inner.commits.close();
        self.inner.reading.close();
        self.inner.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let threads = std::mem::take(&mut *self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // A disk that does not answer is left to itself; what was acknowledged is in the journal.
        let ended = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join())));
        let _ = tokio::time::timeout(limits::CHAP_COMMIT_WITHIN, ended).await;
    }

    pub(crate) async fn commit(&self, change: Change) -> Result<(), CommitError> {
        self.inner.commits.commit(change).await
    }

    pub(crate) fn submit(&self, change: Change, done: Done) {
        self.inner.commits.submit(change, done);
    }

    async fn loan(&self) -> Result<Loan, StoreError> {
        let reading = Arc::clone(&self.inner.reading);
        let permit = match tokio::time::timeout(limits::ACQUIRE_WITHIN, reading.acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(StoreError::Closed),
            Err(_) => return Err(StoreError::Unavailable("too many reads wait".into())),
        };
        let idle = self.inner.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => file::reader(&self.inner.path)?,
        };
        Ok(Loan { inner: Arc::clone(&self.inner), connection, _permit: permit })
    }

    /// Reads a few rows of a workspace, or of all, here.
    async fn glance<T>(
        &self,
        workspace: Option<&str>,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let loan = self.loan().await?;
        self.inner.shared.up_to_date(workspace).await?;
        loan.with(read)
    }

    /// Reads beside the runtime.
    async fn read<T: Send + 'static>(
        &self,
        workspace: Option<&str>,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let loan = self.loan().await?;
        self.inner.shared.up_to_date(workspace).await?;
        beside(move || loan.with(read)).await
    }

    pub(crate) async fn open_workspace(&self, workspace: &str) -> Result<Option<Opened>, StoreError> {
        let name = workspace.to_owned();
        self.read(Some(workspace), move |connection| read::open(connection, &name)).await
    }

    pub(crate) async fn load(&self, workspace: &str, keys: &[ObjectKey]) -> Result<Vec<Object>, StoreError> {
        if keys.len() <= limits::CHAP_GLANCE {
            return self.glance(Some(workspace), |connection| read::load(connection, workspace, keys)).await;
        }
        let (name, keys) = (workspace.to_owned(), keys.to_vec());
        self.read(Some(workspace), move |connection| read::load(connection, &name, &keys)).await
    }

    pub(crate) async fn open_objects(
        &self,
        workspace: &str,
        kind: ObjectKind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Object>, StoreError> {
        let (name, after) = (workspace.to_owned(), after.map(str::to_owned));
        self.read(Some(workspace), move |connection| {
            read::open_objects(connection, &name, kind, after.as_deref(), limit)
        })
        .await
    }

    pub(crate) async fn entries(&self, workspace: &str, query: &EntryQuery) -> Result<EntryPage, StoreError> {
        // One task's entries are few, and its index finds them and no others.
        if query.task.is_some() {
            let few = Upto::Rows(limits::CHAP_GLANCE);
            let page = self
                .glance(Some(workspace), |connection| read::entries(connection, workspace, query, &few))
                .await?;
            if let Some(page) = page {
                return Ok(page);
            }
        }
        let (name, query) = (workspace.to_owned(), query.clone());
        let page = self
            .read(Some(workspace), move |connection| read::entries(connection, &name, &query, &Upto::Page))
            .await?;
        page.ok_or_else(|| StoreError::corrupt("a page without an end"))
    }

    pub(crate) async fn notices(
        &self,
        workspace: &str,
        participant: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Notice>, StoreError> {
        let (name, participant) = (workspace.to_owned(), participant.to_owned());
        self.read(Some(workspace), move |connection| {
            read::notices(connection, &name, &participant, after, limit)
        })
        .await
    }

    pub(crate) async fn prune_notices(
        &self,
        workspace: &str,
        participant: &str,
        up_to: u64,
        keep: usize,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        if self.inner.reading.is_closed() {
            return Err(StoreError::Closed);
        }
        let (name, participant) = (workspace.to_owned(), participant.to_owned());
        self.inner.shared.up_to_date(Some(workspace)).await?;
        let tables = Arc::clone(&self.inner.tables);
        beside(move || {
            let tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
            write::prune_notices(tables.connection(), &name, &participant, up_to, keep, older_than)
        })
        .await
    }

    pub(crate) async fn due(
        &self,
        until: Timestamp,
        except: &[String],
        limit: usize,
    ) -> Result<Vec<Due>, StoreError> {
        let except = except.to_vec();
        self.read(None, move |connection| read::due(connection, until, &except, limit)).await
    }

    pub(crate) async fn next_due(&self, after: Option<Timestamp>) -> Result<Option<Timestamp>, StoreError> {
        self.glance(None, |connection| read::next_due(connection, after)).await
    }

    pub(crate) async fn workspaces(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<WorkspaceSummary>, StoreError> {
        let after = after.map(str::to_owned);
        self.read(None, move |connection| read::workspaces(connection, after.as_deref(), limit)).await
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| StoreError::Unavailable(format!("no thread for the store: {error}").into()))
}

/// Runs what may wait for the disk where it holds up no task.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(StoreError::Unavailable(format!("the read was lost: {error}").into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::chap::Entry;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn step(workspace: String, version: u64) -> Change {
        Change {
            workspace,
            version_before: version,
            version_after: version + 1,
            meta: String::new(),
            puts: Vec::new(),
            removes: Vec::new(),
            entries: vec![Entry {
                seq: version,
                arrived: Timestamp::from_millis(0),
                record: "x".repeat(6_000),
                refused: None,
                prev_hash: None,
                method: String::new(),
                from: None,
                tasks: Vec::new(),
            }],
            notices: Vec::new(),
        }
    }

    /// At every moment the journal has every record that the tables could still lose in a power failure.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_journal_is_never_written_over_before_the_tables_are_safe() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(folder.path()).unwrap();
        let key = store.inner.tables.lock().unwrap().journal().unwrap().0;
        let writing = Arc::new(AtomicUsize::new(6));
        for n in 0..6 {
            let (store, writing) = (store.clone(), Arc::clone(&writing));
            tokio::spawn(async move {
                for version in 0..900 {
                    store.commit(step(format!("w{n}"), version)).await.unwrap();
                }
                writing.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let (mut looks, mut turns, mut last) = (0, 0, 0);
        while writing.load(Ordering::Relaxed) > 0 {
            let (journaled, _) = store.inner.shared.standing();
            let mut found = Vec::new();
            for name in ["journal.0", "journal.1"] {
                found.extend(record::scan_bytes(&key, &std::fs::read(folder.path().join(name)).unwrap()));
            }
            // What was written over since was safe by now; what was written since is not asked for.
            let (_, safe) = store.inner.shared.standing();
            found.retain(|record| record.number <= journaled);
            let pending = record::pending(found, safe).unwrap();
            let newest = pending.last().map_or(safe, |record| record.number);
            assert!(newest >= journaled, "{newest} {journaled} {safe}");
            looks += 1;
            turns += usize::from(safe > last);
            last = safe;
        }
        assert!(looks > 10 && turns > 1, "{looks} looks, {turns} turns");
        store.close().await;
        let store = Sqlite::open(folder.path()).unwrap();
        for n in 0..6 {
            let opened = store.open_workspace(&format!("w{n}")).await.unwrap().unwrap();
            assert_eq!(opened.version, 900);
        }
        store.close().await;
    }
}
