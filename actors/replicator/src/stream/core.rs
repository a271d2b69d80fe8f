//! The replicator's rules, without I/O or clock: what to send, when, and what an answer means (`choir §13.1`).
//!
//! One heartbeat is in flight at a time. Events committed meanwhile ride in the next one, so a slow host gets fewer and
//! larger batches: group commit falls out of it. A repeat of durable events is a no-op at the host, so after a doubt
//! (no answer, a broken link) the same events are simply sent again.

use choir_messages::event::Revision;
use choir_messages::mail::ReplicatorStatus;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The journal stands at this revision.
    Committed(Revision),
    /// The link is up; the host's log stands here.
    Up(Revision),
    /// The link is down.
    Down,
    /// A heartbeat was answered.
    Answered {
        /// Which.
        attempt: u64,
        /// How.
        outcome: Outcome,
    },
    /// Time passed.
    Tick,
}

/// How a heartbeat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Durable up to here; the host's newest configuration.
    Acked {
        /// Last durable revision.
        rev: Revision,
        /// Newest configuration.
        config_version: u64,
    },
    /// No answer or none that can be used: the link is in doubt.
    Doubt,
    /// The host cannot take it now; try again after the interval.
    Later,
    /// The host's log is not ours.
    Diverged,
    /// The lease is void.
    Revoked,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Send a heartbeat with the events after `base`.
    Send {
        /// Its number.
        attempt: u64,
        /// Last acknowledged revision.
        base: Revision,
        /// Newest committed revision.
        newest: Revision,
    },
    /// Tell the journal what is durable.
    Durable(Revision),
    /// The host's configuration has this version.
    Config(u64),
    /// The link is not to be trusted: give it up.
    DropLink,
    /// The process must end: logs differ.
    Diverged,
    /// The process must end: the lease is void.
    Revoked,
}

/// The replicator's state. Times are milliseconds of one monotonic clock.
#[derive(Debug)]
pub struct Stream {
    committed: Revision,
    acked: Revision,
    up: bool,
    in_flight: Option<u64>,
    attempts: u64,
    interval_ms: u64,
    /// When the last heartbeat was sent or refused; the next idle one is due an interval later.
    last_ms: u64,
    /// A heartbeat is due whatever the clock says.
    owed: bool,
    /// After `Later`, nothing is sent before this.
    not_before_ms: u64,
}

/// Pause after the host said it cannot take a heartbeat now.
const LATER_MS: u64 = 200;

impl Stream {
    /// A stream over a journal that stands at `committed`, of which `acked` is durable.
    #[must_use]
    pub const fn new(committed: Revision, acked: Revision, interval_ms: u64) -> Self {
        Self {
            committed,
            acked,
            up: false,
            in_flight: None,
            attempts: 0,
            interval_ms,
            last_ms: 0,
            owed: false,
            not_before_ms: 0,
        }
    }

    /// Counters.
    #[must_use]
    pub const fn status(&self) -> ReplicatorStatus {
        ReplicatorStatus { committed: self.committed, acked: self.acked, up: self.up }
    }

    /// Whether everything committed is durable.
    #[must_use]
    pub const fn is_flushed(&self) -> bool {
        self.acked >= self.committed
    }

