//! The edge lane: talks to the user (`choir §7.2`).

use std::sync::Arc;

use super::{Mail, ProposalRefused};
use crate::event::Event;
use crate::id::ModelCallId;
use crate::model::{ModelAnswer, ModelFailure};
use crate::reply::ReplyTo;
use crate::wire::{AgentSettings, LaneStatus};

/// What the edge lane is told.
#[derive(Debug)]
pub enum EdgeMsg {
    /// The arbiter committed these, in order.
    Committed {
        /// The events.
        events: Vec<Arc<Event>>,
    },
    /// A model call ended. `None`: the models actor died without a word.
    Answered {
        /// Which call.
        call: ModelCallId,
        /// How.
        result: Option<Result<ModelAnswer, ModelFailure>>,
    },
    /// The provider limits the rate; the call waits.
    Limited {
        /// Which call.
        call: ModelCallId,
        /// For how long, in milliseconds.
        wait_ms: u64,
    },
    /// The arbiter's answer to a proposal.
    Proposed {
        /// The events it became, or why not.
        result: Result<Vec<Arc<Event>>, ProposalRefused>,
    },
    /// New settings.
    Settings(Box<AgentSettings>),
    /// Finish what is at a safe point and take up nothing new.
    Drain {
        /// Answered at the safe point.
        reply: ReplyTo<()>,
    },
    /// How the lane is.
    Status {
        /// The answer; its `tree` is empty.
        reply: ReplyTo<LaneStatus>,
    },
    /// Try again what was refused for want of a neighbour.
    Retry,
}

impl Mail for EdgeMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Committed { .. } => "committed",
            Self::Answered { .. } => "answered",
            Self::Limited { .. } => "limited",
            Self::Proposed { .. } => "proposed",
            Self::Settings(_) => "settings",
            Self::Drain { .. } => "drain",
            Self::Status { .. } => "status",
            Self::Retry => "retry",
        }
    }
}
