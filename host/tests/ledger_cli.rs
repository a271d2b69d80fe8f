//! `choirctl ledger` as its user runs it: a task file of the format, a sentence, every offline command, every exit code.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::process::Output;

use choir_scripted_model::Script;
use serde_json::{Value, json};

use tokio::io::{AsyncBufReadExt as _, BufReader};

use support::World;

async fn ctl(world: &World, arguments: &[&str]) -> Output {
    let mut command = world.command(env!("CARGO_BIN_EXE_choirctl"));
    let run = command.args(arguments).stdin(std::process::Stdio::null()).output();
    tokio::time::timeout(support::SOON, run).await.expect("it ends in time").unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn good(world: &World, arguments: &[&str]) -> String {
    let output = ctl(world, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", out(&output), err(&output));
    out(&output)
}

async fn fails(world: &World, code: i32, arguments: &[&str]) -> String {
    let output = ctl(world, arguments).await;
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", out(&output), err(&output));
    format!("{}{}", out(&output), err(&output))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The original's own form of a task file.
const TASK: &str = r#"{
  "task_id": "notes.v1", "objective": "read notes.txt", "input_artifacts": ["notes.txt"], "constraints": ["read-only"],
  "policy_profile": "default", "requested_roles": ["planner", "executor", "critic"], "sensitivity_level": "internal",
  "time_budget_seconds": 120, "max_tool_calls": 4, "tags": ["golden"]
}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_shown_exported_imported_and_verified() {
    let world = World::new(Script::default(), |_| {}).await;
    std::fs::write(world.workspace().join("notes.txt"), "the answer is 42\n").unwrap();
    let task = world.folder().join("task.json");
    std::fs::write(&task, TASK).unwrap();
    let told = good(&world, &["ledger", "run", task.to_str().unwrap()]).await;
    for part in [
        "critic    proposal_reviewed",
        "the answer is 42",
        "evidence ",
        "completed, verification: pass",
        "ledger/traces/",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let followed = good(&world, &["--json", "ledger", "run", "Produce a signed run."]).await;
    let followed = lines(&followed);
    let trace = followed[0]["trace"].as_str().unwrap().to_owned();
    assert_eq!(followed[1]["kind"], "session_initialized");
    let end = followed.last().unwrap();
    assert_eq!((end["status"].as_str(), end["verdict"].as_str()), (Some("completed"), Some("pass")));
    assert!(!end["claims"][0]["evidence_artifacts"].as_array().unwrap().is_empty());

    let listed: Value = serde_json::from_str(&good(&world, &["--json", "ledger", "list"]).await).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let shown = good(&world, &["ledger", "show", &trace]).await;
    assert!(
        shown.contains("signs with key_") && shown.contains("claim_issued") && shown.contains('●'),
        "{shown}"
    );
    let again = good(&world, &["--json", "ledger", "follow", &trace]).await;
    assert_eq!(lines(&again).len() + 1, followed.len(), "the same events, without the word that a run began");

    // Verified as a whole, as one trace, as a folder; by both readings; with the proof of its publication.
    let home = world.state.ledger();
    let home = home.to_str().unwrap();
    good(&world, &["ledger", "verify", home]).await;
    good(&world, &["ledger", "verify", home, "--compat", "--profile", "strict"]).await;
    let keys: Value =
        serde_json::from_str(&good(&world, &["--json", "ledger", "key", "list"]).await).unwrap();
    let log_key = keys["log_key"].as_str().unwrap().to_owned();
    assert_eq!(keys["identities"].as_array().unwrap().iter().filter(|i| i["agent_id"] != "root").count(), 4);
    let with_key = ["ledger", "verify", home, "--trace", &trace, "--log-key", &log_key];
    assert!(good(&world, &with_key).await.contains("publication: its head is entry"));
    let folder = format!("{home}/traces/{trace}");
    let report: Value =
        serde_json::from_str(&good(&world, &["--json", "ledger", "verify", &folder]).await).unwrap();
    assert_eq!(
        (report["trace_id"].as_str(), report["verification_status"].as_str()),
        (Some(&*trace), Some("pass"))
    );
    assert_eq!(report["checks"].as_array().unwrap().len(), 10);

    let export = world.folder().join("run.export");
    let export = export.to_str().unwrap();
    good(&world, &["ledger", "export", &trace, export]).await;
    good(&world, &["ledger", "verify", export, "--log-key", &log_key]).await;
    // The one offline verifier takes folders, too.
    good(&world, &["verify", export, "--log-key", &log_key]).await;
    fails(&world, 2, &["ledger", "export", &trace, export]).await;
    let other = world.folder().join("other");
    let other = other.to_str().unwrap();
    good(&world, &["ledger", "import", export, "--home", other]).await;
    good(&world, &["ledger", "verify", other]).await;
    assert!(good(&world, &["ledger", "show", &trace, "--home", other]).await.contains("claim_issued"));
    tampered(&world, export, &trace, other).await;
}

/// One character of a claim, and everything says so.
async fn tampered(world: &World, export: &str, trace: &str, other: &str) {
    let events = Path::new(export).join("traces").join(trace).join("events.jsonl");
    let text = std::fs::read_to_string(&events).unwrap();
    std::fs::write(&events, text.replacen("choir.fs.search", "choir.fs.searsh", 1)).unwrap();
    let told = fails(world, 1, &["ledger", "verify", export]).await;
    fails(world, 1, &["verify", export]).await;
    assert!(told.contains("HASH_MISMATCH") && told.contains("fail"), "{told}");
    let third = format!("{other}-3");
    assert!(
        fails(world, 5, &["ledger", "import", export, "--home", &third]).await.contains("does not verify")
    );
}

/// Begins a run whose command waits for the file `go`, and returns its trace once the command runs.
async fn begin_and_wait(world: &World) -> (String, tokio::process::Child) {
    let mut command = world.command(env!("CARGO_BIN_EXE_choirctl"));
    command.args(["--json", "ledger", "run", "run until [ -e go ]; do sleep 0.05; done"]);
    let mut run = command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut told = BufReader::new(run.stdout.as_mut().unwrap()).lines();
    let started = async {
        let mut trace = None;
        loop {
            let line = told.next_line().await.unwrap().expect("the run goes on");
            let line: Value = serde_json::from_str(&line).unwrap();
            trace = trace.or_else(|| line["trace"].as_str().map(str::to_owned));
            if line["kind"] == "tool_execution_started" {
                break trace.unwrap();
            }
        }
    };
    let trace = tokio::time::timeout(support::SOON, started).await.expect("the command is started");
    (trace, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_use_is_not_rotated_and_a_revoked_one_ends_its_run_which_says_why() {
    let world = World::new(Script::default(), |_| {}).await;
    let (trace, run) = begin_and_wait(&world).await;
    let keys: Value =
        serde_json::from_str(&good(&world, &["--json", "ledger", "key", "list"]).await).unwrap();
    let identities = keys["identities"].as_array().unwrap();
    let executor = identities.iter().find(|identity| identity["agent_id"] == "executor-agent").unwrap();
    let key = executor["key_id"].as_str().unwrap();
    let refused = fails(&world, 5, &["ledger", "key", "rotate", key]).await;
    assert!(refused.contains(&format!("ledger abort {trace}")), "{refused}");
    assert!(refused.contains(&format!("ledger key revoke {key}")), "{refused}");

    good(&world, &["ledger", "key", "revoke", key, "--reason", "lost"]).await;
    std::fs::write(world.workspace().join("go"), "").unwrap();
    let ended = tokio::time::timeout(support::SOON, run.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(ended.status.code(), Some(3), "{}", err(&ended));
    assert!(err(&ended).contains(&format!("its key {key} was revoked")), "{}", err(&ended));
    // What was signed before the revocation is good; what is missing is the end.
    let report = ctl(&world, &["--json", "ledger", "verify", "--trace", &trace]).await;
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["run"]["status"], "failed");
    assert!(report["run"]["reason"].as_str().unwrap().contains("was revoked"), "{report}");
    for failure in report["failures"].as_array().unwrap() {
        assert!(!failure["verification_step"].as_str().unwrap().contains("KEY"), "{failure}");
        assert!(!failure["verification_step"].as_str().unwrap().contains("SIGNATURE"), "{failure}");
    }
    // The next run has a new key, and once it has ended that key is rotated.
    good(&world, &["ledger", "run", "read go"]).await;
    let keys: Value =
        serde_json::from_str(&good(&world, &["--json", "ledger", "key", "list"]).await).unwrap();
    let active =
        |identity: &&Value| identity["agent_id"] == "executor-agent" && identity["status"] == "active";
    let executor = keys["identities"].as_array().unwrap().iter().find(active).unwrap();
    good(&world, &["ledger", "key", "rotate", executor["key_id"].as_str().unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_a_revoked_key_that_choird_finds_at_its_start_ends_as_failed() {
    let mut world = World::new(Script::default(), |_| {}).await;
    let (trace, run) = begin_and_wait(&world).await;
    world.kill_choird().await;
    drop(run);
    let keys: Value =
        serde_json::from_str(&good(&world, &["--json", "ledger", "key", "list"]).await).unwrap();
    for identity in keys["identities"].as_array().unwrap() {
        good(&world, &["ledger", "key", "revoke", identity["key_id"].as_str().unwrap()]).await;
    }
    std::fs::write(world.workspace().join("go"), "").unwrap();
    world.start().await;
    let told = fails(&world, 3, &["ledger", "follow", &trace]).await;
    assert!(told.contains("cannot go on") && told.contains("was revoked"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_run_is_told_from_a_failed_one_by_whoever_verifies_it() {
    let world = World::new(Script::default(), |_| {}).await;
    let (trace, run) = begin_and_wait(&world).await;
    let told = good(&world, &["ledger", "abort", &trace, "--reason", "wrong file"]).await;
    assert!(told.contains("aborted: wrong file"), "{told}");
    let ended = tokio::time::timeout(support::SOON, run.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", err(&ended));
    let told = fails(&world, 1, &["ledger", "verify", "--trace", &trace]).await;
    assert!(told.contains("The run was aborted before its end.") && told.contains(": wrong file"), "{told}");
    let report = ctl(&world, &["--json", "ledger", "verify", "--trace", &trace]).await;
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(
        (&report["run"]["status"], &report["run"]["reason"]),
        (&json!("aborted"), &json!("wrong file"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_a_command_can_end_has_its_exit_code() {
    let world = World::new(Script::default(), |_| {}).await;
    let task = world.folder().join("bad.json");
    std::fs::write(&task, r#"{"task_id":"x","objective":""}"#).unwrap();
    assert!(fails(&world, 2, &["ledger", "run", task.to_str().unwrap()]).await.contains("is missing"));
    fails(&world, 2, &["ledger", "run", "nowhere.json"]).await;
    fails(&world, 2, &["ledger", "run", "read a", "--agent", "nobody"]).await;
    let refused = fails(&world, 5, &["ledger", "run", "read a [reject]"]).await;
    assert!(refused.contains("turned down") && refused.contains("ledger show"), "{refused}");
    fails(&world, 1, &["ledger", "abort", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).await;
    fails(&world, 1, &["ledger", "show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).await;
    fails(&world, 2, &["ledger", "verify", "/nowhere"]).await;
    fails(&world, 2, &["ledger", "verify", world.folder().to_str().unwrap()]).await;
    let home = world.state.ledger();
    let home = home.to_str().unwrap();
    fails(&world, 5, &["ledger", "verify", home, "--trace", "../../etc"]).await;
    fails(&world, 2, &["ledger", "verify", home, "--trace", "01ARZ"]).await;
    fails(&world, 2, &["ledger", "verify", home, "--profile", "fierce"]).await;
    // The keys of the roles: made, replaced, withdrawn.
    let made = good(&world, &["--json", "ledger", "key", "new", "second-critic", "--role", "critic"]).await;
    let made: Value = serde_json::from_str(&made).unwrap();
    fails(&world, 5, &["ledger", "key", "new", "second-critic", "--role", "critic"]).await;
    let key = made["key_id"].as_str().unwrap();
    let rotated = good(&world, &["--json", "ledger", "key", "rotate", key]).await;
    let rotated: Value = serde_json::from_str(&rotated).unwrap();
    assert_eq!(rotated["status"], "active");
    let revoked =
        good(&world, &["--json", "ledger", "key", "revoke", rotated["key_id"].as_str().unwrap()]).await;
    assert_eq!(serde_json::from_str::<Value>(&revoked).unwrap()["status"], json!("revoked"));
    fails(&world, 2, &["ledger", "key", "rotate", "key_0123456789abcdef"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_choird_the_command_that_starts_it_is_named_and_offline_commands_work() {
    let world = World::stopped(Script::default(), |_| {}).await;
    let told = fails(&world, 3, &["ledger", "run", "read a"]).await;
    assert!(told.contains("choird is not running") && told.contains("start it with `choird`"), "{told}");
    assert!(good(&world, &["ledger", "list"]).await.contains("no traces"));
    good(&world, &["ledger", "key", "new", "planner-agent", "--role", "planner"]).await;
    assert!(good(&world, &["ledger", "key", "list"]).await.contains("log key: "));
    for command in ["run", "follow", "abort", "verify", "list", "show", "export", "import", "key"] {
        good(&world, &["ledger", command, "--help"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_ledger_keeps_no_agent_from_its_user_and_says_what_is_wrong() {
    let mut world = World::new(Script::default(), |_| {}).await;
    std::fs::write(world.workspace().join("notes.txt"), "the answer is 42\n").unwrap();
    good(&world, &["ledger", "run", "read notes.txt"]).await;
    assert_eq!(world.stop_choird().await, Some(0));
    let log = world.state.ledger().join("keys/registry.log.jsonl");
    let damaged = std::fs::read_to_string(&log).unwrap().replacen("planner", "plunder", 1);
    std::fs::write(&log, &damaged).unwrap();
    world.start().await;
    let mut user = support::User::of(&world);
    let message = user.send("hello").await;
    user.answer_to(message).await;
    let told = fails(&world, 3, &["ledger", "run", "read notes.txt"]).await;
    assert!(told.contains("registry.log.jsonl"), "{told}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), damaged, "it is left as it was found");
}
