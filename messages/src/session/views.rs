//! What a log says when it is folded: messages, calls, turns; and the rules that a legal one keeps.

use serde::{Deserialize, Serialize};

use crate::event::Revision;
use crate::id::{InvocationId, JobName, MessageId};
use crate::json::Json;
use crate::limits;
use crate::model::ModelFailure;
use crate::tool::{LockSpec, Replay, SideEffect, ToolCall, ToolOutcome};

/// Why an event may not follow the log so far.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("revision {rev}: {rule}")]
pub struct Illegal {
    /// The offending event's revision.
    pub rev: Revision,
    /// The rule it breaks.
    pub rule: Rule,
}

/// The rules of a legal log; see the module's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// Rule 1.
    #[error("a log opens with SessionOpened, once")]
    OpensOnce,
    /// Rule 2.
    #[error("a message is recorded once, then closed once")]
    MessageOnce,
    /// Rule 3.
    #[error("only the message at the head of the queue is worked on")]
    HeadOfQueue,
    /// Rule 4.
    #[error("a model answers only when no call of its turn is open")]
    NoOpenCall,
    /// Rule 5.
    #[error("a call is proposed, requested, committed, and has one result")]
    CallOrder,
    /// Rule 6.
    #[error("a turn is closed only when none of its calls is open")]
    CloseAfterCalls,
    /// A bound is exceeded.
    #[error("the log exceeds a bound of the session")]
    Bound,
}

/// A message waiting for its turn, or having it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedMessage {
    /// Its id.
    pub message: MessageId,
    /// Its text.
    pub text: String,
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallStage {
    /// In a model's answer, not looked at yet.
    Proposed,
    /// Valid, waiting for locks.
    Requested {
        /// Validated input.
        input: Json,
    },
    /// Holds its locks; may be running.
    Committed {
        /// Validated input.
        input: Json,
        /// Locks it holds.
        locks: Vec<LockSpec>,
        /// What it does to the world.
        side_effect: SideEffect,
        /// How a repeat would be recognised.
        replay: Replay,
        /// Revision of the committed event, which must be durable before an effect.
        rev: Revision,
    },
    /// Has its result.
    Done {
        /// The result.
        outcome: ToolOutcome,
    },
}

/// One call of the current turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallView {
    /// Its invocation id.
    pub invocation: InvocationId,
    /// As the model proposed it.
    pub call: ToolCall,
    /// How far it has come.
    pub stage: CallStage,
}

impl CallView {
    /// Whether the result is still to come.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !matches!(self.stage, CallStage::Done { .. })
    }
}

/// One open call of the host ([`EventBody::HostCallAsked`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCallView {
    /// The job it is for.
    pub job: JobName,
    /// The call; what was asked for stands in the place of a model's proposal.
    pub call: CallView,
    /// Times it was begun.
    pub asked: u32,
}

/// What came of the current turn so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnEnd {
    /// Not over.
    Open,
    /// The model gave a final text.
    Answer(String),
    /// A model call failed.
    Failure(ModelFailure),
    /// Cancelled on request.
    Cancelled,
}

/// The turn of the message at the head of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnView {
    /// The message.
    pub message: MessageId,
    /// Times it was resumed after an interruption.
    pub resumes: u32,
    /// Of these, the ones since the turn last came further: by an answer of the model, or by a step of a call.
    pub stalled: u32,
    /// Answers the model gave in this turn.
    pub model_calls: u32,
    /// Calls of the model's latest answer, in order.
    pub calls: Vec<CallView>,
    /// Whether it is over but for its closing.
    pub end: TurnEnd,
}

impl TurnView {
    /// Whether the log shows that it was worked on.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.resumes > 0 || self.model_calls > 0
    }

    /// Whether an interruption now sets it aside: the step it stands at has had its tries, or it was resumed too often.
    #[must_use]
    pub const fn is_out_of_tries(&self) -> bool {
        self.stalled + 1 >= limits::TRIES_PER_STEP || self.resumes >= limits::RESUMES_PER_MESSAGE
    }

    /// The calls whose results are still to come.
    pub fn open_calls(&self) -> impl Iterator<Item = &CallView> {
        self.calls.iter().filter(|call| call.is_open())
    }
}

/// Counters against the session's budgets (`choir §7.6`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Tokens of all model calls.
    pub tokens: u64,
    /// Model answers.
    pub model_calls: u64,
    /// Tool calls committed.
    pub tool_calls: u64,
    /// Messages closed.
    pub messages: u64,
}

/// What must happen next, by the log alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing; wait for a message.
    Idle,
    /// Ask the model.
    Model,
    /// Wait for (or, after a crash, take up) the open calls.
    Tools,
    /// Close the message.
    Close,
}
