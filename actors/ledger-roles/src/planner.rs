//! The planner: proposals, revisions of what the critic turned down, and fallbacks for what failed.

use choir_ledger::event::EventType;
use choir_messages::model::{ModelAnswer, Turn};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{list, read, words};
use crate::board::Proposal;
use crate::draft::Draft;
use crate::duty::{Key, Question, Scene, Work, form};
use crate::limits::{FAILURES_PER_PROPOSAL, FALLBACKS, PROPOSALS_AT_ONCE, REVISIONS};
use crate::task::Profile;
use crate::words::{PLANNER, proposal, system, task, tools};

/// The form a planner answers by.
pub const PROPOSE: &str = "choir.ledger.propose";

/// Most entries of one list of a proposal.
const ENTRIES: usize = 16;

#[derive(Deserialize)]
struct Proposed {
    proposals: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    objective: String,
    #[serde(default)]
    assumptions: Vec<String>,
    required_tools: Vec<String>,
    expected_evidence: Vec<String>,
}

pub(crate) fn needs(scene: &Scene<'_>) -> Vec<(Key, Work)> {
    let board = scene.board;
    if board.finale.is_some() {
        return Vec::new();
    }
    if board.proposals.is_empty() {
        if scene.time_is_up() {
            return vec![fail("the time budget was used up before anything was proposed", false)];
        }
        let words = format!("{}\n{}\nPropose how to do the task.", task(scene), tools(scene));
        return vec![(Key::Plan, ask(words))];
    }
    let mut needs = Vec::new();
    if !scene.time_is_up() {
        for stopped in board.proposals.iter().filter(|p| p.is_stopped() && may_revise(scene, p)) {
            let words = format!(
                "{}\n{}\n{}\nThe critic turned this down: {}\nPropose one revision that meets the objection.",
                task(scene),
                tools(scene),
                proposal(stopped),
                stopped.rationale
            );
            needs.push((Key::Revise(stopped.id.clone()), ask(words)));
        }
        for failed in board.proposals.iter().filter(|p| wants_fallback(scene, p)) {
            let words = format!(
                "{}\n{}\n{}\nIts tools failed {} times. Propose one other way to reach the same.",
                task(scene),
                tools(scene),
                proposal(failed),
                board.failures_under(&failed.id)
            );
            needs.push((Key::Fallback(failed.id.clone()), ask(words)));
        }
    }
    if needs.is_empty() && is_hopeless(scene) {
        needs.push(hopeless(scene));
    }
    needs
}

fn fail(reason: &str, refused: bool) -> (Key, Work) {
    (Key::GiveUp, Work::Fail { reason: reason.to_owned(), refused })
}

/// Whether a proposal that was turned down gets another try.
pub(crate) fn is_revised(scene: &Scene<'_>, stopped: &Proposal) -> bool {
    !scene.time_is_up() && may_revise(scene, stopped)
}

fn may_revise(scene: &Scene<'_>, stopped: &Proposal) -> bool {
    let line = scene.board.lineage(&stopped.id);
    line.iter().filter(|p| p.after.is_some() && !p.fallback).count() < REVISIONS
        && !scene.board.is_concluded(&stopped.id)
}

/// Whether a live proposal's tools failed so often, without any success, that another way is due. The strict profile
/// permits none.
pub(crate) fn wants_fallback(scene: &Scene<'_>, live: &Proposal) -> bool {
    let board = scene.board;
    let permitted = board.task.as_ref().is_some_and(|(task, _)| task.policy_profile != Profile::Strict);
    live.is_live()
        && permitted
        && !board.is_concluded(&live.id)
        && board.failures_under(&live.id) >= FAILURES_PER_PROPOSAL
        && !board.ended_under(&live.id).any(|(_, ended)| ended.completed)
        && board.proposals.iter().filter(|p| p.fallback).count() < FALLBACKS
        && scene.tool_calls_left() > 0
        && !scene.time_is_up()
}

/// Whether nothing is left that could come to a claim.
fn is_hopeless(scene: &Scene<'_>) -> bool {
    let board = scene.board;
    let can_claim = |p: &Proposal| p.is_live() && (board.is_concluded(&p.id) || executes(scene, p));
    board.claims.is_empty() && !board.awaits_review() && !board.proposals.iter().any(can_claim)
}

