//! Reading an answer: total over any bytes. Everything a provider sends ends in an answer, a failure with its reason,
//! or an error that stands for an HTTP status.

use serde_json::{Map, Value};
use std::collections::BTreeSet;

use choir_messages::id::ModelCallId;
use choir_messages::json;
use choir_messages::limits::{MODEL_TEXT_BYTES, TOOL_CALLS_PER_ANSWER, TOOL_INPUT_BYTES};
use choir_messages::model::{ModelAnswer, ModelFailure, Usage};
use choir_messages::tool::ToolCall;

use super::names::ToolNames;
use crate::limits;

/// What is said at the end of a text that the model's output limit cut.
const CUT_NOTICE: &str = "\n\n[The answer ends here: the model reached its output limit.]";

/// What an answer is read with.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// The mapping its request was built with.
    pub names: &'a ToolNames,
    /// The model's name where the answer has none.
    pub model: &'a str,
    /// The call, from which ids are made for tool calls that come without one.
    pub call: ModelCallId,
}

/// What a body with a good HTTP status turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// An answer within all bounds.
    Answer(ModelAnswer),
    /// No answer, for this reason.
    Failure(ModelFailure),
    /// An error in a good response, as routing providers send when the model behind them fails: to be treated as the
    /// status it names.
    Status {
        /// The status.
        status: u16,
        /// The provider's words.
        reason: String,
    },
}

/// Reads one body.
#[must_use]
pub fn parse(body: &[u8], reading: &Reading<'_>) -> Parsed {
    if json::memory(body) > limits::ANSWER_MEMORY {
        return Parsed::Failure(malformed("it has more values than an answer can have"));
    }
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        // serde_json's text names a position, never the content.
        Err(error) => return Parsed::Failure(malformed(format!("it is not JSON: {error}"))),
    };
    match answer(&value, reading) {
        Ok(answer) => Parsed::Answer(answer),
        Err(parsed) => *parsed,
    }
}

type Stop = Box<Parsed>;

fn malformed(reason: impl Into<String>) -> ModelFailure {
    ModelFailure::Malformed { reason: reason.into() }
}

fn stop(reason: impl Into<String>) -> Stop {
    Box::new(Parsed::Failure(malformed(reason)))
}

fn too_large(limit: usize) -> Stop {
    Box::new(Parsed::Failure(ModelFailure::TooLarge { limit: limit as u64 }))
}

fn answer(value: &Value, reading: &Reading<'_>) -> Result<ModelAnswer, Stop> {
    let root = value.as_object().ok_or_else(|| stop("it is not a JSON object"))?;
    if let Some(error) = given(root, "error") {
        return Err(provider_error(error));
    }
    let choices = given(root, "choices").ok_or_else(|| stop("it has no `choices`"))?;
    let choices = choices.as_array().ok_or_else(|| stop("`choices` is not an array"))?;
    let choice = choices.first().ok_or_else(|| stop("`choices` is empty"))?;
    let choice = choice.as_object().ok_or_else(|| stop("a choice is not an object"))?;
    if let Some(error) = given(choice, "error") {
        return Err(provider_error(error));
    }
    let finish = match given(choice, "finish_reason") {
        None => "",
        Some(Value::String(finish)) => finish.as_str(),
        Some(_) => return Err(stop("`finish_reason` is not a string")),
    };
    if finish == "content_filter" {
        return Err(Box::new(Parsed::Failure(ModelFailure::Filtered)));
    }
    let message = given(choice, "message").ok_or_else(|| stop("the choice has no `message`"))?;
    let message = message.as_object().ok_or_else(|| stop("`message` is not an object"))?;

    let calls = calls(message, reading)?;
    let mut text = text(message)?;
    if finish == "length" && text.is_some() && calls.is_empty() {
        text = text.map(|text| text + CUT_NOTICE);
    }
    if text.is_none() && calls.is_empty() {
        return Err(stop(match finish {
            "length" => {
                "the model reached its output limit before it said anything; allow it more tokens or less reasoning"
            }
            "error" => "the provider says that the model failed",
            _ => "it has neither text nor tool calls",
        }));
    }
    let answer = ModelAnswer { text, calls, usage: usage(root)?, model: model_name(root, reading.model) };
    check_size(&answer)?;
    Ok(answer)
}

/// A field that is there and not null.
fn given<'a>(object: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    object.get(field).filter(|value| !value.is_null())
}

fn provider_error(error: &Value) -> Stop {
    let reason = match error {
        Value::String(text) => text.clone(),
        Value::Object(fields) => match given(fields, "message") {
            Some(Value::String(text)) => text.clone(),
            _ => "the provider reports an error without a message".to_owned(),
        },
        _ => "the provider reports an error".to_owned(),
    };
    let status = error
        .get("code")
        .and_then(Value::as_u64)
        .and_then(|code| u16::try_from(code).ok())
        .filter(|code| (400..600).contains(code))
        // An error without a status comes from behind the provider that answered.
        .unwrap_or(502);
    Box::new(Parsed::Status { status, reason })
}

