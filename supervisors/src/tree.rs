//! One tree: starts it, shows it, wounds it on request, and ends it.

use crate::core::Reaction;
use crate::exit::Exit;
use crate::incarnation::{Census, Incarnation};
use crate::keeper::{Keeper, Word};
use crate::limits::{GONE_WITHIN, REPORTS};
use crate::lock;
use crate::node::{Node, NodeState, TreeNode};
use crate::panics;
use crate::spec::{ChildSpec, SpecError, SupervisorSpec};
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::sync::{Arc, Mutex};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, timeout};

/// A running tree. Dropping it without [`Tree::shutdown`] kills everything in it.
pub struct Tree {
    handle: TreeHandle,
    root: Arc<Incarnation>,
}

/// Looks at a tree and wounds it. Cheap to clone; does not keep the tree alive.
#[derive(Clone)]
pub struct TreeHandle {
    node: Arc<Node>,
    universe: Arc<Universe>,
    ended: watch::Receiver<Option<Exit>>,
}

/// What all parts of one tree share.
pub(crate) struct Universe {
    pub(crate) epoch: Instant,
    census: Arc<Census>,
    reports: broadcast::Sender<SupervisorReport>,
    changes: watch::Sender<u64>,
    overran: Mutex<Vec<String>>,
}

/// What happened to a child, as its supervisor tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorReport {
    /// The child.
    pub path: String,
    /// The incarnation that ended.
    pub generation: u64,
    /// How.
    pub exit: Exit,
    /// What the supervisor does about it.
    pub action: Reaction,
}

/// Why a tree did not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A spec cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A child did not start; those started before it have been stopped again, in reverse order.
    #[error("the tree did not start: it {0}")]
    NotStarted(Exit),
}

/// How a shutdown went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShutdownReport {
    /// How the root ended.
    pub exit: Exit,
    /// Paths of children that had not stopped by their deadline and were killed.
    pub overran: Vec<String>,
    /// Actors, pipes and timers still alive: 0, unless one blocks its thread.
    pub left: usize,
}

impl Tree {
    /// Starts a tree: children left to right, each after the one before is up. Needs a tokio runtime.
    pub async fn start(spec: SupervisorSpec) -> Result<Self, StartError> {
        let started = Self::start_unless(spec, std::future::pending()).await?;
        started.ok_or(StartError::NotStarted(Exit::Shutdown))
    }

