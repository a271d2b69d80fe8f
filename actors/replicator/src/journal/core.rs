//! The journal's rules, without I/O: append all or none, remember what is durable, answer who waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use choir_messages::chain::Digest;
use choir_messages::event::{ChainError, Event, EventBody, Head, Revision, verify_chain};
use choir_messages::limits::UNACKNOWLEDGED_EVENTS;
use choir_messages::mail::{JournalError, JournalStatus};
use choir_messages::session::{Illegal, SessionView};
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;

use crate::limits::{DURABLE_KEPT, DURABLE_WAITERS, READ_EVENTS};

/// Why a host's log cannot be started from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The tail does not continue the snapshot.
    #[error("the host's log does not verify: {0}")]
    Chain(#[from] ChainError),
    /// The tail is not a legal log.
    #[error("the host's log is not legal: {0}")]
    Illegal(#[from] Illegal),
}

/// The host's log is not this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host's log at revision {host} is not this journal's, which stands at {own}")]
pub struct Foreign {
    /// Where the host's log stands.
    pub host: Revision,
    /// Where this one stands.
    pub own: Revision,
}

/// The log of one session in memory. `W` is whoever waits for durability.
#[derive(Debug)]
pub struct Journal<W> {
    view: Arc<SessionView>,
    /// The kept events, contiguous, the newest last.
    events: VecDeque<Arc<Event>>,
    durable: Revision,
    waiters: BTreeMap<Revision, Vec<W>>,
    waiting: usize,
}

impl<W> Journal<W> {
    /// A journal that continues the host's log: a snapshot (or an empty view) and all events after it, all durable.
    pub fn restore(snapshot: SessionView, tail: Vec<Event>) -> Result<Self, RestoreError> {
        let mut view = snapshot;
        let head = verify_chain(view.session, view.head, &tail)?;
        for event in &tail {
            view.apply(event)?;
        }
        let mut events: VecDeque<_> = tail.into_iter().map(Arc::new).collect();
        while events.len() > DURABLE_KEPT {
            events.pop_front();
        }
        Ok(Self { view: Arc::new(view), events, durable: head.rev, waiters: BTreeMap::new(), waiting: 0 })
    }

    /// The fold of everything appended.
    #[must_use]
    pub fn view(&self) -> Arc<SessionView> {
        Arc::clone(&self.view)
    }

    /// Where the log stands.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        JournalStatus { head: self.view.head, durable: self.durable }
    }

    /// Appends all of `bodies` or none of them; returns their events.
    pub fn append(
        &mut self,
        lane: &Lane,
        bodies: Vec<EventBody>,
        now: Timestamp,
    ) -> Result<Vec<Arc<Event>>, JournalError> {
        let waiting = self.view.head.rev - self.durable;
        // What ends work that has begun (results, closings) is always taken: its number is bounded by the turn.
        if waiting >= UNACKNOWLEDGED_EVENTS && bodies.iter().any(begins_work) {
            return Err(JournalError::Behind { waiting });
        }
        // The trial is cheap: the long part of a view, the transcript, is shared.
        let mut trial = SessionView::clone(&self.view);
        let mut appended = Vec::with_capacity(bodies.len());
        for body in bodies {
            let (event, _) = Event::append(trial.session, trial.head, now, lane.clone(), body)?;
            trial.apply(&event)?;
            appended.push(Arc::new(event));
        }
        self.view = Arc::new(trial);
        self.events.extend(appended.iter().cloned());
        Ok(appended)
    }

    /// Kept events after `after`, at most `limit`.
    #[must_use]
    pub fn read(&self, after: Revision, limit: usize) -> Vec<Arc<Event>> {
        let Some(first) = self.events.front().map(|event| event.rev) else { return Vec::new() };
        let skip = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.events.iter().skip(skip).take(limit.min(READ_EVENTS)).cloned().collect()
    }

    /// The host's log stands at `head`; returns who waited for that. A host whose log is another one, as it is when
    /// something that an earlier life had sent arrived there late, has nothing of this one: nobody is woken.
    pub fn acknowledged(&mut self, head: Head) -> Result<Vec<W>, Foreign> {
        if head.rev <= self.durable {
            return Ok(Vec::new());
        }
        if self.hash_at(head.rev) != Some(head.hash) {
            return Err(Foreign { host: head.rev, own: self.view.head.rev });
        }
        self.durable = head.rev;
        while self.events.len() > DURABLE_KEPT
            && self.events.front().is_some_and(|event| event.rev <= self.durable)
        {
            self.events.pop_front();
        }
        let later = self.waiters.split_off(&(self.durable + 1));
        let woken: Vec<W> = std::mem::replace(&mut self.waiters, later).into_values().flatten().collect();
        self.waiting -= woken.len();
        Ok(woken)
    }

    /// The hash of an event that is not durable yet, all of which are kept.
    fn hash_at(&self, rev: Revision) -> Option<Digest> {
        let first = self.events.front()?.rev;
        let place = usize::try_from(rev.checked_sub(first)?).ok()?;
        Some(self.events.get(place)?.head().hash)
    }

    /// Registers a waiter for `rev`. Gives it back when there is nothing to wait for, or no room to wait in.
    pub fn wait_durable(&mut self, rev: Revision, waiter: W) -> Result<(), Waited<W>> {
        if rev <= self.durable {
            return Err(Waited::Durable(waiter));
        }
        if self.waiting >= DURABLE_WAITERS {
            return Err(Waited::NoRoom(waiter));
        }
        self.waiting += 1;
        self.waiters.entry(rev).or_default().push(waiter);
        Ok(())
    }
}

