//! From a script and a transcript to an answer: a pure function, so the same request always gets the same answer.

use serde_json::Value;
use std::collections::VecDeque;

use crate::limits::QUOTE_BYTES;
use crate::script::{Condition, Match, Otherwise, Script, Step};
use crate::transcript::{Entry, Transcript};
use crate::{chat, ledger};

/// What is shown where a placeholder stands for nothing.
const NOTHING: &str = "(nothing)";

/// What the model says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The message that is being answered.
    pub user: String,
    /// The rule that answers it: its tag or text, or `chat`.
    pub rule: String,
    /// Which step of the turn this is, from 0.
    pub step: usize,
    /// Its text.
    pub text: Option<String>,
    /// Its calls: wire name and arguments.
    pub calls: Vec<(String, String)>,
    /// Whether the script had nothing for this step.
    pub off_script: bool,
}

/// The turn under way, as the transcript shows it.
struct Turn<'a> {
    user: &'a str,
    /// For each answer of the model since, the results of its calls.
    steps: Vec<&'a [String]>,
}

impl Turn<'_> {
    fn results(&self) -> Vec<&str> {
        self.steps.iter().flat_map(|results| results.iter().map(String::as_str)).collect()
    }
}

/// The answer to a transcript.
#[must_use]
pub fn reply(script: &Script, transcript: &Transcript) -> Reply {
    let open = open_turn(&transcript.entries);
    let recognised = users(open).into_iter().rev().find_map(|(at, user)| {
        let rule = script.rules.iter().find(|rule| rule.when.recognises(user))?;
        Some((turn(open, at, user), rule))
    });
    if let Some((turn, rule)) = recognised {
        let name = match &rule.when {
            Match::Tag(text) | Match::Contains(text) | Match::Equals(text) => text.clone(),
            Match::Any => "any".to_owned(),
        };
        return match step(&rule.steps, &turn) {
            Some(step) => played(step, &turn, name, &transcript.tools),
            None => Reply {
                text: Some(format!("The script has nothing for step {} of this message.", turn.steps.len())),
                off_script: true,
                ..said(&turn, name)
            },
        };
    }
    // The message that began the work; one that was added while it is under way does not begin another.
    let first_call = open
        .iter()
        .position(|entry| matches!(entry, Entry::Called(_) | Entry::Stumbled))
        .unwrap_or(open.len());
    let begun = users(open).into_iter().rev().find(|(at, _)| *at < first_call);
    let (at, user) = begun.or_else(|| users(open).into_iter().next()).unwrap_or((0, ""));
    let turn = turn(open, at, user);
    match &script.otherwise {
        Otherwise::Text(text) => {
            Reply { text: Some(fill(text, &turn)), ..said(&turn, "otherwise".to_owned()) }
        }
        Otherwise::Chat => {
            // A role of the signed ledger asks for one of its forms; the small chat has none of them.
            if let Some((tool, arguments)) = ledger::answer(transcript) {
                let name = offered(&tool, &transcript.tools).unwrap_or_else(|| sanitised(&tool));
                let calls = vec![(name, arguments.to_string())];
                return Reply { calls, ..said(&turn, "ledger".to_owned()) };
            }
            let results = turn.results();
            let last = results.last().copied();
            let (text, call) = match chat::answer(user, turn.steps.len(), last) {
                chat::Says::Text(text) => (Some(text), None),
                chat::Says::Call(tool, arguments) => match offered(tool, &transcript.tools) {
                    Some(name) => (None, Some((name, arguments.to_string()))),
                    None => (
                        Some(format!("I would need the tool {tool} for that, but it is not offered to me.")),
                        None,
                    ),
                },
            };
            Reply { text, calls: call.into_iter().collect(), ..said(&turn, "chat".to_owned()) }
        }
    }
}

fn said(turn: &Turn<'_>, rule: String) -> Reply {
    Reply {
        user: turn.user.to_owned(),
        rule,
        step: turn.steps.len(),
        text: None,
        calls: Vec::new(),
        off_script: false,
    }
}

/// What follows the last answer that ended a turn.
fn open_turn(entries: &[Entry]) -> &[Entry] {
    let ended = entries.iter().rposition(|entry| matches!(entry, Entry::Said(_)));
    entries.get(ended.map_or(0, |at| at + 1)..).unwrap_or_default()
}

fn users<'a>(entries: &'a [Entry]) -> Vec<(usize, &'a str)> {
    let user = |(at, entry): (usize, &'a Entry)| match entry {
        Entry::User(text) => Some((at, text.as_str())),
        Entry::Said(_) | Entry::Called(_) | Entry::Stumbled => None,
    };
    entries.iter().enumerate().filter_map(user).collect()
}

fn turn<'a>(entries: &'a [Entry], at: usize, user: &'a str) -> Turn<'a> {
    let since = entries.get(at..).unwrap_or_default().iter();
    let steps =
        since.filter_map(|entry| if let Entry::Called(results) = entry { Some(&**results) } else { None });
    Turn { user, steps: steps.collect() }
}

