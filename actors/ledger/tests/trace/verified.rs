//! The rules against the strict verifier: what the one admits, the other passes.

use crate::kit::{Names, Say, Told, input, output};
use choir_ledger::event::{Actor, Descriptor, Role, UnsignedEvent};
use choir_ledger::id::TraceId;
use choir_ledger::identity::key_id;
use choir_ledger::layout;
use choir_ledger::meta::TraceStatus;
use choir_ledger::scale::{Recipe, test_key};
use choir_ledger::trace::{Phase, Policy};
use choir_ledger::verify::{Memory, Options, Report, Rule, Verdict, verify};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use proptest::prelude::*;

const T0: u64 = choir_ledger::scale::T0;

/// The bytes whose digests the kit's artefacts are.
const BLOBS: [&[u8]; 2] = [b"input", b"output 0"];

/// Signs what was said into a home in memory and verifies it strictly.
fn verified(said: &[Say]) -> Report {
    let trace = TraceId::from_parts(T0, 1);
    let (mut names, mut ledger, mut head, mut artifacts) = (Names::default(), String::new(), Digest::ZERO, 0);
    for (place, say) in (0u64..).zip(said) {
        let (payload, carried) = names.payload(*say);
        let (event_type, event_id) = (say.event_type(), names.next_id());
        let (role, at) = (event_type.role(), Timestamp::from_millis(T0 + place));
        let key = test_key(role);
        let blob = |hash: &Digest| BLOBS.iter().find(|blob| Digest::of(blob) == *hash).unwrap();
        let describe =
            |hash| Descriptor::of(blob(hash), "text/plain", "utf-8", trace, event_id, &at.to_string());
        let actor = Actor { agent_id: format!("{role}-agent"), role, key_id: key_id(&key.public()) };
        let claims = payload.get("claim_id").and_then(|id| id.as_str()?.parse().ok()).into_iter().collect();
        let event = UnsignedEvent {
            trace_id: trace,
            event_id,
            event_type,
            created_at: at,
            actor,
            payload: payload.clone(),
            claims,
            artifacts: carried.iter().map(describe).collect(),
        };
        artifacts += carried.len() as u64;
        let event = event.sign(&key, head).unwrap();
        head = event.event_hash();
        ledger.push_str(event.line());
        ledger.push('\n');
        names.took(*say);
    }
    let recipe = Recipe::new(11);
    let mut meta = recipe.meta();
    meta.trace_id = trace;
    meta.head_event_hash = head;
    meta.event_count = said.len() as u64;
    meta.artifact_count = artifacts;
    meta.status = TraceStatus::Running;
    let mut home = Memory::new();
    home.insert(layout::REGISTRY, serde_json::to_vec(&recipe.registry()).unwrap());
    home.insert(layout::meta(trace), serde_json::to_vec(&meta).unwrap());
    home.insert(layout::events(trace), ledger.into_bytes());
    for blob in BLOBS {
        home.insert(layout::storage_uri(&Digest::of(blob)), blob.to_vec());
    }
    verify(&home, trace, Options::default())
}

fn any_say() -> impl Strategy<Value = Say> {
    let n = 0u32..3;
    prop_oneof![
        2 => Just(Say::Propose),
        1 => n.clone().prop_map(Say::Revise),
        1 => n.clone().prop_map(Say::Fallback),
        4 => n.clone().prop_map(Say::Approve),
        1 => n.clone().prop_map(Say::Condition),
        1 => n.clone().prop_map(Say::Reject),
        2 => n.clone().prop_map(Say::ApproveIntent),
        1 => n.clone().prop_map(Say::Block),
        1 => any::<bool>().prop_map(Say::Judge),
        4 => prop_oneof![Just("low"), Just("standard"), Just("high")].prop_map(Say::Intent),
        6 => n.clone().prop_map(Say::Start),
        6 => n.clone().prop_map(Say::Complete),
        2 => n.clone().prop_map(Say::Fail),
        1 => Just(Say::Record),
        4 => n.clone().prop_map(Say::Claim),
        1 => n.clone().prop_map(Say::Reclaim),
        1 => n.clone().prop_map(Say::Resolve),
        2 => n.clone().prop_map(Say::Challenge),
        2 => n.prop_map(Say::Final),
        1 => Just(Say::Verify),
        1 => Just(Say::Verdict("pass")),
        1 => Just(Say::Session),
    ]
}

/// The rules of order and evidence, which are the trace's to keep.
const KEPT: [Rule; 6] = [
    Rule::Order,
    Rule::PayloadForm,
    Rule::ExecutionLeaves,
    Rule::EvidenceCarried,
    Rule::ChallengeSettled,
    Rule::ClaimsKnown,
];

fn breaks_a_kept_rule(report: &Report) -> bool {
    report.failures.iter().any(|failure| failure.rule.is_some_and(|rule| KEPT.contains(&rule)))
}

/// What was admitted of these wishes, carried to its end if it can be.
fn admitted(policy: Policy, wishes: &[Say]) -> (Told, Vec<Say>) {
    let mut told = Told::new(policy);
    let mut said = Vec::new();
    let end = [Say::Claim(0), Say::Final(0), Say::Verify, Say::Verdict("pass")];
    for say in [Say::Session].iter().chain(wishes).chain(&end) {
        if told.say(*say).is_ok() {
            said.push(*say);
        }
    }
    (told, said)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_the_rules_admit_the_strict_verifier_passes(wishes in proptest::collection::vec(any_say(), 0..60)) {
        for policy in [Policy::default(), Policy::protocol(choir_ledger::trace::PolicyProfile::Default)] {
            let (told, said) = admitted(policy, &wishes);
            let report = verified(&said);
            prop_assert!(!breaks_a_kept_rule(&report), "{said:?}: {:?}", report.failures);
            if told.trace.phase() == Phase::Completed {
                prop_assert_ne!(report.verification_status, Verdict::Fail, "{:?}: {:?}", said, report.failures);
            }
            prop_assert_eq!(choir_ledger::trace::invariants::check_invariants(&told.trace), vec![]);
        }
    }

    #[test]
    fn what_the_strict_verifier_finds_out_of_order_the_rules_refuse(
        wishes in proptest::collection::vec(any_say(), 0..25),
        place in any::<proptest::sample::Index>(),
        intruder in any_say(),
    ) {
        // A sound trace with one event put in anywhere, sound or not.
        let (_, mut said) = admitted(Policy::protocol(choir_ledger::trace::PolicyProfile::Default), &wishes);
        said.insert(place.index(said.len() + 1), intruder);
        if breaks_a_kept_rule(&verified(&said)) {
            let mut told = Told::new(Policy::protocol(choir_ledger::trace::PolicyProfile::Default));
            prop_assert!(said.iter().any(|say| told.say(*say).is_err()), "{said:?}");
        }
    }
}

#[test]
fn the_straight_way_passes_without_a_warning() {
    assert_eq!([input(), output(0)], BLOBS.map(Digest::of));
    let (told, said) = admitted(
        Policy::default(),
        &[Say::Propose, Say::Approve(0), Say::Intent("low"), Say::Start(0), Say::Complete(0)],
    );
    assert_eq!(told.trace.phase(), Phase::Completed);
    assert_eq!(told.trace.standing().events, 10);
    assert_eq!(Role::ALL.len(), 4);
    let report = verified(&said);
    assert_eq!(report.verification_status, Verdict::Pass, "{:?} {:?}", report.failures, report.warnings);
}
