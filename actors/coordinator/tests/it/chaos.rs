//! Eight writers while actors are killed and commits fail: every answered call is in the log exactly once, what was said
//! to be undone is not in it, nothing is in it twice, and the chain verifies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use choir_persistence::chap::{ChapStore, Fault, Faults};
use choir_persistence::testing::TestCluster;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{Running, SOON, Said, log, run_plain};

const WRITERS: u64 = 8;
const WORKSPACES: u64 = 3;

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What each numbered call came to.
type Fates = HashMap<u64, Said>;

async fn prepare(running: &Running) {
    for n in 0..WORKSPACES {
        let members: Vec<String> = (0..WRITERS).map(|w| format!("agent:{w}")).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let name = format!("w{n}");
        running.client.workspace(&name, &["core/1.0", "audit-scitt/1.0"], &members).await;
    }
}

/// Lets the writers make calls, each numbered, and tells of every one that is over.
fn write(
    running: &Running,
    numbers: std::ops::Range<u64>,
    progress: &mpsc::UnboundedSender<()>,
) -> tokio::task::JoinSet<Fates> {
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (client, progress, numbers) = (running.client.clone(), progress.clone(), numbers.clone());
        writers.spawn(async move {
            let mut fates = Fates::new();
            for n in numbers {
                let number = writer * 1_000_000 + n;
                let workspace = format!("w{}", (writer + n) % WORKSPACES);
                fates.insert(number, client.task(&workspace, &format!("agent:{writer}"), number).await);
                let _ = progress.send(());
            }
            fates
        });
    }
    writers
}

async fn judge(store: &ChapStore, running: &Running, fates: &Fates) -> (usize, usize) {
    let mut found: HashMap<u64, usize> = HashMap::new();
    for n in 0..WORKSPACES {
        let name = format!("w{n}");
        for entry in log(store, &name).await.iter().filter(|e| e.method == "task.create") {
            let record: Value = serde_json::from_str(&entry.record).unwrap();
            *found.entry(record["params"]["input"]["n"].as_u64().unwrap()).or_default() += 1;
        }
        let verified = running.client.call("audit.verify_chain", json!({"workspace": name})).await.ok();
        assert_eq!(verified["status"], "verified", "{verified}");
    }
    let (mut done, mut unknown) = (0, 0);
    for (number, said) in fates {
        let times = found.get(number).copied().unwrap_or(0);
        match said {
            Said::Result(_) => {
                done += 1;
                assert_eq!(times, 1, "call {number} was answered");
            }
            Said::Nothing(_) => assert_eq!(times, 0, "call {number} was said to be undone"),
            Said::Unknown => {
                unknown += 1;
                assert!(times <= 1, "call {number}");
            }
            Said::Refused(code, message) => panic!("{code} {message}"),
        }
    }
    (done, unknown)
}

/// Kills a random actor after every few calls, until the writers are done.
async fn rampage(
    running: &Running,
    dice: &mut Dice,
    mut progress: mpsc::UnboundedReceiver<()>,
    every: u64,
    elsewhere: &[&str],
) -> u32 {
    let (mut calls, mut kills, mut elsewhere) = (0, 0, elsewhere.iter());
    let tree = running.tree.handle();
    while let Some(()) = tokio::time::timeout(SOON, progress.recv()).await.unwrap() {
        calls += 1;
        if calls % every != 0 {
            continue;
        }
        let live = running.live();
        if let Some(victim) = live.get(dice.roll(live.len().max(1) as u64) as usize) {
            let path = format!("coordinator/floor/workspaces/{victim}");
            kills += u32::from(if dice.roll(2) == 0 { tree.kill(&path) } else { tree.crash(&path) });
        }
        if dice.roll(8) == 0
            && let Some(path) = elsewhere.next()
        {
            kills += u32::from(tree.kill(path));
        }
    }
    kills
}

