//! Credentials and presentations: whose they are, who vouches for them, for whom and until when.

use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::sign::PublicKey;
use choir_messages::time::Timestamp;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::instant::{date_time, later};
use crate::limits::{CLOCK_SKEW, MAX_CREDENTIALS, MAX_JSON_DEPTH, MAX_NAME_BYTES, MAX_PRESENTATION_BYTES};
use crate::strict_json::{depth_within, to_base64url};
use crate::vc::data_integrity::{DataIntegrityError, Purpose, verify};
use crate::vc::did::{key_text, method_key};
use crate::vc::status::{StatusEntry, StatusError, StatusList};

/// The context that every document of the data model begins with.
const CONTEXT: &str = "https://www.w3.org/ns/credentials/v2";

/// Why a presentation is not believed. It never quotes the presentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VcError {
    /// Too large or too deep.
    #[error("the presentation is larger than {MAX_PRESENTATION_BYTES} bytes, or nested too deep")]
    TooLarge,
    /// Not a document of the data model.
    #[error("not a verifiable presentation or credential of data model 2.0: `{0}` is missing or malformed")]
    Malformed(&'static str),
    /// The presentation's proof.
    #[error("the presentation: {0}")]
    PresentationProof(DataIntegrityError),
    /// A credential's proof.
    #[error("a credential: {0}")]
    CredentialProof(DataIntegrityError),
    /// Made for another verifier.
    #[error("the presentation was made for another verifier")]
    Domain,
    /// Not the answer to the challenge, or not just made.
    #[error("the presentation is not the answer to this challenge, or too old; make a new one")]
    Freshness,
    /// A credential about somebody else, or a proof by somebody else than the holder.
    #[error("the presentation's holder, its proof and the credentials' subjects are not one and the same")]
    Holder,
    /// An issuer that the operator does not trust for this.
    #[error("a credential is from an issuer that is not trusted for it")]
    Issuer,
    /// Not valid yet, or no longer.
    #[error("a credential or proof is not valid at this time")]
    Validity,
    /// Revoked or suspended.
    #[error("a credential was revoked or suspended by its issuer")]
    Revoked,
    /// Its status could not be told.
    #[error("{0}")]
    Status(#[from] StatusError),
}

impl VcError {
    /// The CHAP code it is answered with (digest §3.13).
    #[must_use]
    pub const fn code(&self) -> i64 {
        match self {
            Self::Holder => -32411,
            Self::Revoked => -32412,
            _ => -32410,
        }
    }
}

/// An issuer that the operator trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedIssuer {
    /// Its identifier as credentials name it: a DID or a URL.
    pub id: String,
    /// Its verification methods and their keys. A `did:key` issuer needs none.
    pub keys: Vec<(String, PublicKey)>,
    /// The credential types it is trusted for, besides status lists; empty for all.
    pub types: Vec<String>,
}

/// What keeps an old presentation from being used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness<'a> {
    /// It answers this challenge, which was given out once.
    Challenge(&'a str),
    /// It was created within this time. The caller also remembers its digest for as long, in a
    /// [`crate::ReplayCache`], so that it is used once.
    Recent(Duration),
}

/// What a presentation is held against.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// Who may vouch for a holder.
    pub issuers: &'a [TrustedIssuer],
    /// The name under which holders know this Coordinator.
    pub domain: &'a str,
    /// How a presentation shows that it is new.
    pub freshness: Freshness<'a>,
    /// The time.
    pub now: Timestamp,
}

/// One credential whose proof holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// Who issued it.
    pub issuer: String,
    /// Its types.
    pub types: Vec<String>,
    /// When it ends.
    pub valid_until: Option<Timestamp>,
    /// `sha256:` and the hash of the canonical `credentialSubject`: what a log may hold of the claims.
    pub claims_digest: String,
}

/// A presentation whose proofs hold, and whose credentials' status is still to be seen.
#[derive(Debug, Clone)]
pub struct Presentation {
    holder: Holder,
    status: Vec<StatusEntry>,
}

/// Who presented, on whose word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The holder's `did:key`.
    pub holder: String,
    /// The holder's key, proven just now.
    pub key: PublicKey,
    /// The key as a JWK, with the `did:key` fragment as `kid`: the participant's signing key.
    pub cnf_jwk: Value,
    /// What was said of the holder, in the presentation's order; never empty.
    pub credentials: Vec<Credential>,
    /// `sha256:` and the hash of the canonical presentation: what a log may hold of it.
    pub digest: String,
}

/// What a log may hold of a presentation. None for a value without canonical form.
#[must_use]
pub fn presentation_digest(presentation: &Value) -> Option<String> {
    digest(presentation)
}

