//! The executor: signs intents, runs what may run, claims what the results show, answers challenges and signs the final
//! statement. What a restart finds started is looked after before anything new is begun.

use std::sync::Arc;

use choir_ledger::event::EventType;
use choir_messages::model::ModelAnswer;
use choir_messages::tool::{ToolOutcome, ToolStatus};
use serde_json::json;

use crate::board::{Claim, Ended, Execution, Intent, Proposal, Standing};
use crate::draft::{Draft, Piece};
use crate::duty::{Key, Scene, Work};
use crate::limits::CHALLENGES_PER_CLAIM;
use crate::{claims, planner, policy, steps};

pub(crate) fn needs(scene: &Scene<'_>) -> Vec<(Key, Work)> {
    let board = scene.board;
    if board.finale.is_some() {
        return Vec::new();
    }
    let mut needs = Vec::new();
    for open in board.executions.iter().filter(|execution| execution.ended.is_none()) {
        needs.push((Key::Run(open.id.clone()), run(scene, open)));
    }
    if board.gate_open {
        for intent in board.intents.iter().filter(|intent| may_start(scene, intent)) {
            needs.push((Key::Start(intent.id.clone()), Work::Start { intent: intent.id.clone() }));
        }
    }
    for live in board.proposals.iter().filter(|p| wants_a_step(scene, p)) {
        let so_far = steps::count(scene, &live.id);
        if steps::may_call_tools(scene, live) {
            if board.gate_open {
                needs.push((Key::Act(live.id.clone(), so_far), Work::Ask(steps::next(scene, live))));
            }
        } else if board.ended_under(&live.id).next().is_some() {
            needs.push((Key::Act(live.id.clone(), so_far), Work::Ask(steps::only_claims(scene, live))));
        }
    }
    // Challenges are answered once the critic has seen all there is.
    if !is_at_work(scene) && crate::critic::claims_to_review(scene).is_none() {
        let disputed: Vec<&Claim> =
            board.claims.iter().filter(|claim| wants_settling(scene, claim)).collect();
        for claim in &disputed {
            let so_far = steps::for_claim(scene, claim);
            needs.push((Key::Settle(claim.id.clone(), so_far), Work::Ask(claims::settle(scene, claim))));
        }
        if disputed.is_empty() && needs.is_empty() && may_conclude(scene) {
            needs.push((Key::Conclude, Work::Ask(claims::conclude(scene))));
        }
    }
    needs
}

/// Whether an intent may be used now.
fn may_start(scene: &Scene<'_>, intent: &Intent) -> bool {
    let approved = intent.standing == Standing::Approved
        || (intent.standing == Standing::Waiting && !policy::needs_approval(scene.board, intent));
    let live = scene.board.proposal(&intent.proposal).is_some_and(Proposal::is_live);
    intent.execution.is_none() && approved && live && !scene.time_is_up()
}

/// Whether an intent may still come to something: it is neither used, nor blocked, nor under a dead proposal.
fn is_pending(scene: &Scene<'_>, intent: &Intent) -> bool {
    let live = scene.board.proposal(&intent.proposal).is_some_and(Proposal::is_live);
    intent.execution.is_none() && intent.standing != Standing::Rejected && live && !scene.time_is_up()
}

/// Whether a proposal waits for the executor to decide what comes next.
fn wants_a_step(scene: &Scene<'_>, live: &Proposal) -> bool {
    let board = scene.board;
    let busy = board.intents.iter().any(|intent| intent.proposal == live.id && is_busy(scene, intent));
    live.is_live() && !board.is_concluded(&live.id) && !busy && !planner::wants_fallback(scene, live)
}

fn is_busy(scene: &Scene<'_>, intent: &Intent) -> bool {
    let running = intent.execution.as_ref().is_some_and(|id| {
        scene.board.executions.iter().any(|execution| execution.id == *id && execution.ended.is_none())
    });
    running || is_pending(scene, intent)
}

/// Whether anything is still being worked on that claims could come of.
pub(crate) fn is_at_work(scene: &Scene<'_>) -> bool {
    let board = scene.board;
    let comes_to_something = |live: &Proposal| {
        wants_a_step(scene, live)
            && (steps::may_call_tools(scene, live) || board.ended_under(&live.id).next().is_some())
    };
    // What the critic turned down is revised while there is time; only then is it known what all the claims are.
    let turned_down = |p: &Proposal| p.is_stopped() && planner::is_revised(scene, p);
    board.awaits_review()
        || board.intents.iter().any(|intent| is_busy(scene, intent))
        || board.executions.iter().any(|execution| execution.ended.is_none())
        || board
            .proposals
            .iter()
            .any(|p| comes_to_something(p) || planner::wants_fallback(scene, p) || turned_down(p))
}

/// The proposal for whose sake the critic should open the gate again, if a tool is wanted and it is shut.
pub(crate) fn wants_the_gate<'a>(scene: &Scene<'a>) -> Option<&'a Proposal> {
    let board = scene.board;
    let wants = |p: &&Proposal| {
        let starts = board.intents.iter().any(|i| i.proposal == p.id && is_pending(scene, i));
        p.is_live() && (starts || (wants_a_step(scene, p) && steps::may_call_tools(scene, p)))
    };
    board.proposals.iter().find(wants)
}

/// Whether a claim's challenge is to be answered.
fn wants_settling(scene: &Scene<'_>, claim: &Claim) -> bool {
    let open = scene.board.open_challenge(&claim.id);
    open.is_some_and(|(_, times)| times <= CHALLENGES_PER_CLAIM) && !claim.conceded
}

