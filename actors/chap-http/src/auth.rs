//! Who calls: bearer tokens, of which only the SHA-256 is configured, and the participants each may speak for.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};
use choir_messages::mail::Caller;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use crate::limits::TOKEN_BYTES;
use crate::refusal::Refusal;

/// The SHA-256 of a token. Written `sha256:` and 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// Not a token's digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token is configured as \"sha256:\" and 64 hex digits; make them with: printf %s \"$TOKEN\" | sha256sum"
)]
pub struct NotADigest;

impl TokenDigest {
    /// The digest of this token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl FromStr for TokenDigest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let digits = text.strip_prefix("sha256:").ok_or(NotADigest)?;
        let mut digest = [0; 32];
        hex::decode_to_slice(digits, &mut digest).map_err(|_| NotADigest)?;
        Ok(Self(digest))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest(..)")
    }
}

/// What one token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The token's digest.
    pub digest: TokenDigest,
    /// The participants its holder may speak for; `None` for any.
    pub participants: Option<Arc<[String]>>,
}

/// How callers are told apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Auth {
    /// Not at all: right on loopback and on a private socket only, and [`crate::serve`] allows it nowhere else.
    #[default]
    None,
    /// By a bearer token.
    Bearer(Vec<Grant>),
}

/// Who sent a request, and whose limits it counts against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) caller: Caller,
    /// The place of its counters; 0 for callers without a token, else the grant's place + 1.
    pub(crate) account: usize,
}

impl Auth {
    /// Accounts there can be.
    pub(crate) fn accounts(&self) -> usize {
        match self {
            Self::None => 1,
            Self::Bearer(grants) => grants.len() + 1,
        }
    }

    /// Who sent a request with these headers.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Identity, Refusal> {
        let Self::Bearer(grants) = self else {
            return Ok(Identity { caller: Caller::anyone(), account: 0 });
        };
        let Some(token) = bearer(headers) else {
            return Err(unauthorised(
                "This Coordinator wants a token: send \"Authorization: Bearer <token>\".",
            ));
        };
        let presented = TokenDigest::of(token);
        // Every grant is compared, whichever fits: the time taken tells nothing about where, or how nearly.
        let mut account = 0_u64;
        for (place, grant) in (1_u64..).zip(grants) {
            let fits: Choice = presented.0.ct_eq(&grant.digest.0);
            account.conditional_assign(&place, fits);
        }
        let account = usize::try_from(account).unwrap_or(0);
        match account.checked_sub(1).and_then(|place| grants.get(place)) {
            Some(grant) => {
                Ok(Identity { caller: Caller { participants: grant.participants.clone() }, account })
            }
            None => Err(unauthorised("The token is not known here.")),
        }
    }
}

impl Identity {
    /// Whether the caller may read what this participant is sent.
    pub(crate) fn may_be(&self, participant: &str) -> bool {
        self.caller.participants.as_ref().is_none_or(|known| known.iter().any(|uri| uri == participant))
    }

    /// The one participant the caller can only be.
    pub(crate) fn only(&self) -> Option<&str> {
        match self.caller.participants.as_deref() {
            Some([one]) => Some(one),
            _ => None,
        }
    }
}

fn unauthorised(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, message)
}

/// The one bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.as_bytes().split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    let fits = scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty() && token.len() <= TOKEN_BYTES;
    fits.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn auth() -> Auth {
        let grant = |token: &[u8], participants: Option<&[&str]>| Grant {
            digest: TokenDigest::of(token),
            participants: participants.map(|uris| uris.iter().map(|&uri| uri.to_owned()).collect()),
        };
        Auth::Bearer(vec![
            grant(b"alice's", Some(&["human:alice"])),
            grant(b"the bridge's", Some(&["agent:a", "agent:b"])),
            grant(b"the operator's", None),
        ])
    }

    fn with(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))])
    }

    #[test]
    fn a_token_names_its_participants_and_its_own_account() {
        let alice = auth().identify(&with("Bearer alice's")).unwrap();
        assert_eq!((alice.account, alice.only()), (1, Some("human:alice")));
        assert!(alice.may_be("human:alice") && !alice.may_be("agent:a"));
        let bridge = auth().identify(&with("bearer the bridge's")).unwrap();
        assert_eq!((bridge.account, bridge.only()), (2, None));
        let operator = auth().identify(&with("Bearer   the operator's ")).unwrap();
        assert!(operator.may_be("human:anyone") && operator.caller.participants.is_none());
    }

    #[test]
    fn without_the_right_token_nobody_is_let_in() {
        for value in ["", "Bearer", "Bearer ", "Basic alice's", "Bearer alice'", "Bearer alice's2", "alice's"]
        {
            let refused = auth().identify(&with(value)).unwrap_err();
            assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{value}");
        }
        assert!(auth().identify(&HeaderMap::new()).is_err());
        let mut twice = with("Bearer alice's");
        twice.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer the operator's"));
        assert!(auth().identify(&twice).is_err());
        assert!(Auth::Bearer(Vec::new()).identify(&with("Bearer x")).is_err());
    }

    #[test]
    fn a_digest_is_read_and_never_shown() {
        let text = format!("sha256:{}", hex::encode(Sha256::digest(b"t")));
        let digest: TokenDigest = text.parse().unwrap();
        assert_eq!(digest, TokenDigest::of(b"t"));
        assert_eq!(format!("{digest:?}"), "TokenDigest(..)");
        for odd in ["", "sha256:", "sha256:00", &text[7..], "md5:00"] {
            assert_eq!(odd.parse::<TokenDigest>(), Err(NotADigest), "{odd}");
        }
    }
}
