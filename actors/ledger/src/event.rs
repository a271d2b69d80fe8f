//! Events: the lines of a ledger. Each names who acted ([`Actor`]), what was said (its payload), what it rests on (claims
//! and artefact [`Descriptor`]s) and the event before it; its hash covers all of that and the signature.

mod build;
mod kind;
mod read;
pub(crate) mod schema;

pub use build::{BuildError, UnsignedEvent};
pub use kind::{EventType, Role, UnknownName};
pub use read::{Event, EventError};

use crate::id::{EventId, TraceId};
use choir_messages::chain::Digest;
use serde::{Deserialize, Serialize};

/// The schema version that is written.
pub const SCHEMA_VERSION: &str = "1.0.0";

/// The only signature algorithm.
pub const ALGORITHM: &str = "ed25519";

/// The members of an event that its signature covers, in canonical order. `payload` is covered through `payload_hash`.
pub const SIGNED_MEMBERS: [&str; 11] = [
    "actor",
    "artifacts",
    "claims",
    "created_at",
    "event_id",
    "event_type",
    "payload_hash",
    "payload_type",
    "prev_event_hash",
    "schema_version",
    "trace_id",
];

/// Who acts in an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Actor {
    /// The agent: `[a-z0-9._-]+`.
    pub agent_id: String,
    /// The role it acts in.
    pub role: Role,
    /// The key that signs: `[a-z0-9._-]+`.
    pub key_id: String,
}

/// How much of an artefact is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Redaction {
    /// All of it.
    #[serde(rename = "none")]
    None,
    /// Parts are taken out.
    #[serde(rename = "redacted")]
    Redacted,
    /// Parts are taken out and kept elsewhere.
    #[serde(rename = "redacted-with-pointer")]
    RedactedWithPointer,
}

/// A reference to an artefact: bytes that are stored under their SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The SHA-256 of the bytes.
    pub artifact_hash: Digest,
    /// `sha256`.
    pub hash_algorithm: String,
    /// The media type, `application/json` for one.
    pub media_type: String,
    /// The text encoding, or `binary`.
    pub encoding: String,
    /// How many bytes there are.
    pub byte_size: u64,
    /// When it was produced.
    pub created_at: String,
    /// The event that produced it.
    pub producer_event_id: EventId,
    /// [`crate::layout::storage_uri`] of the hash.
    pub storage_uri: String,
    /// How much of it is there.
    pub redaction_status: Redaction,
    /// The trace that produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<TraceId>,
    /// When the bytes were last held against the hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity_verified_at: Option<String>,
}

impl Descriptor {
    /// The descriptor of these bytes, produced and checked by this event at its time.
    #[must_use]
    pub fn of(
        bytes: &[u8],
        media_type: &str,
        encoding: &str,
        trace: TraceId,
        event: EventId,
        at: &str,
    ) -> Self {
        let hash = Digest::of(bytes);
        Self {
            artifact_hash: hash,
            hash_algorithm: "sha256".to_owned(),
            media_type: media_type.to_owned(),
            encoding: encoding.to_owned(),
            byte_size: bytes.len() as u64,
            created_at: at.to_owned(),
            producer_event_id: event,
            storage_uri: crate::layout::storage_uri(&hash),
            redaction_status: Redaction::None,
            trace_id: Some(trace),
            integrity_verified_at: Some(at.to_owned()),
        }
    }
}

/// The signature member of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// `ed25519`.
    pub algorithm: String,
    /// The 64 bytes in standard, padded base64.
    pub signature_b64: String,
    /// The SHA-256 of the signed bytes.
    pub signed_bytes_hash: Digest,
}
