//! Scenarios: what a file says, how names in it are filled in, and whether an answer is what was expected. No I/O.

use std::collections::BTreeMap;

use choir_messages::canonical;
use choir_messages::chain::Digest;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A list of calls with what must come back.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows, in a few words.
    pub title: String,
    /// Where the story comes from.
    pub source: String,
    /// Options that the Coordinator must have been started with.
    #[serde(default)]
    pub server: Vec<String>,
    /// The calls, in order.
    pub steps: Vec<Step>,
}

/// One call and what must come back.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What happens, for people.
    #[serde(default)]
    pub say: Option<String>,
    /// Who calls: becomes `params.from`.
    #[serde(default, rename = "as")]
    pub caller: Option<String>,
    /// The method; absent when the inbox is read.
    #[serde(default)]
    pub method: Option<String>,
    /// Its params; `${name}` stands for what an earlier step kept, `{"digest_of": x}` for the content hash of x.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Reads the caller's inbox instead of calling a method.
    #[serde(default)]
    pub inbox: bool,
    /// Name of a key that is made now and registered with this join.
    #[serde(default)]
    pub key: Option<String>,
    /// Name of a key that is made now and takes the old one's place.
    #[serde(default)]
    pub new_key: Option<String>,
    /// Name of the key that signs the call.
    #[serde(default)]
    pub signed_by: Option<String>,
    /// What the result must contain.
    #[serde(default)]
    pub expect: Option<Value>,
    /// The lengths that lists at these JSON pointers must have.
    #[serde(default)]
    pub expect_count: BTreeMap<String, usize>,
    /// Values at JSON pointers that at least one notice of the inbox must have.
    #[serde(default)]
    pub expect_any: BTreeMap<String, Value>,
    /// Values at JSON pointers for which the call is repeated until they are there.
    #[serde(default)]
    pub until: BTreeMap<String, Value>,
    /// The error code that must come back instead of a result.
    #[serde(default)]
    pub refused: Option<i64>,
    /// Names for values at JSON pointers of the result.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
}

/// What is wrong with a scenario.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// No scenario.
    #[error("the file is no scenario: {0}")]
    NotOne(String),
    /// A name that no step before has kept.
    #[error("${{{0}}} is used before any step keeps it")]
    Unknown(String),
    /// A value that cannot be hashed.
    #[error("digest_of: {0}")]
    Digest(String),
    /// A key that was not made before.
    #[error("the key {0:?} was not made by a step before")]
    NoKey(String),
    /// A step with nothing to do.
    #[error("a step names neither a method nor the inbox")]
    Nothing,
}

impl Scenario {
    /// Reads a scenario.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            serde_json::from_str(text).map_err(|error| ScenarioError::NotOne(error.to_string()))?;
        if scenario.steps.iter().any(|step| step.method.is_none() && !step.inbox) {
            return Err(ScenarioError::Nothing);
        }
        Ok(scenario)
    }
}

/// The content hash of a value: `sha256:` and the hex digest of its canonical form.
pub(crate) fn content_hash(value: &Value) -> Result<String, ScenarioError> {
    let bytes = canonical::to_vec(value).map_err(|error| ScenarioError::Digest(error.to_string()))?;
    Ok(format!("sha256:{}", Digest::of(&bytes)))
}

/// Fills in names and digests, everywhere in a value.
pub(crate) fn fill(value: &Value, kept: &BTreeMap<String, Value>) -> Result<Value, ScenarioError> {
    match value {
        Value::String(text) => fill_text(text, kept),
        Value::Array(items) => {
            Ok(Value::Array(items.iter().map(|v| fill(v, kept)).collect::<Result<_, _>>()?))
        }
        Value::Object(map) => {
            if let (1, Some(inner)) = (map.len(), map.get("digest_of")) {
                return Ok(Value::String(content_hash(&fill(inner, kept)?)?));
            }
            let filled =
                map.iter().map(|(k, v)| Ok((k.clone(), fill(v, kept)?))).collect::<Result<_, _>>()?;
            Ok(Value::Object(filled))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
    }
}

fn fill_text(text: &str, kept: &BTreeMap<String, Value>) -> Result<Value, ScenarioError> {
    let find = |name: &str| kept.get(name).ok_or_else(|| ScenarioError::Unknown(name.to_owned()));
    // A text that is one name becomes the value itself, whatever its type.
    if let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'))
        && !name.contains("${")
    {
        return find(name).cloned();
    }
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, tail)) = after.split_once('}') else { break };
        out.push_str(before);
        match find(name)? {
            Value::String(value) => out.push_str(value),
            other => out.push_str(&other.to_string()),
        }
        rest = tail;
    }
    out.push_str(rest);
    Ok(Value::String(out))
}

