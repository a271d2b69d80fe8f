//! Exported logs: offline verification and the override report.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use choir_chap::report::{Analysis, PromotionPolicy};
use choir_chap::verify::{
    FORMAT, Header, Line, NotALog, Report, TaskFacts, Trailer, Verdict, Verifier, header_line, read_line,
    task_line, trailer_line,
};
use choir_chap::{Settings, entry_to_wire};
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::House;
use support::random::{PEOPLE, Rng, call, furnish};

const ANN: &str = PEOPLE[0];
const ONE: &str = PEOPLE[3];

/// The file of a workspace's log.
fn export(house: &mut House, workspace: &str) -> Vec<String> {
    let log = house.log(workspace);
    let header = Header {
        format: FORMAT.to_owned(),
        workspace: workspace.to_owned(),
        exported_at: house.now.to_string(),
        first_seq: 0,
        signatures_required: house.settings.require_signatures,
    };
    let meta: Value = serde_json::from_str(&house.store.0[workspace].meta).unwrap();
    let head = meta.get("head").and_then(Value::as_str).map(str::to_owned);
    let mut lines = vec![header_line(&header)];
    lines.extend(log.iter().map(entry_to_wire));
    lines.push(trailer_line(&Trailer { entries: log.len() as u64, head }));
    lines
}

fn verify(lines: &[String]) -> Result<Report, NotALog> {
    let mut verifier = Verifier::new(None);
    lines.iter().try_for_each(|line| verifier.line(line))?;
    Ok(verifier.finish())
}

fn signed(key: &SigningKey, kid: &str, method: &str, id: u64, params: Value) -> Vec<u8> {
    use base64::Engine as _;
    let mut envelope = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let bytes = choir_messages::canonical::to_vec(&envelope).unwrap();
    let signature = base64::engine::general_purpose::STANDARD.encode(key.sign(&bytes).bytes());
    envelope["sig"] = json!(format!("ed25519:{kid}:{signature}"));
    envelope.to_string().into_bytes()
}

fn jwk(key: &SigningKey, kid: &str) -> Value {
    use base64::Engine as _;
    let x = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key.public().bytes());
    json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x})
}

/// A house of signed calls, in which a key is rotated and revoked.
fn signed_house() -> House {
    let mut house =
        House::new(Settings { require_signatures: true, enable_chain: true, ..Settings::default() });
    let (old, new) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
    let joining =
        json!({"workspace": "w", "from": ANN, "type": "human", "jwks": {"keys": [jwk(&old, "k1")]}});
    let mut id = 0;
    let mut send = |house: &mut House, key: &SigningKey, kid: &str, method: &str, params: Value| {
        id += 1;
        house.now = Timestamp::from_millis(house.now.millis() + 1000);
        house.bytes(&signed(key, kid, method, id, params))
    };
    send(&mut house, &old, "k1", "participant.join", joining);
    let work = || json!({"workspace": "w", "from": ANN, "kind": "k", "input": 1, "assignee": ANN});
    assert!(send(&mut house, &old, "k1", "task.create", work()).refusal().is_none());
    let rotation = json!({"workspace": "w", "from": ANN, "old_kid": "k1", "new_jwk": jwk(&new, "k2")});
    assert!(send(&mut house, &old, "k1", "participant.rotate_key", rotation).refusal().is_none());
    assert!(send(&mut house, &new, "k2", "task.create", work()).refusal().is_none());
    // A refusal is recorded with its signature.
    let nobody =
        json!({"workspace": "w", "from": ANN, "kind": "k", "input": 1, "assignee": ANN, "mode": "banana"});
    assert_eq!(send(&mut house, &new, "k2", "task.create", nobody).refusal().unwrap().code, -32040);
    let revocation = json!({"workspace": "w", "from": ANN, "target_uri": ANN, "kid": "k2"});
    assert!(send(&mut house, &new, "k2", "participant.revoke_key", revocation).refusal().is_none());
    house
}

#[test]
fn a_log_of_signed_calls_verifies_by_itself_across_rotation_and_revocation() {
    let mut house = signed_house();
    let report = verify(&export(&mut house, "w")).unwrap();
    assert_eq!(report.verdict, Verdict::Verified, "{report:?}");
    assert_eq!((report.entries, report.refused), (6, 1));
    assert_eq!((report.signatures.signed, report.signatures.good), (6, 6));
    assert_eq!((report.chain.checked, report.chain.from_seq), (6, Some(0)));
}

