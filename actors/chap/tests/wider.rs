//! The methods that the reference only lists: each does what the specification says of it, for whom it says, in the
//! states it says, and tells whoever is concerned.

mod support;

use choir_chap::{Settings, codes, methods};
use choir_messages::time::Timestamp;
use serde_json::{Value, json};
use support::House;
use support::people::{AGENT, ANN, BOB, CY, STRANGER, by, house};

fn task(house: &mut House) -> String {
    let created =
        house.ok("task.create", by(ANN, json!({"kind": "draft", "input": {"n": 1}, "assignee": AGENT})));
    created["task_id"].as_str().unwrap_or_default().to_owned()
}

fn describe(house: &mut House, task: &str) -> Value {
    house.ok("task.describe", json!({"workspace": "wsp_a", "task_id": task}))["task"].clone()
}

fn notices(house: &House, who: &str) -> Vec<Value> {
    let notices = house.store.0.get("wsp_a").into_iter().flat_map(|stored| &stored.notices);
    notices
        .filter(|n| n.to == who)
        .map(|n| serde_json::from_str(&n.body).expect("a notice is JSON"))
        .collect()
}

fn last_kind(house: &House, who: &str) -> Value {
    notices(house, who).last().map(|notice| notice["params"]["kind"].clone()).unwrap_or_default()
}

/// A call that must be refused with that code, and change nothing.
fn refused(house: &mut House, code: i64, method: &str, params: Value) {
    house.flush("wsp_a");
    let objects = house.store.0.get("wsp_a").map(|stored| stored.objects.clone());
    let notices = house.store.0.get("wsp_a").map(|stored| stored.notices.len());
    assert_eq!(house.code(method, params.clone()), code, "{method} {params}");
    house.flush("wsp_a");
    assert_eq!(
        house.store.0.get("wsp_a").map(|stored| stored.objects.clone()),
        objects,
        "{method} changed an object"
    );
    assert_eq!(
        house.store.0.get("wsp_a").map(|stored| stored.notices.len()),
        notices,
        "{method} told somebody"
    );
}

