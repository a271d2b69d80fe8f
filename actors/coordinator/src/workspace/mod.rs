//! A workspace's actor: steps waiting calls on the rules, hands what they change to the pen, and steps the next ones
//! while that is being stored. It holds nothing that the store does not have; killed at any moment it comes back from
//! there, and the calls it had in hand come back to its mailbox.

mod batch;
mod reads;
mod verdict;

pub(crate) use verdict::Verdict;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use choir_chap::{Refusal, Settings, Workspace};
use choir_messages::chap::ObjectKey;
use choir_messages::mail::{Caller, Mail, Unanswered};
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Restart, Slot, WhenFull};

use crate::gauge::Held;
use crate::inboxes::{Ask, InboxMsg};
use crate::job::Job;
use crate::limits::{LINGER, READS, RESTART_BACKOFF, STUCK_AFTER, WORKSPACE_QUEUE};
use crate::pen::{Pen, Write};
use crate::settings::Clock;
use batch::Waiting;
use verdict::{Pending, verdict};

/// What a workspace's actor is told.
#[derive(Debug)]
pub(crate) enum WorkspaceMsg {
    /// A call.
    Call(Job),
    /// These objects' time has come.
    Lapse {
        /// The objects.
        keys: Vec<ObjectKey>,
        /// Keeps the actor from ending meanwhile.
        held: Held,
    },
    /// A participant asks for its notices.
    Inbox {
        /// The question.
        ask: Ask,
        /// Who carries it.
        caller: Caller,
    },
    /// The pen is done with what it was given.
    Written,
    /// A read of the log is over.
    WasRead,
    /// Those who were answered together have had a moment to call again.
    Linger,
}

impl Mail for WorkspaceMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Call(_) => "call",
            Self::Lapse { .. } => "lapse",
            Self::Inbox { .. } => "inbox",
            Self::Written => "written",
            Self::WasRead => "was_read",
            Self::Linger => "linger",
        }
    }
}

/// A call that finds it full is answered that the Coordinator is busy.
pub(crate) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: WORKSPACE_QUEUE, when_full: WhenFull::Refuse };

/// What all workspace actors share.
pub(crate) struct Surroundings {
    pub(crate) store: ChapStore,
    pub(crate) rules: Arc<Settings>,
    pub(crate) clock: Clock,
    pub(crate) pen: Pen,
    pub(crate) inboxes: Address<InboxMsg>,
}

pub(crate) struct WorkspaceActor {
    id: String,
    around: Arc<Surroundings>,
    /// The rules' view; none until it is needed, and after a commit that failed.
    memory: Option<Workspace>,
    waiting: VecDeque<Waiting>,
    /// What the pen has of ours.
    writing: Option<Pending>,
    /// Reads of the log under way.
    reads: usize,
    /// Calls of the last batch.
    last_batch: usize,
    /// Since when the next batch has been held back for more calls.
    lingering: Option<Instant>,
}

/// A workspace's actor as a child: restarted when it crashes, gone when it was ended for idling.
pub(crate) fn child(slot: Slot<WorkspaceMsg>, id: String, around: Arc<Surroundings>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (id, around) = (id.clone(), Arc::clone(&around));
        async move {
            Ok(WorkspaceActor {
                id,
                around,
                memory: None,
                waiting: VecDeque::new(),
                writing: None,
                reads: 0,
                last_batch: 0,
                lingering: None,
            })
        }
    })
    .restart(Restart::Transient)
    .backoff(RESTART_BACKOFF)
    .stuck_after(STUCK_AFTER)
}

