//! What may happen in a run besides the straight way.

use crate::kit::{Say, TOOL, Told, output};
use choir_ledger::event::{EventType, Role};
use choir_ledger::trace::{
    Act, Guard, IntentState, Phase, Policy, PolicyProfile, Refused, RiskClass, Sensitivity, Step,
};

const APPROVED: &[Say] = &[Say::Session, Say::Propose, Say::Approve(0)];

fn after(said: &[Say]) -> Told {
    Told::after(Policy::default(), said)
}

fn then(told: &mut Told, said: &[Say]) {
    for say in said {
        told.say(*say).unwrap_or_else(|why| panic!("{say:?}: {why}"));
    }
}

#[test]
fn a_rejected_proposal_runs_only_as_an_approved_revision() {
    let mut told = after(&[Say::Session, Say::Propose, Say::Reject(0)]);
    let refused = told.say(Say::Intent("standard")).unwrap_err();
    assert_eq!(refused, Refused::NotApproved { event: EventType::ToolIntentSigned, latest: "rejected" });
    then(
        &mut told,
        &[Say::Revise(0), Say::Approve(1), Say::Intent("standard"), Say::Start(0), Say::Complete(0)],
    );
    assert_eq!(told.trace.phase(), Phase::Claiming);
    assert_eq!(
        told.trace.proposals().values().next().map(|plan| plan.status()),
        Some("replaced by a revision")
    );
}

#[test]
fn a_rejection_of_one_proposal_stops_the_others_until_the_critic_speaks_again() {
    let mut told = after(&[Say::Session, Say::Propose, Say::Propose, Say::Approve(0), Say::Reject(1)]);
    assert!(matches!(told.say(Say::Intent("standard")), Err(Refused::NotApproved { .. })));
    then(&mut told, &[Say::Approve(0), Say::Intent("standard"), Say::Start(0)]);
}

#[test]
fn a_blocked_intent_never_runs_and_a_new_one_may() {
    let mut told = after(&[APPROVED, &[Say::Intent("standard"), Say::Block(0)]].concat());
    assert!(told.trace.standing().is_blocked());
    assert!(matches!(told.say(Say::Start(0)), Err(Refused::NotApproved { .. })));
    then(&mut told, &[Say::Approve(0)]);
    assert_eq!(told.say(Say::Start(0)), Err(Refused::IntentClosed { state: "blocked" }));
    assert_eq!(told.say(Say::ApproveIntent(0)), Err(Refused::IntentClosed { state: "blocked" }));
    then(&mut told, &[Say::Intent("standard"), Say::Start(1), Say::Complete(1)]);
    let states: Vec<_> = told.trace.intents().values().map(|intent| intent.state).collect();
    assert_eq!(states, [IntentState::Blocked, IntentState::Used]);
}

#[test]
fn a_conditional_approval_asks_for_a_review_of_each_intent() {
    let mut told = after(&[Say::Session, Say::Propose, Say::Condition(0), Say::Intent("low")]);
    assert_eq!(told.say(Say::Start(0)), Err(Refused::IntentUnreviewed { class: RiskClass::Low }));
    then(&mut told, &[Say::ApproveIntent(0), Say::Start(0), Say::Complete(0)]);
}

#[test]
fn a_risky_tool_needs_the_critics_own_approval_and_some_are_never_allowed() {
    let mut told = after(&[APPROVED, &[Say::Intent("high")]].concat());
    assert_eq!(told.say(Say::Start(0)), Err(Refused::IntentUnreviewed { class: RiskClass::High }));
    then(&mut told, &[Say::ApproveIntent(0), Say::Start(0)]);

    let strictly = Policy::of(PolicyProfile::Default, Sensitivity::Restricted);
    let mut told = Told::after(strictly, APPROVED);
    assert_eq!(told.say(Say::Intent("high")), Err(Refused::TooRisky { class: RiskClass::High }));
    assert_eq!(
        told.say(Say::Intent("a word of its own")),
        Err(Refused::TooRisky { class: RiskClass::Critical })
    );
    then(&mut told, &[Say::Intent("standard")]);
    assert_eq!(told.say(Say::Start(0)), Err(Refused::IntentUnreviewed { class: RiskClass::Standard }));
}

#[test]
fn thresholds_only_get_stricter_with_sensitivity_and_profile() {
    for class in RiskClass::ALL {
        for profile in PolicyProfile::ALL {
            let policies = Sensitivity::ALL.map(|level| Policy::of(profile, level));
            for pair in policies.windows(2) {
                assert!(
                    !pair[0].reviews(class) || pair[1].reviews(class) || profile == PolicyProfile::Lenient
                );
                assert!(!pair[0].refuses(class) || pair[1].refuses(class));
            }
        }
        for level in Sensitivity::ALL {
            let strict = Policy::of(PolicyProfile::Strict, level);
            let normal = Policy::of(PolicyProfile::Default, level);
            let lenient = Policy::of(PolicyProfile::Lenient, level);
            assert!(!lenient.reviews(class) || normal.reviews(class));
            assert!(!normal.reviews(class) || strict.reviews(class));
        }
    }
}

