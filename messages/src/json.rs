//! A JSON value that travels in any codec: as itself in human-readable formats, as its text in binary ones (which
//! cannot describe themselves).

use std::cell::Cell;

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
            if let Some(room) = ROOM.get() {
                let left = room.checked_sub(memory(text.as_bytes()));
                ROOM.set(Some(
                    left.ok_or_else(|| D::Error::custom("its values would take too much memory"))?,
                ));
            }
            serde_json::from_str(&text).map(Self).map_err(D::Error::custom)
        }
    }
}

thread_local! {
    /// What the values of the message being decoded may still take, in bytes.
    static ROOM: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Decodes one message whose JSON values may together take `memory` bytes.
pub(crate) fn within<T>(memory: usize, decode: impl FnOnce() -> T) -> T {
    ROOM.set(Some(memory));
    let value = decode();
    ROOM.set(None);
    value
}

/// Bytes of a map's smallest node: room for eleven fields, however few it has.
const MAP_BYTES: usize = 640;

/// Bytes of an array's smallest buffer: room for four values.
const ARRAY_BYTES: usize = 4 * size_of::<Value>();

/// Bytes of one more element or field: twice a value, for buffers grow by doubling, and a key.
const NEXT_BYTES: usize = 2 * size_of::<Value>() + size_of::<String>();

/// Bytes of a text's own allocation, beside what it says.
const TEXT_BYTES: usize = 16;

/// The most memory, in bytes, that this JSON text takes once it is a [`Value`]: known before it is parsed, in one pass
/// without an allocation. A small object takes a hundred times its text. Of what is no JSON it says nothing useful.
#[must_use]
pub fn memory(text: &[u8]) -> usize {
    let (mut bytes, mut inside, mut escaped) = (0usize, false, false);
    for byte in text {
        if inside {
            bytes += 1;
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => inside = false,
                _ => {}
            }
            continue;
        }
        bytes += match byte {
            b'{' => MAP_BYTES,
            b'[' => ARRAY_BYTES,
            b',' => NEXT_BYTES,
            b'"' => {
                inside = true;
                TEXT_BYTES
            }
            _ => 0,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_memory_of_a_text_is_foretold_by_what_stands_outside_its_strings() {
        assert_eq!(memory(b"12.5"), 0);
        assert_eq!(memory(br#""a\"{[,b""#), TEXT_BYTES + 8);
        assert_eq!(memory(b"[1,2]"), ARRAY_BYTES + NEXT_BYTES);
        assert_eq!(memory(b"[{},{}]"), ARRAY_BYTES + NEXT_BYTES + 2 * MAP_BYTES);
        let plain = json!({ "path": "a/b", "content": "x".repeat(100_000) }).to_string();
        assert!(memory(plain.as_bytes()) < 110_000);
        let dense = json!(vec![json!({ "": 0 }); 10_000]).to_string();
        assert!(memory(dense.as_bytes()) > 80 * dense.len());
    }
}
