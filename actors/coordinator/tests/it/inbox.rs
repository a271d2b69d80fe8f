//! Participants waiting for what they are owed.

use std::time::Duration;

use choir_messages::mail::{Caller, Unanswered};
use choir_persistence::chap::ChapStore;
use serde_json::{Value, json};

use choir_coordinator::limits::{NOTICES_KEPT, PRUNE_EVERY};

use crate::support::{Client, SOON, run_plain};

async fn review(client: &Client, workspace: &str, from: &str, to: &str) -> Value {
    let created = client.task(workspace, from, 1).await.ok();
    let params = json!({"workspace": workspace, "from": from, "task_id": created["task_id"], "artefact": {"a": 1}, "to": to});
    client.call("review.request", params).await.ok()
}

#[tokio::test]
async fn a_waiting_participant_is_answered_by_the_notice_and_reads_on_from_its_number() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    assert_eq!(client.inbox("w", "human:a", 0, false).await.unwrap().unwrap().notices, []);
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await })
    };
    review(client, "w", "agent:b", "human:a").await;
    let page = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(page.notices.len(), 1);
    assert_eq!(page.notices[0].to, "human:a");
    assert_eq!(client.inbox("w", "human:a", page.next, false).await.unwrap().unwrap().notices, []);
    review(client, "w", "agent:b", "human:a").await;
    let next = client.inbox("w", "human:a", page.next, true).await.unwrap().unwrap();
    assert_eq!(next.notices.len(), 1);
    assert!(next.next > page.next);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_of_a_call_that_is_too_large_for_the_journal_is_told_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = ChapStore::sqlite(folder.path()).unwrap();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await })
    };
    let created = client.task("w", "agent:b", 1).await.ok();
    let artefact = json!({"text": "x".repeat(900_000)});
    let params = json!({"workspace": "w", "from": "agent:b", "task_id": created["task_id"], "artefact": artefact, "to": "human:a"});
    client.call("review.request", params).await.ok();
    let page = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap().unwrap();
    assert_eq!(page.notices.len(), 1);
    running.end().await;
    store.close().await;
}

#[tokio::test]
async fn an_inbox_is_its_owners() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    running.client.workspace("w", &["core/1.0"], &["human:a", "human:b"]).await;
    let bound = Client {
        caller: Caller { participants: Some(["human:b".to_owned()].into()) },
        ..running.client.clone()
    };
    let refused = bound.inbox("w", "human:a", 0, true).await.unwrap().unwrap_err();
    assert_eq!(refused["code"], -32011);
    assert!(bound.inbox("w", "human:b", 0, false).await.unwrap().is_ok());
    let refused = running.client.inbox("nowhere", "human:a", 0, true).await.unwrap().unwrap_err();
    assert_eq!(refused["code"], -32602);
    running.end().await;
}

#[tokio::test]
async fn those_who_wait_are_bounded_and_those_who_gave_up_make_room() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    let mut waiting = Vec::new();
    for _ in 0..choir_coordinator::limits::WAITERS_EACH {
        let client = client.clone();
        waiting.push(tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await }));
    }
    // The last to come finds no place; which one that is does not matter.
    let over = {
        let client = client.clone();
        tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await })
    };
    waiting.push(over);
    let refused = async {
        loop {
            if let Some(done) = waiting.iter().position(tokio::task::JoinHandle::is_finished) {
                break waiting.remove(done).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(tokio::time::timeout(SOON, refused).await.unwrap(), Err(Unanswered::Busy));
    for gone in &waiting {
        gone.abort();
    }
    for gone in waiting {
        assert!(gone.await.unwrap_err().is_cancelled());
    }
    let late = {
        let client = client.clone();
        tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await })
    };
    review(client, "w", "agent:b", "human:a").await;
    assert_eq!(tokio::time::timeout(SOON, late).await.unwrap().unwrap().unwrap().unwrap().notices.len(), 1);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_holds_no_workspace_actor_up() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = running.client.clone();
    client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { client.inbox("w", "human:a", 0, true).await })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    running.until_live(<[String]>::is_empty).await;
    assert!(!waiting.is_finished());
    review(&client, "w", "agent:b", "human:a").await;
    assert_eq!(waiting.await.unwrap().unwrap().unwrap().notices.len(), 1);
    running.end().await;
}

#[tokio::test]
async fn notices_that_were_read_are_kept_within_a_bound_and_a_number_nobody_was_given_prunes_nothing() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    let client = &running.client;
    client.workspace("w", &["core/1.0", "review/1.0"], &["human:a", "agent:b"]).await;
    let say = async |count: usize| {
        for n in 0..count {
            let params = json!({"workspace": "w", "from": "agent:b", "to": "human:a", "text": n.to_string()});
            client.call("notify.message", params).await.ok();
        }
    };
    let kept = async || store.notices("w", "human:a", 0, 1).await.unwrap()[0].number;
    say(NOTICES_KEPT + 300).await;
    client.inbox("w", "human:a", u64::MAX, false).await.unwrap().unwrap();
    let mut after = 0;
    loop {
        let page = client.inbox("w", "human:a", after, false).await.unwrap().unwrap();
        if page.notices.is_empty() {
            break;
        }
        after = page.next;
    }
    assert_eq!(after, NOTICES_KEPT as u64 + 300);
    // The look for old ones is made beside the answer.
    let pruned = async {
        while kept().await == 1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, pruned).await.unwrap();
    // The newest thousand stay, and as many as may be read between two looks.
    let stay = after - kept().await;
    assert!((NOTICES_KEPT as u64..NOTICES_KEPT as u64 + PRUNE_EVERY).contains(&stay), "{stay}");
    running.end().await;
}
