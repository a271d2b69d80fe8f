//! The gate as an actor: owns one sandbox's link. It opens the socket before the sandbox starts, revokes it before the
//! sandbox is killed, and is the one through whom signals go down.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use choir_link::{LinkEvent, LinkLimits, LinkSecret, LinkSpec, Listener};
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_messages::wire::{LinkError, Signal, SignalAck, SignalRequest, SignalSender, WIRE_VERSION};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};
use tokio::sync::mpsc;

use super::Grant;
use super::core::Attempt;
use super::parts::Shared;
use super::pusher_actor::InboxMsg;
use super::session_mail::SessionMsg;
use super::verbs::Gate;
use super::watchdog_actor::WatchdogMsg;
use crate::limits;

/// The socket's name in its directory.
pub(super) const SOCKET: &str = "link.sock";

/// Link events waiting for this actor; they come one or two per link.
const LINK_EVENTS: usize = 8;

/// Time the link has to close in order.
const CLOSE: Duration = Duration::from_secs(10);

/// Where signals to one sandbox go.
#[derive(Clone)]
pub(crate) struct SignalPort {
    pub(crate) grant: Arc<Grant>,
    pub(crate) signals: Arc<dyn SignalSender>,
}

impl SignalPort {
    /// Sends one signal under the sandbox's lease.
    pub(crate) async fn send(&self, signal: Signal, deadline: Duration) -> Result<SignalAck, LinkError> {
        let request = SignalRequest {
            version: WIRE_VERSION,
            lease: self.grant.lease,
            generation: self.grant.generation,
            trace: crate::telemetry::current_trace(),
            signal,
        };
        self.signals.signal(request, deadline).await
    }
}

/// What the gate is told.
pub(crate) enum GateMsg {
    /// Open a socket for this sandbox; answered with its address where the system chose one.
    Open { grant: Arc<Grant>, secret: LinkSecret, reply: ReplyTo<Result<Option<SocketAddr>, String>> },
    /// Revoke it.
    Close { attempt: Attempt },
    /// Revoke whatever is open; answered once nothing is.
    CloseAll { reply: ReplyTo<()> },
    /// The link's own news.
    Link { attempt: Attempt, event: LinkEvent },
    /// The hello was answered in full.
    Greeted { attempt: Attempt },
    /// Send a signal; nobody waits for its acknowledgement here.
    Signal { attempt: Attempt, signal: Signal },
    /// Send a signal to whichever sandbox is linked, and say what came of it.
    Ask { signal: Signal, reply: ReplyTo<Result<SignalAck, LinkError>> },
    /// The settings changed.
    ConfigChanged { version: u64 },
    /// A pipe ended.
    Done,
}

impl Mail for GateMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::CloseAll { .. } => "close_all",
            Self::Link { .. } => "link",
            Self::Greeted { .. } => "greeted",
            Self::Signal { .. } => "signal",
            Self::Ask { .. } => "ask",
            Self::ConfigChanged { .. } => "config_changed",
            Self::Done => "done",
        }
    }
}

struct Open {
    grant: Arc<Grant>,
    listener: Listener,
    revoked: Arc<AtomicBool>,
    port: Option<SignalPort>,
}

struct GateActor {
    shared: Arc<Shared>,
    open: Option<Open>,
}

pub(super) fn child_spec(slot: Slot<GateMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |cx| {
        let shared = Arc::clone(&shared);
        let restarted = cx.previous().is_some();
        async move {
            if restarted && let Some((attempt, _)) = super::sandbox::running(&shared) {
                // The socket went with the incarnation before, and its agent can never connect again.
                let reason = "its gate was restarted".to_owned();
                shared.session.send(SessionMsg::LinkDown { attempt, reason, for_good: true }).await?;
            }
            Ok(GateActor { shared, open: None })
        }
    })
}

impl Actor for GateActor {
    type Msg = GateMsg;

    async fn handle(&mut self, msg: GateMsg, cx: &mut Context<GateMsg>) -> Result<(), Failure> {
        match msg {
            GateMsg::Open { grant, secret, reply } => {
                self.close().await;
                reply.send(self.open(grant, secret, cx).await);
            }
            GateMsg::Close { attempt } => {
                if self.open.as_ref().is_some_and(|open| open.grant.attempt == attempt) {
                    self.close().await;
                }
            }
            GateMsg::CloseAll { reply } => {
                self.close().await;
                reply.send(());
            }
            GateMsg::Link { attempt, event } => self.link(attempt, event).await?,
            GateMsg::Greeted { attempt } => {
                if let Some(port) = self.port(attempt) {
                    self.shared.session.send(SessionMsg::Ready { attempt }).await?;
                    self.shared.inbox.send(InboxMsg::Up(port)).await?;
                }
            }
            GateMsg::Signal { attempt, signal } => {
                if let Some(port) = self.port(attempt) {
                    self.send_off(port, signal, cx)?;
                }
            }
            GateMsg::Ask { signal, reply } => match self.open.as_ref().and_then(|open| open.port.clone()) {
                None => reply.send(Err(LinkError::Down)),
                Some(port) => {
                    let ask = async move { reply.send(port.send(signal, limits::SIGNAL_DEADLINE).await) };
                    cx.pipe_to_self(ask, |()| GateMsg::Done)?;
                }
            },
            GateMsg::ConfigChanged { version } => {
                if let Some(port) = self.open.as_ref().and_then(|open| open.port.clone()) {
                    self.send_off(port, Signal::ConfigChanged { version }, cx)?;
                }
            }
            GateMsg::Done => {}
        }
        Ok(())
    }

