//! Canonical JSON: the one text of a value that is hashed and signed.

use choir_messages::canonical::{SAFE_INTEGER, check_safe_integers, to_string, to_vec};
use choir_messages::codec;
use choir_messages::json::Json;
use serde_json::{Number, Value};

/// The input is one JSON text. Its canonical form is what a second, plain writer gives; reads back as the same value;
/// is its own canonical form; and CHAP's number rule says the same of both. In a message's payload the value is exact.
pub fn canonical_json(data: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return false };
    let text = to_string(&value).expect("a JSON value without infinities has a canonical form");
    let mut plain = String::new();
    write(&value, &mut plain);
    assert_eq!(text, plain);
    assert_eq!(to_vec(&value).expect("as above"), text.as_bytes());
    let back: Value = serde_json::from_str(&text).expect("canonical JSON is JSON");
    assert!(same(&value, &back), "{value} became {back}");
    assert_eq!(to_string(&back).expect("as above"), text);
    let safe = check_safe_integers(&value).is_ok();
    assert_eq!(check_safe_integers(&back).is_ok(), safe, "the number rule depends on the spelling: {value}");
    if safe {
        assert!(whole(&back), "a number that is no integer passed: {text}");
    }
    let json = Json(value);
    let bytes = codec::encode(&json, u64::MAX).expect("a JSON value can be encoded");
    assert_eq!(codec::decode::<Json>(&bytes, bytes.len() as u64), Ok(json));
    true
}

/// Canonical JSON written down from RFC 8785 again, but for the digits of numbers.
fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => out.push_str(&to_string(number).expect("a finite number")),
        Value::String(text) => quoted(text, out),
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| key.encode_utf16().collect::<Vec<_>>());
            out.push('{');
            for (at, (key, value)) in fields.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                quoted(key, out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
    }
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Equality of values as RFC 8785 sees it: a number is the double it stands for.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((ka, a), (kb, b))| ka == kb && same(a, b))
        }
        (a, b) => a == b,
    }
}

fn whole(value: &Value) -> bool {
    let safe = |number: &Number| number.as_i64().is_some_and(|n| n.unsigned_abs() <= SAFE_INTEGER);
    match value {
        Value::Number(number) => safe(number),
        Value::Array(items) => items.iter().all(whole),
        Value::Object(fields) => fields.values().all(whole),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}
