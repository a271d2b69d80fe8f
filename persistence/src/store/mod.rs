//! The store: one handle to everything choird keeps. Each file is one subject; the tables are in `migrations/`.

pub mod agents;
pub mod approvals;
pub mod changes;
pub(crate) mod claim;
pub(crate) mod ids;
pub mod inbox;
pub mod outbox;
pub mod queries;
pub mod resume;
mod schema;
pub mod sessions;
pub mod verify;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use choir_messages::id::AgentId;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinHandle;

use crate::error::StoreError;
use crate::journal::{Append, Committer};
use crate::limits;
use changes::{Change, ChangeKind, Changes};
use claim::Claim;

/// A handle to the database; cheap to clone. All clones end with [`Store::close`].
///
/// Needs a tokio runtime. Every method has a deadline of its own and returns a [`StoreError`] when it passes.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    /// None once closed: the committer ends when nobody can send it anything any more.
    appends: RwLock<Option<mpsc::Sender<Append>>>,
    changes: broadcast::Sender<Change>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("pool", &self.inner.pool).finish_non_exhaustive()
    }
}

impl Store {
    /// Connects, claims the database for this process, and brings its schema to this version.
    ///
    /// The claim is an advisory lock held for the store's life: a second choird on the same database gets
    /// [`StoreError::InUse`] instead of declaring the first one's sessions crashed.
    pub async fn open(options: PgConnectOptions) -> Result<Self, StoreError> {
        let claim = Claim::new(with_deadlines(options));
        let connection = claim.connect_patiently().await?;
        schema::migrate(claim.options()).await?;
        let pool = PgPoolOptions::new()
            .max_connections(limits::POOL_CONNECTIONS)
            .acquire_timeout(limits::ACQUIRE_WITHIN)
            .connect_lazy_with(claim.options().clone());
        let (appends, queue) = mpsc::channel(limits::APPEND_QUEUE);
        let (changes, _) = broadcast::channel(limits::CHANGES);
        let committer = Committer::new(claim, connection, changes.clone());
        let task = tokio::spawn(committer.run(queue));
        let (appends, committer) = (RwLock::new(Some(appends)), Mutex::new(Some(task)));
        Ok(Self { inner: Arc::new(Inner { pool, appends, changes, committer }) })
    }

    /// Ends the store: appends already queued are committed, later calls get [`StoreError::Closed`], and the claim on
    /// the database is let go of. Returns when that is done, within [`limits::APPEND_WITHIN`].
    pub async fn close(&self) {
        drop(self.inner.appends.write().unwrap_or_else(PoisonError::into_inner).take());
        let task = self.inner.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && tokio::time::timeout(limits::APPEND_WITHIN, &mut task).await.is_err()
        {
            task.abort();
        }
        // Waits for connections that are in use, each of which has the server's own deadline on its statement.
        let _ = tokio::time::timeout(limits::STATEMENT_WITHIN, self.inner.pool.close()).await;
    }

    /// Subscribes to what changes from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.inner.changes.subscribe())
    }

    /// Asks the database for a sign of life.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.pool()).await?;
        Ok(())
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    pub(crate) fn appends(&self) -> Result<mpsc::Sender<Append>, StoreError> {
        self.inner.appends.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(StoreError::Closed)
    }

    /// Tells subscribers; that there are none is fine.
    pub(crate) fn changed(&self, agent: &AgentId, kind: ChangeKind) {
        let _ = self.inner.changes.send(Change { agent: agent.clone(), kind });
    }
}

/// The server's own deadlines, so that nothing waits for ever even if this process does not look.
fn with_deadlines(options: PgConnectOptions) -> PgConnectOptions {
    let ms = |d: std::time::Duration| d.as_millis().to_string();
    options.application_name("choird").options([
        ("statement_timeout", ms(limits::STATEMENT_WITHIN)),
        ("lock_timeout", ms(limits::LOCK_WITHIN)),
        ("idle_in_transaction_session_timeout", ms(limits::COMMIT_WITHIN)),
    ])
}