impl WorkspaceActor {
    /// Steps what waits, unless the pen is busy, and gives the pen what came of it.
    async fn work(&mut self, cx: &mut Context<WorkspaceMsg>) -> Result<(), Failure> {
        while !self.waiting.is_empty() && !self.is_writing() {
            if self.reads >= READS && matches!(self.waiting.front(), Some(Waiting::Read(..))) {
                break;
            }
            let batch = self.batch(cx).await?;
            if batch.changes.is_empty() {
                continue;
            }
            let batch_size = batch.answers.len();
            // Calls that came together are likely to come together again: the moment of the answer counts then.
            let wake = cx.reply_to_self(|_: Option<()>| WorkspaceMsg::Written);
            let (stored, pending) = verdict(wake, batch_size > 1);
            let write = Write { changes: batch.changes, answers: batch.answers, stored };
            self.last_batch = batch_size;
            self.lingering = None;
            self.writing = Some(pending);
            self.around.pen.write(write);
        }
        Ok(())
    }

    /// Whether the pen still has something of ours; when it is done, a message says so.
    fn is_writing(&mut self) -> bool {
        let known = self.writing.as_ref().and_then(Pending::want);
        self.written(known);
        self.writing.is_some()
    }

    /// Goes on from a write of which it is known whether it was stored.
    fn written(&mut self, known: Option<bool>) {
        let Some(stored) = known else { return };
        self.writing = None;
        self.lingering = (self.last_batch > 1).then(Instant::now);
        match &mut self.memory {
            Some(memory) if stored => memory.committed(),
            // What it had decided did not happen, or nobody knows: the store does.
            _ => self.memory = None,
        }
    }

    /// Whether the next batch is held back a moment: those who were answered together will call together again, and the
    /// first of them would go alone and make all others wait for two commits.
    fn holds_back(&mut self, looks_again: bool, cx: &Context<WorkspaceMsg>) -> bool {
        let Some(since) = self.lingering else { return false };
        let lingers = self.waiting.len() < self.last_batch
            && since.elapsed() < LINGER
            // Behind whatever has arrived; a full mailbox has calls enough.
            && (!looks_again || cx.address().try_send(WorkspaceMsg::Linger).is_ok());
        if !lingers {
            self.lingering = None;
        }
        lingers
    }

    async fn inbox(&mut self, ask: Ask, caller: &Caller) {
        if let Err(error) = self.open().await {
            return ask.fail(Unanswered::NotStored(error));
        }
        let verdict = match &self.memory {
            Some(memory) => memory.may_read_inbox(&ask.participant, caller, &self.around.rules),
            None => Err(Refusal::params("Unknown workspace")),
        };
        match verdict {
            // A full hub drops it, which tells the asker.
            Ok(()) => drop(self.around.inboxes.try_send(InboxMsg::Ask(ask))),
            Err(refusal) => ask.refuse(refusal.to_json()),
        }
    }
}

impl Actor for WorkspaceActor {
    type Msg = WorkspaceMsg;

    async fn handle(&mut self, msg: WorkspaceMsg, cx: &mut Context<WorkspaceMsg>) -> Result<(), Failure> {
        let looks_again = matches!(msg, WorkspaceMsg::Written | WorkspaceMsg::Linger);
        self.written(self.writing.as_ref().and_then(Pending::look));
        match msg {
            WorkspaceMsg::Call(mut job) => {
                if self.waiting.len() >= WORKSPACE_QUEUE {
                    job.fail(Unanswered::Busy);
                } else {
                    job.arrived(cx.address());
                    self.waiting.push_back(Waiting::Call(job));
                }
            }
            WorkspaceMsg::Lapse { keys, held } => {
                let held = Arc::new(held);
                for key in keys {
                    self.waiting.push_back(Waiting::Lapse(key, Arc::clone(&held)));
                }
            }
            WorkspaceMsg::Inbox { ask, caller } => self.inbox(ask, &caller).await,
            WorkspaceMsg::Written => {}
            WorkspaceMsg::WasRead => self.reads = self.reads.saturating_sub(1),
            WorkspaceMsg::Linger => tokio::task::yield_now().await,
        }
        if self.holds_back(looks_again, cx) { Ok(()) } else { self.work(cx).await }
    }
}
