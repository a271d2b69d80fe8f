//! Model calls (`choir §7.7`): made by one actor an agent, which holds keys, limits and in-flight calls.

use super::Mail;
use crate::id::ModelCallId;
use crate::model::{ModelAnswer, ModelConfig, ModelFailure, ModelRequest};
use crate::reply::ReplyTo;
use crate::secret::Secret;
use crate::tool::Lane;

/// What the models actor is told.
#[derive(Debug)]
pub enum ModelsMsg {
    /// Make one call.
    Complete {
        /// Its id.
        call: ModelCallId,
        /// The lane it is for.
        lane: Lane,
        /// The request.
        request: ModelRequest,
        /// Told once if the provider limits the rate: milliseconds of wait before the second try.
        limited: ReplyTo<u64>,
        /// The answer.
        reply: ReplyTo<Result<ModelAnswer, ModelFailure>>,
    },
    /// Stop a call; its reply port is dropped.
    Cancel {
        /// Which.
        call: ModelCallId,
    },
    /// New settings, taken whole (`choir §16.3`).
    Configure {
        /// The model.
        config: ModelConfig,
        /// Its key, if it needs one.
        key: Option<Secret>,
    },
    /// A call ended.
    Finished {
        /// Which.
        call: ModelCallId,
    },
}

impl Mail for ModelsMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Complete { .. } => "complete",
            Self::Cancel { .. } => "cancel",
            Self::Configure { .. } => "configure",
            Self::Finished { .. } => "finished",
        }
    }
}
