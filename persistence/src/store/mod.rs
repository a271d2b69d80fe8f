//! The store: one handle to everything choird keeps. Each file is one subject; the tables are in `migrations/`.

pub mod agents;
pub mod approvals;
pub mod changes;
pub(crate) mod claim;
pub(crate) mod ids;
pub mod inbox;
pub mod inspect;
pub mod outbox;
pub mod queries;
pub mod resume;
mod schema;
pub mod sessions;
pub mod verify;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_messages::id::AgentId;
use choir_supervisors::{Address, Intensity, Strategy, SupervisorSpec, Tree};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::sync::broadcast;

use crate::error::StoreError;
use crate::journal::actor::{self, CommitterMsg, Job, Seat, committer_mailbox};
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
    committer: Address<CommitterMsg>,
    closed: AtomicBool,
    seat: Seat,
    /// The committer's tree, where it has no place in another's.
    tree: Mutex<Option<Tree>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("pool", &self.inner.pool).finish_non_exhaustive()
    }
}

impl Store {
    /// Connects, claims the database for this process, and brings its schema to this version. The committer gets a small
    /// tree of its own; whoever has a tree uses [`Store::open_supervised`].
    ///
    /// The claim is an advisory lock held for the store's life: a second choird on the same database gets
    /// [`StoreError::InUse`] instead of declaring the first one's sessions crashed.
    pub async fn open(options: PgConnectOptions) -> Result<Self, StoreError> {
        let (committer, slot) = committer_mailbox();
        let store = Self::open_supervised(options, committer).await?;
        let seat = store.seat();
        // Appends are repeated by whoever sent them, so there is no number of restarts that is too many.
        let patient = Intensity { restarts: u32::MAX, within: Duration::from_secs(1) };
        let spec = SupervisorSpec::new("store", Strategy::OneForOne)
            .intensity(patient)
            .child(actor::spec(slot, move || std::future::ready(Ok(seat.clone()))));
        let tree = Tree::start(spec).await.map_err(|error| actor::not_started(&error))?;
        *store.inner.tree.lock().unwrap_or_else(PoisonError::into_inner) = Some(tree);
        Ok(store)
    }

    /// The same for a tree that has a place for the committer, whose address this is
    /// ([`crate::committer_mailbox`], [`crate::committer_spec`]). Appends wait until it is up.
    pub async fn open_supervised(
        options: PgConnectOptions,
        committer: Address<CommitterMsg>,
    ) -> Result<Self, StoreError> {
        let claim = Claim::new(with_deadlines(options));
        let connection = claim.connect_patiently().await?;
        schema::migrate(claim.options()).await?;
        let pool = PgPoolOptions::new()
            .max_connections(limits::POOL_CONNECTIONS)
            .acquire_timeout(limits::ACQUIRE_WITHIN)
            .connect_lazy_with(claim.options().clone());
        let (changes, _) = broadcast::channel(limits::CHANGES);
        let seat = Seat { claim, changes, connection: Arc::new(Mutex::new(Some(connection))) };
        let closed = AtomicBool::new(false);
        Ok(Self { inner: Arc::new(Inner { pool, committer, closed, seat, tree: Mutex::new(None) }) })
    }

    /// Ends the store: later calls get [`StoreError::Closed`]. Where the committer has a tree of its own, appends already
    /// queued are committed, and the claim on the database is let go of; elsewhere that is the shutdown of its place.
    /// Returns when that is done, within [`limits::APPEND_WITHIN`] and [`limits::STATEMENT_WITHIN`].
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        let tree = self.inner.tree.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tree) = tree {
            let flush = |reply| CommitterMsg(Job::Flush(reply));
            // If it does not answer, whoever waits for a commit learns that its outcome is unknown.
            let _ = self.inner.committer.call(limits::APPEND_WITHIN, flush).await;
            tree.shutdown().await;
        }
        // Waits for connections that are in use, each of which has the server's own deadline on its statement.
        let _ = tokio::time::timeout(limits::STATEMENT_WITHIN, self.inner.pool.close()).await;
    }

    /// Subscribes to what changes from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.inner.seat.changes.subscribe())
    }

    /// Asks the database for a sign of life.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(self.pool()).await?;
        Ok(())
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    pub(crate) fn committer(&self) -> Result<&Address<CommitterMsg>, StoreError> {
        if self.inner.closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        Ok(&self.inner.committer)
    }

    pub(crate) fn seat(&self) -> Seat {
        self.inner.seat.clone()
    }

    /// Tells subscribers; that there are none is fine.
    pub(crate) fn changed(&self, agent: &AgentId, kind: ChangeKind) {
        let _ = self.inner.seat.changes.send(Some(Change { agent: agent.clone(), kind }));
    }
}

/// The server's own deadlines, so that nothing waits for ever even if this process does not look.
pub(crate) fn with_deadlines(options: PgConnectOptions) -> PgConnectOptions {
    let ms = |d: std::time::Duration| d.as_millis().to_string();
    options.application_name("choird").options([
        ("statement_timeout", ms(limits::STATEMENT_WITHIN)),
        ("lock_timeout", ms(limits::LOCK_WITHIN)),
        ("idle_in_transaction_session_timeout", ms(limits::COMMIT_WITHIN)),
    ])
}
