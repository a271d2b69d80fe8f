//! The journal: keeper of a session's events (`choir §7.4`). It runs no foreign code, so it outlives its neighbours.

use std::sync::Arc;

use super::Mail;
use crate::event::{ChainError, Event, EventBody, Head, Revision};
use crate::reply::ReplyTo;
use crate::session::{Illegal, SessionView};
use crate::tool::Lane;

/// What the journal is told.
#[derive(Debug)]
pub enum JournalMsg {
    /// Append these bodies, all or none. Only the arbiter sends it.
    Append {
        /// The lane they are about.
        lane: Lane,
        /// What happened, in order.
        bodies: Vec<EventBody>,
        /// Their events, or why not.
        reply: ReplyTo<Result<Appended, JournalError>>,
    },
    /// Events after a revision, at most `limit`, for the replicator.
    Read {
        /// The last revision the asker has.
        after: Revision,
        /// Most events wanted.
        limit: usize,
        /// The events, in order.
        reply: ReplyTo<Vec<Arc<Event>>>,
    },
    /// The fold of all events, for whoever starts or starts again.
    View {
        /// The view.
        reply: ReplyTo<Arc<SessionView>>,
    },
    /// The host's log stands here. Only the replicator sends it.
    Acknowledged {
        /// Its head.
        head: Head,
    },
    /// Answer once the host has this revision.
    WaitDurable {
        /// The revision.
        rev: Revision,
        /// Answered when durable.
        reply: ReplyTo<()>,
    },
    /// Counters.
    Status {
        /// The counters.
        reply: ReplyTo<JournalStatus>,
    },
}

/// What was appended.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The events, in order.
    pub events: Vec<Arc<Event>>,
}

/// Why nothing was appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The log would no longer be legal.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// The event has no canonical form or is too large.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Too many events wait for the host: the link has been down too long. Nothing is lost; nothing new is taken.
    #[error("{waiting} events wait for the host; the agent takes nothing new until the link is back")]
    Behind {
        /// How many.
        waiting: u64,
    },
}

/// The journal's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalStatus {
    /// Where the chain stands.
    pub head: Head,
    /// The last durable revision.
    pub durable: Revision,
}

impl Mail for JournalMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Append { .. } => "append",
            Self::Read { .. } => "read",
            Self::View { .. } => "view",
            Self::Acknowledged { .. } => "acknowledged",
            Self::WaitDurable { .. } => "wait_durable",
            Self::Status { .. } => "status",
        }
    }
}
