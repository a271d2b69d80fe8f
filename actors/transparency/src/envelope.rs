//! What statements and receipts have in common: the COSE_Sign1 envelope (RFC 9052 §4.2), Ed25519 only, a key named by
//! its thumbprint (RFC 9679), CWT claims in the protected header (RFC 9597), and no header that is not known here.

use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, Signature};
use coset::cbor::value::Value;
use coset::{CoseSign1, TaggedCborSerializable as _};
use std::collections::BTreeMap;

use crate::cbor::{CborError, decode};
use crate::limits::MAX_TEXT_BYTES;

/// Header labels and their registries' sources.
pub(crate) mod label {
    /// Signature algorithm (RFC 9052).
    pub(crate) const ALG: i64 = 1;
    /// Content type of the payload (RFC 9052).
    pub(crate) const CONTENT_TYPE: i64 = 3;
    /// Key identifier (RFC 9052).
    pub(crate) const KID: i64 = 4;
    /// CWT claims (RFC 9597).
    pub(crate) const CWT_CLAIMS: i64 = 15;
    /// The hash function whose digest the payload is (RFC 9995).
    pub(crate) const PAYLOAD_HASH_ALG: i64 = 258;
    /// Content type of what was hashed (RFC 9995).
    pub(crate) const PREIMAGE_CONTENT_TYPE: i64 = 259;
    /// Receipts of a transparent statement (RFC 9942).
    pub(crate) const RECEIPTS: i64 = 394;
    /// The verifiable data structure (RFC 9942).
    pub(crate) const VDS: i64 = 395;
    /// Its proofs (RFC 9942).
    pub(crate) const VDP: i64 = 396;
    /// The size of the tree whose root a receipt signs. RFC 9942 leaves it unsigned, and one root can be reached by
    /// proofs that claim different sizes; this label, from the range left to applications, puts it under the signature.
    pub(crate) const TREE_SIZE: i64 = -70_001;
}

/// CWT claim keys (RFC 8392).
pub(crate) mod claim {
    /// Issuer.
    pub(crate) const ISS: i64 = 1;
    /// Subject.
    pub(crate) const SUB: i64 = 2;
    /// Issued at, in seconds since 1970.
    pub(crate) const IAT: i64 = 6;
}

/// EdDSA in the registry of algorithms.
const EDDSA: i64 = -8;

/// What is wrong with an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CoseError {
    /// Longer than any legal one.
    #[error("the document is larger than the {0} bytes allowed")]
    TooLarge(usize),
    /// Not the CBOR that is read here.
    #[error("{0}")]
    Cbor(#[from] CborError),
    /// CBOR, but not a COSE_Sign1 of the expected kind.
    #[error("not a COSE_Sign1 of the expected kind: {0}")]
    Shape(&'static str),
    /// A header that is missing, of the wrong type, or has no place here.
    #[error("the header {0} is missing, of the wrong type, or has no place here")]
    Header(i64),
    /// Signed by another key than the one given.
    #[error("the document names another key than the one given")]
    OtherKey,
    /// The signature does not match.
    #[error("the signature does not match: the document was changed, or signed by another key")]
    Signature,
    /// A text too long, or empty, to stand in a header.
    #[error("a text in the protected header is empty or longer than {MAX_TEXT_BYTES} bytes")]
    Text,
    /// The encoder gave up, which no value built here makes it do.
    #[error("the document could not be encoded")]
    Encode,
}

/// The SHA-256 thumbprint of an Ed25519 key as a COSE key (RFC 9679): the `kid` of everything signed here.
#[must_use]
pub fn key_thumbprint(key: &PublicKey) -> Digest {
    // The deterministic encoding of {1: 1 (OKP), -1: 6 (Ed25519), -2: the key}.
    let mut bytes = vec![0xa3, 0x01, 0x01, 0x20, 0x06, 0x21, 0x58, 0x20];
    bytes.extend_from_slice(key.bytes());
    Digest::of(&bytes)
}

/// A header or claims map with integer keys.
pub(crate) type Headers = BTreeMap<i64, Value>;

/// An envelope taken apart. Nothing in it is verified yet.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    pub(crate) protected: Headers,
    pub(crate) unprotected: Headers,
    /// The key's thumbprint.
    pub(crate) kid: Digest,
    /// The envelope as the COSE library knows it, for the bytes that are signed.
    pub(crate) sign1: CoseSign1,
}

