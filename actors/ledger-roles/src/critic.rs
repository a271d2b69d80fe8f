//! The critic: reviews proposals, risky intents and claims. The policy speaks first; the model may only be stricter.

use choir_ledger::event::EventType;
use choir_messages::model::{ModelAnswer, Turn};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write as _;

use crate::answer::{cut, list, read, words};
use crate::board::{Claim, Intent, Proposal, Standing};
use crate::draft::Draft;
use crate::duty::{Key, Question, Scene, Work, form};
use crate::limits::{CHALLENGES, CHALLENGES_PER_CLAIM, SHOWN_BYTES};
use crate::words::{CRITIC, proposal, system, task};
use crate::{executor, policy};

/// The form for reviews of proposals and intents.
pub const REVIEW: &str = "choir.ledger.review";

/// The form for reviews of claims.
pub const REVIEW_CLAIMS: &str = "choir.ledger.review_claims";

/// Most conditions of an approval.
const CONDITIONS: usize = 16;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Approve,
    ApproveWithConditions,
    Reject,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Risk {
    Low,
    Medium,
    High,
    Critical,
}

#[derive(Deserialize)]
struct Review {
    decision: Decision,
    risk: Risk,
    rationale: String,
    #[serde(default)]
    conditions: Vec<String>,
}

#[derive(Deserialize)]
struct ClaimReviews {
    reviews: Vec<ClaimReview>,
}

#[derive(Deserialize)]
struct ClaimReview {
    claim_id: String,
    decision: ClaimDecision,
    #[serde(default)]
    reason: String,
}

#[derive(PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClaimDecision {
    Accept,
    Challenge,
}

pub(crate) fn needs(scene: &Scene<'_>) -> Vec<(Key, Work)> {
    let board = scene.board;
    if board.finale.is_some() {
        return Vec::new();
    }
    let mut needs = Vec::new();
    for waiting in board.proposals.iter().filter(|p| p.standing == Standing::Waiting && !p.superseded) {
        needs.push((Key::ReviewProposal(waiting.id.clone()), review_proposal(scene, waiting)));
    }
    let risky = |intent: &&Intent| {
        let live = board.proposal(&intent.proposal).is_some_and(Proposal::is_live);
        live && intent.standing == Standing::Waiting
            && intent.execution.is_none()
            && policy::needs_approval(board, intent)
    };
    for intent in board.intents.iter().filter(risky) {
        needs.push((Key::ReviewIntent(intent.id.clone()), review_intent(scene, intent)));
    }
    if !needs.is_empty() {
        return needs;
    }
    if !board.gate_open
        && let Some(live) = executor::wants_the_gate(scene)
    {
        let said = "still approved: the review that came after it was about something else";
        let payload = json!({
            "proposal_status": status(live), "risk_assessment": "low", "rationale": said,
            "proposal_event_id": live.id, "conditions": live.conditions,
        });
        let draft = Draft::new(EventType::ProposalReviewed, payload);
        return vec![(Key::Reaffirm(live.id.clone(), board.count), Work::Say(vec![draft]))];
    }
    if let Some(claims) = claims_to_review(scene) {
        let at = claims.iter().map(|claim| claim.issued_at).max().unwrap_or_default();
        needs.push((Key::ReviewClaims(at), ask_claims(scene, &claims)));
    }
    needs
}

/// The claims issued since the last review, once the executor has said all it has to say for now.
pub(crate) fn claims_to_review<'a>(scene: &Scene<'a>) -> Option<Vec<&'a Claim>> {
    let board = scene.board;
    let fresh = |claim: &&Claim| board.claims_reviewed.is_none_or(|at| claim.issued_at > at);
    let claims: Vec<&Claim> = board.claims.iter().filter(fresh).collect();
    (!claims.is_empty() && !executor::is_at_work(scene)).then_some(claims)
}

/// The approval a proposal has.
const fn status(live: &Proposal) -> &'static str {
    if live.conditional { "conditionally_approved" } else { "approved" }
}

fn rejected(rationale: &str, about: (&str, &str), proposal: &str) -> Vec<Draft> {
    let mut payload = json!({ "proposal_status": "rejected", "risk_assessment": "high", "rationale": rationale,
        "proposal_event_id": proposal, "conditions": [] });
    if let Some(fields) = payload.as_object_mut() {
        fields.insert(about.0.to_owned(), Value::from(about.1));
    }
    vec![Draft::new(EventType::ProposalReviewed, payload)]
}

