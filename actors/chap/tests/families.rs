//! Whispers, deliberations, handoffs, routing and keys: what each call does, who may make it, when it is too late, and
//! what no sequence of calls can bring about.

mod support;

use choir_chap::codes;
use choir_chap::model::{Deliberation, Handoff, HandoffState, Task, Whisper, WhisperState};
use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::House;
use support::people::{AGENT, ANN, BOB, CY, STRANGER, by, house};
use support::random::{PEOPLE, Rng};

fn task(house: &mut House, assignee: &str, hints: Value) -> String {
    let params = json!({"kind": "draft", "input": {"n": 1}, "assignee": assignee, "routing_hints": hints});
    house.ok("task.create", by(ANN, params))["task_id"].as_str().unwrap_or_default().to_owned()
}

fn later(house: &mut House, millis: u64) {
    house.now = Timestamp::from_millis(house.now.millis() + millis);
}

fn stored<T: DeserializeOwned>(house: &House, kind: ObjectKind) -> Vec<T> {
    let objects = house.store.0.get("wsp_a").into_iter().flat_map(|stored| stored.objects.values());
    objects.filter(|o| o.key.kind == kind).map(|o| serde_json::from_str(&o.body).expect("stored")).collect()
}

/// The kinds of the notices that somebody was given.
fn told(house: &House, who: &str) -> Vec<String> {
    let notices = house.store.0.get("wsp_a").into_iter().flat_map(|stored| &stored.notices);
    let kind =
        |body: &str| serde_json::from_str::<Value>(body).expect("a notice is JSON")["params"]["kind"].clone();
    notices.filter(|n| n.to == who).map(|n| kind(&n.body).as_str().unwrap_or_default().to_owned()).collect()
}

// ---- whispers

fn ask(task: &str, more: Value) -> Value {
    let mut params = json!({
        "task_id": task, "to": [BOB, CY], "question": "which?", "deadline_ms": 60_000, "default_if_lapsed": "a",
        "options": [{"id": "a", "label": "A"}, {"id": "b", "label": "B"}],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        params[name] = value.clone();
    }
    by(AGENT, params)
}

#[test]
fn a_whisper_is_answered_once_by_somebody_it_was_asked_of() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({}));
    let whisper = house.ok("whisper.ask", ask(&id, json!({})))["whisper_id"].clone();
    let answer = |from, option| by(from, json!({"whisper_id": whisper, "answer_option": option}));
    assert_eq!(house.code("whisper.answer", answer(ANN, "a")), codes::NOT_AUTHORISED);
    assert_eq!(house.code("whisper.answer", answer(STRANGER, "a")), codes::NOT_AUTHORISED);
    assert_eq!(house.code("whisper.answer", answer(BOB, "c")), codes::WHISPER_OPTION_NOT_IN_SET);
    assert_eq!(
        house.code("whisper.answer", by(BOB, json!({"whisper_id": whisper, "answer": "a"}))),
        codes::PARAMS
    );
    let answered = house.ok("whisper.answer", answer(BOB, "b"));
    assert_eq!(answered, json!({"answered": true, "whisper_id": whisper, "task_id": id}));
    assert_eq!(house.code("whisper.answer", answer(CY, "a")), codes::WHISPER_ALREADY_ANSWERED);
    assert!(told(&house, CY).contains(&"whisper_asked".to_owned()));
    assert_eq!(told(&house, AGENT).last().map(String::as_str), Some("whisper_answered"));
    // The answer names no task, and is found by it all the same.
    let read = house.ok(
        "audit.read",
        json!({"workspace": "wsp_a", "filter": {"task_id": id, "method": "whisper.answer"}}),
    );
    assert!(read["entries"].as_array().is_some_and(|entries| entries.len() >= 2), "{read}");
}

