//! The live tree: one node a place, kept up to date by its supervisor and read by operators without asking anyone.

use crate::core::{ChildRules, Rules};
use crate::dynamic::Door;
use crate::exit::Exit;
use crate::incarnation::{Census, Incarnation, Token};
use crate::lock;
use crate::shell::Launch;
use crate::spec::{AutoShutdown, Body, ChildSpec, Restart, Shutdown, Strategy, SupervisorSpec};
use crate::supervisor;
use crate::tree::Universe;
use futures_util::future::{BoxFuture, FutureExt as _};
use ractor::ActorCell;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A place in the tree as an operator sees it; `choirctl tree --json` prints exactly this.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreeNode {
    /// Names from the root, joined by `/`.
    pub path: String,
    /// The last of them.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// What it is doing.
    pub state: NodeState,
    /// How many incarnations there have been.
    pub generation: u64,
    /// When it is restarted.
    pub restart: Restart,
    /// How often it was restarted after ending by itself. Restarts along with a sibling only raise the generation.
    pub restarts: u64,
    /// Milliseconds in this state.
    pub state_ms: u64,
    /// A worker's mailbox.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mailbox: Option<MailboxView>,
    /// The message a worker has in hand.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub current: Option<Current>,
    /// A supervisor's restarts against its limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub intensity: Option<IntensityView>,
    /// How the incarnation before this one ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_exit: Option<Exit>,
    /// In start order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub children: Vec<TreeNode>,
}

/// What a place holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// An actor.
    Worker,
    /// A supervisor.
    Supervisor,
    /// A supervisor whose children come and go.
    Dynamic,
}

/// What a place is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Not running, waiting for its turn to start.
    Down,
    /// Its factory is running, or a supervisor's children are.
    Starting,
    /// Up.
    Running,
    /// Told to stop.
    Stopping,
    /// Waiting before a restart.
    BackingOff,
    /// Ended for good.
    Ended,
}

/// A worker's mailbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailboxView {
    /// Messages waiting.
    pub depth: usize,
    /// The most that may wait.
    pub capacity: usize,
    /// Senders waiting for room.
    pub waiting_senders: usize,
    /// How long the oldest message has waited, in milliseconds.
    pub oldest_ms: Option<u64>,
}

/// The message in hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// Its label.
    pub message: String,
    /// Since when, in milliseconds.
    pub for_ms: u64,
}

/// A supervisor's restarts against its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntensityView {
    /// Whom a failing child takes along.
    pub strategy: Strategy,
    /// Restarts within the period that ends now.
    pub recent: usize,
    /// Restarts allowed.
    pub restarts: u32,
    /// The period in milliseconds.
    pub within_ms: u64,
}

/// One place in the tree.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) path: Arc<str>,
    pub(crate) rules: ChildRules,
    shutdown: Shutdown,
    stuck_after: Option<Duration>,
    start_within: Duration,
    pub(crate) body: NodeBody,
    status: Mutex<Status>,
    children: Mutex<Vec<Arc<Node>>>,
}

pub(crate) enum NodeBody {
    Worker(Arc<dyn Launch>),
    Supervisor { rules: Rules, door: Option<Arc<Door>> },
}

struct Status {
    state: NodeState,
    since: Instant,
    generation: u64,
    restarts: u64,
    last_exit: Option<Exit>,
    incarnation: Option<Arc<Incarnation>>,
    /// When a supervisor's recent restarts happened.
    recent: Vec<Instant>,
}

/// A start that got as far as a running task.
pub(crate) struct Launched {
    pub(crate) task: JoinHandle<()>,
    /// For a supervisor: resolves when its children are up.
    pub(crate) ready: Option<oneshot::Receiver<()>>,
}

