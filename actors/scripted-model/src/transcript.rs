//! Reads a request as strictly as real endpoints do: every tool call of the transcript has exactly one result, right
//! after it, and every result has its call.

use serde_json::Value;
use std::collections::BTreeSet;

use choir_messages::chain::Digest;

/// A transcript that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transcript {
    /// The model asked for, to be named in the answer.
    pub model: String,
    /// Everything said, without system messages.
    pub entries: Vec<Entry>,
    /// The tools offered, by their names on the wire.
    pub tools: Vec<String>,
    /// Messages in the request, system ones included.
    pub messages: usize,
    /// Digest of the messages: the same request again has the same.
    pub digest: Digest,
}

/// One part of a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// What the user said.
    User(String),
    /// An answer without calls: the last of its turn.
    Said(String),
    /// An answer with calls, and their results in the order of the calls.
    Called(Vec<String>),
    /// An answer whose calls were faults made on demand; no step of the script.
    Stumbled,
}

/// How the ids of calls begin that were made as faults, so that the transcript itself tells them from the script's.
pub const FAULT_ID: &str = "call_fault_";

/// A request that real endpoints refuse with status 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// What is wrong, for the person who reads the client's log.
    pub message: String,
    /// Where.
    pub param: String,
}

fn invalid(param: impl Into<String>, message: impl Into<String>) -> Invalid {
    Invalid { message: message.into(), param: param.into() }
}

/// Reads a request's body. Fields that mean nothing here are ignored.
pub fn read(body: &[u8]) -> Result<Transcript, Invalid> {
    let root: Value = serde_json::from_slice(body)
        .map_err(|error| invalid("", format!("the body is not JSON: {error}")))?;
    let model = root.get("model").and_then(Value::as_str).filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| invalid("model", "a model must be named"))?.to_owned();
    if root.get("stream").is_some_and(|stream| stream != &Value::Bool(false) && !stream.is_null()) {
        return Err(invalid(
            "stream",
            "this endpoint does not stream; leave `stream` out or set it to false",
        ));
    }
    let messages = root.get("messages").and_then(Value::as_array).filter(|messages| !messages.is_empty());
    let messages = messages.ok_or_else(|| invalid("messages", "`messages` must be an array with entries"))?;
    let entries = entries(messages)?;
    let tools = tools(root.get("tools"))?;
    let digest = Digest::of(&serde_json::to_vec(messages).unwrap_or_default());
    Ok(Transcript { model, entries, tools, messages: messages.len(), digest })
}

fn entries(messages: &[Value]) -> Result<Vec<Entry>, Invalid> {
    let mut entries = Vec::new();
    let mut rest = messages.iter().enumerate().peekable();
    while let Some((at, message)) = rest.next() {
        let place = format!("messages[{at}]");
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        match role {
            "system" | "developer" => {
                content(message, &place)?;
            }
            "user" => entries.push(Entry::User(content(message, &place)?)),
            "tool" => {
                return Err(invalid(
                    place,
                    "a message of role `tool` must follow a message with `tool_calls` that it answers",
                ));
            }
            "assistant" => {
                let ids = call_ids(message, &place)?;
                if ids.is_empty() {
                    entries.push(Entry::Said(content(message, &place)?));
                    continue;
                }
                if message.get("content").is_some_and(|content| !content.is_null()) {
                    content(message, &place)?;
                }
                let mut results = vec![None; ids.len()];
                while let Some((at, result)) =
                    rest.next_if(|(_, next)| next.get("role") == Some(&"tool".into()))
                {
                    let place = format!("messages[{at}]");
                    let id = result.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
                    let call = ids.iter().position(|known| known == id);
                    let Some(slot) = call.and_then(|call| results.get_mut(call)) else {
                        return Err(invalid(
                            place,
                            format!("`tool_call_id` {id:?} answers no call before it"),
                        ));
                    };
                    if slot.is_some() {
                        return Err(invalid(place, format!("the tool call {id:?} has a second result")));
                    }
                    *slot = Some(content(result, &place)?);
                }
                let missing: Vec<&String> = ids
                    .iter()
                    .zip(&results)
                    .filter(|(_, result)| result.is_none())
                    .map(|(id, _)| id)
                    .collect();
                if !missing.is_empty() {
                    return Err(invalid(
                        place,
                        format!(
                            "a message with `tool_calls` must be followed by a result for each; missing: {missing:?}"
                        ),
                    ));
                }
                entries.push(if ids.iter().all(|id| id.starts_with(FAULT_ID)) {
                    Entry::Stumbled
                } else {
                    Entry::Called(results.into_iter().flatten().collect())
                });
            }
            other => return Err(invalid(place, format!("the role {other:?} is not known"))),
        }
    }
    Ok(entries)
}

fn content(message: &Value, place: &str) -> Result<String, Invalid> {
    match message.get("content") {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => Ok(parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect::<Vec<_>>()
            .join("")),
        _ => Err(invalid(format!("{place}.content"), "`content` must be text or an array of parts")),
    }
}

