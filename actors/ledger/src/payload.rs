//! What each type of event says: building the payloads, members in the order the original writes them. Add further
//! members with [`Owned::with`](crate::json::Value::with). [`flaw`] is the other direction: what R11 finds missing.

use crate::event::EventType;
use crate::id::{ClaimId, ReportId};
use crate::json::{Owned, Value};
use choir_messages::chain::Digest;

/// Verdicts of a critic on a proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalStatus {
    /// It may be executed.
    Approved,
    /// It may be executed under conditions, which further members state.
    ConditionallyApproved,
    /// It may not.
    Rejected,
}

impl ProposalStatus {
    /// As it stands in `proposal_status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::ConditionallyApproved => "conditionally_approved",
            Self::Rejected => "rejected",
        }
    }
}

fn texts(items: &[String]) -> Owned {
    items.to_vec().into()
}

fn shown<T: ToString>(items: &[T]) -> Owned {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().into()
}

/// `session_initialized` [session].
#[must_use]
pub fn session(task_id: &str, objective: &str, constraints: &[String]) -> Owned {
    Value::object([
        ("task_id", task_id.into()),
        ("objective", objective.into()),
        ("constraints", texts(constraints)),
    ])
}

/// `proposal_created` [proposal].
#[must_use]
pub fn proposal(
    objective: &str,
    assumptions: &[String],
    required_tools: &[String],
    expected_evidence: &[String],
) -> Owned {
    Value::object([
        ("objective", objective.into()),
        ("assumptions", texts(assumptions)),
        ("required_tools", texts(required_tools)),
        ("expected_evidence", texts(expected_evidence)),
    ])
}

/// `proposal_reviewed` [proposal_review]. `risk`: `low`, `medium`, `high` or `critical`.
#[must_use]
pub fn review(status: ProposalStatus, risk: &str, rationale: &str) -> Owned {
    Value::object([
        ("proposal_status", status.as_str().into()),
        ("risk_assessment", risk.into()),
        ("rationale", rationale.into()),
    ])
}

/// `tool_intent_signed` [tool_intent].
#[must_use]
pub fn intent(tool_name: &str, input: &Digest, safety_classification: &str, justification: &str) -> Owned {
    Value::object([
        ("tool_name", tool_name.into()),
        ("normalized_input_hash", input.to_string().into()),
        ("safety_classification", safety_classification.into()),
        ("justification", justification.into()),
    ])
}

/// `tool_execution_started` [tool_execution].
#[must_use]
pub fn started(tool_name: &str, execution_id: &str) -> Owned {
    Value::object([
        ("tool_name", tool_name.into()),
        ("execution_id", execution_id.into()),
        ("status", "started".into()),
    ])
}

/// `tool_execution_completed` [tool_execution_result].
#[must_use]
pub fn completed(tool_name: &str, execution_id: &str, exit_status: i32, outputs: &[Digest]) -> Owned {
    Value::object([
        ("tool_name", tool_name.into()),
        ("execution_id", execution_id.into()),
        ("exit_status", exit_status.into()),
        ("output_artifact_hashes", shown(outputs)),
    ])
}

/// `tool_execution_failed` [tool_execution_failure]. `outputs`: what there was before the failure.
#[must_use]
pub fn failed(
    tool_name: &str,
    execution_id: &str,
    exit_status: i32,
    reason: &str,
    outputs: &[Digest],
) -> Owned {
    Value::object([
        ("tool_name", tool_name.into()),
        ("execution_id", execution_id.into()),
        ("exit_status", exit_status.into()),
        ("failure_reason", reason.into()),
        ("output_artifact_hashes", shown(outputs)),
    ])
}

/// `artifact_recorded` [artifact_descriptor].
#[must_use]
pub fn recorded(hash: &Digest, media_type: &str) -> Owned {
    Value::object([("artifact_hash", hash.to_string().into()), ("media_type", media_type.into())])
}

/// `claim_issued` [claim]. The claim's id also belongs into the event's `claims`.
#[must_use]
pub fn claim(id: ClaimId, text: &str, confidence: f64, evidence: &[Digest]) -> Owned {
    Value::object([
        ("claim_id", id.to_string().into()),
        ("claim_text", text.into()),
        ("confidence", confidence.into()),
        ("evidence_artifacts", shown(evidence)),
    ])
}

/// `claim_issued` again, settling the challenges against it (R14).
#[must_use]
pub fn resolved_claim(id: ClaimId, text: &str, confidence: f64, evidence: &[Digest]) -> Owned {
    claim(id, text, confidence, evidence).with("resolved", true.into())
}

/// `claim_challenged` [challenge].
#[must_use]
pub fn challenge(id: ClaimId, reason: &str) -> Owned {
    Value::object([("challenged_claim_id", id.to_string().into()), ("reason", reason.into())])
}

/// `final_statement_signed` [final_statement]. The ids also belong into the event's `claims`.
#[must_use]
pub fn final_statement(claims: &[ClaimId], verdict: &str) -> Owned {
    Value::object([("consolidated_claim_ids", shown(claims)), ("final_verdict_text", verdict.into())])
}

/// `verification_run_started` [verification_run].
#[must_use]
pub fn verification_started(policy_profile: &str) -> Owned {
    Value::object([("policy_profile", policy_profile.into())])
}

