//! What anyone may know: that the server lives, and what it speaks.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::auth::Auth;
use crate::front::Front;
use crate::limits::{INBOX_PAGE_MOST, INBOX_WAIT_SECONDS};
use crate::mcp::{DECLARABLE, HANDSHAKE};
use crate::refusal::json_response;
use crate::socket::SUBPROTOCOL;

/// `GET /healthz`: 200 while the Coordinator takes calls, else 503.
pub(crate) async fn health(State(front): State<Front>) -> Response {
    let coordinator = front.coordinator();
    let (status, word) = if coordinator.is_closed() {
        (StatusCode::SERVICE_UNAVAILABLE, "ending")
    } else if coordinator.depth() >= coordinator.capacity() {
        (StatusCode::SERVICE_UNAVAILABLE, "busy")
    } else {
        (StatusCode::OK, "ok")
    };
    json_response(status, json!({"status": word}).to_string())
}

/// `GET /.well-known/chap`: transports, bounds, profiles. Nothing about workspaces or callers.
pub(crate) async fn describe(State(front): State<Front>) -> Response {
    let config = front.config();
    let body = json!({
        "protocol": "chap",
        "server": {"name": "choir", "version": env!("CARGO_PKG_VERSION")},
        "transports": {
            "http": {"call": "/chap", "content_types": ["application/chap+json", "application/json"]},
            "inbox": {"path": "/chap/inbox"},
            "sse": {"path": "/chap/events"},
            "websocket": {"path": "/chap/ws", "subprotocol": SUBPROTOCOL},
            "mcp": {"path": "/mcp", "versions": DECLARABLE.iter().chain(HANDSHAKE).collect::<Vec<_>>()},
        },
        "limits": {
            "max_envelope_bytes": config.limits.envelope_bytes,
            "inbox_page": INBOX_PAGE_MOST,
            "inbox_wait_seconds": INBOX_WAIT_SECONDS,
            "streams_per_participant": config.limits.streams_per_participant,
        },
        "authentication": match config.auth { Auth::None => "none", Auth::Bearer(_) => "bearer" },
        "default_profiles": config.profiles,
    });
    json_response(StatusCode::OK, body.to_string())
}
