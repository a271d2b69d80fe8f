//! A call's params, and the shapes they must have before a handler sees them.

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde_json::{Map, Value};

use crate::{Refusal, moment, uri};

/// What a param must be. Null counts as not there, except for [`Shape::Any`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Any JSON.
    Any,
    /// A string.
    Text,
    /// A boolean.
    Bool,
    /// A whole number from 0 on.
    Count,
    /// An object.
    Object,
    /// A list of anything.
    List,
    /// A list of strings.
    Texts,
    /// A string, or a list of strings.
    TextOrTexts,
    /// A participant URI.
    Uri,
    /// An RFC 3339 time.
    Time,
    /// The id of an object of that kind; what it names is loaded with the call.
    Ref(ObjectKind),
    /// An id that the caller chooses for a new object.
    NewId,
}

/// One param of a method.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// What it must be.
    pub shape: Shape,
    /// What it means, for tool descriptions.
    pub doc: &'static str,
}

impl Param {
    /// A param.
    #[must_use]
    pub const fn new(name: &'static str, shape: Shape, doc: &'static str) -> Self {
        Self { name, shape, doc }
    }

    fn mismatch(&self) -> Refusal {
        Refusal::params(format!("{} must be {}", self.name, self.shape.noun()))
    }
}

impl Shape {
    /// Whether the value has this shape.
    #[must_use]
    pub fn fits(self, value: &Value) -> bool {
        let texts = |value: &Value| value.as_array().is_some_and(|items| items.iter().all(Value::is_string));
        match self {
            Self::Any => true,
            Self::Text | Self::Ref(_) => value.is_string(),
            Self::Bool => value.is_boolean(),
            Self::Count => whole(value).is_some(),
            Self::Object => value.is_object(),
            Self::List => value.is_array(),
            Self::Texts => texts(value),
            Self::TextOrTexts => value.is_string() || texts(value),
            Self::Uri => value.as_str().is_some_and(uri::is_participant),
            Self::Time => value.as_str().and_then(moment::parse).is_some(),
            Self::NewId => value.as_str().is_some_and(uri::is_id),
        }
    }

    /// What a value of this shape is called.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Any => "any JSON value",
            Self::Text | Self::Ref(_) => "a string",
            Self::Bool => "a boolean",
            Self::Count => "a whole number",
            Self::Object => "an object",
            Self::List => "a list",
            Self::Texts => "a list of strings",
            Self::TextOrTexts => "a string or a list of strings",
            Self::Uri => "a participant URI",
            Self::Time => "an RFC 3339 time",
            Self::NewId => "an id of 1 to 256 bytes without control characters",
        }
    }

    /// Its JSON Schema, for MCP's tool descriptions.
    #[must_use]
    pub fn schema(self) -> Value {
        use serde_json::json;
        match self {
            Self::Any => json!({}),
            Self::Text | Self::Ref(_) => json!({"type": "string"}),
            Self::Bool => json!({"type": "boolean"}),
            Self::Count => json!({"type": "integer", "minimum": 0}),
            Self::Object => json!({"type": "object"}),
            Self::List => json!({"type": "array"}),
            Self::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Self::TextOrTexts => json!({"type": ["string", "array"], "items": {"type": "string"}}),
            Self::Uri => {
                json!({"type": "string", "pattern": "^(human|agent|service|group|workspace):[^\\s]+$"})
            }
            Self::Time => json!({"type": "string", "format": "date-time"}),
            Self::NewId => json!({"type": "string", "minLength": 1, "maxLength": crate::limits::ID_BYTES}),
        }
    }
}

/// An integer-valued number from 0 to 2^53-1, however it is spelled (`2.0` is 2).
fn whole(value: &Value) -> Option<u64> {
    let number = value.as_u64().or_else(|| {
        value
            .as_f64()
            .filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f <= choir_messages::canonical::SAFE_INTEGER as f64)
            .map(|f| f as u64)
    })?;
    (number <= choir_messages::canonical::SAFE_INTEGER).then_some(number)
}

/// A call's params, or an object inside them.
#[derive(Debug, Clone, Copy)]
pub struct Params<'a>(Option<&'a Map<String, Value>>);

impl<'a> Params<'a> {
    /// The params in this map; none where there is no map.
    #[must_use]
    pub const fn of(map: Option<&'a Map<String, Value>>) -> Self {
        Self(map)
    }

    /// A value that is there and not null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.0?.get(name).filter(|value| !value.is_null())
    }

    /// Whether a member of that name is there, null or not.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.is_some_and(|map| map.contains_key(name))
    }

    /// A string.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.get(name)?.as_str()
    }

    /// A string that is not empty.
    #[must_use]
    pub fn filled(&self, name: &str) -> Option<&'a str> {
        self.text(name).filter(|text| !text.is_empty())
    }

    /// A string as owned text.
    #[must_use]
    pub fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    /// A boolean.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    /// A whole number.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u64> {
        whole(self.get(name)?)
    }

    /// An object's params.
    #[must_use]
    pub fn object(&self, name: &str) -> Option<Params<'a>> {
        Some(Self(Some(self.get(name)?.as_object()?)))
    }

    /// The members of an object.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<&'a Map<String, Value>> {
        self.get(name)?.as_object()
    }

    /// A list.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&'a [Value]> {
        self.get(name)?.as_array().map(Vec::as_slice)
    }

    /// A list of strings; a single string is a list of one.
    #[must_use]
    pub fn texts(&self, name: &str) -> Option<Vec<String>> {
        match self.get(name)? {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(items) => Some(items.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()),
            _ => None,
        }
    }

    /// A time.
    #[must_use]
    pub fn time(&self, name: &str) -> Option<Timestamp> {
        moment::parse(self.text(name)?)
    }

    /// Any JSON; null where it is not there.
    #[must_use]
    pub fn any(&self, name: &str) -> Value {
        self.get(name).cloned().unwrap_or(Value::Null)
    }

    /// Refuses the call unless every one of these is there.
    pub fn require(&self, names: &[&str]) -> Result<(), Refusal> {
        names.iter().find(|name| !self.has(name)).map_or(Ok(()), |name| Err(Refusal::missing(name)))
    }

    /// Refuses a null where something is required that cannot be null.
    pub(crate) fn not_null(&self, method: &crate::Method) -> Result<(), Refusal> {
        let null = |name: &str| self.has(name) && self.get(name).is_none();
        let required = |param: &&Param| param.shape != Shape::Any && method.required.contains(&param.name);
        method
            .params
            .iter()
            .filter(required)
            .find(|param| null(param.name))
            .map_or(Ok(()), |param| Err(param.mismatch()))
    }

    /// Refuses the call unless what is there has its shape.
    pub fn check(&self, params: &[Param]) -> Result<(), Refusal> {
        let misfit = |param: &&Param| self.get(param.name).is_some_and(|value| !param.shape.fits(value));
        params.iter().find(misfit).map_or(Ok(()), |param| Err(param.mismatch()))
    }
}
