//! COSE receipts (RFC 9942): a proof together with the log's signature of the root it leads to. A receipt of inclusion
//! is detached, so its root is recomputed from the statement; a receipt of consistency carries the newer root. Besides
//! what the RFC asks for, the log signs its name, the subject, the time and the tree's size.

use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, SigningKey};
use coset::cbor::value::Value;
use coset::{CoseSign1Builder, Header, HeaderBuilder, iana};

use crate::cbor::decode;
use crate::envelope::{
    CoseError, Envelope, claim, digest, encode, headers, key_thumbprint, label, open, seal, text, uint,
};
use crate::limits::{MAX_PROOF_HASHES, MAX_RECEIPT_BYTES};
use crate::note::{LogKey, Origin};
use crate::proof::{ConsistencyProof, InclusionProof, ProofError, verify_consistency, verify_inclusion};
use crate::statement::{Statement, StatementError};
use crate::tree::{TreeHead, leaf_hash};

/// RFC9162_SHA256 in the registry of verifiable data structures.
const RFC9162_SHA256: i64 = 1;
/// Inclusion proofs of RFC9162_SHA256.
const INCLUSION: i64 = -1;
/// Consistency proofs of RFC9162_SHA256.
const CONSISTENCY: i64 = -2;

/// Why a receipt was not given, or does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// Its envelope.
    #[error("{0}")]
    Cose(#[from] CoseError),
    /// The statement it is about.
    #[error("{0}")]
    Statement(#[from] StatementError),
    /// Its proof.
    #[error("{0}")]
    Proof(#[from] ProofError),
    /// Its claims.
    #[error(
        "the receipt's claims are incomplete, of the wrong type, another log's, or about another subject"
    )]
    Claims,
    /// A statement without a receipt of the log asked about.
    #[error("the statement carries no receipt of this log; ask the log for one")]
    NoReceipt,
}

/// Who signs for a log.
#[derive(Debug, Clone, Copy)]
pub struct LogSigner<'a> {
    /// The log's name.
    pub origin: &'a Origin,
    /// Its key.
    pub key: &'a SigningKey,
}

impl LogSigner<'_> {
    /// What an auditor needs to verify what is signed here.
    #[must_use]
    pub fn public(&self) -> LogKey {
        LogKey { origin: self.origin.clone(), key: self.key.public() }
    }

    /// The receipt that the statement is in the tree. The proof is checked first: a log never signs a root it has not.
    /// `at` is in seconds since 1970. As RFC 9943 asks, the receipt names the statement's subject.
    pub fn inclusion_receipt(
        &self,
        statement: &[u8],
        proof: &InclusionProof,
        head: &TreeHead,
        at: u64,
    ) -> Result<Vec<u8>, ReceiptError> {
        let statement = Statement::parse(statement)?;
        verify_inclusion(&leaf_hash(statement.registered_bytes()), proof, head)?;
        let subject = &statement.claims().subject;
        let proof = proof_value([proof.size, proof.index], &proof.path)?;
        let receipt = CoseSign1Builder::new()
            .protected(self.protected(subject, head.size, at))
            .unprotected(unprotected(INCLUSION, proof))
            .create_detached_signature(head.root.bytes(), b"", |signed| {
                self.key.sign(signed).bytes().to_vec()
            });
        Ok(seal(receipt.build())?)
    }

    /// The receipt that the tree with head `new` extends that with head `old`, checked first. `at` is in seconds
    /// since 1970.
    pub fn consistency_receipt(
        &self,
        old: &TreeHead,
        new: &TreeHead,
        proof: &ConsistencyProof,
        at: u64,
    ) -> Result<Vec<u8>, ReceiptError> {
        verify_consistency(old, new, proof)?;
        let proof = proof_value([proof.old_size, proof.new_size], &proof.path)?;
        let receipt = CoseSign1Builder::new()
            .protected(self.protected(self.origin.as_str(), new.size, at))
            .unprotected(unprotected(CONSISTENCY, proof))
            .payload(new.root.bytes().to_vec())
            .create_signature(b"", |signed| self.key.sign(signed).bytes().to_vec());
        Ok(seal(receipt.build())?)
    }

    fn protected(&self, subject: &str, size: u64, at: u64) -> Header {
        let claims = vec![
            (Value::from(claim::ISS), Value::from(self.origin.as_str())),
            (Value::from(claim::SUB), Value::from(subject)),
            (Value::from(claim::IAT), Value::from(at)),
        ];
        HeaderBuilder::new()
            .algorithm(iana::Algorithm::EdDSA)
            .key_id(key_thumbprint(&self.key.public()).bytes().to_vec())
            .value(label::CWT_CLAIMS, Value::Map(claims))
            .value(label::VDS, Value::from(RFC9162_SHA256))
            .value(label::TREE_SIZE, Value::from(size))
            .build()
    }
}

fn unprotected(kind: i64, proof: Value) -> Header {
    let proofs = Value::Map(vec![(Value::from(kind), Value::Array(vec![proof]))]);
    HeaderBuilder::new().value(label::VDP, proofs).build()
}

/// `bstr .cbor [first, second, [hashes]]`.
fn proof_value([first, second]: [u64; 2], path: &[Digest]) -> Result<Value, CoseError> {
    let path = path.iter().map(|hash| Value::Bytes(hash.bytes().to_vec())).collect();
    Ok(Value::Bytes(encode(&Value::Array(vec![first.into(), second.into(), Value::Array(path)]))?))
}

