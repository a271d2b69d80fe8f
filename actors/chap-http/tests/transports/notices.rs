//! The inbox and the event stream.

use std::time::Duration;

use axum::body::Body;
use choir_chap_http::Config;
use serde_json::json;

use crate::client::{Client, Events};
use crate::peer::{SOON, Stage};

const ALICE: &str = "human:alice";

async fn events(port: u16, path: &str, headers: &[(&str, &str)]) -> Events {
    Events::of(Client::connect(port).await.send("GET", path, headers, Body::empty()).await)
}

#[tokio::test]
async fn the_inbox_gives_notices_after_a_number_page_by_page() {
    let stage = Stage::open().await;
    for n in 1..=5 {
        stage.peer.post("w", if n == 2 { "human:bob" } else { ALICE }, &json!({"n": n}));
    }
    let mut client = Client::connect(stage.port()).await;
    let page = client.get("/chap/inbox?workspace=w&participant=human:alice&limit=2").await;
    assert_eq!(page.status, 200);
    assert_eq!(
        page.json(),
        json!({
            "workspace": "w",
            "participant": ALICE,
            "notices": [{"number": 1, "notice": {"n": 1}}, {"number": 3, "notice": {"n": 3}}],
            "next": 3,
        })
    );
    let page = client.get("/chap/inbox?workspace=w&participant=human%3Aalice&since=3").await.json();
    assert_eq!((page["notices"].as_array().unwrap().len(), &page["next"]), (2, &json!(5)));
    let page = client.get("/chap/inbox?workspace=w&participant=human:alice&since=5").await.json();
    assert_eq!((&page["notices"], &page["next"]), (&json!([]), &json!(5)));
    stage.strike().await;
}

#[tokio::test]
async fn a_waiting_inbox_answers_when_there_is_news_or_when_its_time_is_over() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    let nothing = client.get("/chap/inbox?workspace=w&participant=human:alice&since=7&wait=1").await.json();
    assert_eq!((&nothing["notices"], &nothing["next"]), (&json!([]), &json!(7)));
    let waiting =
        tokio::spawn(
            async move { client.get("/chap/inbox?workspace=w&participant=human:alice&wait=50").await },
        );
    let peer = stage.peer.clone();
    // Whether it arrives before or after the notice, it gets it.
    peer.post("w", ALICE, &json!({"n": 1}));
    assert_eq!(waiting.await.unwrap().json()["notices"][0]["notice"], json!({"n": 1}));
    stage.strike().await;
}

#[tokio::test]
async fn a_query_that_is_wrong_is_told_what_is_wrong() {
    let stage = Stage::open().await;
    let mut client = Client::connect(stage.port()).await;
    for path in ["/chap/inbox", "/chap/events"] {
        for (query, said) in [
            ("", "Missing field: workspace"),
            ("workspace=w", "Missing field: participant"),
            ("workspace=w&participant=human:alice&since=-1", "since is a whole number"),
            ("workspace=w&workspace=v&participant=human:alice", "each name once"),
            ("workspace=nowhere&participant=human:alice", "Unknown workspace"),
        ] {
            let answer = client.get(&format!("{path}?{query}")).await;
            assert_eq!((answer.status.as_u16(), answer.code()), (400, -32602), "{path} {query}");
            assert!(answer.text.contains(said), "{}", answer.text);
        }
    }
    stage.strike().await;
}