#[test]
fn a_policy_reads_back_what_it_writes_and_the_session_states_it() {
    let limited = Policy { time_budget_ms: Some(90_000), tool_calls: Some(2), ..Policy::default() };
    let protocol = Policy::protocol(PolicyProfile::Strict);
    for policy in [Policy::default(), limited, protocol] {
        assert_eq!(Policy::from_value(&policy.to_value()), Ok(policy.clone()));
        let mut told = Told::new(Policy::default());
        let mut step = told.names.step(Say::Session, Role::Planner, 0);
        step.act = Act::Session { policy: Some(Box::new(policy.clone())) };
        told.trace.apply(&step).unwrap();
        assert_eq!(told.trace.policy(), &policy);
    }
    assert!(Policy::from_value(&"no policy".into()).is_err());
}

#[test]
fn a_retry_is_a_new_intent_and_the_last_failure_goes_on_to_claims() {
    let mut told = after(&[APPROVED, &[Say::Intent("standard"), Say::Start(0), Say::Fail(0)]].concat());
    assert_eq!(told.trace.phase(), Phase::Executing);
    assert_eq!(told.say(Say::Start(0)), Err(Refused::ExecutionRepeated { id: "exec_0".into() }));
    assert_eq!(told.say(Say::Claim(0)), Err(Refused::RetryFirst { failures: 1, limit: 3 }));
    for n in 1..3 {
        then(&mut told, &[Say::Intent("standard"), Say::Start(n), Say::Fail(n)]);
    }
    assert_eq!(told.trace.phase(), Phase::Claiming, "a bounded failure");
    assert_eq!(
        told.say(Say::Intent("standard")),
        Err(Refused::Limit { what: "failed tool calls", limit: 3 })
    );
    then(&mut told, &[Say::Claim(0), Say::Final(0), Say::Verify, Say::Verdict("pass")]);
}

#[test]
fn a_fallback_answers_a_failed_execution_if_the_policy_allows_it() {
    let failed = [APPROVED, &[Say::Intent("standard"), Say::Start(0)]].concat();
    let mut told = after(&failed);
    assert!(matches!(told.say(Say::Fallback(0)), Err(Refused::NoFallback { .. })), "it still runs");
    assert!(matches!(told.say(Say::Fallback(7)), Err(Refused::Unknown { .. })));
    then(&mut told, &[Say::Fail(0), Say::Fallback(0), Say::Approve(1), Say::Intent("low"), Say::Start(1)]);

    let mut told = Told::after(Policy { fallback: false, ..Policy::default() }, &failed);
    then(&mut told, &[Say::Fail(0)]);
    assert_eq!(told.say(Say::Fallback(0)).map_err(|why| why.guard()), Err(Guard::Action));
}

#[test]
fn limits_of_calls_and_time_end_the_execution_and_let_claims_be_made() {
    let mut told = Told::after(Policy { tool_calls: Some(1), ..Policy::default() }, APPROVED);
    then(&mut told, &[Say::Intent("standard")]);
    assert_eq!(told.say(Say::Intent("standard")), Err(Refused::Limit { what: "tool calls", limit: 1 }));
    then(&mut told, &[Say::Start(0), Say::Fail(0), Say::Claim(0)]);

    let mut told = Told::after(Policy { time_budget_ms: Some(500), ..Policy::default() }, APPROVED);
    then(&mut told, &[Say::Intent("standard"), Say::Intent("standard"), Say::Start(0)]);
    told.now += 500;
    for say in [Say::Intent("standard"), Say::Start(1), Say::Propose] {
        assert_eq!(told.say(say), Err(Refused::TimeBudget { budget_ms: 500 }));
    }
    then(&mut told, &[Say::Fail(0), Say::Claim(0), Say::Final(0)]);
}

