//! Where CHAP workspaces are kept: in Postgres, in a folder with SQLite's tables for a Coordinator by itself, or in memory
//! for tests and for Coordinators whose log may die with them. One interface, one test suite.
//!
//! A commit is all or nothing, in the order of versions: whoever does not know the newest version gets
//! [`CommitError::Conflict`] and changes nothing. What [`ChapStore::commit`] has returned is on disk. Reads of one
//! workspace see whole commits only. Nothing here knows what a method means; rules are `choir-chap`'s.

mod committer;
mod convert;
#[cfg(feature = "testing")]
mod faults;
mod memory;
mod merge;
mod names;
mod postgres;
mod queue;
mod rows;
mod sqlite;

#[cfg(feature = "testing")]
pub use faults::{Fault, Faults};

use std::path::Path;
use std::sync::Arc;

use choir_messages::chap::{Change, EntryPage, EntryQuery, Notice, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use sqlx::postgres::PgConnectOptions;

use crate::Store;
use crate::error::StoreError;
use memory::Memory;
use postgres::Postgres;
use sqlite::Sqlite;

/// Why a change was not committed, or may not have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The workspace is not at the version the change builds on. Nothing was changed: open the workspace again.
    #[error("the workspace has moved on; open it again")]
    Conflict,
    /// Nothing was changed, for certain.
    #[error("the store did not take the change, and nothing was done: {0}")]
    NotWritten(StoreError),
    /// The database was lost over the commit and did not come back in time to tell.
    #[error("whether the change was stored is unknown: {0}")]
    Unknown(StoreError),
}

/// What is to be done when it is known what became of a commit.
pub type Done = Box<dyn FnOnce(Result<(), CommitError>) + Send>;

/// One workspace in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceSummary {
    /// Its id.
    pub workspace: String,
    /// Its version.
    pub version: u64,
    /// Entries in its log.
    pub entries: u64,
}

/// One object whose deadline is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Whose.
    pub workspace: String,
    /// Which.
    pub key: ObjectKey,
    /// When.
    pub at: Timestamp,
}

/// A handle to the workspaces; cheap to clone. All clones end with [`ChapStore::close`].
#[derive(Debug, Clone)]
pub struct ChapStore(Variant);

#[derive(Debug, Clone)]
enum Variant {
    Memory(Arc<Memory>),
    Postgres(Postgres),
    Sqlite(Sqlite),
}

impl ChapStore {
    /// An empty store in memory: durable for as long as a clone of it lives.
    #[must_use]
    pub fn memory() -> Self {
        Self(Variant::Memory(Arc::new(Memory::new())))
    }

