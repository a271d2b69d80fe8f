//! What goes into and comes out of the supervisor's rules.

use crate::exit::Exit;
use crate::spec::{AutoShutdown, Backoff, Intensity, Restart, Strategy};
use std::time::Duration;

/// Names a child within its supervisor; ascending in start order, never used twice.
pub type Key = u64;

/// A supervisor's own settings.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Whom a failing child takes along.
    pub strategy: Strategy,
    /// How many restarts are too many.
    pub intensity: Intensity,
    /// What the end of significant children means.
    pub auto_shutdown: AutoShutdown,
    /// Whether children come and go at run time; they are then independent and stop all at once.
    pub dynamic: bool,
    /// The most children at a time.
    pub max_children: usize,
}

/// A child's settings.
#[derive(Debug, Clone)]
pub struct ChildRules {
    /// When it is restarted.
    pub restart: Restart,
    /// How long to wait before that.
    pub backoff: Backoff,
    /// Whether its end may end the supervisor.
    pub significant: bool,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Start the children.
    Begin,
    /// [`super::Core::add`] added this child to a running supervisor.
    Added(Key),
    /// The start that was asked for succeeded.
    Started(Key),
    /// The start that was asked for failed, and nothing of it is left.
    NotStarted(Key, Exit),
    /// The child ended, and nothing of it is left.
    Ended(Key, Exit),
    /// The child was killed and is still not gone.
    Immovable(Key),
    /// The time asked for by [`Action::Wake`] has come.
    Due(Key),
    /// Stop this child and forget it.
    Remove(Key),
    /// Stop everything.
    Stop,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a new incarnation; answer with `Started` or `NotStarted`.
    Start(Key),
    /// Stop the incarnation as its child spec says; answer with `Ended`.
    Stop(Key),
    /// Send `Due` at this time.
    Wake {
        /// The child that waits.
        key: Key,
        /// When.
        at: Duration,
    },
    /// The child has ended for good: its mailbox closes.
    Forget(Key),
    /// All children are up for the first time.
    Ready,
    /// Everything is down and the supervisor ends.
    Done(Exit),
    /// Tell operators.
    Report {
        /// The child.
        key: Key,
        /// How it ended.
        exit: Exit,
        /// What follows.
        reaction: Reaction,
    },
}

/// What a supervisor does about a child's end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reaction {
    /// Starts it again after this delay, and with it what the strategy takes along.
    Restarting {
        /// The back-off.
        after: Duration,
    },
    /// Leaves it ended, as its child spec says.
    Left,
    /// Nothing: it had been told to stop.
    Stopped,
    /// Stops all others, since a first start failed.
    NotStarted,
    /// Gives up: too many restarts.
    Escalated,
}