fn text(message: &Map<String, Value>) -> Result<Option<String>, Stop> {
    let mut text = match given(message, "content") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in parts {
                match part {
                    Value::String(piece) => text.push_str(piece),
                    Value::Object(part) => match given(part, "text") {
                        Some(Value::String(piece)) => text.push_str(piece),
                        // Parts of other kinds (pictures, audio, reasoning) are not text and not asked for.
                        None => {}
                        Some(_) => return Err(stop("the text of a content part is not a string")),
                    },
                    _ => return Err(stop("a content part is neither text nor an object")),
                }
            }
            text
        }
        Some(_) => return Err(stop("`content` is neither text nor an array of parts")),
    };
    if text.trim().is_empty() {
        // A refusal in words is the model's answer to the user.
        text = match given(message, "refusal") {
            Some(Value::String(refusal)) => refusal.clone(),
            _ => String::new(),
        };
    }
    if text.len() > MODEL_TEXT_BYTES - CUT_NOTICE.len() {
        return Err(too_large(MODEL_TEXT_BYTES));
    }
    Ok((!text.trim().is_empty()).then_some(text))
}

fn calls(message: &Map<String, Value>, reading: &Reading<'_>) -> Result<Vec<ToolCall>, Stop> {
    let calls = match given(message, "tool_calls") {
        None => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(stop("`tool_calls` is not an array")),
    };
    if calls.len() > TOOL_CALLS_PER_ANSWER {
        return Err(stop(format!(
            "it proposes {} tool calls at once, more than the {TOOL_CALLS_PER_ANSWER} accepted",
            calls.len()
        )));
    }
    let mut ids = BTreeSet::new();
    calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let call = call.as_object().ok_or_else(|| stop("a tool call is not an object"))?;
            let function = given(call, "function").and_then(Value::as_object);
            let function = function.ok_or_else(|| stop("a tool call has no `function`"))?;
            let Some(Value::String(name)) = given(function, "name") else {
                return Err(stop("a tool call has no name"));
            };
            if name.len() > limits::TOOL_NAME_BYTES {
                return Err(stop(format!("a tool's name is longer than {} bytes", limits::TOOL_NAME_BYTES)));
            }
            Ok(ToolCall {
                provider_id: call_id(call, at, reading.call, &mut ids)?,
                tool: reading.names.canonical(name).to_owned(),
                arguments: arguments(function)?,
            })
        })
        .collect()
}

/// The provider's id; one of our own where it gives none or gives one twice, for results find their calls by it.
fn call_id(
    call: &Map<String, Value>,
    at: usize,
    model_call: ModelCallId,
    ids: &mut BTreeSet<String>,
) -> Result<String, Stop> {
    let id = match given(call, "id") {
        None => String::new(),
        Some(Value::String(id)) => id.clone(),
        Some(_) => return Err(stop("the id of a tool call is not a string")),
    };
    if id.len() > limits::PROVIDER_ID_BYTES {
        return Err(stop(format!(
            "the id of a tool call is longer than {} bytes",
            limits::PROVIDER_ID_BYTES
        )));
    }
    if !id.is_empty() && ids.insert(id.clone()) {
        return Ok(id);
    }
    let own = (0..).map(|salt: usize| match salt {
        0 => format!("call_{model_call}_{at}"),
        _ => format!("call_{model_call}_{at}_{salt}"),
    });
    // Ends: each attempt is another text, and fewer than TOOL_CALLS_PER_ANSWER are taken.
    let own = own.into_iter().find(|id| !ids.contains(id)).unwrap_or_default();
    ids.insert(own.clone());
    Ok(own)
}

fn arguments(function: &Map<String, Value>) -> Result<String, Stop> {
    let arguments = match given(function, "arguments") {
        // Tools without parameters are often called without arguments.
        None => "{}".to_owned(),
        Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        // Some servers send the object itself instead of its text.
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(_) => return Err(stop("the arguments of a tool call are neither text nor an object")),
    };
    if arguments.len() > TOOL_INPUT_BYTES { Err(too_large(TOOL_INPUT_BYTES)) } else { Ok(arguments) }
}

fn usage(root: &Map<String, Value>) -> Result<Usage, Stop> {
    let usage = match given(root, "usage") {
        None => return Ok(Usage::default()),
        Some(Value::Object(usage)) => usage,
        Some(_) => return Err(stop("`usage` is not an object")),
    };
    let tokens = |field: &str| match given(usage, field) {
        None => Ok(0),
        Some(Value::Number(number)) => {
            // Some gateways count in floats; a negative count is none.
            let float = number.as_f64().unwrap_or(0.0).max(0.0);
            Ok(number.as_u64().unwrap_or(float as u64).min(limits::TOKENS_CLAIMED))
        }
        Some(_) => Err(stop(format!("`{field}` is not a number"))),
    };
    Ok(Usage { prompt_tokens: tokens("prompt_tokens")?, completion_tokens: tokens("completion_tokens")? })
}

fn model_name(root: &Map<String, Value>, configured: &str) -> String {
    let name = root.get("model").and_then(Value::as_str).filter(|name| !name.is_empty());
    let mut name = name.unwrap_or(configured).to_owned();
    while name.len() > limits::MODEL_NAME_BYTES {
        name.pop();
    }
    name
}

/// One answer becomes one event: what escapes add to it counts.
fn check_size(answer: &ModelAnswer) -> Result<(), Stop> {
    let written = |text: &str| serde_json::to_string(text).map_or(usize::MAX, |json| json.len());
    let calls = answer.calls.iter().flat_map(|call| [&call.provider_id, &call.tool, &call.arguments]);
    let bytes = calls
        .chain(answer.text.as_ref())
        .map(|text| written(text))
        .fold(0usize, |sum, bytes| sum.saturating_add(bytes));
    if bytes > limits::ANSWER_JSON_BYTES { Err(too_large(limits::ANSWER_JSON_BYTES)) } else { Ok(()) }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
