//! Claims: what the executor says its results show, how it answers challenges, and the final statement. The evidence of a
//! claim is always the output of an execution of this trace.

use std::fmt::Write as _;

use choir_ledger::event::EventType;
use choir_messages::model::{ModelAnswer, Turn};
use choir_messages::tool::ToolView;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{read, words};
use crate::board::{Claim, Ended, Execution, Proposal};
use crate::draft::{Draft, Piece};
use crate::duty::{Question, Scene, form};
use crate::limits::CLAIMS_AT_ONCE;
use crate::steps;
use crate::words::{EXECUTOR, system, task};

/// The form for claims.
pub const CLAIM: &str = "choir.ledger.claim";

/// The form for a claim that answers a challenge.
pub const RESOLVE: &str = "choir.ledger.resolve";

/// The form for conceding one.
pub const CONCEDE: &str = "choir.ledger.concede";

/// The form for the final statement.
pub const CONCLUDE: &str = "choir.ledger.conclude";

/// Confidence of a claim that only says what was run.
const BARE: f64 = 0.5;

#[derive(Deserialize)]
struct Claimed {
    claims: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    text: String,
    confidence: f64,
    evidence: Vec<String>,
}

#[derive(Deserialize)]
struct Conceded {
    reason: String,
}

#[derive(Deserialize)]
struct Concluded {
    verdict_text: String,
}

fn one_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "text": { "type": "string" },
            "confidence": { "type": "number", "minimum": 0, "maximum": 1 },
            "evidence": { "type": "array", "minItems": 1, "items": { "type": "string" },
                "description": "ids of executions, such as exec_01..." }
        },
        "required": ["text", "confidence", "evidence"]
    })
}

/// The form claims are made by.
pub(crate) fn claim_form() -> ToolView {
    let schema = json!({
        "type": "object",
        "properties": { "claims": {
            "type": "array", "minItems": 1, "maxItems": CLAIMS_AT_ONCE, "items": one_schema()
        } },
        "required": ["claims"]
    });
    form(CLAIM, "Claim what the results show. This ends the work on the proposal.", schema)
}

fn checked(scene: &Scene<'_>, one: &One) -> Result<(String, f64, Vec<String>), String> {
    let text = words(&one.text, "text")?;
    if !(0.0..=1.0).contains(&one.confidence) {
        return Err("confidence is from 0 to 1".to_owned());
    }
    if one.evidence.is_empty() {
        return Err("evidence is empty; name the executions that show it".to_owned());
    }
    let mut hashes = Vec::new();
    for id in &one.evidence {
        let ended = scene.board.executions.iter().find(|execution| execution.id == *id);
        let Some(output) = ended.and_then(|e| e.ended.as_ref()).and_then(|ended| ended.output.clone()) else {
            let known = scene.board.executions.iter().filter(|execution| execution.ended.is_some());
            let known: Vec<&str> = known.map(|execution| execution.id.as_str()).collect();
            let id: String = id.chars().take(60).collect();
            return Err(format!("no execution {id:?} has ended; there are: {}", known.join(", ")));
        };
        if !hashes.contains(&output) {
            hashes.push(output);
        }
    }
    Ok((text, one.confidence, hashes))
}

fn draft(id: &str, text: &str, confidence: f64, evidence: &[String], under: &str) -> Draft {
    let payload = json!({
        "claim_id": id, "claim_text": text, "confidence": confidence, "evidence_artifacts": evidence,
        "proposal_event_id": under,
    });
    Draft::new(EventType::ClaimIssued, payload)
        .about([id.to_owned()])
        .with(evidence.iter().cloned().map(Piece::Again))
}

fn and(mut draft: Draft, name: &str, value: Value) -> Draft {
    if let Some(fields) = draft.payload.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
    draft
}

/// The claims of an answer.
pub(crate) fn issued(scene: &Scene<'_>, live: &Proposal, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    let claimed: Claimed = read(answer, CLAIM)?;
    if claimed.claims.is_empty() || claimed.claims.len() > CLAIMS_AT_ONCE {
        return Err(format!("give from 1 to {CLAIMS_AT_ONCE} claims"));
    }
    if scene.board.ended_under(&live.id).next().is_none() {
        return Err("nothing was run yet that a claim could rest on; call a tool first".to_owned());
    }
    claimed
        .claims
        .iter()
        .map(|one| {
            let (text, confidence, evidence) = checked(scene, one)?;
            Ok(draft(&format!("claim_{}", (scene.fresh)()), &text, confidence, &evidence, &live.id))
        })
        .collect()
}

/// A claim for each execution that says that it was run and how it ended: what is left when no model says more.
pub(crate) fn bare(scene: &Scene<'_>, live: &Proposal, ended: &[(&Execution, &Ended)]) -> Vec<Draft> {
    let of = |(execution, ended): &(&Execution, &Ended)| {
        let how = if ended.completed { "completed" } else { "failed" };
        let text = format!(
            "{} was run as {} and {how}; nothing more is claimed of it.",
            execution.tool, execution.id
        );
        let evidence: Vec<String> = ended.output.iter().cloned().collect();
        draft(&format!("claim_{}", (scene.fresh)()), &text, BARE, &evidence, &live.id)
    };
    ended.iter().filter(|(_, ended)| ended.output.is_some()).take(CLAIMS_AT_ONCE).map(of).collect()
}

