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
async fn write(client: Client, workspace: String, writer: usize, stop: Arc<AtomicBool>) -> BTreeSet<String> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_coordinator_and_of_postgres_under_eight_writers_loses_and_doubles_nothing() {
    let mut server = Coordinator::durable(&["--enable-chain"]).await;
    let workspace = fresh("wsp");
    server.tasks(&workspace, 0).await;
    for round in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let writer = round * 8 + writer;
                tokio::spawn(write(server.client(), workspace.clone(), writer, Arc::clone(&stop)))
            })
            .collect();
        server.until_entries(&workspace, 30 * (round as u64 + 1)).await;
        if round == 1 {
            testing::kill_9(server.postgres_pid());
            // It comes back by itself, and the writers go on.
            let before = server.entries_eventually(&workspace).await;
            server.until_entries(&workspace, before + 20).await;
        } else {
            server.kill_9().await;
        }
        stop.store(true, Ordering::Relaxed);
        let mut answered = BTreeSet::new();
        for writer in writers {
            answered.extend(tokio::time::timeout(SOON, writer).await.unwrap().unwrap());
        }
        if round != 1 {
            server.start_again().await;
        }
        assert!(!answered.is_empty());
        check(&server.client(), &workspace, &answered).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn off_loopback_without_tls_and_tokens_it_does_not_start() {
    let refused = coordinator::choird(&["coordinator", "--listen", "0.0.0.0:0", "--quiet"]);
    assert_eq!(refused.code, 5, "{}", refused.err);
    assert!(refused.err.contains("127.0.0.1") && refused.err.contains("TLS"), "{}", refused.err);
}