#[test]
fn every_alteration_of_an_exported_log_is_found() {
    let mut house = signed_house();
    let lines = export(&mut house, "w");
    let broken = |lines: &[String], why: &str| {
        let report = verify(lines).unwrap();
        assert_eq!(report.verdict, Verdict::Broken, "{why}: {report:?}");
    };
    for place in 1..lines.len() - 1 {
        let mut cut = lines.clone();
        cut.remove(place);
        broken(&cut, "an entry is missing");
        let mut twice = lines.clone();
        twice.insert(place, lines[place].clone());
        broken(&twice, "an entry is there twice");
        let mut entry: Value = serde_json::from_str(&lines[place]).unwrap();
        let side = if entry.get("envelope").is_some() { "envelope" } else { "request" };
        entry[side]["params"]["more"] = json!(1);
        let mut altered = lines.clone();
        altered[place] = entry.to_string();
        broken(&altered, "a call is altered");
    }
    let mut swapped = lines.clone();
    swapped.swap(2, 3);
    broken(&swapped, "two entries have changed places");
    // A refusal passed off as accepted, and the other way round.
    let mut entry: Value = serde_json::from_str(&lines[5]).unwrap();
    let request = entry["request"].take();
    entry["envelope"] = request;
    entry.as_object_mut().unwrap().retain(|name, _| name != "request" && name != "outcome");
    let mut passed = lines.clone();
    passed[5] = entry.to_string();
    broken(&passed, "a refusal is passed off as accepted");
    let mut short = lines.clone();
    short.pop();
    broken(&short, "the file is cut short");
    let mut head = lines.clone();
    *head.last_mut().unwrap() = trailer_line(&Trailer { entries: 6, head: Some("sha256:00".to_owned()) });
    broken(&head, "the trailer names another head");
}

#[test]
fn a_forged_signature_is_found_even_if_the_chain_was_made_anew() {
    let mut house = signed_house();
    house.settings.require_signatures = false;
    let other = SigningKey::from_seed(&[9; 32]);
    let forged = json!({"workspace": "w", "from": ANN, "kind": "forged", "input": 1, "assignee": ANN});
    assert!(house.bytes(&signed(&other, "k2", "task.create", 99, forged)).refusal().is_none());
    let mut lines = export(&mut house, "w");
    let report = verify(&lines).unwrap();
    assert_eq!(
        (report.verdict, report.signatures.bad),
        (Verdict::Incomplete, 1),
        "nobody asked for signatures"
    );
    house.settings.require_signatures = true;
    lines[0] = export(&mut house, "w")[0].clone();
    assert_eq!(verify(&lines).unwrap().verdict, Verdict::Broken);
}

#[test]
fn what_cannot_be_checked_is_said() {
    let mut house = House::new(Settings::default());
    house.ok("workspace.create", json!({"workspace": "w", "profiles": ["core/1.0"]}));
    let report = verify(&export(&mut house, "w")).unwrap();
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert!(report.notes[0].contains("not chained"), "{:?}", report.notes);
    // Receipts are counted where nobody checks them, and judged where somebody does.
    let mut house = signed_house();
    let mut lines = export(&mut house, "w");
    let mut entry: Value = serde_json::from_str(&lines[1]).unwrap();
    entry["receipt"] = json!("r");
    lines[1] = entry.to_string();
    assert_eq!(verify(&lines).unwrap().verdict, Verdict::Incomplete);
    for (good, verdict) in [(true, Verdict::Verified), (false, Verdict::Broken)] {
        let mut verifier = Verifier::new(Some(Box::new(move |seq, record, receipt| {
            assert!(seq == 0 && record.bytes() != &[0; 32] && receipt == "r");
            if good { Ok(None) } else { Err("no".to_owned()) }
        })));
        lines.iter().for_each(|line| verifier.line(line).unwrap());
        assert_eq!(verifier.finish().verdict, verdict);
    }
}

