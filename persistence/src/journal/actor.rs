//! The committer in the tree: one actor through which every append goes. It commits what is waiting whenever nothing more
//! has arrived meanwhile, so groups form by themselves.
//!
//! It may die at any moment. What was acknowledged is durable; whoever was in hand is told at once that the outcome is
//! unknown, and repeats; what still waits in the mailbox is for the replacement. The connection dies with it, and with the
//! connection the transaction under way and the claim on the database, which the replacement takes again first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_supervisors::{
    Actor, Address, Backoff, ChildSpec, Context, Failure, MailboxSpec, Shutdown, Slot, WhenFull, mailbox,
};
use sqlx::PgConnection;
use tokio::sync::{broadcast, watch};

use super::Append;
use super::committer::{Committer, gather};
use crate::error::StoreError;
use crate::limits;
use crate::store::Store;
use crate::store::changes::Change;
use crate::store::claim::Claim;

/// Longest wait for the store to be opened by whoever opens it; above that one's own deadlines.
const STORE_WITHIN: Duration = Duration::from_secs(120);

/// A commit has a deadline of its own, and each is a sign of progress: one that takes this long hangs.
const STUCK_AFTER: Duration = limits::COMMIT_WITHIN.saturating_mul(3);

/// Waits between restarts: the first is at once, for the agents' turns wait for it.
const BACK_OFF: Backoff = Backoff {
    immediate: 3,
    initial: Duration::from_millis(20),
    max: Duration::from_millis(500),
    factor: 2,
    stable_after: Duration::from_secs(1),
};

/// What the committer is told; made by [`Store`] only.
#[derive(Debug)]
pub struct CommitterMsg(pub(crate) Job);

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Job {
    /// Make this durable.
    Append(Append),
    /// Answer once everything that came before is committed.
    Flush(ReplyTo<()>),
}

impl Mail for CommitterMsg {
    fn label(&self) -> &'static str {
        match self.0 {
            Job::Append(_) => "append",
            Job::Flush(_) => "flush",
        }
    }
}

/// What every incarnation of the committer needs. The connection that the store was opened with goes to the first.
#[derive(Clone)]
pub(crate) struct Seat {
    pub(crate) claim: Claim,
    pub(crate) changes: broadcast::Sender<Option<Change>>,
    pub(crate) connection: Arc<Mutex<Option<PgConnection>>>,
}

/// The committer's mailbox, made before the store is opened ([`Store::open_supervised`]) and before the committer runs.
/// Appends wait in it, each for at most [`limits::ENQUEUE_WITHIN`] once it is full.
#[must_use]
pub fn committer_mailbox() -> (Address<CommitterMsg>, Slot<CommitterMsg>) {
    let spec =
        MailboxSpec { capacity: limits::APPEND_QUEUE, when_full: WhenFull::Wait(limits::ENQUEUE_WITHIN) };
    mailbox("committer", spec)
}

/// The committer's place in choird's tree: permanent, after whoever opens the store and puts it into the watch.
#[must_use]
pub fn committer_spec(slot: Slot<CommitterMsg>, store: watch::Receiver<Option<Store>>) -> ChildSpec {
    spec(slot, move || {
        let mut store = store.clone();
        async move {
            let opened = tokio::time::timeout(STORE_WITHIN, store.wait_for(Option::is_some)).await;
            let opened = opened.ok().and_then(Result::ok).and_then(|store| store.as_ref().map(Store::seat));
            opened.ok_or_else(|| Failure::new("the database did not open in time"))
        }
    })
}

/// The committer of a store that has a tree of its own.
pub(crate) fn spec<F, Fut>(slot: Slot<CommitterMsg>, seat: F) -> ChildSpec
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Seat, Failure>> + Send + 'static,
{
    ChildSpec::worker(slot, move |cx| {
        let (seat, again) = (seat(), cx.generation() > 1);
        async move {
            let Seat { claim, changes, connection } = seat.await?;
            let kept = connection.lock().unwrap_or_else(PoisonError::into_inner).take();
            let mut committer = Committer::new(claim, kept, changes.clone());
            // A database that is away is no reason to be away oneself: whoever appends is told so at once.
            if let Err(error) = committer.claim().await {
                tracing::warn!(%error, "the claim on the database is not held yet");
            }
            if again {
                // The one before may have committed and not told.
                let _ = changes.send(None);
            }
            Ok(CommitterActor { committer: Some(committer), waiting: VecDeque::new() })
        }
    })
    .backoff(BACK_OFF)
    .stuck_after(STUCK_AFTER)
    .start_within(STORE_WITHIN + limits::CLAIM_WITHIN + limits::CONNECT_WITHIN)
    .shutdown(Shutdown::Within(limits::APPEND_WITHIN))
}

struct CommitterActor {
    /// None only when it has stopped.
    committer: Option<Committer>,
    /// Taken from the mailbox and not committed yet: at most one group and the appends that did not fit into it.
    waiting: VecDeque<Append>,
}

impl CommitterActor {
    /// Commits group after group, for as long as something waits here and nothing more has arrived to join it.
    async fn commit(&mut self, cx: &Context<CommitterMsg>, all: bool) {
        let Some(committer) = &mut self.committer else { return };
        let mailbox = cx.address();
        while !self.waiting.is_empty() {
            if !all && mailbox.depth() > 0 && self.waiting.len() < limits::GROUP_APPENDS {
                // The next message is there already and brings us back here.
                return;
            }
            for append in committer.commit(gather(&mut self.waiting)).await {
                cx.progress();
                committer.commit(vec![append]).await;
            }
            cx.progress();
        }
    }
}

impl Actor for CommitterActor {
    type Msg = CommitterMsg;

    async fn handle(
        &mut self,
        CommitterMsg(job): CommitterMsg,
        cx: &mut Context<CommitterMsg>,
    ) -> Result<(), Failure> {
        match job {
            // Nobody waits for this any more, and its sender repeats it.
            Job::Append(append) if append.reply.is_abandoned() => self.commit(cx, false).await,
            Job::Append(append) => {
                self.waiting.push_back(append);
                self.commit(cx, false).await;
            }
            Job::Flush(reply) => {
                self.commit(cx, true).await;
                reply.send(());
            }
        }
        Ok(())
    }

    async fn stopping(&mut self, cx: &mut Context<CommitterMsg>) {
        self.commit(cx, true).await;
        if let Some(committer) = self.committer.take() {
            committer.close().await;
        }
    }
}

/// Why the store's own tree did not start: it has nothing in it that could refuse.
pub(crate) fn not_started(error: &choir_supervisors::StartError) -> StoreError {
    StoreError::Unavailable(error.to_string().into())
}
