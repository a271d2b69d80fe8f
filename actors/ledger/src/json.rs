//! JSON as the ledger needs it: members in the order they were written, strings that may hold lone surrogates, numbers
//! as doubles, and a note of everything a careful reader must refuse ([`Flaws`]) although a lenient one accepts it. The
//! parser is total: any text ends in a value or in a [`JsonError`], within a bounded depth.

mod parse;
mod strings;
mod text;

pub use parse::{Flaws, JsonError, parse};
pub use text::Text;
pub(crate) use text::{Piece, pieces};

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};
use std::borrow::Cow;

/// How deep arrays and objects may nest. Readers and writers here recurse, and a verifier's threads have small stacks;
/// real events nest fewer than ten levels.
pub const MAX_DEPTH: usize = 256;

/// A JSON value that borrows from the text it was read from where it can.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// Any number, as the double it reads as. Infinite where the literal was beyond the doubles.
    Number(f64),
    /// A string.
    String(Text<'a>),
    /// An array.
    Array(Vec<Value<'a>>),
    /// An object: its members in the order of writing, names unique.
    Object(Object<'a>),
}

/// The members of a JSON object in the order they were written.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Object<'a>(Vec<(Text<'a>, Value<'a>)>);

/// A value that owns all its text.
pub type Owned = Value<'static>;

impl<'a> Object<'a> {
    /// An object without members.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// An object of these members. Names must be unique; the first of two equal ones is the one that is read.
    #[must_use]
    pub const fn from_members(members: Vec<(Text<'a>, Value<'a>)>) -> Self {
        Self(members)
    }

    /// The member of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.0.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
    }

    /// The members in the order of writing.
    #[must_use]
    pub fn members(&self) -> &[(Text<'a>, Value<'a>)] {
        &self.0
    }

    /// The members' values, to change them.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Value<'a>> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Adds a member at the end, or replaces the one of that name where it stands.
    pub fn set(&mut self, name: &str, value: Value<'a>) {
        match self.0.iter_mut().find(|(key, _)| key.as_str() == Some(name)) {
            Some((_, old)) => *old = value,
            None => self.0.push((Text::Str(Cow::Owned(name.to_owned())), value)),
        }
    }

    /// How many members there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> Value<'a> {
    /// The member of this name, if this is an object that has it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.as_object()?.get(name)
    }

    /// The object.
    #[must_use]
    pub const fn as_object(&self) -> Option<&Object<'a>> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The items of the array.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Value<'a>]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The string, unless it holds a lone surrogate.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => text.as_str(),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The truth value.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            _ => None,
        }
    }

    /// Whether this is `null`.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// A string value that borrows.
    #[must_use]
    pub const fn str(text: &'a str) -> Self {
        Self::String(Text::Str(Cow::Borrowed(text)))
    }

    /// An object of these members, written in this order.
    #[must_use]
    pub fn object<const N: usize>(members: [(&'a str, Value<'a>); N]) -> Self {
        Self::Object(Object(
            members.into_iter().map(|(key, value)| (Text::Str(Cow::Borrowed(key)), value)).collect(),
        ))
    }

    /// This object with one more member at its end (or that member replaced). Anything else stays what it is.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value<'a>) -> Self {
        if let Self::Object(object) = &mut self {
            object.set(name, value);
        }
        self
    }

    /// The same value, owning its text.
    #[must_use]
    pub fn into_owned(self) -> Owned {
        match self {
            Self::Null => Value::Null,
            Self::Bool(truth) => Value::Bool(truth),
            Self::Number(number) => Value::Number(number),
            Self::String(text) => Value::String(text.into_owned()),
            Self::Array(items) => Value::Array(items.into_iter().map(Value::into_owned).collect()),
            Self::Object(Object(members)) => Value::Object(Object(
                members.into_iter().map(|(key, value)| (key.into_owned(), value.into_owned())).collect(),
            )),
        }
    }

    /// The JSON text without white space, members in the order of writing, strings as they are.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        self.write_json(&mut out);
        out
    }

    /// Appends the JSON text. An infinite number, which JSON does not have, is written as `null`.
    pub fn write_json(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(number) if number.is_finite() => {
                out.push_str(ryu_js::Buffer::new().format_finite(*number));
            }
            Self::Number(_) => out.push_str("null"),
            Self::String(text) => text.write_quoted(out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write_json(out);
                }
                out.push(']');
            }
            Self::Object(Object(members)) => {
                out.push('{');
                for (index, (key, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    key.write_quoted(out);
                    out.push(':');
                    value.write_json(out);
                }
                out.push('}');
            }
        }
    }
}

impl From<bool> for Value<'_> {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(f64::from(number))
    }
}

impl From<i32> for Value<'_> {
    fn from(number: i32) -> Self {
        Self::Number(f64::from(number))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::String(Text::Str(Cow::Owned(text)))
    }
}

impl From<&str> for Value<'_> {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl<'a, T: Into<Value<'a>>> From<Vec<T>> for Value<'a> {
    fn from(items: Vec<T>) -> Self {
        Self::Array(items.into_iter().map(Into::into).collect())
    }
}

impl From<serde_json::Value> for Value<'_> {
    /// Numbers become doubles; members keep the order in which the map gives them.
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(truth) => Self::Bool(truth),
            serde_json::Value::Number(number) => Self::Number(number.as_f64().unwrap_or(f64::INFINITY)),
            serde_json::Value::String(text) => text.into(),
            serde_json::Value::Array(items) => items.into(),
            serde_json::Value::Object(map) => Self::Object(Object(
                map.into_iter().map(|(key, value)| (Text::Str(Cow::Owned(key)), value.into())).collect(),
            )),
        }
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(truth) => serializer.serialize_bool(*truth),
            Self::Number(number) => match whole(*number) {
                Some(integer) => serializer.serialize_i64(integer),
                None => serializer.serialize_f64(*number),
            },
            Self::String(text) => serializer.serialize_str(&text.to_str_lossy()),
            Self::Array(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    seq.serialize_element(item)?;
                }
                seq.end()
            }
            Self::Object(Object(members)) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                for (key, value) in members {
                    map.serialize_entry(&*key.to_str_lossy(), value)?;
                }
                map.end()
            }
        }
    }
}

/// The number as an integer, if it is one that every reader holds exactly.
fn whole(number: f64) -> Option<i64> {
    const SAFE: f64 = choir_messages::canonical::SAFE_INTEGER as f64;
    #[expect(clippy::cast_possible_truncation, reason = "whole and within ±(2^53-1)")]
    (number.fract() == 0.0 && number.abs() <= SAFE).then_some(number as i64)
}
