//! Participants of a workspace and their keys.

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Stored;

/// A public key of a member with the time it is valid for (`security-signed/1.0`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// Its name among the member's keys.
    pub kid: String,
    /// The key as a JWK.
    pub jwk: Value,
    /// From then on.
    pub valid_from: Timestamp,
    /// Until then, not included; set when the key is rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<Timestamp>,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_reason: Option<String>,
}

impl Key {
    /// A key that is valid from now on.
    #[must_use]
    pub const fn new(kid: String, jwk: Value, valid_from: Timestamp) -> Self {
        Self { kid, jwk, valid_from, valid_until: None, revoked_at: None, revoked_reason: None }
    }

    /// Whether it was valid at that moment.
    #[must_use]
    pub fn covers(&self, at: Timestamp) -> bool {
        at >= self.valid_from
            && self.revoked_at.is_none_or(|end| at < end)
            && self.valid_until.is_none_or(|end| at < end)
    }

    fn to_wire(&self) -> Value {
        let mut out = json!({"jwk": self.jwk, "kid": self.kid, "valid_from": self.valid_from.to_string()});
        if let Some(map) = out.as_object_mut() {
            if let Some(until) = self.valid_until {
                map.insert("valid_until".to_owned(), json!(until.to_string()));
            }
            if let Some(at) = self.revoked_at {
                map.insert("revoked_at".to_owned(), json!(at.to_string()));
                map.insert("revoked_reason".to_owned(), json!(self.revoked_reason));
            }
        }
        out
    }
}

/// A participant of a workspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its URI.
    pub uri: String,
    /// `human`, `agent`, `service`, `group` or `workspace`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its role, by its own choice at joining; `admin` is the one that opens anything.
    pub role: String,
    /// When it joined.
    pub joined: Timestamp,
    /// Its place among all who ever joined, by which members are listed.
    pub order: u64,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// What it can do, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Value>,
    /// What it may do, by its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<Vec<String>>,
    /// Its keys, old ones among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// Gets no new tasks (`control.pause`).
    #[serde(default)]
    pub paused: bool,
    /// When it left, if it did: it is then no member any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Timestamp>,
    /// The subject of its verified ID token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc_sub: Option<String>,
    /// When it logged in, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc_auth_time: Option<i64>,
    /// How it logged in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc_acr: Option<String>,
    /// The holder of its verified presentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vc_holder: Option<String>,
    /// What it last announced of itself, and when it was last heard of (`participant.announce`, `.heartbeat`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence: Option<Value>,
}

impl Member {
    /// Whether it is a person.
    #[must_use]
    pub fn is_human(&self) -> bool {
        self.kind == "human"
    }

    /// Its descriptor on the wire.
    #[must_use]
    pub fn to_wire(&self) -> Value {
        let mut out = Map::new();
        let mut put = |name: &str, value: Value| out.insert(name.to_owned(), value);
        put("uri", json!(self.uri));
        put("type", json!(self.kind));
        put("role", json!(self.role));
        put("joined", json!(self.joined.to_string()));
        if let Some(name) = self.display_name.as_deref().filter(|name| !name.is_empty()) {
            put("display_name", json!(name));
        }
        if let Some(capabilities) = self.capabilities.as_ref().filter(|value| !is_empty(value)) {
            put("capabilities", capabilities.clone());
        }
        if let Some(scopes) = self.scopes.as_ref().filter(|scopes| !scopes.is_empty()) {
            put("scopes", json!(scopes));
        }
        if !self.keys.is_empty() {
            let current =
                self.keys.iter().filter(|key| key.revoked_at.is_none() && key.valid_until.is_none());
            put("jwks", json!({"keys": current.map(|key| key.jwk.clone()).collect::<Vec<_>>()}));
            put("key_history", self.keys.iter().map(Key::to_wire).collect());
        }
        if self.paused {
            put("paused", json!(true));
        }
        if let Some(sub) = self.oidc_sub.as_deref().filter(|sub| !sub.is_empty()) {
            put("oidc_sub", json!(sub));
        }
        if let Some(holder) = self.vc_holder.as_deref().filter(|holder| !holder.is_empty()) {
            put("vc_holder", json!(holder));
        }
        Value::Object(out)
    }
}

/// Whether a value says nothing: an empty object, list or string.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) => false,
    }
}

impl Stored for Member {
    const KIND: ObjectKind = ObjectKind::Member;
    fn id(&self) -> &str {
        &self.uri
    }
    fn open(&self) -> bool {
        self.left.is_none()
    }
}
