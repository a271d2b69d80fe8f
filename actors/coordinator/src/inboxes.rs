//! The inboxes: participants reading what they are owed, and waiting for it. Notices are in the store; here are only
//! those who wait, each for a bounded time that is their own.

use std::collections::{HashMap, HashSet, VecDeque};

use choir_messages::chap::Notice;
use choir_messages::mail::{Mail, NoticePage, Unanswered};
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_persistence::StoreError;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull};
use serde_json::Value;

use crate::gauge::Held;
use crate::limits::{
    INBOX_PAGE, INBOX_READS, NOTICES_KEPT, NOTICES_KEPT_FOR, PRUNE_EVERY, READERS, WAITERS, WAITERS_EACH,
    WAITERS_SWEEP, WRITES_MAILBOX,
};
use crate::settings::Clock;

/// What the inboxes are told.
#[derive(Debug)]
pub(crate) enum InboxMsg {
    /// Somebody asks, who may.
    Ask(Ask),
    /// These participants of a workspace have something new.
    Told {
        /// The workspace.
        workspace: String,
        /// The participants.
        participants: Vec<String>,
    },
    /// What the store has for the asker of this number.
    Found(u64, Result<Vec<Notice>, StoreError>),
    /// What came of removing notices that were read long ago.
    Pruned(Result<u64, StoreError>),
    /// Time to look for askers that gave up.
    Sweep,
}

impl Mail for InboxMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Ask(_) => "ask",
            Self::Told { .. } => "told",
            Self::Found(..) => "found",
            Self::Pruned(_) => "pruned",
            Self::Sweep => "sweep",
        }
    }
}

/// Where a page of notices goes.
type PageReply = ReplyTo<Result<Result<NoticePage, Value>, Unanswered>>;

/// One question for notices. Dropped unanswered, it says that the Coordinator is busy.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) workspace: String,
    pub(crate) participant: String,
    after: u64,
    limit: usize,
    wait: bool,
    reply: Option<PageReply>,
    /// What it counts in until it may wait here.
    held: Vec<Held>,
}

impl Ask {
    pub(crate) const fn new(
        workspace: String,
        participant: String,
        after: u64,
        limit: usize,
        wait: bool,
        reply: PageReply,
    ) -> Self {
        Self { workspace, participant, after, limit, wait, reply: Some(reply), held: Vec::new() }
    }

    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    /// It waits on its own account from here on.
    pub(crate) fn let_go(&mut self) {
        self.held.clear();
    }

    pub(crate) fn refuse(mut self, error: Value) {
        if let Some(reply) = self.reply.take() {
            reply.send(Ok(Err(error)));
        }
    }

    pub(crate) fn fail(mut self, why: Unanswered) {
        if let Some(reply) = self.reply.take() {
            reply.send(Err(why));
        }
    }

    fn answer(mut self, notices: Vec<Notice>) {
        let next = notices.last().map_or(self.after, |last| last.number);
        if let Some(reply) = self.reply.take() {
            reply.send(Ok(Ok(NoticePage { notices, next })));
        }
    }

    fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_none_or(ReplyTo::is_abandoned)
    }

    fn place(&self) -> Place {
        (self.workspace.clone(), self.participant.clone())
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply.send(Err(Unanswered::Busy));
        }
    }
}

/// A participant of a workspace.
type Place = (String, String);

/// Commits must not wait long for those who listen.
pub(crate) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: WRITES_MAILBOX, when_full: WhenFull::Wait(std::time::Duration::from_secs(1)) };

pub(crate) struct Inboxes {
    store: ChapStore,
    askers: HashMap<u64, Waiting>,
    by_place: HashMap<Place, HashSet<u64>>,
    /// Askers that want the store read for them, in order.
    unread: VecDeque<u64>,
    reading: usize,
    numbers: u64,
    /// How far participants have read.
    readers: HashMap<Place, Reader>,
    clock: Clock,
}

/// How far a participant has read.
#[derive(Default)]
struct Reader {
    /// The last notice given out.
    given: u64,
    /// Up to where old ones were looked for.
    pruned: u64,
}

impl Reader {
    /// The asker has everything up to `after`; says up to where to look for old ones, if that is worth while. A number
    /// that was never given out is nobody's acknowledgement.
    fn acknowledges(&mut self, after: u64) -> Option<u64> {
        let read = after.min(self.given);
        let due = read >= self.pruned.saturating_add(PRUNE_EVERY);
        due.then(|| {
            self.pruned = read;
            read
        })
    }
}

struct Waiting {
    ask: Ask,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// In line for a read.
    InLine,
    /// Being read for; `again` if something new came meanwhile.
    Reading { again: bool },
    /// Nothing there yet.
    Idle,
}

pub(crate) fn child(slot: Slot<InboxMsg>, store: ChapStore, clock: Clock) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (store, clock) = (store.clone(), clock.clone());
        async move {
            Ok(Inboxes {
                store,
                askers: HashMap::new(),
                by_place: HashMap::new(),
                unread: VecDeque::new(),
                reading: 0,
                numbers: 0,
                readers: HashMap::new(),
                clock,
            })
        }
    })
}

