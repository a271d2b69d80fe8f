//! Signed statements (RFC 9943 §6): a COSE_Sign1 over one record, whole or as the hash of it. The same claims, payload
//! and key always give the same bytes, so a statement need not be stored beside the entry it speaks of.

use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, SigningKey};
use coset::cbor::value::Value;
use coset::{CoseSign1, CoseSign1Builder, HeaderBuilder, iana};

use crate::envelope::{
    CoseError, Envelope, check_text, claim, digest, int, key_thumbprint, label, open, seal, text, uint,
};
use crate::limits::{MAX_RECEIPT_BYTES, MAX_RECEIPTS, MAX_STATEMENT_BYTES};

/// SHA-256 in the registry of COSE algorithms.
const SHA_256: i64 = -16;
/// The claim with an entry's place in its workspace's log.
const SEQ_CLAIM: &str = "chap_seq";
/// The claim with the chain's head before the entry.
const PREV_HASH_CLAIM: &str = "chap_prev_hash";

/// What is wrong with a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// Its envelope.
    #[error("{0}")]
    Cose(#[from] CoseError),
    /// Its claims.
    #[error("the statement's claims are incomplete, of the wrong type, or not known here")]
    Claims,
    /// Its payload is not what its headers say.
    #[error("the statement's payload is not what its headers say")]
    Payload,
    /// It speaks of another record.
    #[error("the statement speaks of another record than the one given")]
    OtherRecord,
}

/// Where a record stands in its workspace's log (digest §3.3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// Its place, from 0.
    pub seq: u64,
    /// The chain's head before it, when the log is chained.
    pub prev_hash: Option<String>,
}

/// What the issuer says about the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Who says it.
    pub issuer: String,
    /// What it is about: a workspace's id for evidence.
    pub subject: String,
    /// When the record arrived, in seconds since 1970.
    pub issued_at: Option<u64>,
    /// Where the record stands.
    pub position: Option<Position>,
}

/// What is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// The record itself.
    Record {
        /// Its media type.
        content_type: String,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Its SHA-256 only (a hash envelope, RFC 9995), which discloses nothing.
    Hash {
        /// The media type of what was hashed.
        content_type: String,
        /// The hash.
        digest: Digest,
    },
}

/// A statement taken apart. [`Statement::verify`] tells whether its issuer's key signed it.
#[derive(Debug, Clone)]
pub struct Statement {
    claims: Claims,
    payload: Payload,
    receipts: Vec<Vec<u8>>,
    registered: Vec<u8>,
    envelope: Envelope,
}

/// Signs a statement; the bytes are what is appended to the log.
pub fn sign_statement(
    claims: &Claims,
    payload: &Payload,
    key: &SigningKey,
) -> Result<Vec<u8>, StatementError> {
    let kid = key_thumbprint(&key.public());
    let mut header = HeaderBuilder::new().algorithm(iana::Algorithm::EdDSA).key_id(kid.bytes().to_vec());
    let cwt = encode_claims(claims)?;
    let body = match payload {
        Payload::Record { content_type, bytes } => {
            check_text(content_type)?;
            header = header.content_type(content_type.clone()).value(label::CWT_CLAIMS, cwt);
            bytes.clone()
        }
        Payload::Hash { content_type, digest } => {
            check_text(content_type)?;
            header = header
                .value(label::CWT_CLAIMS, cwt)
                .value(label::PAYLOAD_HASH_ALG, Value::from(SHA_256))
                .value(label::PREIMAGE_CONTENT_TYPE, Value::from(content_type.as_str()));
            digest.bytes().to_vec()
        }
    };
    let bytes = seal(
        CoseSign1Builder::new()
            .protected(header.build())
            .payload(body)
            .create_signature(b"", |signed| key.sign(signed).bytes().to_vec())
            .build(),
    )?;
    if bytes.len() > MAX_STATEMENT_BYTES {
        return Err(CoseError::TooLarge(MAX_STATEMENT_BYTES).into());
    }
    Ok(bytes)
}

