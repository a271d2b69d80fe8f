//! Keys of members: rotation and revocation (`security-signed/1.0`, digest §3.6). Both work whatever is advertised.

use serde_json::{Value, json};

use super::workspace::require_admin;
use crate::limits::{ID_BYTES, KEYS_PER_MEMBER};
use crate::method::{Floor, Handled, Method};
use crate::model::Key;
use crate::params::{Param, Params, Shape};
use crate::txn::Txn;
use crate::{Refusal, codes};

pub(crate) const METHODS: &[Method] = &[
    Method::new("participant.rotate_key", "core/1.0", "Put a new key in an old one's place", rotate)
        .ungated()
        .privileged()
        .floor(Floor::Anyone)
        .required_later(&["from", "old_kid", "new_jwk"])
        .params(&[
            Param::new("old_kid", Shape::Text, "The key that goes"),
            Param::new("new_jwk", Shape::Object, "The key that comes, a JWK with kid"),
        ]),
    Method::new("participant.revoke_key", "core/1.0", "Revoke a key for good", revoke)
        .ungated()
        .privileged()
        .floor(Floor::Anyone)
        .required_later(&["target_uri", "kid"])
        .params(&[
            Param::new("target_uri", Shape::Text, "Whose key"),
            Param::new("kid", Shape::Text, "Which"),
            Param::new("reason", Shape::Text, "Why"),
        ]),
];

fn rotate(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let from = txn.from().to_owned();
    let not_found = |why: String| Refusal::new(codes::SIGNATURE_KEY_NOT_FOUND, why);
    let Some(mut member) = txn.member(&from).cloned() else {
        return Err(not_found(format!("Unknown participant: {from}")).into());
    };
    let old_kid = params.text("old_kid").unwrap_or_default();
    let now = txn.now();
    // The newest key of that name: an older one has been rotated away already.
    let Some(old) = member.keys.iter_mut().rev().find(|key| key.kid == old_kid) else {
        return Err(not_found(format!("No key {old_kid} for {from}")).into());
    };
    if old.revoked_at.is_some() {
        return Err(Refusal::new(codes::SIGNATURE_KEY_REVOKED, format!("Key {old_kid} is revoked")).into());
    }
    let new_jwk = params.any("new_jwk");
    let new_kid =
        new_jwk.get("kid").and_then(Value::as_str).filter(|kid| !kid.is_empty() && kid.len() <= ID_BYTES);
    let Some(new_kid) = new_kid.map(str::to_owned) else {
        return Err(Refusal::params("new_jwk must include kid").into());
    };
    // A closed window stays where it was closed; otherwise a spent key could be prolonged.
    old.valid_until.get_or_insert(now);
    // One name, one key: with two, a signature by the old one would be judged by the new.
    if member.keys.iter().any(|key| key.kid == new_kid) {
        return Err(Refusal::params(format!(
            "The member has a key {new_kid} already; give the new one its own kid"
        ))
        .into());
    }
    if member.keys.len() >= KEYS_PER_MEMBER {
        return Err(Refusal::params(format!("A member has at most {KEYS_PER_MEMBER} keys")).into());
    }
    member.keys.push(Key::new(new_kid.clone(), new_jwk, now));
    txn.put_member(member);
    Ok(json!({"rotated": true, "old_kid": old_kid, "new_kid": new_kid, "valid_from": now.to_string()}).into())
}

fn revoke(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let target = params.text("target_uri").unwrap_or_default();
    if txn.from() != target {
        require_admin(txn, "Revoking another member's key")?;
    }
    let not_found = |why: String| Refusal::new(codes::SIGNATURE_KEY_NOT_FOUND, why);
    let Some(mut member) = txn.member(target).cloned() else {
        return Err(not_found(format!("Unknown target: {target}")).into());
    };
    let kid = params.text("kid").unwrap_or_default();
    let now = txn.now();
    let Some(key) = member.keys.iter_mut().find(|key| key.kid == kid) else {
        return Err(not_found(format!("No key {kid} for target")).into());
    };
    // What was revoked once is revoked from then on: a second call must not move the moment.
    let at = *key.revoked_at.get_or_insert(now);
    let reason =
        key.revoked_reason.get_or_insert_with(|| params.filled("reason").unwrap_or("unspecified").to_owned());
    let answer = json!({"revoked": true, "kid": kid, "revoked_at": at.to_string(), "reason": reason});
    txn.put_member(member);
    Ok(answer.into())
}