    /// Changes the interval between heartbeats.
    pub const fn set_interval(&mut self, interval_ms: u64) {
        self.interval_ms = interval_ms;
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Committed(rev) => self.committed = self.committed.max(rev),
            Event::Up(durable) => {
                self.up = true;
                self.in_flight = None;
                self.not_before_ms = 0;
                // Say something at once: the host counts the agent as alive from its first heartbeat.
                self.owed = true;
                self.advance(durable, &mut actions);
            }
            Event::Down => {
                self.up = false;
                self.in_flight = None;
            }
            Event::Answered { attempt, outcome } => {
                if self.in_flight != Some(attempt) {
                    return actions;
                }
                self.in_flight = None;
                match outcome {
                    Outcome::Acked { rev, config_version } => {
                        self.advance(rev, &mut actions);
                        actions.push(Action::Config(config_version));
                    }
                    Outcome::Doubt => {
                        self.up = false;
                        actions.push(Action::DropLink);
                    }
                    Outcome::Later => self.not_before_ms = now_ms + LATER_MS,
                    Outcome::Diverged => {
                        self.up = false;
                        actions.push(Action::Diverged);
                    }
                    Outcome::Revoked => {
                        self.up = false;
                        actions.push(Action::Revoked);
                    }
                }
            }
            Event::Tick => {}
        }
        self.send_if_due(now_ms, &mut actions);
        actions
    }

    fn advance(&mut self, durable: Revision, actions: &mut Vec<Action>) {
        // A host that claims more than was ever committed is not believed beyond it.
        let durable = durable.min(self.committed);
        if durable > self.acked {
            self.acked = durable;
            actions.push(Action::Durable(durable));
        }
    }

    fn send_if_due(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        if !self.up || self.in_flight.is_some() || now_ms < self.not_before_ms {
            return;
        }
        if self.owed || self.committed > self.acked || now_ms >= self.last_ms + self.interval_ms {
            self.owed = false;
            self.attempts += 1;
            self.in_flight = Some(self.attempts);
            self.last_ms = now_ms;
            actions.push(Action::Send { attempt: self.attempts, base: self.acked, newest: self.committed });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_commit_is_sent_at_once_and_the_next_rides_behind_it() {
        let mut stream = Stream::new(0, 0, 5000);
        assert_eq!(stream.step(Event::Committed(1), 0), []);
        assert_eq!(stream.step(Event::Up(0), 10), [Action::Send { attempt: 1, base: 0, newest: 1 }]);
        assert_eq!(stream.step(Event::Committed(3), 11), []);
        let acked = Outcome::Acked { rev: 1, config_version: 7 };
        assert_eq!(
            stream.step(Event::Answered { attempt: 1, outcome: acked }, 12),
            [Action::Durable(1), Action::Config(7), Action::Send { attempt: 2, base: 1, newest: 3 }]
        );
    }

    #[test]
    fn an_idle_agent_says_it_is_alive_once_an_interval() {
        let mut stream = Stream::new(2, 2, 5000);
        assert_eq!(stream.step(Event::Up(2), 0).len(), 1);
        let outcome = Outcome::Acked { rev: 2, config_version: 0 };
        assert_eq!(stream.step(Event::Answered { attempt: 1, outcome }, 1), [Action::Config(0)]);
        assert_eq!(stream.step(Event::Tick, 4999), []);
        assert_eq!(stream.step(Event::Tick, 5000), [Action::Send { attempt: 2, base: 2, newest: 2 }]);
    }

    #[test]
    fn a_late_answer_of_an_old_link_means_nothing() {
        let mut stream = Stream::new(1, 0, 5000);
        stream.step(Event::Up(0), 0);
        stream.step(Event::Down, 1);
        let outcome = Outcome::Acked { rev: 1, config_version: 0 };
        assert_eq!(stream.step(Event::Answered { attempt: 1, outcome }, 2), []);
        assert_eq!(stream.step(Event::Up(0), 3), [Action::Send { attempt: 2, base: 0, newest: 1 }]);
    }

    /// A host that stores what it is sent, over a link that loses answers and breaks.
    #[derive(Debug, Clone, Copy)]
    enum Fault {
        None,
        AnswerLost,
        RequestLost,
        Break,
        Later,
    }

    fn faults() -> impl Strategy<Value = Vec<(u8, Fault)>> {
        let fault = prop_oneof![
            Just(Fault::None),
            Just(Fault::AnswerLost),
            Just(Fault::RequestLost),
            Just(Fault::Break),
            Just(Fault::Later)
        ];
        proptest::collection::vec((0u8..4, fault), 0..80)
    }

    proptest! {
        /// Replication invariants, checked against a host that stores contiguous revisions: what the replicator calls
        /// durable the host has; the host never sees a gap; when the faults end, everything arrives.
        #[test]
        fn everything_committed_becomes_durable_and_nothing_is_called_durable_before(faults in faults()) {
            let mut stream = Stream::new(0, 0, 1000);
            let (mut now, mut committed, mut host, mut told) = (0u64, 0u64, 0u64, 0u64);
            let mut todo = stream.step(Event::Up(0), now);
            let mut faults = faults.into_iter();
            for _ in 0..400 {
                let (grow, fault) = faults.next().unwrap_or((0, Fault::None));
                if grow > 0 {
                    committed += u64::from(grow);
                    todo.extend(stream.step(Event::Committed(committed), now));
                }
                let mut next = Vec::new();
                for action in todo.drain(..) {
                    match action {
                        Action::Durable(rev) => {
                            prop_assert!(rev <= host && rev > told);
                            told = rev;
                        }
                        Action::DropLink => next.extend(stream.step(Event::Up(host), now)),
                        Action::Send { attempt, base, newest } => {
                            prop_assert!(base <= host, "a gap");
                            let outcome = match fault {
                                Fault::None => {
                                    host = host.max(newest);
                                    Outcome::Acked { rev: host, config_version: 0 }
                                }
                                Fault::AnswerLost => {
                                    host = host.max(newest);
                                    Outcome::Doubt
                                }
                                Fault::RequestLost => Outcome::Doubt,
                                Fault::Later => Outcome::Later,
                                Fault::Break => {
                                    next.extend(stream.step(Event::Down, now));
                                    next.extend(stream.step(Event::Up(host), now));
                                    continue;
                                }
                            };
                            next.extend(stream.step(Event::Answered { attempt, outcome }, now));
                        }
                        Action::Config(_) => {}
                        Action::Diverged | Action::Revoked => prop_assert!(false),
                    }
                }
                todo = next;
                now += 100;
                todo.extend(stream.step(Event::Tick, now));
            }
            prop_assert!(stream.is_flushed());
            prop_assert_eq!(host, committed);
        }
    }
}