/// What the policy says against a proposal.
fn objection(scene: &Scene<'_>, to: &Proposal) -> Option<String> {
    let (task, _) = scene.board.task.as_ref()?;
    to.required_tools.iter().find_map(|name| match scene.tool(name) {
        None => Some(format!("there is no tool {name}")),
        Some(tool) => policy::permits(task, tool).err(),
    })
}

fn review_proposal(scene: &Scene<'_>, waiting: &Proposal) -> Work {
    if let Some(objection) = objection(scene, waiting) {
        return Work::Say(rejected(&objection, ("proposal_event_id", &waiting.id), &waiting.id));
    }
    let words = format!("{}\n{}\nReview this proposal.", task(scene), proposal(waiting));
    ask_review(words)
}

fn review_intent(scene: &Scene<'_>, intent: &Intent) -> Work {
    let board = scene.board;
    let objection = match (&board.task, scene.tool(&intent.tool)) {
        (Some((task, _)), Some(tool)) => policy::permits(task, tool).err(),
        _ => Some(format!("there is no tool {}", intent.tool)),
    };
    if let Some(objection) = objection {
        return Work::Say(rejected(&objection, ("intent_event_id", &intent.id), &intent.proposal));
    }
    let under = board.proposal(&intent.proposal).map(proposal).unwrap_or_default();
    let input = board.texts.get(&intent.input).map_or("(not readable)", |text| text);
    let words = format!(
        "{}\n{under}\n<intent>\nTool: {} ({})\nInput: {}\n</intent>\nReview this intent to run a tool.",
        task(scene),
        intent.tool,
        intent.class,
        cut(input, SHOWN_BYTES)
    );
    ask_review(words)
}

fn ask_review(words: String) -> Work {
    let schema = json!({
        "type": "object",
        "properties": {
            "decision": { "enum": ["approve", "approve_with_conditions", "reject"] },
            "risk": { "enum": ["low", "medium", "high", "critical"] },
            "rationale": { "type": "string" },
            "conditions": { "type": "array", "items": { "type": "string" } }
        },
        "required": ["decision", "risk", "rationale"]
    });
    Work::Ask(Question {
        turns: vec![system(CRITIC), Turn::User(words)],
        tools: [form(REVIEW, "Give your review.", schema)].into(),
    })
}

fn ask_claims(scene: &Scene<'_>, claims: &[&Claim]) -> Work {
    let mut words = task(scene);
    for claim in claims {
        let _ = write!(
            words,
            "\n<claim id=\"{}\">\n{}\nConfidence: {}\nEvidence:\n",
            claim.id, claim.text, claim.confidence
        );
        for hash in &claim.evidence {
            let shown = scene.board.texts.get(hash).map_or("(not readable)", |text| text);
            let _ = writeln!(words, "{}", cut(shown, SHOWN_BYTES));
        }
        if let Some((challenge, times)) = scene
            .board
            .challenges
            .iter()
            .rev()
            .find(|c| c.claim == claim.id)
            .map(|c| (c, scene.board.challenges.iter().filter(|other| other.claim == claim.id).count()))
        {
            let _ = writeln!(words, "You challenged it {times} times, last: {}", challenge.reason);
        }
        words.push_str("</claim>\n");
    }
    words.push_str("\nReview each claim: does its evidence show it?");
    let schema = json!({
        "type": "object",
        "properties": { "reviews": { "type": "array", "items": {
            "type": "object",
            "properties": {
                "claim_id": { "type": "string" },
                "decision": { "enum": ["accept", "challenge"] },
                "reason": { "type": "string" }
            },
            "required": ["claim_id", "decision"]
        } } },
        "required": ["reviews"]
    });
    Work::Ask(Question {
        turns: vec![system(CRITIC), Turn::User(words)],
        tools: [form(REVIEW_CLAIMS, "Give your review of every claim.", schema)].into(),
    })
}

