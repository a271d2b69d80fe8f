//! The executor's next step under a proposal: what its model is shown (every call so far, paired with its result) and
//! what the calls it proposes become.

use choir_ledger::event::EventType;
use choir_messages::chain::Digest;
use choir_messages::json::Json;
use choir_messages::model::{ModelAnswer, Turn};
use choir_messages::tool::{ToolCall, ToolView};
use serde_json::{Value, json};

use crate::answer::{cut, words};
use crate::board::{Claim, Intent, Proposal, Standing};
use crate::claims::claim_form;
use crate::draft::{Draft, Piece};
use crate::duty::{Question, Scene, ToolInfo};
use crate::limits::{INTENTS_AT_ONCE, SHOWN_BYTES};
use crate::policy;
use crate::words::{EXECUTOR, proposal, system, task};

/// Intents under a proposal and those it comes after.
fn line<'a>(scene: &Scene<'a>, of: &str) -> Vec<&'a Intent> {
    let line: Vec<&str> = scene.board.lineage(of).into_iter().map(|p| p.id.as_str()).collect();
    scene.board.intents.iter().filter(|intent| line.contains(&intent.proposal.as_str())).collect()
}

/// How much happened under a proposal; a step that was decided makes it another number.
pub(crate) fn count(scene: &Scene<'_>, proposal: &str) -> usize {
    line(scene, proposal).iter().map(|intent| 1 + usize::from(result(scene, intent).is_some())).sum()
}

/// The same for what was done to settle a claim.
pub(crate) fn for_claim(scene: &Scene<'_>, claim: &Claim) -> usize {
    let own = scene.board.intents.iter().filter(|intent| intent.claim.as_ref() == Some(&claim.id));
    let done: usize = own.map(|intent| 1 + usize::from(result(scene, intent).is_some())).sum();
    claim.issued_at * 1000 + done
}

/// The tools a proposal may use: those it names, that the policy permits.
pub(crate) fn tools<'a>(scene: &Scene<'a>, live: &Proposal) -> Vec<&'a ToolInfo> {
    let Some((task, _)) = &scene.board.task else { return Vec::new() };
    let named = |tool: &&ToolInfo| live.required_tools.contains(&tool.view.name);
    scene.tools.iter().filter(named).filter(|tool| policy::permits(task, tool).is_ok()).collect()
}

/// Whether another tool call is possible under this proposal.
pub(crate) fn may_call_tools(scene: &Scene<'_>, live: &Proposal) -> bool {
    live.is_live() && scene.tool_calls_left() > 0 && !scene.time_is_up() && !tools(scene, live).is_empty()
}

/// What came of an intent, as a model reads it.
fn result(scene: &Scene<'_>, intent: &Intent) -> Option<String> {
    if intent.standing == Standing::Rejected {
        let said = json!({ "status": "refused", "output": { "error": format!("the critic blocked this call: {}", intent.rationale) } });
        return Some(said.to_string());
    }
    let id = intent.execution.as_ref()?;
    let execution = scene.board.executions.iter().find(|execution| execution.id == *id)?;
    let ended = execution.ended.as_ref()?;
    let shown = ended.output.as_ref().and_then(|hash| scene.board.texts.get(hash));
    let shown = shown.map_or_else(|| "(not readable)".to_owned(), |text| cut(text, SHOWN_BYTES));
    Some(format!("{{\"execution\":\"{id}\",\"result\":{}}}", as_json(&shown)))
}

/// A result that was cut is no JSON any more; it is shown as a text then.
fn as_json(shown: &str) -> String {
    if serde_json::from_str::<Value>(shown).is_ok() { shown.to_owned() } else { json!(shown).to_string() }
}

/// The conversation of a proposal so far: what is asked, then every call with its result.
pub(crate) fn conversation(scene: &Scene<'_>, live: &Proposal, asked: &str) -> Vec<Turn> {
    let mut turns =
        vec![system(EXECUTOR), Turn::User(format!("{}\n{}\n{asked}", task(scene), proposal(live)))];
    for intent in line(scene, &live.id) {
        let Some(content) = result(scene, intent) else { continue };
        let provider_id = format!("call_{}", intent.id);
        let arguments =
            scene.board.texts.get(&intent.input).map_or_else(|| "{}".to_owned(), ToString::to_string);
        let call = ToolCall { provider_id: provider_id.clone(), tool: intent.tool.clone(), arguments };
        turns.push(Turn::Assistant { text: None, calls: vec![call] });
        turns.push(Turn::ToolResult { provider_id, content });
    }
    turns
}

