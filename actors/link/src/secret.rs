//! The secret of one link: 256 random bits that the host puts into the sandbox's bootstrap line and nowhere else.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of a secret, a nonce and a proof.
pub(crate) const SECRET_BYTES: usize = 32;

/// 32 random bytes, wiped when dropped, compared in constant time, never printed.
#[derive(Clone)]
pub struct LinkSecret(Zeroizing<[u8; SECRET_BYTES]>);

/// Why there is no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The kernel gave no random bytes.
    #[error("the system's random generator does not answer")]
    NoRandomness,
    /// The text is not a secret.
    #[error("the link's secret is not 64 hexadecimal digits")]
    NotASecret,
}

impl LinkSecret {
    /// A new secret from the system's generator.
    pub fn fresh() -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        getrandom::fill(bytes.as_mut()).map_err(|_| SecretError::NoRandomness)?;
        Ok(Self(bytes))
    }

    /// The secret whose text is 64 hexadecimal digits, as the bootstrap line carries it.
    pub fn from_hex(text: &str) -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        hex::decode_to_slice(text, bytes.as_mut()).map_err(|_| SecretError::NotASecret)?;
        Ok(Self(bytes))
    }

    /// The text for the bootstrap line.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(hex::encode(self.0.as_ref()))
    }

    /// HMAC-SHA256 over these parts; the parts must be of fixed length, so that no two lists give the same bytes.
    pub(crate) fn proof(&self, parts: &[&[u8]]) -> [u8; SECRET_BYTES] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `claimed` is the proof over these parts.
    pub(crate) fn proves(&self, parts: &[&[u8]], claimed: &[u8]) -> bool {
        self.mac(parts).verify_slice(claimed).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.0.as_ref()).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

impl PartialEq for LinkSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().ct_eq(other.0.as_ref()).into()
    }
}

impl Eq for LinkSecret {}

impl std::fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkSecret(..)")
    }
}

/// Random bytes that are used once.
pub(crate) fn nonce() -> Result<[u8; SECRET_BYTES], SecretError> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(|_| SecretError::NoRandomness)?;
    Ok(bytes)
}

/// A random text of 256 bits, for the local node's own cookie and name.
pub(crate) fn random_text() -> Result<Zeroizing<String>, SecretError> {
    let mut bytes = nonce()?;
    let text = Zeroizing::new(hex::encode(bytes));
    bytes.zeroize();
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_reads_back_from_its_text_and_is_never_printed() {
        let secret = LinkSecret::fresh().unwrap();
        assert_eq!(LinkSecret::from_hex(&secret.to_hex()), Ok(secret.clone()));
        assert_eq!(format!("{secret:?}"), "LinkSecret(..)");
        assert_ne!(secret, LinkSecret::fresh().unwrap());
    }

    #[test]
    fn what_is_not_64_hexadecimal_digits_is_no_secret() {
        for bad in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64)] {
            assert_eq!(LinkSecret::from_hex(bad), Err(SecretError::NotASecret));
        }
    }

    #[test]
    fn a_proof_holds_for_its_secret_and_its_parts_only() {
        let secret = LinkSecret::fresh().unwrap();
        let proof = secret.proof(&[b"a", b"bc"]);
        assert!(secret.proves(&[b"a", b"bc"], &proof));
        assert!(!secret.proves(&[b"a", b"bd"], &proof));
        assert!(!secret.proves(&[b"a", b"bc"], &proof[..31]));
        assert!(!LinkSecret::fresh().unwrap().proves(&[b"a", b"bc"], &proof));
    }

    #[test]
    fn proofs_are_hmac_sha256_as_published() {
        // RFC 4231, test case 1 has a 20-byte key; padding with zeros to the block size makes it the same key.
        let mut hex_key = "0b".repeat(20);
        hex_key.push_str(&"00".repeat(12));
        let secret = LinkSecret::from_hex(&hex_key).unwrap();
        assert_eq!(
            hex::encode(secret.proof(&[b"Hi There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }
}
