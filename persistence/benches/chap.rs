//! Prints what workspaces cost on this disk, in a folder and in Postgres: commits of one and of eight workspaces, and reads of a log of 1,000 and of
//! 50,000 entries. Run with `cargo bench -p choir-persistence --bench chap`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench prints and may fail")]

use std::time::{Duration, Instant};

use choir_messages::chap::{Change, Entry, EntryQuery, Object, ObjectKey, ObjectKind};
use choir_messages::time::Timestamp;
use choir_persistence::chap::ChapStore;
use choir_persistence::testing::TestCluster;

/// Commits of one workspace in the latency runs.
const COMMITS: u64 = 300;

fn entry(seq: u64) -> Entry {
    let method = if seq.is_multiple_of(100) { "review.request" } else { "task.create" };
    let from = format!("agent:{}", seq % 8);
    let task = format!("tsk_{:026}", seq / 2);
    Entry {
        seq,
        arrived: Timestamp::now(),
        record: format!(
            r#"{{"id":"{seq}","jsonrpc":"2.0","method":"{method}","params":{{"from":"{from}","input":{{"text":"{}"}},"task_id":"{task}"}}}}"#,
            "a line of ordinary text ".repeat(8)
        ),
        refused: seq.is_multiple_of(500).then_some(-32011),
        prev_hash: Some(format!("sha256:{seq:064}")),
        method: method.to_owned(),
        from: Some(from),
        tasks: vec![task],
    }
}

/// A change with one object and some entries.
fn change(workspace: &str, version: u64, entries: std::ops::Range<u64>) -> Change {
    let key = ObjectKey { kind: ObjectKind::Task, id: version.to_string() };
    Change {
        workspace: workspace.to_owned(),
        version_before: version,
        version_after: version + 1,
        meta: format!("{{\"entries\":{},\"text\":\"{}\"}}", entries.end, "m".repeat(300)),
        puts: vec![Object {
            key,
            body: format!("{{\"text\":\"{}\"}}", "o".repeat(400)),
            open: true,
            due: None,
        }],
        removes: Vec::new(),
        entries: entries.map(entry).collect(),
        notices: Vec::new(),
    }
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

async fn commits(store: &ChapStore, workspaces: u64) {
    let began = Instant::now();
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..workspaces {
        let store = store.clone();
        writers.spawn(async move {
            let name = format!("c{workspaces}-{n}");
            let mut times = Vec::new();
            for version in 0..COMMITS {
                let change = change(&name, version, version..version + 1);
                let sent = Instant::now();
                store.commit(vec![change]).await.unwrap();
                times.push(sent.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = writers.join_all().await.into_iter().flatten().collect();
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!(
        "commit of one entry, {workspaces} workspace(s): p50 {p50:.2?}  p99 {p99:.2?}  {rate:.0} commits/s"
    );
}

async fn reads(store: &ChapStore, entries: u64) {
    let base = EntryQuery { limit: 1000, ..EntryQuery::default() };
    let queries = [
        ("a page", EntryQuery { from_seq: entries / 2, limit: 100, ..base.clone() }),
        ("by method", EntryQuery { method: Some("review.request".to_owned()), limit: 10, ..base.clone() }),
        ("by sender", EntryQuery { from: Some("agent:3".to_owned()), limit: 100, ..base.clone() }),
        ("by task", EntryQuery { task: Some(format!("tsk_{:026}", 77)), ..base.clone() }),
        ("refused", EntryQuery { refused: Some(true), limit: 2, ..base.clone() }),
        (
            "by method and sender",
            EntryQuery {
                method: Some("review.request".to_owned()),
                from: Some("agent:4".to_owned()),
                limit: 5,
                ..base.clone()
            },
        ),
        ("by what is not there", EntryQuery { from: Some("nobody".to_owned()), ..base.clone() }),
    ];
    for (what, query) in queries {
        let mut times = Vec::new();
        for _ in 0..50 {
            let began = Instant::now();
            store.entries("long", &query).await.unwrap();
            times.push(began.elapsed());
        }
        println!("  {what}: p50 {:.2?}  p99 {:.2?}", percentile(&mut times, 50), percentile(&mut times, 99));
    }
}

async fn scan(store: &ChapStore) -> (usize, Duration) {
    let (began, mut found) = (Instant::now(), 0);
    let mut query = EntryQuery { limit: 1000, ..EntryQuery::default() };
    loop {
        let page = store.entries("long", &query).await.unwrap();
        if page.entries.is_empty() {
            return (found, began.elapsed());
        }
        found += page.entries.len();
        query.from_seq = page.next_seq;
    }
}

/// One line names the store, the others say what it costs.
async fn all(name: &str, store: &ChapStore) {
    println!("{name}:");
    commits(store, 1).await;
    commits(store, 8).await;
    let mut version = 0;
    for entries in [1_000, 50_000] {
        while version * 500 < entries {
            store.commit(vec![change("long", version, version * 500..(version + 1) * 500)]).await.unwrap();
            version += 1;
        }
        println!("at {entries} entries:");
        reads(store, entries).await;
    }
    for _ in 0..3 {
        let (found, took) = scan(store).await;
        println!("read of all {found} entries: {took:.2?}");
    }
    let began = Instant::now();
    store.open("long").await.unwrap();
    println!("open: {:.2?}", began.elapsed());
    store.close().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Not in /tmp, which may be memory: what is measured is a disk.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        all("a folder", &ChapStore::sqlite(&folder.path().join("coordinator")).unwrap()).await;
        let cluster = TestCluster::start().await;
        let database = cluster.store().await;
        all("Postgres", &ChapStore::postgres(&database)).await;
        database.close().await;
    });
}
