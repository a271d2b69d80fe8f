//! The Coordinator's mailbox (DESIGN §1): everything a transport can do, an actor can do by message.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Mail;
use crate::chap::Notice;
use crate::reply::ReplyTo;

/// Who is calling, as the carrier of the call knows it; what the envelope says of itself is not this.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Caller {
    /// The participant the carrier has authenticated, if it authenticates: `from` must be one of these.
    pub participants: Option<Arc<[String]>>,
}

impl Caller {
    /// A caller that the carrier has not authenticated.
    #[must_use]
    pub const fn anyone() -> Self {
        Self { participants: None }
    }
}

/// The bytes of one JSON-RPC answer.
pub type CallAnswer = Arc<[u8]>;

/// Why a call has no JSON-RPC answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// Too much waits already, or the participant calls too often: nothing was done.
    #[error(
        "the Coordinator has too many calls waiting, or of this participant; nothing was done, try again"
    )]
    Busy,
    /// The store did not take it, and nothing was done.
    #[error("the store is not available; nothing was done, try again: {0}")]
    NotStored(String),
    /// Nobody knows whether it was stored: read the log before repeating it.
    #[error("whether the call was stored is unknown; read the log before you repeat it: {0}")]
    Unknown(String),
    /// The Coordinator is ending.
    #[error("the Coordinator is ending; nothing was done")]
    Ending,
}

/// A page of notices for one participant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticePage {
    /// In order.
    pub notices: Vec<Notice>,
    /// Ask for what comes after this number next.
    pub next: u64,
}

/// One workspace in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceLine {
    /// Its id.
    pub workspace: String,
    /// Entries on its log.
    pub entries: u64,
}

/// What the Coordinator is told.
#[derive(Debug)]
pub enum CoordinatorMsg {
    /// One CHAP call, as bytes. The answer is durable before it is given.
    Call {
        /// The JSON-RPC call as received.
        bytes: Arc<[u8]>,
        /// Who calls.
        caller: Caller,
        /// The JSON-RPC answer, or why there is none.
        reply: ReplyTo<Result<CallAnswer, Unanswered>>,
    },
    /// One CHAP call from inside: method and params, answered with its result or its error object.
    Ask {
        /// The method.
        method: String,
        /// Its params.
        params: Value,
        /// Who calls.
        caller: Caller,
        /// The result, or the JSON-RPC error object.
        reply: ReplyTo<Result<Result<Value, Value>, Unanswered>>,
    },
    /// Notices of a participant after a number, at most `limit`; with `wait`, answered when there is one or never
    /// (the asker has the deadline).
    Inbox {
        /// The workspace.
        workspace: String,
        /// The participant's URI.
        participant: String,
        /// The last number the asker has.
        after: u64,
        /// Most notices wanted.
        limit: usize,
        /// Whether to wait for one.
        wait: bool,
        /// Who asks.
        caller: Caller,
        /// The page, a JSON-RPC error object, or why there is none.
        reply: ReplyTo<Result<Result<NoticePage, Value>, Unanswered>>,
    },
    /// The ids of all workspaces. For operators: no method of the protocol tells them, and no participant may ask.
    Workspaces {
        /// The last one the asker has; those after it come in a fixed order.
        after: Option<String>,
        /// Most wanted.
        limit: usize,
        /// The page, empty at the end, or why there is none.
        reply: ReplyTo<Result<Vec<WorkspaceLine>, Unanswered>>,
    },
}

impl Mail for CoordinatorMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Call { .. } => "call",
            Self::Ask { .. } => "ask",
            Self::Inbox { .. } => "inbox",
            Self::Workspaces { .. } => "workspaces",
        }
    }
}
