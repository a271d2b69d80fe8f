//! Identities: who may sign, with which key, in which roles. The registry is `keys/registry.json`.

use crate::event::Role;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::chain::Digest;
use choir_messages::sign::PublicKey;
use serde::{Deserialize, Serialize};

/// The DER of an Ed25519 public key (RFC 8410) is this and the 32 bytes of the key.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Hex digits of the digest that make up a key id.
const KEY_ID_DIGITS: usize = 16;

/// How an identity's key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyStatus {
    /// In use.
    Active,
    /// Replaced by another key at `updated_at`; good before.
    Rotated,
    /// Withdrawn at `revoked_at`; without that time it was never good (R06).
    Revoked,
}

/// One entry of the registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// The agent's name in events: `[a-z0-9._-]+`.
    pub agent_id: String,
    /// Its name for people.
    pub display_name: String,
    /// The roles it may act in.
    pub role_capabilities: Vec<Role>,
    /// [`key_id`] of the public key.
    pub key_id: String,
    /// The public key: SPKI in PEM.
    pub public_key: String,
    /// `ed25519`.
    pub key_algorithm: String,
    /// How the key stands.
    pub status: KeyStatus,
    /// When the key was made; [`crate::time`]'s form.
    pub created_at: String,
    /// When the entry last changed.
    pub updated_at: String,
    /// When the key was withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_reason: Option<String>,
    /// Members this version does not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Identity {
    /// An active identity with this key, made now.
    #[must_use]
    pub fn new(agent_id: &str, display_name: &str, roles: &[Role], key: &PublicKey, now: &str) -> Self {
        Self {
            agent_id: agent_id.to_owned(),
            display_name: display_name.to_owned(),
            role_capabilities: roles.to_vec(),
            key_id: key_id(key),
            public_key: to_pem(key),
            key_algorithm: "ed25519".to_owned(),
            status: KeyStatus::Active,
            created_at: now.to_owned(),
            updated_at: now.to_owned(),
            revoked_at: None,
            revoked_reason: None,
            other: serde_json::Map::new(),
        }
    }
}

/// The object in `keys/registry.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Registry {
    /// `1.0.0`.
    pub schema_version: String,
    /// When the file was written.
    pub generated_at: String,
    /// All identities that ever were. A key id stands here once: the strict reading trusts no key that has two entries.
    pub identities: Vec<Identity>,
}

impl Registry {
    /// The registry without identities.
    #[must_use]
    pub fn empty(now: &str) -> Self {
        Self { schema_version: "1.0.0".to_owned(), generated_at: now.to_owned(), identities: Vec::new() }
    }

    /// The identity of this key.
    #[must_use]
    pub fn by_key(&self, key_id: &str) -> Option<&Identity> {
        self.identities.iter().find(|identity| identity.key_id == key_id)
    }
}

/// The name of a key: `key_` and the first 16 hex digits of the SHA-256 over its SPKI DER.
#[must_use]
pub fn key_id(key: &PublicKey) -> String {
    let digest = Digest::of(&spki(key)).to_string();
    format!("key_{}", digest.get(..KEY_ID_DIGITS).unwrap_or_default())
}

/// The SPKI DER bytes of the key.
fn spki(key: &PublicKey) -> Vec<u8> {
    [&SPKI_PREFIX[..], key.bytes()].concat()
}

/// The key as SPKI in PEM.
#[must_use]
pub fn to_pem(key: &PublicKey) -> String {
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(spki(key)))
}

/// The key in a PEM text, or nothing if it holds no Ed25519 key. White space is free, as it is in PEM.
#[must_use]
pub fn from_pem(text: &str) -> Option<PublicKey> {
    let inner = text.trim().strip_prefix("-----BEGIN PUBLIC KEY-----")?;
    let inner = inner.strip_suffix("-----END PUBLIC KEY-----")?;
    let base64: String = inner.split_ascii_whitespace().collect();
    let der = STANDARD.decode(base64).ok()?;
    let key: [u8; 32] = der.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?;
    Some(PublicKey::from_bytes(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::sign::SigningKey;

    #[test]
    fn a_key_has_the_pem_and_the_name_that_the_original_gives_it() {
        let seed = Digest::of(b"ledger-golden-test-key/planner-agent/1");
        let key = SigningKey::from_seed(seed.bytes()).public();
        assert_eq!(key_id(&key), "key_714b622637ebb5ae");
        let pem = to_pem(&key);
        assert_eq!(
            pem,
            "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA9K/TH9LI+BjeVWlh/l2dA7dLm8P7/mxrKpA/m56uQtM=\n\
             -----END PUBLIC KEY-----\n"
        );
        assert_eq!(from_pem(&pem), Some(key));
        assert_eq!(from_pem("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----"), None);
        assert_eq!(from_pem(""), None);
    }
}