/// Whether a body begins work, which a journal far behind its host refuses.
const fn begins_work(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::UserMsg { .. }
            | EventBody::ModelOutput { .. }
            | EventBody::InjectedInstruction { .. }
            | EventBody::CoreStarted { .. }
    )
}

/// Why a waiter does not wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited<W> {
    /// The revision is durable already.
    Durable(W),
    /// Too many wait.
    NoRoom(W),
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::id::{MessageId, SessionId};
    use choir_messages::session::Rule;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_millis(5);

    fn opened() -> Journal<u32> {
        let mut journal = Journal::restore(SessionView::new(SessionId::from_bits(1)), Vec::new()).unwrap();
        let agent = "a".parse().unwrap();
        journal
            .append(&Lane::Edge, vec![EventBody::SessionOpened { agent, tool_manifest: Digest::ZERO }], NOW)
            .unwrap();
        journal
    }

    fn message(n: u128) -> EventBody {
        EventBody::UserMsg { message: MessageId::from_bits(n), text: format!("m{n}") }
    }

    #[test]
    fn an_illegal_body_leaves_nothing_of_its_batch() {
        let mut journal = opened();
        let before = journal.status();
        let refused = journal.append(&Lane::Edge, vec![message(1), message(1)], NOW).unwrap_err();
        assert_eq!(refused, JournalError::Illegal(Illegal { rev: 3, rule: Rule::MessageOnce }));
        assert_eq!(journal.status(), before);
        assert_eq!(journal.read(0, 10).len(), 1);
        journal.append(&Lane::Edge, vec![message(1)], NOW).unwrap();
    }

    #[test]
    fn a_journal_restored_from_its_own_events_has_the_same_view() {
        let mut journal = opened();
        for n in 0..20 {
            journal.append(&Lane::Edge, vec![message(n)], NOW).unwrap();
        }
        let tail: Vec<Event> = journal.read(0, 100).iter().map(|event| Event::clone(event)).collect();
        let again = Journal::<u32>::restore(SessionView::new(SessionId::from_bits(1)), tail.clone()).unwrap();
        assert_eq!(again.view(), journal.view());
        let mut forged = tail;
        forged.swap(3, 4);
        assert!(Journal::<u32>::restore(SessionView::new(SessionId::from_bits(1)), forged).is_err());
    }

    #[test]
    fn a_host_that_stays_away_stops_new_events_but_loses_none() {
        let mut journal = opened();
        // Configurations are the cheapest legal events.
        for version in 0..UNACKNOWLEDGED_EVENTS - 1 {
            journal.append(&Lane::Edge, vec![EventBody::ConfigApplied { version }], NOW).unwrap();
        }
        assert!(matches!(
            journal.append(&Lane::Edge, vec![message(1)], NOW),
            Err(JournalError::Behind { waiting: UNACKNOWLEDGED_EVENTS })
        ));
        assert_eq!(journal.read(0, READ_EVENTS).len(), READ_EVENTS);
        let first = journal.read(0, 1)[0].head();
        journal.acknowledged(first).unwrap();
        journal.append(&Lane::Edge, vec![message(1)], NOW).unwrap();
    }

    /// Two lives of one agent go on from the same event; the first one's words arrive at the host late.
    #[test]
    fn what_is_durable_of_another_life_wakes_nobody() {
        let (mut journal, mut earlier) = (opened(), opened());
        for n in 0..5 {
            journal.append(&Lane::Edge, vec![message(n)], NOW).unwrap();
            earlier.append(&Lane::Edge, vec![message(100 + n)], NOW).unwrap();
        }
        journal.wait_durable(4, 1).unwrap();
        for event in earlier.read(1, READ_EVENTS) {
            assert_eq!(journal.acknowledged(event.head()), Err(Foreign { host: event.rev, own: 6 }));
        }
        assert_eq!(journal.status().durable, 0);
        let beyond = Head { rev: 9, hash: Digest::ZERO };
        assert!(journal.acknowledged(beyond).is_err());
        let fourth = journal.read(3, 1)[0].head();
        assert_eq!(journal.acknowledged(fourth), Ok(vec![1]));
    }

    proptest! {
        #[test]
        fn every_waiter_is_woken_exactly_when_its_revision_is_durable(
            waits in proptest::collection::vec(1u64..40, 0..30),
            acks in proptest::collection::vec(1u64..31, 0..30),
        ) {
            let mut journal = opened();
            for n in 0..29 {
                journal.append(&Lane::Edge, vec![message(n)], NOW).unwrap();
            }
            let heads: Vec<Head> = journal.read(0, READ_EVENTS).iter().map(|event| event.head()).collect();
            let mut waiting = Vec::new();
            for (n, rev) in waits.into_iter().enumerate() {
                let id = u32::try_from(n).unwrap();
                match journal.wait_durable(rev, id) {
                    Ok(()) => waiting.push((id, rev)),
                    Err(Waited::Durable(_)) => prop_assert!(rev <= journal.status().durable),
                    Err(Waited::NoRoom(_)) => prop_assert!(false),
                }
            }
            let mut durable = 0;
            for ack in acks {
                durable = durable.max(ack);
                let head = heads[usize::try_from(ack).unwrap() - 1];
                let mut woken = journal.acknowledged(head).unwrap();
                let mut due: Vec<u32> =
                    waiting.iter().filter(|(_, rev)| *rev <= durable).map(|(id, _)| *id).collect();
                waiting.retain(|(_, rev)| *rev > durable);
                woken.sort_unstable();
                due.sort_unstable();
                prop_assert_eq!(woken, due);
                prop_assert_eq!(journal.status().durable, durable);
            }
        }
    }
}