/// Plays the steps against what happened and returns the one that is next.
fn step<'a>(steps: &'a [Step], turn: &Turn<'_>) -> Option<&'a Step> {
    let mut program: VecDeque<&Step> = steps.iter().collect();
    for (at, results) in turn.steps.iter().enumerate() {
        let taken = program.pop_front()?;
        // A branch's texts may speak of what had happened by then, not of what came later.
        let by_then = Turn { user: turn.user, steps: turn.steps.get(..=at).unwrap_or_default().to_vec() };
        let inserted: &[Step] =
            if !taken.on_outcome_unknown.is_empty() && any_status(results, "outcome_unknown") {
                &taken.on_outcome_unknown
            } else {
                let branch = taken.branches.iter().find(|branch| holds(&branch.when, results, &by_then));
                branch.map_or(&[], |branch| &*branch.steps)
            };
        for step in inserted.iter().rev() {
            program.push_front(step);
        }
    }
    program.pop_front()
}

fn holds(condition: &Condition, results: &[String], turn: &Turn<'_>) -> bool {
    let contains = |text: &str| {
        let text = fill(text, turn);
        // A result is JSON text: what it says is compared, not how it is escaped.
        results.iter().any(|result| {
            result.contains(&text)
                || serde_json::from_str(result).is_ok_and(|value: Value| says(&value, &text))
        })
    };
    match condition {
        Condition::StatusIs(status) => any_status(results, status),
        Condition::ResultContains(text) => contains(text),
        Condition::ResultLacks(text) => !contains(text),
    }
}

fn says(value: &Value, text: &str) -> bool {
    match value {
        Value::String(said) => said.contains(text),
        Value::Array(items) => items.iter().any(|item| says(item, text)),
        Value::Object(fields) => fields.values().any(|field| says(field, text)),
        _ => false,
    }
}

fn any_status(results: &[String], status: &str) -> bool {
    results.iter().any(|result| {
        serde_json::from_str::<Value>(result)
            .is_ok_and(|result| result.get("status").and_then(Value::as_str) == Some(status))
    })
}

fn played(step: &Step, turn: &Turn<'_>, rule: String, tools: &[String]) -> Reply {
    let calls = step.calls.iter().map(|call| {
        let name = offered(&call.tool, tools).unwrap_or_else(|| sanitised(&call.tool));
        (name, fill_value(&call.arguments, turn).to_string())
    });
    let text = step.text.as_ref().map(|text| fill(text, turn));
    // An answer without text and calls is none; clients rightly refuse it.
    let text = text.or_else(|| step.calls.is_empty().then(|| "(no text)".to_owned()));
    Reply { text, calls: calls.collect(), ..said(turn, rule) }
}

/// The name by which a tool is offered: its own, or with what wire names cannot hold replaced.
fn offered(tool: &str, tools: &[String]) -> Option<String> {
    let wire = sanitised(tool);
    tools.iter().find(|offered| **offered == tool || **offered == wire).cloned()
}

fn sanitised(tool: &str) -> String {
    tool.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

fn fill_value(value: &Value, turn: &Turn<'_>) -> Value {
    match value {
        Value::String(text) => match whole_placeholder(text) {
            Some(name) => lookup(name, turn).unwrap_or_else(|| Value::from(NOTHING)),
            None => Value::String(fill(text, turn)),
        },
        Value::Array(items) => items.iter().map(|item| fill_value(item, turn)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), fill_value(value, turn))).collect(),
        ),
        other => other.clone(),
    }
}

fn whole_placeholder(text: &str) -> Option<&str> {
    text.strip_prefix("{{")?.strip_suffix("}}").filter(|name| !name.contains("{{"))
}

/// Replaces the placeholders of a text.
fn fill(text: &str, turn: &Turn<'_>) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else { break };
        filled.push_str(before);
        filled.push_str(&match lookup(name, turn) {
            Some(Value::String(text)) => quoted(text),
            Some(value) => quoted(value.to_string()),
            None => NOTHING.to_owned(),
        });
        rest = after;
    }
    filled.push_str(rest);
    filled
}

fn quoted(mut text: String) -> String {
    if text.len() > QUOTE_BYTES {
        while text.len() > QUOTE_BYTES {
            text.pop();
        }
        text.push_str(" ...");
    }
    text
}

fn lookup(name: &str, turn: &Turn<'_>) -> Option<Value> {
    let results = turn.results();
    let (result, pointer) = match name.trim().split_once(':') {
        None if name.trim() == "user" => return Some(Value::from(turn.user)),
        Some(("last", pointer)) => (*results.last()?, pointer),
        Some(("result", rest)) => {
            let (at, pointer) = rest.split_once(':')?;
            (*results.get(at.parse::<usize>().ok()?)?, pointer)
        }
        _ => return None,
    };
    match serde_json::from_str::<Value>(result) {
        Ok(value) => value.pointer(pointer).cloned(),
        Err(_) => pointer.is_empty().then(|| Value::from(result)),
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
