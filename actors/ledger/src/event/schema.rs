//! The original's schema of an event: which members there must be, in which form. Unknown members are free.

use crate::id::{is_claim_form, is_ulid_form};
use crate::json::{Object, Value};
use crate::payload::is_hash;
use crate::time;

/// The first member that is not in its form, and the form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flaw {
    /// The member, `artifacts[].byte_size` for one.
    pub(crate) member: &'static str,
    /// What it should be.
    pub(crate) form: &'static str,
}

type Check = Result<(), Flaw>;

const TEXT: &str = "a text that is not empty";
const ULID: &str = "a ULID";
const HASH: &str = "64 lower-case hex digits";
const TIME: &str = "a time YYYY-MM-DDTHH:MM:SS.mmmZ";
const NAME: &str = "a name of a-z, 0-9, '.', '_' and '-'";

/// Holds an event against the schema.
pub(crate) fn check(event: &Object<'_>) -> Check {
    text(event, "schema_version", "schema_version", TEXT, not_empty)?;
    text(event, "trace_id", "trace_id", ULID, is_ulid_form)?;
    text(event, "event_id", "event_id", ULID, is_ulid_form)?;
    let known = |name: &str| name.parse::<super::EventType>().is_ok();
    text(event, "event_type", "event_type", "one of the thirteen types", known)?;
    text(event, "created_at", "created_at", TIME, time::is_form)?;
    actor(event.get("actor"))?;
    text(event, "payload_hash", "payload_hash", HASH, is_hash)?;
    text(event, "prev_event_hash", "prev_event_hash", HASH, is_hash)?;
    text(event, "event_hash", "event_hash", HASH, is_hash)?;
    signature(event.get("signature"))?;
    text(event, "payload_type", "payload_type", TEXT, not_empty)?;
    let claims = event.get("claims").and_then(Value::as_array);
    let all = claims.is_some_and(|ids| ids.iter().all(|id| id.as_str().is_some_and(is_claim_form)));
    require(all, "claims", "a list of claim ids")?;
    let artifacts = event.get("artifacts").and_then(Value::as_array);
    artifacts
        .ok_or(Flaw { member: "artifacts", form: "a list of descriptors" })?
        .iter()
        .try_for_each(descriptor)
}

const fn require(good: bool, member: &'static str, form: &'static str) -> Check {
    if good { Ok(()) } else { Err(Flaw { member, form }) }
}

fn text(
    object: &Object<'_>,
    name: &str,
    member: &'static str,
    form: &'static str,
    good: impl Fn(&str) -> bool,
) -> Check {
    require(object.get(name).is_some_and(|value| is_text(value, good)), member, form)
}

/// [`text`] for a member that may be left out (but not `null`).
fn optional(
    object: &Object<'_>,
    name: &str,
    member: &'static str,
    form: &'static str,
    good: impl Fn(&str) -> bool,
) -> Check {
    require(object.get(name).is_none_or(|value| is_text(value, good)), member, form)
}

fn is_text(value: &Value<'_>, good: impl Fn(&str) -> bool) -> bool {
    match value {
        // A lone surrogate is in none of the forms but the freest.
        Value::String(text) => good(&text.to_str_lossy()),
        _ => false,
    }
}

const fn not_empty(text: &str) -> bool {
    !text.is_empty()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
}

fn actor(value: Option<&Value<'_>>) -> Check {
    let Some(actor) = value.and_then(Value::as_object) else {
        return require(false, "actor", "an object");
    };
    text(actor, "agent_id", "actor.agent_id", NAME, is_name)?;
    text(actor, "role", "actor.role", "one of the four roles", |role| role.parse::<super::Role>().is_ok())?;
    text(actor, "key_id", "actor.key_id", NAME, is_name)
}

fn signature(value: Option<&Value<'_>>) -> Check {
    let Some(signature) = value.and_then(Value::as_object) else {
        return require(false, "signature", "an object");
    };
    text(signature, "algorithm", "signature.algorithm", "ed25519", |name| name == super::ALGORITHM)?;
    text(signature, "signature_b64", "signature.signature_b64", TEXT, not_empty)?;
    text(signature, "signed_bytes_hash", "signature.signed_bytes_hash", HASH, is_hash)
}

fn descriptor(value: &Value<'_>) -> Check {
    let Some(item) = value.as_object() else {
        return require(false, "artifacts[]", "an object");
    };
    text(item, "artifact_hash", "artifacts[].artifact_hash", HASH, is_hash)?;
    text(item, "hash_algorithm", "artifacts[].hash_algorithm", "sha256", |name| name == "sha256")?;
    text(item, "media_type", "artifacts[].media_type", TEXT, not_empty)?;
    text(item, "encoding", "artifacts[].encoding", TEXT, not_empty)?;
    let size = item.get("byte_size").and_then(Value::as_f64);
    let whole = size.is_some_and(|size| size >= 0.0 && size.fract() == 0.0);
    require(whole, "artifacts[].byte_size", "a whole number from 0")?;
    text(item, "created_at", "artifacts[].created_at", TIME, time::is_form)?;
    text(item, "producer_event_id", "artifacts[].producer_event_id", ULID, is_ulid_form)?;
    text(item, "storage_uri", "artifacts[].storage_uri", TEXT, not_empty)?;
    let redaction = |status: &str| matches!(status, "none" | "redacted" | "redacted-with-pointer");
    text(
        item,
        "redaction_status",
        "artifacts[].redaction_status",
        "none, redacted or redacted-with-pointer",
        redaction,
    )?;
    optional(item, "trace_id", "artifacts[].trace_id", ULID, is_ulid_form)?;
    optional(item, "integrity_verified_at", "artifacts[].integrity_verified_at", TIME, time::is_form)
}
