//! The host's end: one node for the process, one listener per session, at most one live link per listener.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_messages::id::SessionId;
use choir_messages::wire::{SignalSender, VerbHandler};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::call::{Downlink, HOST_PLACES};
use crate::frames::{FrameReader, Reader, Writer};
use crate::guard::Side;
use crate::handshake::{Code, HANDSHAKE_FRAME, admit, say};
use crate::limits::{
    ACCEPTS_BURST, ACCEPTS_PER_SECOND, Bucket, LinkLimits, NODE_STEP, PENDING_HANDSHAKES, REFUSALS_BURST,
    REFUSALS_PER_SECOND,
};
use crate::link::Link;
use crate::node::{Node, StartError};
use crate::port::Verbs;
use crate::reason::CloseReason;
use crate::secret::LinkSecret;
use crate::shared::Shared;
use crate::socket::{Acceptor, ListenAt, ListenError, PeerInfo, Raw};

/// The node that carries every link of a host. One per process; it listens on nothing by itself.
#[derive(Clone)]
pub struct Links(Arc<Node>);

/// One session's socket.
#[derive(Debug, Clone)]
pub struct LinkSpec {
    /// The only session that may connect here.
    pub session: SessionId,
    /// What its agent must know.
    pub secret: LinkSecret,
    /// Where to listen.
    pub at: ListenAt,
    /// The bounds.
    pub limits: LinkLimits,
}

/// What happens on one listener, in order: `Up` and `Down` alternate; `Refused` may come at any time and is left out
/// when the channel is half full or when there are more of them than [`REFUSALS_PER_SECOND`].
pub enum LinkEvent {
    /// An agent is connected.
    Up {
        /// For signals to it; fails with `Down` once the link has ended.
        signals: Arc<dyn SignalSender>,
        /// Who it is, as far as the kernel knows.
        peer: PeerInfo,
    },
    /// It no longer is, and nothing of the link is left; the next may come.
    Down {
        /// Why.
        reason: CloseReason,
    },
    /// A connection was not admitted.
    Refused {
        /// Why.
        reason: CloseReason,
        /// Who it was.
        peer: PeerInfo,
    },
}

impl std::fmt::Debug for LinkEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Up { peer, .. } => f.debug_struct("Up").field("peer", peer).finish_non_exhaustive(),
            Self::Down { reason } => f.debug_struct("Down").field("reason", reason).finish(),
            Self::Refused { reason, peer } => {
                f.debug_struct("Refused").field("reason", reason).field("peer", peer).finish()
            }
        }
    }
}

impl Links {
    /// Starts the node.
    pub async fn start() -> Result<Self, StartError> {
        Ok(Self(Arc::new(Node::start().await?)))
    }

    /// Whether the node still runs. When it does not, every link is down and none can be made: start another.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Opens one session's socket. `handler` gets its verbs, each in its own task, with version and session already
    /// checked; lease and generation are the handler's to check. A handler's future is dropped when its caller no
    /// longer waits or the link ends, so what must finish runs in a task of its own. `events` should have room for
    /// eight or more; an owner that takes none for [`NODE_STEP`] loses the link, and no link is made while a `Down` waits.
    pub async fn listen(
        &self,
        spec: LinkSpec,
        handler: Arc<dyn VerbHandler>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Result<Listener, ListenError> {
        let acceptor = Acceptor::bind(&spec.at).await?;
        let addr = acceptor.addr();
        let (closing, closed) = watch::channel(false);
        let live = Live::default();
        let context = Context {
            node: self.0.clone(),
            answer: Arc::new(Verbs { session: spec.session, handler }),
            spec,
            events,
            live: live.clone(),
            taken: Taken::default(),
            refusals: Mutex::new(Bucket::new(REFUSALS_BURST, REFUSALS_PER_SECOND, std::time::Instant::now())),
            closed,
        };
        let task = tokio::spawn(serve(Arc::new(context), acceptor));
        Ok(Listener { closing, live, addr, task: Some(task) })
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("alive", &self.is_alive()).finish()
    }
}

/// The live link of a listener, if any.
#[derive(Clone, Default)]
struct Live(Arc<Mutex<Option<Arc<Shared>>>>);

/// Whether the place of a listener is taken. Free from just before `Down` is sent, so that whoever hears `Down` may
/// connect at once.
#[derive(Default)]
struct Taken(AtomicBool);

impl Taken {
    fn take(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn free(&self) {
        self.0.store(false, Ordering::Release);
    }

    fn is_free(&self) -> bool {
        !self.0.load(Ordering::Acquire)
    }
}

impl Live {
    fn set(&self, shared: Option<Arc<Shared>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shared;
    }