#[test]
fn a_whispers_deadline_holds_before_any_timer_has_run_and_its_lapse_stands_on_the_log() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({}));
    let whisper = house.ok("whisper.ask", ask(&id, json!({})))["whisper_id"].clone();
    later(&mut house, 59_999);
    house.timers(None);
    assert_eq!(stored::<Whisper>(&house, ObjectKind::Whisper)[0].state, WhisperState::Pending);
    later(&mut house, 1);
    let late = by(BOB, json!({"whisper_id": whisper, "answer_option": "b"}));
    assert_eq!(house.code("whisper.answer", late.clone()), codes::WHISPER_LAPSED);
    house.timers(None);
    assert_eq!(stored::<Whisper>(&house, ObjectKind::Whisper)[0].state, WhisperState::Lapsed);
    let entry = house.log("wsp_a").pop().expect("the lapse");
    let record: Value = serde_json::from_str(&entry.record).expect("JSON");
    assert_eq!(record.get("id"), None);
    assert_eq!(record["method"], "notify.message");
    assert_eq!(record["params"]["kind"], "whisper_lapsed");
    assert_eq!(record["params"]["default_applied"], "a");
    assert_eq!(record["params"]["to"], json!([AGENT, BOB, CY]));
    assert_eq!(record["params"]["from"], "service:coordinator");
    let length = house.log("wsp_a").len();
    house.timers(None);
    assert_eq!(house.log("wsp_a").len(), length, "it lapses once");
    assert_eq!(house.code("whisper.answer", late), codes::WHISPER_LAPSED);
    assert_eq!(told(&house, BOB).last().map(String::as_str), Some("whisper_lapsed"));
}

#[test]
fn the_id_of_a_whisper_a_deliberation_or_a_handoff_is_never_used_again() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({}));
    let open = by(ANN, json!({"deliberation_id": "dlb_1", "rule": "all_approve", "to": [BOB, CY]}));
    let propose = by(AGENT, json!({"handoff_id": "hnd_1", "to": BOB, "tasks": [{"task_id": id}]}));
    for (method, params) in [
        ("whisper.ask", ask(&id, json!({"whisper_id": "art_1"}))),
        ("deliberate.open", open),
        ("handoff.propose", propose),
    ] {
        house.ok(method, params.clone());
        let before = house.store.clone();
        assert_eq!(house.code(method, params), codes::PARAMS, "{method}");
        assert_eq!(house.store, before, "{method} changed something");
    }
}

// ---- deliberations

#[test]
fn each_participant_of_a_deliberation_votes_once_and_nobody_else_does() {
    let mut house = house();
    let open = by(ANN, json!({"rule": "quorum:2", "to": [BOB, CY, BOB], "question": "shall we?"}));
    let id = house.ok("deliberate.open", open)["deliberation_id"].clone();
    let vote = |from, vote| by(from, json!({"deliberation_id": id, "vote": vote}));
    assert_eq!(house.code("deliberate.vote", vote(ANN, "yea")), codes::DELIBERATION_VOTER_NOT_IN_LIST);
    assert_eq!(house.code("deliberate.vote", vote(STRANGER, "yea")), codes::NOT_AUTHORISED);
    assert_eq!(house.code("deliberate.vote", vote(BOB, "maybe")), codes::PARAMS);
    house.ok("deliberate.vote", vote(BOB, "yea"));
    assert_eq!(house.code("deliberate.vote", vote(BOB, "nay")), codes::DELIBERATION_ALREADY_VOTED);
    house.ok("deliberate.comment", by(CY, json!({"deliberation_id": id, "text": "fine"})));
    house.ok("deliberate.vote", vote(CY, "yea"));
    let close = by(ANN, json!({"deliberation_id": id}));
    let outcome = house.ok("deliberate.close", close.clone());
    assert_eq!((&outcome["outcome"], &outcome["tally"]), (&json!("approved"), &json!({"yea": 2, "nay": 0})));
    assert_eq!(house.ok("deliberate.close", close), outcome, "closing again says the same");
    assert_eq!(house.code("deliberate.vote", vote(CY, "nay")), codes::DELIBERATION_NOT_OPEN);
    assert_eq!(house.code("deliberate.comment", vote(CY, "nay")), codes::DELIBERATION_NOT_OPEN);
    assert_eq!(stored::<Deliberation>(&house, ObjectKind::Deliberation)[0].participants, [BOB, CY]);
    assert!(told(&house, BOB).contains(&"deliberation_closed".to_owned()));
}