#[tokio::test(flavor = "multi_thread")]
async fn workspace_actors_killed_under_eight_writers_cost_nothing_but_time() {
    let store = ChapStore::memory();
    let running = run_plain(&store).await;
    prepare(&running).await;
    let (progress, calls) = mpsc::unbounded_channel();
    let writers = write(&running, 0..150, &progress);
    drop(progress);
    let kills = rampage(&running, &mut Dice(11), calls, 10, &[]).await;
    let fates: Fates = writers.join_all().await.into_iter().flatten().collect();
    assert!(kills > 50, "{kills}");
    let (done, _) = judge(&store, &running, &fates).await;
    assert_eq!(done, fates.len(), "the death of a workspace actor is nobody's loss");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn actors_killed_and_a_folder_opened_again_under_eight_writers_lose_no_answered_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = ChapStore::sqlite(folder.path()).unwrap();
    let mut all = Fates::new();
    for seed in 1..=3 {
        let running = run_plain(&store).await;
        if seed == 1 {
            prepare(&running).await;
        }
        let (progress, calls) = mpsc::unbounded_channel();
        let writers = write(&running, seed * 1000..seed * 1000 + 80, &progress);
        drop(progress);
        let elsewhere = ["coordinator/pen", "coordinator/floor/dispatcher"];
        rampage(&running, &mut Dice(seed), calls, 9, &elsewhere).await;
        all.extend(writers.join_all().await.into_iter().flatten());
        running.end().await;
        store.close().await;
        store = ChapStore::sqlite(folder.path()).unwrap();
    }
    let running = run_plain(&store).await;
    let (done, _) = judge(&store, &running, &all).await;
    assert!(done > all.len() / 2, "{done} of {}", all.len());
    running.end().await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_and_however_commits_fail_what_was_said_is_true() {
    for seed in 1..=3 {
        let rolls = Arc::new(AtomicU64::new(seed));
        let store = ChapStore::memory_with_faults(Faults::new(move |change| {
            // Not while the workspaces are made.
            if !change.entries.iter().any(|e| e.method == "task.create") {
                return None;
            }
            let seed = rolls.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
            match Dice(seed).roll(40) {
                0 => Some(Fault::NotWritten),
                1 => Some(Fault::UnknownWritten),
                2 => Some(Fault::UnknownNotWritten),
                3 => Some(Fault::Conflict),
                _ => None,
            }
        }));
        let running = run_plain(&store).await;
        prepare(&running).await;
        let (progress, calls) = mpsc::unbounded_channel();
        let writers = write(&running, 0..60, &progress);
        drop(progress);
        let elsewhere =
            ["coordinator/pen", "coordinator/router", "coordinator/floor/dispatcher", "coordinator/inboxes"];
        rampage(&running, &mut Dice(seed), calls, 7, &elsewhere).await;
        let fates: Fates = writers.join_all().await.into_iter().flatten().collect();
        let (done, _) = judge(&store, &running, &fates).await;
        assert!(done > fates.len() / 2, "seed {seed}: {done} of {}", fates.len());
        running.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_killed_under_eight_writers_loses_no_answered_call() {
    let mut cluster = TestCluster::start().await;
    let database = cluster.store().await;
    let store = ChapStore::postgres(&database);
    let running = run_plain(&store).await;
    prepare(&running).await;
    let (progress, mut calls) = mpsc::unbounded_channel();
    let writers = write(&running, 0..120, &progress);
    drop(progress);
    for _ in 0..2 {
        for _ in 0..200 {
            tokio::time::timeout(SOON, calls.recv()).await.unwrap().unwrap();
        }
        cluster.kill().await;
        cluster.up().await;
    }
    let fates: Fates = writers.join_all().await.into_iter().flatten().collect();
    let (done, _) = judge(&store, &running, &fates).await;
    assert!(done >= 200, "{done}");
    running.end().await;
    store.close().await;
    database.close().await;
}
