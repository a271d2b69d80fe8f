//! Signing calls (`security-signed/1.0`): `sig` is `ed25519:<kid>:<base64>` over the canonical form of the call without it.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use choir_messages::canonical;
use choir_messages::sign::SigningKey;
use serde::Deserialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// A key with its name. Cheap to clone; never printed.
#[derive(Clone)]
pub struct Signer {
    kid: Arc<str>,
    key: Arc<SigningKey>,
}

/// Why there is no signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignerError {
    /// Not a private key.
    #[error("this is no private key: a JWK with kty \"OKP\", crv \"Ed25519\", kid, x and d is wanted")]
    NotAKey,
    /// The two halves do not belong together.
    #[error("the key's x is not the public half of its d")]
    Mismatch,
    /// No random bytes.
    #[error("no key can be made: {0}")]
    NoRandom(String),
    /// The call has no canonical form.
    #[error("the call cannot be signed: {0}")]
    NotCanonical(String),
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    kid: String,
    x: String,
    d: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({})", self.kid)
    }
}

impl Signer {
    /// A fresh key of this name.
    pub fn generate(kid: &str) -> Result<Self, SignerError> {
        let key = SigningKey::generate().map_err(|error| SignerError::NoRandom(error.to_string()))?;
        Ok(Self { kid: kid.into(), key: Arc::new(key) })
    }

    /// Reads a private JWK.
    pub fn from_jwk(text: &str) -> Result<Self, SignerError> {
        let jwk: Jwk = serde_json::from_str(text).map_err(|_| SignerError::NotAKey)?;
        let d = Zeroizing::new(jwk.d);
        let seed =
            URL_SAFE_NO_PAD.decode(d.as_bytes()).map(Zeroizing::new).map_err(|_| SignerError::NotAKey)?;
        let seed: Zeroizing<[u8; 32]> =
            Zeroizing::new(seed.as_slice().try_into().map_err(|_| SignerError::NotAKey)?);
        if jwk.kty != "OKP" || jwk.crv != "Ed25519" || jwk.kid.is_empty() {
            return Err(SignerError::NotAKey);
        }
        let key = SigningKey::from_seed(&seed);
        if URL_SAFE_NO_PAD.encode(key.public().bytes()) != jwk.x {
            return Err(SignerError::Mismatch);
        }
        Ok(Self { kid: jwk.kid.as_str().into(), key: Arc::new(key) })
    }

    /// The private JWK: for a file that only its owner reads.
    #[must_use]
    pub fn to_jwk(&self) -> Zeroizing<String> {
        let mut jwk = self.public_jwk();
        jwk["d"] = json!(URL_SAFE_NO_PAD.encode(self.key.seed().as_slice()));
        Zeroizing::new(jwk.to_string())
    }

    /// The public JWK, as `participant.join` takes it.
    #[must_use]
    pub fn public_jwk(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.key.public().bytes());
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": &*self.kid, "x": x })
    }

    /// Signs a call in place.
    pub fn sign(&self, envelope: &mut Value) -> Result<(), SignerError> {
        let bytes =
            canonical::to_vec(envelope).map_err(|error| SignerError::NotCanonical(error.to_string()))?;
        let signature = STANDARD.encode(self.key.sign(&bytes).bytes());
        if let Some(fields) = envelope.as_object_mut() {
            fields.insert("sig".into(), format!("ed25519:{}:{signature}", self.kid).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_file_and_is_never_printed() {
        let signer = Signer::generate("k1").unwrap();
        let file = signer.to_jwk();
        let again = Signer::from_jwk(&file).unwrap();
        assert_eq!(again.public_jwk(), signer.public_jwk());
        let secret: Value = serde_json::from_str(&file).unwrap();
        assert!(!format!("{signer:?}").contains(secret["d"].as_str().unwrap()));
    }

    #[test]
    fn what_is_no_private_key_is_refused() {
        let other = Signer::generate("k1").unwrap().public_jwk()["x"].clone();
        let mut swapped: Value = serde_json::from_str(&Signer::generate("k1").unwrap().to_jwk()).unwrap();
        swapped["x"] = other;
        assert_eq!(Signer::from_jwk(&swapped.to_string()).unwrap_err(), SignerError::Mismatch);
        let public = Signer::generate("k1").unwrap().public_jwk().to_string();
        assert_eq!(Signer::from_jwk(&public).unwrap_err(), SignerError::NotAKey);
        assert_eq!(Signer::from_jwk("[]").unwrap_err(), SignerError::NotAKey);
    }
}
