//! JSON as signed documents need it: nothing after the end, bounded depth, and no key twice in an object, since two
//! readers would see two different documents.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

use crate::limits::MAX_JSON_DEPTH;

/// The value of exactly these bytes.
pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Level(MAX_JSON_DEPTH).deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// The object of exactly these bytes.
pub(crate) fn parse_object(bytes: &[u8]) -> Option<Map<String, Value>> {
    match parse(bytes)? {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// Base64url without padding, in its one canonical form.
pub(crate) fn base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The base64url form of bytes.
pub(crate) fn to_base64url(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Whether a value that was parsed elsewhere keeps to the depth.
pub(crate) fn depth_within(value: &Value, levels: usize) -> bool {
    let Some(below) = levels.checked_sub(1) else { return false };
    match value {
        Value::Array(items) => items.iter().all(|item| depth_within(item, below)),
        Value::Object(map) => map.values().all(|item| depth_within(item, below)),
        _ => true,
    }
}

/// How many levels are left.
struct Level(usize);

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Level {
    fn below<E: serde::de::Error>(&self) -> Result<usize, E> {
        self.0.checked_sub(1).ok_or_else(|| E::custom("too deep"))
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a number"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let (below, mut array) = (self.below()?, Vec::new());
        while let Some(item) = items.next_element_seed(Level(below))? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (below, mut map) = (self.below()?, Map::new());
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Level(below))?;
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_twice_and_text_after_the_end_are_refused() {
        assert!(parse(br#"{"a":1,"b":{"a":1}}"#).is_some());
        for text in [r#"{"a":1,"a":1}"#, r#"{"b":[{"a":1,"a":2}]}"#, "{} {}", "", "{", "1e999"] {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(MAX_JSON_DEPTH).as_bytes()).is_some());
        assert!(parse(nested(MAX_JSON_DEPTH + 1).as_bytes()).is_none());
        let value: Value = serde_json::from_str(&nested(5)).unwrap();
        assert!(depth_within(&value, 5) && !depth_within(&value, 4));
    }

    #[test]
    fn only_canonical_base64url_is_read() {
        assert_eq!(base64url("AQ"), Some(vec![1]));
        for text in ["AR", "AQ==", "A", "A+", "A Q"] {
            assert_eq!(base64url(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_any_reader_reads(text in "[\\[\\]{}:,\"0-9a-c.eE+\\- ]{0,40}") {
            if let Some(value) = parse(text.as_bytes()) {
                prop_assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
            }
        }
    }
}
