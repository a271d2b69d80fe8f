//! Every state, every type of event, every role.

use crate::kit::{Say, Told};
use choir_ledger::event::{EventType, Role};
use choir_ledger::trace::{Phase, Policy, Refused};
use std::collections::BTreeSet;

const PREFIX: &[Say] =
    &[Say::Session, Say::Propose, Say::Judge(true), Say::Intent("standard"), Say::Start(0), Say::Complete(0)];

/// One row: how a trace came to be where it is, its state, and the types that may follow.
struct Row {
    name: &'static str,
    said: Vec<Say>,
    phase: Phase,
    may: &'static [EventType],
}

fn rows() -> Vec<Row> {
    use EventType as E;
    let row = |name, said: &[Say], phase, may| Row { name, said: said.to_vec(), phase, may };
    let more = |said: &[Say]| [PREFIX, said].concat();
    vec![
        row("nothing", &[], Phase::Initialized, &[E::SessionInitialized]),
        row("session", &PREFIX[..1], Phase::Planning, &[E::ProposalCreated, E::ArtifactRecorded]),
        row(
            "proposed",
            &PREFIX[..2],
            Phase::Reviewing,
            &[E::ProposalCreated, E::ProposalReviewed, E::ArtifactRecorded],
        ),
        row(
            "rejected",
            &[Say::Session, Say::Propose, Say::Judge(false)],
            Phase::Reviewing,
            &[E::ProposalCreated, E::ProposalReviewed, E::ArtifactRecorded],
        ),
        row(
            "approved",
            &PREFIX[..3],
            Phase::Executing,
            &[E::ProposalCreated, E::ProposalReviewed, E::ToolIntentSigned, E::ArtifactRecorded],
        ),
        row(
            "intent",
            &PREFIX[..4],
            Phase::Executing,
            &[
                E::ProposalCreated,
                E::ProposalReviewed,
                E::ToolIntentSigned,
                E::ToolExecutionStarted,
                E::ArtifactRecorded,
            ],
        ),
        row(
            "blocked",
            &[&PREFIX[..4], &[Say::Block(0)]].concat(),
            Phase::Executing,
            &[E::ProposalCreated, E::ProposalReviewed, E::ArtifactRecorded],
        ),
        row(
            "running",
            &PREFIX[..5],
            Phase::Executing,
            &[
                E::ProposalCreated,
                E::ProposalReviewed,
                E::ToolIntentSigned,
                E::ToolExecutionCompleted,
                E::ToolExecutionFailed,
                E::ArtifactRecorded,
            ],
        ),
        row(
            "completed execution",
            PREFIX,
            Phase::Claiming,
            &[
                E::ProposalCreated,
                E::ProposalReviewed,
                E::ToolIntentSigned,
                E::ArtifactRecorded,
                E::ClaimIssued,
            ],
        ),
        row(
            "claimed",
            &more(&[Say::Claim(0)]),
            Phase::Claiming,
            &[
                E::ProposalCreated,
                E::ProposalReviewed,
                E::ToolIntentSigned,
                E::ArtifactRecorded,
                E::ClaimIssued,
                E::ClaimChallenged,
                E::FinalStatementSigned,
            ],
        ),
        row("final", &more(&[Say::Claim(0), Say::Final(0)]), Phase::Auditing, &[E::VerificationRunStarted]),
        row(
            "verifying",
            &more(&[Say::Claim(0), Say::Final(0), Say::Verify]),
            Phase::Auditing,
            &[E::VerificationRunStarted, E::VerificationRunCompleted],
        ),
        row(
            "verified",
            &more(&[Say::Claim(0), Say::Final(0), Say::Verify, Say::Verdict("pass-with-warnings")]),
            Phase::Completed,
            &[],
        ),
        row(
            "not verified",
            &more(&[Say::Claim(0), Say::Final(0), Say::Verify, Say::Verdict("fail")]),
            Phase::Failed,
            &[],
        ),
    ]
}

/// The best case of each type: what would be admitted if anything of that type is.
const BEST: [Say; 13] = [
    Say::Session,
    Say::Propose,
    Say::Judge(true),
    Say::Intent("standard"),
    Say::Start(0),
    Say::Complete(0),
    Say::Fail(0),
    Say::Record,
    Say::Claim(0),
    Say::Challenge(0),
    Say::Final(0),
    Say::Verify,
    Say::Verdict("pass"),
];

#[test]
fn every_state_admits_exactly_its_types_from_exactly_their_roles() {
    assert_eq!(BEST.map(Say::event_type).iter().collect::<BTreeSet<_>>().len(), EventType::ALL.len());
    let mut phases = BTreeSet::new();
    for row in rows() {
        let told = Told::after(Policy::default(), &row.said);
        assert_eq!(told.trace.phase(), row.phase, "{}", row.name);
        phases.insert(row.phase);
        for say in BEST {
            for role in Role::ALL {
                let verdict = told.trace.admit(&told.names.step(say, *role, told.now));
                let event = say.event_type();
                let may = row.may.contains(&event) && *role == event.role();
                assert_eq!(verdict.is_ok(), may, "{}: {role} {event}: {verdict:?}", row.name);
                if row.phase.is_terminal() {
                    assert_eq!(verdict, Err(Refused::Ended { phase: row.phase }));
                } else if *role != event.role() {
                    assert!(matches!(verdict, Err(Refused::Role { .. })), "{}: {verdict:?}", row.name);
                }
            }
        }
    }
    assert_eq!(phases.len(), 8, "every state but aborted, which the next test reaches");
}

#[test]
fn any_state_but_an_end_can_be_aborted_or_fail_and_nothing_follows() {
    for row in rows() {
        for end in [Phase::Aborted, Phase::Failed] {
            let mut told = Told::after(Policy::default(), &row.said);
            let ended = if end == Phase::Aborted { told.trace.abort() } else { told.trace.fail() };
            assert_eq!(ended.is_ok(), !row.phase.is_terminal(), "{}", row.name);
            let phase = if row.phase.is_terminal() { row.phase } else { end };
            assert_eq!(told.trace.phase(), phase);
            for say in BEST {
                assert_eq!(told.say(say), Err(Refused::Ended { phase }), "{}", row.name);
            }
        }
    }
}

#[test]
fn there_are_exactly_eight_transitions() {
    let pairs = Phase::ALL.iter().flat_map(|from| Phase::ALL.iter().map(move |to| (*from, *to)));
    let transitions: Vec<_> = pairs.filter_map(|(from, to)| from.to(to)).collect();
    let distinct: BTreeSet<_> = transitions.iter().map(|transition| *transition as u8).collect();
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), (1..=8).collect::<Vec<_>>());
    // Six of one state each, and two that leave any of the six states that are no end.
    assert_eq!(transitions.len(), 6 + 2 * 6);
}