#[test]
fn a_challenge_is_answered_by_the_claim_again_resolved() {
    let claimed = [APPROVED, &[Say::Intent("low"), Say::Start(0), Say::Complete(0), Say::Claim(0)]].concat();
    let strict = Policy { profile: PolicyProfile::Strict, ..Policy::default() };
    let mut told = Told::after(strict, &claimed);
    then(&mut told, &[Say::Challenge(0), Say::Challenge(0)]);
    assert_eq!(told.say(Say::Final(0)), Err(Refused::OpenChallenges { open: 2 }));
    assert_eq!(told.say(Say::Reclaim(0)), Err(Refused::Contradiction));
    then(&mut told, &[Say::Claim(0)]);
    assert_eq!(
        told.say(Say::Final(0)),
        Err(Refused::OpenChallenges { open: 2 }),
        "saying it again is no answer"
    );
    then(&mut told, &[Say::Resolve(0), Say::Final(0)]);

    let mut told = after(&claimed);
    then(&mut told, &[Say::Resolve(0), Say::Challenge(0)]);
    assert_eq!(told.trace.standing().open_challenges, 1, "resolved before the challenge counts for nothing");
    then(&mut told, &[Say::Final(0), Say::Verify, Say::Verdict("pass-with-warnings")]);
    assert_eq!(told.trace.phase(), Phase::Completed, "an open challenge is a warning under this profile");
}

#[test]
fn evidence_must_have_been_carried_and_executions_leave_something() {
    let running = [APPROVED, &[Say::Intent("low")]].concat();
    let mut told = after(&running);
    let mut start = told.names.step(Say::Start(0), Role::Executor, told.now);
    start.carried.clear();
    told.trace.apply(&start).unwrap();
    told.names.took(Say::Start(0));
    let mut complete = told.names.step(Say::Complete(0), Role::Executor, told.now);
    let outputs = complete.carried.clone();
    complete.carried.clear();
    assert_eq!(told.trace.admit(&complete), Err(Refused::NoArtefact { id: "exec_0".into() }));
    complete.carried = vec![output(5)];
    assert_eq!(told.trace.admit(&complete), Err(Refused::OutputNotCarried { hash: output(0).to_string() }));
    complete.carried = outputs;
    told.trace.apply(&complete).unwrap();
    told.names.took(Say::Complete(0));

    let claim = |evidence: Vec<_>, told: &Told| {
        let mut step = told.names.step(Say::Claim(0), Role::Executor, told.now);
        if let Act::Claim { evidence: own, .. } = &mut step.act {
            *own = evidence;
        }
        told.trace.admit(&step)
    };
    assert_eq!(claim(vec![], &told), Err(Refused::ThinEvidence { needed: 1, given: 0 }));
    let hash = output(9).to_string();
    assert_eq!(claim(vec![output(9)], &told), Err(Refused::EvidenceNotCarried { hash }));
    assert_eq!(claim(vec![output(0), output(0)], &told), Ok(()));
    let two = Policy { minimum_evidence: 2, ..Policy::default() };
    let told = Told::after(two, &[&running[..], &[Say::Start(0), Say::Complete(0)]].concat());
    assert_eq!(claim(vec![output(0), output(0)], &told), Err(Refused::ThinEvidence { needed: 2, given: 1 }));
}

#[test]
fn a_final_statement_waits_for_what_runs_and_names_only_claims_that_were_made() {
    let mut told = after(
        &[
            APPROVED,
            &[
                Say::Intent("low"),
                Say::Intent("low"),
                Say::Start(0),
                Say::Complete(0),
                Say::Start(1),
                Say::Claim(0),
            ],
        ]
        .concat(),
    );
    assert_eq!(told.say(Say::Final(0)), Err(Refused::StillRunning { running: 1 }));
    then(&mut told, &[Say::Fail(1)]);
    assert!(matches!(told.say(Say::Final(3)), Err(Refused::Unknown { what: "claim", .. })));
    then(&mut told, &[Say::Final(0)]);
}

#[test]
fn time_going_back_an_event_id_used_twice_and_an_unplanned_tool_are_refused() {
    let mut told = after(APPROVED);
    let mut step = told.names.step(Say::Intent("low"), Role::Executor, 999);
    assert_eq!(told.trace.admit(&step), Err(Refused::ClockBack { by_ms: 1 }));
    step.at_ms = 1_000;
    let repeated = Step { event_id: told.names.proposals[0], ..step.clone() };
    assert_eq!(told.trace.admit(&repeated), Err(Refused::RepeatedEvent));
    step.act = Act::Intent { tool: "shell.exec".into(), class: RiskClass::Low, proposal: None };
    assert_eq!(told.trace.admit(&step), Err(Refused::UnplannedTool { tool: "shell.exec".into() }));
    step.act = Act::Intent { tool: TOOL.into(), class: RiskClass::Low, proposal: None };
    assert_eq!(told.trace.apply(&step), Ok(()));
}

#[test]
fn every_refusal_is_one_sentence_with_a_next_step() {
    let refusals = [
        Refused::NoSession,
        Refused::NoIntent { tool: TOOL.into() },
        Refused::StillRunning { running: 2 },
        Refused::Broken { id: "C1", says: "x" },
        Refused::TimeBudget { budget_ms: 3 },
    ];
    for refused in refusals {
        let text = refused.to_string();
        assert!(text.contains("; ") && !text.ends_with('.'), "{text}");
    }
}
