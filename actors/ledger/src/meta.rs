//! `trace.meta.json`: what is said about a trace beside its ledger. No signature covers it; the strict reading holds it
//! against the ledger (R07, R16).

use crate::event::Role;
use crate::id::TraceId;
use choir_messages::chain::Digest;
use serde::{Deserialize, Serialize};

/// How a trace stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceStatus {
    /// The run goes on.
    Running,
    /// Verified and completed.
    Succeeded,
    /// Ended without success.
    Failed,
    /// Ended by an operator.
    Aborted,
    /// Found damaged.
    Tampered,
}

/// Who takes part in a trace, in which role, with which key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Participant {
    /// The agent.
    pub agent_id: String,
    /// Its role.
    pub role: Role,
    /// The key it signs with.
    pub key_id: String,
}

/// The object in `trace.meta.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceMeta {
    /// `1.0.0`.
    pub schema_version: String,
    /// The trace.
    pub trace_id: TraceId,
    /// The task it works on, as the task file calls it.
    pub task_id: String,
    /// When it began; [`crate::time`]'s form.
    pub started_at: String,
    /// How it stands.
    pub status: TraceStatus,
    /// Who takes part.
    pub participants: Vec<Participant>,
    /// The last event's hash, 64 zeros before the first.
    pub head_event_hash: Digest,
    /// How many events there are.
    pub event_count: u64,
    /// How many descriptors the events hold in sum.
    pub artifact_count: u64,
    /// The policy profile: `strict`, `default` or `lenient`.
    pub policy_profile: String,
    /// A digest of the settings the run had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_fingerprint: Option<String>,
    /// Versions of the tools that took part, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_versions: Option<std::collections::BTreeMap<String, String>>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Members this version does not know; kept when the file is written again.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}
