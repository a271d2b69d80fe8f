//! Who a participant is (`identity-oidc/1.0` and `identity-vc/1.0`, digest §3.11): verifiers of OpenID Connect ID
//! tokens, DPoP proofs and W3C verifiable presentations. The Coordinator attests with it before a join or a privileged
//! call; the result names the subject and the key that it proved. It promises that nothing is believed that is not
//! signed by a key the operator trusts, that every doubt is a refusal, that foreign bytes end in an error and never in
//! a panic, and that no token, presentation or claim appears in an error or debug output: a log may hold
//! [`token_digest`] and [`vc::presentation_digest`], nothing else.
//!
//! - [`oidc`]: ID tokens; [`jwks_cache`] says when the provider's keys must be fetched.
//! - [`dpop`]: proofs of possession (RFC 9449), with a bounded [`replay`] memory.
//! - [`step_up`]: whether an authentication is fresh and strong enough.
//! - [`vc`]: presentations with `eddsa-jcs-2022` proofs, issuer trust and status lists.
//! - [`jwk`] and [`jws`]: keys and signatures under the first two.
//!
//! Pure: the time and every fetched document are passed in.

pub mod dpop;
mod instant;
pub mod jwk;
pub mod jwks_cache;
pub mod jws;
pub mod limits;
pub mod oidc;
pub mod replay;
pub mod step_up;
mod strict_json;
pub mod vc;

#[cfg(test)]
mod test_keys;

pub use dpop::{DpopError, DpopProof, Expected};
pub use jwk::{Algorithm, JwkError, Jwks, PublicJwk};
pub use jwks_cache::{JwksCache, Lookup};
pub use oidc::{Confirmation, Identity, OidcError, Provider};
pub use replay::{ReplayCache, ReplayError};
pub use step_up::{StepUp, StepUpError};

/// What a log may hold of a token: `sha256:` and the hex SHA-256 of its text.
#[must_use]
pub fn token_digest(token: &str) -> String {
    format!("sha256:{}", choir_messages::chain::Digest::of(token.as_bytes()))
}
