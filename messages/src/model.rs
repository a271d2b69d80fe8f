//! What is said to a model and what comes back, independent of any provider's wire format (`choir §7.7`, `choir §21`).

use serde::{Deserialize, Serialize};

use crate::json::Json;
use crate::tool::{ToolCall, ToolView};

/// One entry of the transcript that a model is shown. Built from the log, so every call is paired with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Turn {
    /// Instructions of the control plane.
    System(String),
    /// What a user said.
    User(String),
    /// What the model said before.
    Assistant {
        /// Its text, if any.
        text: Option<String>,
        /// The calls it proposed, in order.
        calls: Vec<ToolCall>,
    },
    /// What came of one call.
    ToolResult {
        /// The provider's id of the call.
        provider_id: String,
        /// JSON text of the result.
        content: String,
    },
}

/// A request to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRequest {
    /// The transcript, system prompt first.
    pub turns: Vec<Turn>,
    /// The tools it may call.
    pub tools: std::sync::Arc<[ToolView]>,
}

/// Tokens, as the provider counted them; zero where it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the request.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub completion_tokens: u64,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }
}

/// A model's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelAnswer {
    /// Its text, if any.
    pub text: Option<String>,
    /// The calls it proposes, in order.
    pub calls: Vec<ToolCall>,
    /// What it cost.
    pub usage: Usage,
    /// The model's name as the provider gives it.
    pub model: String,
}

/// Why a model call failed, in words the user can be told (`choir §7.7`). Never contains a key or a URL's credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ModelFailure {
    /// 429, and again after the wait.
    #[error(
        "the model's provider is limiting requests (waited {waited_ms} ms and tried again); send the message again in a while"
    )]
    RateLimited {
        /// How long was waited before the second try.
        waited_ms: u64,
    },
    /// 401 or 403.
    #[error(
        "the model's provider refuses the key (HTTP {status}); set it with `choirctl secret set` and apply it"
    )]
    Unauthorised {
        /// HTTP status.
        status: u16,
    },
    /// Another 4xx: the request itself is refused.
    #[error("the model's provider refuses the request (HTTP {status}): {reason}")]
    Rejected {
        /// HTTP status.
        status: u16,
        /// The provider's words, cut short.
        reason: String,
    },
    /// 5xx.
    #[error("the model's provider failed (HTTP {status}); send the message again to retry")]
    ServerError {
        /// HTTP status.
        status: u16,
    },
    /// No answer in time.
    #[error("the model did not answer within {after_ms} ms; send the message again to retry")]
    Timeout {
        /// The deadline that passed.
        after_ms: u64,
    },
    /// No connection, or it broke.
    #[error("the model's endpoint cannot be reached ({reason}); check its address and the network")]
    Unreachable {
        /// What the transport said.
        reason: String,
    },
    /// An answer that is not the protocol's.
    #[error("the model's answer is malformed ({reason}); send the message again to retry")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// The provider's filter stopped the answer.
    #[error("the provider's content filter stopped the answer; rephrase the message")]
    Filtered,
    /// The answer is larger than the control plane accepts.
    #[error("the model's answer is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// A session budget is used up (`choir §7.6`).
    #[error(
        "the session's budget is used up ({which}); start a new session with `choirctl agent restart --new-session`"
    )]
    Budget {
        /// Which budget.
        which: String,
    },
}

/// How to reach a model; hot-reloadable (`choir §21.2`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The name in config.json.
    pub name: String,
    /// The provider's model id.
    pub model: String,
    /// Base URL, to which `/chat/completions` is appended.
    pub endpoint: String,
    /// Sampling temperature, absent for models that take none.
    pub temperature: Option<f64>,
    /// Reasoning effort, passed as it is.
    pub reasoning_effort: Option<String>,
    /// The name of the secret that holds the key; none for endpoints that need no key.
    pub secret: Option<String>,
    /// Deadline of one call in milliseconds.
    pub timeout_ms: u64,
    /// Wait after a 429 that names no time, in milliseconds.
    pub rate_limit_retry_ms: u64,
    /// Extra request fields, passed as they are (request template).
    pub extra: Json,
}
