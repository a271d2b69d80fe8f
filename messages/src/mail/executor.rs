//! An executor: one actor for one running tool call (`choir §8.9`).

use super::Mail;
use crate::event::Revision;
use crate::id::InvocationId;
use crate::json::Json;
use crate::reply::ReplyTo;
use crate::tool::{Lane, Replay, ToolOutcome};

/// Everything an executor needs to run one committed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// The call.
    pub invocation: InvocationId,
    /// The lane it is for.
    pub lane: Lane,
    /// The tool.
    pub tool: String,
    /// Validated input.
    pub input: Json,
    /// The revision that must be durable on the host before any effect; none for reads.
    pub durable_first: Option<Revision>,
    /// How a repeat is recognised.
    pub replay: Replay,
    /// Whether an earlier run may have taken effect (recovery).
    pub again: bool,
}

/// What an executor is told.
#[derive(Debug)]
pub enum ExecutorMsg {
    /// Run. Sent once, right after the start.
    Run {
        /// The outcome.
        reply: ReplyTo<ToolOutcome>,
    },
    /// Stop what runs; the outcome says so.
    Cancel,
    /// The work is done.
    Finished(ToolOutcome),
}

impl Mail for ExecutorMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Cancel => "cancel",
            Self::Finished(_) => "finished",
        }
    }
}
