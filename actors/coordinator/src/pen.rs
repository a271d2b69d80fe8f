//! The pen: writes what workspace actors have decided, and gives the answers away once it is stored. It is an actor of
//! its own so that a workspace actor that dies in mid-commit takes no answer along.

use choir_chap::Answer;
use choir_messages::chap::Change;
use choir_messages::mail::{Mail, Unanswered};
use choir_messages::time::Timestamp;
use choir_persistence::chap::{ChapStore, CommitError};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Shutdown, Slot, WhenFull};

use crate::gauge::Gauge;
use crate::inboxes::InboxMsg;
use crate::job::Job;
use crate::limits::{WRITES_END_WITHIN, WRITES_MAILBOX};
use crate::timers::TimersMsg;
use crate::workspace::Verdict;

/// What the pen is told: one commit of one workspace.
#[derive(Debug)]
pub(crate) struct Write {
    /// What to store, in order.
    pub(crate) changes: Vec<Change>,
    /// The answers that wait for it.
    pub(crate) answers: Vec<(Job, Answer)>,
    /// Told whether it was stored.
    pub(crate) stored: Verdict,
}

impl Mail for Write {
    fn label(&self) -> &'static str {
        "write"
    }
}

/// One write a live workspace at most, so it never waits.
pub(crate) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: WRITES_MAILBOX, when_full: WhenFull::Wait(WRITES_END_WITHIN) };

pub(crate) struct Pen {
    store: ChapStore,
    inboxes: Address<InboxMsg>,
    timers: Address<TimersMsg>,
    under_way: Gauge,
}

pub(crate) fn child(
    slot: Slot<Write>,
    store: ChapStore,
    inboxes: Address<InboxMsg>,
    timers: Address<TimersMsg>,
) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (store, inboxes, timers) = (store.clone(), inboxes.clone(), timers.clone());
        async move { Ok(Pen { store, inboxes, timers, under_way: Gauge::new() }) }
    })
    .shutdown(Shutdown::Within(WRITES_END_WITHIN))
}

impl Actor for Pen {
    type Msg = Write;

    async fn handle(&mut self, write: Write, cx: &mut Context<Write>) -> Result<(), Failure> {
        let held = self.under_way.hold();
        let (store, inboxes, timers) = (self.store.clone(), self.inboxes.clone(), self.timers.clone());
        let work = async move {
            carry_out(&store, &inboxes, &timers, write).await;
            drop(held);
        };
        // The jobs of a write that finds no place go back to their workspace.
        let _ = cx.run_beside(work);
        Ok(())
    }

    async fn stopping(&mut self, _cx: &mut Context<Write>) {
        // Each commit has the store's deadline; the child's own bounds the sum.
        self.under_way.empty().await;
    }
}

async fn carry_out(
    store: &ChapStore,
    inboxes: &Address<InboxMsg>,
    timers: &Address<TimersMsg>,
    mut write: Write,
) {
    let workspace = write.changes.first().map(|change| change.workspace.clone()).unwrap_or_default();
    let told: Vec<String> = write
        .changes
        .iter()
        .flat_map(|change| change.notices.iter().map(|notice| notice.to.clone()))
        .collect();
    let due: Option<Timestamp> =
        write.changes.iter().flat_map(|change| change.puts.iter().filter_map(|object| object.due)).min();
    for (job, _) in &mut write.answers {
        job.committing(true);
    }
    let committed = store.commit(write.changes).await;
    for (job, _) in &mut write.answers {
        job.committing(false);
    }
    // First, so that the next calls are stepped while these are answered.
    write.stored.tell(committed.is_ok());
    match committed {
        Ok(()) => {
            for (job, answer) in write.answers {
                job.answer(answer);
            }
        }
        Err(CommitError::Conflict) => {
            tracing::info!(workspace, "another writer was quicker; the calls are looked at again");
            for (mut job, _) in write.answers {
                // Counted, so that two Coordinators on one workspace do not chase each other for ever.
                job.in_hand();
            }
        }
        Err(CommitError::NotWritten(error)) => {
            tracing::warn!(workspace, %error, "a commit was not written");
            for (job, _) in write.answers {
                job.fail(Unanswered::NotStored(error.to_string()));
            }
        }
        Err(CommitError::Unknown(error)) => {
            tracing::error!(workspace, %error, "nobody knows whether a commit was written");
            for (job, _) in write.answers {
                job.fail(Unanswered::Unknown(error.to_string()));
            }
        }
    }
    if !told.is_empty() {
        // Sent after a failure too, for the notices may be there. One that is lost delays an inbox until the next.
        let _ = inboxes.send(InboxMsg::Told { workspace, participants: told }).await;
    }
    if let Some(at) = due {
        // One that is lost is found when the store is next asked.
        let _ = timers.try_send(TimersMsg::Due(at));
    }
}
