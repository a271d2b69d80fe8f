//! An exhaustive check of the lock table: five calls that ask for any of the sets below, in every order, give up, run
//! out of time, release, and lose everything to a restarted arbiter at any moment. In every state that can be reached,
//! and on every step between them, the numbered invariants hold.
#![allow(clippy::unwrap_used)] // In helpers of tests, too, a failed unwrap is a failed test.

mod common;

use choir_locks::invariants::{Step, broken_by, check_invariants};
use choir_locks::{Action, LockEvent, LockManager, MAX_WAIT_MS};
use choir_messages::invariant::Broken;
use choir_messages::tool::LockMode;
use common::{acquire, call, release};
use stateright::{Checker, Model, Property};

const READ: &[&str] = &["file:d/x:S"];
const SEARCH: &[&str] = &["file:d:S"];
const WRITE: &[&str] = &["file:d/x:X"];
const COMMAND: &[&str] = &["workspace:X"];
const SPEAK: &[&str] = &["choirtmp:X", "file:d/y:S"];

/// A call and the sets it may ask for.
struct Call {
    owner: &'static str,
    menu: &'static [&'static [&'static str]],
}

struct Locks {
    calls: Vec<Call>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    table: LockManager,
    /// The first promise broken on the way here.
    broken: Option<&'static str>,
    /// What the last step showed, for the `sometimes` properties.
    seen: Option<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Seen {
    DirtyReadPastWriter,
    ReadHeldBackByWriter,
    WaiterGranted,
    Expired,
    VoidedWhileHeld,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    Ask {
        call: usize,
        set: usize,
    },
    Release {
        call: usize,
    },
    /// Time passes until the waits of the calls up to this one are over.
    Expire {
        call: usize,
    },
    /// The arbiter crashes and its next incarnation begins.
    CrashAndRestart,
}

impl Locks {
    fn event(&self, step: Move) -> (LockEvent, u64) {
        match step {
            Move::Ask { call, set } => {
                let Call { owner, menu } = &self.calls[call];
                // Everything is asked at time 0; call n waits until n + 1.
                (acquire(call as u128, owner, menu[set], call as u64 + 1), 0)
            }
            Move::Release { call } => (release(call as u128), 0),
            Move::Expire { call } => (LockEvent::Tick, call as u64 + 1),
            Move::CrashAndRestart => (LockEvent::NewEpoch, 0),
        }
    }
}

fn seen(event: &LockEvent, before: &LockManager, actions: &[Action], after: &LockManager) -> Option<Seen> {
    let writers_wait = before.table(0).waiting.iter().any(|waiter| {
        waiter.locks.iter().any(|lock| lock.mode == LockMode::X && lock.resource.to_string() == "workspace")
    });
    match event {
        LockEvent::Acquire(request) if writers_wait => {
            let file_reads = request
                .locks
                .iter()
                .all(|lock| lock.mode == LockMode::S && lock.resource.to_string().starts_with("file:"));
            match actions {
                [Action::Grant { .. }] if file_reads => Some(Seen::DirtyReadPastWriter),
                [] if file_reads
                    && after
                        .table(0)
                        .held
                        .iter()
                        .all(|held| held.locks.iter().all(|lock| lock.mode == LockMode::S)) =>
                {
                    Some(Seen::ReadHeldBackByWriter)
                }
                _ => None,
            }
        }
        LockEvent::Release { .. } if !common::granted(actions).is_empty() => Some(Seen::WaiterGranted),
        LockEvent::Tick if !actions.is_empty() => Some(Seen::Expired),
        LockEvent::NewEpoch if before.len().0 > 0 && before.len().1 > 0 => Some(Seen::VoidedWhileHeld),
        _ => None,
    }
}

impl Model for Locks {
    type State = State;
    type Action = Move;

    fn init_states(&self) -> Vec<State> {
        vec![State { table: LockManager::new(), broken: None, seen: None }]
    }

    fn actions(&self, state: &State, moves: &mut Vec<Move>) {
        let table = state.table.table(0);
        for (number, kind) in self.calls.iter().enumerate() {
            let known = |held: &choir_messages::mail::HeldLock| held.invocation == call(number as u128);
            let waits = table.waiting.iter().any(known);
            if waits {
                moves.push(Move::Expire { call: number });
            }
            if waits || table.held.iter().any(known) {
                moves.push(Move::Release { call: number });
                if number == 0 {
                    // A repeat must be refused; trying it with one call is enough.
                    moves.push(Move::Ask { call: number, set: 0 });
                }
            } else {
                moves.extend((0..kind.menu.len()).map(|set| Move::Ask { call: number, set }));
            }
        }
        moves.push(Move::CrashAndRestart);
    }

    fn next_state(&self, last: &State, step: Move) -> Option<State> {
        let (event, now_ms) = self.event(step);
        let mut table = last.table.clone();
        let actions = table.step_unchecked(event.clone(), now_ms);
        let seen = seen(&event, &last.table, &actions, &table);
        let broken =
            broken_by(&Step { before: &last.table, event: &event, now_ms, actions: &actions, after: &table });
        let broken = last.broken.or(broken.first().map(|Broken { id, .. }| *id));
        Some(State { table, broken, seen })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("every table keeps the invariants", |_, state: &State| {
                check_invariants(&state.table).is_empty()
            }),
            Property::always("every step keeps the invariants", |_, state: &State| state.broken.is_none()),
            Property::sometimes("edge reads past a waiting writer", |_, state: &State| {
                state.seen == Some(Seen::DirtyReadPastWriter)
            }),
            Property::sometimes("a reader is held back by a waiting writer only", |_, state: &State| {
                state.seen == Some(Seen::ReadHeldBackByWriter)
            }),
            Property::sometimes("a release grants a waiter", |_, state: &State| {
                state.seen == Some(Seen::WaiterGranted)
            }),
            Property::sometimes("a wait runs out", |_, state: &State| state.seen == Some(Seen::Expired)),
            Property::sometimes("a new epoch finds holders and waiters", |_, state: &State| {
                state.seen == Some(Seen::VoidedWhileHeld)
            }),
            Property::sometimes("three wait at once", |_, state: &State| state.table.len().1 == 3),
        ]
    }
}

#[test]
fn every_reachable_table_and_every_step_keeps_the_invariants() {
    let calls = vec![
        Call { owner: "edge", menu: &[READ, COMMAND] },
        Call { owner: "edge", menu: &[SEARCH, SPEAK] },
        Call { owner: "core:a", menu: &[COMMAND, READ, SPEAK] },
        Call { owner: "core:b", menu: &[COMMAND, WRITE] },
        Call { owner: "core:b", menu: &[WRITE] },
    ];
    assert!(calls.len() as u64 + 1 < MAX_WAIT_MS);
    let checker = Locks { calls }.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    checker.assert_properties();
}
