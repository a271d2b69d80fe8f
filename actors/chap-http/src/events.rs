//! `GET /chap/events`: a participant's notices as server-sent events. An event's id is the notice's number, so a client
//! that comes back with `Last-Event-ID` goes on where it was. Between events a comment says that the stream lives.

use std::convert::Infallible;
use std::fmt::Write as _;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use choir_messages::chap::Notice;
use futures_util::stream;
use serde_json::Value;

use crate::auth::Identity;
use crate::front::{Front, only};
use crate::inbox::{NoticeQuery, understood};
use crate::refusal::Refusal;
use crate::subscription::{Heard, Subscription};
use crate::trace::StreamSpan;

/// What an event's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The notice as stored.
    Plain,
    /// The notice inside an MCP log message.
    Mcp,
}

pub(crate) async fn chap(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    headers: HeaderMap,
    query: Result<Query<NoticeQuery>, QueryRejection>,
) -> Response {
    match understood(query) {
        Ok(query) => open(&front, &who, &headers, &query, Framing::Plain).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Opens the stream, or says why not while there still is a status to say it with.
pub(crate) async fn open(
    front: &Front,
    who: &Identity,
    headers: &HeaderMap,
    query: &NoticeQuery,
    framing: Framing,
) -> Response {
    match subscribe(front, who, headers, query).await {
        Ok(subscription) => respond(subscription, framing),
        Err(refusal) => refusal.into_response(),
    }
}

async fn subscribe(
    front: &Front,
    who: &Identity,
    headers: &HeaderMap,
    query: &NoticeQuery,
) -> Result<Subscription, Refusal> {
    let mut wanted = query.wanted(who)?;
    // A reconnecting browser repeats its first URL, `since` included: what it has seen since counts for more.
    if let Ok(Some(last)) = only(headers, &HeaderName::from_static("last-event-id")) {
        let last = last.to_str().ok().and_then(|last| last.parse::<u64>().ok());
        let last =
            last.ok_or_else(|| Refusal::params("Last-Event-ID is the id of an event of this stream"))?;
        wanted.after = wanted.after.max(last);
    }
    let permit = front.accounts().begin(who.account)?;
    let subscription = Subscription::open(front, who, wanted).await;
    drop(permit);
    subscription
}

fn respond(subscription: Subscription, framing: Framing) -> Response {
    // The first bytes go out at once: some clients and proxies wait for them.
    let hello = Bytes::from_static(b"retry: 2000\n\n");
    let begun = Some((subscription, StreamSpan::open(), Some(hello)));
    let states = stream::unfold(begun, move |state| async move {
        let (mut subscription, mut span, hello) = state?;
        if let Some(hello) = hello {
            return Some((Ok::<_, Infallible>(hello), Some((subscription, span, None))));
        }
        match subscription.next().await {
            Heard::Notices(notices) => {
                span.sent(notices.len());
                Some((Ok(frame(&notices, framing)), Some((subscription, span, None))))
            }
            Heard::Quiet => Some((Ok(Bytes::from_static(b":\n\n")), Some((subscription, span, None)))),
            Heard::Refused(error) => Some((Ok(refused(&error)), None)),
            Heard::Over => None,
        }
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (StatusCode::OK, headers, Body::from_stream(states)).into_response()
}

fn frame(notices: &[Notice], framing: Framing) -> Bytes {
    let mut text = String::new();
    for notice in notices {
        let _ = writeln!(text, "id: {}", notice.number);
        match framing {
            Framing::Plain => data(&mut text, &notice.body),
            Framing::Mcp => data(&mut text, &mcp_message(notice)),
        }
    }
    text.into()
}

/// A subscription that the Coordinator ends says why, under a name of its own: `error` is what browsers call a lost
/// connection.
fn refused(error: &Value) -> Bytes {
    let mut text = String::from("event: refused\n");
    data(&mut text, &error.to_string());
    text.into()
}

/// The data lines of one event and its end. JSON text may have line ends between its tokens, in any of the three
/// forms that end a line of an event stream.
fn data(text: &mut String, json: &str) {
    for line in json.split(['\n', '\r']) {
        let _ = writeln!(text, "data: {line}");
    }
    text.push('\n');
}

fn mcp_message(notice: &Notice) -> String {
    let numbered = crate::inbox::numbered(notice);
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"logger\":\"chap\",\
         \"data\":{numbered}}}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn notice(number: u64, body: &str) -> Notice {
        Notice { number, to: "human:a".into(), body: body.into() }
    }

    /// The data of each event, as a client reads them.
    fn read(bytes: &[u8]) -> Vec<(Option<u64>, String)> {
        let text = std::str::from_utf8(bytes).unwrap();
        let events = text.split("\n\n").filter(|event| !event.is_empty());
        let fields = |event: &str, name: &str| -> Vec<String> {
            event.lines().filter_map(|line| line.strip_prefix(name).map(str::to_owned)).collect()
        };
        events
            .map(|event| {
                let id = fields(event, "id: ").first().map(|id| id.parse().unwrap());
                (id, fields(event, "data: ").join("\n"))
            })
            .collect()
    }

    #[test]
    fn an_event_has_the_notices_number_and_its_text() {
        let bytes = frame(&[notice(4, "{\"a\":1}"), notice(7, "{}")], Framing::Plain);
        assert_eq!(&bytes[..], b"id: 4\ndata: {\"a\":1}\n\nid: 7\ndata: {}\n\n");
    }

    #[test]
    fn for_mcp_it_is_a_log_message() {
        let (id, data) = read(&frame(&[notice(4, "{\"a\":1}")], Framing::Mcp)).remove(0);
        assert_eq!(id, Some(4));
        let message: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(message["method"], "notifications/message");
        assert_eq!(message["params"]["data"], json!({"number": 4, "notice": {"a": 1}}));
    }

    proptest! {
        #[test]
        fn no_notice_can_forge_an_event(keys in proptest::collection::vec("[a-z\\n\\r:]{0,12}", 0..4), gap in "[ \\n\\r\\t]{0,4}") {
            let fields: Vec<String> =
                keys.iter().map(|key| format!("{gap}{}:{gap}1", Value::from(key.as_str()))).collect();
            let body = format!("{{{}{gap}}}", fields.join(","));
            let events = read(&frame(&[notice(1, &body), notice(2, "{}")], Framing::Plain));
            prop_assert_eq!(events.len(), 2);
            prop_assert_eq!(
                serde_json::from_str::<Value>(&events[0].1).unwrap(),
                serde_json::from_str::<Value>(&body).unwrap()
            );
        }
    }
}
