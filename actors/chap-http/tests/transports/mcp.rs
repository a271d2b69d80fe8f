//! MCP over HTTP and over lines.

use axum::body::Body;
use choir_chap_http::mcp::{LineEnd, serve_lines};
use choir_chap_http::{Front, FrontConfig};
use choir_messages::mail::Caller;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::client::{Answer, Client, Events};
use crate::peer::{SOON, Stage, coordinator, tools};

const JSON: (&str, &str) = ("content-type", "application/json");
const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

async fn post(client: &mut Client, headers: &[(&str, &str)], message: &Value) -> Answer {
    let headers: Vec<_> = [JSON, BOTH].into_iter().chain(headers.iter().copied()).collect();
    client.ask("POST", "/mcp", &headers, message.to_string()).await
}

fn text_of(result: &Value) -> Value {
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_handshake_client_lists_and_calls_tools() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let answer = post(&mut client, &[], &request("initialize", hello)).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["result"]["protocolVersion"]),
        (200, &json!("2025-11-25"))
    );
    assert_eq!(answer.header("mcp-session-id"), "", "nothing is kept that a restart could lose");
    let version = [("mcp-protocol-version", "2025-11-25")];
    let notification = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let answer = post(&mut client, &version, &notification).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (202, ""));
    let listed = post(&mut client, &version, &request("tools/list", json!({}))).await.json();
    assert_eq!(listed["result"]["tools"][0]["name"], "chap.test.echo");
    let call = json!({"name": "chap.test.echo", "arguments": {"output": "{\"draft\": 1}"}});
    let called = post(&mut client, &version, &request("tools/call", call)).await.json();
    assert_eq!(text_of(&called["result"]), json!({"output": {"draft": 1}}));
    assert_eq!(called["result"]["isError"], false);
    stage.strike().await;
}

#[tokio::test]
async fn a_stateless_client_needs_no_handshake_and_its_headers_are_checked() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let version = ("mcp-protocol-version", "2026-07-28");
    let call = request("tools/call", json!({"_meta": meta, "name": "chap.test.refuse"}));
    let right = [version, ("mcp-method", "tools/call"), ("mcp-name", "chap.test.refuse")];
    let answer = post(&mut client, &right, &call).await;
    let result = answer.json()["result"].clone();
    assert_eq!(
        (answer.status.as_u16(), &result["isError"], &result["resultType"]),
        (200, &json!(true), &json!("complete"))
    );
    assert_eq!(
        text_of(&result),
        json!({"chap_error": -32602, "message": "Missing field: x", "data": {"x": 1}})
    );
    // The name in its wrapped form is the same name.
    let wrapped =
        [version, ("mcp-method", "tools/call"), ("mcp-name", "=?base64?Y2hhcC50ZXN0LnJlZnVzZQ==?=")];
    assert_eq!(post(&mut client, &wrapped, &call).await.status, 200);
    for wrong in [
        &[version][..],
        &[version, ("mcp-method", "tools/call")],
        &[version, ("mcp-method", "tools/list"), ("mcp-name", "chap.test.refuse")],
        &[version, version, ("mcp-method", "tools/call"), ("mcp-name", "chap.test.refuse")],
        &[("mcp-method", "tools/call"), ("mcp-name", "chap.test.refuse")],
    ] {
        let answer = post(&mut client, wrong, &call).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, -32020), "{wrong:?}");
    }
    let list = request("nothing/here", json!({"_meta": meta}));
    let answer = post(&mut client, &[version, ("mcp-method", "nothing/here")], &list).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (404, -32601));
    let future = request(
        "tools/list",
        json!({"_meta": {
            "io.modelcontextprotocol/protocolVersion": "2099-01-01",
            "io.modelcontextprotocol/clientCapabilities": {},
        }}),
    );
    let headers = [("mcp-protocol-version", "2099-01-01"), ("mcp-method", "tools/list")];
    let answer = post(&mut client, &headers, &future).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32022));
    stage.strike().await;
}

#[tokio::test]
async fn a_tool_whose_call_has_no_answer_says_so() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for (method, said) in [("test.unknown", "read the log"), ("test.not_stored", "Nothing was done")] {
        let call = request("tools/call", json!({"name": format!("chap.{method}")}));
        let result = post(&mut client, &[], &call).await.json()["result"].clone();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(result["isError"], true);
        assert!(text.contains(said) && !text.contains("hunter2"), "{text}");
    }
    stage.strike().await;
}

