//! The host's memory of one session's log: the fold of everything durable, and the rule that says what may be added.
//! Plain data; the committer owns one a session and asks it before every transaction.

use std::collections::{HashMap, VecDeque};

use choir_messages::chain::Digest;
use choir_messages::event::{ChainError, Event, EventBody, Head, Revision};
use choir_messages::id::{AgentId, SessionId};
use choir_messages::session::{Illegal, SessionView};

use crate::limits;

/// An event whose hash was found to be its content's, with the canonical text that is stored.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) event: Event,
    pub(crate) text: String,
}

impl Checked {
    /// Checks the event against itself: its session and its hash. Its place in the chain is the keeper's business.
    pub(crate) fn new(session: SessionId, event: Event) -> Result<Self, ChainError> {
        let before = event.rev.checked_sub(1).ok_or(ChainError::WrongRevision { expected: 1, found: 0 })?;
        let text = event.check(session, Head { rev: before, hash: event.prev })?;
        Ok(Self { event, text })
    }
}

/// Why a batch may not be added to a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is no continuation of what is durable.
    Diverged { durable: Head },
    /// It is broken in itself.
    Chain(ChainError),
    /// It means something that may not come next.
    Illegal(Illegal),
    /// It opens a log for another agent.
    WrongAgent,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Keeper {
    agent: AgentId,
    view: SessionView,
    /// Hashes of the newest durable revisions, the last one being the head's.
    hashes: VecDeque<Digest>,
    /// Revision of the newest snapshot, 0 for none.
    pub(crate) snapshot: Revision,
}

impl Keeper {
    /// A keeper for a log that was folded into `view`.
    pub(crate) fn new(agent: AgentId, view: SessionView, snapshot: Revision) -> Self {
        Self { agent, view, hashes: VecDeque::new(), snapshot }
    }

    pub(crate) const fn head(&self) -> Head {
        self.view.head
    }

    pub(crate) const fn view(&self) -> &SessionView {
        &self.view
    }

    /// The revisions of `events` that are durable but whose hashes are no longer (or not yet) in memory, as an
    /// inclusive range: the caller reads them before it calls [`Keeper::add`].
    pub(crate) fn unknown(&self, events: &[Checked]) -> Option<(Revision, Revision)> {
        let mut revs = events
            .iter()
            .map(|e| e.event.rev)
            .filter(|rev| *rev <= self.view.head.rev && self.remembered(*rev).is_none());
        let first = revs.next()?;
        Some((first, revs.next_back().unwrap_or(first)))
    }

    fn remembered(&self, rev: Revision) -> Option<Digest> {
        let back = usize::try_from(self.view.head.rev.checked_sub(rev)?).ok()?;
        let at = self.hashes.len().checked_sub(back + 1)?;
        self.hashes.get(at).copied()
    }

    /// Folds a batch in and returns how many of its first events were durable already. `older` holds the hashes that
    /// [`Keeper::unknown`] asked for. After an error other than [`Refused::Diverged`] the keeper may hold a part of
    /// the batch and must be thrown away; so must it when the transaction that follows does not commit.
    pub(crate) fn add(
        &mut self,
        events: &[Checked],
        older: &HashMap<Revision, Digest>,
    ) -> Result<usize, Refused> {
        for pair in events.windows(2) {
            let [before, after] = pair else { continue };
            let expected = before.event.rev.saturating_add(1);
            if after.event.rev != expected {
                return Err(Refused::Chain(ChainError::WrongRevision { expected, found: after.event.rev }));
            }
            if after.event.prev != before.event.hash {
                return Err(Refused::Chain(ChainError::BrokenLink { rev: after.event.rev }));
            }
        }
        let durable = self.view.head;
        let diverged = Refused::Diverged { durable };
        let known = events.partition_point(|e| e.event.rev <= durable.rev);
        let (repeated, new) = events.split_at(known);
        for Checked { event, .. } in repeated {
            let hash = self.remembered(event.rev).or_else(|| older.get(&event.rev).copied());
            if hash != Some(event.hash) {
                return Err(diverged);
            }
        }
        if let Some(Checked { event, .. }) = new.first()
            && (event.rev != durable.rev.saturating_add(1) || event.prev != durable.hash)
        {
            return Err(diverged);
        }
        for Checked { event, .. } in new {
            if let EventBody::SessionOpened { agent, .. } = &event.body
                && *agent != self.agent
            {
                return Err(Refused::WrongAgent);
            }
            self.view.apply(event).map_err(Refused::Illegal)?;
            if self.hashes.len() >= limits::REMEMBERED_HASHES {
                self.hashes.pop_front();
            }
            self.hashes.push_back(event.hash);
        }
        Ok(known)
    }

