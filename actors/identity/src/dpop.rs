//! DPoP proofs (RFC 9449 §4.3): the sender of a request shows that it holds the key to which its token is bound.

use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use serde_json::Value;
use url::Url;

use crate::instant::{at_second, later, numeric_date};
use crate::jwk::{JwkError, PublicJwk};
use crate::jws::{Jws, JwsError};
use crate::limits::{CLOCK_SKEW, DPOP_LIFETIME, MAX_CLAIM_BYTES};
use crate::replay::{ReplayCache, ReplayError};
use crate::strict_json::to_base64url;

/// Why a proof is not believed. It never quotes the proof or the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DpopError {
    /// Its form or signature.
    #[error("{0}")]
    Jws(#[from] JwsError),
    /// A JWS of another type.
    #[error("not a DPoP proof: its type is not dpop+jwt")]
    Type,
    /// Its key.
    #[error("the DPoP proof has no usable key: {0}")]
    Key(#[from] JwkError),
    /// A claim that is missing or of the wrong type.
    #[error("the DPoP proof's claim `{0}` is missing, too long or of the wrong type")]
    Claim(&'static str),
    /// Made for another request.
    #[error("the DPoP proof was made for another method or address")]
    OtherRequest,
    /// Too old, or from the future.
    #[error("the DPoP proof is too old or from the future; make a new one, and check the clock")]
    Time,
    /// Not the answer to the nonce given out.
    #[error("the DPoP proof lacks the nonce given out; make a new one with it")]
    Nonce,
    /// Made for another access token.
    #[error("the DPoP proof was made for another token")]
    OtherToken,
    /// Made with another key than the token is bound to.
    #[error("the DPoP proof was made with another key than the token is bound to")]
    OtherKey,
    /// Used before, or there is no room to remember it.
    #[error("{0}")]
    Replay(#[from] ReplayError),
}

/// What a proof must have been made for.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    /// The request's HTTP method.
    pub method: &'a str,
    /// The address as the client sees it, in front of any proxy; query and fragment are not compared.
    pub url: &'a str,
    /// The token sent along, whose hash the proof must then carry (`ath`).
    pub token: Option<&'a str>,
    /// The thumbprint of the key that the token is bound to.
    pub jkt: Option<&'a str>,
    /// The nonce given out to this client.
    pub nonce: Option<&'a str>,
}

/// What a verified proof shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpopProof {
    /// The thumbprint of the key that made it.
    pub jkt: String,
    /// The key.
    pub key: PublicJwk,
    /// When it was made, by the client's clock.
    pub made: Timestamp,
}

/// Whether the proof was made for this request with the key expected, just now and for the first time. It is remembered
/// only if it is good, so nobody without a bound key can fill the memory.
pub fn verify(
    proof: &str,
    expected: &Expected<'_>,
    now: Timestamp,
    replays: &mut ReplayCache,
) -> Result<DpopProof, DpopError> {
    let jws = Jws::parse(proof)?;
    if jws.typ()?.as_deref() != Some("dpop+jwt") {
        return Err(DpopError::Type);
    }
    let key =
        PublicJwk::from_json(jws.header.get("jwk").and_then(Value::as_object).ok_or(JwkError::Malformed)?)?;
    let claims = jws.verify(&key)?;
    let text = |name: &'static str, most: usize| {
        let text = claims.get(name).and_then(Value::as_str).filter(|text| (1..=most).contains(&text.len()));
        text.ok_or(DpopError::Claim(name))
    };
    let id = text("jti", MAX_CLAIM_BYTES)?;
    if text("htm", MAX_CLAIM_BYTES)? != expected.method
        || !same_address(text("htu", usize::MAX)?, expected.url)
    {
        return Err(DpopError::OtherRequest);
    }
    let made = claims.get("iat").and_then(numeric_date).map(at_second).ok_or(DpopError::Claim("iat"))?;
    let until = later(later(made, DPOP_LIFETIME), CLOCK_SKEW);
    if made > later(now, CLOCK_SKEW) || now >= until {
        return Err(DpopError::Time);
    }
    if expected.nonce.is_some() && claims.get("nonce").and_then(Value::as_str) != expected.nonce {
        return Err(DpopError::Nonce);
    }
    if let Some(token) = expected.token
        && text("ath", MAX_CLAIM_BYTES)? != to_base64url(Digest::of(token.as_bytes()).bytes())
    {
        return Err(DpopError::OtherToken);
    }
    let jkt = key.thumbprint();
    if expected.jkt.is_some_and(|bound| bound != jkt) {
        return Err(DpopError::OtherKey);
    }
    // A thumbprint has a fixed length, so no two pairs give one text.
    let name = Digest::of(format!("{jkt}{id}").as_bytes());
    replays.admit(Digest::of(jkt.as_bytes()), name, until, now)?;
    Ok(DpopProof { jkt, key, made })
}

