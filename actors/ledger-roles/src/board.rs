//! What a trace says, folded for the roles: which proposals, intents, executions, claims and challenges there are, and
//! how each stands. The trace's own rules (what may be appended) are `choir_ledger::trace`'s business; this is what the
//! roles decide by, and nothing they do depends on anything else. A restarted role folds the same board.

use std::collections::BTreeMap;
use std::sync::Arc;

use choir_ledger::event::{EventType, Role};
use serde_json::Value;

use crate::task::Task;

/// One event of the trace, as the roles see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The event's id.
    pub event_id: String,
    /// Its time, in milliseconds since 1970.
    pub at: u64,
    /// Its type.
    pub kind: EventType,
    /// Who signed it.
    pub role: Role,
    /// Its payload.
    pub payload: Value,
    /// Hashes of the artefacts it names.
    pub artifacts: Vec<String>,
}

/// What the critic said last of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing yet.
    Waiting,
    /// Approved, with conditions or without.
    Approved,
    /// Rejected; for an intent: blocked.
    Rejected,
}

/// A proposal.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its event.
    pub id: String,
    /// What it is to reach.
    pub objective: String,
    /// What it takes for granted.
    pub assumptions: Vec<String>,
    /// Tools it needs.
    pub required_tools: Vec<String>,
    /// What will be shown for it.
    pub expected_evidence: Vec<String>,
    /// The proposal it comes after: one that was rejected, blocked or failed.
    pub after: Option<String>,
    /// Whether it is a fallback for one whose tools failed.
    pub fallback: bool,
    /// The critic's word.
    pub standing: Standing,
    /// Whether it was approved under conditions: then each intent needs the critic's own word.
    pub conditional: bool,
    /// Conditions of an approval.
    pub conditions: Vec<String>,
    /// The critic's reasons, also of a blocked intent.
    pub rationale: String,
    /// One of its intents was blocked: nothing more is done under it.
    pub blocked: bool,
    /// Another proposal came after it.
    pub superseded: bool,
}

impl Proposal {
    /// Whether work may go on under it.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.standing == Standing::Approved && !self.blocked && !self.superseded
    }

    /// Whether it needs another one after it, or has come to nothing.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        !self.superseded && (self.blocked || self.standing == Standing::Rejected)
    }
}

/// A signed intent to run a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Intent {
    /// Its event.
    pub id: String,
    /// Under which proposal.
    pub proposal: String,
    /// To settle the challenge of this claim, if any.
    pub claim: Option<String>,
    /// The tool.
    pub tool: String,
    /// Hash of its canonical input, which is an artefact.
    pub input: String,
    /// Its risk class.
    pub class: String,
    /// The critic's word.
    pub standing: Standing,
    /// The critic's reasons.
    pub rationale: String,
    /// The execution it was used for.
    pub execution: Option<String>,
}

/// How an execution ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// Whether the tool did what was asked.
    pub completed: bool,
    /// The output's hash.
    pub output: Option<String>,
    /// The event.
    pub event: String,
}

/// One run of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Execution {
    /// `exec_` and the invocation's id.
    pub id: String,
    /// The tool.
    pub tool: String,
    /// Its intent's event.
    pub intent: String,
    /// The agent session that runs it, and that session's revision before it was asked to.
    pub place: Option<(String, u64)>,
    /// How it ended.
    pub ended: Option<Ended>,
}

/// A claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// `claim_` and a ULID.
    pub id: String,
    /// What is claimed.
    pub text: String,
    /// How sure the executor is, 0 to 1.
    pub confidence: f64,
    /// Hashes of the artefacts that show it.
    pub evidence: Vec<String>,
    /// Under which proposal.
    pub proposal: String,
    /// The position of its last issue in the trace.
    pub issued_at: usize,
    /// Its last issue conceded the challenge.
    pub conceded: bool,
}

/// A challenge.
#[derive(Debug, Clone, PartialEq)]
pub struct Challenge {
    /// Its event.
    pub id: String,
    /// The claim.
    pub claim: String,
    /// Why.
    pub reason: String,
    /// A later issue of the claim settled it.
    pub settled: bool,
}

/// The verification as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The verdict's name.
    pub status: String,
    /// The report.
    pub report: String,
}

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// The task and the agent whose tools are used, once the session is initialised.
    pub task: Option<(Task, String)>,
    /// When the session began, in milliseconds since 1970.
    pub began: u64,
    /// Events so far.
    pub count: usize,
    /// In order.
    pub proposals: Vec<Proposal>,
    /// In order.
    pub intents: Vec<Intent>,
    /// In order.
    pub executions: Vec<Execution>,
    /// In order of their first issue.
    pub claims: Vec<Claim>,
    /// In order.
    pub challenges: Vec<Challenge>,
    /// Whether the latest review is an approval: without it no tool may be asked for or started.
    pub gate_open: bool,
    /// The position of the critic's last review of claims.
    pub claims_reviewed: Option<usize>,
    /// What the final statement says.
    pub finale: Option<String>,
    /// The verification run has begun.
    pub auditing: bool,
    /// And ended.
    pub verified: Option<Verified>,
    /// Texts of the artefacts the roles read: tools' inputs and outputs, by hash.
    pub texts: BTreeMap<String, Arc<str>>,
    /// All events, for whoever shows them.
    pub entries: Vec<Arc<Entry>>,
}

