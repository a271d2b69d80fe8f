//! `POST /mcp` and `GET /mcp`: MCP's Streamable HTTP. Every answer is a single JSON value. A client whose URL names a
//! workspace and a participant (`/mcp?workspace=…&participant=…`) gets that participant's notices as log messages on
//! `GET`; for any other there is nothing to listen to, and it is told so.

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::mail::CoordinatorMsg;

use crate::auth::Identity;
use crate::body::{self, Whole};
use crate::events::{self, Framing};
use crate::front::{Front, only};
use crate::inbox::{NoticeQuery, understood};
use crate::mcp::{Incoming, Outcome, Reply, Routing, Step, ToolCall};
use crate::refusal::{Failed, Refusal, json_response};

pub(crate) async fn call(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    headers: HeaderMap,
    query: Result<Query<NoticeQuery>, QueryRejection>,
    body: Body,
) -> Response {
    match answer(&front, &who, &headers, query, body).await {
        Ok(Some((Reply { body, status, opens }, notices))) => {
            let mut response = json_response(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), body);
            if let Some(session) = (opens && notices).then(session).flatten() {
                response.headers_mut().insert(HeaderName::from_static("mcp-session-id"), session);
            }
            response
        }
        Ok(None) => StatusCode::ACCEPTED.into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn answer(
    front: &Front,
    who: &Identity,
    headers: &HeaderMap,
    query: Result<Query<NoticeQuery>, QueryRejection>,
    body: Body,
) -> Result<Option<(Reply, bool)>, Refusal> {
    if !body::media_type_is(headers, &["application/json"]) {
        let message = "An MCP message is sent as Content-Type: application/json.";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if !accepts(headers, "application/json") {
        let message = "Answers are application/json; add it to the Accept header.";
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, message));
    }
    let notices = understood(query)?.names_anyone();
    let permit = front.accounts().begin(who.account)?;
    let Whole { bytes, reserved } = body::read(front, headers, body).await?;
    let mut name = String::new();
    let routing = routing(headers, &mut name);
    let reply = match front.mcp().step(Incoming { bytes: &bytes, routing: Some(routing), notices }) {
        Step::Silent => None,
        Step::Reply(reply) => Some(reply),
        Step::Call(call) => Some(carry_out(front, who, call).await),
    };
    drop((permit, reserved));
    Ok(reply.map(|reply| (reply, notices)))
}

/// A session's id, given to clients that have something to listen to: the usual ones listen only in a session. It stands
/// for nothing, is not asked for, and so is as good after a restart as before.
fn session() -> Option<HeaderValue> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    HeaderValue::from_str(&hex::encode(random)).ok()
}

/// Makes the CHAP call of a tool, and its reply.
pub(crate) async fn carry_out(front: &Front, who: &Identity, mut call: ToolCall) -> Reply {
    let (method, params) = (std::mem::take(&mut call.method), call.params.take());
    let caller = who.caller.clone();
    let ask = |reply| CoordinatorMsg::Ask { method, params, caller, reply };
    let outcome = match front.coordinator().call(front.limits().call_within, ask).await {
        Ok(Ok(Ok(result))) => Outcome::Result(result),
        Ok(Ok(Err(error))) => Outcome::Error(error),
        Ok(Err(why)) => Outcome::None(Failed::from(why).message().to_owned()),
        Err(why) => Outcome::None(Failed::from(why).message().to_owned()),
    };
    call.finish(outcome)
}

pub(crate) async fn listen(
    State(front): State<Front>,
    Extension(who): Extension<Identity>,
    headers: HeaderMap,
    query: Result<Query<NoticeQuery>, QueryRejection>,
) -> Response {
    let query = match understood(query) {
        Ok(query) => query,
        Err(refusal) => return refusal.into_response(),
    };
    if !query.names_anyone() || !accepts(&headers, "text/event-stream") {
        let message = "There is nothing to listen to here: name ?workspace= and &participant= in the URL, and accept \
                       text/event-stream, to get that participant's notices.";
        let mut response = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response();
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    events::open(&front, &who, &headers, &query, Framing::Mcp).await
}

/// Whether the client takes this media type; one that does not say takes all.
fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    let mut values = headers.get_all(header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return true;
    }
    let family = wanted.split('/').next().unwrap_or_default();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .map(|range| range.trim().to_ascii_lowercase())
        .any(|range| range == wanted || range == "*/*" || range.strip_suffix("/*") == Some(family))
}

/// What the headers say of the message; `name` takes the decoded name.
fn routing<'a>(headers: &'a HeaderMap, name: &'a mut String) -> Routing<'a> {
    let mut garbled = false;
    let mut read = |header: &'static str| match only(headers, &HeaderName::from_static(header)) {
        Ok(None) => None,
        Ok(Some(value)) => value.to_str().map_err(|_| garbled = true).ok(),
        Err(_) => {
            garbled = true;
            None
        }
    };
    let (version, method, named) = (read("mcp-protocol-version"), read("mcp-method"), read("mcp-name"));
    // A name that no header can carry as it is comes wrapped.
    let named = named.and_then(|named| {
        let Some(wrapped) = named.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
            return Some(named);
        };
        *name = STANDARD.decode(wrapped).ok().and_then(|bytes| String::from_utf8(bytes).ok())?;
        Some(&**name)
    });
    Routing { version, method, name: named, garbled }
}
