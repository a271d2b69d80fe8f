//! An exhaustive check of the lock manager among its neighbours: the arbiter that asks, the mailbox between them, and
//! what really runs. Arbiter and lock manager crash at any moment; the session's `rest_for_one` supervisor restarts
//! them in order, with the executions that ran under the locks (DESIGN §3). Judged by what runs, not by the table.
#![allow(clippy::unwrap_used)] // In helpers of tests, too, a failed unwrap is a failed test.

mod common;

use choir_locks::{Action, LockEvent, LockManager, Origin, excludes};
use choir_messages::mail::LockRefused;
use choir_messages::tool::{Lane, LockMode, LockSpec, ResourceKey};
use common::{acquire, call, lane, locks, release};
use stateright::{Checker, Model, Property};

/// The calls: who asks for what. A call may be asked for again after a crash, under the same id.
const CALLS: &[(&str, &[&str])] =
    &[("edge", &["file:a:S"]), ("core:a", &["workspace:X"]), ("core:b", &["file:a:X", "choirtmp:X"])];

/// Messages in the mailbox before the arbiter waits.
const MAILBOX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mail {
    /// An acquire, and whether anybody still holds the other end of its port.
    Acquire {
        call: usize,
        heard: bool,
    },
    Release {
        call: usize,
    },
    NewEpoch,
}

/// What the arbiter knows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Nothing,
    Asked,
    Running,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    /// The table; none while the lock manager is down.
    locks: Option<LockManager>,
    mailbox: Vec<Mail>,
    /// Grants on their way to the arbiter's living incarnation.
    answers: Vec<usize>,
    arbiter_up: bool,
    known: [Known; CALLS.len()],
    /// The ports of waiting requests that somebody still listens at.
    ports: Vec<usize>,
    /// The calls whose effects are happening, in the order they began.
    running: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    Ask(usize),
    GiveUp(usize),
    Finish(usize),
    Deliver,
    Hear,
    ArbiterCrashes,
    ArbiterRestarts,
    LocksCrash,
    LocksRestart,
}

struct Tree;

impl Session {
    /// What `rest_for_one` does before the arbiter starts again: everything after it is stopped and gone.
    fn restart_arbiter(&mut self) {
        self.running.clear();
        self.answers.clear();
        self.known = [Known::Nothing; CALLS.len()];
        self.arbiter_up = true;
        // Two in a row say what one says; this keeps the mailbox, and with it the model, finite.
        if self.mailbox.last() != Some(&Mail::NewEpoch) {
            self.mailbox.push(Mail::NewEpoch);
        }
    }

    /// The ports of these calls lead nowhere from now on.
    fn stop_listening(&mut self, to: impl Fn(usize) -> bool) {
        self.answers.retain(|call| !to(*call));
        self.ports.retain(|call| !to(*call));
        for mail in &mut self.mailbox {
            if let Mail::Acquire { call, heard } = mail {
                *heard &= !to(*call);
            }
        }
    }

    fn deliver(&mut self) {
        let Some(table) = &mut self.locks else { return };
        let mail = self.mailbox.remove(0);
        let (event, mut arriving) = match mail {
            Mail::Acquire { call, heard } => {
                let (owner, set) = CALLS[call];
                (acquire(call as u128, owner, set, 60_000), heard.then_some(call))
            }
            Mail::Release { call } => (release(call as u128), None),
            Mail::NewEpoch => (LockEvent::NewEpoch, None),
        };
        for action in table.step(event, 0) {
            let (number, from, granted) = match action {
                Action::Grant { invocation, from, .. } => (invocation.bits() as usize, from, true),
                Action::Refuse { invocation, from, why } => {
                    assert!(matches!(why, LockRefused::Void | LockRefused::Duplicate), "{why}");
                    (invocation.bits() as usize, from, false)
                }
                Action::Released { .. } => continue,
            };
            let port = match from {
                Origin::Door => arriving.take(),
                Origin::Queue => {
                    let at = self.ports.iter().position(|call| *call == number);
                    at.map(|at| self.ports.remove(at))
                }
            };
            if port.is_some() && granted {
                self.answers.push(number);
            }
        }
        self.ports.extend(arriving);
    }
}

impl Model for Tree {
    type State = Session;
    type Action = Move;

    fn init_states(&self) -> Vec<Session> {
        vec![Session {
            locks: Some(LockManager::new()),
            mailbox: Vec::new(),
            answers: Vec::new(),
            arbiter_up: true,
            known: [Known::Nothing; CALLS.len()],
            ports: Vec::new(),
            running: Vec::new(),
        }]
    }

