//! Puts load on a Coordinator over HTTP and prints one JSON object of rates: one client that creates, completes and reads
//! tasks on one connection, then writers that create and complete, each on a connection and in a workspace of its own.
//! `interop/speed` compares it with the reference. Run with `--example load -- http://ADDRESS:PORT ROUNDS WRITERS
//! ROUNDS_EACH`. It speaks HTTP by hand, since it runs on the cores of what it measures: the client that others use here
//! costs as much as half a call. For the same reason it writes its calls as text, and reads of an answer only what it needs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a measurement prints and may fail"
)]

use std::io::Write as _;
use std::time::Instant;

use serde::Deserialize;
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

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    result: Option<Outcome<'a>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    task_id: Option<&'a str>,
}

impl Client {
    async fn connect(host: &str) -> Self {
        let stream = TcpStream::connect(host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, host: host.to_owned(), out: Vec::new(), back: Vec::new() }
    }

    /// One call; the task that its answer names, if any.
    async fn call(&mut self, method: &str, params: &str) -> Option<String> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"1","method":"{method}","params":{params}}}"#);
        self.out.clear();
        write!(
            self.out,
            "POST /chap HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        )
        .unwrap();
        self.stream.write_all(&self.out).await.unwrap();
        self.back.clear();
        let (mut begins, mut whole) = (0, usize::MAX);
        while self.back.len() < whole {
            assert_ne!(self.stream.read_buf(&mut self.back).await.unwrap(), 0, "the server closed");
            if whole == usize::MAX
                && let Some(end) = self.back.windows(4).position(|window| window == b"\r\n\r\n")
            {
                let head = std::str::from_utf8(&self.back[..end]).unwrap();
                let mut lines = head.lines().filter_map(|line| line.split_once(':'));
                let length = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length")).unwrap().1;
                begins = end + 4;
                whole = begins + length.trim().parse::<usize>().unwrap();
            }
        }
        let answer: Answer<'_> = serde_json::from_slice(&self.back[begins..]).unwrap();
        assert!(answer.error.is_none(), "{:?}", answer.error);
        answer.result.unwrap().task_id.map(str::to_owned)
    }
}

async fn workspace(client: &mut Client, name: &str, agent: &str) {
    let params = format!(r#"{{"workspace":"{name}","profiles":["core/1.0","review/1.0"]}}"#);
    client.call("workspace.create", &params).await;
    let params = format!(r#"{{"workspace":"{name}","from":"{agent}","type":"agent"}}"#);
    client.call("participant.join", &params).await;
}

async fn create(client: &mut Client, workspace: &str, agent: &str, n: u64) -> String {
    let input = format!(r#"{{"n":{n},"text":"an ordinary piece of work, described in a line or two"}}"#);
    let params = format!(
        r#"{{"workspace":"{workspace}","from":"{agent}","assignee":"{agent}","kind":"draft","input":{input}}}"#
    );
    client.call("task.create", &params).await.unwrap()
}

async fn complete(client: &mut Client, workspace: &str, agent: &str, task: &str) {
    let output = r#"{"text":"what came of it, in a line or two"}"#;
    let params =
        format!(r#"{{"workspace":"{workspace}","from":"{agent}","task_id":"{task}","output":{output}}}"#);
    client.call("task.complete", &params).await;
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
        let params =
            format!(r#"{{"workspace":"{name}","from":"agent:alone","filter":{{"task_id":"{task}"}}}}"#);
        client.call("audit.read", &params).await;
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
