//! Prints what calls cost, durable and chained: one client, eight writers, and a log of 50,000 entries. Run with
//! `cargo bench -p choir-coordinator`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench prints and may fail")]

use std::time::{Duration, Instant};

use choir_coordinator::{Hooks, Quota, Settings, spec};
use choir_messages::mail::{Caller, CoordinatorMsg};
use choir_persistence::chap::ChapStore;
use choir_persistence::testing::TestCluster;
use choir_supervisors::{Address, Tree};
use serde_json::{Value, json};

/// Rounds of create, complete and read of the sequential run.
const ROUNDS: usize = 500;

/// Calls of each of the eight writers.
const EACH: u64 = 1_000;

/// The long log.
const LONG: usize = 50_000;

/// Within which a bench's call is answered.
const WITHIN: Duration = Duration::from_secs(120);

#[derive(Clone)]
struct Client(Address<CoordinatorMsg>);

impl Client {
    async fn call(&self, method: &str, params: Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": "1", "method": method, "params": params}).to_string();
        let answer = self
            .0
            .call(WITHIN, |reply| CoordinatorMsg::Call {
                bytes: call.into_bytes().into(),
                caller: Caller::anyone(),
                reply,
            })
            .await
            .unwrap()
            .unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    async fn workspace(&self, name: &str) {
        let profiles = ["core/1.0", "review/1.0", "audit-scitt/1.0"];
        self.call("workspace.create", json!({"workspace": name, "profiles": profiles})).await;
        for n in 0..8 {
            let params = json!({"workspace": name, "from": format!("agent:{n}"), "type": "agent"});
            self.call("participant.join", params).await;
        }
    }

    async fn create(&self, workspace: &str, writer: u64, n: u64) -> Value {
        let from = format!("agent:{writer}");
        let input = json!({"n": n, "text": "an ordinary piece of work, described in a line or two"});
        let params =
            json!({"workspace": workspace, "from": from, "assignee": from, "kind": "draft", "input": input});
        self.call("task.create", params).await["task_id"].take()
    }

    async fn complete(&self, workspace: &str, writer: u64, task: &Value) {
        let params = json!({
            "workspace": workspace, "from": format!("agent:{writer}"), "task_id": task,
            "output": {"text": "what came of it, in a line or two"},
        });
        self.call("task.complete", params).await;
    }
}

async fn start(store: &ChapStore) -> (Tree, Client) {
    let quota = Quota { calls_per_second: 1e9, burst: 1e9, outstanding: 100_000 };
    let (tree, address) = spec(store.clone(), Settings { quota, ..Settings::default() }, Hooks::default());
    (Tree::start(tree).await.unwrap(), Client(address))
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

async fn sequential(client: &Client) {
    client.workspace("sequential").await;
    let began = Instant::now();
    for n in 0..ROUNDS {
        let task = client.create("sequential", 0, n as u64).await;
        client.complete("sequential", 0, &task).await;
        let filter = json!({"task_id": task});
        client.call("audit.read", json!({"workspace": "sequential", "filter": filter})).await;
    }
    let took = began.elapsed();
    let calls = ROUNDS * 3;
    println!("  one client, create/complete/read: {:.0} calls/s", calls as f64 / took.as_secs_f64());
}

async fn eight(client: &Client, shared: bool) {
    let name = |writer: u64| if shared { "shared".to_owned() } else { format!("own{writer}") };
    for writer in 0..if shared { 1 } else { 8 } {
        client.workspace(&name(writer)).await;
    }
    let began = Instant::now();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (client, name) = (client.clone(), name(writer));
        writers.spawn(async move {
            for n in 0..EACH / 2 {
                let task = client.create(&name, writer, n).await;
                client.complete(&name, writer, &task).await;
            }
        });
    }
    writers.join_all().await;
    let rate = (8 * EACH) as f64 / began.elapsed().as_secs_f64();
    println!(
        "  eight writers, {}: {rate:.0} calls/s",
        if shared { "one workspace" } else { "one workspace each" }
    );
}

async fn costs(client: &Client, entries: usize) {
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for n in 0..200 {
        let began = Instant::now();
        client.create("long", n % 8, n).await;
        writes.push(began.elapsed());
    }
    let filters = [
        json!({"method": "participant.join"}),
        json!({"from": "agent:3", "method": "task.create"}),
        json!({"outcome": "refused"}),
    ];
    for n in 0..150 {
        let range = json!({"from_seq": 0, "to_seq": 900 + n});
        let params = json!({"workspace": "long", "filter": filters[n % 3], "range": range});
        let began = Instant::now();
        client.call("audit.read", params).await;
        reads.push(began.elapsed());
    }
    println!(
        "  at {entries} entries: write p50 {:.2?} p99 {:.2?}; filtered read p50 {:.2?} p99 {:.2?}",
        percentile(&mut writes, 50),
        percentile(&mut writes, 99),
        percentile(&mut reads, 50),
        percentile(&mut reads, 99)
    );
}

async fn fill(client: &Client, calls: usize) {
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..64 {
        let client = client.clone();
        writers.spawn(async move {
            for n in (writer..calls).step_by(64) {
                client.create("long", n as u64 % 8, n as u64).await;
            }
        });
    }
    writers.join_all().await;
}

async fn long(store: &ChapStore, tree: Tree, client: Client) {
    client.workspace("long").await;
    fill(&client, 1_000).await;
    costs(&client, 1_000).await;
    let began = Instant::now();
    fill(&client, LONG - 1_000).await;
    println!("  64 writers: {:.0} calls/s", (LONG - 1_000) as f64 / began.elapsed().as_secs_f64());
    costs(&client, LONG).await;
    let began = Instant::now();
    let page = client.call("audit.read", json!({"workspace": "long"})).await;
    println!("  read of a page of {}: {:.2?}", page["entries"].as_array().unwrap().len(), began.elapsed());
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        let verified = client.call("audit.verify_chain", json!({"workspace": "long"})).await;
        assert_eq!(verified["status"], "verified");
        best = best.min(began.elapsed());
    }
    println!("  verify {LONG} entries: {best:.2?} (best of 5)");
    tree.shutdown().await;
    let began = Instant::now();
    let (tree, client) = start(store).await;
    client.create("long", 0, 0).await;
    println!("  start and first write with {LONG} entries: {:.2?}", began.elapsed());
    tree.shutdown().await;
}

async fn all(store: &ChapStore) {
    let (tree, client) = start(store).await;
    sequential(&client).await;
    eight(&client, true).await;
    eight(&client, false).await;
    long(store, tree, client).await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        println!("in memory:");
        all(&ChapStore::memory()).await;
        println!("in a folder:");
        // Not in /tmp, which may be memory: what is measured is a disk.
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = ChapStore::sqlite(&folder.path().join("coordinator")).unwrap();
        all(&store).await;
        store.close().await;
        println!("in Postgres:");
        let cluster = TestCluster::start().await;
        let database = cluster.store().await;
        let store = ChapStore::postgres(&database);
        all(&store).await;
        store.close().await;
        database.close().await;
    });
}
