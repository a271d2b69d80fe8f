//! The parts of a payload that the order of events and the claims depend on. Names are kept as 16 bytes of their SHA-256:
//! they are compared only, and may be of any length.

use crate::event::EventType;
use crate::json::{Object, Value};
use crate::payload::read_hash;
use choir_messages::chain::Digest;

/// A name or text, for comparison: the first half of its SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 16]);

impl Key {
    fn of(bytes: &[u8]) -> Self {
        let digest = Digest::of(bytes);
        Self(digest.bytes().first_chunk().copied().unwrap_or_default())
    }

    /// The key of a value that is there: a string's content, or the JSON of anything else.
    fn value(value: &Value<'_>) -> Self {
        match value.as_str() {
            Some(text) => Self::of(text.as_bytes()),
            None => Self::of(format!("\0{}", value.to_json()).as_bytes()),
        }
    }
}

/// What an event says, by its type.
pub(super) enum Says {
    /// Nothing that matters to others.
    Nothing,
    /// `session_initialized`.
    Session,
    /// `proposal_created`.
    Proposal,
    /// `proposal_reviewed`.
    Review {
        approves: bool,
    },
    /// `tool_intent_signed`.
    Intent {
        tool: Key,
    },
    /// `tool_execution_started`.
    Started {
        tool: Key,
        execution: Key,
    },
    /// `tool_execution_completed` and `tool_execution_failed`.
    Ended {
        execution: Key,
        /// `output_artifact_hashes`; nothing for what is no hash.
        outputs: Vec<Option<Digest>>,
    },
    Claim(Box<Claim>),
    /// `claim_challenged`.
    Challenge {
        claim: Option<Key>,
    },
    /// `final_statement_signed`.
    Final {
        claims: Vec<Key>,
    },
    /// `verification_run_started`.
    AuditBegins {
        profile: Option<String>,
    },
    /// `verification_run_completed`.
    AuditEnds {
        failed: bool,
    },
}

/// `claim_issued`.
pub(super) struct Claim {
    /// `payload.claim_id`, else the first of `claims`; nothing if neither is there or it is empty.
    pub(super) id: Option<Key>,
    /// `payload.evidence_artifacts`, else the hashes of the descriptors; nothing for what is no hash.
    pub(super) evidence: Vec<Option<Digest>>,
    /// `payload.claim_text`.
    pub(super) text: Key,
    /// `payload.resolved` is true.
    pub(super) resolved: bool,
}

impl Says {
    pub(super) fn read(event_type: Option<EventType>, event: &Object<'_>) -> Self {
        let member = |name: &str| {
            event.get("payload").and_then(|payload| payload.get(name)).filter(|value| !value.is_null())
        };
        // What is missing is a name of its own, equal to itself.
        let key = |name: &str| member(name).map_or_else(|| Key::of(b"\0"), Key::value);
        let items = |name: &str| member(name).and_then(Value::as_array);
        let Some(event_type) = event_type else { return Self::Nothing };
        match event_type {
            EventType::SessionInitialized => Self::Session,
            EventType::ProposalCreated => Self::Proposal,
            EventType::ProposalReviewed => {
                let status = member("proposal_status").and_then(Value::as_str);
                Self::Review { approves: matches!(status, Some("approved" | "conditionally_approved")) }
            }
            EventType::ToolIntentSigned => Self::Intent { tool: key("tool_name") },
            EventType::ToolExecutionStarted => {
                Self::Started { tool: key("tool_name"), execution: key("execution_id") }
            }
            EventType::ToolExecutionCompleted | EventType::ToolExecutionFailed => Self::Ended {
                execution: key("execution_id"),
                outputs: items("output_artifact_hashes").unwrap_or_default().iter().map(hash).collect(),
            },
            EventType::ArtifactRecorded => Self::Nothing,
            EventType::ClaimIssued => {
                let claims = event.get("claims").and_then(Value::as_array);
                let id = member("claim_id").or_else(|| claims?.first());
                let empty = id.and_then(Value::as_str).is_some_and(str::is_empty);
                let evidence = match member("evidence_artifacts") {
                    Some(listed) => listed.as_array().unwrap_or_default().iter().map(hash).collect(),
                    None => event
                        .get("artifacts")
                        .and_then(Value::as_array)
                        .unwrap_or_default()
                        .iter()
                        .map(|item| item.get("artifact_hash").and_then(hash))
                        .collect(),
                };
                Self::Claim(Box::new(Claim {
                    id: id.filter(|_| !empty).map(Key::value),
                    evidence,
                    text: key("claim_text"),
                    resolved: member("resolved").and_then(Value::as_bool) == Some(true),
                }))
            }
            EventType::ClaimChallenged => {
                Self::Challenge { claim: member("challenged_claim_id").map(Key::value) }
            }
            EventType::FinalStatementSigned => Self::Final {
                claims: items("consolidated_claim_ids").unwrap_or_default().iter().map(Key::value).collect(),
            },
            EventType::VerificationRunStarted => Self::AuditBegins {
                profile: member("policy_profile").and_then(Value::as_str).map(str::to_owned),
            },
            EventType::VerificationRunCompleted => Self::AuditEnds {
                failed: member("verification_status").and_then(Value::as_str) == Some("fail"),
            },
        }
    }
}

fn hash(value: &Value<'_>) -> Option<Digest> {
    value.as_str().and_then(read_hash)
}
