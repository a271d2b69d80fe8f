//! The rules of the core, review and control families, of modes, deadlines, callers and envelopes.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use choir_chap::{Attested, Body, Call, OidcClaims, Refusal, Settings, VcSubject, codes, content_hash};
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use serde_json::{Value, json};
use support::House;
use support::random::{PEOPLE, furnish};

const ANN: &str = PEOPLE[0];
const BOB: &str = PEOPLE[1];
const CY: &str = PEOPLE[2];
const ONE: &str = PEOPLE[3];

fn house() -> House {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    house
}

fn with(from: &str, more: Value) -> Value {
    let mut params = more;
    params["workspace"] = json!("wsp_a");
    params["from"] = json!(from);
    params
}

fn task(house: &mut House, more: Value) -> String {
    let mut params = with(ANN, json!({"kind": "draft", "input": {"n": 1}, "assignee": ONE}));
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    house.ok("task.create", params)["task_id"].as_str().unwrap().to_owned()
}

fn later(house: &mut House, millis: u64) {
    house.now = Timestamp::from_millis(house.now.millis() + millis);
}

fn code_of(settings: &Settings, text: &str) -> Option<i64> {
    Call::parse(text.as_bytes(), settings)
        .err()
        .and_then(|answer| answer.refusal().map(|refusal| refusal.code))
}

// ---- envelopes

