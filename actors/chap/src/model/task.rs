//! Tasks, their reviews, and the overrides that reviews leave (digest §3.7).

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Stored;
use crate::limits::HISTORY;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of digest §3.7")]
pub enum TaskState {
    Created,
    InProgress,
    ReviewRequested,
    Completed,
    Declined,
    Abstained,
    Escalated,
    Paused,
    Cancelled,
    Superseded,
}

impl TaskState {
    /// Its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::InProgress => "in_progress",
            Self::ReviewRequested => "review_requested",
            Self::Completed => "completed",
            Self::Declined => "declined",
            Self::Abstained => "abstained",
            Self::Escalated => "escalated",
            Self::Paused => "paused",
            Self::Cancelled => "cancelled",
            Self::Superseded => "superseded",
        }
    }

    /// Whether nothing more is to be done on the task.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Declined | Self::Cancelled | Self::Superseded)
    }
}

impl std::fmt::Display for TaskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The promotion ladder: shadow < trial < production (digest §3.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The output is recorded and delivered to nobody.
    Shadow,
    /// Every output is reviewed.
    Trial,
    /// Reviewed as the work asks.
    Production,
}

impl Mode {
    /// The mode of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "shadow" => Some(Self::Shadow),
            "trial" => Some(Self::Trial),
            "production" => Some(Self::Production),
            _ => None,
        }
    }

    /// Its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shadow => "shadow",
            Self::Trial => "trial",
            Self::Production => "production",
        }
    }
}

/// One step of a task's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When.
    pub ts: Timestamp,
    /// By whom.
    pub from: String,
    /// Into which state.
    pub state: TaskState,
    /// With which words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One reviewer's decision: its kind, and what came with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Who decided.
    pub reviewer: String,
    /// `approve`, `reject`, `override` or `abstain`.
    pub kind: String,
    /// When.
    pub ts: Timestamp,
    /// `comment`, `tags`, `override_artefact_id`, `abstain_category`: what the kind has.
    #[serde(default)]
    pub more: Map<String, Value>,
}

/// A review, once it has been asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Review {
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// Who asked.
    pub requested_by: String,
    /// Who may decide.
    pub requested_to: Vec<String>,
    /// `any_one_approves`, `all_approve` or `quorum:n`.
    pub rule: String,
    /// Until when, in the caller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The same as a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Timestamp>,
    /// The deadline has passed and this has been told.
    #[serde(default)]
    pub lapsed: bool,
    /// What was decided so far.
    #[serde(default)]
    pub decisions: Vec<Decision>,
    /// The decisions before this one were about an artefact that has been handed in anew since: they stay on record and
    /// count no more.
    #[serde(default)]
    pub since: usize,
}

impl Review {
    /// Whether its deadline has passed at that moment.
    #[must_use]
    pub fn is_past(&self, now: Timestamp) -> bool {
        self.lapsed || self.due.is_some_and(|due| now >= due)
    }

    fn to_wire(&self) -> Value {
        let decisions = self.decisions.iter().map(|decision| {
            let mut out = decision.more.clone();
            out.insert("reviewer".to_owned(), json!(decision.reviewer));
            out.insert("kind".to_owned(), json!(decision.kind));
            out.insert("ts".to_owned(), json!(decision.ts.to_string()));
            Value::Object(out)
        });
        let mut out = json!({
            "requested_at": self.requested_at.to_string(),
            "requested_to": self.requested_to,
            "rule": self.rule,
            "decisions": decisions.collect::<Vec<_>>(),
        });
        if let Some(map) = out.as_object_mut() {
            if let Some(deadline) = &self.deadline {
                map.insert("deadline".to_owned(), json!(deadline));
            }
            if self.lapsed {
                map.insert("lapsed".to_owned(), json!(true));
            }
        }
        out
    }
}

/// Who has to do with a new task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parties {
    /// Who does it.
    pub assignee: String,
    /// Who asks for it.
    pub delegator: String,
}

/// A unit of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// `tsk_` and a ULID.
    pub id: String,
    /// What sort of work.
    pub kind: String,
    /// Where it stands.
    pub state: TaskState,
    /// Who does it.
    pub assignee: String,
    /// Who asked for it.
    pub delegator: String,
    /// What it starts from.
    pub input: Value,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Its mode.
    pub mode: Mode,
    /// Until when, in the caller's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// Hints for `routing/1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_hints: Option<Map<String, Value>>,
    /// Its review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review: Option<Review>,
    /// Completing it opens a review.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub review_required: Option<bool>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub output: Value,
    /// How sure its producer was.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub confidence: Value,
    /// What is under review.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub pending_artefact: Value,
    /// Who handed in what is under review or was put out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer: Option<String>,
    /// The task it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<String>,
    /// The task that replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub superseded_by: Option<String>,
    /// The state it was in when it was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_from: Option<TaskState>,
    /// What happened to it.
    #[serde(default)]
    pub history: Vec<Step>,
}