fn digest(value: &Value) -> Option<String> {
    canonical::to_vec(value).ok().map(|bytes| format!("sha256:{}", Digest::of(&bytes)))
}

/// Checks all of a presentation but its credentials' status.
pub fn verify_presentation(presentation: &Value, rules: &Rules<'_>) -> Result<Presentation, VcError> {
    // Depth first: the canonical form is made by recursion.
    if !depth_within(presentation, MAX_JSON_DEPTH) {
        return Err(VcError::TooLarge);
    }
    let bytes = canonical::to_vec(presentation).map_err(|_| VcError::Malformed("presentation"))?;
    if bytes.len() > MAX_PRESENTATION_BYTES {
        return Err(VcError::TooLarge);
    }
    let document = presentation.as_object().ok_or(VcError::Malformed("presentation"))?;
    check_kind(document, "VerifiablePresentation")?;
    let did = identifier(document.get("holder")).ok_or(VcError::Malformed("holder"))?;
    let key = check_holder_proof(document, did, rules)?;

    let credentials = match document.get("verifiableCredential") {
        Some(Value::Array(list)) if (1..=MAX_CREDENTIALS).contains(&list.len()) => list.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        _ => return Err(VcError::Malformed("verifiableCredential")),
    };
    let (mut found, mut status) = (Vec::new(), Vec::new());
    for credential in credentials {
        let credential = credential.as_object().ok_or(VcError::Malformed("verifiableCredential"))?;
        let (checked, subjects) = verify_credential(credential, rules)?;
        if !subjects.iter().all(|subject| subject.get("id").and_then(Value::as_str) == Some(did)) {
            return Err(VcError::Holder);
        }
        status.extend(status_entries(credential, &checked.issuer)?);
        found.push(checked);
    }
    let mut cnf_jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": to_base64url(key.bytes())});
    cnf_jwk["kid"] = Value::String(key_text(&key));
    let digest = format!("sha256:{}", Digest::of(&bytes));
    let holder = Holder { holder: did.to_owned(), key, cnf_jwk, credentials: found, digest };
    Ok(Presentation { holder, status })
}

/// The holder's proof of its key to us, now. Only `did:key` holders are known, whose identifier proves itself.
fn check_holder_proof(
    document: &Map<String, Value>,
    did: &str,
    rules: &Rules<'_>,
) -> Result<PublicKey, VcError> {
    let mut owner = None;
    let proven = verify(document, Purpose::Authentication, |method| {
        let (named, key) = method_key(method)?;
        owner = Some(named.to_owned());
        Some(key)
    })
    .map_err(VcError::PresentationProof)?;
    if owner.as_deref() != Some(did) {
        return Err(VcError::Holder);
    }
    let names_us = match proven.options.get("domain") {
        Some(Value::String(domain)) => domain == rules.domain,
        Some(Value::Array(domains)) => domains.iter().any(|domain| domain == rules.domain),
        _ => false,
    };
    if !names_us {
        return Err(VcError::Domain);
    }
    let soon = later(rules.now, CLOCK_SKEW);
    if proven.created.is_some_and(|created| created > soon)
        || proven.expires.is_some_and(|expires| rules.now >= later(expires, CLOCK_SKEW))
    {
        return Err(VcError::Validity);
    }
    let fresh = match rules.freshness {
        Freshness::Challenge(challenge) => {
            proven.options.get("challenge").and_then(Value::as_str) == Some(challenge)
        }
        Freshness::Recent(window) => {
            proven.created.is_some_and(|created| rules.now < later(later(created, window), CLOCK_SKEW))
        }
    };
    if fresh { Ok(proven.key) } else { Err(VcError::Freshness) }
}

