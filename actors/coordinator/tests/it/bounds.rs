//! Bounds: on live workspaces, on what a participant may ask for, and on how long an idle actor lives.

use std::time::Duration;

use choir_coordinator::{Hooks, Quota, Settings};
use choir_messages::mail::Unanswered;
use choir_persistence::chap::ChapStore;
use serde_json::json;

use crate::support::{Said, log, run, run_plain, tokio_clock};

#[tokio::test]
async fn more_workspaces_than_may_live_take_turns_and_lose_nothing() {
    let store = ChapStore::memory();
    let settings = Settings { live_workspaces: 8, ..Settings::default() };
    let running = run(&store, settings, Hooks::default()).await;
    for round in 0..3u64 {
        for n in 0..100 {
            let (client, name) = (&running.client, format!("w{n}"));
            if round == 0 {
                client.workspace(&name, &["core/1.0", "audit-scitt/1.0"], &["human:a"]).await;
            }
            client.task(&name, "human:a", round).await.ok();
        }
        // Those that are ending still count.
        assert!(running.live().len() <= 16);
    }
    for n in 0..100 {
        let name = format!("w{n}");
        assert_eq!(log(&store, &name).await.iter().filter(|e| e.method == "task.create").count(), 3);
    }
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_workspace_actor_ends_and_comes_back_when_it_is_called() {
    let store = ChapStore::memory();
    let settings = Settings { idle_after: Duration::from_secs(20), ..Settings::default() };
    let running = run(&store, settings, Hooks { clock: tokio_clock(), ..Hooks::default() }).await;
    running.client.workspace("w", &["core/1.0"], &["human:a"]).await;
    assert_eq!(running.live().len(), 1);
    running.until_live(<[String]>::is_empty).await;
    running.client.task("w", "human:a", 1).await.ok();
    assert_eq!(running.live().len(), 1);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_participant_over_its_quota_is_told_at_once_and_others_are_served() {
    let store = ChapStore::memory();
    let quota = Quota { calls_per_second: 10.0, burst: 20.0, outstanding: 50 };
    let running = run(&store, Settings { quota, ..Settings::default() }, Hooks::default()).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0"], &["human:a", "human:b"]).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    let mut served = 0;
    for n in 0..60 {
        match client.task("w", "human:a", n).await {
            Said::Result(_) => served += 1,
            said => assert_eq!(said, Said::Nothing(Unanswered::Busy)),
        }
    }
    assert!((20..25).contains(&served), "{served}");
    client.task("w", "human:b", 0).await.ok();
    tokio::time::advance(Duration::from_secs(1)).await;
    client.task("w", "human:a", 0).await.ok();
    let created = log(&store, "w").await.iter().filter(|e| e.method == "task.create").count();
    assert_eq!(created, served + 2, "what was refused was not done");
    running.end().await;
}

#[tokio::test]
async fn thousands_of_strange_workspaces_leave_no_trace_and_no_actors() {
    let store = ChapStore::memory();
    let settings = Settings { live_workspaces: 16, ..Settings::default() };
    let running = run(&store, settings, Hooks::default()).await;
    for n in 0..3_000 {
        match running.client.call("workspace.describe", json!({"workspace": format!("{n}/\u{0}é")})).await {
            Said::Refused(-32602, _) | Said::Nothing(Unanswered::Busy) => {}
            said => panic!("{said:?}"),
        }
    }
    assert!(store.workspaces(None, 10).await.unwrap().is_empty());
    running.until_live(|live| live.len() <= 16).await;
    running.end().await;
}

#[tokio::test]
async fn calls_without_end_are_bounded_and_each_is_answered_or_told_that_nothing_was_done() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0"], &["human:a"]).await;
    let calls = (0..5000).map(|n| {
        let client = running.client.clone();
        async move { client.task("w", "human:a", n).await }
    });
    let said = futures_util::future::join_all(calls).await;
    let done = said.iter().filter(|s| matches!(s, Said::Result(_))).count();
    let busy = said.iter().filter(|s| **s == Said::Nothing(Unanswered::Busy)).count();
    assert_eq!(done + busy, 5000);
    assert!(done > 0 && busy > 0, "{done} done");
    assert_eq!(log(&store, "w").await.iter().filter(|e| e.method == "task.create").count(), done);
    running.end().await;
}
