//! What a session is told, and what it tells of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use choir_messages::id::SessionId;
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_persistence::store::sessions::SessionRow;

use super::core::{Attempt, Phase};
use super::sandbox::Started;
use crate::control::ControlError;
use crate::daemon::LeaseError;

/// Other resources than the agent's defaults, for one start (`choir §17.1`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    pub(crate) workspace: Option<String>,
    pub(crate) llm: Option<String>,
}

/// An answer that may take a while: when the agent is up, stopped, or given up.
pub(super) type Waiter = ReplyTo<Result<(), ControlError>>;

/// What the session is told.
pub(crate) enum SessionMsg {
    Start {
        fresh: bool,
        overrides: Overrides,
        reply: Option<Waiter>,
    },
    Stop {
        reply: Option<Waiter>,
    },
    Restart {
        fresh: bool,
        reply: Option<Waiter>,
    },
    /// choird shuts down; answered once the agent is gone.
    Quit {
        reply: ReplyTo<()>,
    },
    Opened(Result<Box<SessionRow>, LeaseError>),
    Closed(Result<(), LeaseError>),
    Launched {
        attempt: Attempt,
        result: Result<Started, String>,
    },
    Gone {
        attempt: Attempt,
        how: String,
    },
    LinkUp {
        attempt: Attempt,
    },
    LinkDown {
        attempt: Attempt,
        reason: String,
        for_good: bool,
    },
    Ready {
        attempt: Attempt,
    },
    Leaving {
        attempt: Attempt,
        reason: String,
    },
    Progress {
        attempt: Attempt,
    },
    Silent {
        attempt: Attempt,
        silent: Duration,
    },
    /// The agent's wish was written down, or not.
    Remembered(Result<(), String>),
    View {
        reply: ReplyTo<SessionView>,
    },
    Tick,
}

impl Mail for SessionMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Stop { .. } => "stop",
            Self::Restart { .. } => "restart",
            Self::Quit { .. } => "quit",
            Self::Opened(_) => "opened",
            Self::Closed(_) => "closed",
            Self::Launched { .. } => "launched",
            Self::Gone { .. } => "gone",
            Self::LinkUp { .. } => "link_up",
            Self::LinkDown { .. } => "link_down",
            Self::Ready { .. } => "ready",
            Self::Leaving { .. } => "leaving",
            Self::Progress { .. } => "progress",
            Self::Silent { .. } => "silent",
            Self::Remembered(_) => "remembered",
            Self::View { .. } => "view",
            Self::Tick => "tick",
        }
    }
}

/// What the session knows, for `agent status`.
#[derive(Debug, Clone)]
pub(crate) struct SessionView {
    pub(crate) phase: Phase,
    pub(crate) trouble: Option<String>,
    pub(crate) restarts: u64,
    pub(crate) session: Option<SessionId>,
    pub(crate) generation: Option<u64>,
    pub(crate) pid: Option<u32>,
    pub(crate) agent_pid: Option<u32>,
    pub(crate) sandbox: Option<&'static str>,
    pub(crate) bindings: BTreeMap<String, String>,
}