#[test]
fn a_deliberation_named_twice_can_still_be_unanimous_and_an_impossible_rule_is_none() {
    let mut house = house();
    for rule in ["quorum:0", "quorum:x", "most", "weighted_vote:x", ""] {
        let open = by(ANN, json!({"rule": rule, "to": [BOB]}));
        assert_eq!(house.code("deliberate.open", open), codes::DELIBERATION_UNKNOWN_RULE, "{rule}");
    }
    let id = house.ok("deliberate.open", by(ANN, json!({"rule": "all_approve", "to": [BOB, BOB]})))["deliberation_id"].clone();
    house.ok("deliberate.vote", by(BOB, json!({"deliberation_id": id, "vote": "yea"})));
    assert_eq!(house.ok("deliberate.close", by(CY, json!({"deliberation_id": id})))["outcome"], "approved");
}

#[test]
fn a_deliberations_deadline_holds_at_the_vote_and_closes_it_with_the_votes_it_has() {
    let mut house = house();
    let deadline = Timestamp::from_millis(house.now.millis() + 10_000).to_string();
    let open = by(ANN, json!({"rule": "any_one_approves", "to": [BOB, CY], "deadline": deadline}));
    let id = house.ok("deliberate.open", open)["deliberation_id"].clone();
    house.ok("deliberate.vote", by(BOB, json!({"deliberation_id": id, "vote": "yea"})));
    later(&mut house, 10_000);
    let late = by(CY, json!({"deliberation_id": id, "vote": "nay"}));
    assert_eq!(house.code("deliberate.vote", late), codes::DELIBERATION_NOT_OPEN);
    house.timers(None);
    let closed = &stored::<Deliberation>(&house, ObjectKind::Deliberation)[0];
    assert_eq!(closed.outcome.as_ref().map(|o| o["outcome"].clone()), Some(json!("approved")));
    let entry = house.log("wsp_a").pop().expect("the lapse");
    assert!(entry.record.contains(r#""kind":"deliberation_lapsed""#), "{}", entry.record);
    assert_eq!(house.ok("deliberate.close", by(ANN, json!({"deliberation_id": id})))["outcome"], "approved");
}

// ---- handoffs

#[test]
fn a_handoff_passes_on_what_its_proposer_holds_to_the_one_it_names_once() {
    let mut house = house();
    let (one, two) = (task(&mut house, AGENT, json!({})), task(&mut house, AGENT, json!({})));
    let others = task(&mut house, CY, json!({}));
    let propose = |from, to: &str, ids: &[&String]| {
        let tasks: Vec<Value> = ids.iter().map(|id| json!({"task_id": id, "title": "t", "odd": 1})).collect();
        by(from, json!({"to": to, "tasks": tasks, "summary": "s"}))
    };
    assert_eq!(
        house.code("handoff.propose", propose(AGENT, STRANGER, &[&one])),
        codes::HANDOFF_RECIPIENT_NOT_MEMBER
    );
    assert_eq!(
        house.code("handoff.propose", propose(AGENT, BOB, &[&others])),
        codes::HANDOFF_TASK_NOT_PROPOSERS
    );
    assert_eq!(house.code("handoff.propose", propose(AGENT, BOB, &[])), codes::PARAMS);
    let proposed = house.ok("handoff.propose", propose(AGENT, BOB, &[&one, &two]));
    assert_eq!(proposed["task_ids"], json!([one, two]));
    let id = &proposed["handoff_id"];
    let accept = |from, ids: Value| by(from, json!({"handoff_id": id, "accepted_task_ids": ids}));
    assert_eq!(house.code("handoff.accept", accept(CY, json!([one]))), codes::HANDOFF_RECIPIENT_NOT_MEMBER);
    assert_eq!(house.code("handoff.accept", accept(BOB, json!([]))), codes::PARAMS);
    assert_eq!(house.code("handoff.accept", accept(BOB, json!([others]))), codes::PARAMS);
    let accepted = house.ok("handoff.accept", accept(BOB, json!([two])));
    assert_eq!(accepted, json!({"accepted": true, "task_ids": [two], "assignee": BOB}));
    assert_eq!(house.code("handoff.accept", accept(BOB, json!([one]))), codes::HANDOFF_ALREADY_RESOLVED);
    assert_eq!(
        house.code("handoff.decline", by(BOB, json!({"handoff_id": id}))),
        codes::HANDOFF_ALREADY_RESOLVED
    );
    let holder = |house: &mut House, id: &String| {
        house.ok("task.describe", json!({"workspace": "wsp_a", "task_id": id}))["task"]["assignee"].clone()
    };
    assert_eq!((holder(&mut house, &one), holder(&mut house, &two)), (json!(AGENT), json!(BOB)));
    assert!(told(&house, BOB).contains(&"handoff_proposed".to_owned()));
    assert!(told(&house, AGENT).contains(&"handoff_accepted".to_owned()));
}

#[test]
fn one_of_a_group_declines_for_nobody_else_and_a_paused_member_takes_nothing_over() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({}));
    let propose = by(AGENT, json!({"to": "group:all", "tasks": [{"task_id": id}]}));
    let handoff = house.ok("handoff.propose", propose)["handoff_id"].clone();
    let declined = house.ok("handoff.decline", by(CY, json!({"handoff_id": handoff, "reason": "busy"})));
    assert_eq!(declined, json!({"recorded": true, "state": "proposed"}));
    house.ok("control.pause", by(ANN, json!({"scope": "participant", "participant_uri": BOB})));
    let accept = by(BOB, json!({"handoff_id": handoff}));
    assert_eq!(house.code("handoff.accept", accept.clone()), codes::CONTROL_PAUSED);
    house.ok("control.resume", by(ANN, json!({"scope": "participant", "participant_uri": BOB})));
    assert_eq!(house.ok("handoff.accept", accept)["assignee"], BOB);
}

