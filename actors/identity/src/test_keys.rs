//! Keys for tests: the published RSA key of RFC 7515 §A.2, a P-256 key made on the spot, and Ed25519 keys from seeds.

use choir_messages::sign::SigningKey;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair as RsaKeyPair, KeyPairComponents, PublicKeyComponents};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use serde_json::{Value, json};

use crate::jwk::PublicJwk;
use crate::strict_json::{base64url, to_base64url};

pub(crate) const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
pub(crate) const RSA_E: &str = "AQAB";
const RSA_D: &str = "Eq5xpGnNCivDflJsRQBXHx1hdR1k6Ulwe2JZD50LpXyWPEAeP88vLNO97IjlA7_GQ5sLKMgvfTeXZx9SE-7YwVol2NXOoAJe46sui395IW_GO-pWJ1O0BkTGoVEn2bKVRUCgu-GjBVaYLU6f3l9kJfFNS3E0QbVdxzubSu3Mkqzjkn439X0M_V51gfpRLI9JYanrC4D4qAdGcopV_0ZHHzQlBjudU2QvXt4ehNYTCBr6XCLQUShb1juUO1ZdiYoFaFQT5Tw8bGUl_x_jTj3ccPDVZFD9pIuhLhBOneufuBiB4cS98l2SR_RQyGWSeWjnczT0QU91p1DhOVRuOopznQ";
const RSA_P: &str = "4BzEEOtIpmVdVEZNCqS7baC4crd0pqnRH_5IB3jw3bcxGn6QLvnEtfdUdiYrqBdss1l58BQ3KhooKeQTa9AB0Hw_Py5PJdTJNPY8cQn7ouZ2KKDcmnPGBY5t7yLc1QlQ5xHdwW1VhvKn-nXqhJTBgIPgtldC-KDV5z-y2XDwGUc";
const RSA_Q: &str = "uQPEfgmVtjL0Uyyx88GZFF1fOunH3-7cepKmtH4pxhtCoHqpWmT8YAmZxaewHgHAjLYsp1ZSe7zFYHj7C6ul7TjeLQeZD_YwD66t62wDmpe_HlB-TnBA-njbglfIsRLtXlnDzQkv5dTltRJ11BKBBypeeF6689rjcJIDEz9RWdc";
const RSA_DP: &str = "BwKfV3Akq5_MFZDFZCnW-wzl-CCo83WoZvnLQwCTeDv8uzluRSnm71I3QCLdhrqE2e9YkxvuxdBfpT_PI7Yz-FOKnu1R6HsJeDCjn12Sk3vmAktV2zb34MCdy7cpdTh_YVr7tss2u6vneTwrA86rZtu5Mbr1C1XsmvkxHQAdYo0";
const RSA_DQ: &str = "h_96-mK1R_7glhsum81dZxjTnYynPbZpHziZjeeHcXYsXaaMwkOlODsWa7I9xXDoRwbKgB719rrmI2oKr6N3Do9U0ajaHF-NKJnwgjMd2w9cjz3_-kyNlxAr2v4IKhGNpmM5iIgOS1VZnOZ68m6_pbLBSp3nssTdlqvd0tIiTHU";
const RSA_QI: &str = "IYd7DHOhrWvxkwPQsRM2tOgrjbcrfvtQJipd-DlcxyVuuM9sQLdgjVk2oy26F0EmpScGLq2MowX7fhd_QJQ3ydy5cY7YIBi87w93IKLEdfnbJtoOPLUW0ITrJReOgo1cq9SbsxYawBgfp_gh6A5603k2-ZQwVK0JKSHuLFkuQ3U";

/// A key that signs tokens.
pub(crate) enum SigningJwk {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(SigningKey),
}

impl SigningJwk {
    pub(crate) fn rsa() -> Self {
        let number = |text: &str| base64url(text).unwrap();
        let components = KeyPairComponents {
            public_key: PublicKeyComponents { n: number(RSA_N), e: number(RSA_E) },
            d: number(RSA_D),
            p: number(RSA_P),
            q: number(RSA_Q),
            dP: number(RSA_DP),
            dQ: number(RSA_DQ),
            qInv: number(RSA_QI),
        };
        Self::Rsa(RsaKeyPair::from_components(&components).unwrap())
    }

    pub(crate) fn p256() -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
        Self::P256(pair.unwrap())
    }

    pub(crate) fn ed25519(seed: u8) -> Self {
        Self::Ed25519(SigningKey::from_seed(&[seed; 32]))
    }

    pub(crate) fn all() -> Vec<Self> {
        vec![Self::rsa(), Self::p256(), Self::ed25519(1)]
    }

    pub(crate) fn public(&self) -> PublicJwk {
        match self {
            Self::Rsa(_) => PublicJwk::Rsa { n: base64url(RSA_N).unwrap(), e: base64url(RSA_E).unwrap() },
            Self::P256(pair) => {
                let point = pair.public_key().as_ref();
                PublicJwk::P256 { x: point[1..33].try_into().unwrap(), y: point[33..65].try_into().unwrap() }
            }
            Self::Ed25519(key) => PublicJwk::Ed25519(key.public()),
        }
    }

    /// A JWS with these claims; the header gets this key's algorithm.
    pub(crate) fn sign(&self, header: Value, claims: Value) -> String {
        let mut all = json!({"alg": self.public().algorithm().as_str()});
        all.as_object_mut().unwrap().extend(header.as_object().unwrap().clone());
        let signed = format!("{}.{}", to_base64url(all.to_string()), to_base64url(claims.to_string()));
        let signature = match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
                    .unwrap();
                signature
            }
            Self::P256(pair) => pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Ed25519(key) => key.sign(signed.as_bytes()).bytes().to_vec(),
        };
        format!("{signed}.{}", to_base64url(signature))
    }
}