/// Asks for the next step.
pub(crate) fn next(scene: &Scene<'_>, live: &Proposal) -> Question {
    let mut offered: Vec<ToolView> = tools(scene, live).iter().map(|tool| tool.view.clone()).collect();
    // A claim rests on something that worked, as long as another try is left.
    let worked = |e: &crate::board::Execution| e.ended.as_ref().is_some_and(|ended| ended.completed);
    let asked = if scene.board.executions.iter().any(worked) {
        offered.push(claim_form());
        "Carry out the proposal: call the next tool, or claim what the results show."
    } else {
        "Carry out the proposal: call the next tool. Nothing has worked yet that a claim could rest on."
    };
    Question { turns: conversation(scene, live, asked), tools: offered.into() }
}

/// Asks for claims alone: no further tool may be called.
pub(crate) fn only_claims(scene: &Scene<'_>, live: &Proposal) -> Question {
    let asked = "No further tool can be called. Claim what the results so far show, failures too.";
    Question { turns: conversation(scene, live, asked), tools: [claim_form()].into() }
}

/// The calls an answer proposes, as signed intents.
pub(crate) fn intents(
    scene: &Scene<'_>,
    live: &Proposal,
    settles: Option<&Claim>,
    answer: &ModelAnswer,
) -> Result<Vec<Draft>, String> {
    let permitted = tools(scene, live);
    let most = scene.tool_calls_left().min(INTENTS_AT_ONCE);
    let calls: Vec<&ToolCall> = answer.calls.iter().filter(|call| scene.tool(&call.tool).is_some()).collect();
    if calls.len() > most {
        return Err(format!("{} tools were called at once; at most {most} can be", calls.len()));
    }
    let why = answer.text.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let why = words(why.unwrap_or(&live.objective), "justification")?;
    calls
        .into_iter()
        .map(|call| {
            let Some(tool) = permitted.iter().find(|tool| tool.view.name == call.tool) else {
                let names: Vec<&str> = permitted.iter().map(|tool| tool.view.name.as_str()).collect();
                return Err(format!(
                    "{} is not open to this proposal; there are: {}",
                    call.tool,
                    names.join(", ")
                ));
            };
            let input = normalised(tool, &call.arguments)?;
            let mut payload = json!({
                "tool_name": call.tool,
                "normalized_input_hash": Digest::of(input.as_bytes()).to_string(),
                "safety_classification": tool.class().as_str(),
                "justification": why,
                "proposal_event_id": live.id,
            });
            if let (Some(claim), Some(fields)) = (settles, payload.as_object_mut()) {
                fields.insert("settles_claim_id".to_owned(), json!(claim.id));
            }
            let piece = Piece::New { text: input, media_type: "application/json" };
            Ok(Draft::new(EventType::ToolIntentSigned, payload).with([piece]))
        })
        .collect()
}

/// A tool's input in its one form: canonical JSON. That it fits the tool's schema is checked where the tool lives.
fn normalised(tool: &ToolInfo, arguments: &str) -> Result<String, String> {
    let name = &tool.view.name;
    if arguments.len() > choir_messages::limits::TOOL_INPUT_BYTES {
        return Err(format!("the arguments of {name} are too long; do it in parts"));
    }
    let text = if arguments.trim().is_empty() { "{}" } else { arguments };
    let value: Value = serde_json::from_str(text)
        .map_err(|error| format!("the arguments of {name} are no JSON: {error}"))?;
    if !value.is_object() {
        return Err(format!("the arguments of {name} must be one JSON object"));
    }
    missing(&tool.view.input_schema, &value)
        .map_or(Ok(()), |field| Err(format!("the field {field} is missing in the arguments of {name}")))?;
    choir_messages::canonical::to_string(&value).map_err(|error| format!("the arguments of {name}: {error}"))
}

fn missing<'a>(schema: &'a Json, value: &Value) -> Option<&'a str> {
    let required = schema.value().get("required").and_then(Value::as_array)?;
    required.iter().filter_map(Value::as_str).find(|name| value.get(name).is_none())
}