/// Takes an envelope apart. Only the labels given may occur, so the COSE library never sees a header that it would
/// follow further, such as nested counter signatures.
pub(crate) fn open(
    bytes: &[u8],
    most: usize,
    protected: &[i64],
    unprotected: &[i64],
) -> Result<Envelope, CoseError> {
    if bytes.len() > most {
        return Err(CoseError::TooLarge(most));
    }
    let Value::Tag(_, inner) = decode(bytes)? else { return Err(CoseError::Shape("no tag")) };
    let Value::Array(parts) = *inner else { return Err(CoseError::Shape("not an array")) };
    let Ok([Value::Bytes(signed), open, _, Value::Bytes(signature)]) = <[Value; 4]>::try_from(parts) else {
        return Err(CoseError::Shape("not the four parts"));
    };
    if signature.len() != 64 {
        return Err(CoseError::Shape("not an Ed25519 signature"));
    }
    let protected = headers(decode(&signed)?, protected)?;
    let unprotected = headers(open, unprotected)?;
    if protected.get(&label::ALG) != Some(&Value::from(EDDSA)) {
        return Err(CoseError::Header(label::ALG));
    }
    let kid = digest(protected.get(&label::KID)).ok_or(CoseError::Header(label::KID))?;
    let sign1 =
        CoseSign1::from_tagged_slice(bytes).map_err(|_| CoseError::Shape("headers of the wrong type"))?;
    Ok(Envelope { protected, unprotected, kid, sign1 })
}

impl Envelope {
    fn check(&self, signed: &[u8], key: &PublicKey) -> Result<(), CoseError> {
        if self.kid != key_thumbprint(key) {
            return Err(CoseError::OtherKey);
        }
        let bytes = self.sign1.signature.as_slice().try_into().map_err(|_| CoseError::Signature)?;
        key.verify(signed, &Signature::from_bytes(bytes)).map_err(|_| CoseError::Signature)
    }

    /// Whether the key signed it with the payload it carries.
    pub(crate) fn verify(&self, key: &PublicKey) -> Result<(), CoseError> {
        if self.sign1.payload.is_none() {
            return Err(CoseError::Shape("no payload"));
        }
        self.check(&self.sign1.tbs_data(b""), key)
    }

    /// Whether the key signed it with this payload, which it does not carry.
    pub(crate) fn verify_detached(&self, payload: &[u8], key: &PublicKey) -> Result<(), CoseError> {
        if self.sign1.payload.is_some() {
            return Err(CoseError::Shape("a payload where none belongs"));
        }
        self.check(&self.sign1.tbs_detached_data(payload, b""), key)
    }
}

/// A map whose keys are all among the labels.
pub(crate) fn headers(map: Value, labels: &[i64]) -> Result<Headers, CoseError> {
    let Value::Map(entries) = map else { return Err(CoseError::Shape("a header is not a map")) };
    let mut headers = Headers::new();
    for (key, value) in entries {
        let key = int(&key).ok_or(CoseError::Shape("a header label is not an integer"))?;
        if !labels.contains(&key) {
            return Err(CoseError::Header(key));
        }
        headers.insert(key, value);
    }
    Ok(headers)
}

pub(crate) fn int(value: &Value) -> Option<i64> {
    value.as_integer().and_then(|int| i64::try_from(int).ok())
}

pub(crate) fn uint(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|int| u64::try_from(int).ok())
}

pub(crate) fn digest(value: Option<&Value>) -> Option<Digest> {
    let bytes = value?.as_bytes()?;
    Some(Digest::from_bytes(bytes.as_slice().try_into().ok()?))
}

/// A text within bounds.
pub(crate) fn text(value: Option<&Value>) -> Option<String> {
    let text = value?.as_text()?;
    check_text(text).ok()?;
    Some(text.to_owned())
}

pub(crate) fn check_text(text: &str) -> Result<(), CoseError> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES { Err(CoseError::Text) } else { Ok(()) }
}

/// The encoding of a value built here.
pub(crate) fn encode(value: &Value) -> Result<Vec<u8>, CoseError> {
    let mut bytes = Vec::new();
    coset::cbor::ser::into_writer(value, &mut bytes).map_err(|_| CoseError::Encode)?;
    Ok(bytes)
}

/// The encoding of an envelope built here.
pub(crate) fn seal(sign1: CoseSign1) -> Result<Vec<u8>, CoseError> {
    sign1.to_tagged_vec().map_err(|_| CoseError::Encode)
}