impl Inboxes {
    fn take_in(&mut self, ask: Ask) {
        let place = ask.place();
        let crowded = |this: &Self| {
            this.askers.len() >= WAITERS
                || this.by_place.get(&place).is_some_and(|all| all.len() >= WAITERS_EACH)
        };
        if crowded(self) {
            self.sweep();
        }
        if crowded(self) {
            return ask.fail(Unanswered::Busy);
        }
        self.numbers = self.numbers.wrapping_add(1);
        self.by_place.entry(place).or_default().insert(self.numbers);
        self.askers.insert(self.numbers, Waiting { ask, state: State::InLine });
        self.unread.push_back(self.numbers);
    }

    fn remove(&mut self, number: u64) -> Option<Ask> {
        let waiting = self.askers.remove(&number)?;
        let place = waiting.ask.place();
        if let Some(all) = self.by_place.get_mut(&place) {
            all.remove(&number);
            if all.is_empty() {
                self.by_place.remove(&place);
            }
        }
        Some(waiting.ask)
    }

    fn told(&mut self, workspace: String, participants: Vec<String>) {
        let participants: HashSet<String> = participants.into_iter().collect();
        for participant in participants {
            let Some(numbers) = self.by_place.get(&(workspace.clone(), participant)) else { continue };
            for number in numbers {
                let Some(waiting) = self.askers.get_mut(number) else { continue };
                waiting.state = match waiting.state {
                    State::Idle => {
                        self.unread.push_back(*number);
                        State::InLine
                    }
                    State::Reading { .. } => State::Reading { again: true },
                    State::InLine => State::InLine,
                };
            }
        }
    }

    fn found(&mut self, number: u64, found: Result<Vec<Notice>, StoreError>) {
        self.reading = self.reading.saturating_sub(1);
        let Some(waiting) = self.askers.get_mut(&number) else { return };
        let waits = waiting.ask.wait;
        match found {
            Ok(notices) if notices.is_empty() && waits => {
                if waiting.state == (State::Reading { again: true }) {
                    waiting.state = State::InLine;
                    self.unread.push_back(number);
                } else {
                    waiting.state = State::Idle;
                }
            }
            Ok(notices) => {
                if let Some(ask) = self.remove(number) {
                    if let Some(last) = notices.last() {
                        self.reader(ask.place()).given = last.number;
                    }
                    ask.answer(notices);
                }
            }
            Err(error) => {
                if let Some(ask) = self.remove(number) {
                    ask.fail(Unanswered::NotStored(error.to_string()));
                }
            }
        }
    }

    fn reader(&mut self, place: Place) -> &mut Reader {
        if self.readers.len() >= READERS && !self.readers.contains_key(&place) {
            self.readers.clear();
        }
        self.readers.entry(place).or_default()
    }

    /// Whoever asks for what comes after a notice has that and those before it.
    fn prune(&mut self, ask: &Ask, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        let (workspace, participant) = ask.place();
        let Some(reader) = self.readers.get_mut(&(workspace.clone(), participant.clone())) else {
            return Ok(());
        };
        let Some(read) = reader.acknowledges(ask.after) else { return Ok(()) };
        let kept_for = u64::try_from(NOTICES_KEPT_FOR.as_millis()).unwrap_or(u64::MAX);
        let oldest = Timestamp::from_millis((self.clock)().millis().saturating_sub(kept_for));
        let store = self.store.clone();
        let work =
            async move { store.prune_notices(&workspace, &participant, read, NOTICES_KEPT, oldest).await };
        cx.pipe_to_self(work, InboxMsg::Pruned)?;
        Ok(())
    }

    fn sweep(&mut self) {
        let gone: Vec<u64> =
            self.askers.iter().filter(|(_, w)| w.ask.is_abandoned()).map(|(number, _)| *number).collect();
        for number in gone {
            self.remove(number);
        }
    }

    fn read_on(&mut self, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        while self.reading < INBOX_READS {
            let Some(number) = self.unread.pop_front() else { break };
            let Some(waiting) = self.askers.get_mut(&number) else { continue };
            waiting.state = State::Reading { again: false };
            let (store, after) = (self.store.clone(), waiting.ask.after);
            let (workspace, participant) = waiting.ask.place();
            let limit = waiting.ask.limit.clamp(1, INBOX_PAGE);
            let work = async move { store.notices(&workspace, &participant, after, limit).await };
            cx.pipe_to_self(work, move |found| InboxMsg::Found(number, found))?;
            self.reading += 1;
        }
        Ok(())
    }
}

impl Actor for Inboxes {
    type Msg = InboxMsg;

    async fn started(&mut self, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        cx.send_interval(WAITERS_SWEEP, || InboxMsg::Sweep)?;
        Ok(())
    }

    async fn handle(&mut self, msg: InboxMsg, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        match msg {
            InboxMsg::Ask(mut ask) => {
                ask.let_go();
                self.prune(&ask, cx)?;
                self.take_in(ask);
            }
            InboxMsg::Told { workspace, participants } => self.told(workspace, participants),
            InboxMsg::Found(number, found) => self.found(number, found),
            InboxMsg::Sweep => self.sweep(),
            InboxMsg::Pruned(Ok(pruned)) => tracing::debug!(pruned, "old notices are gone"),
            InboxMsg::Pruned(Err(error)) => tracing::warn!(%error, "old notices could not be removed"),
        }
        self.read_on(cx)
    }
}