#[test]
fn a_file_that_is_no_log_is_refused_with_the_line() {
    assert_eq!(verify(&["hello".to_owned()]), Err(NotALog::Line(1)));
    assert_eq!(verify(&[r#"{"format":"other"}"#.to_owned()]), Err(NotALog::Header));
    let mut house = signed_house();
    let mut lines = export(&mut house, "w");
    lines.push(lines[1].clone());
    assert_eq!(verify(&lines), Err(NotALog::AfterTrailer(9)));
    lines[2] = "{\"seq\":1}".to_owned();
    assert_eq!(verify(&lines), Err(NotALog::Line(3)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn the_log_of_any_sequence_verifies_offline_and_with_one_byte_changed_it_does_not(seed in any::<u64>()) {
        let mut house = House::new(Settings::default());
        furnish(&mut house);
        let mut rng = Rng(seed);
        for _ in 0..60 {
            house.now = Timestamp::from_millis(house.now.millis() + 700);
            let (method, params) = call(&house, &mut rng);
            let _ = house.call(method, params);
        }
        house.timers(None);
        let lines = export(&mut house, "wsp_a");
        let report = verify(&lines).unwrap();
        prop_assert_ne!(report.verdict, Verdict::Broken, "{:?}", report.faults);
        prop_assert_eq!(report.chain.checked, report.entries);
        // A letter inside a call, or inside a hash.
        let place = 1 + rng.below(lines.len() - 2);
        let mut altered = lines.clone();
        let at = altered[place].rfind(r#""params":{"#).unwrap_or(30) + 10;
        let letters: Vec<usize> = altered[place].char_indices().skip_while(|(i, _)| *i < at)
            .filter(|(_, c)| c.is_ascii_lowercase()).map(|(i, _)| i).collect();
        let at = *rng.pick(&letters);
        let other = if altered[place][at..].starts_with('z') { "y" } else { "z" };
        altered[place].replace_range(at..=at, other);
        if let Ok(report) = verify(&altered) {
            prop_assert_eq!(report.verdict, Verdict::Broken, "{} {}", lines[place], altered[place]);
        }
    }

    #[test]
    fn no_line_panics_the_reader(text in ".{0,200}") {
        let _ = read_line(&text, 1);
        let mut verifier = Verifier::new(None);
        let _ = verifier.line(&text);
        let _ = verifier.finish();
    }
}

#[test]
fn overrides_are_counted_by_tag_intent_agent_kind_mode_policy_and_reviewer() {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    let mut tasks = Vec::new();
    for number in 0..10 {
        let params = json!({"workspace": "wsp_a", "from": ANN, "kind": if number < 5 { "draft" } else { "refund" },
            "input": 1, "assignee": ONE, "mode": "trial"});
        let id = house.ok("task.create", params)["task_id"].as_str().unwrap().to_owned();
        house.ok(
            "task.complete",
            json!({"workspace": "wsp_a", "from": ONE, "task_id": id, "output": {"a": 1}}),
        );
        house.now = Timestamp::from_millis(house.now.millis() + 60_000);
        let decide = |more: Value| {
            let mut params = json!({"workspace": "wsp_a", "from": PEOPLE[1], "task_id": id});
            for (name, value) in more.as_object().unwrap() {
                params[name] = value.clone();
            }
            params
        };
        match number {
            0..4 => house.ok("decide.override", decide(json!({
                "diff": [{"op": "replace", "path": "/a", "value": 2}], "rationale": "tone", "tags": ["tone", "short"],
                "policy_refs": ["p1"], "intent_preserved": number < 3}))),
            4 => house.ok("decide.reject", decide(json!({}))),
            5 => house.ok("abstain.declare", decide(json!({"reason": "not mine", "category": "out_of_scope"}))),
            _ => house.ok("decide.approve", decide(json!({}))),
        };
        tasks.push(id);
    }
    // A refused attempt counts nowhere.
    assert!(
        house
            .call("decide.approve", json!({"workspace": "wsp_a", "from": PEOPLE[1], "task_id": tasks[0]}))
            .is_err()
    );
    let mut analysis = Analysis::new();
    let mut lines = export(&mut house, "wsp_a");
    for task in house.store.0["wsp_a"]
        .objects
        .values()
        .filter(|o| o.key.kind == choir_messages::chap::ObjectKind::Task)
    {
        let task: choir_chap::model::Task = serde_json::from_str(&task.body).unwrap();
        lines.insert(1, task_line(&TaskFacts::from(&task)));
    }
    // Facts about tasks are no part of what is verified, and do not disturb it.
    assert_eq!(verify(&lines).unwrap().verdict, Verdict::Verified);
    for (number, line) in lines.iter().enumerate() {
        match read_line(line, number as u64 + 1).unwrap() {
            Line::Entry(entry) => analysis.entry(&entry),
            Line::Task(task) => analysis.task(task),
            Line::Header(_) | Line::Trailer(_) => {}
        }
    }
    let report = analysis.finish();
    assert_eq!(
        (report.total.overridden, report.total.approved, report.total.rejected, report.total.abstained),
        (4, 4, 1, 1)
    );
    assert_eq!((report.total.intent_preserved, report.total.intent_substituted), (3, 1));
    assert_eq!(report.refused, 1);
    assert_eq!((report.override_rate.count, report.override_rate.of), (4, 9));
    let (low, high) = (report.override_rate.low.unwrap(), report.override_rate.high.unwrap());
    assert!(low > 0.18 && low < 0.2 && high > 0.72 && high < 0.75, "{low} {high}");
    assert_eq!(report.by_agent[0].name, ONE);
    assert_eq!(
        (report.by_task_kind[0].name.as_str(), report.by_task_kind[0].decisions.overridden),
        ("draft", 4)
    );
    assert_eq!(report.by_mode[0].name, "trial");
    assert_eq!(report.by_reviewer[0].name, PEOPLE[1]);
    assert_eq!((report.tags[0].count, report.policies[0].name.as_str()), (4, "p1"));
    assert_eq!(report.abstain_categories[0].name, "out_of_scope");
    assert_eq!((report.overrides.len(), report.overrides[0].task_kind.as_str()), (4, "draft"));
    let promotion = &report.promotion[0];
    assert_eq!((promotion.agent.as_str(), promotion.mode.as_str(), promotion.tasks), (ONE, "trial", 10));
    assert_eq!(promotion.review_median_ms, Some(60_000));
    let policy = PromotionPolicy {
        minimum_tasks: 10,
        max_override_rate: 0.8,
        max_rejection_rate: 0.5,
        max_abstention_rate: 0.2,
    };
    assert_eq!(promotion.unmet(&policy), Vec::<String>::new());
    let strict = PromotionPolicy { minimum_tasks: 100, max_override_rate: 0.05, ..policy };
    assert_eq!(promotion.unmet(&strict).len(), 2);
    assert!(serde_json::to_string(&report).is_ok());
}

#[test]
fn a_review_that_several_must_approve_is_one_decision_of_several_reviewers() {
    let mut analysis = Analysis::new();
    let mut seq = 0;
    let mut take = |from: &str, method: &str, params: Value| {
        let mut params = params;
        params["from"] = json!(from);
        let envelope = json!({"jsonrpc": "2.0", "id": seq, "method": method, "params": params});
        let entry = json!({"seq": seq, "arrived": "2026-10-01T00:00:00.000Z", "envelope": envelope});
        seq += 1;
        match read_line(&entry.to_string(), seq + 1).unwrap() {
            Line::Entry(entry) => analysis.entry(&entry),
            other => panic!("{other:?}"),
        }
    };
    let mut review = |task: &str, rule: Value, answers: &[(&str, &str)]| {
        take("agent:a", "task.complete", json!({"task_id": task}));
        take(
            "agent:a",
            "review.request",
            json!({"task_id": task, "to": ["human:x", "human:y"], "rule": rule}),
        );
        take("agent:a", "review.request", json!({"task_id": task, "to": "human:z"}));
        for (who, method) in answers {
            take(who, method, json!({"task_id": task}));
        }
    };
    let approve = "decide.approve";
    let all = [("human:x", approve), ("human:y", approve), ("human:z", approve)];
    review("t1", json!("all_approve"), &all);
    review("t2", json!("quorum:2"), &all[..2]);
    review("t3", json!("quorum:2"), &all[..1]);
    review("t4", json!("all_approve"), &[all[0], ("human:y", "decide.override")]);
    review("t5", json!(null), &all[..1]);
    let report = analysis.finish();
    let total = report.total;
    assert_eq!((total.approved, total.overridden, total.decided()), (3, 1, 4), "{report:?}");
    assert_eq!((report.answers, report.reviewers), (9, 3));
    assert_eq!((report.by_agent[0].decisions.decided(), report.by_agent[0].reviewers), (4, 3));
    let x = report.by_reviewer.iter().find(|group| group.name == "human:x").unwrap();
    assert_eq!((x.decisions.approved, x.reviewers), (5, 1), "everybody's own answers count by reviewer");
    assert_eq!(report.promotion[0].decisions.decided(), 4);
}
