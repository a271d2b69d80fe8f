//! The local cluster node. ractor's `NodeServer` cannot be without a TCP listener; this one is started on loopback and
//! its listener is ended before the first link, so that no stranger ever reaches a session without a guard. Towards
//! the node the guard plays a peer whose cookie is right; the cookie is random and never leaves the process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ractor::{Actor, ActorId, ActorRef, ActorStatus};
use ractor_cluster::node::{NodeConnectionMode, NodeServerSessionInformation};
use ractor_cluster::{
    BoxRead, BoxWrite, ClusterBidiStream, NodeEventSubscription, NodeServer, NodeServerMessage,
    NodeSessionMessage,
};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio::sync::watch;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::frames::FrameReader;
use crate::limits::{FRAME, NODE_STEP, PIPE_BYTES};
use crate::port::GateMessage;
use crate::reason::CloseReason;
use crate::secret::{nonce, random_text};
use crate::wire::GATE;
use crate::wire::local::{self, NodeSays};

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No random bytes for its cookie.
    #[error(transparent)]
    Secret(#[from] crate::secret::SecretError),
    /// ractor refused.
    #[error("the cluster node did not start: {0}; it needs a free TCP port on 127.0.0.1 for a moment")]
    Node(String),
    /// The listener that ractor insists on could not be ended.
    #[error("the cluster node's own listener did not end; starting without it is not possible")]
    Listener,
}

/// Where a session of the node stands.
#[derive(Clone)]
enum Phase {
    Opening,
    Opened(ActorRef<NodeSessionMessage>),
    Ready(ActorRef<NodeSessionMessage>),
    Gone,
}

type Watches = Arc<Mutex<HashMap<String, watch::Sender<Phase>>>>;

fn note(watches: &Watches, session: &NodeServerSessionInformation, phase: Phase) {
    let watches = watches.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watch) = watches.get(&session.peer_addr) {
        watch.send_replace(phase);
    }
}

struct Events(Watches);

impl NodeEventSubscription for Events {
    fn node_session_opened(&self, session: NodeServerSessionInformation) {
        let actor = session.actor.clone();
        note(&self.0, &session, Phase::Opened(actor));
    }

    fn node_session_disconnected(&self, session: NodeServerSessionInformation) {
        note(&self.0, &session, Phase::Gone);
    }

    fn node_session_authenticated(&self, _: NodeServerSessionInformation) {}

    fn node_session_ready(&self, session: NodeServerSessionInformation) {
        let actor = session.actor.clone();
        note(&self.0, &session, Phase::Ready(actor));
    }
}

/// The node's end of the two pipes. Two streams, each used one way, so that dropping an end is seen at the other.
struct Pipe {
    read: DuplexStream,
    write: DuplexStream,
    label: String,
}

impl ClusterBidiStream for Pipe {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        (Box::new(self.read), Box::new(self.write))
    }

    fn peer_label(&self) -> Option<String> {
        Some(self.label.clone())
    }
}

/// A node without a listener. Dropping the last handle ends it and every link.
pub(crate) struct Node {
    server: ActorRef<NodeServerMessage>,
    cookie: Zeroizing<String>,
    watches: Watches,
    next: AtomicU64,
}

impl Node {
    pub(crate) async fn start() -> Result<Self, StartError> {
        let cookie = random_text()?;
        let name = random_text()?;
        let server = NodeServer::new(
            0,
            cookie.as_str().to_owned(),
            "choir".to_owned(),
            name.as_str().to_owned(),
            None,
            Some(NodeConnectionMode::Isolated),
        )
        .with_listen_addr(IpAddr::V4(Ipv4Addr::LOCALHOST))
        .with_max_inbound_frame_size(FRAME as u64);
        let (server, _) =
            Actor::spawn(None, server, ()).await.map_err(|e| StartError::Node(e.to_string()))?;
        let watches = Watches::default();
        let node = Self { server, cookie, watches, next: AtomicU64::new(1) };
        node.end_listener().await?;
        let subscription =
            NodeServerMessage::SubscribeToEvents { id: "choir".to_owned(), subscription: node.events() };
        node.server.cast(subscription).map_err(|e| StartError::Node(e.to_string()))?;
        Ok(node)
    }

    fn events(&self) -> Box<dyn NodeEventSubscription> {
        Box::new(Events(self.watches.clone()))
    }

