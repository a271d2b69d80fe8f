//! The numbered promises of the lock table, as predicates. The same ones are checked after every step in debug builds
//! and tests, by the actor in every build whenever a deadline passes, and by the model checker.
//!
//! They are written against the table's plain content and do not use its shortcuts (the noted blockers), so that an
//! error in a shortcut shows.

use choir_messages::id::InvocationId;
use choir_messages::invariant::Broken;
use choir_messages::tool::{Lane, LockMode, LockSpec, ResourceKey};

use crate::bounds::{MAX_LOCKS_PER_SET, MAX_REQUESTS, MAX_WAITING};
use crate::lockset::{LockSet, excludes, is_file_read};
use crate::manager::{Action, Held, LockEvent, LockManager, Origin, Waiter};

/// What is true of every table.
pub struct StateInvariant {
    /// Its number, `L...`.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: fn(&LockManager) -> bool,
}

/// What is true of every step from one table to the next.
pub struct StepInvariant {
    /// Its number, `T...`.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: fn(&Step<'_>) -> bool,
}

/// One step of the lock manager.
#[derive(Debug)]
pub struct Step<'a> {
    /// The table before.
    pub before: &'a LockManager,
    /// What happened.
    pub event: &'a LockEvent,
    /// When.
    pub now_ms: u64,
    /// What was decided.
    pub actions: &'a [Action],
    /// The table after.
    pub after: &'a LockManager,
}

/// Every invariant of the table.
pub const STATE: &[StateInvariant] = &[
    StateInvariant {
        id: "L1",
        says: "no two held sets exclude each other, but for edge's file reads granted while a core job held workspace:X",
        holds: mutual_exclusion,
    },
    StateInvariant {
        id: "L2",
        says: "every set is canonical and not empty",
        holds: |table| {
            sets(table).all(|set| !set.locks().is_empty() && LockSet::canonical(set.locks().to_vec()) == *set)
        },
    },
    StateInvariant {
        id: "L3",
        says: "a call is in the table at most once: who waits holds nothing",
        holds: |table| {
            let mut calls = calls(table);
            calls.sort_unstable();
            calls.windows(2).all(|pair| pair[0] != pair[1])
        },
    },
    StateInvariant {
        id: "L4",
        says: "nobody waits who could be granted: behind no holder and no earlier waiter that excludes it",
        holds: |table| (0..table.waiting.len()).all(|place| must_wait(table, place)),
    },
    StateInvariant {
        id: "L5",
        says: "when nothing is held, nobody waits: there is no deadlock",
        holds: |table| !table.held.is_empty() || table.waiting.is_empty(),
    },
    StateInvariant {
        id: "L6",
        says: "the blocker noted for a waiter is in its way, as a holder or further ahead in the queue",
        holds: |table| {
            (0..table.waiting.len())
                .all(|place| obstacles(table, place).contains(&table.waiting[place].blocker))
        },
    },
    StateInvariant {
        id: "L7",
        says: "the bounds on waiters, requests and locks per set are kept",
        holds: |table| {
            table.waiting.len() <= MAX_WAITING
                && table.waiting.len() + table.held.len() <= MAX_REQUESTS
                && sets(table).all(|set| set.locks().len() <= MAX_LOCKS_PER_SET)
        },
    },
];

/// Every invariant of a step.
pub const STEP: &[StepInvariant] = &[
    StepInvariant {
        id: "T1",
        says: "nobody is granted a set that excludes one waiting ahead of it, but for dirty reads",
        holds: no_harmful_overtaking,
    },
    StepInvariant {
        id: "T2",
        says: "while an X waits, no S that would be in its way is granted to a later request, but for dirty reads",
        holds: writer_preference,
    },
    StepInvariant {
        id: "T3",
        says: "a grant is whole: the call then holds exactly its canonical set",
        holds: grants_are_whole,
    },
    StepInvariant {
        id: "T4",
        says: "every request is answered once, when it leaves the queue or at the door, or else waits",
        holds: answered_once,
    },
    StepInvariant {
        id: "T5",
        says: "a new epoch leaves nothing held and nobody waiting",
        holds: |step| {
            *step.event != LockEvent::NewEpoch || step.after.held.is_empty() && step.after.waiting.is_empty()
        },
    },
    StepInvariant {
        id: "T6",
        says: "the queue keeps its order, new requests join at its end",
        holds: order_kept,
    },
    StepInvariant {
        id: "T7",
        says: "a held set stays as it is until its call releases it or an epoch ends; only a release or an epoch ends it",
        holds: holds_end_by_release_only,
    },
    StepInvariant {
        id: "T8",
        says: "nobody waits past the deadline",
        holds: |step| step.after.waiting.iter().all(|waiter| waiter.deadline_ms > step.now_ms),
    },
];

