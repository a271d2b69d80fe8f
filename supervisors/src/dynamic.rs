//! Children that come and go: one actor per agent, per core job, per running tool call.

use crate::exit::Exit;
use crate::limits::{DYNAMIC_REQUESTS, DYNAMIC_WAIT};
use crate::lock;
use crate::node::{Node, TreeNode};
use crate::spec::{ChildSpec, SpecError};
use crate::supervisor::SupMsg;
use ractor::ActorRef;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{Instant, timeout_at};

/// Why a dynamic supervisor did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DynamicError {
    /// The child spec cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A child of that name is there.
    #[error("\"{supervisor}\" has a child named \"{name}\" already")]
    AlreadyPresent {
        /// The supervisor's path.
        supervisor: String,
        /// The name.
        name: String,
    },
    /// The supervisor has as many children as it may have.
    #[error(
        "\"{supervisor}\" has {limit} children already, the most it may have; try again when some have ended"
    )]
    Full {
        /// The supervisor's path.
        supervisor: String,
        /// The most it may have.
        limit: usize,
    },
    /// The child did not start; it is not retried.
    #[error("the child did not start: it {0}")]
    NotStarted(Exit),
    /// No child of that name.
    #[error("there is no child named \"{0}\"")]
    NotFound(String),
    /// The supervisor is not running, is ending, or has more requests than it can take in time.
    #[error("the supervisor is not available; it is being restarted, has ended, or is flooded with requests")]
    Unavailable,
}

/// Starts and terminates the children of one dynamic supervisor. Like an address it survives the supervisor's restarts;
/// the children do not.
#[derive(Clone)]
pub struct DynamicHandle {
    door: Arc<Door>,
}

/// A child that was started.
#[derive(Debug, Clone)]
pub struct ChildRef {
    name: String,
    path: String,
    ended: watch::Receiver<Option<Exit>>,
}

/// Where requests find the living incarnation of a dynamic supervisor.
pub(crate) struct Door {
    name: String,
    open: watch::Sender<Doorway>,
    turns: Semaphore,
    node: Mutex<Weak<Node>>,
}

#[derive(Clone)]
enum Doorway {
    Waiting,
    Open(ActorRef<SupMsg>),
    Closed,
}

impl DynamicHandle {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            door: Arc::new(Door {
                name: name.to_owned(),
                open: watch::Sender::new(Doorway::Waiting),
                turns: Semaphore::new(DYNAMIC_REQUESTS),
                node: Mutex::new(Weak::new()),
            }),
        }
    }

    pub(crate) fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }

    /// Starts a child and returns when it is up. A first start that fails is not retried; a child that was up is
    /// restarted as its spec says. Waits [`DYNAMIC_WAIT`] at most for the supervisor, and then for the start as long as
    /// the spec allows.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<ChildRef, DynamicError> {
        spec.check()?;
        self.ask(|reply| SupMsg::StartChild { spec: Box::new(spec), reply }).await?
    }

    /// Stops a child as its spec says and forgets it; returns when it is gone.
    pub async fn terminate_child(&self, name: &str) -> Result<(), DynamicError> {
        let name = name.to_owned();
        self.ask(|reply| SupMsg::TerminateChild { name, reply }).await?
    }

    /// The children now, as the live tree shows them.
    #[must_use]
    pub fn which_children(&self) -> Vec<TreeNode> {
        self.nodes().iter().map(|child| child.view()).collect()
    }

    /// How many children there are now.
    #[must_use]
    pub fn count(&self) -> usize {
        self.nodes().len()
    }

    /// The supervisor's path; before it has a place in a tree, its name.
    #[must_use]
    pub fn path(&self) -> String {
        lock(&self.door.node).upgrade().map_or_else(|| self.door.name.clone(), |node| node.path.to_string())
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.door.node).upgrade().map(|node| node.children()).unwrap_or_default()
    }

    async fn ask<R>(&self, make: impl FnOnce(oneshot::Sender<R>) -> SupMsg) -> Result<R, DynamicError> {
        let deadline = Instant::now() + DYNAMIC_WAIT;
        let unavailable = |_| DynamicError::Unavailable;
        // Held until the answer is there, so that requests in flight are bounded.
        let _turn = timeout_at(deadline, self.door.turns.acquire())
            .await
            .map_err(|_| DynamicError::Unavailable)?
            .map_err(|_| DynamicError::Unavailable)?;
        let mut open = self.door.open.subscribe();
        let doorway = timeout_at(deadline, open.wait_for(|doorway| !matches!(doorway, Doorway::Waiting)))
            .await
            .map_err(|_| DynamicError::Unavailable)?
            .map_err(|_| DynamicError::Unavailable)?
            .clone();
        let Doorway::Open(supervisor) = doorway else { return Err(DynamicError::Unavailable) };
        let (reply, answer) = oneshot::channel();
        supervisor.cast(make(reply)).map_err(|_| DynamicError::Unavailable)?;
        answer.await.map_err(unavailable)
    }
}

impl std::fmt::Debug for DynamicHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DynamicHandle({})", self.path())
    }
}

impl ChildRef {
    pub(crate) fn new(node: &Node, ended: watch::Receiver<Option<Exit>>) -> Self {
        Self { name: node.name.clone(), path: node.path.to_string(), ended }
    }

    /// The child's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its path in the live tree.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Waits until the child has ended for good and is gone, restarts included.
    pub async fn ended(&self) -> Exit {
        let mut ended = self.ended.clone();
        // Without a word the supervisor itself was killed, and the child with it.
        ended.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone()).unwrap_or(Exit::Killed)
    }
}

impl Door {
    pub(crate) fn place(&self, node: &Arc<Node>) {
        *lock(&self.node) = Arc::downgrade(node);
    }

    pub(crate) fn open(&self, supervisor: ActorRef<SupMsg>) {
        self.open.send_replace(Doorway::Open(supervisor));
    }

    /// The incarnation is ending; another may follow.
    pub(crate) fn shut(&self) {
        self.open.send_if_modified(|doorway| {
            let was_open = matches!(doorway, Doorway::Open(_));
            if was_open {
                *doorway = Doorway::Waiting;
            }
            was_open
        });
    }

    /// None will follow.
    pub(crate) fn close(&self) {
        self.open.send_replace(Doorway::Closed);
    }
}