#[test]
fn an_envelope_is_refused_with_its_own_code_and_id() {
    let settings = Settings::default();
    let call = |rest: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"workspace.describe"{rest}}}"#);
    for (text, code) in [
        ("", -32700),
        ("{", -32700),
        ("\u{feff}{}", -32700),
        ("null", -32600),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"workspace.describe"}]"#, -32600),
        (r#"{"id":1,"method":"workspace.describe"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":""}"#, -32600),
        (&call(r#","params":[1]"#), -32602),
        (&call(r#","params":"x""#), -32602),
        (&call(r#","params":{"workspace":"w","x":1.5}"#), -32602),
        (&call(r#","params":{"workspace":"w","x":9007199254740992}"#), -32602),
        (&call(r#","params":{"workspace":"w","x":1e400}"#), -32602),
        (&call(r#","params":{"workspace":"w","x":"\ud800"}"#), -32602),
        (r#"{"jsonrpc":"2.0","id":7,"method":"no.such","x":1.5}"#, -32601),
    ] {
        assert_eq!(code_of(&settings, text), Some(code), "{text}");
    }
    let answer = Call::parse(call(r#","params":{"x":"\ud800"}"#).as_bytes(), &settings).unwrap_err();
    assert_eq!(answer.id, 7);
}

#[test]
fn the_largest_and_the_deepest_envelope_are_taken_and_one_more_is_not() {
    let settings = Settings::default();
    let deep = |levels: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"audit.read","params":{{"a":{}{}}}}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    // The envelope and the params are the first two levels.
    assert_eq!(code_of(&settings, &deep(62)), None);
    assert_eq!(code_of(&settings, &deep(63)), Some(-32600));
    assert_eq!(code_of(&settings, &deep(1_000_000)), Some(-32600));
    let frame = r#"{"id":1,"jsonrpc":"2.0","method":"audit.read","params":{"a":""}}"#.len();
    let filled = |bytes: usize| {
        format!(
            r#"{{"id":1,"jsonrpc":"2.0","method":"audit.read","params":{{"a":"{}"}}}}"#,
            "x".repeat(bytes - frame)
        )
    };
    assert_eq!(code_of(&settings, &filled(1024 * 1024)), None);
    assert_eq!(code_of(&settings, &filled(1024 * 1024 + 1)), Some(-32600));
    // White space is not measured, within reason.
    let spaced = format!("{}{}", " ".repeat(1024 * 1024), filled(1024 * 1024));
    assert_eq!(code_of(&settings, &spaced), None);
    assert_eq!(code_of(&settings, &" ".repeat(9 * 1024 * 1024)), Some(-32600));
}

#[test]
fn a_notification_is_carried_out_and_answered_with_a_null_id() {
    let mut house = house();
    let answer =
        house.bytes(br#"{"jsonrpc":"2.0","method":"workspace.describe","params":{"workspace":"wsp_a"}}"#);
    assert_eq!(answer.id, Value::Null);
    assert!(matches!(answer.body, Body::Result(_)));
}

#[test]
fn a_workspace_that_names_no_id_gets_one_and_its_creation_is_recorded() {
    let mut house = house();
    let created = house.ok("workspace.create", json!({}));
    let id = created["workspace"].as_str().unwrap().to_owned();
    assert!(id.starts_with("wsp_"));
    assert_eq!(house.log(&id).len(), 1);
}

// ---- callers

#[test]
fn a_carrier_that_knows_its_caller_lets_nobody_else_be_named_and_records_nothing() {
    let mut house = house();
    let before = house.log("wsp_a").len();
    house.called_by(&[BOB]);
    let params = with(ANN, json!({"kind": "k", "input": 1, "assignee": ONE}));
    assert_eq!(house.code("task.create", params), -32011);
    assert_eq!(house.code("workspace.describe", with(ANN, json!({}))), -32011);
    assert_eq!(house.log("wsp_a").len(), before);
    house.ok("workspace.describe", json!({"workspace": "wsp_a"}));
    house.ok("task.create", with(BOB, json!({"kind": "k", "input": 1, "assignee": ONE})));
}

#[test]
fn a_token_is_kept_as_its_digest_and_the_chain_covers_what_is_kept() {
    let mut house = House::new(Settings {
        verify_oidc: true,
        verify_vc: true,
        enable_chain: true,
        ..Settings::default()
    });
    house.attested = Attested {
        oidc: Some(Ok(OidcClaims { sub: Some("s".to_owned()), ..OidcClaims::default() })),
        vc: Some(Ok(VcSubject { holder: Some("did:x".to_owned()), cnf_jwk: None })),
    };
    house.ok("participant.join", json!({
        "workspace": "w", "from": ANN, "type": "human", "oidc_token": "very-secret-token", "vc_presentation": {"secret": "vp"},
    }));
    let log = house.log("w");
    assert!(!log[0].record.contains("secret"), "{}", log[0].record);
    assert!(log[0].record.contains("sha256:"));
    assert_eq!(house.ok("audit.verify_chain", json!({"workspace": "w"}))["status"], "verified");
    house.attested = Attested { oidc: Some(Err(Refusal::new(codes::OIDC_TOKEN_INVALID, "no"))), vc: None };
    let joining = json!({"workspace": "new", "from": BOB, "type": "human", "oidc_token": "x"});
    assert_eq!(house.code("participant.join", joining), -32403);
    // A refused joining creates nothing.
    assert_eq!(house.code("workspace.describe", json!({"workspace": "new"})), -32602);
}

// ---- signed calls

fn signed(key: &SigningKey, kid: &str, mut envelope: Value) -> Vec<u8> {
    use base64::Engine as _;
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

#[test]
fn a_recorded_refusal_sent_again_is_answered_with_itself_and_never_takes_effect() {
    let mut house = House::new(Settings { require_signatures: true, ..Settings::default() });
    let key = SigningKey::from_seed(&[3; 32]);
    for uri in [ANN, BOB] {
        house.ok(
            "participant.join",
            json!({
                "workspace": "w", "from": uri, "type": "human", "jwks": {"keys": [jwk(&key, "k")]},
            }),
        );
    }
    let create = json!({"jsonrpc": "2.0", "id": 1, "method": "task.create", "params": {
        "workspace": "w", "from": ANN, "kind": "k", "input": 1, "assignee": BOB, "mode": "banana"}});
    let call = signed(&key, "k", create.clone());
    assert_eq!(house.bytes(&call).refusal().unwrap().code, -32040);
    let entries = house.log("w").len();
    let again = house.bytes(&call);
    assert_eq!(again.refusal().unwrap().code, -32040);
    assert_eq!(again.refusal().unwrap().data, Some(json!({"refused_at_seq": entries - 1})));
    assert_eq!(house.log("w").len(), entries);
    // A byte of what was signed changed: the signature does not hold, and nothing is recorded.
    let mut forged: Value = serde_json::from_slice(&call).unwrap();
    forged["params"]["mode"] = json!("trial");
    assert_eq!(house.bytes(forged.to_string().as_bytes()).refusal().unwrap().code, -32070);
    assert_eq!(house.log("w").len(), entries);
    // Unsigned, and signed with a key nobody has.
    let mut create = create;
    create["id"] = json!(2);
    assert_eq!(house.bytes(create.to_string().as_bytes()).refusal().unwrap().code, -32070);
    assert_eq!(house.bytes(&signed(&key, "other", create)).refusal().unwrap().code, -32071);
}

#[test]
fn a_key_that_stands_twice_counts_once_and_the_last_one_does() {
    let mut house = house();
    let call = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"workspace.create","method":"task.create","params":{{
            "workspace":"nowhere","workspace":"wsp_a","from":"{ANN}","kind":"first","kind":"last","assignee":"{ANN}",
            "input":{{"a":1,"a":2}}}}}}"#
    );
    house.bytes(call.as_bytes()).into_result().unwrap();
    let last = house.log("wsp_a").pop().unwrap();
    assert!(
        last.record.contains(r#""input":{"a":2}"#) && last.record.contains(r#""kind":"last""#),
        "{}",
        last.record
    );
    assert!(!last.record.contains("first") && !last.record.contains("nowhere"), "{}", last.record);
    assert_eq!(house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}))["ok"], true);
}

#[test]
fn a_signed_call_that_was_accepted_and_is_sent_again_is_evaluated_again_and_both_are_on_the_log() {
    let mut house = House::new(Settings { require_signatures: true, ..Settings::default() });
    let key = SigningKey::from_seed(&[3; 32]);
    let join = json!({"workspace": "w", "from": ANN, "type": "human", "jwks": {"keys": [jwk(&key, "k")]}});
    house.ok("participant.join", join);
    let call = |more: Value| {
        let mut params = json!({"workspace": "w", "from": ANN, "kind": "k", "input": 1, "assignee": ANN});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        signed(&key, "k", json!({"jsonrpc": "2.0", "id": 1, "method": "task.create", "params": params}))
    };
    let plain = call(json!({}));
    let first = house.bytes(&plain).into_result().unwrap()["task_id"].clone();
    assert_ne!(house.bytes(&plain).into_result().unwrap()["task_id"], first, "the digest, section 3.9");
    // What a caller does against it: a key of its own for the call.
    let keyed = call(json!({"idempotency_key": "once"}));
    let first = house.bytes(&keyed).into_result().unwrap()["task_id"].clone();
    let entries = house.log("w").len();
    assert_eq!(house.bytes(&keyed).into_result().unwrap()["task_id"], first);
    assert_eq!(house.log("w").len(), entries);
}

#[test]
fn a_privileged_call_takes_a_login_that_is_fresh_and_of_the_strength_the_workspace_asks_for() {
    let settings = Settings { enforce_step_up: true, verify_oidc: true, ..Settings::default() };
    let login = |house: &mut House, acr: Option<&str>, age: i64| {
        let claims = OidcClaims {
            sub: Some("ann".into()),
            auth_time: Some(i64::try_from(house.now.millis() / 1000).unwrap() - age),
            acr: acr.map(str::to_owned),
            ..OidcClaims::default()
        };
        house.attested = Attested { oidc: Some(Ok(claims)), ..Attested::default() };
        let join =
            json!({"workspace": "w", "from": ANN, "type": "human", "role": "admin", "oidc_token": "t"});
        house.ok("participant.join", join);
    };
    let mut house = House::new(settings);
    let create = json!({"workspace": "w", "min_acr": "mfa", "step_up_window_sec": 300});
    house.ok("workspace.create", create);
    let privileged =
        json!({"workspace": "w", "from": ANN, "profiles": ["core/1.0", "review/1.0", "identity-oidc/1.0"]});
    for (acr, age, data) in [
        (Some("pwd"), 10, Some(json!({"required_acr": "mfa", "acr": "pwd"}))),
        (None, 10, Some(json!({"required_acr": "mfa", "acr": null}))),
        (Some("MFA"), 10, Some(json!({"required_acr": "mfa", "acr": "MFA"}))),
        (Some("mfa"), 301, Some(json!({"window_sec": 300, "age_sec": 301}))),
        (Some("mfa"), 300, None),
    ] {
        login(&mut house, acr, age);
        let answer = house.call("workspace.set_profiles", privileged.clone());
        match data {
            None => assert!(answer.is_ok(), "{answer:?}"),
            Some(data) => {
                let error = answer.unwrap_err();
                assert_eq!((&error["code"], &error["data"]), (&json!(-32402), &data), "{acr:?} {age}");
                let last = house.log("w").pop().unwrap();
                assert_eq!(last.refused, Some(-32402), "the attempt is on the log");
            }
        }
    }
}

#[test]
fn a_workspace_advertises_the_profiles_that_work_and_tells_the_others_apart() {
    let mut house = House::new(Settings::default());
    let profiles = json!(["core/1.0", "modes/1.0", "banana/1.0", "whisper/1.0", "bananas"]);
    house.ok("workspace.create", json!({"workspace": "w", "profiles": profiles}));
    let told = house.ok("workspace.describe", json!({"workspace": "w"}));
    assert_eq!(told["profiles"], json!(["core/1.0", "modes/1.0", "whisper/1.0"]));
    assert_eq!(told["unserved_profiles"], json!(["banana/1.0", "bananas"]));
    house.ok("workspace.create", json!({"workspace": "v"}));
    assert_eq!(house.ok("workspace.describe", json!({"workspace": "v"})).get("unserved_profiles"), None);
}

// ---- reviews

fn request(house: &mut House, id: &str, more: Value) -> Value {
    let mut params = with(ONE, json!({"task_id": id, "artefact": {"text": "draft"}, "to": [ANN, BOB]}));
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    house.ok("review.request", params)
}

#[test]
fn a_quorum_counts_distinct_reviewers_and_all_approve_waits_for_every_named_one() {
    for (rule, to, needed) in [
        ("quorum:2", json!([ANN, BOB, CY]), 2),
        ("all_approve", json!([ANN, BOB]), 2),
        ("any_one_approves", json!(ANN), 1),
    ] {
        let mut house = house();
        let id = task(&mut house, json!({}));
        request(&mut house, &id, json!({"rule": rule, "to": to}));
        let first = house.ok("decide.approve", with(ANN, json!({"task_id": id})));
        if needed == 2 {
            assert_eq!(first["state"], "review_requested", "{rule}");
            assert_eq!(
                house.ok("decide.approve", with(ANN, json!({"task_id": id})))["state"],
                "review_requested"
            );
            assert_eq!(house.ok("decide.approve", with(BOB, json!({"task_id": id})))["state"], "completed");
        } else {
            assert_eq!(first["state"], "completed", "{rule}");
        }
    }
}

#[test]
fn an_approval_of_an_earlier_artefact_counts_no_more_once_the_task_is_handed_in_anew() {
    let mut house = house();
    let id = task(&mut house, json!({"review_required": true}));
    request(&mut house, &id, json!({"rule": "quorum:2"}));
    house.ok("decide.approve", with(ANN, json!({"task_id": id})));
    house.ok("decide.reject", with(BOB, json!({"task_id": id, "request_revision": true})));
    house.ok("task.complete", with(ONE, json!({"task_id": id, "output": {"text": "second"}})));
    let approve = |house: &mut House, who: &str| {
        house.ok("decide.approve", with(who, json!({"task_id": id})))["state"].clone()
    };
    assert_eq!(approve(&mut house, BOB), "review_requested");
    assert_eq!(approve(&mut house, ANN), "completed");
}

#[test]
fn only_an_addressed_reviewer_decides_and_the_attempt_of_another_member_is_recorded() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({}));
    let before = house.log("wsp_a").len();
    assert_eq!(house.code("decide.approve", with(CY, json!({"task_id": id}))), -32011);
    let log = house.log("wsp_a");
    assert_eq!((log.len(), log[before].refused), (before + 1, Some(-32011)));
    assert_eq!(log[before].tasks, std::slice::from_ref(&id));
    assert_eq!(house.code("decide.approve", with("human:eve@e.org", json!({"task_id": id}))), -32011);
    assert_eq!(house.log("wsp_a").len(), before + 1);
}

#[test]
fn a_decision_binds_to_what_its_reviewer_saw() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({}));
    let wrong = house
        .call("decide.approve", with(ANN, json!({"task_id": id, "approved_artefact_digest": "sha256:0"})));
    let error = wrong.unwrap_err();
    assert_eq!(error["code"], -32074);
    assert_eq!(error["data"]["actual"], content_hash(&json!({"text": "draft"})));
    let digest = content_hash(&json!({"text": "draft"}));
    let right = with(ANN, json!({"task_id": id, "approved_artefact_digest": digest}));
    assert_eq!(house.ok("decide.approve", right)["state"], "completed");
}

#[test]
fn after_its_deadline_a_review_takes_no_decision_whether_or_not_a_timer_has_run() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    let deadline = Timestamp::from_millis(house.now.millis() + 1000).to_string();
    request(&mut house, &id, json!({"deadline": deadline}));
    later(&mut house, 1000);
    for method in ["decide.approve", "decide.reject", "abstain.declare"] {
        assert_eq!(house.code(method, with(ANN, json!({"task_id": id, "reason": "r"}))), -32013, "{method}");
    }
    let before = house.log("wsp_a").len();
    house.timers(None);
    house.timers(None);
    let log = house.log("wsp_a");
    assert_eq!(log.len(), before + 1, "it lapses once");
    assert!(
        log[before].record.contains("review_lapsed")
            && log[before].from.as_deref() == Some("service:coordinator")
    );
    assert_eq!(log[before].tasks, std::slice::from_ref(&id));
    assert_eq!(house.code("decide.approve", with(ANN, json!({"task_id": id}))), -32013);
    // Requested again, with other content, it is a new review.
    let again = request(&mut house, &id, json!({"artefact": {"text": "better"}}));
    assert_eq!(again.get("amended"), None);
    assert_eq!(house.ok("decide.approve", with(ANN, json!({"task_id": id})))["state"], "completed");
}

#[test]
fn an_open_review_may_be_widened_and_not_changed() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({"rule": "all_approve"}));
    let widened = request(&mut house, &id, json!({"to": CY}));
    assert_eq!(widened["requested_to"], json!([ANN, BOB, CY]));
    let other = with(ONE, json!({"task_id": id, "artefact": {"text": "other"}, "to": ANN}));
    assert_eq!(house.code("review.request", other), -32014);
    let rule =
        with(ONE, json!({"task_id": id, "artefact": {"text": "draft"}, "to": ANN, "rule": "quorum:1"}));
    assert_eq!(house.code("review.request", rule), -32014);
}

#[test]
fn an_override_that_does_not_apply_changes_nothing_and_one_that_does_is_the_output() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({}));
    let diff = |path: &str| json!({"task_id": id, "rationale": "r", "diff": [{"op": "replace", "path": path, "value": "new"}]});
    assert_eq!(house.code("decide.override", with(ANN, diff("/none"))), -32012);
    let done = house.ok("decide.override", with(ANN, diff("/text")));
    assert_eq!(done["applied"], json!({"text": "new"}));
    assert_eq!(house.ok("workspace.describe", json!({"workspace": "wsp_a"}))["override_count"], 1);
}

#[test]
fn a_patch_that_grows_without_end_is_refused_in_good_time() {
    use choir_chap::patch::apply;
    let copies =
        |from: &str, path: &str, count: usize| vec![json!({"op": "copy", "from": from, "path": path}); count];
    let long = json!({"a": "x".repeat(1024 * 1024), "l": []});
    assert!(apply(&long, &copies("/a", "/l/-", 1000)).unwrap_err().to_string().contains("size limit"));
    assert!(apply(&json!({"a": {}}), &copies("", "/a", 1000)).unwrap_err().to_string().contains("deeper"));
    let wide = json!({"a": vec![0; 40_000], "b": 0});
    let mut back_and_forth = Vec::new();
    for _ in 0..500 {
        back_and_forth.extend([
            json!({"op": "copy", "from": "/a", "path": "/c"}),
            json!({"op": "remove", "path": "/c"}),
        ]);
    }
    assert!(apply(&wide, &back_and_forth).unwrap_err().to_string().contains("copies too much"));
}

// ---- modes

#[test]
fn trial_forces_a_review_by_a_person_where_modes_are_advertised_and_nowhere_else() {
    let mut house = house();
    let id = task(&mut house, json!({"mode": "trial", "review_required": false}));
    let completed = house.ok("task.complete", with(ONE, json!({"task_id": id, "output": {"a": 1}})));
    assert_eq!(completed["state"], "review_requested");
    assert_eq!(house.code("task.update", with(ONE, json!({"task_id": id, "state": "completed"}))), -32602);
    house.ok("workspace.set_profiles", with(ANN, json!({"profiles": ["review/1.0"]})));
    let id = task(&mut house, json!({"mode": "trial"}));
    assert_eq!(house.ok("task.complete", with(ONE, json!({"task_id": id})))["state"], "completed");
}

#[test]
fn what_comes_of_a_shadow_task_is_withheld_from_agents_until_a_person_has_approved_it() {
    let mut house = house();
    let id = task(&mut house, json!({"mode": "shadow"}));
    house.ok("task.complete", with(ONE, json!({"task_id": id, "output": {"secret": 1}})));
    let seen = |house: &mut House, who: &str| {
        house.ok("task.describe", with(who, json!({"task_id": id})))["task"].get("output").is_some()
    };
    assert!(seen(&mut house, ANN) && seen(&mut house, ONE));
    assert!(!seen(&mut house, PEOPLE[4]));
    house.ok("review.request", with(ONE, json!({"task_id": id, "artefact": {"secret": 1}, "to": ANN})));
    house.ok("decide.approve", with(ANN, json!({"task_id": id})));
    assert!(seen(&mut house, PEOPLE[4]));
}

#[test]
fn no_task_is_above_the_ceiling_however_it_comes_about() {
    let mut house = house();
    let id = task(&mut house, json!({"mode": "production"}));
    house.ok("control.set_mode_ceiling", with(ANN, json!({"new_ceiling": "trial"})));
    let create = with(ANN, json!({"kind": "k", "input": 1, "assignee": ONE, "mode": "production"}));
    assert_eq!(house.code("task.create", create), -32040);
    let next = json!({"kind": "k", "assignee": ONE});
    assert_eq!(
        house.code("control.supersede", with(ANN, json!({"task_id": id, "successor_task": next}))),
        -32040
    );
    assert_eq!(
        house.code("escalate.raise", with(ANN, json!({"original_task_id": id, "new_task": next}))),
        -32040
    );
    for field in ["mode", "mode_ceiling"] {
        assert_eq!(house.code("workspace.create", json!({"workspace": "w", field: "banana"})), -32602);
    }
}

// ---- the log

#[test]
fn a_log_is_read_in_pages_of_at_most_a_thousand_entries() {
    let mut house = house();
    for _ in 0..1_200 {
        task(&mut house, json!({}));
    }
    let first = house.ok("audit.read", json!({"workspace": "wsp_a"}));
    assert_eq!(first["entries"].as_array().unwrap().len(), 1_000);
    assert_eq!(first["next_seq"], 1_000);
    let rest = house.ok("audit.read", json!({"workspace": "wsp_a", "range": {"from_seq": 1_000}}));
    assert_eq!(rest["entries"].as_array().unwrap().len(), 206);
    assert_eq!(rest["next_seq"], 1_206);
    let joins =
        house.ok("audit.read", json!({"workspace": "wsp_a", "filter": {"method": "participant.join"}}));
    assert_eq!((joins["entries"].as_array().unwrap().len(), joins["next_seq"].as_u64()), (5, Some(1_206)));
    for range in
        [json!({"from_seq": "abc"}), json!({"from_seq": -1}), json!({"to_seq": 1.0e15 + 0.5}), json!([])]
    {
        let answer = house.call("audit.read", json!({"workspace": "wsp_a", "range": range}));
        assert_eq!(answer.unwrap_err()["code"], -32602, "{range}");
    }
}

#[test]
fn a_log_that_was_altered_does_not_verify() {
    let mut house = house();
    for _ in 0..5 {
        task(&mut house, json!({}));
    }
    house.flush("wsp_a");
    let sound = house.store.clone();
    let verdict = |house: &mut House| house.call("audit.verify_chain", json!({"workspace": "wsp_a"}));
    assert_eq!(verdict(&mut house).unwrap()["entries_checked"], 11);
    let alter = |house: &mut House, change: &dyn Fn(&mut choir_messages::chap::Entry)| {
        house.store = sound.clone();
        change(&mut house.store.0.get_mut("wsp_a").unwrap().entries[7]);
        verdict(house).unwrap_err()["message"].as_str().unwrap().to_owned()
    };
    let altered = alter(&mut house, &|e| e.record = e.record.replace("draft", "graft"));
    assert!(altered.starts_with("seq 8: prev_hash mismatch; seq 9: prev_hash mismatch"), "{altered}");
    assert!(altered.ends_with("chain_head mismatch: replay does not match stored head"), "{altered}");
    assert!(alter(&mut house, &|e| e.prev_hash = None).starts_with("seq 7: prev_hash mismatch"));
    assert!(alter(&mut house, &|e| e.refused = Some(-1)).starts_with("seq 7: malformed entry"));
    house.store = sound.clone();
    house.store.0.get_mut("wsp_a").unwrap().entries[10].record =
        r#"{"id":1,"jsonrpc":"2.0","method":"x"}"#.to_owned();
    assert_eq!(
        verdict(&mut house).unwrap_err()["message"],
        "chain_head mismatch: replay does not match stored head"
    );
}

#[test]
fn a_chain_that_begins_later_says_what_it_does_not_cover() {
    let mut house = House::new(Settings::default());
    house.ok("workspace.create", json!({"workspace": "w", "profiles": ["core/1.0"]}));
    house.ok("participant.join", json!({"workspace": "w", "from": ANN, "type": "human", "role": "admin"}));
    assert_eq!(house.code("audit.verify_chain", json!({"workspace": "w"})), -32602);
    let profiles = json!(["core/1.0", "audit-scitt/1.0"]);
    house.ok("workspace.set_profiles", json!({"workspace": "w", "from": ANN, "profiles": profiles}));
    let verdict = house.ok("audit.verify_chain", json!({"workspace": "w"}));
    assert_eq!(verdict["status"], "not_evaluated");
    assert_eq!(
        (verdict["entries_checked"].as_u64(), verdict["entries_unchecked"].as_u64()),
        (Some(1), Some(2))
    );
    assert_eq!(verdict["checked_from_seq"], 2);
}

#[test]
fn a_clock_that_goes_back_does_not_take_the_log_with_it() {
    let mut house = house();
    house.now = Timestamp::from_millis(house.now.millis() - 3_600_000);
    task(&mut house, json!({}));
    let log = house.log("wsp_a");
    assert!(log.windows(2).all(|pair| pair[0].arrived <= pair[1].arrived));
}

#[test]
fn memory_holds_a_bounded_part_of_what_is_stored() {
    let mut house = house();
    for _ in 0..2_500 {
        task(&mut house, json!({}));
    }
    let (objects, bytes) = house.cache_size("wsp_a");
    assert!(
        objects <= choir_chap::limits::CACHED_OBJECTS && bytes <= choir_chap::limits::CACHED_BYTES,
        "{objects} {bytes}"
    );
}

#[test]
fn a_paused_workspace_takes_what_ends_the_pause_and_little_else() {
    let mut house = house();
    house.ok("control.pause", with(ANN, json!({"scope": "workspace"})));
    let create = with(ANN, json!({"kind": "k", "input": 1, "assignee": ONE}));
    assert_eq!(house.code("task.create", create.clone()), -32063);
    house.ok("audit.read", with(ANN, json!({})));
    house.ok("control.resume", with(ANN, json!({"scope": "workspace"})));
    house.ok("task.create", create);
}

#[test]
fn a_task_paused_and_resumed_is_where_it_was() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({}));
    house.ok("control.pause", with(ANN, json!({"task_id": id})));
    assert_eq!(house.code("decide.approve", with(ANN, json!({"task_id": id}))), -32010);
    assert_eq!(house.ok("control.resume", with(ANN, json!({"task_id": id})))["state"], "review_requested");
    house.ok("decide.approve", with(ANN, json!({"task_id": id})));
}

#[test]
fn whoever_is_asked_gets_a_notice_and_numbers_have_no_gaps() {
    let mut house = house();
    let id = task(&mut house, json!({}));
    request(&mut house, &id, json!({"to": ["workspace:wsp_a"]}));
    house.ok("decide.approve", with(ANN, json!({"task_id": id})));
    house.flush("wsp_a");
    let notices = &house.store.0["wsp_a"].notices;
    assert!(notices.iter().zip(1..).all(|(notice, number)| notice.number == number));
    let told = |kind: &str| -> Vec<&str> {
        let kind = format!("\"kind\":\"{kind}\"");
        notices.iter().filter(|notice| notice.body.contains(&kind)).map(|notice| notice.to.as_str()).collect()
    };
    assert_eq!(told("task_created"), [ONE]);
    assert_eq!(told("review_requested").len(), 4, "everybody but the asker");
    assert_eq!(told("review_decided"), [ONE]);
}
