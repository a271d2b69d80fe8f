//! The CHAP Coordinator as its users meet it: the real `choird coordinator`, called over HTTP, killed, and its logs
//! checked by the real `choirctl`.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/coordinator.rs"]
mod coordinator;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use choir_chap_client::{CallError, Client, LogReader, Scenario, play};
use choir_persistence::testing;
use coordinator::{Coordinator, SOON, choirctl, fresh};
use serde_json::{Value, json};

/// Every scenario of the examples' folder, by the options its Coordinator needs.
fn scenarios() -> BTreeMap<Vec<String>, Vec<(PathBuf, Scenario)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chap");
    let mut by_options: BTreeMap<Vec<String>, Vec<(PathBuf, Scenario)>> = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let scenario = Scenario::parse(&std::fs::read_to_string(&path).unwrap())
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            by_options.entry(scenario.server.clone()).or_default().push((path, scenario));
        }
    }
    by_options
}

#[tokio::test(flavor = "multi_thread")]
async fn the_twelve_situations_and_the_nine_journeys_go_as_their_files_say() {
    let mut played = 0;
    for (options, scenarios) in scenarios() {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = Coordinator::start(&options).await;
        let client = server.client();
        for (path, scenario) in scenarios {
            let workspace = fresh("wsp");
            let made = play(&client, &scenario, &workspace, |_, _| {})
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            played += 1;
            // What was played can be exported and checked by somebody who was not there.
            let log = server.folder().join("log");
            let url = server.url();
            let mut export =
                vec!["workspace-log", "export", &workspace, "--url", &url, "-o", log.to_str().unwrap()];
            // Where only signed calls are taken, reading is signed as well: by whoever ends the scenario.
            let last = scenario.steps.last().unwrap();
            let key = server.folder().join("key.jwk");
            if let (Some(name), Some(caller)) = (&last.signed_by, &last.caller) {
                std::fs::write(&key, made.keys[name].to_jwk().as_str()).unwrap();
                export.extend(["--as", caller, "--key-file", key.to_str().unwrap()]);
            }
            let exported = choirctl(&export);
            assert_eq!(exported.code, 0, "{}: {}", path.display(), exported.err);
            let verified = choirctl(&["--json", "verify", log.to_str().unwrap()]);
            assert_eq!(verified.code, 0, "{}: {}", path.display(), verified.out);
            let report: Value = serde_json::from_str(&verified.out).unwrap();
            assert_eq!(report["fault_count"], 0, "{}", path.display());
            if options.contains(&"--require-signatures") {
                assert!(report["signatures"]["good"].as_u64().unwrap() > 0, "{}", path.display());
            }
        }
    }
    assert_eq!(played, 21);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_log_that_was_changed_does_not_verify() {
    let server = Coordinator::start(&["--enable-chain"]).await;
    let workspace = fresh("wsp");
    server.tasks(&workspace, 3).await;
    let log = server.folder().join("log");
    let path = log.to_str().unwrap();
    assert_eq!(
        choirctl(&["workspace-log", "export", &workspace, "--url", &server.url(), "-o", path]).code,
        0
    );
    assert_eq!(choirctl(&["verify", path]).code, 0);
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"n\":1", "\"n\":7", 1)).unwrap();
    let changed = choirctl(&["verify", path]);
    assert_eq!(changed.code, 1, "{}", changed.out);
    assert!(changed.out.starts_with("NOT VERIFIED"), "{}", changed.out);
    std::fs::write(&log, "{}\n").unwrap();
    let strange = choirctl(&["verify", path]);
    assert_eq!(strange.code, 3);
    assert!(strange.err.contains("next:"), "{}", strange.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_tells_overrides_by_tag_and_agent_as_table_json_and_page() {
    let server = Coordinator::start(&[]).await;
    let client = server.client();
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/chap/d06-contract-tonight.json"),
    )
    .unwrap();
    let workspace = fresh("wsp");
    play(&client, &Scenario::parse(&text).unwrap(), &workspace, |_, _| {}).await.unwrap();
    let (url, page) = (server.url(), server.folder().join("page.html"));
    let table =
        choirctl(&["overrides", "report", &workspace, "--url", &url, "--html", page.to_str().unwrap()]);
    assert_eq!(table.code, 0, "{}", table.err);
    assert!(
        table.out.contains("junior-escalation-miss") && table.out.contains("agent:msa#v1"),
        "{}",
        table.out
    );
    let json = choirctl(&["--json", "overrides", "report", &workspace, "--url", &url]);
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(report["total"]["overridden"], 1);
    assert_eq!(report["total"]["intent_substituted"], 1);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("tier-a-client") && !page.contains("<script") && !page.contains("://"));
}