    async fn stopping(&mut self, _cx: &mut Context<GateMsg>) {
        self.close().await;
    }
}

impl GateActor {
    fn port(&self, attempt: Attempt) -> Option<SignalPort> {
        self.open.as_ref().filter(|open| open.grant.attempt == attempt)?.port.clone()
    }

    async fn open(
        &mut self,
        grant: Arc<Grant>,
        secret: LinkSecret,
        cx: &mut Context<GateMsg>,
    ) -> Result<Option<SocketAddr>, String> {
        let links = self.shared.host.links.borrow().clone();
        let links = links.ok_or("the link's node is not up yet")?;
        let socket = self.shared.host.state.link_dir(&self.shared.agent).join(SOCKET);
        let revoked = Arc::new(AtomicBool::new(false));
        let gate = Gate {
            shared: Arc::clone(&self.shared),
            grant: Arc::clone(&grant),
            revoked: Arc::clone(&revoked),
        };
        let spec = LinkSpec {
            session: grant.session,
            secret,
            at: self.shared.host.carrier.listen_at(socket),
            limits: LinkLimits::default(),
        };
        let (events, mut news) = mpsc::channel(LINK_EVENTS);
        let listener = links.listen(spec, Arc::new(gate), events).await.map_err(|e| e.to_string())?;
        let (address, attempt) = (cx.address(), grant.attempt);
        let forward = async move {
            while let Some(event) = news.recv().await {
                if address.send(GateMsg::Link { attempt, event }).await.is_err() {
                    break;
                }
            }
        };
        cx.pipe_to_self(forward, |()| GateMsg::Done).map_err(|e| e.to_string())?;
        let at = listener.addr();
        self.open = Some(Open { grant, listener, revoked, port: None });
        Ok(at)
    }

    /// Revokes the lease at the gate first, then takes the link away.
    async fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        open.revoked.store(true, Ordering::Release);
        // Hints; both actors look again by themselves.
        let _ = self.shared.watchdog.try_send(WatchdogMsg::Forget);
        let _ = self.shared.inbox.send(InboxMsg::Down).await;
        // In a task of its own: the listener waits for its last event to be taken, and this actor is who takes it.
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CLOSE, open.listener.close()).await;
        });
    }

    async fn link(&mut self, attempt: Attempt, event: LinkEvent) -> Result<(), Failure> {
        let Some(open) = self.open.as_mut().filter(|open| open.grant.attempt == attempt) else {
            return Ok(());
        };
        match event {
            LinkEvent::Up { signals, peer } => {
                tracing::info!(agent = %self.shared.agent, ?peer, "the agent's link is up");
                open.port = Some(SignalPort { grant: Arc::clone(&open.grant), signals });
                self.shared.watchdog.send(WatchdogMsg::Watch(attempt)).await?;
                self.shared.session.send(SessionMsg::LinkUp { attempt }).await?;
            }
            LinkEvent::Down { reason } => {
                open.port = None;
                self.shared.host.metrics.link_closed(reason.label());
                self.shared.inbox.send(InboxMsg::Down).await?;
                let for_good = reason.is_hostile();
                let reason = reason.to_string();
                self.shared.session.send(SessionMsg::LinkDown { attempt, reason, for_good }).await?;
            }
            LinkEvent::Refused { reason, peer } => {
                tracing::warn!(agent = %self.shared.agent, ?peer, %reason, "a connection to the agent's socket was refused");
            }
        }
        Ok(())
    }

    fn send_off(&self, port: SignalPort, signal: Signal, cx: &mut Context<GateMsg>) -> Result<(), Failure> {
        let agent = self.shared.agent.clone();
        let send = async move {
            if let Err(error) = port.send(signal, limits::SIGNAL_DEADLINE).await {
                tracing::warn!(%agent, %error, "a signal was not acknowledged");
            }
        };
        cx.pipe_to_self(send, |()| GateMsg::Done)?;
        Ok(())
    }
}