fn encode_claims(claims: &Claims) -> Result<Value, StatementError> {
    check_text(&claims.issuer)?;
    check_text(&claims.subject)?;
    let mut map = vec![
        (Value::from(claim::ISS), Value::from(claims.issuer.as_str())),
        (Value::from(claim::SUB), Value::from(claims.subject.as_str())),
    ];
    if let Some(at) = claims.issued_at {
        map.push((Value::from(claim::IAT), Value::from(at)));
    }
    if let Some(position) = &claims.position {
        map.push((Value::from(SEQ_CLAIM), Value::from(position.seq)));
        if let Some(prev_hash) = &position.prev_hash {
            check_text(prev_hash)?;
            map.push((Value::from(PREV_HASH_CLAIM), Value::from(prev_hash.as_str())));
        }
    }
    Ok(Value::Map(map))
}

fn decode_claims(value: Option<&Value>) -> Option<Claims> {
    let (mut issuer, mut subject, mut issued_at, mut seq, mut prev_hash) = (None, None, None, None, None);
    for (key, value) in value?.as_map()? {
        match (int(key), key.as_text()) {
            (Some(claim::ISS), _) => issuer = Some(text(Some(value))?),
            (Some(claim::SUB), _) => subject = Some(text(Some(value))?),
            (Some(claim::IAT), _) => issued_at = Some(uint(value)?),
            (_, Some(SEQ_CLAIM)) => seq = Some(uint(value)?),
            (_, Some(PREV_HASH_CLAIM)) => prev_hash = Some(text(Some(value))?),
            _ => return None,
        }
    }
    let position = match (seq, prev_hash) {
        (Some(seq), prev_hash) => Some(Position { seq, prev_hash }),
        (None, None) => None,
        (None, Some(_)) => return None,
    };
    Some(Claims { issuer: issuer?, subject: subject?, issued_at, position })
}

impl Statement {
    /// Takes a statement apart, with or without receipts attached.
    pub fn parse(bytes: &[u8]) -> Result<Self, StatementError> {
        let known = [
            label::ALG,
            label::CONTENT_TYPE,
            label::KID,
            label::CWT_CLAIMS,
            label::PAYLOAD_HASH_ALG,
            label::PREIMAGE_CONTENT_TYPE,
        ];
        let envelope = open(bytes, MAX_STATEMENT_BYTES, &known, &[label::RECEIPTS])?;
        let header = |label| envelope.protected.get(&label);
        let claims = decode_claims(header(label::CWT_CLAIMS)).ok_or(StatementError::Claims)?;
        let body = envelope.sign1.payload.clone().ok_or(StatementError::Payload)?;
        let payload = match (header(label::PAYLOAD_HASH_ALG), header(label::CONTENT_TYPE)) {
            (None, Some(kind)) if header(label::PREIMAGE_CONTENT_TYPE).is_none() => Payload::Record {
                content_type: text(Some(kind)).ok_or(StatementError::Payload)?,
                bytes: body,
            },
            (Some(hash), None) if int(hash) == Some(SHA_256) => Payload::Hash {
                content_type: text(header(label::PREIMAGE_CONTENT_TYPE)).ok_or(StatementError::Payload)?,
                digest: digest(Some(&Value::Bytes(body))).ok_or(StatementError::Payload)?,
            },
            _ => return Err(StatementError::Payload),
        };
        let receipts = match envelope.unprotected.get(&label::RECEIPTS) {
            None => Vec::new(),
            Some(list) => receipt_list(list)?,
        };
        let registered = if receipts.is_empty() { bytes.to_vec() } else { seal(bare(&envelope.sign1))? };
        Ok(Self { claims, payload, receipts, registered, envelope })
    }

    /// Whether this key signed it.
    pub fn verify(&self, issuer: &PublicKey) -> Result<(), StatementError> {
        Ok(self.envelope.verify(issuer)?)
    }

    /// Whether it speaks of exactly this record.
    pub fn speaks_of(&self, record: &[u8]) -> Result<(), StatementError> {
        self.speaks_of_digest(&Digest::of(record))
    }