fn call_ids(message: &Value, place: &str) -> Result<Vec<String>, Invalid> {
    let calls = match message.get("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) if !calls.is_empty() => calls,
        Some(_) => {
            return Err(invalid(format!("{place}.tool_calls"), "`tool_calls` must be an array with entries"));
        }
    };
    let mut seen = BTreeSet::new();
    calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let place = format!("{place}.tool_calls[{at}]");
            let id = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
            let id = id.ok_or_else(|| invalid(&place, "a tool call must have an id"))?;
            if !seen.insert(id) {
                return Err(invalid(&place, format!("the id {id:?} names two calls")));
            }
            if call.get("type") != Some(&"function".into()) {
                return Err(invalid(&place, "a tool call must have the type `function`"));
            }
            check_name(call.pointer("/function/name"), &place)?;
            let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
            let arguments = arguments.ok_or_else(|| invalid(&place, "`arguments` must be a string"))?;
            // Several real servers parse the arguments of earlier calls, and refuse what they cannot.
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                return Err(invalid(&place, "`arguments` must be the text of a JSON object"));
            }
            Ok(id.to_owned())
        })
        .collect()
}

fn tools(tools: Option<&Value>) -> Result<Vec<String>, Invalid> {
    let tools = match tools {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(tools)) if !tools.is_empty() => tools,
        Some(_) => return Err(invalid("tools", "`tools` must be an array with entries, or left out")),
    };
    let mut seen = BTreeSet::new();
    tools
        .iter()
        .enumerate()
        .map(|(at, tool)| {
            let place = format!("tools[{at}]");
            if tool.get("type") != Some(&"function".into()) {
                return Err(invalid(&place, "a tool must have the type `function`"));
            }
            let name = check_name(tool.pointer("/function/name"), &place)?;
            if !seen.insert(name) {
                return Err(invalid(&place, format!("two tools have the name {name:?}")));
            }
            match tool.pointer("/function/parameters") {
                None | Some(Value::Object(_)) => Ok(name.to_owned()),
                Some(_) => Err(invalid(&place, "`parameters` must be a JSON Schema object")),
            }
        })
        .collect()
}

fn check_name<'a>(name: Option<&'a Value>, place: &str) -> Result<&'a str, Invalid> {
    let fits = |name: &&str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    name.and_then(Value::as_str).filter(fits).ok_or_else(|| {
        invalid(format!("{place}.function.name"), "a function's name must match ^[a-zA-Z0-9_-]{1,64}$")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn request(messages: Value) -> Vec<u8> {
        json!({ "model": "m", "messages": messages, "unknown": 1 }).to_string().into_bytes()
    }

    fn call(id: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": "x", "arguments": "{}" } })
    }

    fn asked(ids: &[&str]) -> Value {
        let calls: Vec<Value> = ids.iter().map(|id| call(id)).collect();
        json!({ "role": "assistant", "content": null, "tool_calls": calls })
    }

    fn result(id: &str) -> Value {
        json!({ "role": "tool", "tool_call_id": id, "content": id })
    }

    #[test]
    fn results_are_read_in_the_order_of_their_calls() {
        let user = json!({ "role": "user", "content": "go" });
        let transcript = read(&request(
            json!([{"role": "system", "content": "s"}, user, asked(&["a", "b"]), result("b"), result("a")]),
        ))
        .unwrap();
        let expected = vec![Entry::User("go".into()), Entry::Called(vec!["a".into(), "b".into()])];
        assert_eq!((transcript.entries, transcript.messages), (expected, 5));
    }

    #[test]
    fn a_call_without_exactly_one_result_is_refused() {
        let user = json!({ "role": "user", "content": "go" });
        for broken in [
            json!([user, asked(&["a"])]),
            json!([user, asked(&["a"]), user]),
            json!([user, asked(&["a", "b"]), result("a")]),
            json!([user, asked(&["a"]), result("a"), result("a")]),
            json!([user, asked(&["a"]), result("b")]),
            json!([user, result("a")]),
            json!([user, asked(&["a"]), user, result("a")]),
            json!([user, asked(&["a", "a"]), result("a")]),
        ] {
            assert!(read(&request(broken.clone())).is_err(), "{broken}");
        }
    }

    #[test]
    fn requests_that_real_endpoints_refuse_are_refused_here() {
        let hi = json!([{ "role": "user", "content": "hi" }]);
        for body in [
            json!([]),
            json!({ "messages": hi }),
            json!({ "model": "m" }),
            json!({ "model": "m", "messages": [] }),
            json!({ "model": "m", "messages": hi, "stream": true }),
            json!({ "model": "m", "messages": hi, "tools": [] }),
            json!({ "model": "m", "messages": hi, "tools": [{ "type": "function", "function": { "name": "a.b" } }] }),
            json!({ "model": "m", "messages": [{ "role": "user" }] }),
            json!({ "model": "m", "messages": [{ "role": "robot", "content": "" }] }),
        ] {
            assert!(read(body.to_string().as_bytes()).is_err(), "{body}");
        }
        assert!(read(b"{").is_err());
    }

    proptest! {
        #[test]
        fn reading_is_total(roles in prop::collection::vec(0..6usize, 0..8)) {
            let parts = [
                json!({ "role": "user", "content": "u" }), json!({ "role": "assistant", "content": "a" }),
                asked(&["a"]), asked(&["a", "b"]), result("a"), result("b"),
            ];
            let messages: Vec<Value> = roles.iter().map(|at| parts[*at].clone()).collect();
            if let Ok(transcript) = read(&request(Value::from(messages))) {
                let results: usize = transcript.entries.iter()
                    .map(|entry| if let Entry::Called(results) = entry { results.len() } else { 0 }).sum();
                prop_assert_eq!(results, roles.iter().filter(|at| **at >= 4).count());
            }
        }
    }
}