#[test]
fn all_62_names_of_the_catalogue_are_there_and_nothing_else_is() {
    let mut names: Vec<&str> = methods().map(|method| method.name).collect();
    names.sort_unstable();
    let expected = "abstain.declare audit.checkpoint audit.export audit.read audit.redact audit.submit_to_scitt audit.verify \
        audit.verify_chain audit.verify_receipt capture.append control.cancel control.pause control.resume control.rollback \
        control.set_mode_ceiling control.snapshot control.supersede decide.approve decide.override decide.reject \
        deliberate.close deliberate.comment deliberate.open deliberate.vote escalate.auto escalate.raise handoff.accept \
        handoff.decline handoff.propose notify.alert notify.message participant.announce participant.describe \
        participant.heartbeat participant.join participant.leave participant.revoke_key participant.rotate_key \
        review.acknowledge review.depth review.request task.accept task.assign task.complete task.create task.decline \
        task.describe task.progress task.route task.start task.update whisper.answer whisper.ask workspace.close \
        workspace.create workspace.describe workspace.evict workspace.invite workspace.pause workspace.resume \
        workspace.set_mode workspace.set_profiles";
    assert_eq!(names, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!(names.len(), 62);
}

#[test]
fn each_method_belongs_to_the_profile_that_the_catalogue_gives_it() {
    for method in methods() {
        let expected = match method.name {
            "task.route" | "review.depth" | "escalate.auto" => "routing/1.0",
            "escalate.raise" => "review/1.0",
            "workspace.set_mode" => "modes/1.0",
            "workspace.pause" | "workspace.resume" => "control/1.0",
            "audit.submit_to_scitt" | "audit.verify_chain" | "audit.verify_receipt" => "audit-scitt/1.0",
            name => match name.split('.').next() {
                Some("abstain" | "decide" | "review") => "review/1.0",
                Some("control") => "control/1.0",
                Some("deliberate") => "deliberation/1.0",
                Some("handoff") => "handoff/1.0",
                Some("whisper") => "whisper/1.0",
                _ => "core/1.0",
            },
        };
        assert_eq!(method.profile, expected, "{}", method.name);
    }
    let open: Vec<&str> = methods().filter(|m| !m.gated && m.profile != "core/1.0").map(|m| m.name).collect();
    assert_eq!(open, ["audit.verify_chain", "audit.verify_receipt"], "what is never gated, besides Core");
}

#[test]
fn privileged_is_what_the_reference_and_the_specification_say_it_is() {
    let mut privileged: Vec<&str> =
        methods().filter(|method| method.privileged).map(|method| method.name).collect();
    privileged.sort_unstable();
    let expected = "audit.export audit.redact control.cancel control.pause control.resume control.rollback \
        control.set_mode_ceiling control.snapshot control.supersede participant.revoke_key participant.rotate_key \
        workspace.close workspace.evict workspace.invite workspace.pause workspace.resume workspace.set_mode \
        workspace.set_profiles";
    assert_eq!(privileged, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn every_method_but_the_open_reads_and_the_openings_refuses_a_stranger() {
    let open = [
        "audit.read",
        "audit.verify",
        "audit.verify_chain",
        "audit.verify_receipt",
        "audit.submit_to_scitt",
        "workspace.describe",
        "workspace.create",
        "participant.join",
        "participant.describe",
        "task.describe",
        "participant.rotate_key",
    ];
    let mut house = house();
    let mut rng = support::random::Rng(1);
    for method in methods().filter(|method| !open.contains(&method.name)) {
        let mut params = Value::Object(support::random::params(&house, &mut rng, method));
        params["from"] = json!(STRANGER);
        params["to"] = json!(ANN);
        params["target_uri"] = json!(ANN);
        refused(&mut house, codes::NOT_AUTHORISED, method.name, params);
    }
}

// ---- tasks

#[test]
fn a_task_is_assigned_accepted_begun_and_told_of_by_its_assignee_alone() {
    let mut house = house();
    let assign = by(ANN, json!({"kind": "draft", "input": {"n": 1}, "assignee": AGENT}));
    let id = house.ok("task.assign", assign)["task_id"].as_str().unwrap_or_default().to_owned();
    assert_eq!(last_kind(&house, AGENT), "task_created");
    for method in ["task.accept", "task.start", "task.decline", "task.progress"] {
        refused(&mut house, codes::NOT_AUTHORISED, method, by(BOB, json!({"task_id": id})));
        refused(&mut house, codes::PARAMS, method, by(AGENT, json!({"task_id": "tsk_none"})));
        refused(&mut house, codes::PARAMS, method, by(AGENT, json!({})));
    }
    let accepted = house.ok("task.accept", by(AGENT, json!({"task_id": id, "comment": "glad to"})));
    assert_eq!(accepted, json!({"task_id": id, "accepted": true, "state": "created"}));
    assert_eq!(last_kind(&house, ANN), "task_accepted");
    refused(&mut house, codes::PARAMS, "task.progress", by(AGENT, json!({"task_id": id})));
    assert_eq!(house.ok("task.start", by(AGENT, json!({"task_id": id})))["state"], "in_progress");
    refused(&mut house, codes::PARAMS, "task.start", by(AGENT, json!({"task_id": id})));
    refused(&mut house, codes::PARAMS, "task.accept", by(AGENT, json!({"task_id": id})));
    refused(&mut house, codes::PARAMS, "task.progress", by(AGENT, json!({"task_id": id, "percent": 101})));
    let progress = json!({"task_id": id, "stage": "reading", "percent": 40, "progress_note": "half"});
    assert_eq!(house.ok("task.progress", by(AGENT, progress))["recorded"], true);
    let told = notices(&house, ANN).pop().unwrap_or_default();
    assert_eq!((&told["params"]["kind"], &told["params"]["percent"]), (&json!("task_progress"), &json!(40)));
    let described = describe(&mut house, &id);
    let words: Vec<&Value> =
        described["history"].as_array().into_iter().flatten().map(|step| &step["note"]).collect();
    assert_eq!(words.last(), Some(&&json!("reading: 40 %: half")));
    assert_eq!(
        house.ok("task.decline", by(AGENT, json!({"task_id": id, "reason": "too much"})))["state"],
        "declined"
    );
    assert_eq!(last_kind(&house, ANN), "task_finished");
    refused(&mut house, codes::PARAMS, "task.decline", by(AGENT, json!({"task_id": id})));
    refused(&mut house, codes::PARAMS, "task.assign", by(ANN, json!({"task_id": id, "assignee": BOB})));
}

#[test]
fn an_existing_task_is_assigned_anew_by_who_asked_for_it_who_holds_it_or_an_admin() {
    let mut house = house();
    let id = task(&mut house);
    refused(&mut house, codes::NOT_AUTHORISED, "task.assign", by(CY, json!({"task_id": id, "assignee": CY})));
    refused(
        &mut house,
        codes::PARAMS,
        "task.assign",
        by(AGENT, json!({"task_id": id, "assignee": STRANGER})),
    );
    let passed_on = house.ok("task.assign", by(AGENT, json!({"task_id": id, "assignee": BOB})));
    assert_eq!(passed_on, json!({"task_id": id, "state": "created", "assignee": BOB}));
    assert_eq!(last_kind(&house, BOB), "task_assigned");
    assert_eq!(house.ok("task.assign", by(ANN, json!({"task_id": id, "assignee": CY})))["assignee"], CY);
    house.ok("control.pause", by(ANN, json!({"scope": "participant", "participant_uri": BOB})));
    refused(
        &mut house,
        codes::CONTROL_PAUSED,
        "task.assign",
        by(ANN, json!({"task_id": id, "assignee": BOB})),
    );
}

#[test]
fn a_described_task_shows_its_review_and_its_history_and_describing_leaves_no_entry() {
    let mut house = house();
    let id = task(&mut house);
    house.ok("task.update", by(AGENT, json!({"task_id": id, "state": "in_progress"})));
    let request = json!({"task_id": id, "artefact": {"text": "a"}, "to": [ANN, BOB], "rule": "all_approve"});
    house.ok("review.request", by(AGENT, request));
    house.ok("decide.approve", by(BOB, json!({"task_id": id})));
    let length = house.log("wsp_a").len();
    let described = describe(&mut house, &id);
    assert_eq!(house.log("wsp_a").len(), length);
    for name in [
        "id",
        "kind",
        "state",
        "assignee",
        "delegator",
        "input",
        "created_at",
        "updated_at",
        "mode",
        "history",
    ] {
        assert!(described.get(name).is_some(), "{name} is not there: {described}");
    }
    assert_eq!(described["pending_artefact"], json!({"text": "a"}));
    let review = &described["review"];
    assert_eq!((&review["rule"], &review["requested_to"]), (&json!("all_approve"), &json!([ANN, BOB])));
    assert_eq!(review["decisions"].as_array().map(Vec::len), Some(1));
    assert!(review.get("requested_at").is_some());
    refused(&mut house, codes::PARAMS, "task.describe", json!({"workspace": "wsp_a", "task_id": "tsk_none"}));
    house.settings.require_read_membership = true;
    refused(&mut house, codes::NOT_AUTHORISED, "task.describe", json!({"workspace": "wsp_a", "task_id": id}));
}

#[test]
fn the_output_of_a_shadow_task_is_shown_to_people_and_its_producer_until_a_person_has_approved_it() {
    let mut house = house();
    let created = house
        .ok("task.create", by(ANN, json!({"kind": "d", "input": {}, "assignee": AGENT, "mode": "shadow"})));
    let id = created["task_id"].as_str().unwrap_or_default().to_owned();
    house.ok("task.complete", by(AGENT, json!({"task_id": id, "output": "secretive"})));
    let seen = |house: &mut House, who: &str| {
        house.ok("task.describe", by(who, json!({"task_id": id})))["task"].clone()
    };
    assert_eq!(seen(&mut house, "service:mill")["output_withheld"], true);
    assert_eq!(seen(&mut house, "service:mill").get("output"), None);
    assert_eq!(seen(&mut house, BOB)["output"], "secretive");
    assert_eq!(seen(&mut house, AGENT)["output"], "secretive");
}

#[test]
fn a_reviewer_says_that_a_review_has_begun_and_nobody_else_can() {
    let mut house = house();
    let id = task(&mut house);
    refused(&mut house, codes::NOT_REVIEWABLE, "review.acknowledge", by(BOB, json!({"task_id": id})));
    house.ok("review.request", by(AGENT, json!({"task_id": id, "artefact": "a", "to": BOB})));
    refused(&mut house, codes::NOT_AUTHORISED, "review.acknowledge", by(CY, json!({"task_id": id})));
    assert_eq!(house.ok("review.acknowledge", by(BOB, json!({"task_id": id})))["acknowledged"], true);
    assert_eq!(last_kind(&house, AGENT), "review_acknowledged");
    assert_eq!(describe(&mut house, &id)["state"], "review_requested");
}

#[test]
fn a_note_is_kept_beside_a_task_without_changing_it() {
    let mut house = house();
    let id = task(&mut house);
    let before = describe(&mut house, &id);
    refused(&mut house, codes::PARAMS, "capture.append", by(BOB, json!({"task_id": id})));
    refused(
        &mut house,
        codes::PARAMS,
        "capture.append",
        by(BOB, json!({"task_id": id, "kind": "poem", "text": "x"})),
    );
    let kept =
        house.ok("capture.append", by(BOB, json!({"task_id": id, "kind": "link", "content": {"url": "x"}})));
    assert!(kept["capture_id"].as_str().is_some_and(|id| id.starts_with("art_")));
    assert_eq!(describe(&mut house, &id), before);
    let read = house.ok(
        "audit.read",
        json!({"workspace": "wsp_a", "filter": {"task_id": id, "method": "capture.append"}}),
    );
    assert!(
        read["entries"].as_array().is_some_and(|entries| entries.iter().any(|e| e.get("envelope").is_some()))
    );
}

// ---- participants and messages

#[test]
fn a_participant_tells_of_itself_and_is_described_with_it() {
    let mut house = house();
    let announce = json!({"status": "busy", "display_name": "One", "capabilities": {"skills": ["x"]}, "note": "slow today"});
    assert_eq!(house.ok("participant.announce", by(AGENT, announce))["status"], "busy");
    refused(&mut house, codes::PARAMS, "participant.announce", by(AGENT, json!({"status": "asleep"})));
    house.now = Timestamp::from_millis(house.now.millis() + 5000);
    let at = house.ok("participant.heartbeat", by(AGENT, json!({})))["at"].clone();
    let who = json!({"workspace": "wsp_a", "participant_uri": AGENT});
    let described = house.ok("participant.describe", who)["participant"].clone();
    assert_eq!((&described["uri"], &described["display_name"]), (&json!(AGENT), &json!("One")));
    let presence = &described["presence"];
    assert_eq!(
        (&presence["status"], &presence["last_seen"], &presence["note"]),
        (&json!("busy"), &at, &json!("slow today"))
    );
    refused(
        &mut house,
        codes::PARAMS,
        "participant.describe",
        json!({"workspace": "wsp_a", "participant_uri": STRANGER}),
    );
}

#[test]
fn a_message_reaches_members_and_everybody_but_its_sender_in_a_broadcast() {
    let mut house = house();
    refused(&mut house, codes::PARAMS, "notify.message", by(BOB, json!({"to": ANN})));
    refused(&mut house, codes::PARAMS, "notify.message", by(BOB, json!({"to": STRANGER, "text": "psst"})));
    refused(&mut house, codes::PARAMS, "notify.message", by(BOB, json!({"to": [], "text": "psst"})));
    house.ok("notify.message", by(BOB, json!({"to": [ANN, CY], "text": "hello"})));
    let got = notices(&house, CY).pop().unwrap_or_default();
    assert_eq!((&got["method"], &got["params"]["text"]), (&json!("notify.message"), &json!("hello")));
    assert_eq!((&got["params"]["sender"], &got["params"]["to"]), (&json!(BOB), &json!(CY)));
    refused(&mut house, codes::PARAMS, "notify.alert", by(BOB, json!({"to": ANN, "severity": "dire"})));
    let before = notices(&house, BOB).len();
    house.ok("notify.alert", by(BOB, json!({"to": "workspace:wsp_a", "severity": "high", "title": "fire"})));
    for who in [ANN, CY, AGENT, "service:mill"] {
        assert_eq!(last_kind(&house, who), "alert", "{who}");
    }
    assert_eq!(notices(&house, BOB).len(), before);
}

// ---- the workspace

#[test]
fn only_an_admin_invites_and_evicts_and_both_are_told_to_whom_it_concerns() {
    let mut house = house();
    for method in ["workspace.invite", "workspace.evict", "workspace.close"] {
        refused(&mut house, codes::NOT_AUTHORISED, method, by(BOB, json!({"participant_uri": STRANGER})));
    }
    refused(&mut house, codes::PARAMS, "workspace.invite", by(ANN, json!({"participant_uri": BOB})));
    refused(&mut house, codes::PARAMS, "workspace.invite", by(ANN, json!({"participant_uri": "nobody"})));
    let invite = json!({"participant_uri": STRANGER, "role": "reviewer", "message": "come"});
    assert_eq!(house.ok("workspace.invite", by(ANN, invite))["invited"], true);
    assert_eq!(last_kind(&house, STRANGER), "workspace_invitation");
    refused(&mut house, codes::PARAMS, "workspace.evict", by(ANN, json!({"participant_uri": ANN})));
    refused(&mut house, codes::PARAMS, "workspace.evict", by(ANN, json!({"participant_uri": STRANGER})));
    assert_eq!(
        house.ok("workspace.evict", by(ANN, json!({"participant_uri": CY, "reason": "spam"})))["evicted"],
        true
    );
    assert_eq!(last_kind(&house, CY), "workspace_evicted");
    refused(&mut house, codes::NOT_AUTHORISED, "notify.message", by(CY, json!({"to": ANN, "text": "why?"})));
}

#[test]
fn a_closed_workspace_answers_reads_and_its_log_never_grows_again() {
    let mut house = house();
    let id = task(&mut house);
    assert_eq!(house.ok("workspace.close", by(ANN, json!({"reason": "done"})))["state"], "closed");
    assert_eq!(last_kind(&house, BOB), "workspace_state");
    let length = house.log("wsp_a").len();
    for (method, params) in [
        ("task.update", json!({"task_id": id, "state": "in_progress"})),
        ("workspace.resume", json!({})),
        ("workspace.close", json!({})),
        ("audit.redact", json!({"seq": 0, "reason": "x"})),
    ] {
        refused(&mut house, codes::CONTROL_PAUSED, method, by(ANN, params));
    }
    let rejoin = json!({"workspace": "wsp_a", "from": STRANGER, "type": "human"});
    refused(&mut house, codes::CONTROL_PAUSED, "participant.join", rejoin);
    assert_eq!(house.log("wsp_a").len(), length);
    assert_eq!(describe(&mut house, &id)["state"], "created");
    assert_eq!(house.ok("workspace.describe", json!({"workspace": "wsp_a"}))["state"], "closed");
    assert_eq!(house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}))["ok"], true);
    assert_eq!(house.ok("audit.export", by(ANN, json!({})))["done"], true);
}

