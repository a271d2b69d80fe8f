//! What the tests of the link share: a host with a recording handler, both carriers, and a peer that speaks the wire
//! by hand, without any of the crate's own code.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod hostile;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_link::{
    Certificate, CloseReason, ConnectError, LinkEvent, LinkLimits, LinkSecret, LinkSpec, Links, ListenAt,
    Listener, PeerInfo, Target, Uplink, connect_with,
};
use choir_messages::id::{LeaseId, MessageId, RequestId, SessionId};
use choir_messages::secret::Secret;
use choir_messages::wire::{
    BoxFuture, ControlPlane, Envelope, LinkError, Reply, Request, Signal, SignalAck, SignalHandler,
    SignalRequest, SignalSender, TraceContext, VerbHandler, Verdict, WIRE_VERSION,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

/// The most any test waits for anything: generous, for it only matters when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain for: {what}"))
}

/// Counts the handlers that are running: down again when one is dropped.
struct Running(Arc<Host>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// A handler of verbs that does what the request says.
#[derive(Default)]
pub struct Host {
    pub running: AtomicUsize,
    pub started: AtomicUsize,
    pub seen: Mutex<Vec<SessionId>>,
    changed: Notify,
}

pub struct Verbs(pub Arc<Host>);

impl Host {
    /// Waits until this many handlers are running.
    pub async fn running(&self, count: usize) {
        soon("running handlers", async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if self.running.load(Ordering::SeqCst) == count {
                    return;
                }
                changed.await;
            }
        })
        .await;
    }
}

impl VerbHandler for Verbs {
    fn handle(&self, envelope: Envelope) -> BoxFuture<'_, Result<Reply, Verdict>> {
        let host = self.0.clone();
        Box::pin(async move {
            host.running.fetch_add(1, Ordering::SeqCst);
            host.started.fetch_add(1, Ordering::SeqCst);
            host.seen.lock().unwrap().push(envelope.session);
            host.changed.notify_waiters();
            let _running = Running(host.clone());
            match envelope.body {
                Request::FetchDynamicConfig { current } => {
                    Ok(Reply::Config { version: current + 1, settings: None })
                }
                Request::GetSecrets { names } => {
                    let size = names.iter().map(|n| n.parse::<usize>().unwrap_or(0)).sum::<usize>();
                    let values = [("big".to_owned(), Secret::new("x".repeat(size)))].into();
                    Ok(Reply::Secrets { values })
                }
                Request::RequestApproval { .. } => std::future::pending().await,
                Request::TerminateSelf { reason } if reason == "hang" => std::future::pending().await,
                Request::TerminateSelf { reason } if reason == "panic" => panic!("as asked"),
                Request::TerminateSelf { reason } if reason == "revoke" => Err(Verdict::LeaseRevoked),
                _ => Ok(Reply::Done),
            }
        })
    }
}

/// A handler of signals: answers with the length of the text, or does what the text says.
pub struct Agent;

impl SignalHandler for Agent {
    fn handle(&self, request: SignalRequest) -> BoxFuture<'_, SignalAck> {
        Box::pin(async move {
            match request.signal {
                Signal::UserMessage { text, .. } if text == "hang" => std::future::pending().await,
                Signal::UserMessage { text, .. } if text == "panic" => panic!("as asked"),
                Signal::UserMessage { text, .. } => SignalAck::Recorded { rev: text.len() as u64 },
                _ => SignalAck::Noted,
            }
        })
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Carrier {
    Unix,
    Tls,
}

/// A certificate made for one test.
pub fn certificate() -> Certificate {
    let made = rcgen::generate_simple_self_signed(vec!["choird".to_owned()]).unwrap();
    Certificate::new(made.cert.der(), &made.signing_key.serialize_der()).unwrap()
}

/// One session of a host.
pub struct Place {
    pub listener: Option<Listener>,
    pub target: Target,
    pub secret: LinkSecret,
    pub session: SessionId,
    pub host: Arc<Host>,
    pub events: mpsc::Receiver<LinkEvent>,
    pub limits: LinkLimits,
    _folder: tempfile::TempDir,
}

pub async fn links() -> Links {
    Links::start().await.unwrap()
}

impl Place {
    pub async fn open(links: &Links, carrier: Carrier) -> Self {
        Self::with(links, carrier, LinkLimits::default()).await
    }

