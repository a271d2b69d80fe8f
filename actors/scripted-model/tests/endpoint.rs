//! The endpoint as a client sees it, over a bare socket.

#![allow(clippy::unwrap_used, reason = "helpers of a test may fail it")]

use std::time::Duration;

use choir_scripted_model::{
    Entry, Fault, FaultRule, Handle, JournalSink, Match, Options, Outcome, Script, ScriptedModel, Step, When,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const WITHIN: Duration = Duration::from_secs(20);

fn script() -> Script {
    Script::interactive().rule(Match::Tag("t1".into()), [Step::text("hello")])
}

async fn start(script: Script) -> Handle {
    ScriptedModel::start(script, JournalSink::Memory).await.unwrap()
}

fn request(text: &str) -> Value {
    json!({ "model": "m", "messages": [{ "role": "user", "content": text }], "foo": 1 })
}

/// Sends a request; the connection is left open for whoever wants to break it off.
async fn send(handle: &Handle, key: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", handle.port())).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

/// Everything that comes back: head and raw body.
async fn receive(mut stream: TcpStream) -> (String, String) {
    let mut bytes = Vec::new();
    // A connection that is cut ends in an error after what did arrive.
    let _ = tokio::time::timeout(WITHIN, stream.read_to_end(&mut bytes)).await.expect("the endpoint answers");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    (head.to_owned(), body.to_owned())
}

async fn ask(handle: &Handle, body: &Value) -> (u16, Value) {
    let (head, body) = receive(send(handle, handle.key(), body).await).await;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status line");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

async fn last(handle: &Handle, seen: impl Fn(&Entry) -> bool) -> Entry {
    let find = |entries: &[Entry]| entries.last().filter(|entry| seen(entry)).cloned();
    handle.journal().until(WITHIN, find).await.unwrap()
}

#[tokio::test]
async fn an_answer_has_the_interfaces_shape_and_is_in_the_journal() {
    let handle = start(script()).await;
    let (status, body) = ask(&handle, &request("hi [t1]")).await;
    assert_eq!(status, 200);
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "m");
    assert_eq!(body["choices"][0]["message"]["content"], "hello");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert!(body["usage"]["total_tokens"].as_u64().unwrap() > 0 && body["created"].is_u64());
    let journal = handle.shutdown().await;
    let entries = journal.about("[t1]");
    assert_eq!((entries.len(), entries[0].number, entries[0].messages), (1, 1, 1));
    assert_eq!(entries[0].final_answer(), Some("hello"));
    assert!(entries[0].ended.is_some() && journal.open_calls().is_empty());
}

#[tokio::test]
async fn a_wrong_key_and_a_broken_transcript_are_refused_as_a_real_endpoint_would() {
    let handle = start(script()).await;
    let (head, body) = receive(send(&handle, "sk-wrong", &request("hi")).await).await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["error"]["code"], "invalid_api_key");
    let orphan = json!({ "role": "tool", "tool_call_id": "x", "content": "" });
    let (status, body) = ask(&handle, &json!({ "model": "m", "messages": [orphan] })).await;
    assert_eq!((status, body["error"]["type"].as_str()), (400, Some("invalid_request_error")));
    let refused = |entry: &Entry| matches!(entry.outcome, Outcome::Refused { status: 400, .. });
    last(&handle, refused).await;
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer_and_counts_as_a_repeat() {
    let handle = start(script()).await;
    let (_, first) = ask(&handle, &request("run ls")).await;
    let (_, second) = ask(&handle, &request("run ls")).await;
    assert_eq!(first["choices"], second["choices"]);
    assert_eq!((handle.journal().repeats(), handle.journal().requests()), (1, 2));
}

#[tokio::test]
async fn a_held_call_stays_open_until_it_is_released() {
    let at = When::Message { contains: "[t1]".into(), step: Some(0) };
    let handle = start(script().fault(FaultRule::once(at, Fault::Hold))).await;
    let call = send(&handle, handle.key(), &request("[t1]")).await;
    let held = handle.until_held(WITHIN).await.unwrap();
    assert_eq!((held.message.as_str(), handle.journal().open_calls().len()), ("[t1]", 1));
    assert!(handle.release(held.number) && !handle.release(held.number));
    assert!(receive(call).await.1.contains("hello"));
}

#[tokio::test]
async fn a_client_that_dies_in_a_held_call_is_seen_and_its_repeat_is_answered() {
    let handle = start(script().fault(FaultRule::once(When::Always, Fault::Hold))).await;
    let call = send(&handle, handle.key(), &request("[t1]")).await;
    let held = handle.until_held(WITHIN).await.unwrap();
    drop(call);
    last(&handle, |entry| entry.outcome == Outcome::Disconnected).await;
    assert!(!handle.release(held.number));
    assert_eq!(ask(&handle, &request("[t1]")).await.0, 200);
    assert_eq!(handle.journal().final_answers("[t1]").len(), 1);
}

#[tokio::test]
async fn every_fault_shows_on_the_wire() {
    let handle = start(script()).await;
    let fault = async |fault: Fault| {
        handle.clear_faults();
        handle.add_fault(FaultRule::once(When::Always, fault));
        receive(send(&handle, handle.key(), &request("[t1]")).await).await
    };
    let (head, _) = fault(Fault::RateLimited { retry_after: Some("7".into()) }).await;
    assert!(head.contains(" 429 ") && head.contains("retry-after: 7"), "{head}");
    assert!(fault(Fault::Status { status: 503 }).await.0.contains(" 503 "));
    assert!(fault(Fault::Slow { millis: 1 }).await.1.contains("hello"));
    let (head, body) = fault(Fault::CutBody).await;
    assert!(head.contains("chunked") && !body.contains("\r\n0\r\n"), "{body}");
    assert!(fault(Fault::MalformedJson).await.0.contains(" 200 "));
    assert!(fault(Fault::WrongShape).await.1.contains("none"));
    assert!(fault(Fault::Empty).await.1.contains("\"content\":null"));
    assert!(fault(Fault::InvalidArguments).await.1.contains("unfinished"));
    assert!(fault(Fault::UnknownTool).await.1.contains("no_such_tool"));
    assert_eq!(fault(Fault::HugeText { bytes: 9000 }).await.1.matches("xxx").count(), 3000);
    assert!(fault(Fault::HugeBody { bytes: 300_000 }).await.1.len() >= 300_000);
    assert!(fault(Fault::ContentFilter).await.1.contains("content_filter"));
}

#[tokio::test]
async fn a_call_that_was_a_fault_is_no_step_of_the_script() {
    let script = Script::interactive()
        .rule(Match::Any, [Step::call("choir.exec", json!({ "command": "ls" })), Step::text("done")])
        .fault(FaultRule::once(When::Always, Fault::UnknownTool));
    let handle = start(script).await;
    let mut body = request("go");
    for expected in ["no_such_tool", "choir_exec"] {
        let (_, answer) = ask(&handle, &body).await;
        let message = answer["choices"][0]["message"].clone();
        assert_eq!(message["tool_calls"][0]["function"]["name"], expected);
        let id = message["tool_calls"][0]["id"].clone();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(message);
        messages.push(json!({ "role": "tool", "tool_call_id": id, "content": "{}" }));
    }
    assert_eq!(ask(&handle, &body).await.1["choices"][0]["message"]["content"], "done");
}

#[tokio::test]
async fn shutting_down_ends_open_calls_and_a_fixed_port_can_be_taken_again() {
    let handle = start(script().fault(FaultRule::always(When::Always, Fault::NeverAnswers))).await;
    let (port, key) = (handle.port(), handle.key().to_owned());
    let call = send(&handle, &key, &request("[t1]")).await;
    last(&handle, |entry| entry.fault.is_some()).await;
    let journal = handle.shutdown().await;
    assert!(journal.open_calls().is_empty());
    assert!(!receive(call).await.1.contains("hello"));
    let options = Options { port, key: Some(key) };
    let again = ScriptedModel::start_with(script(), JournalSink::Memory, options).await.unwrap();
    assert_eq!(ask(&again, &request("[t1]")).await.0, 200);
}

#[tokio::test]
async fn the_journals_file_says_what_came_of_every_request_and_never_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let handle = ScriptedModel::start(script(), JournalSink::File(path.clone())).await.unwrap();
    ask(&handle, &request("[t1]")).await;
    let _ = receive(send(&handle, "sk-wrong", &request("hi")).await).await;
    let key = handle.key().to_owned();
    let journal = handle.shutdown().await;
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for number in 1..=2 {
        let came = lines.iter().rfind(|line| line["number"] == number).unwrap();
        assert!(came["ended"].is_u64(), "{came}");
    }
    assert!(!text.contains(&key) && !text.contains("sk-wrong") && journal.write_failure().is_none());
}

#[tokio::test]
async fn a_journal_that_cannot_be_opened_stops_the_start() {
    let sink = JournalSink::File("/dev/null/journal".into());
    let error = ScriptedModel::start(script(), sink).await.unwrap_err();
    assert!(error.to_string().contains("journal"), "{error}");
}
