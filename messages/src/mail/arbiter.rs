//! The arbiter: the only one that commits (`choir §7.4`). Executions never block it.

use std::sync::Arc;

use super::{JournalError, LockRefused, Mail};
use crate::event::{Event, MessageOutcome};
use crate::id::{InvocationId, MessageId, ModelCallId};
use crate::model::{ModelAnswer, ModelFailure};
use crate::reply::ReplyTo;
use crate::tool::{Lane, Replay, ToolOutcome};
use crate::wire::{AgentSettings, SignalAck, SignalRequest};

/// What the arbiter is told.
#[derive(Debug)]
pub enum ArbiterMsg {
    /// A signal of the host.
    Signal {
        /// The signal.
        request: SignalRequest,
        /// Answered with the revision that records it.
        reply: ReplyTo<SignalAck>,
    },
    /// A lane proposes something.
    Propose {
        /// Which lane.
        lane: Lane,
        /// What.
        proposal: Proposal,
        /// The events it became, or why not.
        reply: ReplyTo<Result<Vec<Arc<Event>>, ProposalRefused>>,
    },
    /// New settings: budgets are enforced here, before anything is committed.
    Settings(Box<AgentSettings>),
    /// The lock manager's answer for a call.
    Locked {
        /// The call.
        invocation: InvocationId,
        /// Granted, or not.
        result: Result<(), LockRefused>,
    },
    /// A call's replay guard was worked out under its locks.
    Prepared {
        /// The call.
        invocation: InvocationId,
        /// The guard, or the outcome when the call cannot run after all.
        result: Result<Replay, ToolOutcome>,
    },
    /// A call ended.
    Executed {
        /// The call.
        invocation: InvocationId,
        /// How. `None`: its executor died without a word.
        outcome: Option<ToolOutcome>,
    },
}

/// What a lane may propose.
#[derive(Debug, Clone)]
pub enum Proposal {
    /// A model's answer for a message; its tool calls are taken on.
    Answer {
        /// The message being answered.
        message: MessageId,
        /// The model call.
        call: ModelCallId,
        /// The answer.
        answer: ModelAnswer,
    },
    /// A model call failed; the message is closed as failed.
    ModelFailed {
        /// The message.
        message: MessageId,
        /// The model call.
        call: ModelCallId,
        /// Why.
        failure: ModelFailure,
    },
    /// Close a message whose turn is over, or that cannot be taken on.
    Close {
        /// The message.
        message: MessageId,
        /// How it ended.
        outcome: MessageOutcome,
        /// What the user is told.
        text: String,
    },
    /// A lane that just started found this turn open. Whatever an earlier life left of it is taken up, or the turn is
    /// set aside; if nothing was interrupted, nothing becomes of it.
    Resume {
        /// The message.
        message: MessageId,
        /// Whether an earlier lane of this process had asked the model for it, which no event says.
        asked: bool,
    },
    /// Something the user should know.
    Notice {
        /// The message it is about.
        message: MessageId,
        /// The sentence.
        text: String,
    },
}

/// Why a proposal was not committed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposalRefused {
    /// The journal does not take it. A lane that is behind must read the view again.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal gave no answer.
    #[error("the journal does not answer")]
    NoJournal,
}

impl Mail for ArbiterMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Signal { .. } => "signal",
            Self::Propose { .. } => "propose",
            Self::Settings(_) => "settings",
            Self::Locked { .. } => "locked",
            Self::Prepared { .. } => "prepared",
            Self::Executed { .. } => "executed",
        }
    }
}
