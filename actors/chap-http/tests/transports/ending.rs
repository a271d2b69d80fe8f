//! How a server ends, and comes back under a supervisor.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use choir_chap_http::{Config, Listen, child_spec, mailbox_spec};
use choir_supervisors::{Strategy, SupervisorSpec, Tree, mailbox};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::client::{Client, Events};
use crate::peer::{SOON, Stage, coordinator, tools};

fn hold() -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "test.hold", "params": {}}).to_string()
}

#[tokio::test]
async fn an_ending_server_answers_what_is_open_ends_its_streams_and_takes_nothing_new() {
    let stage = Stage::open().await;
    let port = stage.port();
    let mut client = Client::connect(port).await;
    let open = tokio::spawn(async move { client.post(hold()).await });
    stage.peer.until_held(1).await;
    let path = "/chap/events?workspace=w&participant=human:a";
    let mut events = Events::of(Client::connect(port).await.send("GET", path, &[], Body::empty()).await);
    let mut waiting = Client::connect(port).await;
    let waiting = tokio::spawn(async move {
        waiting.get("/chap/inbox?workspace=w&participant=human:a&since=2&wait=50").await
    });
    stage.peer.until_waited(2).await;
    let peer = stage.peer.clone();
    let mut connections = stage.serving.connections();
    let end = tokio::spawn(stage.strike());
    assert_eq!(events.next().await, None);
    assert_eq!(waiting.await.unwrap().json()["next"], 2);
    tokio::time::timeout(SOON, connections.wait_for(|open| *open == 1)).await.unwrap().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "the port is closed");
    peer.release();
    assert_eq!(open.await.unwrap().json()["result"], "released");
    end.await.unwrap();
}

#[tokio::test]
async fn what_is_not_answered_by_the_deadline_is_closed() {
    let mut config = Config::loopback(0);
    config.front.limits.stop_within = Duration::from_millis(50);
    let stage = Stage::set(config).await;
    let mut client = Client::connect(stage.port()).await;
    let open = tokio::spawn(async move {
        client.try_send("POST", "/chap", &[("content-type", "application/json")], hold()).await
    });
    stage.peer.until_held(1).await;
    stage.strike().await;
    assert!(open.await.unwrap().is_err());
}

#[tokio::test]
async fn under_a_supervisor_a_killed_server_comes_back_on_its_port() {
    let (peer, tree) = coordinator().await;
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let (_address, slot) = mailbox("http", mailbox_spec());
    let (bound, mut listens) = watch::channel(None);
    let child = child_spec(slot, Config::loopback(port), peer.address.clone(), Arc::from(tools()), bound);
    let front = Tree::start(SupervisorSpec::new("front", Strategy::OneForOne).child(child)).await.unwrap();
    let at = Listen::Tcp(([127, 0, 0, 1], port).into());
    assert_eq!(*listens.borrow_and_update(), Some(at.clone()));
    let mut old = Client::connect(port).await;
    assert_eq!(old.get("/healthz").await.status, 200);
    assert!(front.handle().kill("front/http"));
    tokio::time::timeout(SOON, listens.changed()).await.unwrap().unwrap();
    tokio::time::timeout(SOON, listens.wait_for(|now| now.as_ref() == Some(&at))).await.unwrap().unwrap();
    assert!(old.try_send("GET", "/healthz", &[], Body::empty()).await.is_err(), "the old connection is gone");
    assert_eq!(Client::connect(port).await.get("/healthz").await.status, 200);
    let report = front.shutdown().await;
    assert_eq!((report.left, report.overran), (0, Vec::new()));
    assert_eq!(*listens.borrow(), None);
    assert_eq!(tree.shutdown().await.left, 0);
}

#[tokio::test]
async fn a_server_that_must_not_be_served_is_a_failed_start_that_says_why() {
    let (peer, tree) = coordinator().await;
    let mut config = Config::loopback(0);
    config.listen = Listen::Tcp("0.0.0.0:0".parse().unwrap());
    let (_address, slot) = mailbox("http", mailbox_spec());
    let child = child_spec(slot, config, peer.address.clone(), Arc::from([]), watch::Sender::new(None));
    let refused = Tree::start(SupervisorSpec::new("front", Strategy::OneForOne).child(child)).await;
    assert!(refused.err().unwrap().to_string().contains("TLS"));
    assert_eq!(tree.shutdown().await.left, 0);
}
