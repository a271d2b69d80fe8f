//! What the session's rules are told, what they want done, and how they show where they stand.

use std::time::Duration;

use serde::Serialize;

/// Counts the sandboxes that one choird launched for one agent; results that name an earlier one are stale.
pub type Attempt = u64;

/// What the session is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// An operator, or choird's start, wants it to run. A fresh one forgets the session before.
    Start {
        /// Open a new session instead of the one that was stopped or crashed.
        fresh: bool,
    },
    /// An operator wants it stopped.
    Stop,
    /// An operator wants it stopped and started.
    Restart {
        /// As for `Start`.
        fresh: bool,
    },
    /// choird shuts down: stop, but stay wanted.
    Quit,
    /// The store granted session, lease and resources.
    Opened,
    /// It will not, and waiting does not help.
    OpenRefused {
        /// Why.
        reason: String,
    },
    /// It could not.
    OpenFailed {
        /// Why.
        reason: String,
    },
    /// The sandbox runs.
    Launched {
        /// Which.
        attempt: Attempt,
        /// Its process.
        pid: u32,
    },
    /// It does not.
    LaunchFailed {
        /// Which.
        attempt: Attempt,
        /// Why.
        reason: String,
    },
    /// Its hello was answered and its log is complete.
    Ready {
        /// Which.
        attempt: Attempt,
    },
    /// A new event of it is durable.
    Progress {
        /// Which.
        attempt: Attempt,
    },
    /// Its link is there.
    LinkUp {
        /// Which.
        attempt: Attempt,
    },
    /// Its link closed.
    LinkDown {
        /// Which.
        attempt: Attempt,
        /// Why.
        reason: String,
        /// Whether it may not come back: it broke the protocol, or the gate itself is lost.
        for_good: bool,
    },
    /// It was silent for too long.
    Silent {
        /// Which.
        attempt: Attempt,
        /// For how long.
        silent: Duration,
    },
    /// It says that it is leaving.
    Leaving {
        /// Which.
        attempt: Attempt,
        /// Why.
        reason: String,
    },
    /// Its process and all its descendants are gone.
    Gone {
        /// Which.
        attempt: Attempt,
        /// How it ended.
        how: String,
    },
    /// The store closed the lease.
    Closed,
    /// It could not.
    CloseFailed {
        /// Why.
        reason: String,
    },
    /// Time passed.
    Tick,
}

/// What the session wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Remember durably whether the agent is wanted.
    Remember {
        /// Whether it is.
        wanted: bool,
    },
    /// Ask the store for session, lease and resources.
    Open {
        /// As for `Start`.
        fresh: bool,
    },
    /// Listen for its link and launch the sandbox.
    Launch {
        /// Which.
        attempt: Attempt,
    },
    /// Signal the sandbox to reach a safe point, flush and leave.
    AskToLeave {
        /// Which.
        attempt: Attempt,
        /// Until it is killed.
        within: Duration,
    },
    /// Close its link and kill it.
    Kill {
        /// Which.
        attempt: Attempt,
        /// Why, for the log.
        why: String,
    },
    /// Close the session's lease in the store.
    Close {
        /// Whether it crashed, and how.
        crashed: Option<String>,
    },
    /// Something an operator should know.
    Report {
        /// Whether it is bad news.
        bad: bool,
        /// The sentence.
        text: String,
    },
}

/// Where the session stands, for `choirctl agent status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Phase {
    /// Not running, not wanted.
    Stopped,
    /// Asking the store.
    Opening,
    /// Launching the sandbox, or waiting for its hello.
    Starting,
    /// Running.
    Up,
    /// Asked to leave.
    Stopping,
    /// Killed, not yet gone.
    Killing,
    /// Gone; closing its lease.
    Closing,
    /// Waiting before the next start.
    BackingOff,
    /// Given up; an operator must start it.
    Failed {
        /// Why.
        why: String,
    },
}
