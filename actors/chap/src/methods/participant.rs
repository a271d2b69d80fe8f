//! `participant.join` and `.leave` (digest §3.6 core, §3.11).

use serde_json::{Value, json};

use crate::limits::{KEYS_PER_MEMBER, MEMBERS};
use crate::method::{Floor, Handled, Method};
use crate::model::{Key, Member};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::step::{OidcClaims, VcSubject};
use crate::txn::Txn;
use crate::uri::{SCHEMES, is_participant};
use crate::{Refusal, codes};

use super::workspace;

pub(crate) const METHODS: &[Method] = &[
    Method::new("participant.join", "core/1.0", "Join a workspace, creating it if need be", join)
        .opening()
        .pause_exempt()
        .required(&["workspace", "from", "type"])
        .params(&[
            Param::new("type", Shape::Text, "human, agent, service, group or workspace"),
            Param::new(
                "role",
                Shape::Text,
                "Its role: participant unless said otherwise; admin may change profiles",
            ),
            Param::new("display_name", Shape::Text, "A name for people"),
            Param::new("capabilities", Shape::Any, "What it can do"),
            Param::new("scopes", Shape::Texts, "What it may do"),
            Param::new("jwks", Shape::Object, "Its public keys, {keys: [JWK with kid]}"),
            Param::new("oidc_token", Shape::Text, "An ID token; the log keeps its digest only"),
            Param::new(
                "dpop_proof",
                Shape::Text,
                "A DPoP proof of the token's key; the log keeps its digest only",
            ),
            Param::new("vc_presentation", Shape::Object, "A presentation; the log keeps its digest only"),
        ]),
    Method::new("participant.leave", "core/1.0", "Leave a workspace", leave)
        .floor(Floor::Early)
        .pause_exempt(),
];

fn join(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let Some(uri) = params.text("from").filter(|from| is_participant(from)) else {
        return Err(Refusal::params("from must be a participant URI").into());
    };
    let Some(kind) = params.text("type").filter(|kind| SCHEMES.contains(kind)) else {
        return Err(Refusal::params("type must be human, agent, service, group or workspace").into());
    };
    if txn.meta().is_none() {
        if txn.workspace().is_empty() {
            return Err(Refusal::params("workspace must be a string id of 1 to 256 bytes").into());
        }
        workspace::open(txn, &Params::of(None), None)?;
    }
    let now = txn.now();
    let existing = txn.member(uri).cloned();
    if existing.is_none() && txn.members().len() >= MEMBERS {
        return Err(Refusal::params(format!("The workspace has {MEMBERS} members already")).into());
    }
    let mut member = Member {
        uri: uri.to_owned(),
        kind: kind.to_owned(),
        role: params.filled("role").unwrap_or("participant").to_owned(),
        joined: now,
        order: 0,
        display_name: params.owned("display_name"),
        capabilities: params.get("capabilities").cloned(),
        scopes: params.texts("scopes"),
        keys: Vec::new(),
        paused: false,
        left: None,
        oidc_sub: None,
        oidc_auth_time: None,
        oidc_acr: None,
        vc_holder: None,
        presence: None,
    };
    let mut token_verified = false;
    if let Some(claims) = &txn.attested().oidc {
        bind_token(&mut member, existing.as_ref(), claims.as_ref().map_err(Clone::clone)?)?;
        token_verified = true;
    }
    if let Some(subject) = &txn.attested().vc {
        bind_presentation(&mut member, existing.as_ref(), subject.as_ref().map_err(Clone::clone)?)?;
    }
    match existing {
        Some(existing) => txn.put_member(rejoined(existing, member, token_verified)),
        None => {
            // A verified key takes the place of what a participant says of itself.
            if member.keys.is_empty() {
                member.keys = own_keys(txn, params)?;
            }
            let meta = txn.here_mut()?;
            member.order = meta.joins;
            meta.joins += 1;
            txn.put_member(member);
        }
    }
    Ok(json!({"joined": true, "as": uri}).into())
}

