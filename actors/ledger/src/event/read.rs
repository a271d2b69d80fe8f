//! Reading one event that must be sound: what a writer does with its own ledger. The verifier, which must say something
//! about any line, reads by itself.

use super::{Actor, Descriptor, EventType, SIGNED_MEMBERS, Signature, schema};
use crate::id::{ClaimId, EventId, TraceId};
use crate::json::{Object, Owned, Value};
use crate::{canon, json, time};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, Signature as SignatureBytes, SignatureError};
use choir_messages::time::Timestamp;

/// A signed event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    pub(super) line: String,
    pub(super) trace_id: TraceId,
    pub(super) event_id: EventId,
    pub(super) event_type: EventType,
    pub(super) created_at: Timestamp,
    pub(super) actor: Actor,
    pub(super) payload_hash: Digest,
    pub(super) prev_event_hash: Digest,
    pub(super) payload: Option<Owned>,
    pub(super) claims: Vec<ClaimId>,
    pub(super) artifacts: Vec<Descriptor>,
    pub(super) signature: Signature,
    pub(super) event_hash: Digest,
}

/// Why a line is no sound event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// No JSON.
    #[error(transparent)]
    Json(#[from] json::JsonError),
    /// JSON that careful readers refuse (R03).
    #[error("the line is ambiguous: {0}")]
    Ambiguous(&'static str),
    /// No event.
    #[error("{member} must be {form}")]
    Schema {
        /// The member.
        member: &'static str,
        /// Its form.
        form: &'static str,
    },
    /// A hash does not fit what it covers.
    #[error("{0} does not fit what it covers")]
    Hash(&'static str),
}

impl Event {
    /// Reads a line (without its line end): form, unambiguous JSON, payload hash and event hash. Not the signature, which
    /// needs the key ([`Event::verify`]).
    pub fn parse(line: &str) -> Result<Self, EventError> {
        let (value, flaws) = json::parse(line)?;
        if let Some(flaw) = flaws.first() {
            return Err(EventError::Ambiguous(flaw));
        }
        let shape = |member, form| EventError::Schema { member, form };
        let object = value.as_object().ok_or_else(|| shape("the line", "an object"))?;
        schema::check(object).map_err(|flaw| shape(flaw.member, flaw.form))?;
        let fields = Fields(object);
        let event_type = fields.parse("event_type", "one of the thirteen types")?;
        let created_at = fields.text("created_at");
        let created_at =
            time::parse(created_at).ok_or_else(|| shape("created_at", "a real time from 1970"))?;
        let event = Self {
            line: line.to_owned(),
            trace_id: fields.parse("trace_id", "a ULID of 128 bits")?,
            event_id: fields.parse("event_id", "a ULID of 128 bits")?,
            event_type,
            created_at,
            actor: fields.typed("actor")?,
            payload_hash: fields.parse("payload_hash", "a digest")?,
            prev_event_hash: fields.parse("prev_event_hash", "a digest")?,
            payload: object.get("payload").cloned().map(Value::into_owned),
            claims: fields.typed("claims")?,
            artifacts: fields.typed("artifacts")?,
            signature: fields.typed("signature")?,
            event_hash: fields.parse("event_hash", "a digest")?,
        };
        // An event whose payload was taken away is no sound event, although the schema lets it be absent.
        if event.payload.as_ref().map(canon::digest) != Some(Ok(event.payload_hash)) {
            return Err(EventError::Hash("payload_hash"));
        }
        let hashed = without(object, |name| name != "event_hash");
        if canon::digest(&hashed) != Ok(event.event_hash) {
            return Err(EventError::Hash("event_hash"));
        }
        Ok(event)
    }

    /// Whether the event's signature is this key's over its signed bytes.
    pub fn verify(&self, key: &PublicKey) -> Result<(), SignatureError> {
        let (value, _) = json::parse(&self.line).map_err(|_| SignatureError::Mismatch)?;
        let object = value.as_object().ok_or(SignatureError::Mismatch)?;
        let signed = without(object, |name| SIGNED_MEMBERS.contains(&name));
        let bytes = canon::to_text(&signed).map_err(|_| SignatureError::Mismatch)?;
        if Digest::of(bytes.as_bytes()) != self.signature.signed_bytes_hash {
            return Err(SignatureError::Mismatch);
        }
        let signature = STANDARD.decode(&self.signature.signature_b64).ok();
        let signature = signature.and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
        let signature = signature.ok_or(SignatureError::BadText)?;
        key.verify(bytes.as_bytes(), &SignatureBytes::from_bytes(signature))
    }

    /// The line as it stands in the ledger, without its line end.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(&self) -> TraceId {
        self.trace_id
    }

    /// The event's id.
    #[must_use]
    pub const fn event_id(&self) -> EventId {
        self.event_id
    }

    /// What it reports.
    #[must_use]
    pub const fn event_type(&self) -> EventType {
        self.event_type
    }

    /// When.
    #[must_use]
    pub const fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// Who acted.
    #[must_use]
    pub const fn actor(&self) -> &Actor {
        &self.actor
    }

    /// The hash of the payload.
    #[must_use]
    pub const fn payload_hash(&self) -> Digest {
        self.payload_hash
    }

    /// The hash of the event before; zero on the first.
    #[must_use]
    pub const fn prev_event_hash(&self) -> Digest {
        self.prev_event_hash
    }

    /// The hash of this event.
    #[must_use]
    pub const fn event_hash(&self) -> Digest {
        self.event_hash
    }

    /// What is said; `Null` if the member is absent.
    #[must_use]
    pub fn payload(&self) -> &Owned {
        self.payload.as_ref().unwrap_or(&Value::Null)
    }

    /// The claims it is about.
    #[must_use]
    pub fn claims(&self) -> &[ClaimId] {
        &self.claims
    }

    /// The artefacts it rests on.
    #[must_use]
    pub fn artifacts(&self) -> &[Descriptor] {
        &self.artifacts
    }

    /// The signature.
    #[must_use]
    pub const fn signature(&self) -> &Signature {
        &self.signature
    }
}

/// The object with those members only whose names are kept.
fn without<'a>(object: &Object<'a>, keep: impl Fn(&str) -> bool) -> Value<'a> {
    let kept = object.members().iter().filter(|(name, _)| keep(&name.to_str_lossy()));
    Value::Object(Object::from_members(kept.cloned().collect()))
}