// ---- routing

#[test]
fn a_task_is_routed_to_the_first_candidate_who_is_there_and_not_paused() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({"criticality": "high"}));
    let route = |candidates: Value| by(ANN, json!({"task_id": id, "candidates": candidates}));
    assert_eq!(house.code("task.route", route(json!([]))), codes::ROUTING_CANDIDATES_EMPTY);
    assert_eq!(house.code("task.route", route(json!([STRANGER, 1]))), codes::ROUTING_NO_ELIGIBLE_ASSIGNEE);
    house.ok("control.pause", by(ANN, json!({"scope": "participant", "participant_uri": BOB})));
    let routed = house.ok("task.route", route(json!([STRANGER, BOB, CY, AGENT])));
    assert_eq!(routed["selected"], CY);
    assert_eq!(
        routed["rationale"]["alternatives_considered"],
        json!([{"candidate": BOB, "reason_excluded": "paused"}, {"candidate": AGENT, "reason_excluded": "not first eligible"}])
    );
    assert!(told(&house, CY).contains(&"task_routed".to_owned()));
}

#[test]
fn a_routing_decision_acts_only_where_it_is_asked_to() {
    let mut house = house();
    let id = task(&mut house, AGENT, json!({"criticality": "critical"}));
    let state = |house: &mut House| {
        house.ok("task.describe", json!({"workspace": "wsp_a", "task_id": id}))["task"].clone()
    };
    assert_eq!(house.ok("review.depth", by(ANN, json!({"task_id": id})))["depth"], "full");
    assert_eq!(state(&mut house).get("review_required"), None);
    let said = house.ok("escalate.auto", by(ANN, json!({"task_id": id, "default_escalation_target": BOB})));
    assert_eq!((&said["escalate"], &said["to"]), (&json!(true), &json!(BOB)));
    assert_eq!(state(&mut house)["state"], "created");
    let depth = house.ok("review.depth", by(ANN, json!({"task_id": id, "act": true})));
    assert_eq!(depth["review_required"], true);
    assert_eq!(state(&mut house)["review_required"], true);
    let unavailable = by(ANN, json!({"task_id": id, "default_escalation_target": STRANGER}));
    assert_eq!(house.code("escalate.auto", unavailable), codes::ROUTING_ESCALATION_TARGET_UNAVAILABLE);
    let acted = house
        .ok("escalate.auto", by(ANN, json!({"task_id": id, "default_escalation_target": BOB, "act": true})));
    let old = state(&mut house);
    assert_eq!((&old["state"], &old["superseded_by"]), (&json!("escalated"), &acted["new_task_id"]));
    let next = json!({"workspace": "wsp_a", "task_id": acted["new_task_id"]});
    let next = house.ok("task.describe", next)["task"].clone();
    assert_eq!(
        (&next["assignee"], &next["supersedes"], &next["review_required"]),
        (&json!(BOB), &json!(id), &json!(true))
    );
}

