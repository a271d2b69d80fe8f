//! The pen: stores what workspace actors have decided, and gives the answers away once it is stored. A write belongs to no
//! actor while it is under way, so that a workspace actor that dies in mid-commit takes no answer along; one actor stands
//! for all of them in the tree, and does not end before they have.

use choir_chap::Answer;
use choir_messages::chap::Change;
use choir_messages::mail::{Mail, Unanswered};
use choir_messages::time::Timestamp;
use choir_persistence::chap::{ChapStore, CommitError};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Shutdown, Slot, WhenFull};
use tokio::runtime::Handle;

use crate::gauge::{Gauge, Held};
use crate::inboxes::InboxMsg;
use crate::job::Job;
use crate::limits::WRITES_END_WITHIN;
use crate::timers::TimersMsg;
use crate::workspace::Verdict;

/// Writes under way, and whom they tell.
#[derive(Clone)]
pub(crate) struct Pen {
    store: ChapStore,
    inboxes: Address<InboxMsg>,
    timers: Address<TimersMsg>,
    under_way: Gauge,
}

/// One commit of one workspace.
#[derive(Debug)]
pub(crate) struct Write {
    /// What to store, in order.
    pub(crate) changes: Vec<Change>,
    /// The answers that wait for it.
    pub(crate) answers: Vec<(Job, Answer)>,
    /// Told whether it was stored.
    pub(crate) stored: Verdict,
}

/// What is told when a write is over.
struct After {
    pen: Pen,
    workspace: String,
    answers: Vec<(Job, Answer)>,
    stored: Verdict,
    /// Participants that have notices, and where they are told: not where the verdict comes about, which is anywhere.
    told: Option<(Handle, Vec<String>)>,
    /// The earliest deadline in it.
    due: Option<Timestamp>,
    _under_way: Held,
}

impl Pen {
    pub(crate) fn new(store: ChapStore, inboxes: Address<InboxMsg>, timers: Address<TimersMsg>) -> Self {
        Self { store, inboxes, timers, under_way: Gauge::new() }
    }

    /// Begins a write. If it is lost on the way, its askers are told that nobody knows.
    pub(crate) fn write(&self, write: Write) {
        let Write { changes, mut answers, stored } = write;
        let workspace = changes.first().map(|change| change.workspace.clone()).unwrap_or_default();
        let notices = changes.iter().flat_map(|change| &change.notices);
        let told: Vec<String> = notices.map(|notice| notice.to.clone()).collect();
        let told = (!told.is_empty()).then(|| (Handle::current(), told));
        let due = changes.iter().flat_map(|change| &change.puts).filter_map(|object| object.due).min();
        for (job, _) in &mut answers {
            job.committing(true);
        }
        let (pen, under_way) = (self.clone(), self.under_way.hold());
        let after = After { pen, workspace, answers, stored, told, due, _under_way: under_way };
        self.store.submit(changes, Box::new(move |committed| after.tell(committed)));
    }
}

impl After {
    fn tell(self, committed: Result<(), CommitError>) {
        let Self { pen, workspace, mut answers, stored, told, due, _under_way } = self;
        for (job, _) in &mut answers {
            job.committing(false);
        }
        // First, so that the next calls are stepped while these are answered.
        stored.tell(committed.is_ok());
        match committed {
            Ok(()) => {
                for (job, answer) in answers {
                    job.answer(answer);
                }
            }
            Err(CommitError::Conflict) => {
                tracing::info!(workspace, "another writer was quicker; the calls are looked at again");
                for (mut job, _) in answers {
                    // Counted, so that two Coordinators on one workspace do not chase each other for ever.
                    job.in_hand();
                }
            }
            Err(CommitError::NotWritten(error)) => {
                tracing::warn!(workspace, %error, "a commit was not written");
                for (job, _) in answers {
                    job.fail(Unanswered::NotStored(error.to_string()));
                }
            }
            Err(CommitError::Unknown(error)) => {
                tracing::error!(workspace, %error, "nobody knows whether a commit was written");
                for (job, _) in answers {
                    job.fail(Unanswered::Unknown(error.to_string()));
                }
            }
        }
        if let Some(at) = due {
            // One that is lost is found when the store is next asked.
            let _ = pen.timers.try_send(TimersMsg::Due(at));
        }
        if let Some((runtime, told)) = told {
            // Sent after a failure too, for the notices may be there. One that is lost delays an inbox until the next.
            let told = InboxMsg::Told { workspace, participants: told };
            runtime.spawn(async move { pen.inboxes.send(told).await });
        }
    }
}

/// Nothing is said to the actor that stands for the writes.
#[derive(Debug)]
pub(crate) enum Nothing {}

impl Mail for Nothing {
    fn label(&self) -> &'static str {
        match *self {}
    }
}

/// Holds nothing.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: 1, when_full: WhenFull::Refuse };

/// Ends when the last write has.
struct LastWrite(Gauge);

pub(crate) fn child(slot: Slot<Nothing>, pen: &Pen) -> ChildSpec {
    let under_way = pen.under_way.clone();
    ChildSpec::worker(slot, move |_| {
        let under_way = under_way.clone();
        async move { Ok(LastWrite(under_way)) }
    })
    .shutdown(Shutdown::Within(WRITES_END_WITHIN))
}

impl Actor for LastWrite {
    type Msg = Nothing;

    async fn handle(&mut self, msg: Nothing, _cx: &mut Context<Nothing>) -> Result<(), Failure> {
        match msg {}
    }

    async fn stopping(&mut self, _cx: &mut Context<Nothing>) {
        // However long the disk takes, the child's own deadline bounds it.
        self.0.empty().await;
    }
}