/// Typed access to the members of an event that passed the schema.
struct Fields<'v, 'a>(&'v Object<'a>);

impl<'v> Fields<'v, '_> {
    fn text(&self, member: &'static str) -> &'v str {
        self.0.get(member).and_then(Value::as_str).unwrap_or_default()
    }

    fn parse<T: std::str::FromStr>(&self, member: &'static str, form: &'static str) -> Result<T, EventError> {
        self.text(member).parse().map_err(|_| EventError::Schema { member, form })
    }

    fn typed<T: serde::de::DeserializeOwned>(&self, member: &'static str) -> Result<T, EventError> {
        let value = self.0.get(member).and_then(|value| serde_json::to_value(value).ok());
        let typed = value.and_then(|value| serde_json::from_value(value).ok());
        typed.ok_or(EventError::Schema { member, form: "within the ranges of its members" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BuildError, Role, UnsignedEvent};
    use crate::payload;
    use choir_messages::sign::SigningKey;

    fn unsigned(payload: Owned) -> UnsignedEvent {
        let (trace, event, at) = (TraceId::from_bits(1), EventId::from_bits(2), Timestamp::from_millis(3));
        UnsignedEvent {
            trace_id: trace,
            event_id: event,
            event_type: EventType::ArtifactRecorded,
            created_at: at,
            actor: Actor { agent_id: "e".into(), role: Role::Executor, key_id: "key_1".into() },
            payload,
            claims: vec![ClaimId::from_bits(4)],
            artifacts: vec![Descriptor::of(b"x", "text/plain", "utf-8", trace, event, &at.to_string())],
        }
    }

    #[test]
    fn a_built_event_reads_back_and_verifies() {
        let key = SigningKey::from_seed(&[7; 32]);
        let payload = payload::recorded(&Digest::of(b"x"), "text/plain").with("note", "e\u{301}".into());
        let event = unsigned(payload).sign(&key, Digest::ZERO).unwrap();
        assert_eq!(event.payload().get("note").and_then(Value::as_str), Some("\u{e9}"));
        let back = Event::parse(event.line()).unwrap();
        assert_eq!(back, event);
        assert_eq!(back.verify(&key.public()), Ok(()));
        assert_eq!(back.verify(&SigningKey::from_seed(&[8; 32]).public()), Err(SignatureError::Mismatch));
    }

    #[test]
    fn a_changed_line_is_no_event() {
        let event = unsigned(Value::Null).sign(&SigningKey::from_seed(&[7; 32]), Digest::ZERO).unwrap();
        let changed = event.line().replace("null", "1");
        assert_eq!(Event::parse(&changed), Err(EventError::Hash("payload_hash")));
        let changed = event.line().replace("\"payload\":null", "\"payload\":null,\"more\":1");
        assert_eq!(Event::parse(&changed), Err(EventError::Hash("event_hash")));
        let doubled = event.line().replace("\"payload\":null", "\"payload\":null,\"payload\":null");
        assert!(matches!(Event::parse(&doubled), Err(EventError::Ambiguous(_))));
    }

    #[test]
    fn what_is_no_event_is_not_built() {
        let key = SigningKey::from_seed(&[7; 32]);
        let ambiguous = Value::object([("a", Value::Null), ("B", Value::Null)]);
        assert!(matches!(unsigned(ambiguous).sign(&key, Digest::ZERO), Err(BuildError::Payload(_))));
        let mut nameless = unsigned(Value::Null);
        nameless.actor.agent_id = "Not A Name".into();
        assert!(matches!(nameless.sign(&key, Digest::ZERO), Err(BuildError::Schema { .. })));
    }
}