/// What a verified receipt says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The tree that it speaks of.
    pub head: TreeHead,
    /// The statement's place in the log.
    pub index: u64,
    /// When the receipt was given, in seconds since 1970.
    pub at: u64,
}

/// A receipt taken apart: what the log claims, and one proof's two numbers and hashes.
struct Opened {
    envelope: Envelope,
    size: u64,
    at: u64,
    numbers: [u64; 2],
    path: Vec<Digest>,
}

fn open_receipt(bytes: &[u8], kind: i64, subject: &str, log: &LogKey) -> Result<Opened, ReceiptError> {
    let known = [label::ALG, label::KID, label::CWT_CLAIMS, label::VDS, label::TREE_SIZE];
    let envelope = open(bytes, MAX_RECEIPT_BYTES, &known, &[label::VDP])?;
    let header = |label| envelope.protected.get(&label).ok_or(CoseError::Header(label));
    if *header(label::VDS)? != Value::from(RFC9162_SHA256) {
        return Err(CoseError::Header(label::VDS).into());
    }
    let size = uint(header(label::TREE_SIZE)?).ok_or(CoseError::Header(label::TREE_SIZE))?;
    let claims = headers(header(label::CWT_CLAIMS)?.clone(), &[claim::ISS, claim::SUB, claim::IAT])?;
    let at = claims.get(&claim::IAT).and_then(uint).ok_or(ReceiptError::Claims)?;
    let is = |key, expected: &str| text(claims.get(&key)).as_deref() == Some(expected);
    if !is(claim::ISS, log.origin.as_str()) || !is(claim::SUB, subject) {
        return Err(ReceiptError::Claims);
    }
    let (numbers, path) = proof_of(&envelope, kind).ok_or(CoseError::Header(label::VDP))?;
    Ok(Opened { envelope, size, at, numbers, path })
}

/// The one proof of this kind.
fn proof_of(envelope: &Envelope, kind: i64) -> Option<([u64; 2], Vec<Digest>)> {
    let proofs = headers(envelope.unprotected.get(&label::VDP)?.clone(), &[kind]).ok()?;
    let [proof] = proofs.get(&kind)?.as_array()?.as_slice() else { return None };
    let proof = decode(proof.as_bytes()?).ok()?;
    let [first, second, path] = proof.as_array()?.as_slice() else { return None };
    let path = path.as_array().filter(|path| path.len() <= MAX_PROOF_HASHES)?;
    let path = path.iter().map(|hash| digest(Some(hash))).collect::<Option<_>>()?;
    Some(([uint(first)?, uint(second)?], path))
}

/// Whether the log included the statement, offline. The statement may carry receipts; whether its issuer signed it is
/// [`Statement::verify`]'s to tell.
pub fn verify_receipt(statement: &[u8], receipt: &[u8], log: &LogKey) -> Result<Registered, ReceiptError> {
    verify_parsed(&Statement::parse(statement)?, receipt, log)
}

fn verify_parsed(statement: &Statement, receipt: &[u8], log: &LogKey) -> Result<Registered, ReceiptError> {
    let subject = &statement.claims().subject;
    let Opened { envelope, size, at, numbers, path } = open_receipt(receipt, INCLUSION, subject, log)?;
    let leaf = leaf_hash(statement.registered_bytes());
    let [claimed, index] = numbers;
    if claimed != size {
        return Err(ProofError::OutOfRange.into());
    }
    let root = InclusionProof { size, index, path }.root(&leaf)?;
    envelope.verify_detached(root.bytes(), &log.key)?;
    Ok(Registered { head: TreeHead { size, root }, index, at })
}

/// The newer tree head to which a receipt of consistency leads from one already trusted.
pub fn verify_consistency_receipt(
    old: &TreeHead,
    receipt: &[u8],
    log: &LogKey,
) -> Result<TreeHead, ReceiptError> {
    let Opened { envelope, size, numbers, path, .. } =
        open_receipt(receipt, CONSISTENCY, log.origin.as_str(), log)?;
    envelope.verify(&log.key)?;
    let root = envelope.sign1.payload.clone().map(Value::Bytes);
    let root = digest(root.as_ref()).ok_or(CoseError::Shape("its payload is not a root"))?;
    let [old_size, new_size] = numbers;
    let new = TreeHead { size, root };
    verify_consistency(old, &new, &ConsistencyProof { old_size, new_size, path })?;
    Ok(new)
}

/// The statement with these receipts attached: a transparent statement (RFC 9943).
pub fn attach_receipts(statement: &[u8], receipts: &[Vec<u8>]) -> Result<Vec<u8>, StatementError> {
    Statement::parse(statement)?.with_receipts(receipts)
}

/// A transparent statement, its issuer's signature and the log's receipt verified. Receipts are attached outside of any
/// signature, so anyone can add some: one of this log that holds is enough, and the others are passed over.
pub fn verify_transparent(
    bytes: &[u8],
    issuer: &PublicKey,
    log: &LogKey,
) -> Result<(Statement, Registered), ReceiptError> {
    let statement = Statement::parse(bytes)?;
    statement.verify(issuer)?;
    let mut fault = None;
    for receipt in statement.receipts() {
        match verify_parsed(&statement, receipt, log) {
            Ok(registered) => return Ok((statement, registered)),
            Err(error) => fault = fault.or(Some(error)),
        }
    }
    Err(fault.unwrap_or(ReceiptError::NoReceipt))
}

#[cfg(test)]
mod tests;
