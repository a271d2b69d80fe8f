//! What the control socket says of the signed ledger's runs.

use choir_messages::id::AgentId;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A run under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    /// The trace's id.
    pub trace: String,
    /// The task's name.
    pub task_id: String,
    /// The agent whose tools are used.
    pub agent: AgentId,
    /// Events so far.
    pub events: u64,
    /// The trace's folder.
    pub path: String,
}

/// One event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventView {
    /// Its place, from 1.
    pub place: u64,
    /// Its id.
    pub event_id: String,
    /// Its time.
    pub at: Timestamp,
    /// Who signed it.
    pub role: String,
    /// Its type.
    pub kind: String,
    /// What it says.
    pub payload: Value,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndView {
    /// `completed`, `failed` or `aborted`.
    pub status: String,
    /// Why, for a person.
    pub reason: String,
    /// Whether a rule of policy is why it was not completed.
    pub refused: bool,
    /// The verdict, if it was verified.
    pub verdict: Option<String>,
}
