//! Public keys as JSON Web Keys (RFC 7517, RFC 8037): RSA, P-256 and Ed25519, their thumbprints (RFC 7638), and the
//! three signature algorithms that are believed here. Crypto is ring's, and `choir_messages::sign` for Ed25519.

use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, Signature};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Map, Value, json};

use crate::limits::{MAX_JWKS_BYTES, MAX_JWKS_KEYS, MAX_NAME_BYTES, MAX_RSA_BYTES};
use crate::strict_json::{base64url, parse_object, to_base64url};

/// Members that only a private or a symmetric key has.
const PRIVATE_MEMBERS: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/// What is wrong with a key or a set of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwkError {
    /// A private or symmetric key where a public one belongs.
    #[error("the key is private or symmetric; its owner must replace it, and publish only its public half")]
    Private,
    /// Of a type that is not believed here.
    #[error("the key is not an RSA, P-256 or Ed25519 key")]
    UnknownType,
    /// Of a known type, but broken.
    #[error("the key's members are missing or malformed")]
    Malformed,
    /// Not a set of keys within bounds.
    #[error("not a JSON Web Key Set of at most {MAX_JWKS_KEYS} keys and {MAX_JWKS_BYTES} bytes")]
    NotASet,
}

/// A signature algorithm. `none` and the HMAC family are no members, so nothing can select them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256, keys of 2048 to 8192 bits.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rs256, Self::Es256, Self::EdDsa];

    /// Its name in a JWS header.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm of this name; RFC 9864 also calls EdDSA with this curve `Ed25519`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "Ed25519" {
            return Some(Self::EdDsa);
        }
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }
}

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicJwk {
    /// RSA, big-endian without leading zeros.
    Rsa {
        /// The modulus.
        n: Vec<u8>,
        /// The exponent.
        e: Vec<u8>,
    },
    /// A point of P-256.
    P256 {
        /// Its first coordinate.
        x: [u8; 32],
        /// Its second coordinate.
        y: [u8; 32],
    },
    /// Ed25519.
    Ed25519(PublicKey),
}

impl PublicJwk {
    /// The key that a JWK describes. A JWK with a private member is refused even where its public half would do:
    /// whoever shows it has lost it.
    pub fn from_json(jwk: &Map<String, Value>) -> Result<Self, JwkError> {
        if PRIVATE_MEMBERS.iter().any(|member| jwk.contains_key(*member)) {
            return Err(JwkError::Private);
        }
        let text = |member: &str| jwk.get(member).and_then(Value::as_str);
        let bytes = |member: &str| text(member).and_then(base64url).ok_or(JwkError::Malformed);
        let fixed = |member| bytes(member)?.try_into().map_err(|_| JwkError::Malformed);
        match (text("kty"), text("crv")) {
            (Some("RSA"), _) => {
                let (n, e) = (bytes("n")?, bytes("e")?);
                let minimal = |number: &[u8]| number.first().is_some_and(|byte| *byte != 0);
                if !minimal(&n) || !minimal(&e) || n.len() > MAX_RSA_BYTES || e.len() > 8 {
                    return Err(JwkError::Malformed);
                }
                Ok(Self::Rsa { n, e })
            }
            (Some("EC"), Some("P-256")) => Ok(Self::P256 { x: fixed("x")?, y: fixed("y")? }),
            (Some("OKP"), Some("Ed25519")) => Ok(Self::Ed25519(PublicKey::from_bytes(fixed("x")?))),
            _ => Err(JwkError::UnknownType),
        }
    }