    /// The same, with commits that fail as the plan says.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn memory_with_faults(faults: Faults) -> Self {
        Self(Variant::Memory(Arc::new(Memory::with_faults(faults))))
    }

    /// The workspaces of a database. Connects when first used; commits have a connection and a task of their own. One
    /// such store a database: the task holds a claim on it while it is connected. Needs a tokio runtime.
    #[must_use]
    pub fn postgres(store: &Store) -> Self {
        Self(Variant::Postgres(Postgres::new(store)))
    }

    /// The same, for a tree that is planned before the database is up: with connections of its own. The [`Store`] of that
    /// database brings the schema, so nothing is found here before it has been opened.
    #[must_use]
    pub fn connect(options: PgConnectOptions) -> Self {
        Self(Variant::Postgres(Postgres::connect(options)))
    }

    /// The workspaces of a folder, which is made if it is not there, for its owner alone. Blocks while it is opened, and
    /// while what a crash left in its journal is brought in. One such store a folder. Needs a tokio runtime when it is
    /// used; its threads end with [`ChapStore::close`], or when the last clone is gone.
    ///
    /// # Errors
    /// The folder is in use, cannot be made or written, or what is in it is damaged, another program's, or a newer
    /// version's.
    pub fn sqlite(folder: &Path) -> Result<Self, StoreError> {
        Ok(Self(Variant::Sqlite(Sqlite::open(folder)?)))
    }

    /// A workspace with its members, or none if there is no such workspace.
    pub async fn open(&self, workspace: &str) -> Result<Option<Opened>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.open(workspace),
            Variant::Postgres(postgres) => postgres.open(workspace).await,
            Variant::Sqlite(sqlite) => sqlite.open_workspace(workspace).await,
        }
    }

    /// Those of the named objects that exist, in no particular order.
    pub async fn load(&self, workspace: &str, keys: &[ObjectKey]) -> Result<Vec<Object>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.load(workspace, keys),
            Variant::Postgres(postgres) => postgres.load(workspace, keys).await,
            Variant::Sqlite(sqlite) => sqlite.load(workspace, keys).await,
        }
    }

    /// Open objects of a kind whose names come after `after`, in a fixed order; at most `limit`, itself at most
    /// [`CHAP_PAGE`](crate::limits::CHAP_PAGE).
    pub async fn open_objects(
        &self,
        workspace: &str,
        kind: ObjectKind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Object>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.open_objects(workspace, kind, after, limit),
            Variant::Postgres(postgres) => postgres.open_objects(workspace, kind, after, limit).await,
            Variant::Sqlite(sqlite) => sqlite.open_objects(workspace, kind, after, limit).await,
        }
    }

    /// Commits consecutive changes of one workspace as one; none at all is fine. Returns when they are durable.
    ///
    /// Commits of different workspaces that wait together share a transaction, so the disk's latency is shared. When
    /// the database is lost in mid-commit this waits for it to come back, within
    /// [`CHAP_SETTLE_WITHIN`](crate::limits::CHAP_SETTLE_WITHIN), and finds out: [`CommitError::Unknown`] means that
    /// it stayed away. Whoever stops waiting may leave the commit undone or done.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<(), CommitError> {
        let Some(change) = merge::merge(changes).map_err(CommitError::NotWritten)? else { return Ok(()) };
        match &self.0 {
            Variant::Memory(memory) => memory.commit(change),
            Variant::Postgres(postgres) => postgres.commit(change).await,
            Variant::Sqlite(sqlite) => sqlite.commit(change).await,
        }
    }

    /// The same for a caller that does not wait: `done` is told when the changes are durable, or why not. It is dropped
    /// untold when nobody knows, because the writer was lost. It must not block, and it runs wherever the verdict comes
    /// about, which may be outside of the runtime. Must be called within one.
    pub fn submit(&self, changes: Vec<Change>, done: Done) {
        let change = match merge::merge(changes) {
            Ok(Some(change)) => change,
            Ok(None) => return done(Ok(())),
            Err(error) => return done(Err(CommitError::NotWritten(error))),
        };
        match &self.0 {
            Variant::Memory(memory) => {
                let memory = memory.clone();
                // Not at once: what is submitted meanwhile may share the next commit, as it does elsewhere.
                tokio::spawn(async move { done(memory.commit(change)) });
            }
            Variant::Postgres(postgres) => postgres.submit(change, done),
            Variant::Sqlite(sqlite) => sqlite.submit(change, done),
        }
    }

    /// A page of a workspace's log. At most [`CHAP_PAGE`](crate::limits::CHAP_PAGE) entries whatever the query asks, and
    /// at most [`CHAP_PAGE_BYTES`](crate::limits::CHAP_PAGE_BYTES) of records unless one alone is larger; `next_seq` says
    /// where to go on. An unknown workspace has an empty log.
    pub async fn entries(&self, workspace: &str, query: &EntryQuery) -> Result<EntryPage, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.entries(workspace, query),
            Variant::Postgres(postgres) => postgres.entries(workspace, query).await,
            Variant::Sqlite(sqlite) => sqlite.entries(workspace, query).await,
        }
    }

    /// A participant's notices with numbers after `after`, in order. Bounded like [`ChapStore::entries`].
    pub async fn notices(
        &self,
        workspace: &str,
        participant: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Notice>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.notices(workspace, participant, after, limit),
            Variant::Postgres(postgres) => postgres.notices(workspace, participant, after, limit).await,
            Variant::Sqlite(sqlite) => sqlite.notices(workspace, participant, after, limit).await,
        }
    }

    /// Removes notices of a participant that are not wanted again: of those up to `up_to`, all but the newest `keep`, and
    /// all that were given out before `older_than`. Gives how many went.
    pub async fn prune_notices(
        &self,
        workspace: &str,
        participant: &str,
        up_to: u64,
        keep: usize,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.prune_notices(workspace, participant, up_to, keep, older_than),
            Variant::Postgres(postgres) => {
                postgres.prune_notices(workspace, participant, up_to, keep, older_than).await
            }
            Variant::Sqlite(sqlite) => {
                sqlite.prune_notices(workspace, participant, up_to, keep, older_than).await
            }
        }
    }

    /// Objects of all workspaces but those of `except` that are due at `until` or before, earliest first; at most `limit`,
    /// itself at most [`CHAP_PAGE`](crate::limits::CHAP_PAGE).
    pub async fn due(
        &self,
        until: Timestamp,
        except: &[String],
        limit: usize,
    ) -> Result<Vec<Due>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.due(until, except, limit),
            Variant::Postgres(postgres) => postgres.due(until, except, limit).await,
            Variant::Sqlite(sqlite) => sqlite.due(until, except, limit).await,
        }
    }

    /// The earliest moment after `after` at which an object of any workspace is due; `None` for the earliest of all.
    pub async fn next_due(&self, after: Option<Timestamp>) -> Result<Option<Timestamp>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.next_due(after),
            Variant::Postgres(postgres) => postgres.next_due(after).await,
            Variant::Sqlite(sqlite) => sqlite.next_due(after).await,
        }
    }

    /// Workspaces after a name, in a fixed order; at most `limit`, itself at most
    /// [`CHAP_PAGE`](crate::limits::CHAP_PAGE).
    pub async fn workspaces(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<WorkspaceSummary>, StoreError> {
        match &self.0 {
            Variant::Memory(memory) => memory.workspaces(after, limit),
            Variant::Postgres(postgres) => postgres.workspaces(after, limit).await,
            Variant::Sqlite(sqlite) => sqlite.workspaces(after, limit).await,
        }
    }

    /// Commits waiting for the committer; in memory none ever waits.
    #[must_use]
    pub fn waiting(&self) -> usize {
        match &self.0 {
            Variant::Memory(_) => 0,
            Variant::Postgres(postgres) => postgres.waiting(),
            Variant::Sqlite(sqlite) => sqlite.waiting(),
        }
    }

    /// Ends the store: commits already queued are carried out, later calls get [`StoreError::Closed`].
    pub async fn close(&self) {
        match &self.0 {
            Variant::Memory(memory) => memory.close(),
            Variant::Postgres(postgres) => postgres.close().await,
            Variant::Sqlite(sqlite) => sqlite.close().await,
        }
    }
}
