//! Hashes and signature of one event: checks 2 and 4, R01 and R02. The canonical text is written once; the event's hash, the
//! payload's hash and the signed bytes are all cut from it.

use super::Reading;
use super::finding::{Check, Failure, FailureCode, Place};
use super::line::Context;
use super::registry::Outcome;
use super::rule::Rule;
use crate::canon;
use crate::event::{ALGORITHM, EventType, SIGNED_MEMBERS};
use crate::json::{Object, Text, Value};
use crate::payload::read_hash;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD};
use choir_messages::chain::Digest;

/// Reads base64 whatever its padding and its unused last bits, as the original's platform does.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What is said of a signature that is spelled otherwise.
const BASE64: &str = "signature_b64 is not the standard base64 of 64 bytes";

/// What became of an event's signature.
pub(super) enum Seal {
    /// The signature holds, and vouches for the payload as far as this reading cares.
    Good,
    /// It does not, or none was asked for and none was looked at.
    NotGood,
    /// It is computed and waits to be settled together with others.
    Pending {
        /// The rest of the equation.
        equation: super::comb::Pending,
        /// Whether the payload fits its hash.
        bound: bool,
    },
}

/// What was cut from the canonical text.
struct Cuts {
    /// The event's hash as it should be; nothing if the event has no canonical form.
    event: Option<Digest>,
    /// The payload's hash; nothing if there is no payload, or it has no canonical form.
    payload: Option<Digest>,
    signed: String,
}

fn cut(event: &Object<'_>) -> Cuts {
    let mut text = String::with_capacity(2048);
    let mut cuts = Cuts { event: None, payload: None, signed: String::with_capacity(1024) };
    let mut sound = true;
    text.push('{');
    cuts.signed.push('{');
    let result = canon::each_sorted(event, |name: &Text<'_>, value: &Value<'_>| {
        let known = name.as_str().unwrap_or_default();
        if known == "event_hash" {
            return Ok(());
        }
        if text.len() > 1 {
            text.push(',');
        }
        let from = text.len();
        canon::write_string(name, &mut text);
        text.push(':');
        let value_from = text.len();
        if canon::write(value, &mut text).is_err() {
            sound = false;
            return if known == "payload" { Ok(()) } else { Err(canon::NotCanonical) };
        }
        if known == "payload" {
            cuts.payload = text.get(value_from..).map(|payload| Digest::of(payload.as_bytes()));
        } else if SIGNED_MEMBERS.contains(&known) {
            if cuts.signed.len() > 1 {
                cuts.signed.push(',');
            }
            cuts.signed.push_str(text.get(from..).unwrap_or_default());
        }
        Ok(())
    });
    text.push('}');
    cuts.signed.push('}');
    if result.is_ok() && sound {
        cuts.event = Some(Digest::of(text.as_bytes()));
    }
    cuts
}

/// Checks the hashes at once, and the signature as far as possible.
pub(super) fn examine(
    event: &Object<'_>,
    event_type: Option<EventType>,
    context: &Context,
    place: Place,
    failures: &mut Vec<Failure>,
) -> Seal {
    let strict = context.reading == Reading::Strict;
    let cuts = cut(event);
    let states = |name: &str, digest: Digest| {
        event.get(name).and_then(Value::as_str).and_then(read_hash) == Some(digest)
    };
    match cuts.event {
        Some(digest) if states("event_hash", digest) => {}
        Some(_) => failures.push(Failure::new(
            Check::EventHash,
            FailureCode::HashMismatch,
            place,
            "event_hash is not the hash of the event",
        )),
        // Without a canonical form the strict reading has said why already (R03); the original breaks off.
        None if strict => {}
        None => failures.push(Failure::new(
            Check::Schema,
            FailureCode::SchemaInvalid,
            place,
            "a number is beyond the doubles, so the event has no hash",
        )),
    }
    let bound = cuts.payload.is_some_and(|digest| states("payload_hash", digest));
    if strict && !bound {
        let failure = Failure::new(
            Check::EventHash,
            FailureCode::HashMismatch,
            place,
            "payload_hash is not the hash of the payload",
        );
        failures.push(failure.by(Rule::PayloadBound));
    }
    let mandatory = event_type.is_some_and(EventType::signature_is_mandatory);
    if !strict && !mandatory {
        return Seal::NotGood;
    }
    let signature = event.get("signature").filter(|signature| !signature.is_null());
    let Some(signature) = signature else {
        let failure =
            Failure::new(Check::Signature, FailureCode::SigMissing, place, "the event is not signed");
        failures.push(if mandatory { failure } else { failure.by(Rule::EverySignature) });
        return Seal::NotGood;
    };
    match outcome(event, signature, &cuts, context) {
        Ok(Outcome::Known(holds)) => conclude(holds, bound, mandatory, context.reading, place, failures),
        Ok(Outcome::Computed(equation)) => Seal::Pending { equation, bound },
        Err(why) => {
            let failure = Failure::new(Check::Signature, FailureCode::SigInvalid, place, why);
            let beyond = !mandatory || strict && why == BASE64;
            failures.push(if beyond { failure.by(Rule::EverySignature) } else { failure });
            Seal::NotGood
        }
    }
}

/// What a signature that holds or not means for the event.
pub(super) fn conclude(
    holds: bool,
    bound: bool,
    mandatory: bool,
    reading: Reading,
    place: Place,
    failures: &mut Vec<Failure>,
) -> Seal {
    let fail = |why: &'static str| Failure::new(Check::Signature, FailureCode::SigInvalid, place, why);
    if !holds {
        let failure = fail("the signature does not verify");
        failures.push(if mandatory { failure } else { failure.by(Rule::EverySignature) });
        return Seal::NotGood;
    }
    if reading == Reading::Strict && !bound {
        if mandatory {
            failures.push(fail("the signature vouches for another payload").by(Rule::PayloadBound));
        }
        return Seal::NotGood;
    }
    Seal::Good
}

fn outcome(
    event: &Object<'_>,
    signature: &Value<'_>,
    cuts: &Cuts,
    context: &Context,
) -> Result<Outcome, &'static str> {
    let key_id = event.get("actor").and_then(|actor| actor.get("key_id")).and_then(Value::as_str);
    let entry = key_id.and_then(|id| context.keys.get(id)).ok_or("the registry does not know the key")?;
    let text = |name: &str| signature.get(name).and_then(Value::as_str);
    if text("algorithm") != Some(ALGORITHM) {
        return Err("the signature's algorithm is not ed25519");
    }
    if text("signed_bytes_hash").and_then(read_hash) != Some(Digest::of(cuts.signed.as_bytes())) {
        return Err("signed_bytes_hash is not the hash of the signed bytes");
    }
    let base64 = text("signature_b64").ok_or("signature_b64 is not a text")?;
    let bytes = match context.reading {
        Reading::Strict => STANDARD.decode(base64).ok(),
        Reading::Compat => LENIENT.decode(plain_base64(base64)).ok(),
    };
    let bytes: [u8; 64] = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(BASE64)?;
    Ok(context.keys.verify(entry, cuts.signed.as_bytes(), &bytes))
}

/// The characters that the original's platform takes out of a base64 text: both alphabets, until the first `=`.
fn plain_base64(text: &str) -> String {
    let until = text.split('=').next().unwrap_or_default();
    let plain = until.chars().filter_map(|character| match character {
        '-' => Some('+'),
        '_' => Some('/'),
        '+' | '/' => Some(character),
        _ if character.is_ascii_alphanumeric() => Some(character),
        _ => None,
    });
    plain.collect()
}
