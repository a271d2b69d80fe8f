//! Puts load on a Coordinator over HTTP and prints one JSON object of rates: one client that creates, completes and reads
//! tasks on one connection, then writers that create and complete, each on a connection and in a workspace of its own.
//! `interop/speed` compares it with the reference. Run with `--example load -- http://ADDRESS:PORT ROUNDS WRITERS
//! ROUNDS_EACH`. It speaks HTTP by hand, since it runs on the cores of what it measures: the client that others use here
//! costs as much as half a call.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement prints and may fail"
)]

use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One connection, one call at a time.
struct Client {
    stream: TcpStream,
    host: String,
    out: Vec<u8>,
    back: Vec<u8>,
}

impl Client {
    async fn connect(host: &str) -> Self {
        let stream = TcpStream::connect(host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, host: host.to_owned(), out: Vec::new(), back: Vec::new() }
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": "1", "method": method, "params": params }).to_string();
        self.out.clear();
        let head = format!(
            "POST /chap HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        );
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(body.as_bytes());
        self.stream.write_all(&self.out).await.unwrap();
        self.back.clear();
        let (mut head, mut whole) = (None, usize::MAX);
        while self.back.len() < whole {
            assert_ne!(self.stream.read_buf(&mut self.back).await.unwrap(), 0, "the server closed");
            if head.is_none()
                && let Some(end) = self.back.windows(4).position(|window| window == b"\r\n\r\n")
            {
                let lines = std::str::from_utf8(&self.back[..end]).unwrap().to_ascii_lowercase();
                let length = lines.lines().find_map(|line| line.strip_prefix("content-length:")).unwrap();
                whole = end + 4 + length.trim().parse::<usize>().unwrap();
                head = Some(end + 4);
            }
        }
        let mut answer: Value = serde_json::from_slice(&self.back[head.unwrap()..]).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }
}

async fn workspace(client: &mut Client, name: &str, agent: &str) {
    let profiles = ["core/1.0", "review/1.0"];
    client.call("workspace.create", json!({ "workspace": name, "profiles": profiles })).await;
    client.call("participant.join", json!({ "workspace": name, "from": agent, "type": "agent" })).await;
}

async fn create(client: &mut Client, workspace: &str, agent: &str, n: u64) -> Value {
    let input = json!({ "n": n, "text": "an ordinary piece of work, described in a line or two" });
    let params = json!({
        "workspace": workspace, "from": agent, "assignee": agent, "kind": "draft", "input": input,
    });
    client.call("task.create", params).await["task_id"].take()
}

async fn complete(client: &mut Client, workspace: &str, agent: &str, task: &Value) {
    let params = json!({
        "workspace": workspace, "from": agent, "task_id": task,
        "output": { "text": "what came of it, in a line or two" },
    });
    client.call("task.complete", params).await;
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("the Coordinator's URL");
    let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let (rounds, writers, each) = (number(), number(), number());
    let host = url.strip_prefix("http://").expect("http://ADDRESS:PORT");
    // Names are new in each run, so that a store that stays can be measured again.
    let run = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();

    let mut client = Client::connect(host).await;
    let name = format!("wsp_sequential_{run}");
    workspace(&mut client, &name, "agent:alone").await;
    let began = Instant::now();
    for n in 0..rounds {
        let task = create(&mut client, &name, "agent:alone", n).await;
        complete(&mut client, &name, "agent:alone", &task).await;
        let filter = json!({ "task_id": task });
        client
            .call("audit.read", json!({ "workspace": name, "from": "agent:alone", "filter": filter }))
            .await;
    }
    let sequential = (rounds * 3) as f64 / began.elapsed().as_secs_f64();

    let mut clients = Vec::new();
    for writer in 0..writers {
        let mut client = Client::connect(host).await;
        workspace(&mut client, &format!("wsp_writer{writer}_{run}"), &format!("agent:{writer}")).await;
        clients.push(client);
    }
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (mut client, writer) in clients.into_iter().zip(0u64..) {
        let (name, agent) = (format!("wsp_writer{writer}_{run}"), format!("agent:{writer}"));
        tasks.spawn(async move {
            for n in 0..each {
                let task = create(&mut client, &name, &agent, n).await;
                complete(&mut client, &name, &agent, &task).await;
            }
        });
    }
    tasks.join_all().await;
    let written = (writers * each * 2) as f64 / began.elapsed().as_secs_f64();
    println!("{}", json!({ "sequential": sequential, "writers": written }));
}
