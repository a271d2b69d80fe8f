//! A JSON value that travels in any codec: as itself in human-readable formats, as its text in binary ones (which
//! cannot describe themselves).

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};
use serde_json::Value;

/// A JSON value inside a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Json(pub Value);

impl Json {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }
}

impl From<Value> for Json {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            self.0.serialize(s)
        } else {
            s.serialize_str(&serde_json::to_string(&self.0).map_err(S::Error::custom)?)
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            Value::deserialize(d).map(Self)
        } else {
            let text = String::deserialize(d)?;
            serde_json::from_str(&text).map(Self).map_err(D::Error::custom)
        }
    }
}