pub(crate) fn hear(scene: &Scene<'_>, key: &Key, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    let (about, under) = match key {
        Key::ReviewProposal(id) => (("proposal_event_id", id), id.clone()),
        Key::ReviewIntent(id) => {
            let intent = scene.board.intent(id).ok_or("the intent is gone")?;
            (("intent_event_id", id), intent.proposal.clone())
        }
        Key::ReviewClaims(_) => return hear_claims(scene, answer),
        _ => return Err("nothing was to be reviewed".to_owned()),
    };
    let review: Review = read(answer, REVIEW)?;
    let rationale = words(&review.rationale, "rationale")?;
    let conditions = list(&review.conditions, "conditions", CONDITIONS)?;
    let risk = match review.risk {
        Risk::Low => "low",
        Risk::Medium => "medium",
        Risk::High => "high",
        Risk::Critical => "critical",
    };
    let status = match review.decision {
        // A critical risk is no approval, whatever is said beside it.
        Decision::Reject => "rejected",
        _ if matches!(review.risk, Risk::Critical) => "rejected",
        Decision::ApproveWithConditions => "conditionally_approved",
        Decision::Approve if conditions.is_empty() => "approved",
        Decision::Approve => "conditionally_approved",
    };
    let mut payload = json!({
        "proposal_status": status, "risk_assessment": risk, "rationale": rationale, "conditions": conditions,
        "proposal_event_id": under,
    });
    if let Some(fields) = payload.as_object_mut() {
        fields.insert(about.0.to_owned(), Value::from(about.1.as_str()));
    }
    Ok(vec![Draft::new(EventType::ProposalReviewed, payload)])
}

fn hear_claims(scene: &Scene<'_>, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    let claims = claims_to_review(scene).ok_or("the claims were reviewed already")?;
    let said: ClaimReviews = read(answer, REVIEW_CLAIMS)?;
    let mut drafts = Vec::new();
    for claim in &claims {
        let Some(review) = said.reviews.iter().find(|review| review.claim_id == claim.id) else {
            return Err(format!("the review of {} is missing", claim.id));
        };
        if review.decision == ClaimDecision::Challenge && may_be_challenged(scene, claim) {
            let reason = words(&review.reason, "reason")?;
            let payload = json!({ "challenged_claim_id": claim.id, "reason": reason });
            let draft = Draft::new(EventType::ClaimChallenged, payload);
            drafts.push(draft.about([claim.id.clone()]));
        }
    }
    drafts.push(reviewed(scene, &claims, drafts.len()));
    Ok(drafts)
}

/// A claim whose challenge the executor conceded is disputed already, and one that was challenged often enough stays so.
fn may_be_challenged(scene: &Scene<'_>, claim: &Claim) -> bool {
    let times = scene.board.challenges.iter().filter(|challenge| challenge.claim == claim.id).count();
    !claim.conceded && times < CHALLENGES_PER_CLAIM && scene.board.challenges.len() < CHALLENGES as usize
}

/// That the claims were reviewed is an event of its own, so that a restarted critic does not review them again and the
/// executor knows when it may sign the final statement.
fn reviewed(scene: &Scene<'_>, claims: &[&Claim], challenged: usize) -> Draft {
    let ids: Vec<&str> = claims.iter().map(|claim| claim.id.as_str()).collect();
    let rationale = match challenged {
        0 => "the evidence shows what is claimed".to_owned(),
        n => format!("{n} of {} claims are challenged", claims.len()),
    };
    let under = claims.first().and_then(|claim| scene.board.proposal(&claim.proposal));
    let mut payload = json!({
        "proposal_status": under.map_or("approved", status), "risk_assessment": "low", "rationale": rationale,
        "reviewed_claim_ids": ids,
    });
    if let (Some(under), Some(fields)) = (under, payload.as_object_mut()) {
        fields.insert("proposal_event_id".to_owned(), Value::from(under.id.as_str()));
    }
    Draft::new(EventType::ProposalReviewed, payload)
}

pub(crate) fn unusable(scene: &Scene<'_>, key: &Key, why: &str) -> Work {
    let because =
        format!("the critic's model gave no usable answer ({why}); without one nothing is approved");
    match key {
        Key::ReviewProposal(id) => Work::Say(rejected(&because, ("proposal_event_id", id), id)),
        Key::ReviewIntent(id) => {
            let under = scene.board.intent(id).map(|intent| intent.proposal.clone()).unwrap_or_default();
            Work::Say(rejected(&because, ("intent_event_id", id), &under))
        }
        Key::ReviewClaims(_) => {
            let Some(claims) = claims_to_review(scene) else { return Work::Say(Vec::new()) };
            let challenge = |claim: &&&Claim| may_be_challenged(scene, claim);
            let mut drafts: Vec<Draft> = claims
                .iter()
                .filter(challenge)
                .map(|claim| {
                    let payload = json!({ "challenged_claim_id": claim.id, "reason": because });
                    Draft::new(EventType::ClaimChallenged, payload).about([claim.id.clone()])
                })
                .collect();
            drafts.push(reviewed(scene, &claims, drafts.len()));
            Work::Say(drafts)
        }
        _ => Work::Say(Vec::new()),
    }
}