    pub async fn with(links: &Links, carrier: Carrier, limits: LinkLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let session = SessionId::fresh();
        let secret = LinkSecret::fresh().unwrap();
        let path = folder.path().join("run/link.sock");
        let certificate = certificate();
        let digest = certificate.digest();
        let at = match carrier {
            Carrier::Unix => ListenAt::Unix(path.clone()),
            Carrier::Tls => ListenAt::Tcp { addr: ([127, 0, 0, 1], 0).into(), certificate },
        };
        let spec = LinkSpec { session, secret: secret.clone(), at, limits: limits.clone() };
        let host = Arc::new(Host::default());
        let (sender, events) = mpsc::channel(16);
        let listener = links.listen(spec, Arc::new(Verbs(host.clone())), sender).await.unwrap();
        let target = match listener.addr() {
            None => Target::Unix(path),
            Some(addr) => Target::Tcp { addr, certificate: digest },
        };
        Self { listener: Some(listener), target, secret, session, host, events, limits, _folder: folder }
    }

    pub fn path(&self) -> PathBuf {
        match &self.target {
            Target::Unix(path) => path.clone(),
            Target::Tcp { .. } => panic!("not a Unix socket"),
        }
    }

    pub async fn connect(&self) -> Result<Uplink, ConnectError> {
        self.connect_as(&self.secret).await
    }

    pub async fn connect_as(&self, secret: &LinkSecret) -> Result<Uplink, ConnectError> {
        connect_with(&self.target, secret, self.session, Arc::new(Agent), PATIENCE, &self.limits).await
    }

    /// The next event.
    pub async fn event(&mut self) -> LinkEvent {
        soon("an event", self.events.recv()).await.expect("the listener lives")
    }

    pub async fn up(&mut self) -> Arc<dyn SignalSender> {
        loop {
            match self.event().await {
                LinkEvent::Up { signals, .. } => return signals,
                LinkEvent::Refused { .. } => {}
                LinkEvent::Down { reason } => panic!("down: {reason}"),
            }
        }
    }

    pub async fn down(&mut self) -> CloseReason {
        loop {
            match self.event().await {
                LinkEvent::Down { reason } => return reason,
                LinkEvent::Refused { .. } => {}
                LinkEvent::Up { .. } => panic!("up"),
            }
        }
    }

    pub async fn refused(&mut self) -> (CloseReason, PeerInfo) {
        match self.event().await {
            LinkEvent::Refused { reason, peer } => (reason, peer),
            other => panic!("not a refusal: {other:?}"),
        }
    }

    pub fn ask(&self, body: Request) -> Envelope {
        Envelope {
            version: WIRE_VERSION,
            request: RequestId::fresh(),
            session: self.session,
            lease: LeaseId::fresh(),
            generation: 1,
            trace: TraceContext::default(),
            body,
        }
    }

    /// A call that must be answered.
    pub async fn works(&self, uplink: &Uplink) {
        let answer = uplink.call(self.ask(Request::FetchDynamicConfig { current: 41 }), PATIENCE).await;
        assert!(matches!(answer, Ok(Reply::Config { version: 42, .. })), "{answer:?}");
    }
}

pub fn ended(reason: &str) -> Request {
    Request::TerminateSelf { reason: reason.to_owned() }
}

pub fn message(text: &str) -> SignalRequest {
    SignalRequest {
        version: WIRE_VERSION,
        lease: LeaseId::fresh(),
        generation: 1,
        trace: TraceContext::default(),
        signal: Signal::UserMessage { message: MessageId::fresh(), text: text.to_owned() },
    }
}

pub fn is_down<T: std::fmt::Debug>(answer: &Result<T, LinkError>) -> bool {
    matches!(answer, Err(LinkError::Down))
}

/// The most memory this process has ever had resident, in bytes.
pub fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}