    /// Whether it speaks of the record with this SHA-256.
    pub fn speaks_of_digest(&self, record: &Digest) -> Result<(), StatementError> {
        let same = match &self.payload {
            Payload::Record { bytes, .. } => Digest::of(bytes) == *record,
            Payload::Hash { digest, .. } => digest == record,
        };
        if same { Ok(()) } else { Err(StatementError::OtherRecord) }
    }

    /// What its issuer says. Worth nothing before [`Statement::verify`].
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// What is signed. Worth nothing before [`Statement::verify`].
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The thumbprint of the key it names.
    #[must_use]
    pub fn kid(&self) -> Digest {
        self.envelope.kid
    }

    /// The receipts attached to it, as bytes.
    #[must_use]
    pub fn receipts(&self) -> &[Vec<u8>] {
        &self.receipts
    }

    /// Its bytes without receipts: the leaf that the log holds.
    #[must_use]
    pub fn registered_bytes(&self) -> &[u8] {
        &self.registered
    }

    /// Its bytes with these receipts attached instead of those it had.
    pub(crate) fn with_receipts(&self, receipts: &[Vec<u8>]) -> Result<Vec<u8>, StatementError> {
        let list = Value::Array(receipts.iter().map(|receipt| Value::Bytes(receipt.clone())).collect());
        receipt_list(&list)?;
        let mut sign1 = bare(&self.envelope.sign1);
        sign1.unprotected.rest.push((coset::Label::Int(label::RECEIPTS), list));
        let bytes = seal(sign1)?;
        if bytes.len() > MAX_STATEMENT_BYTES {
            return Err(CoseError::TooLarge(MAX_STATEMENT_BYTES).into());
        }
        Ok(bytes)
    }
}

/// The envelope without what is not signed.
fn bare(sign1: &CoseSign1) -> CoseSign1 {
    CoseSign1 { unprotected: coset::Header::default(), ..sign1.clone() }
}