/// Checks a credential's form, issuer, proof and validity; gives its subjects with it.
pub(crate) fn verify_credential<'a>(
    document: &'a Map<String, Value>,
    rules: &Rules<'_>,
) -> Result<(Credential, Subjects<'a>), VcError> {
    let types = check_kind(document, "VerifiableCredential")?;
    let issuer = match document.get("issuer") {
        Some(Value::Object(issuer)) => identifier(issuer.get("id")),
        issuer => identifier(issuer),
    };
    let issuer = issuer.ok_or(VcError::Malformed("issuer"))?;
    let trusted = rules.issuers.iter().find(|trusted| trusted.id == issuer && trusts(trusted, &types));
    let trusted = trusted.ok_or(VcError::Issuer)?;
    let proven = verify(document, Purpose::Assertion, |method| {
        let pinned = trusted.keys.iter().find(|(id, _)| id == method).map(|(_, key)| *key);
        pinned.or_else(|| method_key(method).filter(|(did, _)| *did == issuer).map(|(_, key)| key))
    })
    .map_err(VcError::CredentialProof)?;

    let time = |member: &'static str| match document.get(member) {
        None => Ok(None),
        Some(time) => time.as_str().and_then(date_time).map(Some).ok_or(VcError::Malformed(member)),
    };
    let (from, valid_until) = (time("validFrom")?, time("validUntil")?);
    let (soon, now) = (later(rules.now, CLOCK_SKEW), rules.now);
    let begun = [from, proven.created].into_iter().flatten().all(|from| from <= soon);
    let ended =
        [valid_until, proven.expires].into_iter().flatten().any(|until| now >= later(until, CLOCK_SKEW));
    if !begun || ended {
        return Err(VcError::Validity);
    }
    let claims = document.get("credentialSubject").ok_or(VcError::Malformed("credentialSubject"))?;
    let subjects = match claims {
        Value::Object(subject) => vec![subject],
        Value::Array(list) if !list.is_empty() => list
            .iter()
            .map(Value::as_object)
            .collect::<Option<_>>()
            .ok_or(VcError::Malformed("credentialSubject"))?,
        _ => return Err(VcError::Malformed("credentialSubject")),
    };
    let claims_digest = digest(claims).ok_or(VcError::Malformed("credentialSubject"))?;
    let credential = Credential { issuer: issuer.to_owned(), types, valid_until, claims_digest };
    Ok((credential, subjects))
}

/// The subjects of a credential: usually one.
pub(crate) type Subjects<'a> = Vec<&'a Map<String, Value>>;

/// Every type but the general one must be among those the issuer is trusted for; a status list always is.
fn trusts(issuer: &TrustedIssuer, types: &[String]) -> bool {
    let general = ["VerifiableCredential", "BitstringStatusListCredential"];
    issuer.types.is_empty()
        || types.iter().all(|kind| general.contains(&kind.as_str()) || issuer.types.contains(kind))
            && types.iter().any(|kind| kind != "VerifiableCredential")
}

/// The status entries of a credential that can take it away.
fn status_entries(credential: &Map<String, Value>, issuer: &str) -> Result<Vec<StatusEntry>, VcError> {
    let entries = match credential.get("credentialStatus") {
        None => return Ok(Vec::new()),
        Some(Value::Array(entries)) if entries.len() <= MAX_CREDENTIALS => entries.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        Some(_) => return Err(StatusError::Entry.into()),
    };
    let entries = entries.iter().filter_map(|entry| StatusEntry::read(entry, issuer).transpose());
    Ok(entries.collect::<Result<_, _>>()?)
}

/// The document's context comes first and its types include this one; gives the types.
fn check_kind(document: &Map<String, Value>, kind: &str) -> Result<Vec<String>, VcError> {
    let first = match document.get("@context") {
        Some(Value::Array(contexts)) => contexts.first(),
        one => one,
    };
    if first.and_then(Value::as_str) != Some(CONTEXT) {
        return Err(VcError::Malformed("@context"));
    }
    let types = match document.get("type") {
        Some(Value::Array(types)) => types.iter().map(|kind| kind.as_str().map(str::to_owned)).collect(),
        Some(Value::String(kind)) => Some(vec![kind.clone()]),
        _ => None,
    };
    types
        .filter(|types: &Vec<String>| types.iter().any(|known| known == kind))
        .ok_or(VcError::Malformed("type"))
}

fn identifier(value: Option<&Value>) -> Option<&str> {
    value?.as_str().filter(|text| (1..=MAX_NAME_BYTES).contains(&text.len()))
}

impl Presentation {
    /// The addresses of the status lists to pass to [`Presentation::accept`], each once. Written by trusted issuers.
    #[must_use]
    pub fn status_lists(&self) -> Vec<&str> {
        let mut lists: Vec<&str> = self.status.iter().map(|entry| entry.list.as_str()).collect();
        lists.sort_unstable();
        lists.dedup();
        lists
    }

    /// The holder, if none of the credentials was revoked or suspended. A list that is missing is a refusal.
    pub fn accept(self, lists: &BTreeMap<String, StatusList>, now: Timestamp) -> Result<Holder, VcError> {
        for entry in &self.status {
            let list = lists.get(&entry.list).ok_or(StatusError::Missing)?;
            if entry.is_set(list, now)? {
                return Err(VcError::Revoked);
            }
        }
        Ok(self.holder)
    }
}

#[cfg(test)]
mod tests;