/// Whether a live proposal has something finished to claim, or can still get there.
fn executes(scene: &Scene<'_>, live: &Proposal) -> bool {
    let board = scene.board;
    let finished = board.executions.iter().any(|execution| execution.ended.is_some());
    let under_way = board.executions.iter().any(|execution| execution.ended.is_none())
        || board.intents.iter().any(|intent| intent.proposal == live.id && intent.execution.is_none());
    finished || under_way || (scene.tool_calls_left() > 0 && !scene.time_is_up())
}

fn hopeless(scene: &Scene<'_>) -> (Key, Work) {
    let board = scene.board;
    if scene.time_is_up() {
        return fail("the time budget was used up before anything could be claimed", false);
    }
    match board.proposals.iter().rev().find(|p| p.is_stopped()) {
        Some(stopped) => fail(
            &format!("the critic turned down every proposal; of the last it says: {}", stopped.rationale),
            true,
        ),
        None => fail("no tool call is left and nothing was run that a claim could rest on", false),
    }
}

fn ask(words: String) -> Work {
    let schema = json!({
        "type": "object",
        "properties": { "proposals": {
            "type": "array", "minItems": 1, "maxItems": PROPOSALS_AT_ONCE,
            "items": {
                "type": "object",
                "properties": {
                    "objective": { "type": "string" },
                    "assumptions": { "type": "array", "items": { "type": "string" } },
                    "required_tools": { "type": "array", "items": { "type": "string" } },
                    "expected_evidence": { "type": "array", "items": { "type": "string" } }
                },
                "required": ["objective", "required_tools", "expected_evidence"]
            }
        } },
        "required": ["proposals"]
    });
    Work::Ask(Question {
        turns: vec![system(PLANNER), Turn::User(words)],
        tools: [form(PROPOSE, "Propose how to do the task, or how to revise what was turned down.", schema)]
            .into(),
    })
}

pub(crate) fn hear(scene: &Scene<'_>, key: &Key, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    let proposed: Proposed = read(answer, PROPOSE)?;
    let (most, link) = match key {
        Key::Plan => (PROPOSALS_AT_ONCE, None),
        Key::Revise(id) => (1, Some(("revises_event_id", id))),
        Key::Fallback(id) => {
            let failed = scene.board.ended_under(id).filter(|(_, ended)| !ended.completed).last();
            let (failed, _) = failed.ok_or("nothing failed")?;
            (1, Some(("fallback_of_execution_id", &failed.id)))
        }
        _ => return Err("nothing was to be proposed".to_owned()),
    };
    if proposed.proposals.is_empty() || proposed.proposals.len() > most {
        return Err(format!("give from 1 to {most} proposals"));
    }
    let mut drafts = Vec::new();
    for one in proposed.proposals {
        if let Some(unknown) = one.required_tools.iter().find(|tool| scene.tool(tool).is_none()) {
            let known: Vec<&str> = scene.tools.iter().map(|tool| tool.view.name.as_str()).collect();
            return Err(format!("there is no tool {unknown:?}; there are: {}", known.join(", ")));
        }
        if one.required_tools.is_empty() {
            return Err("required_tools is empty; a claim needs something that was run".to_owned());
        }
        let mut payload = json!({
            "objective": words(&one.objective, "objective")?,
            "assumptions": list(&one.assumptions, "assumptions", ENTRIES)?,
            "required_tools": list(&one.required_tools, "required_tools", ENTRIES)?,
            "expected_evidence": list(&one.expected_evidence, "expected_evidence", ENTRIES)?,
        });
        if let (Some((name, id)), Some(fields)) = (link, payload.as_object_mut()) {
            fields.insert(name.to_owned(), Value::from(id.as_str()));
        }
        drafts.push(Draft::new(EventType::ProposalCreated, payload));
    }
    Ok(drafts)
}

pub(crate) fn unusable(why: &str) -> Work {
    Work::Fail { reason: format!("the planner gave no usable proposal: {why}"), refused: false }
}