/// A token binds only the participant it belongs to; an existing member's only with the same subject, or, where it had
/// none, by name.
fn bind_token(member: &mut Member, existing: Option<&Member>, claims: &OidcClaims) -> Result<(), Refusal> {
    let mismatch = |why: &str| Err(Refusal::new(codes::OIDC_CNF_MISMATCH, why));
    if claims.participant.as_ref().is_some_and(|bound| *bound != member.uri) {
        return mismatch("OIDC token is bound to another participant");
    }
    let sub = claims.sub.clone().filter(|sub| !sub.is_empty());
    match existing {
        Some(Member { oidc_sub: Some(known), .. }) if sub.as_ref() != Some(known) => {
            return mismatch("OIDC token subject does not match the member");
        }
        Some(Member { oidc_sub: None, .. }) if claims.participant.as_ref() != Some(&member.uri) => {
            return mismatch("OIDC token does not name this member");
        }
        _ => {}
    }
    member.oidc_sub = sub;
    member.oidc_auth_time = claims.auth_time;
    member.oidc_acr.clone_from(&claims.acr);
    member.keys.extend(pinned(claims.cnf_jwk.as_ref(), member));
    Ok(())
}

fn bind_presentation(
    member: &mut Member,
    existing: Option<&Member>,
    subject: &VcSubject,
) -> Result<(), Refusal> {
    let holder = subject.holder.clone().filter(|holder| !holder.is_empty());
    if existing.is_some_and(|known| known.vc_holder.is_none() || known.vc_holder != holder) {
        return Err(Refusal::new(
            codes::VC_HOLDER_BINDING_INVALID,
            "Presentation holder does not match the member",
        ));
    }
    member.vc_holder = holder;
    member.keys.extend(pinned(subject.cnf_jwk.as_ref(), member));
    Ok(())
}

fn pinned(jwk: Option<&Value>, member: &Member) -> Option<Key> {
    let kid = jwk?.get("kid")?.as_str().filter(|kid| !kid.is_empty())?;
    Some(Key::new(kid.to_owned(), jwk?.clone(), member.joined))
}

/// The keys a participant brings itself: trusted at first sight, each name once.
fn own_keys(txn: &Txn<'_>, params: &Params<'_>) -> Result<Vec<Key>, Refusal> {
    let Some(jwks) = params.object("jwks") else { return Ok(Vec::new()) };
    jwks.check(&[Param::new("keys", Shape::List, "")])
        .map_err(|_| Refusal::params("jwks.keys must be a list"))?;
    let mut keys: Vec<Key> = Vec::new();
    for jwk in jwks.list("keys").unwrap_or_default() {
        let Some(kid) = jwk.get("kid").and_then(Value::as_str).filter(|kid| !kid.is_empty()) else {
            continue;
        };
        if keys.iter().any(|key| key.kid == kid) {
            continue;
        }
        if keys.len() >= KEYS_PER_MEMBER {
            return Err(Refusal::params(format!("jwks.keys must be at most {KEYS_PER_MEMBER}")));
        }
        keys.push(Key::new(kid.to_owned(), jwk.clone(), txn.now()));
    }
    Ok(keys)
}

/// Joining again changes nothing but what was verified.
fn rejoined(mut existing: Member, fresh: Member, token_verified: bool) -> Member {
    existing.oidc_sub = fresh.oidc_sub.or(existing.oidc_sub);
    existing.oidc_auth_time = fresh.oidc_auth_time.or(existing.oidc_auth_time);
    if token_verified {
        existing.oidc_acr = fresh.oidc_acr;
    }
    existing.vc_holder = fresh.vc_holder.or(existing.vc_holder);
    for key in fresh.keys {
        if existing.keys.iter().all(|known| known.kid != key.kid) && existing.keys.len() < KEYS_PER_MEMBER {
            existing.keys.push(key);
        }
    }
    existing
}

fn leave(txn: &mut Txn<'_>, _params: &Params<'_>) -> Handled {
    let from = txn.from().to_owned();
    depart(txn, &from)?;
    Ok(json!({"left": true}).into())
}

/// Makes a member a former one.
pub(crate) fn depart(txn: &mut Txn<'_>, uri: &str) -> Result<(), Stop> {
    if let Some(mut member) = txn.member(uri).cloned() {
        member.left = Some(txn.now());
        txn.put_member(member);
    }
    Ok(())
}
