//! Spans and counters of the transports. A request's span is the child of the caller's where a `traceparent` header says
//! so; what the Coordinator and the store do for it lies below it, since mailboxes carry spans. Nothing that a caller says
//! becomes a name, an attribute or a series.

use axum::extract::Request;
use axum::http::HeaderName;
use axum::response::Response;
use tracing::field::Empty;
use tracing::{Level, Span};

use crate::front::{Front, only};

/// Makes a span the child of the one that a `traceparent` names; a text that is none changes nothing.
pub type RemoteParent = fn(&Span, &str);

/// The routes as they are named in spans and counters.
fn route(path: &str) -> &'static str {
    const ROUTES: [&str; 7] =
        ["/chap", "/chap/ws", "/chap/inbox", "/chap/events", "/chap/workspaces", "/mcp", "/.well-known/chap"];
    ROUTES.into_iter().find(|route| *route == path).unwrap_or("other")
}

/// One request: its span ends when its answer is ready, a stream's own goes on.
pub(crate) struct Traced {
    span: Span,
    route: &'static str,
}

impl Traced {
    /// None for what whoever watches the process asks every second.
    pub(crate) fn begin(front: &Front, request: &Request) -> Option<Self> {
        if request.uri().path() == "/healthz" {
            return None;
        }
        let route = route(request.uri().path());
        let span = tracing::info_span!(
            target: "choir::chap_http", parent: None, "chap.request", otel.kind = "server", http.route = route,
            http.request.method = known_method(request.method()), http.response.status_code = Empty,
        );
        if let Some(remote_parent) = front.config().remote_parent
            && let Ok(Some(parent)) = only(request.headers(), &HeaderName::from_static("traceparent"))
            && let Ok(parent) = parent.to_str()
        {
            remote_parent(&span, parent);
        }
        Some(Self { span, route })
    }

    /// What is done for the request is done in it.
    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Its answer is ready.
    pub(crate) fn end(self, response: &Response) {
        let status = response.status();
        self.span.record("http.response.status_code", status.as_u16());
        if status.is_client_error() || status.is_server_error() {
            let (route, status) = (self.route, u64::from(status.as_u16()));
            tracing::event!(
                target: "choir::metric", Level::INFO, monotonic_counter.choir.chap.refused = 1_u64, route, status
            );
        }
    }
}

/// Methods are any word a caller likes.
fn known_method(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// One call on a connection that carries many, which has no header of its own.
pub(crate) fn call(transport: &'static str) -> Span {
    tracing::info_span!(target: "choir::chap_http", parent: None, "chap.call", otel.kind = "server", transport)
}

/// A stream of notices, for as long as it lives. What is read for it is not below it: it may live for days.
pub(crate) struct StreamSpan {
    span: Span,
    notices: u64,
}

impl StreamSpan {
    /// Below the request that opened it.
    pub(crate) fn open() -> Self {
        let span = tracing::info_span!(target: "choir::chap_http", "chap.stream", notices = Empty);
        Self { span, notices: 0 }
    }

    pub(crate) const fn sent(&mut self, notices: usize) {
        self.notices = self.notices.saturating_add(notices as u64);
    }
}

impl Drop for StreamSpan {
    fn drop(&mut self) {
        self.span.record("notices", self.notices);
    }
}

/// A reader was cut off because it does not take what it is sent.
pub(crate) fn cut_off() {
    tracing::event!(target: "choir::metric", Level::INFO, monotonic_counter.choir.chap.slow_readers = 1_u64);
}