    /// The same, unless `stop` resolves first: then the start of the child that is starting is given up (its factory is
    /// dropped), the children that are up are stopped in reverse order as in [`Tree::shutdown`], and the answer is none.
    pub async fn start_unless(
        spec: SupervisorSpec,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Self>, StartError> {
        spec.check()?;
        panics::install_hook();
        let universe = Arc::new(Universe {
            epoch: Instant::now(),
            census: Census::root(),
            reports: broadcast::Sender::new(REPORTS),
            changes: watch::Sender::new(0),
            overran: Mutex::new(Vec::new()),
        });
        let node = Node::plant(ChildSpec::supervisor(spec), None);
        let (root, _) = node.conceive(&universe.census);
        // The root's keeper says at most two words.
        let (tell, mut words) = mpsc::channel(2);
        let keeper = Keeper {
            node: Arc::clone(&node),
            incarnation: Arc::clone(&root),
            token: root.census.token(),
            supervisor: None,
            previous: None,
            universe: Arc::clone(&universe),
            tell: Box::new(move |word| {
                let _ = tell.try_send(word);
            }),
        };
        tokio::spawn(keeper.run());
        let (end, ended) = watch::channel(None);
        // From here on a dropped future takes the half-started tree down with it.
        let tree = Self { handle: TreeHandle { node, universe, ended }, root };
        let mut stopped = false;
        let first = tokio::select! {
            biased;
            first = words.recv() => first,
            () = stop => {
                stopped = true;
                tree.root.order_stop(true);
                match words.recv().await {
                    // It was up in the same moment.
                    Some(Word::Started) => words.recv().await,
                    last => last,
                }
            }
        };
        let finish = |node: &Arc<Node>, universe: &Universe, word: Option<Word>| {
            let exit = match word {
                Some(Word::Ended(exit) | Word::NotStarted(exit)) => exit,
                Some(Word::Immovable) => Exit::Failed("a child could not be stopped".to_owned()),
                // The runtime is going down.
                Some(Word::Started) | None => Exit::Killed,
            };
            node.bury(exit.clone());
            node.set_state(NodeState::Ended);
            node.close_all();
            universe.changed();
            exit
        };
        let (node, universe) = (Arc::clone(&tree.handle.node), Arc::clone(&tree.handle.universe));
        if stopped {
            finish(&node, &universe, first);
            let _ = timeout(GONE_WITHIN, universe.census.deserted()).await;
            return Ok(None);
        }
        if !matches!(first, Some(Word::Started)) {
            return Err(StartError::NotStarted(finish(&node, &universe, first)));
        }
        node.set_state(NodeState::Running);
        universe.changed();
        tokio::spawn(async move {
            let word = words.recv().await;
            end.send_replace(Some(finish(&node, &universe, word)));
        });
        Ok(Some(tree))
    }

    /// A handle to look at it.
    #[must_use]
    pub fn handle(&self) -> TreeHandle {
        self.handle.clone()
    }

    /// Stops everything in reverse start order, each child as its spec says, and waits until nothing is left.
    pub async fn shutdown(self) -> ShutdownReport {
        self.root.order_stop(true);
        let exit = self.handle.ended().await;
        let census = &self.handle.universe.census;
        let _ = timeout(GONE_WITHIN, census.deserted()).await;
        ShutdownReport {
            exit,
            overran: std::mem::take(&mut *lock(&self.handle.universe.overran)),
            left: census.living(),
        }
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tree({})", self.handle.node.path)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.root.kill(Exit::Killed);
    }
}

impl TreeHandle {
    /// The live tree now.
    #[must_use]
    pub fn snapshot(&self) -> TreeNode {
        self.node.view()
    }

    /// Kills the incarnation at this path, at its next await: nothing of it runs any more, not even `stopping`. For a
    /// supervisor, everything below dies with it. `false` if there is no such path or nothing running there.
    pub fn kill(&self, path: &str) -> bool {
        self.strike(path, |incarnation| incarnation.kill(Exit::Killed))
    }

    /// Makes the incarnation at this path panic, in the middle of a handler or between messages. `false` as for
    /// [`TreeHandle::kill`].
    pub fn crash(&self, path: &str) -> bool {
        self.strike(path, Incarnation::crash)
    }

    fn strike(&self, path: &str, blow: impl FnOnce(&Incarnation)) -> bool {
        match self.node.find(path).and_then(|node| node.incarnation()) {
            Some(incarnation) => {
                blow(&incarnation);
                true
            }
            None => false,
        }
    }

    /// Everything supervisors report from now on. A subscriber that falls more than [`REPORTS`] behind is told how many
    /// it missed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<SupervisorReport> {
        self.universe.reports.subscribe()
    }

    /// Changes whenever the state of any place does: for consoles, and for tests that wait for a state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.universe.changes.subscribe()
    }

    /// Waits until the whole tree has ended and says how: shut down, killed, or failed with the reason when the root gave
    /// up.
    pub async fn ended(&self) -> Exit {
        let mut ended = self.ended.clone();
        ended.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone()).unwrap_or(Exit::Killed)
    }

    /// Actors, supervisors, pipes and timers alive in this tree; 0 when it is gone without a trace.
    #[must_use]
    pub fn living(&self) -> usize {
        self.universe.census.living()
    }

    /// Waits until nothing of the tree is left; for tests, after a tree was dropped.
    pub async fn deserted(&self) {
        self.universe.census.deserted().await;
    }
}

impl std::fmt::Debug for TreeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TreeHandle({})", self.node.path)
    }
}

impl Universe {
    pub(crate) fn report(&self, report: SupervisorReport) {
        // Nobody listening is fine.
        let _ = self.reports.send(report);
    }

    pub(crate) fn changed(&self) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn overran(&self, path: &str) {
        lock(&self.overran).push(path.to_owned());
    }
}
