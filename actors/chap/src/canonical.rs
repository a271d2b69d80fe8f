//! CHAP's canonical form, in one pass: RFC 8785 with integers within ±(2^53-1) only (digest §3.4). The general form is
//! [`choir_messages::canonical`]; this one checks the numbers while it writes, and every call is measured by it.

use choir_messages::canonical::{CanonicalError, SAFE_INTEGER};
use serde_json::{Map, Number, Value};

/// The canonical text of a value, or why it has none.
pub(crate) fn text(value: &Value) -> Result<String, CanonicalError> {
    let mut out = String::with_capacity(256);
    write(value, &mut out)?;
    Ok(out)
}

/// The canonical text of an object.
pub(crate) fn object_text(object: &Map<String, Value>) -> Result<String, CanonicalError> {
    let mut out = String::with_capacity(512);
    write_object(object, &mut out)?;
    Ok(out)
}

// Recursion is bounded by the nesting that a call may have.
fn write(value: &Value, out: &mut String) -> Result<(), CanonicalError> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out)?,
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            out.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(item, out)?;
            }
            out.push(']');
        }
        Value::Object(map) => write_object(map, out)?,
    }
    Ok(())
}

fn write_object(map: &Map<String, Value>, out: &mut String) -> Result<(), CanonicalError> {
    out.push('{');
    let mut first = true;
    let mut member = |key: &str, value: &Value| {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write(value, out)
    };
    // Bytes sort as UTF-16 units do, but for what lies at and above U+E000; and a map may be in any order.
    let in_order = map.keys().all(|key| key.bytes().all(|byte| byte < 0xEE)) && map.keys().is_sorted();
    if in_order {
        map.iter().try_for_each(|(key, value)| member(key, value))?;
    } else {
        let mut members: Vec<(&String, &Value)> = map.iter().collect();
        members.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
        members.into_iter().try_for_each(|(key, value)| member(key, value))?;
    }
    out.push('}');
    Ok(())
}

fn write_number(number: &Number, out: &mut String) -> Result<(), CanonicalError> {
    use std::fmt::Write as _;
    let unsafe_number = || CanonicalError::Number(number.to_string());
    let magnitude_fits =
        |magnitude: u64| if magnitude <= SAFE_INTEGER { Ok(()) } else { Err(unsafe_number()) };
    let written = if let Some(n) = number.as_u64() {
        magnitude_fits(n)?;
        write!(out, "{n}")
    } else if let Some(n) = number.as_i64() {
        magnitude_fits(n.unsigned_abs())?;
        write!(out, "{n}")
    } else {
        match number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() <= SAFE_INTEGER as f64) {
            // An integer of that size is exact, and -0 is 0.
            Some(f) => write!(out, "{}", f as i64),
            None => return Err(unsafe_number()),
        }
    };
    written.map_err(|_| unsafe_number())
}

fn write_string(text: &str, out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| byte < 0x20 || byte == b'"' || byte == b'\\') {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        let mut characters = from.chars();
        match characters.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\u{8}') => out.push_str("\\b"),
            Some('\t') => out.push_str("\\t"),
            Some('\n') => out.push_str("\\n"),
            Some('\u{c}') => out.push_str("\\f"),
            Some('\r') => out.push_str("\\r"),
            Some(control) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            None => {}
        }
        rest = characters.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(Value::from),
            (-1_000_000_i64..1_000_000).prop_map(|n| Value::from(n as f64)),
            any::<String>().prop_map(Value::from),
            "[\\x00-\\x1f\"\\\\a\u{e000}\u{ffff}\u{1f600}é]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map("[a\"\\n\u{e000}\u{ffff}\u{1f600}é]{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_writes_what_the_general_form_writes(value in json()) {
            prop_assert_eq!(text(&value).unwrap(), choir_messages::canonical::to_string(&value).unwrap());
        }

        #[test]
        fn it_refuses_the_numbers_that_the_rule_refuses(number in prop_oneof![any::<f64>(), (-4e16..4e16)]) {
            if let Some(number) = serde_json::Number::from_f64(number) {
                let value = Value::Number(number);
                let rule = choir_messages::canonical::check_safe_integers(&value).is_ok();
                prop_assert_eq!(text(&value).is_ok(), rule);
            }
        }
    }

    #[test]
    fn integers_beyond_the_safe_ones_are_refused() {
        for bad in [Value::from(9_007_199_254_740_992_u64), Value::from(u64::MAX), Value::from(i64::MIN)] {
            assert!(text(&bad).is_err(), "{bad}");
        }
        assert_eq!(text(&Value::from(-0.0)).unwrap(), "0");
    }
}
