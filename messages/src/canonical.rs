//! Canonical JSON: RFC 8785 (JCS), the one text of a value that is hashed and signed. CHAP's narrower number rule
//! (integers within ±(2^53-1) only) is a check on top.

use serde::Serialize;
use serde_json::Value;

/// Why a value has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// A key that is no string, or a number that is not finite.
    #[error("the value has no canonical JSON form: {0}")]
    NotJson(String),
    /// A number that CHAP does not allow.
    #[error("the number {0} is not an integer within ±(2^53-1)")]
    Number(String),
    /// An integer that a canonical text would round: it would read back as another.
    #[error("the number {0} is beyond ±(2^53-1), where JSON's readers no longer hold integers exactly")]
    Inexact(String),
}

/// The canonical bytes of a value.
pub fn to_vec<T: Serialize>(value: &T) -> Result<Vec<u8>, CanonicalError> {
    serde_json_canonicalizer::to_vec(value).map_err(|e| CanonicalError::NotJson(e.to_string()))
}

/// The canonical text of a value.
pub fn to_string<T: Serialize>(value: &T) -> Result<String, CanonicalError> {
    serde_json_canonicalizer::to_string(value).map_err(|e| CanonicalError::NotJson(e.to_string()))
}

/// The largest integer that every JSON reader holds exactly: 2^53 - 1.
pub const SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Whether the canonical text reads back as the same integers: none is beyond ±(2^53-1). Fractions and powers of ten are
/// doubles already and always read back.
pub fn check_exact(value: &Value) -> Result<(), CanonicalError> {
    match value {
        Value::Number(n) => {
            let magnitude = n.as_u64().or_else(|| n.as_i64().map(i64::unsigned_abs)).unwrap_or(0);
            if magnitude <= SAFE_INTEGER { Ok(()) } else { Err(CanonicalError::Inexact(n.to_string())) }
        }
        Value::Array(items) => items.iter().try_for_each(check_exact),
        Value::Object(map) => map.values().try_for_each(check_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Whether every number in the value is an integer within ±(2^53-1), as CHAP's canonical form asks. `2.0` is 2.
pub fn check_safe_integers(value: &Value) -> Result<(), CanonicalError> {
    match value {
        Value::Number(n) => {
            let safe = if let Some(u) = n.as_u64() {
                u <= SAFE_INTEGER
            } else if let Some(i) = n.as_i64() {
                i.unsigned_abs() <= SAFE_INTEGER
            } else {
                n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() <= SAFE_INTEGER as f64)
            };
            if safe { Ok(()) } else { Err(CanonicalError::Number(n.to_string())) }
        }
        Value::Array(items) => items.iter().try_for_each(check_safe_integers),
        Value::Object(map) => map.values().try_for_each(check_safe_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}