    fn close(&self, reason: CloseReason) {
        if let Some(shared) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            shared.close(reason);
        }
    }
}

/// A listening socket. Dropping it revokes it, without waiting.
pub struct Listener {
    closing: watch::Sender<bool>,
    live: Live,
    addr: Option<SocketAddr>,
    task: Option<JoinHandle<()>>,
}

impl Listener {
    /// The address of a TCP listener.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Ends the live link, if any, and keeps listening: for an agent whose heartbeat is overdue.
    pub fn disconnect(&self) {
        self.live.close(CloseReason::Disconnected);
    }

    /// Revokes: ends the live link, removes the socket, and returns when both are gone.
    pub async fn close(mut self) {
        self.closing.send_replace(true);
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            if timeout(CLOSING, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

/// The sum of what [`Listener::close`] waits for: the owner taking `Down`, the gate, and the session, twice.
const CLOSING: Duration = NODE_STEP.saturating_mul(5);

impl Drop for Listener {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addr", &self.addr).finish_non_exhaustive()
    }
}

struct Context {
    node: Arc<Node>,
    answer: Arc<Verbs>,
    spec: LinkSpec,
    events: mpsc::Sender<LinkEvent>,
    live: Live,
    taken: Taken,
    refusals: Mutex<Bucket>,
    closed: watch::Receiver<bool>,
}

/// A connection that knows the secret.
struct Admitted {
    reader: FrameReader<Reader>,
    writer: Writer,
    peer: PeerInfo,
}

type Handshake = Result<Admitted, (CloseReason, PeerInfo)>;

/// The connections that are inside the handshake, the oldest first.
#[derive(Default)]
struct Handshakes {
    tasks: JoinSet<Handshake>,
    order: VecDeque<(AbortHandle, PeerInfo)>,
}

impl Handshakes {
    /// Takes one in; where there is no place, the oldest makes room and is returned.
    fn add(
        &mut self,
        peer: PeerInfo,
        handshake: impl Future<Output = Handshake> + Send + 'static,
    ) -> Option<PeerInfo> {
        self.order.retain(|(task, _)| !task.is_finished());
        let oldest = if self.order.len() < PENDING_HANDSHAKES { None } else { self.order.pop_front() };
        self.order.push_back((self.tasks.spawn(handshake), peer));
        oldest.map(|(task, peer)| {
            task.abort();
            peer
        })
    }
}

async fn serve(context: Arc<Context>, acceptor: Acceptor) {
    let mut closed = context.closed.clone();
    let mut handshakes = Handshakes::default();
    let mut live: JoinSet<()> = JoinSet::new();
    let mut next: Option<Admitted> = None;
    let mut rate = Bucket::new(ACCEPTS_BURST, ACCEPTS_PER_SECOND, std::time::Instant::now());
    let mut next_accept = Instant::now();
    let pause = Duration::from_secs(1) / ACCEPTS_PER_SECOND;
    loop {
        tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => break,
            Some(_) = live.join_next() => {
                // Also after a panic, of which there is none.
                context.taken.free();
                if let Some(admitted) = next.take() {
                    context.taken.take();
                    live.spawn(carry(context.clone(), admitted));
                }
            }
            Some(done) = handshakes.tasks.join_next() => match done {
                Ok(Ok(admitted)) if live.is_empty() => {
                    context.taken.take();
                    live.spawn(carry(context.clone(), admitted));
                }
                // The last link is gone and its owner is being told: a moment.
                Ok(Ok(admitted)) if context.taken.is_free() && next.is_none() => next = Some(admitted),
                Ok(Ok(admitted)) => {
                    // It knows the secret and waits for one write; no stranger takes its place.
                    handshakes.tasks.spawn(turn_away(admitted, context.spec.limits.handshake));
                }
                Ok(Err((reason, peer))) => context.refused(reason, peer),
                // One that had to make room, which was said then.
                Err(_) => {}
            },
            connection = async { sleep_until(next_accept).await; acceptor.accept().await } => {
                // Out of file descriptors and the like: pause, for the queue stays readable.
                let calm = rate.take(std::time::Instant::now()) && connection.is_ok();
                if !calm {
                    next_accept = Instant::now() + pause;
                }
                match connection {
                    Ok((raw, peer)) => {
                        if let Some(oldest) = handshakes.add(peer, greet(context.clone(), raw, peer)) {
                            context.refused(CloseReason::TooManyConnections, oldest);
                        }
                    }
                    Err(error) => tracing::warn!(at = ?context.spec.at, "cannot accept a connection: {error}"),
                }
            }
        }
    }
    // First the file, then the link: nobody finds a socket that no longer admits.
    drop(acceptor);
    handshakes.tasks.shutdown().await;
    context.live.close(CloseReason::Revoked);
    while live.join_next().await.is_some() {}
}

/// TLS where there is TLS, then the handshake, each under its deadline.
async fn greet(context: Arc<Context>, raw: Raw, peer: PeerInfo) -> Handshake {
    let LinkSpec { session, secret, limits, .. } = &context.spec;
    let stream = raw.open().await.map_err(|reason| (reason, peer))?;
    let mut reader = FrameReader::new(stream.reader, HANDSHAKE_FRAME);
    let mut writer = stream.writer;
    match timeout(limits.handshake, admit(&mut reader, &mut writer, *session, secret, limits.handshake)).await
    {
        Ok(Ok(())) => Ok(Admitted { reader, writer, peer }),
        Ok(Err(reason)) => Err((reason, peer)),
        Err(_) => Err((CloseReason::HandshakeDeadline, peer)),
    }
}

async fn turn_away(mut admitted: Admitted, deadline: Duration) -> Handshake {
    let _ = timeout(deadline, say(&mut admitted.writer, Code::Busy, deadline)).await;
    Err((CloseReason::Busy, admitted.peer))
}

/// One link, from the welcome until nothing of it is left.
async fn carry(context: Arc<Context>, admitted: Admitted) {
    let Admitted { reader, mut writer, peer } = admitted;
    let limits = &context.spec.limits;
    let answer = context.answer.clone();
    let attached = Link::attach(&context.node, Side::Host, answer, HOST_PLACES, limits).await;
    let (link, caller) = match attached {
        Ok(attached) => attached,
        Err(reason) => return context.refused(reason, peer),
    };
    let shared = link.shared().clone();
    context.live.set(Some(shared.clone()));
    if *context.closed.borrow() {
        shared.close(CloseReason::Revoked);
    }
    let up = LinkEvent::Up { signals: Arc::new(Downlink(caller)), peer };
    let heard = matches!(timeout(NODE_STEP, context.events.send(up)).await, Ok(Ok(())));
    if !heard {
        shared.close(CloseReason::OwnerGone);
    } else if let Err(reason) = say(&mut writer, Code::Welcome, limits.handshake).await {
        shared.close(reason);
    }
    let session = context.spec.session;
    tracing::info!(%session, ?peer, "link up");
    let reason = link.run(reader, writer).await;
    context.live.set(None);
    context.taken.free();
    if reason.is_hostile() {
        tracing::warn!(%session, ?peer, reason = reason.label(), "link down, the peer broke the protocol: {reason}");
    } else {
        tracing::info!(%session, ?peer, reason = reason.label(), "link down: {reason}");
    }
    // Waits for the owner as long as the listener is open: no `Down` is lost, and no link is made before it is heard.
    if heard {
        let _ = context.events.send(LinkEvent::Down { reason }).await;
    }
}

impl Context {
    fn refused(&self, reason: CloseReason, peer: PeerInfo) {
        // At most as often as connections are accepted.
        tracing::debug!(session = %self.spec.session, ?peer, reason = reason.label(), "connection refused: {reason}");
        let told =
            self.refusals.lock().unwrap_or_else(PoisonError::into_inner).take(std::time::Instant::now());
        // Half of the channel is kept for `Up` and `Down`, so that strangers cannot crowd out the agent.
        if told && self.events.capacity() > self.events.max_capacity() / 2 {
            let _ = self.events.try_send(LinkEvent::Refused { reason, peer });
        }
    }
}
