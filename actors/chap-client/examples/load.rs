//! Puts load on a Coordinator over HTTP and prints one JSON object of rates: one client that creates, completes and reads
//! tasks on one connection, then writers that create and complete, each on a connection and in a workspace of its own.
//! `interop/speed` compares it with the reference. Run with `--example load -- URL ROUNDS WRITERS ROUNDS_EACH`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement prints and may fail"
)]

use std::time::{Duration, Instant};

use choir_chap_client::{Client, Endpoint};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

async fn workspace(client: &Client, name: &str, agent: &str) {
    let profiles = ["core/1.0", "review/1.0"];
    client.call("workspace.create", json!({ "workspace": name, "profiles": profiles })).await.unwrap();
    client
        .call("participant.join", json!({ "workspace": name, "from": agent, "type": "agent" }))
        .await
        .unwrap();
}

async fn create(client: &Client, workspace: &str, agent: &str, n: u64) -> Value {
    let input = json!({ "n": n, "text": "an ordinary piece of work, described in a line or two" });
    let params = json!({
        "workspace": workspace, "from": agent, "assignee": agent, "kind": "draft", "input": input,
    });
    client.call("task.create", params).await.unwrap()["task_id"].take()
}

async fn complete(client: &Client, workspace: &str, agent: &str, task: &Value) {
    let params = json!({
        "workspace": workspace, "from": agent, "task_id": task,
        "output": { "text": "what came of it, in a line or two" },
    });
    client.call("task.complete", params).await.unwrap();
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the Coordinator's URL");
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let (rounds, writers, each) = (number(), number(), number());
    let connect = || Client::new(url.parse::<Endpoint>().unwrap(), None, WITHIN).unwrap();
    // Names are new in each run, so that a store that stays can be measured again.
    let run = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();

    let client = connect();
    let name = format!("wsp_sequential_{run}");
    workspace(&client, &name, "agent:alone").await;
    let began = Instant::now();
    for n in 0..rounds {
        let task = create(&client, &name, "agent:alone", n).await;
        complete(&client, &name, "agent:alone", &task).await;
        let filter = json!({ "task_id": task });
        client
            .call("audit.read", json!({ "workspace": name, "from": "agent:alone", "filter": filter }))
            .await
            .unwrap();
    }
    let sequential = (rounds * 3) as f64 / began.elapsed().as_secs_f64();

    let clients: Vec<Client> = (0..writers).map(|_| connect()).collect();
    for (client, writer) in clients.iter().zip(0u64..) {
        workspace(client, &format!("wsp_writer{writer}_{run}"), &format!("agent:{writer}")).await;
    }
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (client, writer) in clients.into_iter().zip(0u64..) {
        let (name, agent) = (format!("wsp_writer{writer}_{run}"), format!("agent:{writer}"));
        tasks.spawn(async move {
            for n in 0..each {
                let task = create(&client, &name, &agent, n).await;
                complete(&client, &name, &agent, &task).await;
            }
        });
    }
    tasks.join_all().await;
    let written = (writers * each * 2) as f64 / began.elapsed().as_secs_f64();
    println!("{}", json!({ "sequential": sequential, "writers": written }));
}
