//! ID tokens of OpenID Connect (Core §3.1.3.7), with what CHAP reads from them: the subject, when and how strongly it
//! authenticated, the participant it may be, and the key it is bound to (RFC 7800).

use choir_messages::time::Timestamp;
use serde_json::{Map, Value};
use std::time::Duration;

use crate::instant::{at_second, later, numeric_date};
use crate::jwk::{Algorithm, Jwks, PublicJwk};
use crate::jws::{Jws, JwsError};
use crate::limits::{CLOCK_SKEW, MAX_AUDIENCES, MAX_CLAIM_BYTES, MAX_NAME_BYTES};
use crate::token_digest;

/// Why an ID token is not believed. It never quotes the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    /// Its form or signature.
    #[error("{0}")]
    Jws(#[from] JwsError),
    /// Signed with an algorithm that the operator does not allow for this provider.
    #[error("the token's algorithm is not allowed for this provider")]
    Algorithm,
    /// A token of another kind, such as an access token or a DPoP proof.
    #[error("the token is not an ID token but one of another type")]
    Type,
    /// No one key of the provider fits.
    #[error(
        "none of the provider's keys fits the token; if the provider has just changed keys, try again in a minute"
    )]
    UnknownKey,
    /// A claim that is missing or of the wrong type.
    #[error("the token's claim `{0}` is missing, too long or of the wrong type")]
    Claim(&'static str),
    /// Another provider's token.
    #[error("the token is from another issuer")]
    Issuer,
    /// Not meant for this Coordinator.
    #[error("the token is meant for another audience")]
    Audience,
    /// Given to a client that the operator does not know.
    #[error("the token was given to a client that is not allowed here")]
    AuthorisedParty,
    /// Too late.
    #[error("the token has expired; sign in again")]
    Expired,
    /// Too early.
    #[error("the token is not valid yet; check the clocks")]
    NotYet,
    /// Issued longer ago than the operator allows.
    #[error("the token is older than this Coordinator accepts; sign in again")]
    TooOld,
    /// Not the answer to this sign-in.
    #[error("the token's nonce is not the one expected")]
    Nonce,
    /// A confirmation that cannot be checked.
    #[error("the token is bound to a key in a way that is not known here, or to a broken key")]
    Confirmation,
}

/// A provider that the operator trusts.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its `iss`, to the letter.
    pub issuer: String,
    /// The audiences that mean this Coordinator.
    pub audiences: Vec<String>,
    /// The clients whose tokens are accepted (`azp`); empty for the audiences themselves.
    pub authorised_parties: Vec<String>,
    /// The algorithms it signs with.
    pub algorithms: Vec<Algorithm>,
    /// How long after `iat` a token is accepted, if shorter than `exp` says.
    pub max_age: Option<Duration>,
}

/// The key to which a token is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The key's thumbprint (RFC 7638) in base64url; a DPoP proof must show it.
    pub jkt: String,
    /// The JWK as the provider wrote it, with its `kid`, if the token carries the key and not only its thumbprint.
    pub jwk: Option<Map<String, Value>>,
}

/// Who a verified token speaks of.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The provider.
    pub issuer: String,
    /// The subject at that provider.
    pub subject: String,
    /// When the subject authenticated, in seconds since 1970.
    pub auth_time: Option<u64>,
    /// How strongly (`acr`).
    pub acr: Option<String>,
    /// The CHAP participant that the token is for (`chap_participant_uri`).
    pub participant: Option<String>,
    /// The key that it is bound to.
    pub confirmation: Option<Confirmation>,
    /// When the token ends.
    pub expires: Timestamp,
    /// What a log may hold of the token.
    pub digest: String,
}

impl std::fmt::Debug for Identity {
    /// The digest only: claims about a person do not belong in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// What an unverified token says about whose key to verify it with. Good for nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// The issuer it names.
    pub issuer: String,
    /// The key it names.
    pub kid: Option<String>,
}

/// Whose keys to verify this token with.
pub fn hint(token: &str) -> Result<Hint, OidcError> {
    let jws = Jws::parse(token)?;
    let issuer = required_text(jws.unverified(), "iss", MAX_NAME_BYTES)?;
    Ok(Hint { issuer, kid: jws.kid()?.map(str::to_owned) })
}

