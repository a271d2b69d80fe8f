//! The replicator: streams committed events to the host and carries the acknowledgements back (`choir §13.1`).

use std::sync::Arc;

use super::Mail;
use crate::event::{Head, Revision};
use crate::reply::ReplyTo;
use crate::wire::{ControlPlane, HeartbeatAck, LinkError};

/// What the replicator is told.
pub enum ReplicatorMsg {
    /// The journal's newest revision. Sent after every append; only the newest matters.
    Committed {
        /// The revision.
        rev: Revision,
    },
    /// The link's state changed.
    Link(LinkState),
    /// A heartbeat was answered, or not.
    Answered {
        /// Which attempt, so that a late answer is told from the current one.
        attempt: u64,
        /// The answer.
        result: Result<HeartbeatAck, LinkError>,
    },
    /// Time to look at the clock.
    Tick,
    /// Answer once everything committed so far is durable on the host.
    Flush {
        /// Answered with the durable revision.
        reply: ReplyTo<Revision>,
    },
    /// Counters.
    Status {
        /// The counters.
        reply: ReplyTo<ReplicatorStatus>,
    },
}

/// The link as the replicator sees it.
#[derive(Clone)]
pub enum LinkState {
    /// Up, with the host's durable head as its hello said.
    Up {
        /// Over which to speak.
        control: Arc<dyn ControlPlane>,
        /// What the host has.
        durable: Head,
    },
    /// Down.
    Down,
}

impl std::fmt::Debug for LinkState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Up { durable, .. } => f.debug_struct("Up").field("durable", durable).finish(),
            Self::Down => f.write_str("Down"),
        }
    }
}

/// The replicator's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicatorStatus {
    /// The newest committed revision it knows of.
    pub committed: Revision,
    /// The last acknowledged one.
    pub acked: Revision,
    /// Whether the link is up.
    pub up: bool,
}

impl Mail for ReplicatorMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Committed { .. } => "committed",
            Self::Link(_) => "link",
            Self::Answered { .. } => "answered",
            Self::Tick => "tick",
            Self::Flush { .. } => "flush",
            Self::Status { .. } => "status",
        }
    }
}
