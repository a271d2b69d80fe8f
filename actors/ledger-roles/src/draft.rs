//! What a role wants in the trace: an event that is not signed yet, with the artefacts it brings.

use choir_ledger::event::EventType;
use serde_json::Value;

/// An artefact of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes to be stored before the event is appended.
    New {
        /// The bytes, a text.
        text: String,
        /// Such as `application/json`.
        media_type: &'static str,
    },
    /// One that an earlier event of the trace carried, by its hash.
    Again(String),
}

/// An event as a role drafts it. The scribe gives it its id, time, place in the chain and signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// Its type.
    pub kind: EventType,
    /// Its payload: keys of lower-case letters and underscores only, so that every reader hashes them alike.
    pub payload: Value,
    /// Claims it is about.
    pub claims: Vec<String>,
    /// Artefacts it names.
    pub artifacts: Vec<Piece>,
}

impl Draft {
    /// A draft without claims and artefacts.
    #[must_use]
    pub const fn new(kind: EventType, payload: Value) -> Self {
        Self { kind, payload, claims: Vec::new(), artifacts: Vec::new() }
    }

    /// With these artefacts.
    #[must_use]
    pub fn with(mut self, artifacts: impl IntoIterator<Item = Piece>) -> Self {
        self.artifacts.extend(artifacts);
        self
    }

    /// About these claims.
    #[must_use]
    pub fn about(mut self, claims: impl IntoIterator<Item = String>) -> Self {
        self.claims.extend(claims);
        self
    }
}
