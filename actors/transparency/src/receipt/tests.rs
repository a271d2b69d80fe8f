use super::*;
use crate::limits::MAX_TEXT_BYTES;
use crate::proof::{ConsistencyPlan, InclusionPlan};
use crate::statement::tests::{both, claims, key};
use crate::statement::{Claims, Position, sign_statement};
use crate::tree::{Frontier, MemoryNodes};
use proptest::prelude::*;

/// A log of `count` statements with everything stored.
struct Log {
    origin: Origin,
    key: SigningKey,
    frontier: Frontier,
    nodes: MemoryNodes,
    statements: Vec<Vec<u8>>,
    heads: Vec<TreeHead>,
}

impl Log {
    fn of(count: u64) -> Self {
        let (mut frontier, mut nodes) = (Frontier::new(), MemoryNodes::default());
        let (mut statements, mut heads) = (Vec::new(), vec![frontier.head()]);
        for seq in 0..count {
            let claims = Claims { position: Some(Position { seq, prev_hash: None }), ..claims() };
            let statement = sign_statement(&claims, &both()[1], &key()).unwrap();
            nodes.extend(frontier.append(leaf_hash(&statement)).unwrap());
            statements.push(statement);
            heads.push(frontier.head());
        }
        let origin = Origin::new("coordinator.example/evidence").unwrap();
        Self { origin, key: SigningKey::from_seed(&[9; 32]), frontier, nodes, statements, heads }
    }

    fn signer(&self) -> LogSigner<'_> {
        LogSigner { origin: &self.origin, key: &self.key }
    }

    fn receipt(&self, index: usize) -> Vec<u8> {
        let head = self.frontier.head();
        let proof = InclusionPlan::new(index as u64, head.size).unwrap().finish(&self.nodes).unwrap();
        self.signer().inclusion_receipt(&self.statements[index], &proof, &head, 1_790_000_001).unwrap()
    }

    fn consistency(&self, old: usize) -> Vec<u8> {
        let head = self.frontier.head();
        let proof = ConsistencyPlan::new(old as u64, head.size).unwrap().finish(&self.nodes).unwrap();
        self.signer().consistency_receipt(&self.heads[old], &head, &proof, 1).unwrap()
    }
}

#[test]
fn every_statement_of_a_log_has_a_receipt_that_verifies() {
    for count in [1, 2, 3, 7, 8, 20] {
        let log = Log::of(count);
        for (index, statement) in log.statements.iter().enumerate() {
            let found = verify_receipt(statement, &log.receipt(index), &log.signer().public()).unwrap();
            let (head, index) = (log.frontier.head(), index as u64);
            assert_eq!(found, Registered { head, index, at: 1_790_000_001 });
        }
    }
}

#[test]
fn a_receipt_for_one_statement_does_not_hold_for_another() {
    let log = Log::of(9);
    let receipt = log.receipt(3);
    for (index, statement) in log.statements.iter().enumerate() {
        assert_eq!(verify_receipt(statement, &receipt, &log.signer().public()).is_ok(), index == 3);
    }
}