    /// Its JWK, required members only.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Rsa { n, e } => json!({"kty": "RSA", "n": to_base64url(n), "e": to_base64url(e)}),
            Self::P256 { x, y } => {
                json!({"kty": "EC", "crv": "P-256", "x": to_base64url(x), "y": to_base64url(y)})
            }
            Self::Ed25519(key) => json!({"kty": "OKP", "crv": "Ed25519", "x": to_base64url(key.bytes())}),
        }
    }

    /// The one algorithm it signs with here.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Rsa { .. } => Algorithm::Rs256,
            Self::P256 { .. } => Algorithm::Es256,
            Self::Ed25519(_) => Algorithm::EdDsa,
        }
    }

    /// Its SHA-256 thumbprint (RFC 7638) in base64url, as `jkt` carries it.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        // Required members only, keys sorted, no white space: exactly the canonical JSON of `to_json`.
        let text = choir_messages::canonical::to_vec(&self.to_json()).unwrap_or_default();
        to_base64url(Digest::of(&text).bytes())
    }

    /// Whether `signature` is this key's over exactly these bytes.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, bytes, signature).is_ok()
            }
            Self::P256 { x, y } => {
                let point = [&[4], x.as_slice(), y].concat();
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(bytes, signature).is_ok()
            }
            Self::Ed25519(key) => signature
                .try_into()
                .is_ok_and(|signature| key.verify(bytes, &Signature::from_bytes(signature)).is_ok()),
        }
    }
}

/// A provider's keys, those of them that can verify signatures here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Jwks(Vec<(Option<String>, PublicJwk)>);

