//! The endpoint: HTTP in, the engine's answer or a fault out, everything into the journal.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use choir_messages::time::Timestamp;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::engine::{self, Reply};
use crate::faults::{Fault, FaultRule, Faults};
use crate::journal::{Entry, Journal, JournalSink, NotSeen, Outcome};
use crate::limits;
use crate::script::{Script, ScriptError};
use crate::transcript::{self, FAULT_ID, Transcript};

/// Why the endpoint did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The script cannot be played.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// No loopback address, no journal file, or no randomness for a key.
    #[error("the scripted model cannot start ({what}): {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        error: std::io::Error,
    },
}

/// How the endpoint is reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Port on 127.0.0.1; 0 for any free one. A fixed one lets an endpoint come back where it was.
    pub port: u16,
    /// The key that is accepted; a random one by default.
    pub key: Option<String>,
}

/// Starts endpoints.
#[derive(Debug, Clone, Copy)]
pub struct ScriptedModel;

struct Shared {
    script: Script,
    key: String,
    journal: Arc<Journal>,
    faults: Mutex<Faults>,
    held: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    /// Turns true once, at shutdown: open calls end.
    closed: watch::Receiver<bool>,
}

/// A running endpoint. Dropping it ends the endpoint at once; [`Handle::shutdown`] also waits for its end.
pub struct Handle {
    shared: Arc<Shared>,
    address: SocketAddr,
    close: watch::Sender<bool>,
    server: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts on a free loopback port with a random key, on the current tokio runtime.
    pub async fn start(script: Script, sink: JournalSink) -> Result<Handle, StartError> {
        Self::start_with(script, sink, Options::default()).await
    }

    /// Starts with a port or a key of the caller's choice.
    pub async fn start_with(
        script: Script,
        sink: JournalSink,
        options: Options,
    ) -> Result<Handle, StartError> {
        script.check()?;
        let io = |what| move |error| StartError::Io { what, error };
        let journal = Arc::new(Journal::open(&sink).map_err(io("opening the journal's file"))?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))
            .await
            .map_err(io("listening on 127.0.0.1"))?;
        let address = listener.local_addr().map_err(io("reading the listener's address"))?;
        let key = match options.key {
            Some(key) => key,
            None => random_key().map_err(io("making a key"))?,
        };
        let (close, closed) = watch::channel(false);
        let faults = Faults { rules: script.faults.clone(), seeded: script.seeded.clone() };
        let shared = Arc::new(Shared {
            script,
            key,
            journal,
            faults: Mutex::new(faults),
            held: Mutex::new(BTreeMap::new()),
            closed: closed.clone(),
        });
        let router = Router::new()
            .route("/v1/chat/completions", post(completions))
            .route("/v1/models", get(models))
            .fallback(nothing_here)
            .with_state(Arc::clone(&shared));
        // Small answers go out at once.
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let until_closed = wait_closed(closed);
        let server = tokio::spawn(async move {
            // Ends only by the signal: this listener retries what can be retried.
            let _ = axum::serve(listener, router).with_graceful_shutdown(until_closed).await;
        });
        Ok(Handle { shared, address, close, server: Some(server) })
    }
}