    fn actions(&self, session: &Session, moves: &mut Vec<Move>) {
        let room = session.mailbox.len() < MAILBOX;
        if session.arbiter_up {
            for number in 0..CALLS.len() {
                match session.known[number] {
                    Known::Nothing if room => moves.push(Move::Ask(number)),
                    Known::Asked if room => moves.push(Move::GiveUp(number)),
                    Known::Running if room => moves.push(Move::Finish(number)),
                    _ => {}
                }
            }
            if !session.answers.is_empty() {
                moves.push(Move::Hear);
            }
            moves.push(Move::ArbiterCrashes);
        } else if session.locks.is_some() {
            moves.push(Move::ArbiterRestarts);
        }
        if session.locks.is_some() {
            if !session.mailbox.is_empty() {
                moves.push(Move::Deliver);
            }
            moves.push(Move::LocksCrash);
        } else {
            moves.push(Move::LocksRestart);
        }
    }

    fn next_state(&self, last: &Session, step: Move) -> Option<Session> {
        let mut next = last.clone();
        match step {
            Move::Ask(call) => {
                next.mailbox.push(Mail::Acquire { call, heard: true });
                next.known[call] = Known::Asked;
            }
            // The turn is cancelled while its call waits for locks, or while their grant is on its way.
            Move::GiveUp(call) => {
                next.stop_listening(|other| other == call);
                next.mailbox.push(Mail::Release { call });
                next.known[call] = Known::Nothing;
            }
            Move::Finish(call) => {
                next.running.retain(|running| *running != call);
                next.mailbox.push(Mail::Release { call });
                next.known[call] = Known::Nothing;
            }
            Move::Deliver => next.deliver(),
            Move::Hear => {
                let call = next.answers.remove(0);
                next.known[call] = Known::Running;
                next.running.push(call);
            }
            // What runs goes on until the supervisor has stopped it.
            Move::ArbiterCrashes => {
                next.arbiter_up = false;
                next.stop_listening(|_| true);
            }
            Move::ArbiterRestarts => next.restart_arbiter(),
            Move::LocksCrash => {
                next.locks = None;
                next.ports.clear();
            }
            // The mailbox outlives the incarnation, so the new one still reads what the old arbiter sent.
            Move::LocksRestart => {
                next.locks = Some(LockManager::new());
                next.stop_listening(|_| true);
                next.restart_arbiter();
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what runs at once may run at once", |_, session: &Session| {
                session.running.iter().enumerate().all(|(at, later)| {
                    session.running[..at].iter().all(|earlier| may_run_together(*earlier, *later))
                })
            }),
            Property::always("when all is quiet, exactly what runs is held", |_, session: &Session| {
                let quiet = session.mailbox.is_empty() && session.answers.is_empty() && session.arbiter_up;
                match &session.locks {
                    Some(table) if quiet => {
                        let mut held: Vec<usize> =
                            table.table(0).held.iter().map(|held| held.invocation.bits() as usize).collect();
                        let mut running = session.running.clone();
                        held.sort_unstable();
                        running.sort_unstable();
                        held == running
                    }
                    _ => true,
                }
            }),
            Property::always("when all is quiet, exactly those asked for wait", |_, session: &Session| {
                let quiet = session.mailbox.is_empty() && session.answers.is_empty() && session.arbiter_up;
                match &session.locks {
                    Some(table) if quiet => (0..CALLS.len()).all(|number| {
                        let waits = table
                            .table(0)
                            .waiting
                            .iter()
                            .any(|waiter| waiter.invocation == call(number as u128));
                        waits == (session.known[number] == Known::Asked)
                    }),
                    _ => true,
                }
            }),
            Property::sometimes("a dirty read runs beside a core job's command", |_, session: &Session| {
                session.running == [1, 0]
            }),
            Property::sometimes(
                "a restarted arbiter finds its old request still in the mailbox",
                |_, session: &Session| {
                    matches!(
                        session.mailbox[..],
                        [Mail::Acquire { .. }, Mail::NewEpoch, Mail::Acquire { .. }]
                    ) && session.arbiter_up
                },
            ),
            Property::sometimes("the arbiter is down while calls still run", |_, session: &Session| {
                !session.arbiter_up && !session.running.is_empty()
            }),
        ]
    }
}

/// The rule itself, written out: no shared code with the table but [`excludes`].
fn may_run_together(earlier: usize, later: usize) -> bool {
    let ((first, first_set), (second, second_set)) = (CALLS[earlier], CALLS[later]);
    let dirty = |lock: &LockSpec, other: &LockSpec| {
        lane(second) == Lane::Edge
            && lane(first) != Lane::Edge
            && lock.mode == LockMode::S
            && matches!(lock.resource, ResourceKey::File(_))
            && other.resource == ResourceKey::Workspace
    };
    locks(second_set)
        .iter()
        .all(|lock| locks(first_set).iter().all(|other| dirty(lock, other) || !excludes(lock, other)))
}

#[test]
fn whatever_crashes_what_runs_keeps_to_the_rules_and_no_lock_is_left_behind() {
    let checker = Tree.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}