#[test]
fn a_paused_workspace_takes_up_again_only_by_its_resumption() {
    let mut house = house();
    let id = task(&mut house);
    assert_eq!(house.ok("workspace.pause", by(BOB, json!({"reason": "lunch"})))["state"], "paused");
    refused(&mut house, codes::CONTROL_PAUSED, "task.start", by(AGENT, json!({"task_id": id})));
    assert_eq!(describe(&mut house, &id)["state"], "created");
    assert_eq!(house.ok("workspace.resume", by(BOB, json!({})))["state"], "active");
    assert_eq!(house.ok("task.start", by(AGENT, json!({"task_id": id})))["state"], "in_progress");
}

#[test]
fn a_promotion_takes_one_step_a_person_and_an_open_gate() {
    let mut house = House::new(Settings::default());
    let gate = json!({"minimum_decisions": 1, "max_override_percent": 0});
    let profiles = json!(["core/1.0", "review/1.0", "modes/1.0"]);
    house.ok(
        "workspace.create",
        json!({"workspace": "wsp_a", "mode": "shadow", "profiles": profiles, "promotion_gate": gate}),
    );
    for uri in [ANN, AGENT] {
        let kind = uri.split(':').next();
        house.ok(
            "participant.join",
            json!({"workspace": "wsp_a", "from": uri, "type": kind, "role": "admin"}),
        );
    }
    let set = |from: &str, mode: &str| by(from, json!({"mode": mode}));
    refused(&mut house, codes::PARAMS, "workspace.set_mode", set(ANN, "banana"));
    refused(&mut house, codes::MODE_STEP_UP_REQUIRED, "workspace.set_mode", set(AGENT, "trial"));
    refused(&mut house, codes::MODE_STEP_UP_REQUIRED, "workspace.set_mode", set(ANN, "production"));
    refused(&mut house, codes::MODE_STEP_UP_REQUIRED, "workspace.set_mode", set(ANN, "trial"));
    let id = task(&mut house);
    house.ok("review.request", by(AGENT, json!({"task_id": id, "artefact": "a", "to": ANN})));
    house.ok("decide.approve", by(ANN, json!({"task_id": id})));
    let promoted = house.ok("workspace.set_mode", set(ANN, "trial"));
    assert_eq!((&promoted["mode"], &promoted["previous"]), (&json!("trial"), &json!("shadow")));
    assert_eq!(promoted["decided"]["approved"], 1);
    assert_eq!(last_kind(&house, AGENT), "workspace_mode");
    // The count begins anew with the mode; a demotion asks for nothing.
    refused(&mut house, codes::MODE_STEP_UP_REQUIRED, "workspace.set_mode", set(ANN, "production"));
    assert_eq!(house.ok("workspace.set_mode", set(AGENT, "shadow"))["mode"], "shadow");
}