impl Task {
    /// A task just created.
    #[must_use]
    pub fn new(
        id: String,
        kind: String,
        parties: Parties,
        input: Value,
        mode: Mode,
        now: Timestamp,
        note: Option<String>,
    ) -> Self {
        let Parties { assignee, delegator } = parties;
        let step = Step { ts: now, from: delegator.clone(), state: TaskState::Created, note };
        Self {
            id,
            kind,
            state: TaskState::Created,
            assignee,
            delegator,
            input,
            created_at: now,
            updated_at: now,
            mode,
            deadline: None,
            routing_hints: None,
            review: None,
            review_required: None,
            output: Value::Null,
            confidence: Value::Null,
            pending_artefact: Value::Null,
            producer: None,
            supersedes: None,
            superseded_by: None,
            paused_from: None,
            history: vec![step],
        }
    }

    /// Moves it into a state and writes that into its history.
    pub fn enter(&mut self, state: TaskState, from: &str, now: Timestamp, note: Option<String>) {
        self.state = state;
        self.updated_at = now;
        // The first step and the newest stay; the log has all.
        if self.history.len() >= HISTORY && self.history.len() > 1 {
            self.history.remove(1);
        }
        self.history.push(Step { ts: now, from: from.to_owned(), state, note });
    }

    /// Its descriptor on the wire. `withheld` leaves out what came of it (`modes/1.0`, shadow).
    #[must_use]
    pub fn to_wire(&self, withheld: bool) -> Value {
        let mut out = Map::new();
        let mut put = |name: &str, value: Value| out.insert(name.to_owned(), value);
        put("id", json!(self.id));
        put("kind", json!(self.kind));
        put("state", json!(self.state.as_str()));
        put("assignee", json!(self.assignee));
        put("delegator", json!(self.delegator));
        put("input", self.input.clone());
        put("created_at", json!(self.created_at.to_string()));
        put("updated_at", json!(self.updated_at.to_string()));
        put("mode", json!(self.mode.as_str()));
        put("history", self.history.iter().map(step_to_wire).collect());
        let texts = [
            ("deadline", &self.deadline),
            ("supersedes", &self.supersedes),
            ("superseded_by", &self.superseded_by),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                put(name, json!(text));
            }
        }
        if let Some(hints) = self.routing_hints.as_ref().filter(|hints| !hints.is_empty()) {
            put("routing_hints", Value::Object(hints.clone()));
        }
        if let Some(review) = &self.review {
            put("review", review.to_wire());
        }
        if let Some(required) = self.review_required {
            put("review_required", json!(required));
        }
        if let Some(state) = self.paused_from {
            put("paused_from", json!(state.as_str()));
        }
        if withheld {
            put("output_withheld", json!(true));
            return Value::Object(out);
        }
        for (name, value) in [
            ("output", &self.output),
            ("confidence", &self.confidence),
            ("pending_artefact", &self.pending_artefact),
        ] {
            if !value.is_null() {
                put(name, value.clone());
            }
        }
        Value::Object(out)
    }
}

fn step_to_wire(step: &Step) -> Value {
    let mut out = json!({"ts": step.ts.to_string(), "from": step.from, "state": step.state.as_str()});
    if let (Some(note), Some(map)) = (step.note.as_ref().filter(|note| !note.is_empty()), out.as_object_mut())
    {
        map.insert("note".to_owned(), json!(note));
    }
    out
}

impl Stored for Task {
    const KIND: ObjectKind = ObjectKind::Task;
    fn id(&self) -> &str {
        &self.id
    }
    fn open(&self) -> bool {
        !self.state.is_over()
    }
    fn due(&self) -> Option<Timestamp> {
        let review = self.review.as_ref().filter(|review| !review.lapsed)?;
        review.due.filter(|_| self.state == TaskState::ReviewRequested)
    }
}

/// What `decide.override` leaves: the difference a person made, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// `art_` and a ULID.
    pub id: String,
    /// The task reviewed.
    pub task_id: String,
    /// Who decided.
    pub reviewer: String,
    /// What was under review.
    pub based_on_artefact: Value,
    /// The JSON Patch.
    pub diff: Value,
    /// What came of it.
    pub result: Value,
    /// Why.
    pub rationale: Value,
    /// Tags of the reviewer's choice.
    pub tags: Vec<String>,
    /// Policies the reviewer names.
    pub policy_refs: Value,
    /// When.
    pub ts: Timestamp,
    /// Which decision it expresses, across instances.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub logical_id: Value,
    /// Which instance of it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub instance_id: Value,
    /// Whether the intent stayed and only its expression changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent_preserved: Option<bool>,
}

impl Stored for Override {
    const KIND: ObjectKind = ObjectKind::Override;
    fn id(&self) -> &str {
        &self.id
    }
}
