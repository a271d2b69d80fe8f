//! Calls and their answers.

use choir_messages::mail::CoordinatorMsg;
use choir_messages::reply::reply_port;
use choir_persistence::chap::ChapStore;
use serde_json::{Value, json};

use crate::support::{SOON, Said, log, run_plain};

#[tokio::test]
async fn a_task_goes_from_creation_to_completion_and_every_answer_is_on_the_log() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "audit-scitt/1.0"], &["human:a", "agent:b"]).await;
    let created = client.task("w", "agent:b", 1).await.ok();
    let task = created["task_id"].clone();
    let done = json!({"workspace": "w", "from": "agent:b", "task_id": task, "output": {"x": 1}});
    assert_eq!(client.call("task.complete", done).await.ok()["state"], "completed");
    let read = client.call("audit.read", json!({"workspace": "w"})).await.ok();
    let entries = read["entries"].as_array().unwrap();
    let stored = log(&store, "w").await;
    assert_eq!(entries.len(), stored.len());
    assert_eq!(stored.last().unwrap().method, "task.complete");
    let filtered =
        client.call("audit.read", json!({"workspace": "w", "filter": {"task_id": task}})).await.ok();
    assert_eq!(filtered["entries"].as_array().unwrap().len(), 1, "the call that names the task: {filtered}");
    let verified = client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!(verified["status"], "verified");
    running.end().await;
}

#[tokio::test]
async fn an_actor_may_ask_what_a_transport_may_call() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0"], &["human:a"]).await;
    let ask = |method: &str, params| {
        let (address, caller, method) =
            (running.client.address.clone(), running.client.caller.clone(), method.to_owned());
        async move {
            address
                .call(SOON, |reply| CoordinatorMsg::Ask { method, params, caller, reply })
                .await
                .unwrap()
                .unwrap()
        }
    };
    let described = ask("workspace.describe", json!({"workspace": "w"})).await.unwrap();
    assert_eq!(described["id"], "w");
    let refused = ask("workspace.describe", json!({"workspace": "nowhere"})).await.unwrap_err();
    assert_eq!(refused["code"], -32602);
    running.end().await;
}

#[tokio::test]
async fn what_no_workspace_can_answer_is_answered_all_the_same() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    assert!(matches!(client.bytes(b"{".to_vec()).await, Said::Refused(-32700, _)));
    assert!(matches!(client.bytes(b"[]".to_vec()).await, Said::Refused(-32600, _)));
    assert!(matches!(client.call("no.such", json!({})).await, Said::Refused(-32601, _)));
    assert!(matches!(client.call("task.create", json!({})).await, Said::Refused(-32602, _)));
    assert!(matches!(client.call("task.create", json!({"workspace": "nowhere"})).await, Said::Refused(..)));
    let created = client.call("workspace.create", json!({})).await.ok();
    assert!(created["workspace"].as_str().unwrap().starts_with("wsp_"), "{created}");
    let long = json!({"workspace": "w", "from": "human:a", "note": "x".repeat(100_000)});
    assert!(
        matches!(client.call("task.create", long).await, Said::Refused(-32602, _)),
        "read beside the router"
    );
    let too_long = json!({"workspace": "w", "note": "x".repeat(2_000_000)});
    assert!(matches!(client.call("task.create", too_long).await, Said::Refused(-32600, _)));
    running.end().await;
}

#[tokio::test]
async fn a_coordinator_that_ends_and_starts_again_knows_everything() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0", "audit-scitt/1.0"], &["human:a"]).await;
    let before = running.client.call("workspace.describe", json!({"workspace": "w"})).await.ok();
    running.end().await;
    let running = run_plain(&store).await;
    assert_eq!(running.client.call("workspace.describe", json!({"workspace": "w"})).await.ok(), before);
    running.client.task("w", "human:a", 1).await.ok();
    let verified = running.client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!(verified["status"], "verified");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_many_pages_verifies_and_is_read_page_by_page() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "audit-scitt/1.0"], &["human:a"]).await;
    for round in 0..32 {
        let calls = (0..100).map(|n| client.task("w", "human:a", round * 100 + n));
        futures_util::future::join_all(calls).await.into_iter().for_each(|said| drop(said.ok()));
    }
    let verified = client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!(
        (&verified["status"], &verified["entries_checked"]),
        (&json!("verified"), &verified["entries_total"])
    );
    let (mut next, mut pages, mut found) = (0, 0, 0);
    while next < verified["entries_total"].as_u64().unwrap() {
        let page =
            client.call("audit.read", json!({"workspace": "w", "range": {"from_seq": next}})).await.ok();
        found += page["entries"].as_array().unwrap().len();
        next = page["next_seq"].as_u64().unwrap();
        pages += 1;
    }
    assert_eq!((pages, json!(found)), (4, verified["entries_total"].clone()));
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_sent_without_waiting_for_answers_are_taken_in_their_order() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    // The first calls of each workspace find no actor, the last ones do; before, between and after is the question.
    for round in 0..100 {
        let name = format!("w{round}");
        let mut calls = vec![
            ("workspace.create", json!({"workspace": name, "profiles": ["core/1.0"]})),
            ("participant.join", json!({"workspace": name, "from": "agent:a", "type": "agent"})),
        ];
        calls.extend((0..20).map(|n| {
            let params = json!({"workspace": name, "from": "agent:a", "assignee": "agent:a", "kind": "draft", "input": n});
            ("task.create", params)
        }));
        let mut answers = Vec::new();
        for (method, params) in calls {
            let (reply, answer) = reply_port();
            let call = json!({"jsonrpc": "2.0", "id": "1", "method": method, "params": params}).to_string();
            let caller = running.client.caller.clone();
            let call = CoordinatorMsg::Call { bytes: call.into_bytes().into(), caller, reply };
            running.client.address.try_send(call).unwrap();
            answers.push(answer);
            tokio::task::yield_now().await;
        }
        for answer in answers {
            let answer = tokio::time::timeout(SOON, answer).await.unwrap().unwrap().unwrap();
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert!(answer.get("error").is_none(), "{answer}");
        }
        let inputs = log(&store, &name).await.into_iter().skip(2).map(|entry| {
            let record: Value = serde_json::from_str(&entry.record).unwrap();
            record["params"]["input"].as_u64().unwrap()
        });
        assert!(inputs.eq(0..20), "the order in {name}");
    }
    running.end().await;
}