impl Node {
    /// The place for this child below `above`, and the places below it.
    pub(crate) fn plant(spec: ChildSpec, above: Option<&str>) -> Arc<Self> {
        let path: Arc<str> = match above {
            Some(above) => format!("{above}/{}", spec.name).into(),
            None => spec.name.as_str().into(),
        };
        let rules =
            ChildRules { restart: spec.restart, backoff: spec.backoff, significant: spec.significant };
        let (body, children) = match spec.body {
            Body::Worker(worker) => {
                worker.place(&path);
                (NodeBody::Worker(worker), Vec::new())
            }
            Body::Supervisor(inner) => {
                let SupervisorSpec { strategy, intensity, auto_shutdown, children, .. } = inner;
                let children: Vec<_> =
                    children.into_iter().map(|child| Self::plant(child, Some(&path))).collect();
                let rules = Rules {
                    strategy,
                    intensity,
                    auto_shutdown,
                    dynamic: false,
                    max_children: children.len(),
                };
                (NodeBody::Supervisor { rules, door: None }, children)
            }
            Body::Dynamic(inner, door) => {
                let rules = Rules {
                    strategy: Strategy::OneForOne,
                    intensity: inner.intensity,
                    auto_shutdown: AutoShutdown::Never,
                    dynamic: true,
                    max_children: inner.max_children,
                };
                (NodeBody::Supervisor { rules, door: Some(door) }, Vec::new())
            }
        };
        let node = Arc::new(Self {
            name: spec.name,
            path,
            rules,
            shutdown: spec.shutdown,
            stuck_after: spec.stuck_after,
            start_within: spec.start_within,
            body,
            status: Mutex::new(Status {
                state: NodeState::Down,
                since: Instant::now(),
                generation: 0,
                restarts: 0,
                last_exit: None,
                incarnation: None,
                recent: Vec::new(),
            }),
            children: Mutex::new(children),
        });
        if let NodeBody::Supervisor { door: Some(door), .. } = &node.body {
            door.place(&node);
        }
        node
    }