#[tokio::test]
async fn events_come_as_they_happen_and_resume_after_the_last_one_seen() {
    let stage = Stage::open().await;
    stage.peer.post("w", ALICE, &json!({"n": 1}));
    stage.peer.post("w", "human:bob", &json!({"n": 2}));
    let path = "/chap/events?workspace=w&participant=human:alice";
    let mut stream = events(stage.port(), path, &[]).await;
    let event = stream.next().await.unwrap();
    assert_eq!((event.id, event.json()), (Some(1), json!({"n": 1})));
    stage.peer.post("w", ALICE, &json!({"n": 3}));
    let event = stream.next().await.unwrap();
    assert_eq!((event.id, event.json()), (Some(3), json!({"n": 3})));
    drop(stream);
    // What happens while nobody listens is not lost.
    stage.peer.post("w", ALICE, &json!({"n": 4}));
    let mut stream = events(stage.port(), path, &[("last-event-id", "3")]).await;
    assert_eq!(stream.next().await.unwrap().id, Some(4));
    let mut stream = events(stage.port(), &format!("{path}&since=1"), &[]).await;
    assert_eq!(stream.next().await.unwrap().id, Some(3));
    // A browser repeats its URL with the id it has.
    let mut stream = events(stage.port(), &format!("{path}&since=1"), &[("last-event-id", "3")]).await;
    assert_eq!(stream.next().await.unwrap().id, Some(4));
    let odd =
        Client::connect(stage.port()).await.ask("GET", path, &[("last-event-id", "x")], Body::empty()).await;
    assert_eq!((odd.status.as_u16(), odd.code()), (400, -32602));
    stage.strike().await;
}

#[tokio::test]
async fn a_quiet_stream_says_that_it_lives() {
    let mut config = Config::loopback(0);
    config.front.limits.heartbeat = Duration::from_millis(20);
    let stage = Stage::set(config).await;
    let mut stream = events(stage.port(), "/chap/events?workspace=w&participant=human:alice", &[]).await;
    assert!(!stream.any().await.unwrap().is_comment, "first it says when to come back");
    for _ in 0..3 {
        assert!(stream.any().await.unwrap().is_comment);
    }
    stage.peer.post("w", ALICE, &json!({"n": 1}));
    assert_eq!(stream.next().await.unwrap().id, Some(1));
    stage.strike().await;
}

#[tokio::test]
async fn a_participant_has_so_many_streams_and_gets_a_place_back_when_one_closes() {
    let mut config = Config::loopback(0);
    config.front.limits.streams_per_participant = 2;
    config.front.limits.streams = 3;
    // A stream whose client has gone is noticed at its next sign of life at the latest.
    config.front.limits.heartbeat = Duration::from_millis(20);
    let stage = Stage::set(config).await;
    let path = "/chap/events?workspace=w&participant=human:alice";
    let first = events(stage.port(), path, &[]).await;
    let _second = events(stage.port(), path, &[]).await;
    let mut client = Client::connect(stage.port()).await;
    let refused = client.get(path).await;
    assert_eq!((refused.status.as_u16(), refused.code()), (429, -32000));
    let _third = events(stage.port(), "/chap/events?workspace=w&participant=human:bob", &[]).await;
    assert_eq!(client.get("/chap/events?workspace=v&participant=human:c").await.status, 429, "all are taken");
    assert_eq!(stage.serving.streams(), 3);
    let mut connections = stage.serving.connections();
    let before = *connections.borrow_and_update();
    drop(first);
    tokio::time::timeout(SOON, connections.wait_for(|open| *open < before)).await.unwrap().unwrap();
    let _again = events(stage.port(), path, &[]).await;
    stage.strike().await;
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_cut_off_and_what_it_had_resumes() {
    let mut config = Config::loopback(0);
    config.front.limits.write_within = Duration::from_millis(300);
    let stage = Stage::set(config).await;
    // More than the buffers of both ends hold.
    let filler = "x".repeat(256 * 1024);
    for n in 1..=160 {
        stage.peer.post("w", ALICE, &json!({"n": n, "filler": filler}));
    }
    let path = "/chap/events?workspace=w&participant=human:alice";
    let mut connections = stage.serving.connections();
    let mut slow = events(stage.port(), path, &[]).await;
    let first = slow.next().await.unwrap();
    assert_eq!(first.id, Some(1));
    // It reads no more; the server notices by itself.
    tokio::time::timeout(SOON, connections.wait_for(|open| *open == 0)).await.unwrap().unwrap();
    assert_eq!(stage.serving.streams(), 0);
    let mut last = 1;
    while let Some(event) = slow.next().await {
        last = event.id.unwrap();
    }
    assert!(last < 160, "it was cut off at {last}");
    let mut again = events(stage.port(), path, &[("last-event-id", &last.to_string())]).await;
    assert_eq!(again.next().await.unwrap().id, Some(last + 1));
    drop(again);
    stage.strike().await;
}