impl Handle {
    /// The base URL, such as `http://127.0.0.1:41234/v1`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// The key that is accepted.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.shared.key
    }

    /// What it saw and said; can be kept beyond the endpoint's end.
    #[must_use]
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.shared.journal)
    }

    /// Adds a fault, after those there are.
    pub fn add_fault(&self, fault: FaultRule) {
        lock(&self.shared.faults).rules.push(fault);
    }

    /// Takes all faults away, seeded ones too. Calls that are held stay held.
    pub fn clear_faults(&self) {
        *lock(&self.shared.faults) = Faults::default();
    }

    /// Waits until a call is held; returns its entry.
    pub async fn until_held(&self, within: Duration) -> Result<Entry, NotSeen> {
        let held = |entries: &[Entry]| entries.iter().find(|entry| entry.outcome == Outcome::Held).cloned();
        self.shared.journal.until(within, held).await
    }

    /// Lets a held call go on to its answer; `false` if it is not held (any more).
    pub fn release(&self, number: u64) -> bool {
        let held = lock(&self.shared.held).remove(&number);
        held.is_some_and(|held| held.send(()).is_ok())
    }

    /// Lets every held call go on; returns how many.
    pub fn release_all(&self) -> usize {
        let held = std::mem::take(&mut *lock(&self.shared.held));
        held.into_values().filter_map(|held| held.send(()).ok()).count()
    }

    /// Ends the endpoint: no new connections, open calls fail. Returns the journal.
    pub async fn shutdown(mut self) -> Arc<Journal> {
        let _ = self.close.send(true);
        if let Some(mut server) = self.server.take()
            && tokio::time::timeout(limits::SHUTDOWN_WITHIN, &mut server).await.is_err()
        {
            server.abort();
        }
        self.journal()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let _ = self.close.send(true);
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("endpoint", &self.endpoint()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn wait_closed(mut closed: watch::Receiver<bool>) {
    // An error means that the handle is gone, which is the same.
    let _ = closed.wait_for(|closed| *closed).await;
}

fn random_key() -> std::io::Result<String> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    Ok(format!("sk-scripted-{}", hex::encode(random)))
}

/// The entry of a request under way. If nothing has come of it when this is dropped, the client has gone.
struct Open {
    journal: Arc<Journal>,
    number: u64,
}

impl Open {
    fn ended(&self, outcome: Outcome) {
        self.journal.update(self.number, |entry| entry.outcome = outcome);
    }

    fn refuse(&self, status: StatusCode, kind: &str, code: Option<&str>, reason: &str) -> Response {
        self.ended(Outcome::Refused { status: status.as_u16(), reason: reason.to_owned() });
        error(status, kind, code, reason)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.journal.update(self.number, |entry| {
            if entry.is_open() {
                entry.outcome = Outcome::Disconnected;
            }
        });
    }
}

async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let open = Open { journal: Arc::clone(&shared.journal), number: shared.journal.arrived() };
    if !authorised(request.headers(), &shared.key) {
        let reason = "Incorrect API key provided.";
        return open.refuse(
            StatusCode::UNAUTHORIZED,
            "invalid_request_error",
            Some("invalid_api_key"),
            reason,
        );
    }
    let Ok(body) = axum::body::to_bytes(request.into_body(), limits::REQUEST_BYTES).await else {
        let reason = "The request is too large, or it broke off.";
        return open.refuse(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", None, reason);
    };
    let transcript = match transcript::read(&body) {
        Ok(transcript) => transcript,
        Err(invalid) => {
            let reason = format!("{}: {}", invalid.param, invalid.message);
            return open.refuse(StatusCode::BAD_REQUEST, "invalid_request_error", None, &reason);
        }
    };
    let reply = engine::reply(&shared.script, &transcript);
    let fault = lock(&shared.faults).take(open.number, &reply.user, reply.step);
    shared.journal.update(open.number, |entry| {
        entry.message.clone_from(&reply.user);
        entry.rule.clone_from(&reply.rule);
        entry.step = reply.step;
        entry.messages = transcript.messages;
        entry.request_bytes = body.len();
        entry.transcript = transcript.digest.to_string();
        entry.fault.clone_from(&fault);
    });
    tokio::select! {
        biased;
        () = wait_closed(shared.closed.clone()) => {
            open.refuse(StatusCode::SERVICE_UNAVAILABLE, "server_error", None, "The scripted model is stopping.")
        }
        response = respond(&shared, &open, &transcript, reply, fault, body.len()) => response,
    }
}

async fn respond(
    shared: &Shared,
    open: &Open,
    transcript: &Transcript,
    reply: Reply,
    fault: Option<Fault>,
    request_bytes: usize,
) -> Response {
    if shared.script.thinking_ms > 0 {
        tokio::time::sleep(Duration::from_millis(shared.script.thinking_ms)).await;
    }
    match fault {
        None => {}
        Some(Fault::Slow { millis }) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Some(Fault::Hold) => {
            let (release, released) = oneshot::channel();
            lock(&shared.held).insert(open.number, release);
            let _leave = Leave { shared, number: open.number };
            open.ended(Outcome::Held);
            let _ = released.await;
        }
        Some(Fault::NeverAnswers) => std::future::pending().await,
        Some(fault) => {
            let response = faulty(&fault, transcript, &reply, request_bytes);
            open.ended(Outcome::Faulted);
            return response;
        }
    }
    let response = json_response(StatusCode::OK, &completion(transcript, &reply, request_bytes));
    open.ended(Outcome::Answered {
        tools: reply.calls.into_iter().map(|(tool, _)| tool).collect(),
        text: reply.text,
        off_script: reply.off_script,
    });
    response
}

/// Takes a call that is no longer held off the list, also when its client goes away.
struct Leave<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        lock(&self.shared.held).remove(&self.number);
    }
}