fn receipt_list(list: &Value) -> Result<Vec<Vec<u8>>, CoseError> {
    let receipts = list.as_array().filter(|list| (1..=MAX_RECEIPTS).contains(&list.len()));
    let receipts = receipts.ok_or(CoseError::Header(label::RECEIPTS))?;
    let bytes = |item: &Value| item.as_bytes().filter(|bytes| bytes.len() <= MAX_RECEIPT_BYTES).cloned();
    receipts.iter().map(|item| bytes(item).ok_or(CoseError::Header(label::RECEIPTS))).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn key() -> SigningKey {
        SigningKey::from_seed(&[5; 32])
    }

    pub(crate) fn claims() -> Claims {
        Claims {
            issuer: "service:coordinator".into(),
            subject: "wsp_a".into(),
            issued_at: Some(1_790_000_000),
            position: Some(Position { seq: 7, prev_hash: Some(format!("sha256:{}", Digest::ZERO)) }),
        }
    }

    pub(crate) fn both() -> [Payload; 2] {
        let (content_type, bytes) = ("application/chap+json".to_owned(), b"{\"a\":1}".to_vec());
        let digest = Digest::of(&bytes);
        [
            Payload::Record { content_type: content_type.clone(), bytes },
            Payload::Hash { content_type, digest },
        ]
    }

    #[test]
    fn a_statement_tells_what_was_signed() {
        for payload in both() {
            let bytes = sign_statement(&claims(), &payload, &key()).unwrap();
            let statement = Statement::parse(&bytes).unwrap();
            assert_eq!(statement.verify(&key().public()), Ok(()));
            assert_eq!((statement.claims(), statement.payload()), (&claims(), &payload));
            assert_eq!(statement.kid(), key_thumbprint(&key().public()));
            assert_eq!(statement.speaks_of(b"{\"a\":1}"), Ok(()));
            assert_eq!(statement.speaks_of(b"{\"a\":2}"), Err(StatementError::OtherRecord));
            assert_eq!(statement.registered_bytes(), bytes);
        }
    }

    #[test]
    fn a_statement_is_tagged_and_signs_the_sig_structure_of_rfc_9052() {
        let [payload, _] = both();
        let bytes = sign_statement(&claims(), &payload, &key()).unwrap();
        assert_eq!(&bytes[..2], [0xd2, 0x84]);
        let sign1 = <CoseSign1 as coset::TaggedCborSerializable>::from_tagged_slice(&bytes).unwrap();
        let protected = sign1.protected.clone().original_data.unwrap();
        let structure = Value::Array(vec![
            Value::from("Signature1"),
            Value::Bytes(protected),
            Value::Bytes(Vec::new()),
            Value::Bytes(sign1.payload.clone().unwrap()),
        ]);
        let signed = crate::envelope::encode(&structure).unwrap();
        assert_eq!(key().sign(&signed).bytes().as_slice(), sign1.signature);
    }

    #[test]
    fn the_same_claims_give_the_same_bytes() {
        for payload in both() {
            let once = sign_statement(&claims(), &payload, &key()).unwrap();
            assert_eq!(sign_statement(&claims(), &payload, &key()).unwrap(), once);
        }
    }

    #[test]
    fn no_changed_byte_of_a_statement_passes() {
        for payload in both() {
            let good = sign_statement(&claims(), &payload, &key()).unwrap();
            for at in 0..good.len() {
                let bit = at % 8;
                let mut bytes = good.clone();
                bytes[at] ^= 1 << bit;
                let passed = Statement::parse(&bytes).and_then(|s| s.verify(&key().public()));
                assert!(passed.is_err(), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn another_key_is_told_apart_from_a_broken_signature() {
        let [payload, _] = both();
        let statement = Statement::parse(&sign_statement(&claims(), &payload, &key()).unwrap()).unwrap();
        let other = SigningKey::from_seed(&[6; 32]).public();
        assert_eq!(statement.verify(&other), Err(CoseError::OtherKey.into()));
    }

    #[test]
    fn texts_and_payloads_over_their_bounds_are_not_signed() {
        let [payload, _] = both();
        for issuer in [String::new(), "x".repeat(1025)] {
            let claims = Claims { issuer, ..claims() };
            assert_eq!(sign_statement(&claims, &payload, &key()), Err(CoseError::Text.into()));
        }
        let bytes = vec![0; MAX_STATEMENT_BYTES];
        let payload = Payload::Record { content_type: "a/b".into(), bytes };
        assert!(sign_statement(&claims(), &payload, &key()).is_err());
    }

    #[test]
    fn headers_that_have_no_place_are_refused() {
        let build = |header: HeaderBuilder| {
            let header = header.algorithm(iana::Algorithm::EdDSA).key_id(vec![0; 32]);
            let sign1 =
                CoseSign1Builder::new().protected(header.build()).payload(vec![]).signature(vec![0; 64]);
            Statement::parse(&seal(sign1.build()).unwrap()).unwrap_err()
        };
        let claims = encode_claims(&claims()).unwrap();
        let full = || HeaderBuilder::new().content_type("a/b".into()).value(15, claims.clone());
        assert_eq!(build(full().value(395, Value::from(1))), CoseError::Header(395).into());
        assert_eq!(build(full().value(258, Value::from(-16))), StatementError::Payload);
        assert_eq!(build(HeaderBuilder::new().content_type("a/b".into())), StatementError::Claims);
        let counter = coset::CoseSignatureBuilder::new().signature(vec![0; 64]).build();
        assert_eq!(build(full().add_counter_signature(counter)), CoseError::Header(7).into());
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Statement::parse(&bytes).and_then(|s| s.verify(&key().public())).is_err());
        }

        #[test]
        fn a_statement_cut_or_spliced_is_judged_without_a_panic(
            cut in 0usize..300, junk in proptest::collection::vec(any::<u8>(), 0..40), which in 0usize..2,
        ) {
            let mut bytes = sign_statement(&claims(), &both()[which], &key()).unwrap();
            let good = bytes.clone();
            bytes.truncate(cut);
            bytes.extend(junk);
            if bytes != good {
                prop_assert!(Statement::parse(&bytes).and_then(|s| s.verify(&key().public())).is_err());
            }
        }
    }
}
