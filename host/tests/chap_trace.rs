//! The Coordinator's telemetry from outside: a real `choird coordinator` exports to a real OTLP receiver, and a caller's
//! trace goes on through its transports down to the store.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/coordinator.rs"]
mod coordinator;

use std::collections::BTreeMap;

use coordinator::{Coordinator, fresh};
use mock_collector::{MockServer, Protocol, ServerHandle};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

#[derive(Debug, Clone)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    attributes: BTreeMap<String, String>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn spans(receiver: &ServerHandle) -> Vec<Span> {
    let read = |found: &mock_collector::TestSpan| {
        let span = found.span();
        Span {
            name: span.name.clone(),
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            attributes: span
                .attributes
                .iter()
                .map(|pair| (pair.key.clone(), format!("{:?}", pair.value)))
                .collect(),
        }
    };
    receiver.with_collector(|collector| collector.spans().iter().map(read).collect()).await
}

/// One request as it stands; the answer, read until the server closes.
async fn raw(at: &str, request: &str) -> String {
    let mut wire = TcpStream::connect(at).await.unwrap();
    wire.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(coordinator::SOON, wire.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(headers: &str, body: &str) -> String {
    format!(
        "POST /chap HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn is_below(all: &[Span], span: &Span, above: &Span) -> bool {
    let mut at = span.clone();
    loop {
        if at.id == above.id {
            return true;
        }
        match all.iter().find(|other| other.id == at.parent && other.trace == at.trace) {
            Some(parent) => at = parent.clone(),
            None => return false,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_trace_goes_on_through_the_coordinator_to_the_commit() {
    let receiver = MockServer::builder().protocol(Protocol::HttpBinary).start().await.unwrap();
    let endpoint = format!("http://{}", receiver.addr());
    let mut server = Coordinator::durable(&["--otlp-endpoint", &endpoint]).await;
    let (workspace, at) = (fresh("wsp"), server.url().trim_start_matches("http://").to_owned());
    let join = json!({
        "jsonrpc": "2.0", "id": 1, "method": "participant.join",
        "params": {"workspace": workspace, "from": "human:secret-name@e.org", "type": "human"},
    })
    .to_string();
    let traced = raw(&at, &post(&format!("traceparent: 00-{TRACE}-{PARENT}-01\r\n"), &join)).await;
    assert!(traced.contains("\"joined\":true"), "{traced}");
    // Nonsense in the header is no error, and no parent.
    let odd = raw(&at, &post("traceparent: 00-zz-zz-01\r\n", &join)).await;
    assert!(odd.contains("\"joined\":true"), "{odd}");
    // What a transport refuses is counted.
    assert!(
        raw(&at, &post("", "").replace("application/json", "text/plain")).await.starts_with("HTTP/1.1 415")
    );
    let stream = format!(
        "GET /chap/events?workspace={workspace}&participant=human:secret-name@e.org HTTP/1.1\r\nhost: localhost\r\n\r\n"
    );
    let mut wire = TcpStream::connect(&at).await.unwrap();
    wire.write_all(stream.as_bytes()).await.unwrap();
    let mut begun = [0; 16];
    tokio::time::timeout(coordinator::SOON, wire.read_exact(&mut begun)).await.unwrap().unwrap();
    drop(wire);
    assert_eq!(server.stop().await, Some(0));

    let all = spans(&receiver).await;
    let requests: Vec<&Span> = all.iter().filter(|span| span.name == "chap.request").collect();
    assert_eq!(requests.len(), 4, "{requests:#?}");
    let ours: Vec<&&Span> = requests.iter().filter(|span| span.trace == TRACE).collect();
    let [ours] = ours[..] else { panic!("one request of the caller's trace was expected: {requests:#?}") };
    assert_eq!(ours.parent, PARENT);
    assert!(
        ours.attributes["http.route"].contains("/chap")
            && ours.attributes["http.response.status_code"].contains("200")
    );
    assert!(requests.iter().filter(|span| span.trace != TRACE).all(|span| span.parent.is_empty()));
    let commits: Vec<&Span> =
        all.iter().filter(|span| span.name == "store.commit" && is_below(&all, span, ours)).collect();
    assert_eq!(commits.len(), 1, "{all:#?}");
    let streams: Vec<&Span> = all.iter().filter(|span| span.name == "chap.stream").collect();
    assert!(
        matches!(streams[..], [stream] if requests.iter().any(|request| request.id == stream.parent)),
        "{streams:#?}"
    );
    let exported =
        receiver.with_collector(|c| format!("{:?} {:?} {:?}", c.spans(), c.metrics(), c.logs())).await;
    assert!(!exported.contains("secret-name"), "no payload is exported");
    for metric in ["choir.chap.call", "choir.chap.refused"] {
        assert!(exported.contains(metric), "{metric} is measured");
    }
    receiver.shutdown().await.unwrap();
}
