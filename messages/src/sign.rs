//! Ed25519 signatures over bytes (usually a value's canonical JSON). Verification is strict: small-order keys and
//! malleable signatures are refused.

use ed25519_dalek::{Signature as DalekSignature, Signer, SigningKey as DalekKey, VerifyingKey};
use std::fmt;
use std::str::FromStr;
use zeroize::Zeroizing;

/// A private key. Wiped when dropped, never printed.
pub struct SigningKey(DalekKey);

/// A public key: 32 bytes, printed as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// A signature: 64 bytes, printed as 128 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature([u8; 64]);

/// What is wrong with a key or a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The system gave no random bytes.
    #[error("the system's random generator gave no bytes for a key")]
    NoRandom,
    /// The hex text has the wrong length or digits.
    #[error("not the hex form of an Ed25519 key or signature")]
    BadText,
    /// No point of the curve, or one of small order.
    #[error("not a usable Ed25519 public key")]
    BadKey,
    /// The signature does not match the bytes and the key.
    #[error("the signature does not match")]
    Mismatch,
}

impl SigningKey {
    /// A fresh key from the system's generator.
    pub fn generate() -> Result<Self, SignatureError> {
        let mut seed = Zeroizing::new([0u8; 32]);
        getrandom::fill(seed.as_mut()).map_err(|_| SignatureError::NoRandom)?;
        Ok(Self(DalekKey::from_bytes(&seed)))
    }

    /// The key with this 32-byte seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(DalekKey::from_bytes(seed))
    }

    /// The 32-byte seed, for storing the key; wiped when dropped.
    #[must_use]
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.0.to_bytes())
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs the bytes.
    #[must_use]
    pub fn sign(&self, bytes: &[u8]) -> Signature {
        Signature(self.0.sign(bytes).to_bytes())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(public {})", self.public())
    }
}

impl PublicKey {
    /// The key with these bytes; whether it is usable shows at [`PublicKey::verify`].
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether `signature` is this key's over exactly these bytes.
    pub fn verify(&self, bytes: &[u8], signature: &Signature) -> Result<(), SignatureError> {
        let key = VerifyingKey::from_bytes(&self.0).map_err(|_| SignatureError::BadKey)?;
        if key.is_weak() {
            return Err(SignatureError::BadKey);
        }
        key.verify_strict(bytes, &DalekSignature::from_bytes(&signature.0))
            .map_err(|_| SignatureError::Mismatch)
    }
}

impl Signature {
    /// The signature with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// The 64 bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

macro_rules! hex_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = SignatureError;
            fn from_str(text: &str) -> Result<Self, SignatureError> {
                let mut out = Self([0; std::mem::size_of::<Self>()]);
                hex::decode_to_slice(text, &mut out.0).map_err(|_| SignatureError::BadText)?;
                Ok(out)
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
hex_text!(PublicKey);
hex_text!(Signature);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_bytes_and_no_others() {
        let key = SigningKey::generate().unwrap();
        let signature = key.sign(b"yes");
        assert_eq!(key.public().verify(b"yes", &signature), Ok(()));
        assert_eq!(key.public().verify(b"no", &signature), Err(SignatureError::Mismatch));
    }

    #[test]
    fn the_zero_key_is_refused() {
        let signature = SigningKey::from_seed(&[7; 32]).sign(b"x");
        assert_eq!(PublicKey::from_bytes([0; 32]).verify(b"x", &signature), Err(SignatureError::BadKey));
    }

    /// RFC 8032 §7.1, test 2.
    #[test]
    fn rfc_8032_vector_two_is_reproduced() {
        let mut seed = [0u8; 32];
        hex::decode_to_slice("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", &mut seed)
            .unwrap();
        let key = SigningKey::from_seed(&seed);
        assert_eq!(
            key.public().to_string(),
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
        );
        assert_eq!(
            key.sign(&[0x72]).to_string(),
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c\
             387b2eaeb4302aeeb00d291612bb0c00"
        );
    }
}