/// What a writer was answered: the ids of its tasks.
async fn write(client: Client, workspace: String, writer: u64, stop: Arc<AtomicBool>) -> BTreeSet<String> {
    let mut answered = BTreeSet::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let params = json!({
            "workspace": workspace, "from": "human:w@e.org", "kind": "k", "assignee": "human:w@e.org",
            "input": { "writer": writer, "n": n },
        });
        match client.call("task.create", params).await {
            Ok(result) => {
                answered.insert(result["task_id"].as_str().unwrap().to_owned());
            }
            // A refusal would be a fault of the Coordinator; being told nothing is what a kill does.
            Err(CallError::Refused(error)) if error.code != -32000 && error.code != -32001 => {
                panic!("a good call was refused: {error}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    answered
}

/// Every task that was answered is in the log exactly once, and the log's own entries hold together.
async fn check(client: &Client, workspace: &str, answered: &BTreeSet<String>) {
    let verified = client.call("audit.verify_chain", json!({ "workspace": workspace })).await.unwrap();
    assert_eq!(verified["status"], "verified");
    for task in answered {
        client
            .call("task.describe", json!({ "workspace": workspace, "task_id": task }))
            .await
            .unwrap_or_else(|error| panic!("{task} was answered and is gone: {error}"));
    }
    let mut reader = LogReader::new(client.clone(), workspace, None);
    let (mut seen, mut seq) = (BTreeSet::new(), 0);
    while let Some(page) = reader.page().await.unwrap() {
        for entry in page.entries {
            assert_eq!(entry["seq"], seq);
            seq += 1;
            if entry["envelope"]["method"] == "task.create" {
                let input = entry["envelope"]["params"]["input"].to_string();
                assert!(seen.insert(input.clone()), "{input} is there twice");
            }
        }
    }
    assert!(seen.len() >= answered.len(), "{} answered, {} in the log", answered.len(), seen.len());
}

/// Eight writers for a while, something happens to them, and everything that was answered is there.
async fn wounded(server: &mut Coordinator, workspace: &str, round: u64, wound: Wound) {
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let writer = round * 8 + writer;
            tokio::spawn(write(server.client(), workspace.to_owned(), writer, Arc::clone(&stop)))
        })
        .collect();
    server.until_entries(workspace, 30 * (round + 1)).await;
    match wound {
        Wound::Postgres => {
            testing::kill_9(server.postgres_pid());
            // It comes back by itself, and the writers go on.
            let before = server.entries_eventually(workspace).await;
            server.until_entries(workspace, before + 20).await;
        }
        Wound::Coordinator => server.kill_9().await,
    }
    stop.store(true, Ordering::Relaxed);
    let mut answered = BTreeSet::new();
    for writer in writers {
        answered.extend(tokio::time::timeout(SOON, writer).await.unwrap().unwrap());
    }
    if wound == Wound::Coordinator {
        server.start_again().await;
    }
    assert!(!answered.is_empty());
    check(&server.client(), workspace, &answered).await;
}

/// Who is killed.
#[derive(Clone, Copy, PartialEq)]
enum Wound {
    Coordinator,
    Postgres,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_coordinator_and_of_postgres_under_eight_writers_loses_and_doubles_nothing() {
    let mut server = Coordinator::durable(&["--enable-chain"]).await;
    let workspace = fresh("wsp");
    server.tasks(&workspace, 0).await;
    for (round, wound) in (0..).zip([Wound::Coordinator, Wound::Postgres, Wound::Coordinator]) {
        wounded(&mut server, &workspace, round, wound).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_a_coordinator_with_a_folder_under_eight_writers_loses_and_doubles_nothing() {
    let mut server = Coordinator::in_folder(&["--enable-chain"]).await;
    let workspace = fresh("wsp");
    server.tasks(&workspace, 0).await;
    for round in 0..5 {
        wounded(&mut server, &workspace, round, Wound::Coordinator).await;
    }
    // In order, too: nothing is left to recover, and everything is there.
    let entries = server.entries_eventually(&workspace).await;
    assert_eq!(server.stop().await, Some(0));
    assert!(!server.folder().join("state/coordinator/workspaces.sqlite-wal").exists(), "closed in order");
    server.start_again().await;
    assert_eq!(server.entries_eventually(&workspace).await, entries);
}

#[tokio::test(flavor = "multi_thread")]
async fn off_loopback_without_tls_and_tokens_it_does_not_start() {
    let refused = coordinator::choird(&["coordinator", "--listen", "0.0.0.0:0", "--quiet"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("127.0.0.1") && refused.err.contains("TLS"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn workspaces_are_listed_and_an_unknown_one_is_answered_with_the_command_that_lists_them() {
    let server = Coordinator::start(&[]).await;
    let url = server.url();
    let list = ["workspace-log", "list", "--url", &url];
    assert_eq!(choirctl(&list).out, "no workspaces\n");
    // More than one page of them.
    let mut made: Vec<String> = (0..130).map(|n| format!("wsp_{n:03}")).collect();
    for workspace in &made {
        server.tasks(workspace, 1).await;
    }
    let listed = choirctl(&["--json", "workspace-log", "list", "--url", &url]);
    let lines: Vec<Value> = serde_json::from_str(&listed.out).unwrap();
    let names: Vec<String> =
        lines.iter().map(|line| line["workspace"].as_str().unwrap().to_owned()).collect();
    made.sort();
    assert_eq!(names, made);
    assert!(lines.iter().all(|line| line["entries"] == 2), "{}", listed.out);
    for command in [["workspace-log", "export"], ["overrides", "report"]] {
        let unknown = choirctl(&[command[0], command[1], "wsp_typo", "--url", &url]);
        assert_eq!(unknown.code, 1, "{}", unknown.err);
        assert!(unknown.err.contains("Unknown workspace: wsp_typo"), "{}", unknown.err);
        assert!(unknown.err.contains("next: choirctl workspace-log list"), "{}", unknown.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_reading_is_for_members_workspaces_are_not_listed() {
    let server = Coordinator::start(&["--require-read-membership"]).await;
    server.tasks(&fresh("wsp"), 1).await;
    let refused = choirctl(&["workspace-log", "list", "--url", &server.url()]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.out.is_empty() && refused.err.contains("operators"), "{}", refused.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redacted_entry_and_a_saved_checkpoint_are_checked_offline() {
    let server = Coordinator::durable(&["--default-profiles", "core/1.0,review/1.0,audit-scitt/1.0"]).await;
    let (url, workspace) = (server.url(), fresh("wsp"));
    let join = json!({ "workspace": workspace, "from": "human:w@e.org", "type": "human", "role": "admin" });
    server.client().call("participant.join", join).await.unwrap();
    server.tasks(&workspace, 5).await;
    let path = |name: &str| server.folder().join(name).to_str().unwrap().to_owned();
    let save =
        |to: &str| choirctl(&["--json", "workspace-log", "checkpoint", &workspace, "-o", to, "--url", &url]);
    let early = path("early");
    let saved = save(&early);
    assert_eq!(saved.code, 0, "{}", saved.err);
    let told: Value = serde_json::from_str(&saved.out).unwrap();
    let key = told["log_key"].as_str().unwrap();
    assert_eq!(save(&early).code, 3, "a saved checkpoint is not overwritten");
    let redact = json!({ "workspace": workspace, "from": "human:w@e.org", "seq": 2, "reason": "privacy" });
    server.client().call("audit.redact", redact).await.unwrap();
    let log = path("log");
    let export = ["workspace-log", "export", &workspace, "--receipts", "--url", &url, "-o", &log];
    assert_eq!(choirctl(&export).code, 0);
    let verified = choirctl(&["verify", &log, "--log-key", key, "--checkpoint", &early]);
    assert_eq!(verified.code, 0, "{}", verified.out);
    assert!(verified.out.contains("redacted    1; their hashes were taken as given"), "{}", verified.out);
    assert!(verified.out.contains("head the same, root of the tree the same"), "{}", verified.out);
    // A checkpoint of a longer log: the file lacks its end.
    server.tasks(&workspace, 3).await;
    let late = path("late");
    assert_eq!(save(&late).code, 0);
    let short = choirctl(&["verify", &log, "--log-key", key, "--checkpoint", &late]);
    assert_eq!(short.code, 1, "{}", short.out);
    assert!(short.out.contains("entries are missing at its end"), "{}", short.out);
    assert_eq!(choirctl(&["verify", &log, "--checkpoint", &late]).code, 2, "a key is needed");
}

/// Posts these bytes; the code of the answer's error, or none.
async fn code_of(at: &str, body: &[u8]) -> Option<i64> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut wire = tokio::net::TcpStream::connect(at).await.unwrap();
    let head = format!(
        "POST /chap HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    wire.write_all(head.as_bytes()).await.unwrap();
    wire.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, wire.read_to_end(&mut answer)).await.unwrap().unwrap();
    let text = String::from_utf8(answer).unwrap();
    let (_, json) = text.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{text}"));
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    for inside in ["panicked", "src/", "choir_", ".rs"] {
        assert!(!message.contains(inside), "{message}");
    }
    answer["error"]["code"].as_i64()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_over_http_gets_the_documented_code_and_the_next_call_is_served() {
    let server = Coordinator::start(&["--enable-chain"]).await;
    let (workspace, url) = (fresh("wsp"), server.url());
    server.tasks(&workspace, 1).await;
    let at = url.trim_start_matches("http://");
    let call = |input: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"task.create","params":{{"workspace":"{workspace}","from":"human:w@e.org","kind":"k","assignee":"human:w@e.org","input":{input}}}}}"#
        )
    };
    let sized = |bytes: usize| call(&format!("\"{}\"", "x".repeat(bytes - call("\"\"").len())));
    let nested = |levels: usize| call(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
    let before = server.entries_eventually(&workspace).await;
    for (what, body, code) in [
        ("1 MiB and one byte", sized(1024 * 1024 + 1).into_bytes(), -32600),
        ("65 levels", nested(63).into_bytes(), -32600),
        ("a million levels", nested(1_000_000).into_bytes(), -32600),
        ("a lone surrogate", call(r#""\ud800""#).into_bytes(), -32602),
        ("a number beyond the safe ones", call("9007199254740992").into_bytes(), -32602),
        ("a fraction", call("0.5").into_bytes(), -32602),
        ("a batch", format!("[{}]", call("1")).into_bytes(), -32600),
        ("no JSON", b"{".to_vec(), -32700),
        ("no UTF-8", b"\xff\xfe{}".to_vec(), -32700),
        ("nothing", Vec::new(), -32700),
    ] {
        assert_eq!(code_of(at, &body).await, Some(code), "{what}");
    }
    assert_eq!(server.entries_eventually(&workspace).await, before, "none of it is on the log");
    // What is only unusual is taken: the largest and the deepest call, keys that stand twice, a notification.
    for (what, body) in [
        ("1 MiB", sized(1024 * 1024)),
        ("64 levels", nested(62)),
        ("a key twice", call(r#"{"a":1,"a":2}"#)),
        ("a notification", call("1").replacen(r#""id":1,"#, "", 1)),
    ] {
        assert_eq!(code_of(at, body.as_bytes()).await, None, "{what}");
    }
    assert_eq!(server.entries_eventually(&workspace).await, before + 4);
    let verified =
        server.client().call("audit.verify_chain", json!({ "workspace": workspace })).await.unwrap();
    assert_eq!(verified["status"], "verified");
}
