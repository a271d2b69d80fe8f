//! The server: accepts, keeps connections within their bounds and deadlines, and ends in an orderly way.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use choir_messages::mail::CoordinatorMsg;
use choir_supervisors::Address;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tower_service::Service as _;

use crate::config::{Config, Listen};
use crate::connections::{Connections, Held, InUse};
use crate::front::{Front, router};
use crate::limits::{ACCEPT_PAUSE, HEAD_BYTES};
use crate::listen::{Listener, ServeError, Wire, tls};
use crate::mcp::ToolSpec;
use crate::pace::Paced;
use crate::refusal::Refusal;

/// A running server. Dropping it ends it at once; [`Serving::shutdown`] lets open answers finish.
pub struct Serving {
    local: Listen,
    front: Front,
    connections: Arc<Connections>,
    /// The task of the accept loop, where nobody else runs it.
    accepting: Option<JoinHandle<()>>,
    /// Closed when the accept loop is gone, however that came.
    alive: watch::Receiver<()>,
}

/// Serves this Coordinator, with these tools for MCP clients. Refuses to listen off loopback without TLS and a token.
pub async fn serve(
    config: Config,
    coordinator: Address<CoordinatorMsg>,
    tools: &[ToolSpec],
) -> Result<Serving, ServeError> {
    let (mut serving, accepting) = open(config, coordinator, tools).await?;
    serving.accepting = Some(tokio::spawn(accepting));
    Ok(serving)
}

/// Listens already; the future accepts, and ends when the server has been told to, or is dropped.
pub(crate) async fn open(
    config: Config,
    coordinator: Address<CoordinatorMsg>,
    tools: &[ToolSpec],
) -> Result<(Serving, impl Future<Output = ()> + Send + use<>), ServeError> {
    config.check()?;
    let tls = config.tls.as_ref().map(tls).transpose()?;
    let listener = Listener::bind(&config.listen).await?;
    let local = listener.local()?;
    let front = Front::new(coordinator, config.front, tools);
    let connections = Connections::new(front.limits().connections);
    let server = Server {
        router: router(front.clone()).fallback(nothing_here),
        front: front.clone(),
        tls,
        connections: Arc::clone(&connections),
    };
    match &local {
        Listen::Tcp(address) => tracing::info!(target: "choir::chap_http", %address, "serving CHAP"),
        Listen::Unix(path) => {
            tracing::info!(target: "choir::chap_http", path = %path.display(), "serving CHAP")
        }
    }
    let (alive_here, alive) = watch::channel(());
    let accepting = async move {
        let _alive = alive_here;
        Arc::new(server).accept(listener).await;
    };
    Ok((Serving { local, front, connections, accepting: None, alive }, accepting))
}

impl Serving {
    /// Where it listens, with the port it found.
    #[must_use]
    pub const fn local(&self) -> &Listen {
        &self.local
    }

    /// Connections open now, and whenever that changes.
    #[must_use]
    pub fn connections(&self) -> watch::Receiver<usize> {
        self.connections.count()
    }

    /// Streams of notices open now.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.front.streams()
    }

    /// Accepts nothing more, ends streams and sockets, lets open calls be answered until the deadline of the limits,
    /// then closes what is left.
    pub async fn shutdown(self) {
        self.front.stop();
        self.ended().await;
        // WebSockets have tasks of their own; they hear the same word and have had the same time.
        let mut count = self.connections.count();
        let _ =
            tokio::time::timeout(self.front.limits().stop_within, count.wait_for(|open| *open == 0)).await;
    }

    /// Resolves when it accepts no more.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut alive = self.alive.clone();
        // Nothing is ever sent; only the end is heard.
        async move { while alive.changed().await.is_ok() {} }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.front.stop();
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("local", &self.local).finish_non_exhaustive()
    }
}

async fn nothing_here() -> Response {
    let message = "Nothing is served under this path: see /.well-known/chap.";
    Refusal::new(StatusCode::NOT_FOUND, message).into_response()
}

struct Server {
    router: Router,
    front: Front,
    tls: Option<TlsAcceptor>,
    connections: Arc<Connections>,
}

impl Server {
    async fn accept(self: Arc<Self>, listener: Listener) {
        let mut tasks = JoinSet::new();
        {
            let mut stopped = pin!(self.front.stopped());
            loop {
                let wire = tokio::select! {
                    biased;
                    () = &mut stopped => break,
                    Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
                    wire = listener.accept() => wire,
                };
                match wire {
                    Ok(wire) => match self.connections.admit() {
                        Some(held) => {
                            tasks.spawn(Arc::clone(&self).connection(wire, held));
                        }
                        // Every connection is in use: this one is closed unheard.
                        None => tracing::debug!(target: "choir::chap_http", "no room for a connection"),
                    },
                    Err(error) => {
                        tracing::warn!(target: "choir::chap_http", %error, "accepting failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop(listener);
        let finish = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.front.limits().stop_within, finish).await.is_err() {
            tasks.shutdown().await;
        }
    }

    async fn connection(self: Arc<Self>, wire: Box<dyn Wire>, held: Arc<Held>) {
        let limits = self.front.limits();
        let paced = Paced::new(wire, limits.write_within);
        let Some(acceptor) = &self.tls else {
            return self.serve(paced, &held).await;
        };
        let handshake = tokio::select! {
            () = held.evicted() => return,
            () = self.front.stopped() => return,
            handshake = tokio::time::timeout(limits.first_request_within, acceptor.accept(paced)) => handshake,
        };
        if let Ok(Ok(stream)) = handshake {
            self.serve(stream, &held).await;
        }
    }

    async fn serve(&self, wire: impl Wire + 'static, held: &Arc<Held>) {
        let limits = self.front.limits();
        let service = service_fn(|request: hyper::Request<Incoming>| self.respond(request, held));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_within)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(wire), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        let mut stopped = pin!(self.front.stopped());
        let mut first = pin!(tokio::time::sleep(limits.first_request_within));
        let (mut stopping, mut asked) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = held.evicted() => return,
                () = &mut stopped, if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = &mut first, if !asked => {
                    asked = true;
                    if !held.served() {
                        return;
                    }
                }
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(target: "choir::chap_http", %error, "a connection ended");
                    }
                    return;
                }
            }
        }
    }

    /// One request; the connection is in use until its answer has been written.
    fn respond(
        &self,
        mut request: hyper::Request<Incoming>,
        held: &Arc<Held>,
    ) -> impl Future<Output = Result<hyper::Response<Counted>, Infallible>> + use<> {
        let in_use = held.begin();
        request.extensions_mut().insert(Arc::clone(held));
        let mut router = self.router.clone();
        async move {
            let request: Request = request.map(Body::new);
            // A router is always ready, and never fails.
            let response = router.call(request).await?;
            Ok(response.map(|body| Counted { body, _in_use: in_use }))
        }
    }
}

/// A body that keeps its connection in use.
struct Counted {
    body: Body,
    _in_use: InUse,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The longest a shutdown takes with these limits.
pub(crate) const fn shutdown_within(stop_within: Duration) -> Duration {
    // Connections first, then sockets, and a moment for the rest.
    stop_within.saturating_mul(2).saturating_add(Duration::from_secs(1))
}
