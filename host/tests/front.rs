//! The control socket against clients that misbehave: each costs itself, choird goes on.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::time::Duration;

use choir_host::control::views::PingView;
use choir_host::control::{Client, Op, Reply, ReplyLine};
use choir_host::limits;
use choir_scripted_model::Script;
use serde_json::{Value, json};
use support::{SOON, World};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

async fn world() -> World {
    let mut world = World::stopped(Script::default(), |_| ()).await;
    world.start().await;
    world
}

async fn raw(world: &World) -> BufReader<UnixStream> {
    BufReader::new(UnixStream::connect(world.state.control_socket()).await.unwrap())
}

async fn say(stream: &mut BufReader<UnixStream>, bytes: &[u8]) {
    tokio::time::timeout(SOON, stream.get_mut().write_all(bytes)).await.unwrap().unwrap();
}

async fn hear(stream: &mut BufReader<UnixStream>) -> ReplyLine {
    let mut line = String::new();
    tokio::time::timeout(SOON, stream.read_line(&mut line)).await.expect("an answer in time").unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

async fn pings(world: &World) {
    let view: PingView = world.client().await.call(Op::Ping, SOON).await.unwrap();
    assert_eq!(view.pid, world.choird_pid());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_answered_with_an_error_and_the_connection_goes_on() {
    let world = world().await;
    let mut stream = raw(&world).await;
    for (line, id, says) in [
        (b"nonsense\n".to_vec(), 0, "cannot be read"),
        (b"\xff\xfe\n".to_vec(), 0, "UTF-8"),
        (b"{\"v\":9,\"id\":4,\"op\":\"ping\"}\n".to_vec(), 4, "control version 1"),
        (b"{\"v\":1,\"id\":5,\"op\":\"explode\"}\n".to_vec(), 5, "explode"),
        (
            b"{\"v\":1,\"id\":6,\"op\":{\"agent_stop\":{\"agent\":\"nobody\"}}}\n".to_vec(),
            6,
            "there is no agent \"nobody\"; known: assistant",
        ),
        ([vec![b'x'; limits::CONTROL_LINE_BYTES + 1], b"\n".to_vec()].concat(), 0, "at most"),
    ] {
        say(&mut stream, &line).await;
        let answer = hear(&mut stream).await;
        let Reply::Error(error) = answer.reply else { panic!("{answer:?}") };
        assert!(answer.id == id && error.what.contains(says), "{error:?}");
    }
    say(&mut stream, b"{\"v\":1,\"id\":7,\"op\":\"ping\"}\n").await;
    let answer = hear(&mut stream).await;
    assert!(matches!(answer.reply, Reply::Done(_)) && answer.id == 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_clients_and_too_many_requests_are_refused_with_the_limit() {
    let world = world().await;
    let mut held = Vec::new();
    for _ in 0..limits::CONTROL_CLIENTS {
        let mut stream = raw(&world).await;
        // An answer shows that the connection has its place.
        say(&mut stream, b"{\"v\":1,\"id\":1,\"op\":\"ping\"}\n").await;
        hear(&mut stream).await;
        held.push(stream);
    }
    let mut one_too_many = raw(&world).await;
    let Reply::Error(error) = hear(&mut one_too_many).await.reply else { panic!("not refused") };
    assert!(error.what.contains("64 clients"), "{error:?}");
    held.truncate(1);
    let stream = &mut held[0];
    for id in 0..=limits::CONTROL_REQUESTS {
        let line =
            json!({ "v": 1, "id": id, "op": { "logs": { "source": "choird", "lines": 0, "follow": true } } });
        say(stream, format!("{line}\n").as_bytes()).await;
    }
    loop {
        if let Reply::Error(error) = hear(stream).await.reply {
            assert!(error.what.contains("16 requests"), "{error:?}");
            break;
        }
    }
    pings(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_stops_only_itself() {
    let world = world().await;
    let mut deaf = raw(&world).await;
    let line = json!({ "v": 1, "id": 1, "op": "tree" }).to_string() + "\n";
    // More answers than the socket and the queue take; the writes end when choird stops reading, or hangs up.
    let flood = async {
        for _ in 0..10_000 {
            if deaf.get_mut().write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
    pings(&world).await;
    // It is hung up on once a write has taken too long.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(SOON, deaf.get_mut().shutdown()).await;
    assert!(ended.is_ok());
    let _ = tokio::time::timeout(Duration::from_secs(1), deaf.get_mut().read_to_end(&mut rest)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_detached_when_its_client_leaves_and_taken_over_by_a_newer_one() {
    let world = World::new(Script::default(), |_| ()).await;
    let chat = || Op::Chat { agent: world.agent.clone(), redeliver: true };
    let first = world.client().await;
    let mut old = first.stream(chat()).await.unwrap();
    world.until("attached", |view| view.attached).await;
    let second = world.client().await;
    let _new = second.stream(chat()).await.unwrap();
    let ended = tokio::time::timeout(SOON, old.item()).await.unwrap().unwrap_err().to_string();
    assert!(ended.contains("another chat took over"), "{ended}");
    drop(_new);
    drop(second);
    world.until("detached", |view| !view.attached).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_and_events_are_followed() {
    let world = World::new(Script::default(), |_| ()).await;
    let client = Client::connect(&world.state.control_socket(), SOON).await.unwrap();
    let logs = Op::Logs { source: "choird".into(), lines: 3, follow: true };
    let mut stream = client.stream(logs).await.unwrap();
    for _ in 0..3 {
        stream.item().await.unwrap().unwrap();
    }
    // Something that choird logs.
    let _: Value = client.call(Op::SecretApply, SOON).await.unwrap();
    let line = tokio::time::timeout(SOON, stream.item()).await.unwrap().unwrap().unwrap();
    assert!(line.as_str().unwrap().contains("configuration in force"), "{line}");
    let none = Op::Logs { source: "../config".into(), lines: 3, follow: false };
    let refused = client.call::<Value>(none, SOON).await.unwrap_err().to_string();
    assert!(refused.contains("there is no log of"), "{refused}");

    let session = world.view().await.session.unwrap();
    let mut events = client.stream(Op::SessionEvents { session, after: 0, follow: true }).await.unwrap();
    let first = tokio::time::timeout(SOON, events.item()).await.unwrap().unwrap().unwrap();
    assert_eq!(first["kind"], "SessionOpened");
    support::User::of(&world).send("hello").await;
    let next = tokio::time::timeout(SOON, events.item()).await.unwrap().unwrap().unwrap();
    assert_eq!((&next["kind"], &next["rev"]), (&json!("UserMsg"), &json!(2)));
}
