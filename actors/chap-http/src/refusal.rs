//! What is said when the Coordinator has not answered: refusals of the transport, and calls without an outcome. All
//! have the shape of a JSON-RPC error, so that a client needs one reader.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use choir_messages::mail::Unanswered;
use choir_supervisors::{CallError, SendError};
use serde_json::{Value, json};

use crate::limits::RETRY_AFTER_SECONDS;

/// The call was not carried out.
pub(crate) const NOT_DONE: i64 = -32000;
/// Nobody knows whether the call was carried out.
pub(crate) const OUTCOME_UNKNOWN: i64 = -32001;
/// The transport refused the request before the Coordinator saw it.
pub(crate) const REFUSED: i64 = -32002;
/// JSON-RPC: not a valid request.
pub(crate) const INVALID_REQUEST: i64 = -32600;
/// JSON-RPC: invalid params.
pub(crate) const INVALID_PARAMS: i64 = -32602;
/// CHAP: not authorised.
pub(crate) const NOT_AUTHORISED: i64 = -32011;

/// A request that goes no further.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) data: Option<Value>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, code: REFUSED, message: message.into(), data: None }
    }

    pub(crate) const fn code(mut self, code: i64) -> Self {
        self.code = code;
        self
    }

    /// A query or message that cannot be understood.
    pub(crate) fn params(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message).code(INVALID_PARAMS)
    }

    /// The caller has too much going on.
    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).code(NOT_DONE)
    }

    /// A JSON-RPC error object of the Coordinator, on a route that has no JSON-RPC call.
    pub(crate) fn of_coordinator(error: &Value) -> Self {
        let code = error.get("code").and_then(Value::as_i64).unwrap_or(REFUSED);
        let message = error.get("message").and_then(Value::as_str).unwrap_or("The Coordinator refused it.");
        let status = if code == NOT_AUTHORISED { StatusCode::FORBIDDEN } else { StatusCode::BAD_REQUEST };
        Self { status, code, message: message.to_owned(), data: error.get("data").cloned() }
    }

    /// The JSON-RPC answer, for the call with this id.
    pub(crate) fn body(&self, id: &Value) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (Some(data), Some(object)) = (&self.data, error.as_object_mut()) {
            object.insert("data".to_owned(), data.clone());
        }
        json!({"jsonrpc": "2.0", "id": id, "error": error})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, self.body(&Value::Null).to_string());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"chap\""));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            _ => {}
        }
        response
    }
}

/// A response of JSON text that no cache keeps.
pub(crate) fn json_response(status: StatusCode, body: impl Into<Body>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, body.into()).into_response()
}

/// Why a call has no answer, told without internals; they go to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failed {
    /// Too much waits; nothing was done.
    Busy,
    /// The store is away; nothing was done.
    NotStored,
    /// The Coordinator ends; nothing was done.
    Ending,
    /// The outcome is unknown.
    Unknown,
}

impl Failed {
    pub(crate) const fn message(self) -> &'static str {
        match self {
            Self::Busy => {
                "The Coordinator has too many calls waiting, or of this participant. Nothing was done; try again."
            }
            Self::NotStored => "The Coordinator's store is not available. Nothing was done; try again.",
            Self::Ending => "The Coordinator is ending. Nothing was done; try again when it is back.",
            Self::Unknown => {
                "Whether the call was carried out is unknown: read the log (audit.read) before you repeat it."
            }
        }
    }

    pub(crate) fn refusal(self) -> Refusal {
        let (status, code, outcome) = match self {
            Self::Busy | Self::NotStored | Self::Ending => {
                (StatusCode::SERVICE_UNAVAILABLE, NOT_DONE, "nothing_done")
            }
            Self::Unknown => (StatusCode::GATEWAY_TIMEOUT, OUTCOME_UNKNOWN, "unknown"),
        };
        let data = Some(json!({"outcome": outcome}));
        Refusal { status, code, message: self.message().to_owned(), data }
    }
}

impl From<Unanswered> for Failed {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Busy => Self::Busy,
            Unanswered::NotStored(detail) => {
                tracing::warn!(target: "choir::chap_http", %detail, "a call was not stored");
                Self::NotStored
            }
            Unanswered::Unknown(detail) => {
                tracing::warn!(target: "choir::chap_http", %detail, "a call's outcome is unknown");
                Self::Unknown
            }
            Unanswered::Ending => Self::Ending,
        }
    }
}

impl From<CallError> for Failed {
    fn from(why: CallError) -> Self {
        match why {
            CallError::Send(SendError::Full | SendError::Deadline) => Self::Busy,
            CallError::Send(SendError::Closed) => Self::Ending,
            // It was taken; how far it got, nobody can say.
            CallError::Deadline | CallError::Unanswered => Self::Unknown,
        }
    }
}

/// The id of a call that never reached the Coordinator, as far as it can be read.
pub(crate) fn id_of(call: &[u8]) -> Value {
    #[derive(serde::Deserialize)]
    struct Named {
        #[serde(default)]
        id: Value,
    }
    match serde_json::from_slice::<Named>(call) {
        Ok(Named { id: id @ (Value::String(_) | Value::Number(_)) }) => id,
        Ok(_) | Err(_) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_whether_the_call_may_be_repeated() {
        for (failed, code, status) in [
            (Failed::Busy, NOT_DONE, 503),
            (Failed::NotStored, NOT_DONE, 503),
            (Failed::Ending, NOT_DONE, 503),
            (Failed::Unknown, OUTCOME_UNKNOWN, 504),
        ] {
            let refusal = failed.refusal();
            assert_eq!((refusal.code, refusal.status.as_u16()), (code, status), "{failed:?}");
        }
        assert!(Failed::Unknown.message().contains("before you repeat it"));
    }

    #[test]
    fn what_the_store_said_stays_inside() {
        let failed = Failed::from(Unanswered::NotStored("password authentication failed".to_owned()));
        assert!(!failed.refusal().body(&Value::Null).to_string().contains("password"));
    }

    #[test]
    fn the_id_of_a_call_is_found_or_null() {
        assert_eq!(id_of(br#"{"id":"a","method":"m"}"#), json!("a"));
        assert_eq!(id_of(br#"{"method":"m","id":7}"#), json!(7));
        for odd in [&b"{"[..], b"[]", br#"{"id":{"x":1}}"#, br#"{"method":"m"}"#, b"\xff"] {
            assert_eq!(id_of(odd), Value::Null);
        }
    }
}