    /// Ends the node's listener. Unlinked first, for a node starts its listener again when it hears of its end; killed
    /// rather than stopped, for it waits in `accept`. Before the first link the listener is the node's only child.
    async fn end_listener(&self) -> Result<(), StartError> {
        let children = self.server.get_cell().get_children();
        for child in &children {
            child.unlink(self.server.get_cell());
            child.kill();
        }
        let ended = async {
            while children.iter().any(|child| child.get_status() != ActorStatus::Stopped) {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        match (children.is_empty(), timeout(NODE_STEP, ended).await) {
            (false, Ok(())) => Ok(()),
            _ => Err(StartError::Listener),
        }
    }

    /// Whether the node runs.
    pub(crate) fn is_alive(&self) -> bool {
        self.server.get_status() == ActorStatus::Running
    }

    /// Gives the node a new session and goes through its handshake. Afterwards the node has one actor that stands for
    /// the peer's gate.
    pub(crate) async fn attach(&self) -> Result<Session, CloseReason> {
        timeout(NODE_STEP, self.attaching()).await.unwrap_or(Err(CloseReason::NodeStalled))
    }

    async fn attaching(&self) -> Result<Session, CloseReason> {
        let label = format!("link-{}", self.next.fetch_add(1, Ordering::Relaxed));
        let (to_node, node_reads) = tokio::io::duplex(PIPE_BYTES);
        let (node_writes, from_node) = tokio::io::duplex(PIPE_BYTES);
        let (sender, phase) = watch::channel(Phase::Opening);
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).insert(label.clone(), sender);
        let mut session = Session {
            to_node,
            from_node: FrameReader::new(from_node, FRAME),
            end: SessionEnd { phase, label: label.clone(), watches: self.watches.clone() },
        };
        let stream = Box::new(Pipe { read: node_reads, write: node_writes, label: label.clone() });
        self.server
            .cast(NodeServerMessage::ConnectionOpenedExternal { stream, is_server: true })
            .map_err(|_| CloseReason::NodeGone)?;
        session.authenticate(&label, &self.cookie).await?;
        session.to_node.write_all(&local::announce()).await?;
        let phase = session
            .end
            .phase
            .wait_for(|phase| matches!(phase, Phase::Ready(_) | Phase::Gone))
            .await
            .map_err(|_| CloseReason::NodeGone)?
            .clone();
        match phase {
            Phase::Ready(_) => Ok(session),
            _ => Err(CloseReason::NodeGone),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// One link's session in the node.
pub(crate) struct Session {
    pub(crate) to_node: DuplexStream,
    pub(crate) from_node: FrameReader<DuplexStream>,
    pub(crate) end: SessionEnd,
}

impl Session {
    async fn authenticate(&mut self, label: &str, cookie: &str) -> Result<(), CloseReason> {
        self.to_node.write_all(&local::name(label)).await?;
        loop {
            let frame = self.from_node.take(NODE_STEP).await?;
            match local::node_says(&frame).map_err(|_| CloseReason::NodeGone)? {
                NodeSays::Status(0 | 1) | NodeSays::Other => {}
                NodeSays::Status(_) => return Err(CloseReason::NodeGone),
                NodeSays::Challenge(challenge) => {
                    let random = nonce().map_err(|_| CloseReason::NodeGone)?;
                    let own = random.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
                    self.to_node.write_all(&local::challenge_reply(cookie, challenge, own)).await?;
                }
                // The node is in this process; its proof proves nothing that is not known.
                NodeSays::Ack(_) => return Ok(()),
            }
        }
    }

    /// The node's actor that stands for the peer's gate.
    pub(crate) fn stand_in(&self) -> Option<ActorRef<GateMessage>> {
        let Phase::Ready(actor) = &*self.end.phase.borrow() else { return None };
        actor
            .get_cell()
            .get_children()
            .into_iter()
            .find(|child| matches!(child.get_id(), ActorId::Remote { pid: GATE, .. }))
            .map(Into::into)
    }
}

/// What is left of a session when its pipes are dropped: waiting until the node has let it go.
pub(crate) struct SessionEnd {
    phase: watch::Receiver<Phase>,
    label: String,
    watches: Watches,
}

impl SessionEnd {
    /// Waits until the node has let the session go; a session that does not go by itself is killed.
    pub(crate) async fn gone(&mut self) {
        if timeout(NODE_STEP, self.phase.wait_for(|phase| matches!(phase, Phase::Gone))).await.is_ok() {
            return;
        }
        let actor = match &*self.phase.borrow() {
            Phase::Opened(actor) | Phase::Ready(actor) => Some(actor.clone()),
            Phase::Opening | Phase::Gone => None,
        };
        if let Some(actor) = actor {
            tracing::warn!(link = %self.label, "the node did not let a session go in time; it was killed");
            actor.kill();
            let _ = timeout(NODE_STEP, self.phase.wait_for(|phase| matches!(phase, Phase::Gone))).await;
        }
    }
}

impl Drop for SessionEnd {
    fn drop(&mut self) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.label);
    }
}
