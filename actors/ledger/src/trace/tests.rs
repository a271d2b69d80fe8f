//! What only a fault in the rules themselves could bring about.

use super::*;
use crate::event::{EventType, Role};
use crate::payload;

fn step(number: u128, event: EventType, payload: &crate::json::Owned) -> Step {
    let act = Act::read(event, payload).unwrap();
    Step { event_id: EventId::from_bits(number), at_ms: 1, role: event.role(), carried: vec![], act }
}

#[test]
fn a_broken_invariant_fails_the_trace_for_good() {
    let mut trace = Trace::new(Policy::default());
    trace.apply(&step(1, EventType::SessionInitialized, &payload::session("t", "o", &[]))).unwrap();
    // As if a guard had let an execution end that never began.
    trace.standing.completed = 1;
    let proposal = step(2, EventType::ProposalCreated, &payload::proposal("o", &[], &[], &[]));
    let refused = trace.apply(&proposal).unwrap_err();
    assert!(matches!(refused, Refused::Broken { id: "C7", .. }), "{refused}");
    assert_eq!((trace.phase(), refused.guard()), (Phase::Failed, Guard::Integrity));
    assert_eq!(trace.admit(&proposal), Err(refused));
    assert!(!invariants::check_invariants(&trace).is_empty());
}

#[test]
fn every_invariant_has_a_number_of_its_own_and_each_catches_its_fault() {
    let ids: Vec<_> = invariants::CHANGE.iter().map(|invariant| invariant.id).collect();
    assert_eq!(ids, (1..=ids.len()).map(|n| format!("C{n}")).collect::<Vec<_>>());
    let ids: Vec<_> = invariants::TRACE.iter().map(|invariant| invariant.id).collect();
    assert_eq!(ids, (1..=ids.len()).map(|n| format!("T{n}")).collect::<Vec<_>>());

    let begun = Standing { phase: Phase::Executing, events: 5, sessions: 1, last_ms: 5, ..Standing::new() };
    let next = Standing { events: 6, ..begun };
    let recorded = step(9, EventType::ArtifactRecorded, &payload::recorded(&Digest::ZERO, "x"));
    let intent = payload::intent("t", &Digest::ZERO, "low", "w");
    let intent = step(9, EventType::ToolIntentSigned, &intent);
    let as_critic = Step { role: Role::Critic, ..recorded.clone() };
    let session = step(9, EventType::SessionInitialized, &payload::session("t", "o", &[]));
    let strict = Policy { profile: PolicyProfile::Strict, ..Policy::default() };
    let limited = Policy { tool_calls: Some(1), ..Policy::default() };
    let (ended, passed) = (Standing { phase: Phase::Failed, ..begun }, Some(VerificationStatus::Pass));
    let claimed = Standing { claims: 1, started: 1, intents: 1, completed: 1, ..next };
    let faults: [(&str, Standing, &Step, Standing, &Policy); 13] = [
        ("C1", begun, &recorded, Standing { phase: Phase::Planning, ..next }, &strict),
        ("C2", ended, &recorded, Standing { events: 6, ..ended }, &strict),
        ("C3", begun, &as_critic, next, &strict),
        ("C4", begun, &session, next, &strict),
        ("C5", begun, &recorded, Standing { last_ms: 4, ..next }, &strict),
        ("C6", begun, &intent, Standing { intents: 1, ..next }, &strict),
        ("C7", begun, &recorded, Standing { started: 1, ..next }, &strict),
        ("C8", begun, &recorded, Standing { claims: 1, ..next }, &strict),
        ("C9", begun, &recorded, Standing { finals: 2, ..claimed }, &strict),
        (
            "C10",
            Standing { finals: 1, ..claimed },
            &recorded,
            Standing { finals: 1, events: 7, ..claimed },
            &strict,
        ),
        (
            "C11",
            begun,
            &recorded,
            Standing { verified: passed, verifications: 1, finals: 1, ..claimed },
            &strict,
        ),
        ("C12", begun, &recorded, Standing { intents: 2, ..next }, &limited),
        (
            "C13",
            begun,
            &recorded,
            Standing { challenges: 1, open_challenges: 1, finals: 1, ..claimed },
            &strict,
        ),
    ];
    for (id, before, step, after, policy) in faults {
        let change = invariants::Change { before: &before, step: Some(step), after: &after, policy };
        assert_eq!(invariants::broken_by(&change).map(|broken| broken.id), Some(id));
    }
}
