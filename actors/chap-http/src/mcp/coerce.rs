//! Some MCP clients send an object or array as a string of JSON. Recorded like that, an artefact would have the wrong
//! type for good and no patch could reach into it, so such a string is read where the schema admits what it holds.

use serde_json::{Map, Value};

/// Arguments with strings of JSON read where their schema admits an object or array.
pub(super) fn arguments(schema: &Value, arguments: Map<String, Value>) -> Map<String, Value> {
    let Some(properties) = schema.get("properties") else { return arguments };
    let read = |(name, value): (String, Value)| {
        let value = match properties.get(&name) {
            Some(schema) => argument(schema, value),
            None => value,
        };
        (name, value)
    };
    arguments.into_iter().map(read).collect()
}

fn argument(schema: &Value, value: Value) -> Value {
    let Value::String(text) = &value else { return value };
    let kind = match text.trim_start().as_bytes().first() {
        Some(b'{') => "object",
        Some(b'[') => "array",
        _ => return value,
    };
    if !admits(schema, kind) {
        return value;
    }
    // A text that only begins like JSON is a text.
    serde_json::from_str(text).unwrap_or(value)
}

/// Whether a value of this type fits the schema, as far as its outermost words say; one that says nothing of types
/// fits everything.
fn admits(schema: &Value, kind: &str) -> bool {
    let Value::Object(schema) = schema else { return false };
    match schema.get("type") {
        Some(Value::String(one)) => return one == kind,
        Some(Value::Array(several)) => return several.iter().any(|one| one == kind),
        _ => {}
    }
    let choices = ["oneOf", "anyOf"].iter().find_map(|word| schema.get(*word)?.as_array());
    match choices {
        Some(choices) => choices.iter().any(|choice| admits(choice, kind)),
        None => !schema.contains_key("enum") && !schema.contains_key("const"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(schema: Value, value: Value) -> Value {
        let schema = json!({"properties": {"x": schema}});
        let mut given = Map::new();
        given.insert("x".to_owned(), value);
        arguments(&schema, given).remove("x").unwrap()
    }

    #[test]
    fn a_string_of_json_is_read_where_the_schema_admits_it() {
        for schema in [
            json!({"type": "object"}),
            json!({}),
            json!({"description": "opaque"}),
            json!({"type": ["string", "object"]}),
            json!({"oneOf": [{"type": "string"}, {"type": "object"}]}),
            json!({"anyOf": [{"type": "object"}]}),
        ] {
            assert_eq!(read(schema.clone(), json!(" {\"a\":1}")), json!({"a": 1}), "{schema}");
        }
        let either = json!({"oneOf": [{"type": "string"}, {"type": "array"}]});
        assert_eq!(read(either.clone(), json!("[\"human:a\"]")), json!(["human:a"]));
        assert_eq!(read(either, json!("human:a")), json!("human:a"));
    }

    #[test]
    fn texts_stay_texts() {
        for (schema, value) in [
            (json!({"type": "string"}), json!("{\"a\":1}")),
            (json!({"enum": ["{}"]}), json!("{}")),
            (json!({"type": "array"}), json!("{\"a\":1}")),
            (json!({"type": "object"}), json!("{not json")),
            (json!({}), json!("plain")),
            (json!({}), json!("1")),
            (json!({}), json!("")),
        ] {
            assert_eq!(read(schema, value.clone()), value);
        }
    }

    #[test]
    fn what_the_schema_does_not_name_is_left_alone() {
        let given = Map::from_iter([("y".to_owned(), json!("{}"))]);
        assert_eq!(arguments(&json!({"properties": {"x": {}}}), given.clone()), given);
        assert_eq!(arguments(&json!({}), given.clone()), given);
        assert_eq!(arguments(&json!(true), given.clone()), given);
    }

    proptest! {
        #[test]
        fn a_value_survives_being_sent_as_a_string(keys in proptest::collection::vec(".{0,8}", 0..5)) {
            let value = Value::Object(keys.iter().map(|key| (key.clone(), json!([key]))).collect());
            prop_assert_eq!(read(json!({"type": "object"}), json!(value.to_string())), value);
        }
    }
}