#[tokio::test]
async fn a_message_of_the_wrong_kind_is_refused() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    let ping = request("ping", json!({})).to_string();
    assert_eq!(client.ask("POST", "/mcp", &[("content-type", "text/plain")], ping.clone()).await.status, 415);
    assert_eq!(client.ask("POST", "/mcp", &[JSON, ("accept", "text/html")], ping.clone()).await.status, 406);
    for accept in ["*/*", "application/*;q=0.5, text/html", "application/json"] {
        assert_eq!(client.ask("POST", "/mcp", &[JSON, ("accept", accept)], ping.clone()).await.status, 200);
    }
    assert_eq!(client.ask("POST", "/mcp", &[JSON], ping.clone()).await.status, 200);
    let answer = client.ask("POST", "/mcp", &[JSON], format!("[{ping}]")).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, -32600));
    let foreign = client.ask("POST", "/mcp", &[JSON, ("origin", "https://evil.example")], ping).await;
    assert_eq!(foreign.status, 403);
    assert_eq!(client.ask("DELETE", "/mcp", &[], Body::empty()).await.status, 405);
    let listen = client.ask("GET", "/mcp", &[("accept", "text/event-stream")], Body::empty()).await;
    assert_eq!((listen.status.as_u16(), listen.header("allow")), (405, "POST"));
    stage.strike().await;
}

#[tokio::test]
async fn a_url_that_names_a_participant_has_its_notices_as_log_messages() {
    let stage = Stage::open().await;
    stage.peer.post("w", "agent:a", &json!({"n": 1}));
    let path = "/mcp?workspace=w&participant=agent:a";
    let mut client = Client::connect(stage.port()).await;
    let hello = request("initialize", json!({"protocolVersion": "2025-11-25"})).to_string();
    let hello = client.ask("POST", path, &[JSON, BOTH], hello).await;
    assert_eq!(hello.json()["result"]["capabilities"]["logging"], json!({}));
    assert_eq!(hello.header("mcp-session-id").len(), 32, "without one the usual clients do not listen");
    let headers = [("accept", "text/event-stream")];
    let mut events = Events::of(client.send("GET", path, &headers, Body::empty()).await);
    let event = events.next().await.unwrap();
    assert_eq!((event.id, &event.name), (Some(1), &None));
    assert_eq!(
        event.json(),
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {
            "level": "info", "logger": "chap", "data": {"number": 1, "notice": {"n": 1}},
        }})
    );
    drop(events);
    stage.peer.post("w", "agent:a", &json!({"n": 2}));
    let headers = [("accept", "text/event-stream"), ("last-event-id", "1")];
    let mut client = Client::connect(stage.port()).await;
    let mut events = Events::of(client.send("GET", path, &headers, Body::empty()).await);
    assert_eq!(events.next().await.unwrap().id, Some(2));
    stage.strike().await;
}

#[tokio::test]
async fn lines_carry_the_same_and_end_when_the_client_closes() {
    let (peer, tree) = coordinator().await;
    let mut config = FrontConfig::default();
    config.limits.envelope_bytes = 1000;
    let most = config.limits.body_bytes();
    let front = Front::new(peer.address.clone(), config, &tools());
    let (mut to_server, server_reads) = tokio::io::duplex(4096);
    let (server_writes, from_server) = tokio::io::duplex(4096);
    let server = tokio::spawn({
        let front = front.clone();
        async move { serve_lines(&front, Caller::anyone(), server_reads, server_writes).await }
    });
    let mut answers = BufReader::new(from_server).lines();
    let mut next = async || -> Value {
        let line = tokio::time::timeout(SOON, answers.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let mut say = async |line: String| to_server.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    say(request("initialize", json!({"protocolVersion": "2025-11-25"})).to_string()).await;
    assert_eq!(next().await["result"]["protocolVersion"], "2025-11-25");
    say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
    say(String::new()).await;
    say("{ not json\r".to_owned()).await;
    assert_eq!(next().await["error"]["code"], -32700);
    say("x".repeat(most + 1)).await;
    let refused = next().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)));
    say(request("tools/call", json!({"name": "chap.test.echo", "arguments": {"n": 1}})).to_string()).await;
    // The last line has no end, and is answered before the connection ends.
    let last =
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "chap.test.refuse"}});
    to_server.write_all(last.to_string().as_bytes()).await.unwrap();
    drop(to_server);
    let (one, two) = (next().await, next().await);
    assert_eq!(text_of(&one["result"]), json!({"n": 1}));
    assert_eq!((&two["id"], &two["result"]["isError"]), (&json!(2), &json!(true)));
    assert_eq!(tokio::time::timeout(SOON, server).await.unwrap().unwrap().unwrap(), LineEnd::Closed);
    assert_eq!(tree.shutdown().await.left, 0);
}

#[tokio::test]
async fn lines_end_when_the_server_does() {
    let (peer, tree) = coordinator().await;
    let front = Front::new(peer.address.clone(), FrontConfig::default(), &tools());
    let (_to_server, reads) = tokio::io::duplex(64);
    let server = tokio::spawn({
        let front = front.clone();
        async move { serve_lines(&front, Caller::anyone(), reads, tokio::io::sink()).await }
    });
    front.stop();
    assert_eq!(tokio::time::timeout(SOON, server).await.unwrap().unwrap().unwrap(), LineEnd::Stopped);
    assert_eq!(tree.shutdown().await.left, 0);
}