/// Who the token speaks of, if it is the provider's, for us, in time, and answers `nonce` where one was given out.
pub fn verify(
    token: &str,
    provider: &Provider,
    keys: &Jwks,
    nonce: Option<&str>,
    now: Timestamp,
) -> Result<Identity, OidcError> {
    let jws = Jws::parse(token)?;
    if !matches!(jws.typ()?.as_deref(), None | Some("jwt")) {
        return Err(OidcError::Type);
    }
    if !provider.algorithms.contains(&jws.algorithm) {
        return Err(OidcError::Algorithm);
    }
    let key = keys.select(jws.kid()?, jws.algorithm).ok_or(OidcError::UnknownKey)?;
    let claims = jws.verify(key)?;
    if required_text(&claims, "iss", MAX_NAME_BYTES)? != provider.issuer {
        return Err(OidcError::Issuer);
    }
    check_audience(&claims, provider)?;
    let expires = check_times(&claims, provider, now)?;
    if let Some(nonce) = nonce
        && claims.get("nonce").and_then(Value::as_str) != Some(nonce)
    {
        return Err(OidcError::Nonce);
    }
    let auth_time = claims.get("auth_time").map(|at| numeric_date(at).ok_or(OidcError::Claim("auth_time")));
    Ok(Identity {
        subject: required_text(&claims, "sub", MAX_CLAIM_BYTES)?,
        auth_time: auth_time.transpose()?,
        acr: text(&claims, "acr", MAX_CLAIM_BYTES)?,
        participant: text(&claims, "chap_participant_uri", MAX_NAME_BYTES)?,
        confirmation: claims.get("cnf").map(confirmation).transpose()?,
        issuer: provider.issuer.clone(),
        expires,
        digest: token_digest(token),
    })
}

fn text(claims: &Map<String, Value>, name: &'static str, most: usize) -> Result<Option<String>, OidcError> {
    match claims.get(name) {
        None => Ok(None),
        Some(Value::String(text)) if (1..=most).contains(&text.len()) => Ok(Some(text.clone())),
        Some(_) => Err(OidcError::Claim(name)),
    }
}

fn required_text(claims: &Map<String, Value>, name: &'static str, most: usize) -> Result<String, OidcError> {
    text(claims, name, most)?.ok_or(OidcError::Claim(name))
}

/// A token for several audiences must name the one client that it was given to (Core §3.1.3.7, steps 3 to 5).
fn check_audience(claims: &Map<String, Value>, provider: &Provider) -> Result<(), OidcError> {
    let single;
    let audiences: &[Value] = match claims.get("aud") {
        Some(Value::Array(list)) if (1..=MAX_AUDIENCES).contains(&list.len()) => list,
        Some(text @ Value::String(_)) => {
            single = [text.clone()];
            &single
        }
        _ => return Err(OidcError::Claim("aud")),
    };
    if !audiences.iter().all(Value::is_string) {
        return Err(OidcError::Claim("aud"));
    }
    if !audiences.iter().any(|audience| provider.audiences.iter().any(|own| audience == own)) {
        return Err(OidcError::Audience);
    }
    let parties = match provider.authorised_parties.as_slice() {
        [] => &provider.audiences,
        parties => parties,
    };
    match text(claims, "azp", MAX_NAME_BYTES)? {
        Some(party) if parties.contains(&party) => Ok(()),
        None if audiences.len() == 1 => Ok(()),
        _ => Err(OidcError::AuthorisedParty),
    }
}

fn check_times(
    claims: &Map<String, Value>,
    provider: &Provider,
    now: Timestamp,
) -> Result<Timestamp, OidcError> {
    let date = |name: &'static str| {
        claims
            .get(name)
            .map(|value| numeric_date(value).map(at_second).ok_or(OidcError::Claim(name)))
            .transpose()
    };
    let expires = date("exp")?.ok_or(OidcError::Claim("exp"))?;
    let issued = date("iat")?.ok_or(OidcError::Claim("iat"))?;
    let soon = later(now, CLOCK_SKEW);
    if now >= later(expires, CLOCK_SKEW) {
        return Err(OidcError::Expired);
    }
    if issued > soon || date("nbf")?.is_some_and(|from| from > soon) {
        return Err(OidcError::NotYet);
    }
    if provider.max_age.is_some_and(|age| now >= later(later(issued, age), CLOCK_SKEW)) {
        return Err(OidcError::TooOld);
    }
    Ok(expires)
}

/// Confirmation by key or by thumbprint. One that is not understood is a refusal: to ignore it would turn a bound token
/// into a bearer token.
fn confirmation(cnf: &Value) -> Result<Confirmation, OidcError> {
    let cnf = cnf.as_object().ok_or(OidcError::Confirmation)?;
    if cnf.keys().any(|member| !["jwk", "jkt", "kid"].contains(&member.as_str())) {
        return Err(OidcError::Confirmation);
    }
    let jwk = match cnf.get("jwk") {
        None => None,
        Some(jwk) => Some(jwk.as_object().ok_or(OidcError::Confirmation)?),
    };
    let jkt = match cnf.get("jkt") {
        None => None,
        Some(jkt) => Some(jkt.as_str().ok_or(OidcError::Confirmation)?),
    };
    let key = jwk.map(|jwk| PublicJwk::from_json(jwk).map_err(|_| OidcError::Confirmation)).transpose()?;
    let jkt = match (key.map(|key| key.thumbprint()), jkt) {
        (Some(own), Some(jkt)) if own != jkt => return Err(OidcError::Confirmation),
        (Some(own), _) => own,
        (None, Some(jkt)) if crate::strict_json::base64url(jkt).is_some_and(|bytes| bytes.len() == 32) => {
            jkt.to_owned()
        }
        (None, _) => return Err(OidcError::Confirmation),
    };
    Ok(Confirmation { jkt, jwk: jwk.cloned() })
}

#[cfg(test)]
mod tests;
