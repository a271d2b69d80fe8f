//! The numbered promises of a trace, as predicates. Those over one change are checked after every event in every build
//! (they compare two small structs); those over the whole trace are for tests and the model checker. They are written
//! against what is remembered, not with the guards, so that an error in a guard shows.

use choir_messages::invariant::Broken;

use super::phase::Phase;
use super::policy::Policy;
use super::state::{ExecutionState, IntentState, Standing};
use super::step::{Judgement, Step, VerificationStatus};
use super::{PolicyProfile, Trace};
use crate::event::{EventType, Role};

/// One change of a trace.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    /// The counts before.
    pub before: &'a Standing,
    /// The event, or `None` for an abort or a failure.
    pub step: Option<&'a Step>,
    /// The counts after.
    pub after: &'a Standing,
    /// The policy.
    pub policy: &'a Policy,
}

/// What is true of every change.
pub struct ChangeInvariant {
    /// Its number, `C...`.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: fn(&Change<'_>) -> bool,
}

/// What is true of every trace.
pub struct TraceInvariant {
    /// Its number, `T...`.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
    /// Whether it holds.
    pub holds: fn(&Trace) -> bool,
}

/// Every invariant of one change.
pub const CHANGE: &[ChangeInvariant] = &[
    ChangeInvariant {
        id: "C1",
        says: "the state stays or makes one of the eight transitions",
        holds: |change| {
            let (from, to) = (change.before.phase, change.after.phase);
            from == to || from.to(to).is_some()
        },
    },
    ChangeInvariant {
        id: "C2",
        says: "nothing follows completed, failed or aborted",
        holds: |change| !change.before.phase.is_terminal(),
    },
    ChangeInvariant {
        id: "C3",
        says: "each event counts once, and only the designated role emits it",
        holds: |change| match change.step {
            Some(step) => {
                change.after.events == change.before.events + 1 && step.role == step.act.event_type().role()
            }
            None => change.after.events == change.before.events,
        },
    },
    ChangeInvariant {
        id: "C4",
        says: "the first event, and no other, opens the session",
        holds: |change| {
            is(change, EventType::SessionInitialized) == (change.step.is_some() && change.before.events == 0)
        },
    },
    ChangeInvariant {
        id: "C5",
        says: "time never goes back",
        holds: |change| change.after.last_ms >= change.before.last_ms,
    },
    ChangeInvariant {
        id: "C6",
        says: "intents and starts happen only while the latest review is an approval",
        holds: |change| {
            let acts = is(change, EventType::ToolIntentSigned) || is(change, EventType::ToolExecutionStarted);
            !acts || change.before.latest.is_some_and(Judgement::approves)
        },
    },
    ChangeInvariant {
        id: "C7",
        says: "there are never more starts than intents, nor more ends than starts",
        holds: |change| {
            let after = change.after;
            after.started + after.blocked <= after.intents && after.completed + after.failed <= after.started
        },
    },
    ChangeInvariant {
        id: "C8",
        says: "a claim comes after a finished execution, and a challenge after a claim",
        holds: |change| {
            let after = change.after;
            (after.claims == 0 || after.completed + after.failed > 0)
                && (after.challenges == 0 || after.claims > 0)
                && after.open_challenges <= after.challenges
        },
    },
    ChangeInvariant {
        id: "C9",
        says: "the final statement is one, over a claim, with nothing running",
        holds: |change| {
            let after = change.after;
            after.finals <= 1 && (after.finals == 0 || (after.claims > 0 && after.running() == 0))
        },
    },
    ChangeInvariant {
        id: "C10",
        says: "after the final statement only the auditor speaks",
        holds: |change| {
            change.before.finals == 0 || change.step.is_none_or(|step| step.role == Role::Auditor)
        },
    },
    ChangeInvariant {
        id: "C11",
        says: "completed means verified with pass or pass-with-warnings after a final statement",
        holds: |change| {
            let after = change.after;
            let passed = matches!(
                after.verified,
                Some(VerificationStatus::Pass | VerificationStatus::PassWithWarnings)
            );
            (after.phase == Phase::Completed) == (passed && after.finals == 1 && after.verifications > 0)
        },
    },
    ChangeInvariant {
        id: "C12",
        says: "the policy's limits are kept",
        holds: |change| {
            let (after, policy) = (change.after, change.policy);
            let within = |limit: Option<u32>, used| limit.is_none_or(|limit| used <= u64::from(limit));
            within(policy.tool_calls, after.intents)
                && within(policy.proposals, after.proposals)
                && within(policy.challenges, after.challenges)
        },
    },
    ChangeInvariant {
        id: "C13",
        says: "under the strict profile no final statement passes over an open challenge",
        holds: |change| {
            change.policy.profile != PolicyProfile::Strict
                || change.after.finals == 0
                || change.after.open_challenges == 0
        },
    },
];