/// The first place where `found` does not contain `wanted`: objects may have more members, lists have the same length.
pub(crate) fn differs(wanted: &Value, found: &Value, at: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => wanted.iter().find_map(|(key, value)| {
            let at = format!("{at}/{key}");
            match found.get(key) {
                Some(found) => differs(value, found, &at),
                None => Some(format!("{at} is missing")),
            }
        }),
        (Value::Array(wanted), Value::Array(found)) => {
            if wanted.len() != found.len() {
                return Some(format!("{at} has {} items, expected {}", found.len(), wanted.len()));
            }
            wanted.iter().zip(found).enumerate().find_map(|(i, (w, f))| differs(w, f, &format!("{at}/{i}")))
        }
        _ if wanted == found => None,
        _ => Some(format!("{} is {found}, expected {wanted}", if at.is_empty() { "the result" } else { at })),
    }
}

/// The first pointer whose value is not as wanted.
pub(crate) fn pointers_differ(
    wanted: &BTreeMap<String, Value>,
    found: &Value,
    kept: &BTreeMap<String, Value>,
) -> Result<Option<String>, ScenarioError> {
    for (pointer, value) in wanted {
        let value = fill(value, kept)?;
        match found.pointer(pointer) {
            Some(there) if *there == value => {}
            Some(there) => return Ok(Some(format!("{pointer} is {there}, expected {value}"))),
            None => return Ok(Some(format!("{pointer} is missing, expected {value}"))),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kept() -> BTreeMap<String, Value> {
        BTreeMap::from([("task".into(), json!("tsk_1")), ("n".into(), json!(7))])
    }

    #[test]
    fn a_name_becomes_its_value_and_keeps_its_type() {
        let filled =
            fill(&json!({ "a": "${task}", "b": ["${n}"], "c": "about ${task}, ${n} times" }), &kept());
        assert_eq!(filled, Ok(json!({ "a": "tsk_1", "b": [7], "c": "about tsk_1, 7 times" })));
    }

    #[test]
    fn an_unknown_name_is_an_error_not_an_empty_text() {
        assert_eq!(fill(&json!("${nobody}"), &kept()), Err(ScenarioError::Unknown("nobody".into())));
    }

    #[test]
    fn a_digest_is_of_the_canonical_form() {
        let digest = fill(&json!({ "digest_of": { "b": 1, "a": "${n}" } }), &kept()).unwrap();
        assert_eq!(digest, Value::String(content_hash(&json!({ "a": 7, "b": 1 })).unwrap()));
    }

    #[test]
    fn a_result_may_hold_more_than_was_expected_but_not_less() {
        assert_eq!(differs(&json!({ "a": 1 }), &json!({ "a": 1, "b": 2 }), ""), None);
        assert_eq!(differs(&json!({ "a": 1 }), &json!({ "b": 2 }), "").as_deref(), Some("/a is missing"));
        assert!(differs(&json!([1, 2]), &json!([1]), "").is_some());
        assert!(differs(&json!({ "a": [{ "b": 1 }] }), &json!({ "a": [{ "b": 2 }] }), "").is_some());
    }

    #[test]
    fn a_file_with_an_unknown_field_is_refused() {
        let text = r#"{ "title": "t", "source": "s", "steps": [{ "method": "m", "expects": {} }] }"#;
        assert!(matches!(Scenario::parse(text), Err(ScenarioError::NotOne(_))));
        let text = r#"{ "title": "t", "source": "s", "steps": [{ "say": "nothing" }] }"#;
        assert_eq!(Scenario::parse(text).unwrap_err(), ScenarioError::Nothing);
    }
}
