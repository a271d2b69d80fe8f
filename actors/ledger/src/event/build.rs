//! Writing events: the payload is hashed, the members are signed, the whole is hashed and becomes one line.

use super::{ALGORITHM, Actor, Descriptor, Event, EventType, Redaction, SCHEMA_VERSION, Signature};
use crate::canon::{self, Unwritable};
use crate::id::{ClaimId, EventId, TraceId};
use crate::json::{Owned, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::chain::Digest;
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;

/// An event before it is signed.
#[derive(Debug, Clone, PartialEq)]
pub struct UnsignedEvent {
    /// The trace.
    pub trace_id: TraceId,
    /// Its own id.
    pub event_id: EventId,
    /// What it reports.
    pub event_type: EventType,
    /// When; the store sees to it that times never go back.
    pub created_at: Timestamp,
    /// Who acts, with which key.
    pub actor: Actor,
    /// What is said; [`crate::payload`] builds them.
    pub payload: Owned,
    /// The claims it is about.
    pub claims: Vec<ClaimId>,
    /// The artefacts it rests on; stored before the event is.
    pub artifacts: Vec<Descriptor>,
}

/// Why an event is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The payload, or a text in a descriptor.
    #[error("the event's payload cannot be written so that everyone hashes it alike: {0}")]
    Payload(#[from] Unwritable),
    /// A member is not in the form the schema asks for.
    #[error("the event's {member} must be {form}")]
    Schema {
        /// The member.
        member: &'static str,
        /// Its form.
        form: &'static str,
    },
}

impl UnsignedEvent {
    /// Signs the event as the successor of the one whose hash is `prev` ([`Digest::ZERO`] for the first). Texts of the
    /// payload are brought into NFC. The same event with the same key gives the same bytes.
    pub fn sign(mut self, key: &SigningKey, prev: Digest) -> Result<Event, BuildError> {
        canon::check_writable(&mut self.payload)?;
        let payload_hash = hash(&self.payload)?;
        let artifacts: Vec<Value<'_>> = self.artifacts.iter().map(descriptor).collect();
        let head = |signature: Option<Value<'static>>| {
            let mut event = Value::object([
                ("schema_version", SCHEMA_VERSION.into()),
                ("trace_id", self.trace_id.to_string().into()),
                ("event_id", self.event_id.to_string().into()),
                ("event_type", Value::str(self.event_type.as_str())),
                ("created_at", self.created_at.to_string().into()),
                (
                    "actor",
                    Value::object([
                        ("agent_id", Value::str(&self.actor.agent_id)),
                        ("role", Value::str(self.actor.role.as_str())),
                        ("key_id", Value::str(&self.actor.key_id)),
                    ]),
                ),
                ("payload_hash", payload_hash.to_string().into()),
                ("prev_event_hash", prev.to_string().into()),
                ("payload_type", Value::str(crate::payload::payload_type(self.event_type))),
            ]);
            if signature.is_some() {
                event = event.with("payload", self.payload.clone());
            }
            event = event
                .with("claims", self.claims.iter().map(ToString::to_string).collect::<Vec<_>>().into())
                .with("artifacts", Value::Array(artifacts.clone()));
            match signature {
                Some(signature) => event.with("signature", signature),
                None => event,
            }
        };
        let mut unsigned = head(None);
        canon::check_writable(&mut unsigned)?;
        let signed_bytes = canon::to_text(&unsigned).map_err(|_| Unwritable::Number)?;
        let signature = Signature {
            algorithm: ALGORITHM.to_owned(),
            signature_b64: STANDARD.encode(key.sign(signed_bytes.as_bytes()).bytes()),
            signed_bytes_hash: Digest::of(signed_bytes.as_bytes()),
        };
        let event = head(Some(Value::object([
            ("algorithm", ALGORITHM.into()),
            ("signature_b64", signature.signature_b64.clone().into()),
            ("signed_bytes_hash", signature.signed_bytes_hash.to_string().into()),
        ])));
        let event_hash = hash(&event)?;
        let event = event.with("event_hash", event_hash.to_string().into());
        if let Some(object) = event.as_object() {
            super::schema::check(object)
                .map_err(|flaw| BuildError::Schema { member: flaw.member, form: flaw.form })?;
        }
        let line = event.to_json();
        drop(event);
        drop(unsigned);
        drop(artifacts);
        Ok(Event {
            line,
            trace_id: self.trace_id,
            event_id: self.event_id,
            event_type: self.event_type,
            created_at: self.created_at,
            actor: self.actor,
            payload_hash,
            prev_event_hash: prev,
            payload: Some(self.payload),
            claims: self.claims,
            artifacts: self.artifacts,
            signature,
            event_hash,
        })
    }
}

fn hash(value: &Value<'_>) -> Result<Digest, BuildError> {
    canon::digest(value).map_err(|_| BuildError::Payload(Unwritable::Number))
}

/// A descriptor's members in the original's order.
fn descriptor(item: &Descriptor) -> Value<'_> {
    #[expect(clippy::cast_precision_loss, reason = "sizes beyond 2^53 bytes do not exist")]
    let size = item.byte_size as f64;
    let redaction = match item.redaction_status {
        Redaction::None => "none",
        Redaction::Redacted => "redacted",
        Redaction::RedactedWithPointer => "redacted-with-pointer",
    };
    let mut value = Value::object([
        ("artifact_hash", item.artifact_hash.to_string().into()),
        ("hash_algorithm", Value::str(&item.hash_algorithm)),
        ("media_type", Value::str(&item.media_type)),
        ("encoding", Value::str(&item.encoding)),
        ("byte_size", size.into()),
        ("created_at", Value::str(&item.created_at)),
        ("producer_event_id", item.producer_event_id.to_string().into()),
        ("storage_uri", Value::str(&item.storage_uri)),
        ("redaction_status", Value::str(redaction)),
    ]);
    if let Some(trace) = item.trace_id {
        value = value.with("trace_id", trace.to_string().into());
    }
    if let Some(at) = &item.integrity_verified_at {
        value = value.with("integrity_verified_at", Value::str(at));
    }
    value
}
