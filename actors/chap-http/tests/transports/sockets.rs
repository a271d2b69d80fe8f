//! WebSocket.

use std::time::Duration;

use choir_chap_http::{Auth, Config, Grant, TokenDigest};
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message, http::Request};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::peer::{SOON, Stage};

pub(crate) type Socket = WebSocketStream<TcpStream>;

fn request(port: u16, path: &str, headers: &[(&'static str, &str)]) -> Request<()> {
    let mut request = format!("ws://127.0.0.1:{port}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    request
}

pub(crate) async fn try_open(
    port: u16,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<Socket, Error> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (socket, response) = client_async(request(port, path, headers), stream).await?;
    assert_eq!(response.headers()["sec-websocket-protocol"], "chap.v1");
    Ok(socket)
}

pub(crate) async fn open(port: u16, path: &str) -> Socket {
    try_open(port, path, &[("sec-websocket-protocol", "chap.v1")]).await.unwrap()
}

pub(crate) async fn say(socket: &mut Socket, value: &Value) {
    socket.send(Message::text(value.to_string())).await.unwrap();
}

/// The next text frame.
pub(crate) async fn hear(socket: &mut Socket) -> Value {
    loop {
        match tokio::time::timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The code the socket is closed with.
async fn closed(socket: &mut Socket) -> Option<CloseCode> {
    loop {
        match tokio::time::timeout(SOON, socket.next()).await.unwrap() {
            Some(Ok(Message::Close(frame))) => return frame.map(|frame| frame.code),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return None,
        }
    }
}

fn call(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

#[tokio::test]
async fn calls_are_answered_with_their_ids_and_reach_the_coordinator_in_order() {
    let stage = Stage::open().await;
    for path in ["/chap/ws", "/chap"] {
        let mut socket = open(stage.port(), path).await;
        say(&mut socket, &call(1, "test.echo", json!({"n": 1}))).await;
        assert_eq!(hear(&mut socket).await, json!({"jsonrpc": "2.0", "id": 1, "result": {"n": 1}}));
        socket.send(Message::text("{ not json")).await.unwrap();
        assert_eq!(hear(&mut socket).await["error"]["code"], -32700);
        say(&mut socket, &call(2, "test.unknown", json!({}))).await;
        let unknown = hear(&mut socket).await;
        assert_eq!((&unknown["id"], &unknown["error"]["code"]), (&json!(2), &json!(-32001)));
        socket.close(None).await.unwrap();
    }
    let mut socket = open(stage.port(), "/chap/ws").await;
    for n in 0..200 {
        socket.feed(Message::text(call(n, "task.note", json!({"n": n})).to_string())).await.unwrap();
    }
    socket.flush().await.unwrap();
    for _ in 0..200 {
        assert_eq!(hear(&mut socket).await["result"], json!({"noted": true}));
    }
    let order: Vec<u64> = stage.peer.noted().iter().map(|params| params["n"].as_u64().unwrap()).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>());
    stage.strike().await;
}

#[tokio::test]
async fn a_call_that_waits_does_not_hold_up_the_next() {
    let stage = Stage::open().await;
    let mut socket = open(stage.port(), "/chap/ws").await;
    say(&mut socket, &call(1, "test.hold", json!({}))).await;
    say(&mut socket, &call(2, "test.echo", json!({}))).await;
    assert_eq!(hear(&mut socket).await["id"], 2);
    stage.peer.until_held(1).await;
    stage.peer.release();
    assert_eq!(hear(&mut socket).await["id"], "held");
    stage.strike().await;
}

#[tokio::test]
async fn the_subprotocol_must_be_offered() {
    let stage = Stage::open().await;
    for headers in [&[][..], &[("sec-websocket-protocol", "graphql-ws")]] {
        let Err(Error::Http(refused)) = try_open(stage.port(), "/chap/ws", headers).await else {
            panic!("let in with {headers:?}")
        };
        assert_eq!(refused.status(), 400);
    }
    let among = [("sec-websocket-protocol", "graphql-ws, chap.v1")];
    assert!(try_open(stage.port(), "/chap/ws", &among).await.is_ok());
    stage.strike().await;
}

#[tokio::test]
async fn subscribed_notices_are_pushed_and_resume_by_number() {
    let stage = Stage::open().await;
    stage.peer.post("w", "human:a", &json!({"n": 1}));
    stage.peer.post("w", "human:a", &json!({"n": 2}));
    let mut socket = open(stage.port(), "/chap/ws?workspace=w&participant=human:a&since=1").await;
    let pushed = |number: u64, n: u64| {
        json!({"jsonrpc": "2.0", "method": "notify.notice", "params": {
            "workspace": "w", "participant": "human:a", "number": number, "notice": {"n": n},
        }})
    };
    assert_eq!(hear(&mut socket).await, pushed(2, 2));
    stage.peer.post("w", "human:a", &json!({"n": 3}));
    assert_eq!(hear(&mut socket).await, pushed(3, 3));
    // A second one by message, beside calls.
    stage.peer.post("v", "human:b", &json!({"n": 9}));
    say(&mut socket, &call(1, "notify.subscribe", json!({"workspace": "v", "participant": "human:b"}))).await;
    assert_eq!(
        hear(&mut socket).await["result"],
        json!({"subscribed": true, "workspace": "v", "participant": "human:b", "next": 0})
    );
    assert_eq!(hear(&mut socket).await["params"]["notice"], json!({"n": 9}));
    assert_eq!(stage.serving.streams(), 2);
    // Ended, nothing more comes of it.
    let off = json!({"workspace": "v", "participant": "human:b"});
    say(&mut socket, &call(2, "notify.unsubscribe", off.clone())).await;
    assert_eq!(hear(&mut socket).await["result"], json!({"unsubscribed": true}));
    stage.peer.post("v", "human:b", &json!({"n": 10}));
    say(&mut socket, &call(3, "notify.unsubscribe", off)).await;
    assert_eq!(hear(&mut socket).await["result"], json!({"unsubscribed": false}));
    stage.peer.post("w", "human:a", &json!({"n": 4}));
    assert_eq!(hear(&mut socket).await, pushed(4, 4));
    stage.strike().await;
}

#[tokio::test]
async fn a_subscription_that_is_wrong_or_too_many_is_refused_and_the_socket_lives_on() {
    let stage = Stage::open().await;
    let mut socket = open(stage.port(), "/chap/ws").await;
    for (params, code) in [
        (json!({}), -32602),
        (json!({"workspace": 1, "participant": "human:a"}), -32602),
        (json!({"workspace": "w", "participant": "human:a", "since": -1}), -32602),
        (json!({"workspace": "w", "participant": "human:a", "since": 1.5}), -32602),
        (json!([]), -32602),
        (json!({"workspace": "nowhere", "participant": "human:a"}), -32602),
    ] {
        say(&mut socket, &call(7, "notify.subscribe", params.clone())).await;
        let refused = hear(&mut socket).await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(code)), "{params}");
    }
    for n in 0..16 {
        let params = json!({"workspace": format!("w{n}"), "participant": "human:a", "since": 3});
        say(&mut socket, &call(n, "notify.subscribe", params)).await;
        assert_eq!(hear(&mut socket).await["result"]["next"], 3);
    }
    say(&mut socket, &call(17, "notify.subscribe", json!({"workspace": "w16", "participant": "human:a"})))
        .await;
    assert_eq!(hear(&mut socket).await["error"]["code"], -32000);
    let Err(Error::Http(refused)) = try_open(
        stage.port(),
        "/chap/ws?workspace=nowhere&participant=human:a",
        &[("sec-websocket-protocol", "chap.v1")],
    )
    .await
    else {
        panic!("let in")
    };
    assert_eq!(refused.status(), 400);
    stage.strike().await;
}

#[tokio::test]
async fn frames_that_are_too_long_or_not_text_close_the_socket_with_the_reason() {
    let mut config = Config::loopback(0);
    config.front.limits.envelope_bytes = 1000;
    let most = config.front.limits.frame_bytes();
    let stage = Stage::set(config).await;
    let mut socket = open(stage.port(), "/chap/ws").await;
    let padded = |length: usize| {
        let mut text = call(1, "test.echo", json!({})).to_string();
        text.push_str(&" ".repeat(length - text.len()));
        Message::text(text)
    };
    socket.send(padded(most)).await.unwrap();
    assert_eq!(hear(&mut socket).await["id"], 1);
    let _ = socket.send(padded(most + 1)).await;
    assert!(matches!(closed(&mut socket).await, Some(CloseCode::Size) | None));
    let mut socket = open(stage.port(), "/chap/ws").await;
    socket.send(Message::binary(b"{}".to_vec())).await.unwrap();
    assert_eq!(closed(&mut socket).await, Some(CloseCode::Unsupported));
    stage.strike().await;
}

#[tokio::test]
async fn a_socket_is_pinged_and_one_that_never_answers_is_let_go() {
    let mut config = Config::loopback(0);
    config.front.limits.ping_every = Duration::from_millis(20);
    config.front.limits.socket_silent = Duration::from_millis(200);
    let stage = Stage::set(config).await;
    // One that reads answers pings by itself, and stays.
    let mut living = open(stage.port(), "/chap/ws").await;
    let mut connections = stage.serving.connections();
    let mut dead = open(stage.port(), "/chap/ws").await;
    for _ in 0..20 {
        let ping = tokio::time::timeout(SOON, living.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(ping, Message::Ping(_)), "{ping:?}");
        living.flush().await.unwrap();
    }
    tokio::time::timeout(SOON, connections.wait_for(|open| *open == 1)).await.unwrap().unwrap();
    say(&mut living, &call(1, "test.echo", json!({}))).await;
    assert_eq!(hear(&mut living).await["id"], 1);
    assert_eq!(closed(&mut dead).await, None);
    stage.strike().await;
}

#[tokio::test]
async fn a_socket_without_calls_or_subscriptions_is_closed_after_a_while() {
    let mut config = Config::loopback(0);
    config.front.limits.ping_every = Duration::from_millis(20);
    config.front.limits.socket_idle = Duration::from_millis(100);
    let stage = Stage::set(config).await;
    let mut subscribed = open(stage.port(), "/chap/ws?workspace=w&participant=human:a").await;
    let mut idle = open(stage.port(), "/chap/ws").await;
    assert_eq!(closed(&mut idle).await, Some(CloseCode::Normal));
    stage.peer.post("w", "human:a", &json!({"n": 1}));
    assert_eq!(hear(&mut subscribed).await["params"]["number"], 1);
    stage.strike().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_cut_off() {
    let mut config = Config::loopback(0);
    config.front.limits.write_within = Duration::from_millis(300);
    let stage = Stage::set(config).await;
    let mut socket = open(stage.port(), "/chap/ws").await;
    let mut connections = stage.serving.connections();
    for n in 0..40 {
        if socket
            .send(Message::text(call(n, "test.large", json!({"bytes": 1_000_000})).to_string()))
            .await
            .is_err()
        {
            break;
        }
    }
    tokio::time::timeout(SOON, connections.wait_for(|open| *open == 0)).await.unwrap().unwrap();
    stage.strike().await;
}

#[tokio::test]
async fn no_more_calls_are_read_than_may_be_in_flight() {
    let stage = Stage::open().await;
    let mut socket = open(stage.port(), "/chap/ws").await;
    let most = choir_chap_http::limits::CALLS_PER_SOCKET;
    for n in 0..most as u64 {
        say(&mut socket, &call(n, "test.hold", json!({}))).await;
    }
    stage.peer.until_held(most).await;
    say(&mut socket, &call(99, "task.note", json!({}))).await;
    // Another socket's call goes all the way, this one's stays in the network.
    let mut other = open(stage.port(), "/chap/ws").await;
    say(&mut other, &call(1, "test.echo", json!({}))).await;
    assert_eq!(hear(&mut other).await["id"], 1);
    assert_eq!(stage.peer.noted().len(), 0);
    stage.peer.release();
    for _ in 0..most {
        assert_eq!(hear(&mut socket).await["id"], "held");
    }
    assert_eq!(hear(&mut socket).await["id"], 99);
    stage.strike().await;
}

#[tokio::test]
async fn a_token_has_so_many_sockets_and_leaves_room_for_others() {
    let mut config = Config::loopback(0);
    let grant = |token: &str| Grant { digest: TokenDigest::of(token.as_bytes()), participants: None };
    config.front.auth = Auth::Bearer(vec![grant("one"), grant("two")]);
    config.front.limits.sockets_per_token = 2;
    config.front.limits.sockets = 3;
    let stage = Stage::set(config).await;
    let port = stage.port();
    let chap = ("sec-websocket-protocol", "chap.v1");
    let open =
        async |token: &'static str| try_open(port, "/chap/ws", &[chap, ("authorization", token)]).await;
    let turned_away = |opened: Result<Socket, Error>| match opened {
        Err(Error::Http(refused)) => assert_eq!(refused.status(), 429),
        other => panic!("{other:?}"),
    };
    let mut first = open("Bearer one").await.unwrap();
    let _second = open("Bearer one").await.unwrap();
    turned_away(open("Bearer one").await);
    let _third = open("Bearer two").await.unwrap();
    turned_away(open("Bearer two").await);
    let mut connections = stage.serving.connections();
    let before = *connections.borrow_and_update();
    first.close(None).await.unwrap();
    assert_eq!(closed(&mut first).await, None);
    tokio::time::timeout(SOON, connections.wait_for(|open| *open < before)).await.unwrap().unwrap();
    let _again = open("Bearer two").await.unwrap();
    stage.strike().await;
}