/// The invariants of the table that do not hold; empty when all is well.
#[must_use]
pub fn check_invariants(table: &LockManager) -> Vec<Broken> {
    let broken = STATE.iter().filter(|invariant| !(invariant.holds)(table));
    broken.map(|invariant| Broken { id: invariant.id, says: invariant.says }).collect()
}

/// The invariants that a step breaks, of the table after it and of the step itself; empty when all is well.
#[must_use]
pub fn broken_by(step: &Step<'_>) -> Vec<Broken> {
    let mut broken = check_invariants(step.after);
    let steps = STEP.iter().filter(|invariant| !(invariant.holds)(step));
    broken.extend(steps.map(|invariant| Broken { id: invariant.id, says: invariant.says }));
    broken
}

fn sets(table: &LockManager) -> impl Iterator<Item = &LockSet> {
    table.held.iter().map(|held| &held.set).chain(table.waiting.iter().map(|waiter| &waiter.set))
}

fn calls(table: &LockManager) -> Vec<InvocationId> {
    let held = table.held.iter().map(|held| held.invocation);
    held.chain(table.waiting.iter().map(|waiter| waiter.invocation)).collect()
}

fn is_core_workspace_x(owner: &Lane, lock: &LockSpec) -> bool {
    *owner != Lane::Edge && lock.resource == ResourceKey::Workspace && lock.mode == LockMode::X
}

fn core_holds_workspace(table: &LockManager) -> bool {
    table.held.iter().any(|held| held.set.locks().iter().any(|lock| is_core_workspace_x(&held.owner, lock)))
}

/// The pairs of locks of two sets that exclude each other.
fn excluding<'a>(one: &'a LockSet, other: &'a LockSet) -> impl Iterator<Item = (&'a LockSpec, &'a LockSpec)> {
    one.locks()
        .iter()
        .flat_map(|mine| other.locks().iter().map(move |theirs| (mine, theirs)))
        .filter(|(mine, theirs)| excludes(mine, theirs))
}

fn mutual_exclusion(table: &LockManager) -> bool {
    // Held sets are in the order of their grants, so `earlier` is the one that was there when `later` came.
    table.held.iter().enumerate().all(|(at, later)| {
        table.held[..at].iter().all(|earlier| {
            excluding(&later.set, &earlier.set).all(|(mine, theirs)| {
                later.owner == Lane::Edge && is_file_read(mine) && is_core_workspace_x(&earlier.owner, theirs)
            })
        })
    })
}

/// Everybody in the way of the waiter at `place`, in this table.
fn obstacles(table: &LockManager, place: usize) -> Vec<InvocationId> {
    let waiter = &table.waiting[place];
    let dirty = waiter.owner == Lane::Edge && core_holds_workspace(table);
    let blocks = |set: &LockSet| excluding(&waiter.set, set).any(|(mine, _)| !(dirty && is_file_read(mine)));
    let held = table.held.iter().filter(|held| blocks(&held.set)).map(|held| held.invocation);
    let ahead =
        table.waiting[..place].iter().filter(|other| blocks(&other.set)).map(|other| other.invocation);
    held.chain(ahead).collect()
}

fn must_wait(table: &LockManager, place: usize) -> bool {
    !obstacles(table, place).is_empty()
}

/// The sets granted in a step that are still held after it; within one step nothing is released again.
fn granted<'a>(step: &'a Step<'_>) -> impl Iterator<Item = &'a Held> {
    let granted = |held: &&Held| {
        step.actions.iter().any(
            |action| matches!(action, Action::Grant { invocation, .. } if *invocation == held.invocation),
        )
    };
    step.after.held.iter().filter(granted)
}