fn faulty(fault: &Fault, transcript: &Transcript, reply: &Reply, request_bytes: usize) -> Response {
    let answer = |reply: &Reply| completion(transcript, reply, request_bytes);
    let with_text = |text: Option<String>| Reply { text, calls: Vec::new(), ..reply.clone() };
    let ok = |value: &Value| json_response(StatusCode::OK, value);
    match fault {
        Fault::RateLimited { retry_after } => {
            let reason = "Rate limit reached; try again later.";
            let mut response =
                error(StatusCode::TOO_MANY_REQUESTS, "requests", Some("rate_limit_exceeded"), reason);
            if let Some(value) = retry_after.as_deref().and_then(|value| HeaderValue::from_str(value).ok()) {
                response.headers_mut().insert(header::RETRY_AFTER, value);
            }
            response
        }
        Fault::Status { status } => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            error(status, "server_error", None, "The server had an error, as the script asks.")
        }
        Fault::CutBody => {
            let whole = answer(reply).to_string();
            let half = Bytes::from(whole.get(..whole.len() / 2).unwrap_or_default().to_owned());
            let cut = async {
                // Waits once, so that the first half is sent and not dropped with the connection.
                tokio::task::yield_now().await;
                Err(std::io::Error::other("cut on demand"))
            };
            streamed(Body::from_stream(stream::once(async { Ok(half) }).chain(stream::once(cut))))
        }
        Fault::MalformedJson => streamed(Body::from("{\"choices\": [{\"message\": {\"content\": ")),
        Fault::WrongShape => ok(&json!({ "object": "chat.completion", "choices": "none" })),
        Fault::Empty => ok(&answer(&with_text(None))),
        Fault::InvalidArguments => {
            let tool = reply.calls.first().map(|(tool, _)| tool.clone());
            let tool =
                tool.or_else(|| transcript.tools.first().cloned()).unwrap_or_else(|| "tool".to_owned());
            ok(&stumble(transcript, request_bytes, reply, &tool, "{\"path\": \"unfinished"))
        }
        Fault::UnknownTool => ok(&stumble(
            transcript,
            request_bytes,
            reply,
            "no_such_tool",
            "{\"reason\":\"a fault on demand\"}",
        )),
        Fault::HugeText { bytes } => {
            ok(&answer(&with_text(Some("x".repeat((*bytes).min(limits::HUGE_BYTES))))))
        }
        Fault::HugeBody { bytes } => streamed(huge((*bytes).min(limits::HUGE_BYTES))),
        Fault::ContentFilter => {
            let mut filtered = answer(&with_text(Some("I".to_owned())));
            if let Some(reason) = filtered.pointer_mut("/choices/0/finish_reason") {
                *reason = "content_filter".into();
            }
            ok(&filtered)
        }
        // These delay an answer or withhold it and are dealt with where there is something to wait with.
        Fault::Slow { .. } | Fault::Hold | Fault::NeverAnswers => ok(&answer(reply)),
    }
}

/// An answer with one faulty call, marked by its id as no step of the script.
fn stumble(
    transcript: &Transcript,
    request_bytes: usize,
    reply: &Reply,
    tool: &str,
    arguments: &str,
) -> Value {
    let calls = vec![(tool.to_owned(), arguments.to_owned())];
    let mut value = completion(transcript, &Reply { text: None, calls, ..reply.clone() }, request_bytes);
    if let Some(id) = value.pointer_mut("/choices/0/message/tool_calls/0/id") {
        *id = format!("{FAULT_ID}{}", short(transcript)).into();
    }
    value
}

/// White space, so that a client that reads it all learns nothing; made piece by piece, so that only a client that keeps
/// it all runs out of memory.
fn huge(bytes: usize) -> Body {
    let piece = Bytes::from(vec![b' '; limits::HUGE_PIECE_BYTES]);
    let pieces = std::iter::repeat_n(piece, bytes.div_ceil(limits::HUGE_PIECE_BYTES));
    Body::from_stream(stream::iter(pieces.map(Ok::<_, Infallible>).collect::<VecDeque<_>>()))
}

fn streamed(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The part of a transcript's digest that ids are made of.
fn short(transcript: &Transcript) -> String {
    transcript.digest.to_string().chars().take(24).collect()
}

/// An answer in the interface's shape.
fn completion(transcript: &Transcript, reply: &Reply, request_bytes: usize) -> Value {
    let calls: Vec<Value> = reply
        .calls
        .iter()
        .enumerate()
        .map(|(at, (tool, arguments))| {
            json!({
                "id": format!("call_{}_{at}", short(transcript)),
                "type": "function",
                "function": { "name": tool, "arguments": arguments },
            })
        })
        .collect();
    let mut message = json!({ "role": "assistant", "content": reply.text, "refusal": null });
    let finish_reason = if calls.is_empty() { "stop" } else { "tool_calls" };
    if let (false, Some(fields)) = (calls.is_empty(), message.as_object_mut()) {
        fields.insert("tool_calls".to_owned(), calls.into());
    }
    // About four bytes a token, as with real ones.
    let (prompt, completion) = (request_bytes / 4, message.to_string().len() / 4);
    json!({
        "id": format!("chatcmpl-{}", short(transcript)),
        "object": "chat.completion",
        "created": Timestamp::now().millis() / 1000,
        "model": transcript.model,
        "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason }],
        "usage": {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        },
    })
}

fn authorised(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")) == Some(key)
}

fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn error(status: StatusCode, kind: &str, code: Option<&str>, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": kind, "param": null, "code": code } });
    json_response(status, &body)
}

async fn models(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if !authorised(&headers, &shared.key) {
        let reason = "Incorrect API key provided.";
        return error(StatusCode::UNAUTHORIZED, "invalid_request_error", Some("invalid_api_key"), reason);
    }
    let model = json!({ "id": "scripted", "object": "model", "created": 0, "owned_by": "choir" });
    json_response(StatusCode::OK, &json!({ "object": "list", "data": [model] }))
}

async fn nothing_here() -> Response {
    let reason = "Unknown address; this endpoint serves /v1/chat/completions and /v1/models.";
    error(StatusCode::NOT_FOUND, "invalid_request_error", Some("unknown_url"), reason)
}