/// `verification_run_completed` [verification_report]. `status`: `pass`, `pass-with-warnings` or `fail`.
#[must_use]
pub fn verification_completed(status: &str, report: ReportId) -> Owned {
    Value::object([("verification_status", status.into()), ("report_id", report.to_string().into())])
}

/// The `payload_type` that goes with a type of event.
#[must_use]
pub const fn payload_type(event: EventType) -> &'static str {
    match event {
        EventType::SessionInitialized => "session",
        EventType::ProposalCreated => "proposal",
        EventType::ProposalReviewed => "proposal_review",
        EventType::ToolIntentSigned => "tool_intent",
        EventType::ToolExecutionStarted => "tool_execution",
        EventType::ToolExecutionCompleted => "tool_execution_result",
        EventType::ToolExecutionFailed => "tool_execution_failure",
        EventType::ArtifactRecorded => "artifact_descriptor",
        EventType::ClaimIssued => "claim",
        EventType::ClaimChallenged => "challenge",
        EventType::FinalStatementSigned => "final_statement",
        EventType::VerificationRunStarted => "verification_run",
        EventType::VerificationRunCompleted => "verification_report",
    }
}

/// The first member that R11 asks of such an event's payload and does not find: its name, and what it should be.
#[must_use]
pub fn flaw(event: EventType, payload: Option<&Value<'_>>) -> Option<(&'static str, &'static str)> {
    const TEXT: &str = "a text";
    const TEXTS: &str = "a list of texts";
    const HASH: &str = "64 lower-case hex digits";
    let member = |name: &str| payload.and_then(|payload| payload.get(name));
    let text = |name: &'static str| {
        let good = member(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        (!good).then_some((name, TEXT))
    };
    let texts = |name: &'static str| {
        let good = member(name)
            .and_then(Value::as_array)
            .is_some_and(|items| items.iter().all(|item| item.as_str().is_some()));
        (!good).then_some((name, TEXTS))
    };
    let check = |good: bool, name: &'static str, what: &'static str| (!good).then_some((name, what));
    match event {
        EventType::ProposalCreated => text("objective")
            .or_else(|| texts("assumptions"))
            .or_else(|| texts("required_tools"))
            .or_else(|| texts("expected_evidence")),
        EventType::ProposalReviewed => text("proposal_status"),
        EventType::ToolIntentSigned => text("tool_name")
            .or_else(|| {
                let hash = member("normalized_input_hash").and_then(Value::as_str);
                check(hash.is_some_and(is_hash), "normalized_input_hash", HASH)
            })
            .or_else(|| text("safety_classification"))
            .or_else(|| text("justification")),
        EventType::ToolExecutionCompleted => {
            let status = member("exit_status");
            check(status.is_some_and(|status| !status.is_null()), "exit_status", "a number")
                .or_else(|| texts("output_artifact_hashes"))
        }
        EventType::ClaimIssued => text("claim_text")
            .or_else(|| {
                let confidence = member("confidence").and_then(Value::as_f64);
                let good = confidence.is_some_and(|number| (0.0..=1.0).contains(&number));
                check(good, "confidence", "a number from 0 to 1")
            })
            .or_else(|| texts("evidence_artifacts")),
        EventType::ClaimChallenged => text("challenged_claim_id"),
        EventType::FinalStatementSigned => {
            texts("consolidated_claim_ids").or_else(|| text("final_verdict_text"))
        }
        EventType::VerificationRunCompleted => {
            let status = member("verification_status").and_then(Value::as_str);
            let good = matches!(status, Some("pass" | "pass-with-warnings" | "fail"));
            check(good, "verification_status", "pass, pass-with-warnings or fail")
                .or_else(|| text("report_id"))
        }
        EventType::SessionInitialized
        | EventType::ToolExecutionStarted
        | EventType::ToolExecutionFailed
        | EventType::ArtifactRecorded
        | EventType::VerificationRunStarted => None,
    }
}

/// Whether the text is a SHA-256 digest as the ledger writes it.
#[must_use]
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The digest of a text that [`is_hash`]. An event has a dozen of them, so this is on the verifier's hot path.
pub(crate) fn read_hash(text: &str) -> Option<Digest> {
    /// The value of a lower-case hex digit, 0xff for anything else.
    const NIBBLES: [u8; 256] = {
        let mut table = [0xff; 256];
        let mut value = 0;
        while value < 16 {
            table[b"0123456789abcdef"[value] as usize] = value as u8;
            value += 1;
        }
        table
    };
    let text: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let (pairs, _) = text.as_chunks::<2>();
    let mut bytes = [0u8; 32];
    let mut wrong = 0;
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let (high, low) = (NIBBLES[usize::from(*high)], NIBBLES[usize::from(*low)]);
        wrong |= high | low;
        *byte = high << 4 | low & 0xf;
    }
    (wrong < 16).then(|| Digest::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_64_lower_case_hex_digits_are_a_hash() {
        let digest = Digest::of(b"x");
        let text = digest.to_string();
        assert_eq!(read_hash(&text), Some(digest));
        for bad in [
            text.to_uppercase(),
            text.replace('1', "g"),
            text[1..].to_owned(),
            format!("{text}0"),
            "\u{e9}".repeat(32),
        ] {
            assert!(read_hash(&bad).is_none() && !is_hash(&bad), "{bad}");
        }
    }
}