/// Whether two addresses are one after the usual normalisation (RFC 3986 §6.2.2 and §6.2.3), query and fragment aside.
fn same_address(claimed: &str, expected: &str) -> bool {
    let read = |text: &str| {
        let mut url = Url::parse(text).ok()?;
        if !matches!(url.scheme(), "http" | "https") || !url.username().is_empty() || url.password().is_some()
        {
            return None;
        }
        url.set_query(None);
        url.set_fragment(None);
        Some(url)
    };
    matches!((read(claimed), read(expected)), (Some(claimed), Some(expected)) if claimed == expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_keys::SigningJwk;
    use serde_json::json;

    const NOW: u64 = 1_790_000_000;
    const URL: &str = "https://chap.example/chap";

    fn expected() -> Expected<'static> {
        Expected { method: "POST", url: URL, token: None, jkt: None, nonce: None }
    }

    fn made(signer: &SigningJwk, changes: serde_json::Value) -> String {
        let mut claims = json!({"jti": "j1", "htm": "POST", "htu": URL, "iat": NOW});
        claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        signer.sign(json!({"typ": "dpop+jwt", "jwk": signer.public().to_json()}), claims)
    }

    fn judge(proof: &str, expected: &Expected<'_>) -> Result<DpopProof, DpopError> {
        verify(proof, expected, at_second(NOW), &mut ReplayCache::new())
    }

    #[test]
    fn a_proof_of_each_algorithm_shows_its_key() {
        for signer in SigningJwk::all() {
            let jkt = signer.public().thumbprint();
            let bound = Expected { jkt: Some(&jkt), ..expected() };
            let shown = judge(&made(&signer, json!({})), &bound).unwrap();
            assert_eq!((shown.jkt, shown.made), (jkt.clone(), at_second(NOW)));
        }
    }

    /// RFC 9449 §5 shows the proof, §7.1 the token with its hash.
    #[test]
    fn the_published_proof_and_token_hash_are_reproduced() {
        let proof = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg";
        let expected = Expected {
            url: "https://server.example.com/token",
            jkt: Some("0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"),
            ..expected()
        };
        assert!(verify(proof, &expected, at_second(1_562_262_616), &mut ReplayCache::new()).is_ok());
        let token = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU";
        let ath = to_base64url(Digest::of(token.as_bytes()).bytes());
        assert_eq!(ath, "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo");
    }

    #[test]
    fn a_proof_for_another_request_is_refused() {
        let signer = SigningJwk::ed25519(1);
        for (changes, good) in [
            (json!({"htu": "HTTPS://CHAP.example:443/chap?x=1#y"}), true),
            (json!({"htu": "https://chap.example/./chap"}), true),
            (json!({"htu": "http://chap.example/chap"}), false),
            (json!({"htu": "https://chap.example/chap/"}), false),
            (json!({"htu": "https://user@chap.example/chap"}), false),
            (json!({"htu": "https://chap.example:444/chap"}), false),
            (json!({"htu": "/chap"}), false),
            (json!({"htm": "post"}), false),
            (json!({"htm": "GET"}), false),
        ] {
            let verdict = judge(&made(&signer, changes.clone()), &expected());
            assert_eq!(verdict.err(), (!good).then_some(DpopError::OtherRequest), "{changes}");
        }
    }

    #[test]
    fn a_proof_is_good_for_a_minute_and_the_skew() {
        let signer = SigningJwk::ed25519(1);
        for (iat, good) in [(NOW - 119, true), (NOW - 120, false), (NOW + 60, true), (NOW + 61, false)] {
            let verdict = judge(&made(&signer, json!({"iat": iat})), &expected());
            assert_eq!(verdict.err(), (!good).then_some(DpopError::Time), "{iat}");
        }
    }

    #[test]
    fn a_proof_is_taken_once() {
        let (signer, mut replays) = (SigningJwk::ed25519(1), ReplayCache::new());
        let proof = made(&signer, json!({}));
        let mut again = || verify(&proof, &expected(), at_second(NOW), &mut replays);
        assert!(again().is_ok());
        assert_eq!(again().err(), Some(ReplayError::Used.into()));
        let other = made(&SigningJwk::ed25519(2), json!({}));
        assert!(verify(&other, &expected(), at_second(NOW), &mut replays).is_ok(), "ids are each key's own");
    }

    #[test]
    fn token_key_and_nonce_must_be_those_expected() {
        let signer = SigningJwk::ed25519(1);
        let ath = to_base64url(Digest::of(b"token").bytes());
        let with_token = Expected { token: Some("token"), ..expected() };
        assert!(judge(&made(&signer, json!({"ath": ath})), &with_token).is_ok());
        let other = Expected { token: Some("other"), ..expected() };
        assert_eq!(judge(&made(&signer, json!({"ath": ath})), &other).err(), Some(DpopError::OtherToken));
        assert_eq!(judge(&made(&signer, json!({})), &with_token).err(), Some(DpopError::Claim("ath")));
        let other = SigningJwk::ed25519(2).public().thumbprint();
        let bound = Expected { jkt: Some(&other), ..expected() };
        assert_eq!(judge(&made(&signer, json!({})), &bound).err(), Some(DpopError::OtherKey));
        let nonced = Expected { nonce: Some("n"), ..expected() };
        assert!(judge(&made(&signer, json!({"nonce": "n"})), &nonced).is_ok());
        assert_eq!(judge(&made(&signer, json!({})), &nonced).err(), Some(DpopError::Nonce));
    }

    #[test]
    fn a_refused_proof_is_not_remembered() {
        let (signer, mut replays) = (SigningJwk::ed25519(1), ReplayCache::new());
        let wrong = Expected { method: "GET", ..expected() };
        let proof = made(&signer, json!({}));
        assert!(verify(&proof, &wrong, at_second(NOW), &mut replays).is_err());
        assert!(replays.is_empty());
    }

    #[test]
    fn other_types_and_private_or_missing_keys_are_refused() {
        let signer = SigningJwk::ed25519(1);
        let mut private = signer.public().to_json();
        private["d"] = json!("AA");
        let claims = json!({"jti": "j", "htm": "POST", "htu": URL, "iat": NOW});
        for (header, verdict) in [
            (json!({"jwk": signer.public().to_json()}), DpopError::Type),
            (json!({"typ": "JWT", "jwk": signer.public().to_json()}), DpopError::Type),
            (json!({"typ": "dpop+jwt"}), JwkError::Malformed.into()),
            (json!({"typ": "dpop+jwt", "jwk": private}), JwkError::Private.into()),
            (
                json!({"typ": "dpop+jwt", "jwk": SigningJwk::ed25519(2).public().to_json()}),
                JwsError::Signature.into(),
            ),
        ] {
            assert_eq!(judge(&signer.sign(header, claims.clone()), &expected()).err(), Some(verdict));
        }
        for name in ["jti", "htm", "htu", "iat"] {
            let proof = made(&signer, json!({ name: [] }));
            assert_eq!(judge(&proof, &expected()).err(), Some(DpopError::Claim(name)));
        }
    }
}
