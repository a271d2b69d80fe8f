//! A store that fails: what is answered is stored, and what is said of the rest is true.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use choir_messages::mail::Unanswered;
use choir_persistence::chap::{ChapStore, Fault, Faults};
use serde_json::json;

use crate::support::{Said, log, run_plain};

/// How the next commits fail.
type Plan = Arc<Mutex<VecDeque<Option<Fault>>>>;

/// Entries of each commit so far.
type Commits = Arc<Mutex<Vec<usize>>>;

/// A store whose commits fail as planned, then succeed.
fn planned() -> (ChapStore, Plan, Commits) {
    let (plan, commits) = (Plan::default(), Commits::default());
    let (faults, sizes) = (Arc::clone(&plan), Arc::clone(&commits));
    let store = ChapStore::memory_with_faults(Faults::new(move |change| {
        sizes.lock().unwrap().push(change.entries.len());
        faults.lock().unwrap().pop_front().flatten()
    }));
    (store, plan, commits)
}

#[tokio::test]
async fn a_commit_that_fails_is_told_as_what_it_is_and_the_workspace_goes_on() {
    let (store, plan, _) = planned();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "audit-scitt/1.0"], &["human:a"]).await;
    let before = log(&store, "w").await.len();

    plan.lock().unwrap().push_back(Some(Fault::NotWritten));
    assert!(matches!(client.task("w", "human:a", 1).await, Said::Nothing(Unanswered::NotStored(_))));
    assert_eq!(log(&store, "w").await.len(), before);

    plan.lock().unwrap().push_back(Some(Fault::UnknownNotWritten));
    assert_eq!(client.task("w", "human:a", 2).await, Said::Unknown);
    assert_eq!(log(&store, "w").await.len(), before);

    plan.lock().unwrap().push_back(Some(Fault::UnknownWritten));
    assert_eq!(client.task("w", "human:a", 3).await, Said::Unknown);
    assert_eq!(log(&store, "w").await.len(), before + 1);

    client.task("w", "human:a", 4).await.ok();
    assert_eq!(log(&store, "w").await.len(), before + 2);
    let verified = client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!((&verified["status"], &verified["entries_total"]), (&json!("verified"), &json!(before + 2)));
    running.end().await;
}

#[tokio::test]
async fn a_call_that_another_writer_overtook_is_looked_at_again_unseen() {
    let (store, plan, _) = planned();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0"], &["human:a"]).await;
    let before = log(&store, "w").await.len();
    plan.lock().unwrap().extend([Some(Fault::Conflict); 3]);
    running.client.task("w", "human:a", 1).await.ok();
    assert_eq!(log(&store, "w").await.len(), before + 1);
    plan.lock().unwrap().extend([Some(Fault::Conflict); 50]);
    let given_up = running.client.task("w", "human:a", 2).await;
    assert!(
        matches!(given_up, Said::Nothing(Unanswered::NotStored(_))),
        "it does not try for ever: {given_up:?}"
    );
    plan.lock().unwrap().clear();
    running.client.task("w", "human:a", 3).await.ok();
    assert_eq!(log(&store, "w").await.len(), before + 2);
    running.end().await;
}

#[tokio::test]
async fn calls_that_wait_together_share_a_commit() {
    let (store, _, commits) = planned();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0", "audit-scitt/1.0"], &["human:a"]).await;
    commits.lock().unwrap().clear();
    let calls = (0..100).map(|n| {
        let client = running.client.clone();
        async move { client.task("w", "human:a", n).await.ok() }
    });
    futures_util::future::join_all(calls).await;
    let commits = commits.lock().unwrap().clone();
    assert_eq!(commits.iter().sum::<usize>(), 100);
    assert!(commits.len() < 50, "{commits:?}");
    let verified = running.client.call("audit.verify_chain", json!({"workspace": "w"})).await.ok();
    assert_eq!(verified["status"], "verified");
    running.end().await;
}
