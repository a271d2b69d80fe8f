//! Refusals: what a caller is told instead of a result.

use choir_messages::chap::{ObjectKey, ObjectKind};
use serde_json::{Value, json};

use crate::codes;

/// A JSON-RPC error: a documented code, one sentence for a person, and details where there are some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct Refusal {
    /// One of [`crate::codes`].
    pub code: i64,
    /// What is wrong, without anything internal.
    pub message: String,
    /// Details for a program.
    pub data: Option<Value>,
}

impl Refusal {
    /// A refusal with this code and message.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same with details.
    #[must_use]
    pub fn with(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// -32602 with this message.
    #[must_use]
    pub fn params(message: impl Into<String>) -> Self {
        Self::new(codes::PARAMS, message)
    }

    /// -32602 for a required field that is not there.
    #[must_use]
    pub fn missing(field: &str) -> Self {
        Self::params(format!("Missing field: {field}"))
    }

    /// -32011: the sender is not a member. A sender that is no URI is answered without repeating it.
    #[must_use]
    pub fn not_a_member(from: Option<&str>) -> Self {
        Self::new(
            codes::NOT_AUTHORISED,
            format!("Not a workspace member: {}", from.unwrap_or("from is not a participant URI")),
        )
    }

    /// The JSON-RPC error object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (Some(data), Some(map)) = (&self.data, error.as_object_mut()) {
            map.insert("data".to_owned(), data.clone());
        }
        error
    }
}

/// Why a handler ends without a result.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The call is refused.
    Refused(Refusal),
    /// An object has to be loaded first; the handler then runs again from its start.
    Needs(Vec<ObjectKey>),
    /// All open objects of a kind have to be loaded first.
    NeedsOpen(ObjectKind),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