    pub(crate) fn launch(
        self: &Arc<Self>,
        incarnation: Arc<Incarnation>,
        token: Token,
        supervisor: Option<ActorCell>,
        previous: Option<Exit>,
        universe: Arc<Universe>,
    ) -> BoxFuture<'static, Result<Launched, ()>> {
        match (&self.body, supervisor) {
            (NodeBody::Worker(worker), Some(supervisor)) => worker
                .launch(incarnation, token, supervisor, previous)
                .map(|started| started.map(|task| Launched { task, ready: None }))
                .boxed(),
            // The root is a supervisor, so a worker always has one.
            (NodeBody::Worker(_), None) => std::future::ready(Err(())).boxed(),
            (NodeBody::Supervisor { rules, door }, supervisor) => supervisor::launch(
                Arc::clone(self),
                rules.clone(),
                door.clone(),
                incarnation,
                token,
                supervisor,
                universe,
            ),
        }
    }

    pub(crate) fn shutdown(&self) -> Shutdown {
        self.shutdown
    }

    pub(crate) fn stuck_after(&self) -> Option<Duration> {
        self.stuck_after
    }

    /// `None` for supervisors: their children's deadlines bound their start.
    pub(crate) fn start_within(&self) -> Option<Duration> {
        matches!(self.body, NodeBody::Worker(_)).then_some(self.start_within)
    }

    pub(crate) fn busy_since(&self) -> Option<(&'static str, Instant)> {
        match &self.body {
            NodeBody::Worker(worker) => worker.busy_since(),
            NodeBody::Supervisor { .. } => None,
        }
    }

    pub(crate) fn detach(&self, generation: u64) {
        if let NodeBody::Worker(worker) = &self.body {
            worker.detach(generation);
        }
    }

    pub(crate) fn close_mailbox(&self) {
        if let NodeBody::Worker(worker) = &self.body {
            worker.close();
        }
    }

    /// Nothing below here runs again: closes every mailbox and door.
    pub(crate) fn close_all(&self) {
        self.close_mailbox();
        if let NodeBody::Supervisor { door: Some(door), .. } = &self.body {
            door.close();
        }
        for child in self.children() {
            child.close_all();
        }
    }

    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        lock(&self.children).clone()
    }

    pub(crate) fn add_child(&self, child: Arc<Self>) {
        lock(&self.children).push(child);
    }

    pub(crate) fn remove_child(&self, child: &Arc<Self>) {
        lock(&self.children).retain(|other| !Arc::ptr_eq(other, child));
    }

    /// Takes all children away: those of a dynamic supervisor end with it.
    pub(crate) fn take_children(&self) -> Vec<Arc<Self>> {
        std::mem::take(&mut *lock(&self.children))
    }

    /// A new incarnation is being started; the generation goes up. Tells how the one before ended.
    pub(crate) fn conceive(&self, census: &Arc<Census>) -> (Arc<Incarnation>, Option<Exit>) {
        let mut status = lock(&self.status);
        status.generation += 1;
        let incarnation = Incarnation::new(Arc::clone(&self.path), status.generation, census);
        status.incarnation = Some(Arc::clone(&incarnation));
        status.state = NodeState::Starting;
        status.since = Instant::now();
        (incarnation, status.last_exit.clone())
    }

    pub(crate) fn set_state(&self, state: NodeState) {
        let mut status = lock(&self.status);
        if status.state != state {
            status.state = state;
            status.since = Instant::now();
        }
    }

    /// The incarnation is gone.
    pub(crate) fn bury(&self, exit: Exit) {
        let mut status = lock(&self.status);
        status.state = NodeState::Down;
        status.since = Instant::now();
        status.incarnation = None;
        status.last_exit = Some(exit);
    }

    pub(crate) fn count_restart(&self) {
        lock(&self.status).restarts += 1;
    }

    /// Notes a restart on the supervisor that makes it.
    pub(crate) fn note_recent(&self, keep: usize) {
        let mut status = lock(&self.status);
        status.recent.push(Instant::now());
        let surplus = status.recent.len().saturating_sub(keep.max(1));
        status.recent.drain(..surplus);
    }

    pub(crate) fn forget_recent(&self) {
        lock(&self.status).recent.clear();
    }

    pub(crate) fn generation(&self) -> u64 {
        lock(&self.status).generation
    }

    pub(crate) fn state(&self) -> NodeState {
        lock(&self.status).state
    }

    pub(crate) fn incarnation(&self) -> Option<Arc<Incarnation>> {
        lock(&self.status).incarnation.clone()
    }

    /// The place with this path, seen from the root.
    pub(crate) fn find(self: &Arc<Self>, path: &str) -> Option<Arc<Self>> {
        let mut names = path.split('/');
        if names.next()? != self.name {
            return None;
        }
        let mut at = Arc::clone(self);
        for name in names {
            let next = lock(&at.children).iter().find(|child| child.name == name).cloned()?;
            at = next;
        }
        Some(at)
    }

    pub(crate) fn view(&self) -> TreeNode {
        let now = Instant::now();
        let gauge = match &self.body {
            NodeBody::Worker(worker) => Some(worker.gauge()),
            NodeBody::Supervisor { .. } => None,
        };
        let status = lock(&self.status);
        let (kind, intensity) = match &self.body {
            NodeBody::Worker(_) => (NodeKind::Worker, None),
            NodeBody::Supervisor { rules, door } => {
                let recent = |at: &&Instant| now.saturating_duration_since(**at) <= rules.intensity.within;
                let view = IntensityView {
                    strategy: rules.strategy,
                    recent: status.recent.iter().filter(recent).count(),
                    restarts: rules.intensity.restarts,
                    within_ms: millis(rules.intensity.within),
                };
                let kind = if door.is_some() { NodeKind::Dynamic } else { NodeKind::Supervisor };
                (kind, Some(view))
            }
        };
        let mut view = TreeNode {
            path: self.path.to_string(),
            name: self.name.clone(),
            kind,
            state: status.state,
            generation: status.generation,
            restart: self.rules.restart,
            restarts: status.restarts,
            state_ms: millis(now.saturating_duration_since(status.since)),
            mailbox: gauge.as_ref().map(|gauge| MailboxView {
                depth: gauge.depth,
                capacity: gauge.capacity,
                waiting_senders: gauge.waiting_senders,
                oldest_ms: gauge.oldest.map(millis),
            }),
            current: gauge
                .and_then(|gauge| gauge.busy)
                .map(|(label, busy)| Current { message: label.to_owned(), for_ms: millis(busy) }),
            intensity,
            last_exit: status.last_exit.clone(),
            children: Vec::new(),
        };
        drop(status);
        view.children = self.children().iter().map(|child| child.view()).collect();
        view
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl TreeNode {
    /// The node with this path, here or below.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&Self> {
        if self.path == path {
            return Some(self);
        }
        self.children.iter().find_map(|child| child.find(path))
    }

    /// All nodes, parents before children.
    pub fn walk(&self) -> impl Iterator<Item = &Self> {
        let mut todo = vec![self];
        std::iter::from_fn(move || {
            let next = todo.pop()?;
            todo.extend(next.children.iter().rev());
            Some(next)
        })
    }
}
