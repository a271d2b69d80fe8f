//! `POST /chap`.

use axum::body::{Body, Bytes};
use futures_util::stream;
use serde_json::json;

use crate::client::Client;
use crate::peer::Stage;

fn call(method: &str, params: &serde_json::Value) -> String {
    json!({"jsonrpc": "2.0", "id": "01J", "method": method, "params": params}).to_string()
}

#[tokio::test]
async fn a_call_is_answered_under_both_media_types_whatever_the_parameters() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for kind in ["application/json", "application/chap+json", "Application/JSON; charset=utf-8"] {
        let answer =
            client.ask("POST", "/chap", &[("content-type", kind)], call("test.echo", &json!({"n": 1}))).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.json(), json!({"jsonrpc": "2.0", "id": "01J", "result": {"n": 1}}));
    }
    stage.strike().await;
}

#[tokio::test]
async fn what_the_coordinator_refuses_is_an_answer_too() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for (body, code) in [
        (call("test.refuse", &json!({})), -32602),
        (call("does.not.exist", &json!({})), -32601),
        ("{ not json".to_owned(), -32700),
        (String::new(), -32700),
    ] {
        let answer = client.post(body).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (200, code));
    }
    // A notification is answered all the same.
    let answer =
        client.post(json!({"jsonrpc": "2.0", "method": "test.echo", "params": {}}).to_string()).await;
    assert_eq!(answer.json(), json!({"jsonrpc": "2.0", "id": null, "result": {}}));
    stage.strike().await;
}

#[tokio::test]
async fn another_media_type_or_none_is_refused_with_the_right_ones() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for headers in
        [&[][..], &[("content-type", "text/plain")], &[("content-type", "application/x-www-form-urlencoded")]]
    {
        let answer = client.ask("POST", "/chap", headers, call("test.echo", &json!({}))).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (415, -32002));
        assert!(answer.text.contains("application/chap+json"));
    }
    stage.strike().await;
}

#[tokio::test]
async fn a_call_without_an_answer_says_whether_it_may_be_repeated_and_nothing_of_the_inside() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for (method, status, code, outcome) in [
        ("test.busy", 503, -32000, "nothing_done"),
        ("test.not_stored", 503, -32000, "nothing_done"),
        ("test.ending", 503, -32000, "nothing_done"),
        ("test.unknown", 504, -32001, "unknown"),
        ("test.crash", 504, -32001, "unknown"),
    ] {
        let answer = client.post(call(method, &json!({}))).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (status, code), "{method}");
        let body = answer.json();
        assert_eq!((&body["id"], &body["error"]["data"]["outcome"]), (&json!("01J"), &json!(outcome)));
        assert_eq!(answer.header("retry-after"), if status == 503 { "1" } else { "" });
        assert!(!answer.text.contains("hunter2") && !answer.text.contains("relation"), "{}", answer.text);
        assert_eq!(answer.text.contains("read the log"), outcome == "unknown");
    }
    stage.strike().await;
}

#[tokio::test]
async fn a_call_past_its_deadline_is_unknown() {
    let mut config = choir_chap_http::Config::loopback(0);
    config.front.limits.call_within = std::time::Duration::from_millis(50);
    let stage = Stage::set(config).await;
    let answer = Client::connect(stage.port()).await.post(call("test.hold", &json!({}))).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (504, -32001));
    stage.strike().await;
}

#[tokio::test]
async fn a_body_up_to_its_bound_is_taken_and_a_longer_one_is_refused_after_it_was_read() {
    let mut config = choir_chap_http::Config::loopback(0);
    config.front.limits.envelope_bytes = 1000;
    let most = config.front.limits.body_bytes();
    let stage = Stage::set(config).await;
    let mut client = Client::connect(stage.port()).await;
    let padded = |length: usize| {
        let mut body = call("test.echo", &json!({}));
        body.push_str(&" ".repeat(length - body.len()));
        body
    };
    assert_eq!(client.post(padded(most)).await.status, 200);
    for length in [most + 1, most * 4] {
        let answer = client.post(padded(length)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (413, -32600), "{length}");
    }
    // The same without a length said beforehand: in chunks.
    let pieces = padded(most + 1).into_bytes();
    let chunks: Vec<_> =
        pieces.chunks(1000).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect();
    let answer = client.post(Body::from_stream(stream::iter(chunks))).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (413, -32600));
    assert_eq!(client.post(padded(most)).await.status, 200, "the connection is as good as before");
    stage.strike().await;
}

