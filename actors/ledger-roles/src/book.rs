//! The trace as the scribe writes it: admits, signs, appends, syncs. The store's writer is one book; tests have another.

use choir_ledger::event::{Event, EventType, Role};
use choir_ledger::id::TraceId;
use choir_messages::chain::Digest;

use crate::board::Entry;
use crate::draft::Draft;

/// Why something was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BookError {
    /// The trace's rules refuse it; nothing was written.
    #[error("{0}")]
    Refused(String),
    /// The role signs no more in this trace, whatever it has to say; nothing was written.
    #[error("{0}")]
    NoSigner(String),
    /// It could not be written. What was acknowledged before stands.
    #[error("{0}")]
    Failed(String),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Verified: passed, with warnings or without.
    Completed,
    /// Without success.
    Failed,
    /// On an operator's word.
    Aborted,
}

/// One trace, open for writing. Its calls block; the scribe makes them where that harms nobody.
pub trait Book: Send + 'static {
    /// The trace.
    fn trace(&self) -> TraceId;

    /// Every event so far.
    fn events(&self) -> Result<Vec<Event>, BookError>;

    /// Appends these in order and returns once they are synced. If one is refused, those before it stand.
    fn append(&mut self, role: Role, drafts: &[Draft]) -> Result<Vec<Event>, (Vec<Event>, BookError)>;

    /// An artefact's bytes.
    fn artifact(&self, hash: &Digest) -> Option<Vec<u8>>;

    /// Brings what stands beside the ledger up to date, so that the trace can be verified while it is open.
    fn checkpoint(&mut self) -> Result<(), BookError>;

    /// Ends the trace.
    fn finish(self: Box<Self>, ending: Ending, reason: &str) -> Result<(), BookError>;
}

/// An event as the roles see it.
#[must_use]
pub fn entry(event: &Event) -> Entry {
    Entry {
        event_id: event.event_id().to_string(),
        at: event.created_at().millis(),
        kind: event.event_type(),
        role: event.actor().role,
        payload: serde_json::from_str(&event.payload().to_json()).unwrap_or_default(),
        artifacts: event.artifacts().iter().map(|artefact| artefact.artifact_hash.to_string()).collect(),
    }
}

/// Whether the roles read the artefacts of such an event.
#[must_use]
pub const fn is_read(kind: EventType) -> bool {
    matches!(
        kind,
        EventType::ToolIntentSigned | EventType::ToolExecutionCompleted | EventType::ToolExecutionFailed
    )
}