#[test]
fn decimal_texts_count_as_numbers_and_no_hints_are_refused() {
    let mut house = house();
    let (bare, low) =
        (task(&mut house, AGENT, json!({})), task(&mut house, AGENT, json!({"criticality": "low"})));
    assert_eq!(
        house.code("review.depth", by(ANN, json!({"task_id": bare}))),
        codes::ROUTING_DEPTH_NOT_APPLICABLE
    );
    let hints = |confidence: &str| {
        by(ANN, json!({"task_id": low, "artefact_routing_hints": {"confidence": confidence}}))
    };
    assert_eq!(house.ok("review.depth", hints("0.96"))["depth"], "skip");
    let sampled = house.ok("review.depth", hints("0.86"));
    assert_eq!((&sampled["depth"], &sampled["sampling_probability"]), (&json!("spot_check"), &json!(0.1)));
}

// ---- keys

#[test]
fn a_key_is_rotated_by_its_owner_and_revoked_by_its_owner_or_an_admin() {
    let mut house = house();
    let jwk = |kid: &str| json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": "AA"});
    let join =
        json!({"workspace": "wsp_a", "from": STRANGER, "type": "human", "jwks": {"keys": [jwk("k1")]}});
    house.ok("participant.join", join);
    let rotate = |from, old: &str, new: &str| by(from, json!({"old_kid": old, "new_jwk": jwk(new)}));
    assert_eq!(house.code("participant.rotate_key", rotate(BOB, "k1", "k2")), codes::SIGNATURE_KEY_NOT_FOUND);
    assert_eq!(house.ok("participant.rotate_key", rotate(STRANGER, "k1", "k2"))["new_kid"], "k2");
    assert_eq!(
        house.code("participant.rotate_key", rotate(STRANGER, "k2", "k1")),
        codes::PARAMS,
        "a name is one key"
    );
    let revoke = |from, kid: &str| by(from, json!({"target_uri": STRANGER, "kid": kid, "reason": "lost"}));
    assert_eq!(house.code("participant.revoke_key", revoke(BOB, "k2")), codes::NOT_AUTHORISED);
    assert_eq!(house.code("participant.revoke_key", revoke(ANN, "k9")), codes::SIGNATURE_KEY_NOT_FOUND);
    let revoked = house.ok("participant.revoke_key", revoke(ANN, "k2"));
    later(&mut house, 1000);
    assert_eq!(
        house.ok("participant.revoke_key", revoke(STRANGER, "k2"))["revoked_at"],
        revoked["revoked_at"]
    );
    assert_eq!(
        house.code("participant.rotate_key", rotate(STRANGER, "k2", "k3")),
        codes::SIGNATURE_KEY_REVOKED
    );
}

// ---- what no sequence brings about

const METHODS: [&str; 12] = [
    "whisper.ask",
    "whisper.answer",
    "whisper.answer",
    "deliberate.open",
    "deliberate.vote",
    "deliberate.vote",
    "deliberate.vote",
    "deliberate.close",
    "handoff.propose",
    "handoff.accept",
    "handoff.accept",
    "handoff.decline",
];

/// Params of one of these methods that mostly fit, out of few ids, so that calls meet.
fn made_up(rng: &mut Rng, method: &str, tasks: &[String], now: Timestamp) -> Value {
    let number = rng.below(3);
    let [someone, other, someone_else] = [(); 3].map(|()| *rng.pick(&PEOPLE));
    let task = rng.pick(tasks).clone();
    let params = match method {
        "whisper.ask" => json!({
            "to": [someone, other], "task_id": task, "question": "q", "default_if_lapsed": "a", "whisper_id": format!("art_{number}"),
            "deadline_ms": rng.pick(&[500, 20_000]), "options": rng.pick(&[json!([]), json!([{"id": "a"}])]),
        }),
        "whisper.answer" => {
            json!({"whisper_id": format!("art_{number}"), "answer_option": rng.pick(&["a", "a", "b"])})
        }
        "deliberate.open" => json!({
            "deliberation_id": format!("dlb_{number}"), "rule": rng.pick(&["all_approve", "quorum:2", "weighted_vote_with_veto:1"]),
            "to": [someone, other, someone], "veto": {other: true},
            "deadline": Timestamp::from_millis(now.millis() + *rng.pick(&[500, 60_000])).to_string(),
        }),
        "deliberate.vote" => {
            json!({"deliberation_id": format!("dlb_{number}"), "vote": rng.pick(&["yea", "nay"]), "veto_invoked": rng.chance(20)})
        }
        "deliberate.close" => json!({"deliberation_id": format!("dlb_{number}")}),
        "handoff.propose" => {
            json!({"handoff_id": format!("hnd_{number}"), "to": rng.pick(&[someone, "group:all"]), "tasks": [{"task_id": task}]})
        }
        _ => json!({"handoff_id": format!("hnd_{number}")}),
    };
    by(someone_else, params)
}

