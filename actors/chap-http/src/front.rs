//! What all routes share: the Coordinator's address, the bounds, the counters, and the way in (host names, origins,
//! tokens).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use choir_messages::mail::{CallAnswer, CoordinatorMsg, NoticePage};
use choir_supervisors::Address;
use serde_json::Value;
use tokio::sync::watch;
use tracing::Instrument as _;

use crate::accounts::{Accounts, Budget, Sockets, Streams};
use crate::auth::{Auth, Identity};
use crate::limits::Limits;
use crate::mcp::{McpServer, ToolSpec};
use crate::names;
use crate::refusal::{Failed, Refusal};
use crate::trace::{RemoteParent, Traced};
use crate::{about, call, events, inbox, mcp_http, socket, workspaces};

/// How the routes behave.
#[derive(Debug, Clone, Default)]
pub struct FrontConfig {
    /// Who may call.
    pub auth: Auth,
    /// Names, beside addresses and `localhost`, under which clients reach this server.
    pub hosts: Vec<String>,
    /// Origins, such as `https://desk.example`, whose pages may call.
    pub origins: Vec<String>,
    /// The bounds.
    pub limits: Limits,
    /// Profiles that new workspaces get, as told on `/.well-known/chap`.
    pub profiles: Vec<String>,
    /// Whether whoever comes without a participant's name is an operator, and may list the workspaces.
    pub listing: bool,
    /// How a caller's `traceparent` becomes the parent of its request's span; without it every request is a trace of its
    /// own.
    pub remote_parent: Option<RemoteParent>,
}

/// The shared state of the routes. Cheap to clone.
#[derive(Clone)]
pub struct Front {
    inner: Arc<Inner>,
}

struct Inner {
    coordinator: Address<CoordinatorMsg>,
    config: FrontConfig,
    mcp: McpServer,
    accounts: Accounts,
    budget: Budget,
    streams: Arc<Streams>,
    sockets: Arc<Sockets>,
    stop: watch::Sender<bool>,
}

impl Front {
    /// Routes to this Coordinator, with these tools for MCP clients.
    #[must_use]
    pub fn new(coordinator: Address<CoordinatorMsg>, config: FrontConfig, tools: &[ToolSpec]) -> Self {
        let limits = &config.limits;
        let sockets_each = match config.auth {
            // All of them are one account's.
            Auth::None => limits.sockets,
            Auth::Bearer(_) => limits.sockets_per_token,
        };
        let inner = Inner {
            coordinator,
            mcp: McpServer::new(tools),
            accounts: Accounts::new(config.auth.accounts(), limits.calls_per_caller, limits.calls_per_second),
            budget: Budget::new(limits.bodies_bytes),
            streams: Streams::streams(limits.streams, limits.streams_per_participant),
            sockets: Sockets::sockets(limits.sockets, sockets_each),
            stop: watch::Sender::new(false),
            config,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Ends every stream and WebSocket; what is called from now on is still answered.
    pub fn stop(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Streams of notices open now.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.inner.streams.taken()
    }

    /// Resolves when [`Front::stop`] has been called.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.inner.stop.subscribe();
        // The sender lives as long as this borrow.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    pub(crate) fn config(&self) -> &FrontConfig {
        &self.inner.config
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.config.limits
    }

    pub(crate) fn mcp(&self) -> &McpServer {
        &self.inner.mcp
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.inner.accounts
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.inner.budget
    }

    pub(crate) fn sockets(&self) -> &Arc<Sockets> {
        &self.inner.sockets
    }

    pub(crate) fn slots(&self) -> &Arc<Streams> {
        &self.inner.streams
    }

    pub(crate) fn coordinator(&self) -> &Address<CoordinatorMsg> {
        &self.inner.coordinator
    }

    /// Hands one call over and waits for its answer.
    pub(crate) async fn call(&self, bytes: Arc<[u8]>, who: &Identity) -> Result<CallAnswer, Failed> {
        let caller = who.caller.clone();
        let ask = |reply| CoordinatorMsg::Call { bytes, caller, reply };
        Ok(self.coordinator().call(self.limits().call_within, ask).await??)
    }

    /// Asks for notices; waits for one, at most this long, if `wait` says so. `None` when there was none in time.
    pub(crate) async fn notices(&self, ask: NoticeAsk<'_>) -> Result<Option<NoticePage>, NoNotices> {
        let NoticeAsk { who, workspace, participant, after, limit, wait } = ask;
        let make = |reply| CoordinatorMsg::Inbox {
            workspace: workspace.to_owned(),
            participant: participant.to_owned(),
            after,
            limit,
            wait: wait.is_some(),
            caller: who.caller.clone(),
            reply,
        };
        let within = wait.unwrap_or(self.limits().call_within);
        match self.coordinator().call(within, make).await {
            Ok(answer) => {
                answer.map_err(|why| NoNotices::Failed(why.into()))?.map(Some).map_err(NoNotices::Refused)
            }
            Err(choir_supervisors::CallError::Deadline) if wait.is_some() => Ok(None),
            Err(why) => Err(NoNotices::Failed(why.into())),
        }
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("coordinator", &self.inner.coordinator).finish_non_exhaustive()
    }
}

/// One question for notices.
pub(crate) struct NoticeAsk<'a> {
    pub(crate) who: &'a Identity,
    pub(crate) workspace: &'a str,
    pub(crate) participant: &'a str,
    pub(crate) after: u64,
    pub(crate) limit: usize,
    pub(crate) wait: Option<std::time::Duration>,
}

