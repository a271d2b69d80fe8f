//! Workspaces in Postgres when the database does not do as it is told.

use std::collections::HashSet;
use std::time::Duration;

use choir_messages::chap::{Change, EntryQuery, Object, ObjectKind};
use choir_persistence::StoreError;
use choir_persistence::chap::{ChapStore, CommitError};
use choir_persistence::testing::TestCluster;
use sqlx::Connection;
use tokio::sync::mpsc;

use crate::chap::{change, entry, key};

/// Longest wait for something that is about to happen.
const SOON: Duration = Duration::from_secs(60);

/// The process ids of connections that hold an advisory lock: the committers'.
async fn committers(cluster: &TestCluster) -> HashSet<i32> {
    let rows: Vec<(i32,)> =
        sqlx::query_as("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
            .fetch_all(&mut cluster.connect().await)
            .await
            .unwrap();
    rows.into_iter().map(|(pid,)| pid).collect()
}

/// One writer's next change: a step of its own workspace, whose entry names the attempt.
fn step(workspace: &str, version: u64, seq: u64, attempt: u64) -> Change {
    let entries = vec![entry(seq, &attempt.to_string(), None, &[])];
    Change { entries, ..change(workspace, version) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_of_postgres_in_mid_commit_loses_no_answer_and_doubles_nothing() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let workspaces = ChapStore::postgres(&store);
    let (progress, mut committed) = mpsc::channel::<()>(10_000);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writers = Vec::new();
    for n in 0..8 {
        let (workspaces, progress, stopped) = (workspaces.clone(), progress.clone(), stopped.clone());
        writers.push(tokio::spawn(async move {
            let name = format!("w{n}");
            let (mut version, mut attempt, mut answered, mut unknown) = (0u64, 0u64, Vec::new(), 0u32);
            while !*stopped.borrow() {
                attempt += 1;
                match workspaces.commit(vec![step(&name, version, version, attempt)]).await {
                    Ok(()) => {
                        answered.push(attempt);
                        version += 1;
                        let _ = progress.try_send(());
                    }
                    // Said to be undone: the next attempt takes the same place.
                    Err(CommitError::NotWritten(error)) => assert!(error.is_transient(), "{error}"),
                    Err(CommitError::Unknown(_)) => {
                        unknown += 1;
                        version = loop {
                            if let Ok(opened) = workspaces.open(&name).await {
                                break opened.map_or(0, |o| o.version);
                            }
                        };
                    }
                    Err(CommitError::Conflict) => panic!("nobody else writes {name}"),
                }
            }
            (name, version, answered, unknown)
        }));
    }
    for _ in 0..3 {
        for _ in 0..60 {
            tokio::time::timeout(SOON, committed.recv()).await.unwrap().unwrap();
        }
        cluster.kill().await;
        cluster.up().await;
        // What was in the channel was before the kill.
        while committed.try_recv().is_ok() {}
        tokio::time::timeout(SOON, committed.recv()).await.unwrap().unwrap();
    }
    stop.send(true).unwrap();
    for writer in writers {
        let (name, version, answered, unknown) = writer.await.unwrap();
        let (mut found, mut query) = (Vec::new(), EntryQuery { limit: 1000, ..EntryQuery::default() });
        loop {
            let page = workspaces.entries(&name, &query).await.unwrap();
            if page.entries.is_empty() {
                break;
            }
            query.from_seq = page.next_seq;
            found.extend(page.entries.into_iter().map(|e| e.method.parse::<u64>().unwrap()));
        }
        assert_eq!(found.len() as u64, version);
        let once: HashSet<u64> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "none twice");
        assert!(answered.iter().all(|attempt| once.contains(attempt)), "every answered one is there");
        assert!(found.len() - answered.len() <= unknown as usize, "none that was said to be undone");
    }
    workspaces.close().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_killed_under_the_committer_costs_nothing_that_was_promised() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let others = committers(&cluster).await;
    let workspaces = ChapStore::postgres(&store);
    workspaces.commit(vec![step("w", 0, 0, 0)]).await.unwrap();
    let mine: Vec<i32> = committers(&cluster).await.difference(&others).copied().collect();
    let [mine] = mine[..] else { panic!("{mine:?}") };
    // In mid-statement: it waits for a lock that this connection holds.
    let mut outside = cluster.connect().await;
    let mut held = outside.begin().await.unwrap();
    sqlx::query("LOCK TABLE choir_control.chap_entries IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    let commit = {
        let workspaces = workspaces.clone();
        tokio::spawn(async move { workspaces.commit(vec![step("w", 1, 1, 1)]).await })
    };
    waits_for_a_lock(&cluster).await;
    sqlx::query("SELECT pg_terminate_backend($1)")
        .bind(mine)
        .execute(&mut cluster.connect().await)
        .await
        .unwrap();
    let verdict = tokio::time::timeout(SOON, commit).await.unwrap().unwrap();
    assert!(matches!(verdict, Err(CommitError::NotWritten(_))), "{verdict:?}");
    held.rollback().await.unwrap();
    workspaces.commit(vec![step("w", 1, 1, 2)]).await.unwrap();
    let page = workspaces.entries("w", &EntryQuery { limit: 9, ..EntryQuery::default() }).await.unwrap();
    assert_eq!(page.entries.iter().map(|e| e.method.as_str()).collect::<Vec<_>>(), ["0", "2"]);
}

/// Waits until some connection waits for a lock.
async fn waits_for_a_lock(cluster: &TestCluster) {
    let mut outside = cluster.connect().await;
    let waits = async {
        loop {
            let (waiting,): (bool,) =
                sqlx::query_as("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
                    .fetch_one(&mut outside)
                    .await
                    .unwrap();
            if waiting {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, waits).await.unwrap();
}

/// Holds the committer up with one commit while others queue, so that they form one group.
async fn as_one_group(
    cluster: &TestCluster,
    workspaces: &ChapStore,
    changes: Vec<Change>,
) -> Vec<Result<(), CommitError>> {
    let mut outside = cluster.connect().await;
    let mut held = outside.begin().await.unwrap();
    sqlx::query("LOCK TABLE choir_control.chap_workspaces IN EXCLUSIVE MODE")
        .execute(&mut *held)
        .await
        .unwrap();
    let spawn = |change: Change| {
        let workspaces = workspaces.clone();
        tokio::spawn(async move { workspaces.commit(vec![change]).await })
    };
    let first = spawn(change("first", 0));
    waits_for_a_lock(cluster).await;
    let mut others = Vec::new();
    for change in changes {
        let waiting = workspaces.waiting();
        others.push(spawn(change));
        while workspaces.waiting() == waiting {
            tokio::task::yield_now().await;
        }
    }
    held.rollback().await.unwrap();
    first.await.unwrap().unwrap();
    let mut verdicts = Vec::new();
    for other in others {
        verdicts.push(tokio::time::timeout(SOON, other).await.unwrap().unwrap());
    }
    verdicts
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_that_wait_together_share_one_transaction_and_a_conflict_of_one_is_its_own() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let workspaces = ChapStore::postgres(&store);
    let mut changes: Vec<Change> = (0..8).map(|n| step(&format!("w{n}"), 0, 0, n)).collect();
    changes[3].version_before = 4;
    changes[3].version_after = 5;
    let verdicts = as_one_group(&cluster, &workspaces, changes).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Ok(()) => assert_ne!(n, 3),
            Err(CommitError::Conflict) => assert_eq!(n, 3),
            Err(error) => panic!("{error}"),
        }
    }
    let (rows, transactions): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(DISTINCT xmin::text) FROM choir_control.chap_entries")
            .fetch_one(&mut cluster.connect().await)
            .await
            .unwrap();
    assert_eq!((rows, transactions), (7, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_workspaces_fault_does_not_touch_the_others_of_its_group() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let workspaces = ChapStore::postgres(&store);
    let mut changes: Vec<Change> = (0..5).map(|n| step(&format!("w{n}"), 0, 0, n)).collect();
    // No JSON text has a NUL; rules that wrote one would be broken.
    let body = "a\0b".to_owned();
    changes[2].puts.push(Object { key: key(ObjectKind::Task, "t"), body, open: true, due: None });
    let verdicts = as_one_group(&cluster, &workspaces, changes).await;
    for (n, verdict) in verdicts.iter().enumerate() {
        match verdict {
            Ok(()) => assert_ne!(n, 2),
            Err(CommitError::NotWritten(StoreError::Sql(_))) => assert_eq!(n, 2),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(workspaces.open("w2").await.unwrap(), None);
    assert!(workspaces.open("w4").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stays_away_leaves_the_commit_undone_and_says_so_at_once() {
    let mut cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let workspaces = ChapStore::postgres(&store);
    workspaces.commit(vec![step("w", 0, 0, 0)]).await.unwrap();
    cluster.kill().await;
    // A backend that has not noticed yet may still serve, and what it commits is committed; then there is none.
    let mut version = 1;
    let away = async {
        loop {
            match workspaces.commit(vec![step("w", version, version, version)]).await {
                Ok(()) => version += 1,
                Err(CommitError::Unknown(_)) => {}
                Err(CommitError::NotWritten(StoreError::Unavailable(_))) => break,
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, away).await.unwrap();
    cluster.up().await;
    workspaces.commit(vec![step("w", version, version, version)]).await.unwrap();
    workspaces.close().await;
    store.close().await;
}