fn text(payload: &Value, name: &str) -> String {
    payload.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn some(payload: &Value, name: &str) -> Option<String> {
    payload.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn texts(payload: &Value, name: &str) -> Vec<String> {
    let list = payload.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl Board {
    /// Folds one event in. What does not fit (a foreign trace may hold anything) is counted and passed over.
    pub fn apply(&mut self, entry: Arc<Entry>) {
        let position = self.count;
        self.count += 1;
        let payload = &entry.payload;
        match entry.kind {
            EventType::SessionInitialized => {
                self.began = entry.at;
                self.task = Task::of_payload(payload).ok();
            }
            EventType::ProposalCreated => self.propose(&entry.event_id, payload),
            EventType::ProposalReviewed => self.review(position, payload),
            EventType::ToolIntentSigned => self.intents.push(Intent {
                id: entry.event_id.clone(),
                proposal: text(payload, "proposal_event_id"),
                claim: some(payload, "settles_claim_id"),
                tool: text(payload, "tool_name"),
                input: text(payload, "normalized_input_hash"),
                class: text(payload, "safety_classification"),
                standing: Standing::Waiting,
                rationale: String::new(),
                execution: None,
            }),
            EventType::ToolExecutionStarted => self.start(payload),
            EventType::ToolExecutionCompleted => self.end(&entry, true),
            EventType::ToolExecutionFailed => self.end(&entry, false),
            EventType::ArtifactRecorded => {}
            EventType::ClaimIssued => self.claim(position, payload),
            EventType::ClaimChallenged => self.challenges.push(Challenge {
                id: entry.event_id.clone(),
                claim: text(payload, "challenged_claim_id"),
                reason: text(payload, "reason"),
                settled: false,
            }),
            EventType::FinalStatementSigned => self.finale = Some(text(payload, "final_verdict_text")),
            EventType::VerificationRunStarted => self.auditing = true,
            EventType::VerificationRunCompleted => {
                self.verified = Some(Verified {
                    status: text(payload, "verification_status"),
                    report: text(payload, "report_id"),
                });
            }
        }
        self.entries.push(entry);
    }

    fn propose(&mut self, id: &str, payload: &Value) {
        let failed = some(payload, "fallback_of_execution_id");
        let of_failed = |id: &String| {
            let execution = self.executions.iter().find(|execution| execution.id == *id)?;
            Some(self.intent(&execution.intent)?.proposal.clone())
        };
        let after = some(payload, "revises_event_id").or_else(|| failed.as_ref().and_then(of_failed));
        if let Some(before) = &after
            && let Some(before) = self.proposals.iter_mut().find(|proposal| proposal.id == *before)
        {
            before.superseded = true;
        }
        self.proposals.push(Proposal {
            id: id.to_owned(),
            objective: text(payload, "objective"),
            assumptions: texts(payload, "assumptions"),
            required_tools: texts(payload, "required_tools"),
            expected_evidence: texts(payload, "expected_evidence"),
            fallback: failed.is_some(),
            after,
            standing: Standing::Waiting,
            conditional: false,
            conditions: Vec::new(),
            rationale: String::new(),
            blocked: false,
            superseded: false,
        });
    }

    fn review(&mut self, position: usize, payload: &Value) {
        let status = text(payload, "proposal_status");
        let approved = status == "approved" || status == "conditionally_approved";
        self.gate_open = approved;
        let standing = if approved { Standing::Approved } else { Standing::Rejected };
        if payload.get("reviewed_claim_ids").is_some() {
            self.claims_reviewed = Some(position);
            return;
        }
        let rationale = text(payload, "rationale");
        if let Some(intent) = some(payload, "intent_event_id") {
            let Some(intent) = self.intents.iter_mut().find(|known| known.id == intent) else { return };
            intent.standing = standing;
            intent.rationale.clone_from(&rationale);
            let proposal = intent.proposal.clone();
            if !approved && let Some(proposal) = self.proposals.iter_mut().find(|known| known.id == proposal)
            {
                proposal.blocked = true;
                proposal.rationale = rationale;
            }
            return;
        }
        let of = some(payload, "proposal_event_id");
        // A review that names none is about the newest, as in traces that know only one proposal.
        let proposal = match of {
            Some(of) => self.proposals.iter_mut().find(|known| known.id == of),
            None => self.proposals.last_mut(),
        };
        if let Some(proposal) = proposal {
            proposal.standing = standing;
            proposal.conditional = status == "conditionally_approved";
            proposal.conditions = texts(payload, "conditions");
            proposal.rationale = rationale;
        }
    }

    fn start(&mut self, payload: &Value) {
        let (id, intent) = (text(payload, "execution_id"), text(payload, "intent_event_id"));
        if let Some(intent) = self.intents.iter_mut().find(|known| known.id == intent) {
            intent.execution = Some(id.clone());
        }
        let session = some(payload, "agent_session");
        let place = session.zip(payload.get("agent_revision").and_then(Value::as_u64));
        self.executions.push(Execution { id, tool: text(payload, "tool_name"), intent, place, ended: None });
    }

    fn end(&mut self, entry: &Entry, completed: bool) {
        let id = text(&entry.payload, "execution_id");
        if let Some(execution) = self.executions.iter_mut().find(|known| known.id == id) {
            let output = texts(&entry.payload, "output_artifact_hashes").into_iter().next();
            let output = output.or_else(|| entry.artifacts.first().cloned());
            execution.ended = Some(Ended { completed, output, event: entry.event_id.clone() });
        }
    }

    fn claim(&mut self, position: usize, payload: &Value) {
        let id = text(payload, "claim_id");
        let resolved = payload.get("resolved").and_then(Value::as_bool).unwrap_or_default();
        let claim = Claim {
            id: id.clone(),
            text: text(payload, "claim_text"),
            confidence: payload.get("confidence").and_then(Value::as_f64).unwrap_or_default(),
            evidence: texts(payload, "evidence_artifacts"),
            proposal: text(payload, "proposal_event_id"),
            issued_at: position,
            conceded: payload.get("conceded").and_then(Value::as_bool).unwrap_or_default(),
        };
        if resolved {
            let of_claim = self.challenges.iter_mut().filter(|challenge| challenge.claim == id);
            of_claim.for_each(|challenge| challenge.settled = true);
        }
        match self.claims.iter_mut().find(|known| known.id == id) {
            Some(known) => *known = claim,
            None => self.claims.push(claim),
        }
    }

    /// The proposal of this event.
    #[must_use]
    pub fn proposal(&self, id: &str) -> Option<&Proposal> {
        self.proposals.iter().find(|proposal| proposal.id == id)
    }

    /// The intent of this event.
    #[must_use]
    pub fn intent(&self, id: &str) -> Option<&Intent> {
        self.intents.iter().find(|intent| intent.id == id)
    }

    /// A proposal and those it comes after, the first first.
    #[must_use]
    pub fn lineage(&self, id: &str) -> Vec<&Proposal> {
        let mut line = Vec::new();
        let mut next = self.proposal(id);
        // A foreign trace may go round in circles.
        while let Some(proposal) = next.filter(|_| line.len() <= self.proposals.len()) {
            line.push(proposal);
            next = proposal.after.as_deref().and_then(|before| self.proposal(before));
        }
        line.reverse();
        line
    }

    /// Whether the executor has said what it has to say under this proposal.
    #[must_use]
    pub fn is_concluded(&self, proposal: &str) -> bool {
        self.claims.iter().any(|claim| claim.proposal == proposal)
    }

    /// Executions that have ended, under this proposal or one it comes after.
    pub fn ended_under<'a>(&'a self, proposal: &'a str) -> impl Iterator<Item = (&'a Execution, &'a Ended)> {
        let line: Vec<&str> = self.lineage(proposal).into_iter().map(|p| p.id.as_str()).collect();
        self.executions.iter().filter_map(move |execution| {
            let intent = self.intent(&execution.intent)?;
            line.contains(&intent.proposal.as_str()).then_some(())?;
            Some((execution, execution.ended.as_ref()?))
        })
    }

    /// Failed executions under this very proposal.
    #[must_use]
    pub fn failures_under(&self, proposal: &str) -> usize {
        let of = |execution: &&Execution| {
            self.intent(&execution.intent).is_some_and(|intent| intent.proposal == proposal)
                && execution.ended.as_ref().is_some_and(|ended| !ended.completed)
        };
        self.executions.iter().filter(of).count()
    }

    /// The newest challenge of a claim that nothing settled, and how many there were in all.
    #[must_use]
    pub fn open_challenge(&self, claim: &str) -> Option<(&Challenge, usize)> {
        let of_claim = || self.challenges.iter().filter(|challenge| challenge.claim == claim);
        let open = of_claim().rfind(|challenge| !challenge.settled)?;
        Some((open, of_claim().count()))
    }

    /// Whether a proposal waits for the critic.
    #[must_use]
    pub fn awaits_review(&self) -> bool {
        self.proposals.iter().any(|proposal| proposal.standing == Standing::Waiting && !proposal.superseded)
    }
}