/// Why there are no notices.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoNotices {
    /// The Coordinator refused, with this JSON-RPC error object.
    Refused(Value),
    /// It could not be asked.
    Failed(Failed),
}

impl From<NoNotices> for Refusal {
    fn from(why: NoNotices) -> Self {
        match why {
            NoNotices::Refused(error) => Self::of_coordinator(&error),
            NoNotices::Failed(failed) => {
                let mut refusal = failed.refusal();
                // Reading is repeated without harm.
                if failed == Failed::Unknown {
                    refusal.message = "The Coordinator did not answer in time; ask again.".to_owned();
                }
                refusal
            }
        }
    }
}

/// Paths that need no token: they tell nothing of any workspace.
const OPEN: [&str; 2] = ["/healthz", "/.well-known/chap"];

/// All routes. Host names and origins are checked on every one of them, tokens on all that are not [`OPEN`].
///
/// Connections, their number, their deadlines and TLS are the business of whoever serves it: [`crate::serve`].
pub fn router(front: Front) -> Router {
    Router::new()
        .route("/healthz", get(about::health))
        .route("/.well-known/chap", get(about::describe))
        .route("/chap", post(call::call).get(socket::open))
        .route("/chap/ws", get(socket::open))
        .route("/chap/inbox", get(inbox::read))
        .route("/chap/workspaces", get(workspaces::list))
        .route("/chap/events", get(events::chap))
        .route("/mcp", post(mcp_http::call).get(mcp_http::listen))
        // One layer for all that comes before a route: each costs every request several allocations.
        .layer(middleware::from_fn_with_state(front.clone(), enter))
        .with_state(front)
}

/// The way in.
async fn enter(State(front): State<Front>, request: Request, next: Next) -> Response {
    let Some(traced) = Traced::begin(&front, &request) else {
        return from_where(&front, request, next).await;
    };
    let response = from_where(&front, request, next).instrument(traced.span()).await;
    traced.end(&response);
    response
}

/// Tells who calls, or refuses.
async fn who_calls(front: &Front, mut request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    match front.config().auth.identify(request.headers()) {
        Ok(identity) => {
            request.extensions_mut().insert(identity);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// Refuses requests under a foreign name or from a foreign page, and answers the browser's question beforehand.
async fn from_where(front: &Front, request: Request, next: Next) -> Response {
    let config = front.config();
    let Some(host) = host_of(request.uri(), request.headers()) else {
        let message = "The request has no single Host; send the name or address you connect to.";
        return Refusal::new(StatusCode::BAD_REQUEST, message).into_response();
    };
    if !names::host_allowed(host, &config.hosts) {
        let message =
            "This server is not known under that Host. Use its address, or add the name to its hosts.";
        return Refusal::new(StatusCode::MISDIRECTED_REQUEST, message).into_response();
    }
    let Ok(origin) = only(request.headers(), &header::ORIGIN) else { return foreign_page() };
    let Some(origin) = origin.cloned() else { return who_calls(front, request, next).await };
    let known = origin.to_str().is_ok_and(|origin| names::origin_allowed(origin, host, &config.origins));
    if !known {
        return foreign_page();
    }
    let mut response =
        if request.method() == Method::OPTIONS { preflight() } else { who_calls(front, request, next).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("mcp-session-id, retry-after"),
    );
    response
}

fn foreign_page() -> Response {
    let message = "Pages of that Origin may not call. Add it to the configured origins if they should.";
    Refusal::new(StatusCode::FORBIDDEN, message).into_response()
}

fn preflight() -> Response {
    let allowed = "authorization, content-type, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, \
                   mcp-name";
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST")),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(allowed)),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600")),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The name a request is for: of the URI if it has one, else of the one `Host` header.
fn host_of<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => only(headers, &header::HOST).ok().flatten()?.to_str().ok(),
    }
}

/// A header is there more than once.
pub(crate) struct Several;

/// The value of a header that may be there once.
pub(crate) fn only<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'a HeaderValue>, Several> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(Several) } else { Ok(first) }
}
