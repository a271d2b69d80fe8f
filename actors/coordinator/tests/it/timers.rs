//! Deadlines, under a clock that tokio's paused time moves.

use std::time::Duration;

use choir_coordinator::{Clock, Hooks, Settings};
use choir_messages::time::Timestamp;
use choir_persistence::chap::{ChapStore, Fault, Faults};
use serde_json::{Value, json};

use crate::support::{Client, Running, log, run, tokio_clock};

async fn start(store: &ChapStore, clock: &Clock) -> Running {
    run(store, Settings::default(), Hooks { clock: Clock::clone(clock), ..Hooks::default() }).await
}

fn in_time(clock: &Clock, wait: Duration) -> String {
    Timestamp::from_millis(clock().millis() + u64::try_from(wait.as_millis()).unwrap()).to_string()
}

async fn review(client: &Client, workspace: &str, deadline: String) {
    let created = client.task(workspace, "agent:b", 1).await.ok();
    let params = json!({
        "workspace": workspace, "from": "agent:b", "task_id": created["task_id"], "artefact": {"a": 1},
        "to": "human:a", "deadline": deadline,
    });
    client.call("review.request", params).await.ok();
}

fn lapses(entries: &[choir_messages::chap::Entry]) -> usize {
    entries.iter().filter(|e| e.record.contains("review_lapsed")).count()
}

/// Waits for the notice of a lapse.
async fn lapsed(client: &Client, workspace: &str) {
    let mut after = 0;
    loop {
        let page = client.inbox(workspace, "human:a", after, true).await.unwrap().unwrap();
        let bodies = page.notices.iter().map(|n| serde_json::from_str::<Value>(&n.body).unwrap());
        if bodies.into_iter().any(|body| body.to_string().contains("review_lapsed")) {
            return;
        }
        after = page.next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_met_when_it_comes_and_not_before_and_once() {
    let (store, clock) = (ChapStore::memory(), tokio_clock());
    let running = start(&store, &clock).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "review/1.0", "audit-scitt/1.0"], &["human:a", "agent:b"]).await;
    let began = clock();
    review(client, "w", in_time(&clock, Duration::from_secs(3600))).await;
    // A later one must not put the earlier one off, nor an earlier one of another workspace.
    review(client, "w", in_time(&clock, Duration::from_secs(7200))).await;
    client.workspace("v", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    review(client, "v", in_time(&clock, Duration::from_secs(60))).await;
    lapsed(client, "v").await;
    let at = clock().since(began);
    assert!(at >= Duration::from_secs(60) && at < Duration::from_secs(62), "{at:?}");
    assert_eq!(lapses(&log(&store, "w").await), 0);
    lapsed(client, "w").await;
    let at = clock().since(began);
    assert!(at >= Duration::from_secs(3600) && at < Duration::from_secs(3602), "{at:?}");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(lapses(&log(&store, "w").await), 1);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(lapses(&log(&store, "w").await), 2);
    let verified = client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!(verified["status"], "verified");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_fell_due_while_the_coordinator_was_down_is_seen_to_when_it_is_up() {
    let (store, clock) = (ChapStore::memory(), tokio_clock());
    let running = start(&store, &clock).await;
    for workspace in ["v", "w"] {
        running.client.workspace(workspace, &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
        review(&running.client, workspace, in_time(&clock, Duration::from_secs(10))).await;
    }
    running.end().await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(lapses(&log(&store, "w").await), 0);
    let running = start(&store, &clock).await;
    let began = clock();
    lapsed(&running.client, "w").await;
    lapsed(&running.client, "v").await;
    assert!(clock().since(began) < Duration::from_secs(1));
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_whose_commit_fails_is_tried_again() {
    let failures = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let left = std::sync::Arc::clone(&failures);
    let store = ChapStore::memory_with_faults(Faults::new(move |change| {
        use std::sync::atomic::Ordering::SeqCst;
        let lapse = change.entries.iter().any(|e| e.record.contains("review_lapsed"));
        (lapse && left.fetch_add(1, SeqCst) < 4).then_some(Fault::NotWritten)
    }));
    let clock = tokio_clock();
    let running = start(&store, &clock).await;
    running.client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    review(&running.client, "w", in_time(&clock, Duration::from_secs(10))).await;
    lapsed(&running.client, "w").await;
    assert_eq!(failures.load(std::sync::atomic::Ordering::SeqCst), 5);
    assert_eq!(lapses(&log(&store, "w").await), 1);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn timers_and_workspaces_that_were_killed_still_meet_the_deadline() {
    let (store, clock) = (ChapStore::memory(), tokio_clock());
    let running = start(&store, &clock).await;
    running.client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    let began = clock();
    review(&running.client, "w", in_time(&clock, Duration::from_secs(30))).await;
    let tree = running.tree.handle();
    assert!(tree.kill("coordinator/timers"));
    assert!(tree.kill(&format!("coordinator/floor/workspaces/{}", running.live()[0])));
    lapsed(&running.client, "w").await;
    let at = clock().since(began);
    assert!(at >= Duration::from_secs(30) && at < Duration::from_secs(32), "{at:?}");
    running.end().await;
}