fn may_conclude(scene: &Scene<'_>) -> bool {
    !scene.board.claims.is_empty()
}

/// A started execution: its intent's input is an artefact, so a restart finds it.
fn run(scene: &Scene<'_>, open: &Execution) -> Work {
    let intent = scene.board.intent(&open.intent);
    let input = intent.and_then(|intent| scene.board.texts.get(&intent.input).map(Arc::clone));
    match input {
        Some(input) => Work::Run {
            execution: open.id.clone(),
            tool: open.tool.clone(),
            input,
            place: open.place.clone(),
        },
        None => {
            let lost =
                ToolOutcome::says(ToolStatus::Refused, "the input of this call is not among the artefacts");
            Work::Say(ran(scene, &open.id, &lost))
        }
    }
}

/// The event that starts an intent's tool. `place` is the agent's session and its revision before the call.
#[must_use]
pub(crate) fn started(scene: &Scene<'_>, intent: &str, place: &(String, u64)) -> Option<Draft> {
    let intent = scene.board.intent(intent).filter(|intent| may_start(scene, intent))?;
    let payload = json!({
        "tool_name": intent.tool,
        "execution_id": format!("exec_{}", (scene.fresh)()),
        "status": "started",
        "intent_event_id": intent.id,
        "agent_session": place.0,
        "agent_revision": place.1,
    });
    Some(Draft::new(EventType::ToolExecutionStarted, payload).with([Piece::Again(intent.input.clone())]))
}

/// What a tool's outcome becomes: completed, or failed with its context; the outcome is an artefact either way.
pub(crate) fn ran(scene: &Scene<'_>, execution: &str, outcome: &ToolOutcome) -> Vec<Draft> {
    let Some(open) = scene.board.executions.iter().find(|e| e.id == execution && e.ended.is_none()) else {
        return Vec::new();
    };
    let text = json!({ "status": outcome.status, "output": outcome.output.value() }).to_string();
    let hash = choir_messages::chain::Digest::of(text.as_bytes()).to_string();
    let exit = outcome.output.value().get("exit_code").and_then(serde_json::Value::as_i64);
    let (kind, payload) = match outcome.status {
        ToolStatus::Success => (
            EventType::ToolExecutionCompleted,
            json!({
                "tool_name": open.tool, "execution_id": open.id, "exit_status": exit.unwrap_or(0),
                "output_artifact_hashes": [hash],
            }),
        ),
        status => (
            EventType::ToolExecutionFailed,
            json!({
                "tool_name": open.tool, "execution_id": open.id, "exit_status": exit.unwrap_or(1),
                "error": failure(outcome), "failure_kind": kind_of(status), "output_artifact_hashes": [hash],
            }),
        ),
    };
    vec![Draft::new(kind, payload).with([Piece::New { text, media_type: "application/json" }])]
}

const fn kind_of(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Success => "none",
        ToolStatus::Error => "error",
        ToolStatus::Refused => "refused",
        ToolStatus::Cancelled => "cancelled",
        ToolStatus::OutcomeUnknown => "outcome_unknown",
    }
}

fn failure(outcome: &ToolOutcome) -> String {
    let said = outcome.output.value().get("error").and_then(serde_json::Value::as_str);
    crate::answer::cut(said.unwrap_or("the tool reports a failure; its output is the artefact"), 2048)
}

pub(crate) fn hear(scene: &Scene<'_>, key: &Key, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    match key {
        Key::Act(proposal, _) => {
            let live = scene.board.proposal(proposal).ok_or("the proposal is gone")?;
            if answer.calls.iter().any(|call| scene.tool(&call.tool).is_some()) {
                steps::intents(scene, live, None, answer)
            } else {
                claims::issued(scene, live, answer)
            }
        }
        Key::Settle(claim, _) => {
            let claim =
                scene.board.claims.iter().find(|known| known.id == *claim).ok_or("the claim is gone")?;
            if answer.calls.iter().any(|call| scene.tool(&call.tool).is_some()) {
                let live = claims::open_proposal(scene, claim).ok_or("no tool may be called any more")?;
                steps::intents(scene, live, Some(claim), answer)
            } else {
                claims::settled(scene, claim, answer)
            }
        }
        Key::Conclude => claims::concluded(scene, answer),
        _ => Err("nothing was asked".to_owned()),
    }
}

/// A bounded failure: what was run is claimed as such and nothing more, a challenge is conceded, the final statement
/// says what there is.
pub(crate) fn unusable(scene: &Scene<'_>, key: &Key, why: &str) -> Work {
    match key {
        Key::Act(proposal, _) => {
            let Some(live) = scene.board.proposal(proposal) else { return Work::Say(Vec::new()) };
            let ended: Vec<(&Execution, &Ended)> = scene.board.ended_under(&live.id).collect();
            if ended.is_empty() {
                let reason = format!("the executor gave no usable step: {why}");
                return Work::Fail { reason, refused: false };
            }
            Work::Say(claims::bare(scene, live, &ended))
        }
        Key::Settle(claim, _) => match scene.board.claims.iter().find(|known| known.id == *claim) {
            Some(claim) => {
                Work::Say(vec![claims::conceded(claim, "no usable answer to the challenge was given")])
            }
            None => Work::Say(Vec::new()),
        },
        Key::Conclude => Work::Say(vec![claims::statement(scene, "The claims are as issued.")]),
        _ => Work::Say(Vec::new()),
    }
}
