//! Whether a call is signed by a key of its sender (digest §3.8): `sig` is `ed25519:<kid>:<base64>` over the canonical
//! form of the call without it.

use choir_messages::sign::{PublicKey, Signature};
use serde_json::Value;

use crate::call::{base64_standard, base64_url};
use crate::txn::Txn;
use crate::{Call, Refusal, codes, moment};

/// A `sig` taken apart.
pub(crate) struct Tag<'a> {
    pub(crate) kid: &'a str,
    pub(crate) signature: &'a str,
}

/// Takes a `sig` apart; the key's name holds no colon, base64 neither.
pub(crate) fn tag(sig: &str) -> Option<Tag<'_>> {
    let (kid, signature) = sig.strip_prefix("ed25519:")?.split_once(':')?;
    Some(Tag { kid, signature })
}

/// Whether that key, as a JWK, made the signature over these bytes.
pub(crate) fn holds(jwk: &Value, signature: &str, bytes: &[u8]) -> bool {
    let is = |name: &str, wanted: &str| jwk.get(name).is_none_or(|value| value.as_str() == Some(wanted));
    let key =
        jwk.get("x").and_then(Value::as_str).and_then(base64_url).and_then(|x| <[u8; 32]>::try_from(x).ok());
    let signature = base64_standard(signature).and_then(|s| <[u8; 64]>::try_from(s).ok());
    match (key, signature) {
        (Some(key), Some(signature)) if is("kty", "OKP") && is("crv", "Ed25519") => {
            PublicKey::from_bytes(key).verify(bytes, &Signature::from_bytes(signature)).is_ok()
        }
        _ => false,
    }
}

/// Refuses a call that is not signed by a valid key of its sender. The key is chosen by the time the sender gives;
/// whether it is revoked or rotated away is judged by the Coordinator's own clock, so that no old key can be used again
/// by dating a call back.
pub(crate) fn check(txn: &Txn<'_>, call: &Call) -> Result<(), Refusal> {
    let failed = |why: &str| Err(Refusal::new(codes::SIGNATURE_FAILED, why));
    let Some(Value::String(sig)) = call.top("sig").filter(|sig| sig.as_str() != Some("")) else {
        return failed("Missing top-level `sig` field");
    };
    let Some(tag) = tag(sig) else { return failed("Malformed signature tag") };
    let params = call.params();
    let (Some(from), Some(_)) = (params.filled("from"), params.filled("workspace")) else {
        return failed("Cannot verify signature: missing from/workspace");
    };
    let stated = match (params.get("ts"), call.top("ts").and_then(Value::as_str).filter(|ts| !ts.is_empty()))
    {
        (Some(Value::String(ts)), _) => Some(ts.as_str()),
        (Some(_), _) => return failed("Cannot verify signature: ts must be a string"),
        (None, stated) => stated,
    };
    let at = match stated.map(moment::parse) {
        Some(Some(at)) => at,
        Some(None) => return failed("Cannot verify signature: ts must be an RFC 3339 time"),
        None => txn.now(),
    };
    if txn.meta().is_none() {
        return failed("Cannot verify signature: unknown workspace");
    }
    let not_found = |message| Err(Refusal::new(codes::SIGNATURE_KEY_NOT_FOUND, message));
    let revoked = || Err(Refusal::new(codes::SIGNATURE_KEY_REVOKED, format!("Key {} is revoked", tag.kid)));
    let Some(member) = txn.member(from) else { return not_found(format!("No member: {from}")) };
    let now = txn.now();
    for key in member.keys.iter().filter(|key| key.kid == tag.kid) {
        if key.revoked_at.is_some_and(|end| now >= end) {
            return revoked();
        }
        if key.valid_until.is_some_and(|end| now >= end) {
            return not_found(format!("Key {} is no longer valid", tag.kid));
        }
    }
    let Some(key) = member.keys.iter().find(|key| key.kid == tag.kid && key.covers(at)) else {
        if member.keys.iter().any(|key| key.kid == tag.kid && key.revoked_at.is_some()) {
            return revoked();
        }
        let at = stated.map_or_else(|| now.to_string(), str::to_owned);
        return not_found(format!("No key {} valid at {at} for {from}", tag.kid));
    };
    let bytes = call.signed_bytes().unwrap_or_default();
    if !holds(&key.jwk, tag.signature, &bytes) {
        return failed("Signature failed verification");
    }
    let old = params.get("old_kid");
    if call.method().name == "participant.rotate_key" && old.is_some_and(|old| old.as_str() != Some(tag.kid))
    {
        return Err(Refusal::new(
            codes::SIGNATURE_ROTATION_MISMATCH,
            "Rotation must be signed with the old key",
        ));
    }
    Ok(())
}
