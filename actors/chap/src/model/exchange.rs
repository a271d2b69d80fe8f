//! Whispers, deliberations and handoffs as they are stored (digest §3.6).

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Stored;

/// Where a whisper stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhisperState {
    /// Nobody has answered.
    Pending,
    /// Somebody has.
    Answered,
    /// The deadline came first: the default holds.
    Lapsed,
}

/// A question in the middle of a task, with a default for when nobody answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Whisper {
    /// Its id.
    pub id: String,
    /// The task it is about.
    pub task_id: String,
    /// Who asks.
    pub asker: String,
    /// Who may answer.
    pub askees: Vec<String>,
    /// The question.
    pub question: Value,
    /// `{id, label}` each; empty for a free answer.
    pub options: Vec<Value>,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// How long it waits, in milliseconds.
    pub deadline_ms: u64,
    /// What holds when nobody answers.
    pub default_if_lapsed: Value,
    /// `low` unless said.
    pub urgency: String,
    /// Where it stands.
    pub state: WhisperState,
    /// Who answered when with which words: what was given.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub answer: Map<String, Value>,
}

impl Whisper {
    /// When nobody may answer any more.
    #[must_use]
    pub const fn lapses_at(&self) -> Timestamp {
        Timestamp::from_millis(self.asked_at.millis().saturating_add(self.deadline_ms))
    }
}

impl Stored for Whisper {
    const KIND: ObjectKind = ObjectKind::Whisper;
    fn id(&self) -> &str {
        &self.id
    }
    fn open(&self) -> bool {
        self.state == WhisperState::Pending
    }
    fn due(&self) -> Option<Timestamp> {
        self.open().then(|| self.lapses_at())
    }
}

/// One vote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    /// When.
    pub ts: Timestamp,
    /// Whose.
    pub voter: String,
    /// `yea`, `nay` or `abstain`.
    pub vote: String,
    /// Whether the voter vetoes.
    pub veto_invoked: bool,
    /// A weight the voter claims: kept, never counted.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub weight: Value,
    /// Words.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub comment: Value,
}

/// One comment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comment {
    /// When.
    pub ts: Timestamp,
    /// By whom.
    pub from: String,
    /// What.
    pub text: Value,
}

/// A decision by several, under a rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deliberation {
    /// Its id.
    pub id: String,
    /// The task it is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// Who opened it.
    pub opener: String,
    /// Who may vote, each once.
    pub participants: Vec<String>,
    /// The rule's text.
    pub rule: String,
    /// The question.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub question: Value,
    /// Weights by URI; 1 for who is not named.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub weights: Map<String, Value>,
    /// Who may veto.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub veto: Map<String, Value>,
    /// Its deadline as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The same as a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// Votes, in order.
    pub votes: Vec<Vote>,
    /// Comments, in order, the newest ones.
    pub comments: Vec<Comment>,
    /// What came of it; closed once there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Value>,
}

impl Deliberation {
    /// Whether votes are taken at this time.
    #[must_use]
    pub fn takes_votes(&self, now: Timestamp) -> bool {
        self.outcome.is_none() && self.due.is_none_or(|due| now < due)
    }
}

impl Stored for Deliberation {
    const KIND: ObjectKind = ObjectKind::Deliberation;
    fn id(&self) -> &str {
        &self.id
    }
    fn open(&self) -> bool {
        self.outcome.is_none()
    }
    fn due(&self) -> Option<Timestamp> {
        self.due.filter(|_| self.open())
    }
}

/// Where a handoff stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoffState {
    /// Nobody has taken it.
    Proposed,
    /// Somebody has.
    Accepted,
    /// Its recipient will not.
    Declined,
}

impl HandoffState {
    /// Its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Accepted => "accepted",
            Self::Declined => "declined",
        }
    }
}

/// Tasks on their way from one participant to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Handoff {
    /// Its id.
    pub id: String,
    /// Who hands over.
    pub proposer: String,
    /// Who is to take it: a member or a `group:`.
    pub recipient: String,
    /// When it was proposed.
    pub proposed_at: Timestamp,
    /// The tasks as described: `task_id`, `title`, `status_summary`, `next_action`, `blockers`.
    pub tasks: Vec<Value>,
    /// Words about all of them, and links.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub more: Map<String, Value>,
    /// Where it stands.
    pub state: HandoffState,
    /// Who resolved it when and with which words; of a group, the last one who declined.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub resolution: Map<String, Value>,
}

impl Handoff {
    /// The ids of its tasks, in the order proposed.
    #[must_use]
    pub fn task_ids(&self) -> Vec<&str> {
        self.tasks.iter().filter_map(|task| task.get("task_id").and_then(Value::as_str)).collect()
    }
}

impl Stored for Handoff {
    const KIND: ObjectKind = ObjectKind::Handoff;
    fn id(&self) -> &str {
        &self.id
    }
    fn open(&self) -> bool {
        self.state == HandoffState::Proposed
    }
}
