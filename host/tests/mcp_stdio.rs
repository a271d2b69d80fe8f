//! The Coordinator as an MCP client starts it: a real `choird coordinator --mcp-stdio`, spoken to over its pipes.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/coordinator.rs"]
mod coordinator;

use std::process::Stdio;

use choir_chap_client::{Client, Endpoint};
use coordinator::{SOON, fresh};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// An MCP client's end of the pipes.
struct Mcp {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl Mcp {
    fn start(options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_choird"))
            .args(["coordinator", "--mcp-stdio"])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, to, from, id: 0 }
    }

    async fn say(&mut self, line: &[u8]) {
        let to = self.to.as_mut().unwrap();
        tokio::time::timeout(SOON, async {
            to.write_all(line).await.unwrap();
            to.write_all(b"\n").await.unwrap();
            to.flush().await.unwrap();
        })
        .await
        .expect("it reads");
    }

    /// The next line, which is a JSON-RPC message like every other.
    async fn hear(&mut self) -> Value {
        let line = tokio::time::timeout(SOON, self.from.next_line()).await.expect("it answers").unwrap();
        let message: Value = serde_json::from_str(&line.expect("it is still there")).unwrap();
        assert_eq!(message["jsonrpc"], "2.0", "standard output carries nothing else");
        message
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.say(
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().as_bytes(),
        )
        .await;
        let answer = self.hear().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    async fn open(&mut self) {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
        });
        let answer = self.ask("initialize", hello).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
        self.say(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    }

    /// Calls a tool; gives what it says, and whether it failed.
    async fn tool(&mut self, name: &str, arguments: Value) -> (Value, bool) {
        let answer = self.ask("tools/call", json!({"name": name, "arguments": arguments})).await;
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap();
        (serde_json::from_str(text).unwrap(), result["isError"].as_bool().unwrap())
    }

    /// Closes the client's end; gives the exit code and what stood on standard error.
    async fn close(mut self) -> (Option<i32>, String) {
        drop(self.to.take());
        let mut err = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        tokio::time::timeout(SOON, async {
            assert_eq!(self.from.next_line().await.unwrap(), None, "nothing more is said");
            stderr.read_to_string(&mut err).await.unwrap();
            (self.child.wait().await.unwrap().code(), err)
        })
        .await
        .expect("it ends with its client")
    }
}

#[tokio::test]
async fn an_mcp_client_starts_it_works_a_task_over_its_pipes_and_ends_it_by_leaving() {
    let mut mcp = Mcp::start(&["--enable-chain"]);
    mcp.open().await;
    let tools = mcp.ask("tools/list", json!({})).await;
    let names: Vec<&str> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|tool| tool["name"].as_str())
        .collect();
    assert!(names.contains(&"chap.workspace.create") && names.contains(&"chap.task.create"), "{names:?}");
    let (workspace, who) = (fresh("wsp"), "agent:a@e.org");
    let (made, failed) = mcp.tool("chap.workspace.create", json!({"workspace": workspace})).await;
    assert!(!failed && made["workspace"] == workspace.as_str(), "{made}");
    let join = json!({"workspace": workspace, "from": who, "type": "agent"});
    assert!(!mcp.tool("chap.participant.join", join).await.1);
    let task =
        json!({"workspace": workspace, "from": who, "kind": "draft", "assignee": who, "input": {"n": 1}});
    let (task, failed) = mcp.tool("chap.task.create", task).await;
    assert!(!failed && task["state"] == "created", "{task}");
    let (verified, _) = mcp.tool("chap.audit.verify_chain", json!({"workspace": workspace})).await;
    assert_eq!(verified["status"], "verified");
    let (code, err) = mcp.close().await;
    assert_eq!(code, Some(0), "{err}");
    assert!(err.lines().all(|line| line.starts_with('{')), "log lines stand on standard error: {err}");
    assert!(!err.contains("\"listen\":"), "it listens nowhere: {err}");
}

#[tokio::test]
async fn garbage_and_a_line_of_two_mebibytes_are_refused_and_the_next_line_is_served() {
    let mut mcp = Mcp::start(&["--quiet"]);
    mcp.open().await;
    for garbage in [
        &b"{"[..],
        b"\xff\xfe",
        b"[]",
        b"17",
        b"{\"id\":1}",
        b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"x\"}",
    ] {
        mcp.say(garbage).await;
        let answer = mcp.hear().await;
        assert!(answer["id"].is_null() && answer["error"]["code"].is_i64(), "{answer}");
    }
    mcp.say(b"   ").await;
    let (workspace, who) = (fresh("wsp"), "agent:a@e.org");
    let join = json!({"workspace": workspace, "from": who, "type": "agent"});
    assert!(!mcp.tool("chap.participant.join", join).await.1);
    let task = |text: String| json!({"workspace": workspace, "from": who, "kind": "k", "assignee": who, "input": {"text": text}});
    let (refused, failed) = mcp.tool("chap.task.create", task("x".repeat(2 * 1024 * 1024))).await;
    assert!(failed && refused["chap_error"] == -32600, "{refused}");
    // Beyond what any call can be, a line is not even kept.
    mcp.say(&vec![b'x'; 9 * 1024 * 1024]).await;
    let skipped = mcp.hear().await;
    assert_eq!(skipped["error"]["code"], -32600, "{skipped}");
    assert!(!mcp.tool("chap.task.create", task("short".into())).await.1);
    let (log, _) = mcp.tool("chap.audit.read", json!({"workspace": workspace})).await;
    assert_eq!(log["entries"].as_array().unwrap().len(), 2, "{log}");
    assert_eq!(mcp.close().await.0, Some(0));
}

#[tokio::test]
async fn the_client_on_the_pipes_speaks_for_those_it_was_started_for_and_others_call_over_http() {
    let mut mcp = Mcp::start(&["--quiet", "--listen", "127.0.0.1:0", "--mcp-as", "agent:a@e.org"]);
    mcp.open().await;
    let workspace = fresh("wsp");
    let join = |who: &str| json!({"workspace": workspace, "from": who, "type": "agent"});
    assert!(!mcp.tool("chap.participant.join", join("agent:a@e.org")).await.1);
    let (refused, failed) = mcp.tool("chap.participant.join", join("agent:b@e.org")).await;
    assert!(failed && refused["chap_error"] == -32011, "{refused}");
    // Where it listens stands on standard error: standard output is the client's.
    let mut line = String::new();
    let mut err = BufReader::new(mcp.child.stderr.take().unwrap());
    tokio::time::timeout(SOON, err.read_line(&mut line)).await.unwrap().unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let at: Endpoint = format!("http://{}", ready["listen"].as_str().unwrap()).parse().unwrap();
    let client = Client::new(at, None, SOON).unwrap();
    client.call("participant.join", join("agent:b@e.org")).await.unwrap();
    mcp.child.stderr = Some(err.into_inner());
    assert_eq!(mcp.close().await.0, Some(0));
}