impl Jwks {
    /// The set in this document. Keys for encryption, of unknown types or broken are passed over, as RFC 7517 §5 asks;
    /// a private key spoils the set, since then anyone could have signed.
    pub fn parse(document: &[u8]) -> Result<Self, JwkError> {
        if document.len() > MAX_JWKS_BYTES {
            return Err(JwkError::NotASet);
        }
        let document = parse_object(document).ok_or(JwkError::NotASet)?;
        let keys = document.get("keys").and_then(Value::as_array).ok_or(JwkError::NotASet)?;
        if keys.len() > MAX_JWKS_KEYS {
            return Err(JwkError::NotASet);
        }
        let mut set = Vec::new();
        for jwk in keys.iter().filter_map(Value::as_object) {
            match PublicJwk::from_json(jwk) {
                Ok(key) if may_verify(jwk, key.algorithm()) => {
                    let kid = jwk.get("kid").and_then(Value::as_str).map(str::to_owned);
                    set.push((kid.filter(|kid| kid.len() <= MAX_NAME_BYTES), key));
                }
                Err(JwkError::Private) => return Err(JwkError::Private),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(Self(set))
    }

    /// Whether a key of this id is in the set.
    #[must_use]
    pub fn has(&self, kid: &str) -> bool {
        self.0.iter().any(|(id, _)| id.as_deref() == Some(kid))
    }

    /// The one key that this id and algorithm select; without an id, the only key of that algorithm.
    #[must_use]
    pub fn select(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<&PublicJwk> {
        let fits = |(id, key): &&(Option<String>, PublicJwk)| {
            key.algorithm() == algorithm && kid.is_none_or(|kid| id.as_deref() == Some(kid))
        };
        let mut found = self.0.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some((_, key)), None) => Some(key),
            _ => None,
        }
    }

    /// How many keys are usable.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether `use`, `key_ops` and `alg`, where present, allow verifying with this algorithm.
fn may_verify(jwk: &Map<String, Value>, algorithm: Algorithm) -> bool {
    let is = |member, wanted: &dyn Fn(&Value) -> bool| jwk.get(member).is_none_or(wanted);
    is("use", &|value| value == "sig")
        && is("key_ops", &|value| value.as_array().is_some_and(|ops| ops.iter().any(|op| op == "verify")))
        && is("alg", &|value| value.as_str().and_then(Algorithm::from_name) == Some(algorithm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_keys::{RSA_E, RSA_N, SigningJwk};

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn published_thumbprints_are_reproduced() {
        // RFC 7638 §3.1.
        let rsa = json!({"kty": "RSA", "e": "AQAB", "alg": "RS256", "kid": "2011-04-29", "n":
            "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"});
        let key = PublicJwk::from_json(&object(rsa)).unwrap();
        assert_eq!(key.thumbprint(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
        // RFC 8037 §A.3.
        let okp = json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
        let key = PublicJwk::from_json(&object(okp)).unwrap();
        assert_eq!(key.thumbprint(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        // RFC 9449 §6.1.
        let ec = json!({"kty": "EC", "crv": "P-256", "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
            "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA"});
        let key = PublicJwk::from_json(&object(ec)).unwrap();
        assert_eq!(key.thumbprint(), "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I");
    }

    #[test]
    fn a_key_with_a_private_member_is_refused() {
        for member in PRIVATE_MEMBERS {
            let mut jwk = object(SigningJwk::ed25519(1).public().to_json());
            jwk.insert(member.into(), json!("AA"));
            assert_eq!(PublicJwk::from_json(&jwk), Err(JwkError::Private));
            let set = json!({"keys": [jwk]}).to_string();
            assert_eq!(Jwks::parse(set.as_bytes()), Err(JwkError::Private));
        }
        let symmetric = object(json!({"kty": "oct", "k": "AAAA"}));
        assert_eq!(PublicJwk::from_json(&symmetric), Err(JwkError::Private));
    }

    #[test]
    fn broken_keys_are_refused() {
        for jwk in [
            json!({"kty": "RSA", "n": RSA_N}),
            json!({"kty": "RSA", "n": "AAEC", "e": RSA_E}),
            json!({"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}),
            json!({"kty": "OKP", "crv": "Ed25519", "x": 1}),
        ] {
            assert_eq!(PublicJwk::from_json(&object(jwk)), Err(JwkError::Malformed));
        }
        let p384 = object(json!({"kty": "EC", "crv": "P-384", "x": "AQ", "y": "AQ"}));
        assert_eq!(PublicJwk::from_json(&p384), Err(JwkError::UnknownType));
    }

    #[test]
    fn a_short_rsa_key_verifies_nothing() {
        let key = PublicJwk::Rsa { n: vec![0xff; 128], e: vec![1, 0, 1] };
        assert!(!key.verifies(b"x", &[0; 128]));
    }

    #[test]
    fn a_set_keeps_the_keys_that_can_verify() {
        let jwk = |seed: u8, more: Value| {
            let mut jwk = object(SigningJwk::ed25519(seed).public().to_json());
            jwk.extend(object(more));
            jwk
        };
        let set = json!({"keys": [
            jwk(1, json!({"kid": "a"})),
            jwk(2, json!({"kid": "b", "use": "enc"})),
            jwk(3, json!({"kid": "c", "alg": "ES256"})),
            jwk(4, json!({"kid": "d", "key_ops": ["verify"], "use": "sig", "alg": "EdDSA"})),
            {"kty": "EC", "crv": "P-521"},
            "nonsense",
        ]});
        let set = Jwks::parse(set.to_string().as_bytes()).unwrap();
        assert_eq!(set.len(), 2);
        assert!(set.has("a") && set.has("d") && !set.has("b"));
        assert!(set.select(Some("a"), Algorithm::EdDsa).is_some());
        assert!(set.select(Some("a"), Algorithm::Es256).is_none());
        assert!(set.select(None, Algorithm::EdDsa).is_none(), "two keys fit, so none is chosen");
    }

    #[test]
    fn one_id_for_two_keys_selects_neither() {
        let jwk = |seed: u8| {
            let mut jwk = object(SigningJwk::ed25519(seed).public().to_json());
            jwk.insert("kid".into(), json!("same"));
            jwk
        };
        let set = json!({"keys": [jwk(1), jwk(2)]}).to_string();
        assert!(Jwks::parse(set.as_bytes()).unwrap().select(Some("same"), Algorithm::EdDsa).is_none());
    }

    #[test]
    fn documents_beyond_their_bounds_are_no_sets() {
        let crowd = json!({"keys": vec![json!({}); MAX_JWKS_KEYS + 1]}).to_string();
        for document in [crowd.as_bytes(), b"[]", b"{}", br#"{"keys":{}}"#, &vec![b' '; MAX_JWKS_BYTES + 1]] {
            assert_eq!(Jwks::parse(document), Err(JwkError::NotASet));
        }
    }
}