/// Those who waited ahead of `call` before the step and still wait after it. A call that was not in the queue came
/// behind everybody.
fn still_ahead<'a>(step: &'a Step<'_>, call: InvocationId) -> impl Iterator<Item = &'a Waiter> {
    let ahead = step.before.waiting.iter().take_while(move |waiter| waiter.invocation != call);
    ahead.filter(|waiter| step.after.waiting.iter().any(|still| still.invocation == waiter.invocation))
}

fn no_harmful_overtaking(step: &Step<'_>) -> bool {
    let dirty = core_holds_workspace(step.after);
    granted(step).all(|held| {
        still_ahead(step, held.invocation).all(|waiter| {
            excluding(&held.set, &waiter.set)
                .all(|(mine, _)| dirty && held.owner == Lane::Edge && is_file_read(mine))
        })
    })
}

fn writer_preference(step: &Step<'_>) -> bool {
    let dirty = core_holds_workspace(step.after);
    granted(step).all(|held| {
        still_ahead(step, held.invocation).all(|waiter| {
            excluding(&held.set, &waiter.set)
                .filter(|(mine, theirs)| mine.mode == LockMode::S && theirs.mode == LockMode::X)
                .all(|(mine, _)| dirty && held.owner == Lane::Edge && is_file_read(mine))
        })
    })
}

fn grants_are_whole(step: &Step<'_>) -> bool {
    step.actions.iter().all(|action| {
        let Action::Grant { invocation, from, .. } = action else { return true };
        let asked = match (from, step.event) {
            (Origin::Door, LockEvent::Acquire(request)) => LockSet::canonical(request.locks.clone()),
            (Origin::Door, _) => return false,
            (Origin::Queue, _) => {
                match step.before.waiting.iter().find(|waiter| waiter.invocation == *invocation) {
                    Some(waiter) => waiter.set.clone(),
                    None => return false,
                }
            }
        };
        let held = step.after.held.iter().find(|held| held.invocation == *invocation);
        held.map_or(asked.locks().is_empty(), |held| held.set == asked)
    })
}

fn answered_once(step: &Step<'_>) -> bool {
    let verdicts = |call: InvocationId, at: Origin| {
        let about = step.actions.iter().filter(|action| match action {
            Action::Grant { invocation, from, .. } | Action::Refuse { invocation, from, .. } => {
                *invocation == call && *from == at
            }
            Action::Released { .. } => false,
        });
        about.count()
    };
    let waits_after =
        |call: InvocationId| step.after.waiting.iter().filter(|waiter| waiter.invocation == call).count();
    let from_queue = step
        .before
        .waiting
        .iter()
        .all(|waiter| verdicts(waiter.invocation, Origin::Queue) + waits_after(waiter.invocation) == 1);
    let at_door = match step.event {
        LockEvent::Acquire(request) => {
            let call = request.invocation;
            let waited_before = step.before.waiting.iter().any(|waiter| waiter.invocation == call);
            let joined = if waited_before { 0 } else { waits_after(call) };
            verdicts(call, Origin::Door) + joined == 1
        }
        _ => true,
    };
    let answers = step.actions.iter().filter(|action| !matches!(action, Action::Released { .. })).count();
    let left = step.before.waiting.iter().filter(|waiter| waits_after(waiter.invocation) == 0).count();
    let joined = (step.after.waiting.len() + left).saturating_sub(step.before.waiting.len());
    let asked = usize::from(matches!(step.event, LockEvent::Acquire(_)));
    from_queue && at_door && answers + joined == left + asked
}

fn order_kept(step: &Step<'_>) -> bool {
    let stayed: Vec<_> = step
        .before
        .waiting
        .iter()
        .filter(|waiter| step.after.waiting.iter().any(|still| still.invocation == waiter.invocation))
        .map(|waiter| waiter.invocation)
        .collect();
    let now: Vec<_> = step.after.waiting.iter().map(|waiter| waiter.invocation).collect();
    now.len() <= stayed.len() + 1 && now.starts_with(&stayed)
}

fn holds_end_by_release_only(step: &Step<'_>) -> bool {
    step.before.held.iter().all(|held| {
        let kept = step.after.held.iter().filter(|still| *still == held).count();
        let ended = match step.event {
            LockEvent::Release { invocation } => *invocation == held.invocation,
            LockEvent::NewEpoch => true,
            LockEvent::Acquire(_) | LockEvent::Tick => false,
        };
        kept == usize::from(!ended)
    })
}

#[cfg(test)]
mod tests;