#[test]
fn no_changed_byte_of_a_receipt_passes() {
    let log = Log::of(7);
    for index in [2, 6] {
        let receipt = log.receipt(index);
        for at in 0..receipt.len() {
            let bit = at % 8;
            let mut changed = receipt.clone();
            changed[at] ^= 1 << bit;
            let verdict = verify_receipt(&log.statements[index], &changed, &log.signer().public());
            assert!(verdict.is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn a_proof_that_claims_another_tree_size_is_refused_though_the_root_is_the_same() {
    let log = Log::of(7);
    let leaf = leaf_hash(&log.statements[0]);
    let proof = InclusionPlan::new(0, 7).unwrap().finish(&log.nodes).unwrap();
    // Sizes 5 to 8 give the first leaf a path of the same shape.
    let other = InclusionProof { size: 6, ..proof.clone() };
    assert_eq!(proof.root(&leaf), other.root(&leaf));
    let head = TreeHead { size: 6, ..log.frontier.head() };
    let forged = log.signer().inclusion_receipt(&log.statements[0], &other, &head, 1).unwrap();
    let honest = log.signer().inclusion_receipt(&log.statements[0], &proof, &log.frontier.head(), 1).unwrap();
    let mut mixed = open(&honest, MAX_RECEIPT_BYTES, &[1, 4, 15, 395, -70_001], &[396]).unwrap().sign1;
    mixed.unprotected =
        open(&forged, MAX_RECEIPT_BYTES, &[1, 4, 15, 395, -70_001], &[396]).unwrap().sign1.unprotected;
    let verdict = verify_receipt(&log.statements[0], &seal(mixed).unwrap(), &log.signer().public());
    assert_eq!(verdict, Err(ProofError::OutOfRange.into()));
}

#[test]
fn a_root_that_the_log_has_not_is_never_signed() {
    let log = Log::of(4);
    let proof = InclusionPlan::new(1, 4).unwrap().finish(&log.nodes).unwrap();
    let wrong = log.signer().inclusion_receipt(
        &sign_statement(&claims(), &both()[0], &key()).unwrap(),
        &proof,
        &log.frontier.head(),
        1,
    );
    assert_eq!(wrong, Err(ProofError::WrongRoot.into()));
}

#[test]
fn a_receipt_of_consistency_leads_to_the_newer_head() {
    let log = Log::of(11);
    for (old, head) in log.heads.iter().enumerate() {
        let receipt = log.consistency(old);
        let public = log.signer().public();
        assert_eq!(verify_consistency_receipt(head, &receipt, &public), Ok(log.frontier.head()));
        if old > 0 {
            let forked = TreeHead { root: Digest::of(b"fork"), ..*head };
            assert!(verify_consistency_receipt(&forked, &receipt, &public).is_err());
        }
    }
}

#[test]
fn no_changed_byte_of_a_consistency_receipt_passes() {
    let log = Log::of(7);
    let receipt = log.consistency(3);
    for at in 0..receipt.len() {
        let bit = at % 8;
        let mut changed = receipt.clone();
        changed[at] ^= 1 << bit;
        let verdict = verify_consistency_receipt(&log.heads[3], &changed, &log.signer().public());
        assert!(verdict.is_err(), "byte {at}, bit {bit}");
    }
}

#[test]
fn a_transparent_statement_proves_issuer_and_log_in_one_document() {
    let (log, other) = (Log::of(5), Log::of(3));
    let mut other = other;
    other.origin = Origin::new("other.example").unwrap();
    other.key = SigningKey::from_seed(&[8; 32]);
    let foreign = other.receipt(2);
    let receipts = [foreign.clone(), log.receipt(2)];
    let whole = attach_receipts(&log.statements[2], &receipts).unwrap();
    let (issuer, public) = (key().public(), log.signer().public());
    let (statement, registered) = verify_transparent(&whole, &issuer, &public).unwrap();
    assert_eq!(registered.index, 2);
    assert_eq!(statement.registered_bytes(), log.statements[2]);
    assert_eq!(statement.receipts(), receipts);
    assert!(verify_receipt(&whole, &receipts[1], &public).is_ok());
    let none = verify_transparent(&log.statements[2], &issuer, &public).map(|_| ());
    assert_eq!(none, Err(ReceiptError::NoReceipt));
    let foreign = attach_receipts(&log.statements[2], &[foreign]).unwrap();
    assert!(verify_transparent(&foreign, &issuer, &public).is_err());
    assert!(verify_transparent(&whole, &other.key.public(), &public).is_err());
}

#[test]
fn no_changed_byte_of_a_transparent_statement_passes() {
    let log = Log::of(5);
    let whole = attach_receipts(&log.statements[2], &[log.receipt(2)]).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        let verdict = verify_transparent(&changed, &key().public(), &log.signer().public());
        assert!(verdict.is_err(), "byte {at}");
    }
}

#[test]
fn receipts_beyond_their_bounds_are_not_attached() {
    let log = Log::of(1);
    assert!(attach_receipts(&log.statements[0], &[]).is_err());
    assert!(attach_receipts(&log.statements[0], &vec![vec![]; 17]).is_err());
    assert!(attach_receipts(&log.statements[0], &[vec![0; MAX_RECEIPT_BYTES + 1]]).is_err());
}

#[test]
fn the_longest_receipt_fits_its_bound() {
    let log = Log::of(1);
    let head = TreeHead { size: crate::limits::MAX_TREE_SIZE, root: Digest::ZERO };
    let path = vec![Digest::ZERO; MAX_PROOF_HASHES];
    let receipt = CoseSign1Builder::new()
        .protected(log.signer().protected(&"x".repeat(MAX_TEXT_BYTES), head.size, u64::MAX))
        .unprotected(unprotected(INCLUSION, proof_value([head.size, head.size - 1], &path).unwrap()))
        .signature(vec![0; 64])
        .build();
    assert!(seal(receipt).unwrap().len() < MAX_RECEIPT_BYTES);
}

proptest! {
    #[test]
    fn any_bytes_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let log = Log::of(1);
        let public = log.signer().public();
        prop_assert!(verify_receipt(&log.statements[0], &bytes, &public).is_err());
        prop_assert!(verify_consistency_receipt(&log.frontier.head(), &bytes, &public).is_err());
    }
}

/// Both documents were verified with two independent COSE and CBOR implementations; this keeps them as they are.
#[test]
fn the_bytes_of_a_statement_and_its_receipt_stay_what_they_are() {
    let log = Log::of(5);
    assert_eq!(
        Digest::of(&log.statements[2]).to_string(),
        "8912054a849fdeee06b67a7910eb20f4f50d1fa64dd0012aead7c77fc28b23fd"
    );
    assert_eq!(
        Digest::of(&log.receipt(2)).to_string(),
        "4a7c82a126c22f52b75453f07fa4103ad4b69abfe1e156793b5f2c65d5536f4b"
    );
}
