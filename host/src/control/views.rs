//! What the control socket answers with. The fields are the ones `--json` prints, so they are kept stable.

use std::collections::BTreeMap;

use choir_messages::event::{EventBody, MessageOutcome, Revision};
use choir_messages::id::{AgentId, MessageId, OutboundId, SessionId};
use choir_messages::session::Spent;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::Change;

/// To `ping`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PingView {
    /// choird's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Milliseconds since it was ready.
    pub uptime_ms: u64,
}

/// To `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    /// choird itself.
    pub choird: PingView,
    /// Version of the configuration in force.
    pub config_version: u64,
    /// `embedded` or `external`, and whether it answers.
    pub database: DatabaseView,
    /// `bubblewrap` or `process`.
    pub sandbox: String,
    /// Whether that isolates.
    pub isolates: bool,
    /// Things an operator should know, in sentences.
    pub warnings: Vec<String>,
    /// The agents.
    pub agents: Vec<AgentView>,
}

/// The database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatabaseView {
    /// `embedded` or `external`.
    pub kind: String,
    /// Whether it answers.
    pub up: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    /// Its name.
    pub agent: AgentId,
    /// `stopped`, `opening`, `starting`, `up`, `stopping`, `killing`, `closing`, `backing_off` or `failed`.
    pub state: String,
    /// What is wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Its session, if one was opened.
    pub session: Option<SessionId>,
    /// Counts its sandboxes.
    pub generation: Option<u64>,
    /// The sandbox's process.
    pub pid: Option<u32>,
    /// The agent's own process as the host sees it.
    pub agent_pid: Option<u32>,
    /// The sandbox's kind, while it runs.
    pub sandbox: Option<String>,
    /// Crashes since choird started.
    pub restarts: u64,
    /// Durable revision.
    pub revision: Revision,
    /// The newest revision the agent told of.
    pub newest: Revision,
    /// Version of the configuration in force at the agent.
    pub config_version: Option<u64>,
    /// Milliseconds since its last word.
    pub silent_ms: Option<u64>,
    /// Messages waiting to be handed over.
    pub waiting: usize,
    /// Whether someone reads its answers.
    pub attached: bool,
    /// Its lanes by name.
    pub lanes: BTreeMap<String, LaneView>,
    /// Its resources by kind.
    pub bindings: BTreeMap<String, String>,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneView {
    /// Such as `EDGE_IDLE`.
    pub state: String,
    /// What was spent.
    pub spent: Spent,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionLine {
    /// Its id.
    pub session: SessionId,
    /// Whose.
    pub agent: AgentId,
    /// `active`, `stopped`, `crashed` or `ended`.
    pub status: String,
    /// Counts its sandboxes.
    pub generation: u64,
    /// Durable revision.
    pub revision: Revision,
    /// When it last began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Its revision.
    pub rev: Revision,
    /// When.
    pub at: Timestamp,
    /// Its lane.
    pub lane: String,
    /// Its kind.
    pub kind: String,
    /// Everything it says.
    pub body: EventBody,
    /// Its hash.
    pub hash: String,
}

/// To `session_verify`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyView {
    /// Which.
    pub session: SessionId,
    /// Whether the chain holds from the first event to the stored head.
    pub verified: bool,
    /// Events read.
    pub events: u64,
    /// Hash of the last good event.
    pub head: String,
    /// What is wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One message of a user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MessageLine {
    /// Its id.
    pub message: MessageId,
    /// To whom.
    pub agent: AgentId,
    /// When it was accepted.
    pub received_at: Timestamp,
    /// `waiting`, `taken` or its outcome.
    pub state: String,
    /// Its text, cut short.
    pub text: String,
}

/// To `send`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SentView {
    /// The message.
    pub message: MessageId,
    /// Whether it had been accepted before.
    pub repeat: bool,
    /// How it ended, if it has.
    pub outcome: Option<MessageOutcome>,
}

/// One item of `chat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SaidView {
    /// Its id, by which repeats are recognised.
    pub outbound: OutboundId,
    /// The message it is about.
    pub message: MessageId,
    /// `answer` or `notice`.
    pub kind: String,
    /// What is said.
    pub text: String,
    /// Whether it may have been shown before.
    pub repeat: bool,
}

/// To `tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreeView {
    /// choird's own tree.
    pub choird: Value,
    /// Each running agent's, as it last reported it.
    pub agents: BTreeMap<String, Value>,
}

/// One check of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Stable id.
    pub id: String,
    /// How it went.
    pub status: CheckStatus,
    /// What was seen.
    pub evidence: String,
    /// What to do, where something is to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// Good.
    Ok,
    /// Works, but an operator should know.
    Warn,
    /// Does not work.
    Fail,
}

impl Check {
    /// A check that went well.
    #[must_use]
    pub fn ok(id: &str, evidence: impl Into<String>) -> Self {
        Self { id: id.into(), status: CheckStatus::Ok, evidence: evidence.into(), fix: None }
    }

    /// A check with something to know.
    #[must_use]
    pub fn warn(id: &str, evidence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.into(), status: CheckStatus::Warn, evidence: evidence.into(), fix: Some(fix.into()) }
    }

    /// A check that failed.
    #[must_use]
    pub fn fail(id: &str, evidence: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { id: id.into(), status: CheckStatus::Fail, evidence: evidence.into(), fix: Some(fix.into()) }
    }
}

/// To `config_reload`, `config_diff` and `secret_apply`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedView {
    /// Whether it was put into force; not by `config_diff`.
    pub applied: bool,
    /// The version now in force.
    pub config_version: u64,
    /// Agents that were told.
    pub told: Vec<AgentId>,
    /// Every field of config.json that is different, and when that takes effect.
    pub changes: Vec<Change>,
    /// What needs a restart, one sentence each.
    pub needs_restart: Vec<String>,
    /// What is missing, one sentence each.
    pub warnings: Vec<String>,
}
