//! What a run's events mean to a person: one line for each, and what there is at the end.

use std::fmt::Write as _;
use std::sync::Arc;

use choir_ledger_roles::board::{Board, Entry};
use serde::Serialize;
use serde_json::Value;

use crate::control::ledger::{EndView, EventView};
use crate::ctl::print::plain;

/// Longest text of an event on its line, in characters.
const EXCERPT: usize = 140;

/// One line for an event.
pub(super) fn line(place: u64, at: &str, role: &str, kind: &str, payload: &Value) -> String {
    let clock = at.get(11..19).unwrap_or(at);
    format!("{place:>4}  {clock}  {role:<8}  {kind:<26}  {}", said(kind, payload))
}

/// What an event says, on one line.
pub(super) fn said(kind: &str, payload: &Value) -> String {
    let text = |name: &str| payload.get(name).and_then(Value::as_str).unwrap_or_default();
    let list = |name: &str| {
        let items = payload.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
    };
    let said = match kind {
        "session_initialized" => format!("{}: {}", text("task_id"), text("objective")),
        "proposal_created" => format!("{} [{}]", text("objective"), list("required_tools")),
        "proposal_reviewed" => {
            let what = if payload.get("reviewed_claim_ids").is_some() {
                "claims "
            } else if payload.get("intent_event_id").is_some() {
                "intent "
            } else {
                ""
            };
            format!(
                "{what}{}, risk {}: {}",
                text("proposal_status"),
                text("risk_assessment"),
                text("rationale")
            )
        }
        "tool_intent_signed" => {
            format!("{} ({}): {}", text("tool_name"), text("safety_classification"), text("justification"))
        }
        "tool_execution_started" => format!("{} as {}", text("tool_name"), text("execution_id")),
        "tool_execution_completed" => {
            let exit = payload.get("exit_status").map(ToString::to_string).unwrap_or_default();
            format!("{} as {}, exit {exit}", text("tool_name"), text("execution_id"))
        }
        "tool_execution_failed" => {
            format!("{} as {}: {}", text("tool_name"), text("execution_id"), text("error"))
        }
        "claim_issued" => {
            let again = if payload.get("resolved") == Some(&Value::Bool(true)) {
                "resolved: "
            } else if payload.get("conceded") == Some(&Value::Bool(true)) {
                "conceded: "
            } else {
                ""
            };
            format!("{again}{}", text("claim_text"))
        }
        "claim_challenged" => format!("{}: {}", text("challenged_claim_id"), text("reason")),
        "final_statement_signed" => text("final_verdict_text").to_owned(),
        "verification_run_started" => format!("profile {}", text("policy_profile")),
        "verification_run_completed" => {
            format!("{} (report {})", text("verification_status"), text("report_id"))
        }
        _ => text("artifact_hash").to_owned(),
    };
    let one_line: String = plain(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.chars().count() <= EXCERPT {
        return one_line;
    }
    let cut: String = one_line.chars().take(EXCERPT - 1).collect();
    format!("{cut}…")
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A claim at the end of a run.
#[derive(Debug, Serialize)]
pub(super) struct ClaimView {
    claim_id: String,
    text: String,
    confidence: f64,
    evidence_artifacts: Vec<String>,
    /// What the critic said against it that nothing settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    disputed: Option<String>,
}

/// A run at its end.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    trace_id: String,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    reason: String,
    events: usize,
    tool_calls: usize,
    challenges: usize,
    claims: Vec<ClaimView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    final_statement: Option<String>,
    path: String,
}

/// The board of these events. Unknown kinds and roles are left out: a newer choird may say them.
pub(super) fn board(events: &[EventView]) -> Board {
    let mut board = Board::default();
    for event in events {
        let (Ok(kind), Ok(role)) = (event.kind.parse(), event.role.parse()) else { continue };
        board.apply(Arc::new(Entry {
            event_id: event.event_id.clone(),
            at: event.at.millis(),
            kind,
            role,
            payload: event.payload.clone(),
            artifacts: Vec::new(),
        }));
    }
    board
}

impl Summary {
    /// Of a run that was followed to its end.
    pub(super) fn of(trace: &str, path: &str, events: &[EventView], end: &EndView) -> Self {
        let board = board(events);
        let claim = |claim: &choir_ledger_roles::board::Claim| ClaimView {
            claim_id: claim.id.clone(),
            text: claim.text.clone(),
            confidence: claim.confidence,
            evidence_artifacts: claim.evidence.clone(),
            disputed: board.open_challenge(&claim.id).map(|(challenge, _)| challenge.reason.clone()),
        };
        Self {
            trace_id: trace.to_owned(),
            status: end.status.clone(),
            verdict: end.verdict.clone(),
            reason: end.reason.clone(),
            events: board.count,
            tool_calls: board.executions.len(),
            challenges: board.challenges.len(),
            claims: board.claims.iter().map(claim).collect(),
            final_statement: board.finale.clone(),
            path: path.to_owned(),
        }
    }

    /// For a person.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("\n");
        for claim in &self.claims {
            let disputed = claim
                .disputed
                .as_ref()
                .map(|why| format!("\n    disputed: {}", plain(why)))
                .unwrap_or_default();
            let _ = writeln!(
                text,
                "  {} (confidence {}): {}{disputed}",
                claim.claim_id,
                claim.confidence,
                plain(&claim.text)
            );
            for hash in &claim.evidence_artifacts {
                let _ = writeln!(text, "    evidence {}", plain(hash));
            }
        }
        if let Some(said) = &self.final_statement {
            let _ = writeln!(text, "  final statement: {}", plain(said));
        }
        let verdict = self.verdict.as_deref().map(|v| format!(", verification: {v}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "\n{}{verdict}; {}, {}, {}, {}",
            self.status,
            count(self.events, "event"),
            count(self.tool_calls, "tool call"),
            count(self.claims.len(), "claim"),
            count(self.challenges, "challenge")
        );
        if self.status != "completed" {
            let _ = writeln!(text, "reason: {}", plain(&self.reason));
        }
        let _ = writeln!(text, "trace {}\n      {}", self.trace_id, self.path);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_told_on_one_short_line_that_is_safe_for_a_terminal() {
        let payload =
            json!({ "claim_text": format!("\u{1b}[2J{}\nsecond", "x".repeat(500)), "resolved": true });
        let line = line(7, "2026-01-01T10:11:12.000Z", "executor", "claim_issued", &payload);
        assert!(line.starts_with("   7  10:11:12  executor  claim_issued"), "{line}");
        assert!(
            line.contains("resolved: ?[2J") && !line.contains('\n') && line.chars().count() < 200,
            "{line}"
        );
        assert_eq!(said("from_the_future", &json!(null)), "");
    }
}