/// The live proposal under which more may be run to settle a claim: its own, while the gate is open.
pub(crate) fn open_proposal<'a>(scene: &Scene<'a>, claim: &Claim) -> Option<&'a Proposal> {
    let own = scene.board.proposal(&claim.proposal)?;
    (scene.board.gate_open && steps::may_call_tools(scene, own)).then_some(own)
}

/// Asks how a challenge is answered.
pub(crate) fn settle(scene: &Scene<'_>, claim: &Claim) -> Question {
    let reason = scene.board.open_challenge(&claim.id).map_or("", |(challenge, _)| challenge.reason.as_str());
    let asked = format!(
        "<claim id=\"{}\">\n{}\nConfidence: {}\n</claim>\nThe critic challenges this claim: {reason}\nAnswer it: run what \
         is missing, issue the claim again so that the evidence shows it, or concede.",
        claim.id, claim.text, claim.confidence
    );
    let mut offered = vec![
        form(RESOLVE, "Issue the claim again, mended, with the executions that show it.", one_schema()),
        form(
            CONCEDE,
            "Concede the challenge: the claim stays disputed.",
            json!({ "type": "object", "properties": { "reason": { "type": "string" } }, "required": ["reason"] }),
        ),
    ];
    let turns = match scene.board.proposal(&claim.proposal) {
        Some(own) => {
            if open_proposal(scene, claim).is_some() {
                offered.extend(steps::tools(scene, own).iter().map(|tool| tool.view.clone()));
            }
            steps::conversation(scene, own, &asked)
        }
        None => vec![system(EXECUTOR), Turn::User(format!("{}\n{asked}", task(scene)))],
    };
    Question { turns, tools: offered.into() }
}

/// The answer to a challenge: the claim again, resolved or conceded.
pub(crate) fn settled(scene: &Scene<'_>, claim: &Claim, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    if answer.calls.iter().any(|call| call.tool == CONCEDE) {
        let said: Conceded = read(answer, CONCEDE)?;
        return Ok(vec![conceded(claim, &words(&said.reason, "reason")?)]);
    }
    let one: One = read(answer, RESOLVE)?;
    let (text, confidence, evidence) = checked(scene, &one)?;
    let again = draft(&claim.id, &text, confidence, &evidence, &claim.proposal);
    Ok(vec![and(again, "resolved", json!(true))])
}

/// The claim as it was, with the challenge conceded: it stays disputed, for everyone to see.
pub(crate) fn conceded(claim: &Claim, reason: &str) -> Draft {
    let again = draft(&claim.id, &claim.text, claim.confidence, &claim.evidence, &claim.proposal);
    and(and(again, "conceded", json!(true)), "concession", json!(reason))
}

/// Asks for the final statement.
pub(crate) fn conclude(scene: &Scene<'_>) -> Question {
    let mut words = task(scene);
    for claim in &scene.board.claims {
        let disputed = if scene.board.open_challenge(&claim.id).is_some() { ", disputed" } else { "" };
        let _ = writeln!(
            words,
            "\n<claim id=\"{}\">\n{}\n(confidence {}{disputed})\n</claim>",
            claim.id, claim.text, claim.confidence
        );
    }
    words.push_str("\nThe work is done. State the final verdict on the task in a few sentences: what is shown, and what is not.");
    let schema = json!({ "type": "object", "properties": { "verdict_text": { "type": "string" } }, "required": ["verdict_text"] });
    Question {
        turns: vec![system(EXECUTOR), Turn::User(words)],
        tools: [form(CONCLUDE, "State the final verdict.", schema)].into(),
    }
}

/// The final statement of an answer.
pub(crate) fn concluded(scene: &Scene<'_>, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    let said: Concluded = read(answer, CONCLUDE)?;
    Ok(vec![statement(scene, &words(&said.verdict_text, "verdict_text")?)])
}

/// The final statement with this text. It bundles every claim, disputed ones too, and says which those are.
pub(crate) fn statement(scene: &Scene<'_>, text: &str) -> Draft {
    let ids: Vec<String> = scene.board.claims.iter().map(|claim| claim.id.clone()).collect();
    let disputed: Vec<&str> =
        ids.iter().map(String::as_str).filter(|id| scene.board.open_challenge(id).is_some()).collect();
    let payload = json!({
        "consolidated_claim_ids": ids, "final_verdict_text": text, "disputed_claim_ids": disputed,
    });
    let mut evidence: Vec<String> = Vec::new();
    for hash in scene.board.claims.iter().flat_map(|claim| &claim.evidence) {
        if !evidence.contains(hash) {
            evidence.push(hash.clone());
        }
    }
    Draft::new(EventType::FinalStatementSigned, payload)
        .about(ids)
        .with(evidence.into_iter().map(Piece::Again))
}