#[tokio::test]
async fn large_calls_share_a_budget_and_small_ones_go_on() {
    let mut config = choir_chap_http::Config::loopback(0);
    config.front.limits.bodies_bytes = 1024 * 1024;
    let stage = Stage::set(config).await;
    let large = |method: &str| call(method, &json!({"filler": "x".repeat(700 * 1024)}));
    let mut first = Client::connect(stage.port()).await;
    let body = large("test.hold");
    let held = tokio::spawn(async move { first.post(body).await });
    stage.peer.until_held(1).await;
    let mut client = Client::connect(stage.port()).await;
    let answer = client.post(large("test.echo")).await;
    assert_eq!((answer.status.as_u16(), answer.code(), answer.header("retry-after")), (503, -32000, "1"));
    assert_eq!(client.post(call("test.echo", &json!({}))).await.status, 200);
    stage.peer.release();
    assert_eq!(held.await.unwrap().status, 200);
    assert_eq!(client.post(large("test.echo")).await.status, 200);
    stage.strike().await;
}

#[tokio::test]
async fn a_caller_that_asks_before_it_sends_too_much_is_told_at_once() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    let headers =
        [("content-type", "application/json"), ("expect", "100-continue"), ("content-length", "20000000")];
    // It never sends a byte of the body.
    let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let answer = client.ask("POST", "/chap", &headers, body).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (413, -32600));
    stage.strike().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let mut config = choir_chap_http::Config::loopback(0);
    config.front.limits.body_within = std::time::Duration::from_millis(50);
    let stage = Stage::set(config).await;
    let mut client = Client::connect(stage.port()).await;
    let headers = [("content-type", "application/json"), ("content-length", "100")];
    let body = Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>());
    let answer = client.ask("POST", "/chap", &headers, body).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (408, -32002));
    stage.strike().await;
}

#[tokio::test]
async fn too_many_calls_of_one_caller_at_once_are_turned_away_and_the_others_answered() {
    let mut config = choir_chap_http::Config::loopback(0);
    config.front.limits.calls_per_caller = 1;
    let stage = Stage::set(config).await;
    let (mut first, mut second) = (Client::connect(stage.port()).await, Client::connect(stage.port()).await);
    let held = tokio::spawn(async move { first.post(call("test.hold", &json!({}))).await });
    stage.peer.until_held(1).await;
    let answer = second.post(call("test.echo", &json!({}))).await;
    assert_eq!((answer.status.as_u16(), answer.code(), answer.header("retry-after")), (429, -32000, "1"));
    stage.peer.release();
    assert_eq!(held.await.unwrap().json()["result"], "released");
    assert_eq!(second.post(call("test.echo", &json!({}))).await.status, 200);
    stage.strike().await;
}

#[tokio::test]
async fn the_server_tells_anyone_that_it_lives_and_what_it_speaks() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    assert_eq!(client.get("/healthz").await.json(), json!({"status": "ok"}));
    let about = client.get("/.well-known/chap").await.json();
    assert_eq!(about["limits"]["max_envelope_bytes"], 1024 * 1024);
    assert_eq!(about["transports"]["websocket"]["subprotocol"], "chap.v1");
    assert_eq!(about["authentication"], "none");
    let nothing = client.get("/nothing").await;
    assert_eq!((nothing.status.as_u16(), nothing.code()), (404, -32002));
    assert_eq!(client.get("/chap").await.status, 426);
    assert_eq!(client.ask("PUT", "/chap", &[], Body::empty()).await.status, 405);
    stage.strike().await;
}