/// What a made-up sequence of calls has brought about.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Reached {
    answered: usize,
    voted: usize,
    closed: usize,
    handed_over: usize,
}

/// Plays a sequence, and checks after it what must hold of every whisper, deliberation, handoff and task.
fn play(seed: u64) -> Reached {
    let mut house = house();
    let mut rng = Rng(seed);
    let tasks: Vec<String> = (0..3)
        .map(|_| {
            let assignee = *rng.pick(&PEOPLE);
            task(&mut house, assignee, json!({}))
        })
        .collect();
    let mut reached = Reached::default();
    let (mut answered, mut closed, mut taken) = (Vec::new(), Vec::<(Value, Value)>::new(), Vec::new());
    for _ in 0..100 {
        later(&mut house, *rng.pick(&[0, 100, 3_000]));
        if rng.chance(10) {
            house.timers(None);
        }
        let method = *rng.pick(&METHODS);
        let params = made_up(&mut rng, method, &tasks, house.now);
        let Ok(result) = house.call(method, params.clone()) else { continue };
        match method {
            "whisper.answer" => {
                assert!(!answered.contains(&result["whisper_id"]), "answered twice");
                answered.push(result["whisper_id"].clone());
            }
            "deliberate.close" => {
                let earlier = closed.iter().find(|(id, _)| *id == params["deliberation_id"]);
                assert!(earlier.is_none_or(|(_, outcome)| *outcome == result), "two outcomes");
                closed.push((params["deliberation_id"].clone(), result));
            }
            "handoff.accept" => {
                assert!(!taken.contains(&params["handoff_id"]), "accepted twice");
                taken.push(params["handoff_id"].clone());
            }
            "deliberate.vote" => reached.voted += 1,
            _ => {}
        }
    }
    house.flush("wsp_a");
    for whisper in stored::<Whisper>(&house, ObjectKind::Whisper) {
        let at = whisper.answer.get("at").and_then(Value::as_str).and_then(choir_chap::moment::parse);
        assert_eq!(at.is_some(), whisper.state == WhisperState::Answered);
        assert!(at.is_none_or(|at| at < whisper.lapses_at()), "answered after its deadline");
    }
    for deliberation in stored::<Deliberation>(&house, ObjectKind::Deliberation) {
        let mut voters: Vec<&String> = deliberation.votes.iter().map(|vote| &vote.voter).collect();
        voters.sort_unstable();
        voters.dedup();
        assert_eq!(voters.len(), deliberation.votes.len(), "voted twice");
        assert!(deliberation.votes.iter().all(|v| deliberation.participants.contains(&v.voter)));
        assert!(deliberation.votes.iter().all(|v| deliberation.due.is_none_or(|due| v.ts < due)));
    }
    for handoff in stored::<Handoff>(&house, ObjectKind::Handoff) {
        assert!(handoff.state == HandoffState::Proposed || !handoff.resolution.is_empty());
    }
    // A task is always with a member, whatever was handed over.
    for task in stored::<Task>(&house, ObjectKind::Task) {
        assert!(PEOPLE.contains(&task.assignee.as_str()));
    }
    (reached.answered, reached.closed, reached.handed_over) = (answered.len(), closed.len(), taken.len());
    reached
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn nobody_votes_twice_nothing_is_resolved_twice_and_nothing_is_answered_after_its_deadline(seed in any::<u64>()) {
        play(seed);
    }
}

#[test]
fn the_made_up_sequences_reach_answers_votes_outcomes_and_acceptances() {
    let all: Vec<Reached> = (0..40).map(play).collect();
    for reached in
        [|r: &Reached| r.answered, |r: &Reached| r.voted, |r: &Reached| r.closed, |r: &Reached| r.handed_over]
    {
        assert!(all.iter().map(reached).sum::<usize>() >= 20, "{all:?}");
    }
}