/// Every invariant of a whole trace.
pub const TRACE: &[TraceInvariant] = &[
    TraceInvariant {
        id: "T1",
        says: "the counts are those of what is remembered",
        holds: |trace| {
            let standing = &trace.standing;
            let with = |state| trace.intents.values().filter(|intent| intent.state == state).count() as u64;
            let ended = |state| trace.executions.values().filter(|run| run.state == state).count() as u64;
            let open: u64 = trace.claims.values().map(|claim| u64::from(claim.open_challenges)).sum();
            standing.events == trace.seen.len() as u64
                && standing.proposals == trace.proposals.len() as u64
                && standing.intents == trace.intents.len() as u64
                && standing.blocked == with(IntentState::Blocked)
                && standing.started == with(IntentState::Used)
                && standing.started == trace.executions.len() as u64
                && standing.completed == ended(ExecutionState::Completed)
                && standing.failed == ended(ExecutionState::Failed)
                && standing.open_challenges == open
        },
    },
    TraceInvariant {
        id: "T2",
        says: "no intent serves two executions, and no blocked intent serves any",
        holds: |trace| {
            let mut used: Vec<_> = trace.executions.values().map(|run| run.intent).collect();
            used.sort_unstable();
            used.windows(2).all(|pair| pair[0] != pair[1])
                && used
                    .iter()
                    .all(|id| trace.intents.get(id).is_some_and(|intent| intent.state == IntentState::Used))
        },
    },
    TraceInvariant {
        id: "T3",
        says: "an intent that needed the critic's own approval ran with it only",
        holds: |trace| {
            trace
                .intents
                .values()
                .filter(|intent| intent.state == IntentState::Used)
                .all(|intent| intent.approved || !trace.policy.reviews(intent.class))
        },
    },
    TraceInvariant {
        id: "T4",
        says: "no intent is of a class that the policy refuses",
        holds: |trace| trace.intents.values().all(|intent| !trace.policy.refuses(intent.class)),
    },
    TraceInvariant {
        id: "T5",
        says: "every execution that ended carried an artefact",
        holds: |trace| {
            trace.executions.values().all(|run| run.state == ExecutionState::Running || run.has_artefact)
        },
    },
    TraceInvariant {
        id: "T6",
        says: "what waits for a review or a start is exactly what may still have one",
        holds: |trace| {
            let open =
                |intent: &super::Intent| matches!(intent.state, IntentState::Open | IntentState::Approved);
            let waiting = trace.intents.iter().filter(|(_, intent)| open(intent)).map(|(id, _)| *id);
            let mut waiting: Vec<_> = waiting.collect();
            waiting.sort_unstable();
            let mut noted: Vec<_> = trace.waiting.values().copied().collect();
            noted.sort_unstable();
            waiting == noted
                && trace.unreviewed.values().all(|id| {
                    trace.proposals.get(id).is_some_and(|plan| plan.judgement.is_none() && !plan.revised)
                })
        },
    },
    TraceInvariant {
        id: "T7",
        says: "the state is reached: planning has a session, reviewing a proposal, executing an approval, claiming an \
               execution's end, auditing a final statement",
        holds: |trace| {
            let standing = &trace.standing;
            match standing.phase {
                Phase::Initialized => standing.events == 0,
                Phase::Planning => standing.sessions == 1 && standing.proposals == 0,
                Phase::Reviewing => standing.proposals > 0 && standing.intents == 0,
                Phase::Executing => standing.reviews > 0 && standing.completed == 0 && standing.claims == 0,
                Phase::Claiming => standing.completed + standing.failed > 0 && standing.finals == 0,
                Phase::Auditing => standing.finals == 1 && standing.verified.is_none(),
                Phase::Completed | Phase::Failed | Phase::Aborted => true,
            }
        },
    },
];

fn is(change: &Change<'_>, event: EventType) -> bool {
    change.step.is_some_and(|step| step.act.event_type() == event)
}

/// The first invariant that the change breaks.
#[must_use]
pub fn broken_by(change: &Change<'_>) -> Option<Broken> {
    let broken = CHANGE.iter().find(|invariant| !(invariant.holds)(change));
    broken.map(|invariant| Broken { id: invariant.id, says: invariant.says })
}

/// The invariants of the whole trace that do not hold. Takes time in proportion to the trace.
#[must_use]
pub fn check_invariants(trace: &Trace) -> Vec<Broken> {
    let broken = TRACE.iter().filter(|invariant| !(invariant.holds)(trace));
    broken.map(|invariant| Broken { id: invariant.id, says: invariant.says }).collect()
}