    /// Whether a snapshot is due.
    pub(crate) const fn wants_snapshot(&self) -> bool {
        self.view.head.rev >= self.snapshot.saturating_add(limits::SNAPSHOT_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::event::MessageOutcome;
    use choir_messages::id::MessageId;
    use choir_messages::time::Timestamp;
    use choir_messages::tool::Lane;
    use proptest::prelude::*;

    fn session() -> SessionId {
        SessionId::from_bits(1)
    }

    fn agent() -> AgentId {
        "a".parse().unwrap()
    }

    fn log(n: usize) -> Vec<Checked> {
        let mut head = Head::START;
        let mut out = Vec::new();
        for i in 0..n {
            let body = if i == 0 {
                EventBody::SessionOpened { agent: agent(), tool_manifest: Digest::ZERO }
            } else if i % 2 == 1 {
                EventBody::UserMsg { message: MessageId::from_bits(i as u128), text: "hi".to_owned() }
            } else {
                EventBody::MessageClosed {
                    message: MessageId::from_bits(i as u128 - 1),
                    outcome: MessageOutcome::Failed,
                    text: "no".to_owned(),
                }
            };
            let (event, text) =
                Event::append(session(), head, Timestamp::from_millis(5), Lane::Edge, body).unwrap();
            head = event.head();
            out.push(Checked { event, text });
        }
        out
    }

    fn keeper() -> Keeper {
        Keeper::new(agent(), SessionView::new(session()), 0)
    }

    proptest! {
        /// However a log is cut into overlapping batches, and whatever is repeated, the keeper ends at its head.
        #[test]
        fn overlapping_batches_fold_to_the_same_head(cuts in prop::collection::vec((0usize..12, 1usize..8), 1..20)) {
            let mut keeper = keeper();
            let mut all = log(60);
            let head = all.last().unwrap().event.head();
            for (back, forward) in cuts {
                let at = usize::try_from(keeper.head().rev).unwrap();
                let from = at.saturating_sub(back);
                let to = (at + forward).min(all.len());
                let before = at - from;
                let known = keeper.add(&all[from..to], &HashMap::new()).unwrap();
                prop_assert_eq!(known, before.min(to - from));
                prop_assert_eq!(keeper.head().rev as usize, to.max(at));
            }
            let rest = all.split_off(usize::try_from(keeper.head().rev).unwrap());
            keeper.add(&rest, &HashMap::new()).unwrap();
            prop_assert_eq!(keeper.head(), head);
        }
    }

    #[test]
    fn a_repeat_with_another_content_has_diverged_and_changes_nothing() {
        let mut keeper = keeper();
        let all = log(3);
        keeper.add(&all, &HashMap::new()).unwrap();
        let durable = keeper.head();
        let (other, text) = Event::append(
            session(),
            all[1].event.head(),
            Timestamp::from_millis(6),
            Lane::Edge,
            EventBody::ConfigApplied { version: 1 },
        )
        .unwrap();
        let refused = keeper.add(&[Checked { event: other, text }], &HashMap::new());
        assert_eq!(refused, Err(Refused::Diverged { durable }));
        assert_eq!(keeper.head(), durable);
    }

    #[test]
    fn a_gap_before_the_batch_has_diverged_and_a_gap_inside_is_a_broken_chain() {
        let all = log(5);
        let mut fresh = keeper();
        assert_eq!(fresh.add(&all[1..2], &HashMap::new()), Err(Refused::Diverged { durable: Head::START }));
        let mut holed = log(5);
        holed.remove(2);
        assert_eq!(
            fresh.add(&holed, &HashMap::new()),
            Err(Refused::Chain(ChainError::WrongRevision { expected: 3, found: 4 }))
        );
    }

    #[test]
    fn hashes_that_left_the_memory_are_asked_for() {
        let mut keeper = keeper();
        let all = log(limits::REMEMBERED_HASHES + 10);
        keeper.add(&all, &HashMap::new()).unwrap();
        assert_eq!(keeper.unknown(&all[..20]), Some((1, 10)));
        assert_eq!(keeper.unknown(&all[10..]), None);
        assert!(matches!(keeper.add(&all[..20], &HashMap::new()), Err(Refused::Diverged { .. })));
        let older = all[..10].iter().map(|c| (c.event.rev, c.event.hash)).collect();
        assert_eq!(keeper.add(&all[..20], &older), Ok(20));
    }

    #[test]
    fn a_log_for_another_agent_is_refused() {
        let mut other = Keeper::new("b".parse().unwrap(), SessionView::new(session()), 0);
        assert_eq!(other.add(&log(1), &HashMap::new()), Err(Refused::WrongAgent));
    }
}
