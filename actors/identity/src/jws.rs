//! JWS in compact form (RFC 7515 §7.1), taken apart and verified with a key chosen by the caller.

use serde_json::{Map, Value};

use crate::jwk::{Algorithm, PublicJwk};
use crate::limits::{MAX_NAME_BYTES, MAX_TOKEN_BYTES};
use crate::strict_json::{base64url, parse_object};

/// What is wrong with a JWS. It never quotes the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    /// Longer than any honest token.
    #[error("the token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLarge,
    /// Not three parts of base64url JSON with each key once.
    #[error("the token is not a JWS in compact form: {0}")]
    Malformed(&'static str),
    /// `none`, a HMAC, or an algorithm not known here.
    #[error("the token's algorithm is not one of RS256, ES256 and EdDSA")]
    Algorithm,
    /// A header extension that must be understood (`crit`).
    #[error("the token depends on header extensions that are not known here")]
    Critical,
    /// Another key, or changed.
    #[error("the token's signature does not match")]
    Signature,
}

/// A JWS taken apart. Nothing in it is verified yet.
pub(crate) struct Jws<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) header: Map<String, Value>,
    claims: Map<String, Value>,
    signed: &'a str,
    signature: Vec<u8>,
}

impl<'a> Jws<'a> {
    pub(crate) fn parse(token: &'a str) -> Result<Self, JwsError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(JwsError::TooLarge);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(JwsError::Malformed("it has no signature"))?;
        let (header, claims) = signed.split_once('.').ok_or(JwsError::Malformed("it has no claims"))?;
        let object = |part| base64url(part).and_then(|bytes| parse_object(&bytes));
        let header = object(header).ok_or(JwsError::Malformed("its header is no JSON object"))?;
        let claims = object(claims).ok_or(JwsError::Malformed("its claims are no JSON object"))?;
        let signature = base64url(signature).ok_or(JwsError::Malformed("its signature is no base64url"))?;
        if header.contains_key("crit") {
            return Err(JwsError::Critical);
        }
        let algorithm = header.get("alg").and_then(Value::as_str).and_then(Algorithm::from_name);
        Ok(Self { algorithm: algorithm.ok_or(JwsError::Algorithm)?, header, claims, signed, signature })
    }

    pub(crate) fn kid(&self) -> Result<Option<&str>, JwsError> {
        match self.header.get("kid") {
            None => Ok(None),
            Some(Value::String(kid)) if kid.len() <= MAX_NAME_BYTES => Ok(Some(kid)),
            Some(_) => Err(JwsError::Malformed("its key id is no short text")),
        }
    }

    /// The header's type in lower case, without `application/` (RFC 7515 §4.1.9).
    pub(crate) fn typ(&self) -> Result<Option<String>, JwsError> {
        match self.header.get("typ") {
            None => Ok(None),
            Some(Value::String(typ)) => {
                let typ = typ.to_ascii_lowercase();
                Ok(Some(typ.strip_prefix("application/").map_or(typ.clone(), str::to_owned)))
            }
            Some(_) => Err(JwsError::Malformed("its type is no text")),
        }
    }

    /// The claims before they are verified, for choosing whose key to verify with.
    pub(crate) fn unverified(&self) -> &Map<String, Value> {
        &self.claims
    }

    /// The claims, if this key signed them with the algorithm the header names.
    pub(crate) fn verify(self, key: &PublicJwk) -> Result<Map<String, Value>, JwsError> {
        if key.algorithm() == self.algorithm && key.verifies(self.signed.as_bytes(), &self.signature) {
            Ok(self.claims)
        } else {
            Err(JwsError::Signature)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict_json::to_base64url;
    use crate::test_keys::{RSA_E, RSA_N, SigningJwk};
    use proptest::prelude::*;
    use serde_json::json;

    fn key(jwk: Value) -> PublicJwk {
        PublicJwk::from_json(jwk.as_object().unwrap()).unwrap()
    }

    #[test]
    fn the_rs256_example_of_rfc_7515_verifies() {
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let rsa = key(json!({"kty": "RSA", "n": RSA_N, "e": RSA_E}));
        let claims = Jws::parse(token).unwrap().verify(&rsa).unwrap();
        assert_eq!(claims["iss"], "joe");
    }

    #[test]
    fn the_es256_example_of_rfc_9449_verifies() {
        let token = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg";
        let jws = Jws::parse(token).unwrap();
        let jwk = key(jws.header["jwk"].clone());
        assert_eq!(jws.verify(&jwk).unwrap()["jti"], "-BwC3ESc6acc2lTc");
    }

    #[test]
    fn algorithms_that_prove_nothing_are_refused() {
        let claims = to_base64url("{}");
        for alg in ["none", "None", "HS256", "HS512", "RS512", "PS256", "ES384", "rs256", ""] {
            let token = format!("{}.{claims}.AA", to_base64url(json!({"alg": alg}).to_string()));
            assert_eq!(Jws::parse(&token).err(), Some(JwsError::Algorithm), "{alg}");
        }
    }

    #[test]
    fn the_algorithm_must_be_that_of_the_key() {
        let (rsa, ed) = (SigningJwk::rsa(), SigningJwk::ed25519(1));
        for (signer, other) in [(&rsa, &ed), (&ed, &rsa)] {
            let token = signer.sign(json!({}), json!({}));
            assert!(Jws::parse(&token).unwrap().verify(&signer.public()).is_ok());
            let refused = Jws::parse(&token).unwrap().verify(&other.public());
            assert_eq!(refused.err(), Some(JwsError::Signature));
        }
    }

    #[test]
    fn critical_headers_and_twofold_keys_are_refused() {
        let token = SigningJwk::ed25519(1).sign(json!({"crit": ["b64"], "b64": false}), json!({}));
        assert_eq!(Jws::parse(&token).err(), Some(JwsError::Critical));
        let twofold = to_base64url(r#"{"alg":"EdDSA","alg":"EdDSA"}"#);
        let token = format!("{twofold}.{}.AA", to_base64url("{}"));
        assert!(matches!(Jws::parse(&token).err(), Some(JwsError::Malformed(_))));
    }

    #[test]
    fn a_token_over_its_bound_is_refused() {
        assert_eq!(Jws::parse(&"x".repeat(MAX_TOKEN_BYTES + 1)).err(), Some(JwsError::TooLarge));
    }

    proptest! {
        #[test]
        fn no_changed_character_of_a_token_passes(kind in 0usize..3, pick in any::<prop::sample::Index>(), with in "[A-Za-z0-9._-]") {
            let signer = SigningJwk::all().swap_remove(kind);
            let token = signer.sign(json!({"kid": "k"}), json!({"sub": "a"}));
            let at = pick.index(token.len());
            let mut changed = token.clone();
            changed.replace_range(at..=at, &with);
            prop_assume!(changed != token);
            prop_assert!(Jws::parse(&changed).and_then(|jws| jws.verify(&signer.public())).is_err());
        }

        #[test]
        fn any_text_is_judged_without_a_panic(text in "\\PC{0,80}", parts in "[A-Za-z0-9_-]{0,30}\\.[A-Za-z0-9_-]{0,30}\\.[A-Za-z0-9_-]{0,30}") {
            prop_assert!(Jws::parse(&text).is_err());
            prop_assert!(Jws::parse(&parts).is_err());
        }
    }
}
