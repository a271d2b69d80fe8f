//! Inclusion and consistency proofs (RFC 9162 §2.1.3 and §2.1.4). A plan says which stored nodes a proof needs; with
//! them it becomes the proof. Verifying needs nothing but the proof.

use choir_messages::chain::Digest;
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_PROOF_HASHES, MAX_TREE_SIZE};
use crate::tree::{NodeId, NodeSource, TreeError, TreeHead, cover, empty_root, fold, node_hash};

/// Why a proof does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The leaf or the older tree lies outside the tree.
    #[error("the proof speaks of a leaf or size outside the tree")]
    OutOfRange,
    /// More or fewer hashes than a proof between these places has.
    #[error("the proof has the wrong number of hashes for its place in the tree")]
    WrongLength,
    /// It leads to another root.
    #[error("the proof leads to another root: the statement, the proof or the tree head was changed")]
    WrongRoot,
}

/// That a leaf is in the tree of some size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InclusionProof {
    /// The tree's size.
    pub size: u64,
    /// The leaf's place, from 0.
    pub index: u64,
    /// Sibling hashes from the leaf to the root.
    pub path: Vec<Digest>,
}

/// That a tree is an extension of an older one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsistencyProof {
    /// The older tree's size.
    pub old_size: u64,
    /// The newer tree's size.
    pub new_size: u64,
    /// The hashes of RFC 9162 §2.1.4.1; none if either tree is empty or both have one size.
    pub path: Vec<Digest>,
}

/// What an inclusion proof is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InclusionPlan {
    size: u64,
    index: u64,
    parts: Vec<Vec<NodeId>>,
}

/// What a consistency proof is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsistencyPlan {
    old_size: u64,
    new_size: u64,
    parts: Vec<Vec<NodeId>>,
}

/// The size of the left subtree of a tree with `size` > 1 leaves: the largest power of two below it.
fn left_size(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}

/// Each part's hash, from the stored nodes.
fn assemble(parts: &[Vec<NodeId>], nodes: &impl NodeSource) -> Result<Vec<Digest>, TreeError> {
    parts
        .iter()
        .map(|part| {
            let peaks = part.iter().map(|id| nodes.node(*id).ok_or(TreeError::MissingNode(*id)));
            let peaks = peaks.collect::<Result<Vec<_>, _>>()?;
            Ok(fold(&peaks).unwrap_or_else(empty_root))
        })
        .collect()
}

impl InclusionPlan {
    /// The plan for leaf `index` in the tree of `size` leaves.
    pub fn new(index: u64, size: u64) -> Result<Self, TreeError> {
        if index >= size || size > MAX_TREE_SIZE {
            return Err(TreeError::OutOfRange { asked: index, size });
        }
        let (mut begin, mut end, mut parts) = (0, size, Vec::new());
        while end - begin > 1 {
            let middle = begin + left_size(end - begin);
            if index < middle {
                parts.push(cover(middle, end));
                end = middle;
            } else {
                parts.push(cover(begin, middle));
                begin = middle;
            }
        }
        parts.reverse();
        Ok(Self { size, index, parts })
    }

    /// The stored nodes it needs: fewer than 110, whatever the tree's size.
    pub fn needs(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.parts.iter().flatten().copied()
    }

    /// The proof.
    pub fn finish(&self, nodes: &impl NodeSource) -> Result<InclusionProof, TreeError> {
        Ok(InclusionProof { size: self.size, index: self.index, path: assemble(&self.parts, nodes)? })
    }
}

impl ConsistencyPlan {
    /// The plan from the tree of `old_size` leaves to that of `new_size`.
    pub fn new(old_size: u64, new_size: u64) -> Result<Self, TreeError> {
        if old_size > new_size || new_size > MAX_TREE_SIZE {
            return Err(TreeError::OutOfRange { asked: old_size, size: new_size });
        }
        let (mut begin, mut end, mut parts) = (0, new_size, Vec::new());
        if old_size > 0 && old_size < new_size {
            // The old tree's right edge is followed down until what is left of it is a whole subtree.
            while end != old_size {
                let middle = begin + left_size(end - begin);
                if old_size <= middle {
                    parts.push(cover(middle, end));
                    end = middle;
                } else {
                    parts.push(cover(begin, middle));
                    begin = middle;
                }
            }
            // The verifier knows the old root itself, so a subtree that is the whole old tree is left out.
            if begin > 0 {
                parts.push(cover(begin, end));
            }
            parts.reverse();
        }
        Ok(Self { old_size, new_size, parts })
    }

    /// The stored nodes it needs: fewer than 170, whatever the tree's size.
    pub fn needs(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.parts.iter().flatten().copied()
    }

    /// The proof.
    pub fn finish(&self, nodes: &impl NodeSource) -> Result<ConsistencyProof, TreeError> {
        let path = assemble(&self.parts, nodes)?;
        Ok(ConsistencyProof { old_size: self.old_size, new_size: self.new_size, path })
    }
}

impl InclusionProof {
    /// The root to which the proof leads from this leaf (RFC 9162 §2.1.3.2). It says nothing until it is compared with
    /// a root that someone vouches for.
    pub fn root(&self, leaf: &Digest) -> Result<Digest, ProofError> {
        if self.index >= self.size || self.size > MAX_TREE_SIZE {
            return Err(ProofError::OutOfRange);
        }
        if self.path.len() > MAX_PROOF_HASHES {
            return Err(ProofError::WrongLength);
        }
        let (mut place, mut last, mut hash) = (self.index, self.size - 1, *leaf);
        for sibling in &self.path {
            if last == 0 {
                return Err(ProofError::WrongLength);
            }
            if place & 1 == 1 || place == last {
                hash = node_hash(sibling, &hash);
                while place & 1 == 0 && place != 0 {
                    place >>= 1;
                    last >>= 1;
                }
            } else {
                hash = node_hash(&hash, sibling);
            }
            place >>= 1;
            last >>= 1;
        }
        if last == 0 { Ok(hash) } else { Err(ProofError::WrongLength) }
    }
}

/// Whether the leaf with this hash is in the tree with this head.
pub fn verify_inclusion(leaf: &Digest, proof: &InclusionProof, head: &TreeHead) -> Result<(), ProofError> {
    if proof.size != head.size {
        return Err(ProofError::OutOfRange);
    }
    if proof.root(leaf)? == head.root { Ok(()) } else { Err(ProofError::WrongRoot) }
}

/// Whether the tree with head `new` has every leaf of the tree with head `old`, in the same places.
pub fn verify_consistency(
    old: &TreeHead,
    new: &TreeHead,
    proof: &ConsistencyProof,
) -> Result<(), ProofError> {
    if (proof.old_size, proof.new_size) != (old.size, new.size)
        || old.size > new.size
        || new.size > MAX_TREE_SIZE
    {
        return Err(ProofError::OutOfRange);
    }
    if proof.path.len() > MAX_PROOF_HASHES {
        return Err(ProofError::WrongLength);
    }
    if old.size == 0 || old.size == new.size {
        let expected = if old.size == new.size { new.root } else { empty_root() };
        return match (proof.path.is_empty(), old.root == expected) {
            (false, _) => Err(ProofError::WrongLength),
            (true, false) => Err(ProofError::WrongRoot),
            (true, true) => Ok(()),
        };
    }
    let mut hashes = proof.path.iter();
    // A complete old tree stands for itself (RFC 9162 §2.1.4.2, step 2).
    let first = if old.size.is_power_of_two() { Some(&old.root) } else { hashes.next() };
    let first = *first.ok_or(ProofError::WrongLength)?;
    let shift = (old.size - 1).trailing_ones();
    let (mut place, mut last) = ((old.size - 1) >> shift, (new.size - 1) >> shift);
    let (mut old_root, mut new_root) = (first, first);
    for hash in hashes {
        if last == 0 {
            return Err(ProofError::WrongLength);
        }
        if place & 1 == 1 || place == last {
            old_root = node_hash(hash, &old_root);
            new_root = node_hash(hash, &new_root);
            while place & 1 == 0 && place != 0 {
                place >>= 1;
                last >>= 1;
            }
        } else {
            new_root = node_hash(&new_root, hash);
        }
        place >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(ProofError::WrongLength);
    }
    if old_root == old.root && new_root == new.root { Ok(()) } else { Err(ProofError::WrongRoot) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::{grown, leaves, naive_root, published_leaves};
    use proptest::prelude::*;

    fn hashes(texts: &[&str]) -> Vec<Digest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    const A: &str = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7";
    const B: &str = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e";
    const C: &str = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4";
    const D: &str = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b";
    const E: &str = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0";
    const F: &str = "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7";
    const G: &str = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a";
    const H: &str = "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125";
    const I: &str = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";

    #[test]
    fn published_inclusion_proofs_are_reproduced() {
        let (_, nodes) = grown(&published_leaves());
        for (index, size, path) in [
            (0, 1, vec![]),
            (0, 8, vec![A, B, C]),
            (5, 8, vec![D, E, F]),
            (2, 3, vec![H]),
            (1, 5, vec![I, B, D]),
        ] {
            let proof = InclusionPlan::new(index, size).unwrap().finish(&nodes).unwrap();
            assert_eq!(proof, InclusionProof { size, index, path: hashes(&path) });
        }
    }

    #[test]
    fn published_consistency_proofs_are_reproduced() {
        let (_, nodes) = grown(&published_leaves());
        for (old_size, new_size, path) in
            [(1, 1, vec![]), (1, 8, vec![A, B, C]), (6, 8, vec![G, E, F]), (2, 5, vec![B, D])]
        {
            let proof = ConsistencyPlan::new(old_size, new_size).unwrap().finish(&nodes).unwrap();
            assert_eq!(proof, ConsistencyProof { old_size, new_size, path: hashes(&path) });
        }
    }

    #[test]
    fn the_plan_of_the_largest_tree_stays_small() {
        for index in [0, 1, MAX_TREE_SIZE / 3, MAX_TREE_SIZE - 1] {
            assert!(InclusionPlan::new(index, MAX_TREE_SIZE).unwrap().needs().count() < 110);
            let plan = ConsistencyPlan::new(index, MAX_TREE_SIZE).unwrap();
            assert!(plan.needs().count() < 170);
            assert!(plan.parts.len() <= MAX_PROOF_HASHES);
        }
    }

    #[test]
    fn places_outside_the_tree_are_refused() {
        assert!(InclusionPlan::new(3, 3).is_err());
        assert!(InclusionPlan::new(0, 0).is_err());
        assert!(ConsistencyPlan::new(4, 3).is_err());
        assert!(InclusionPlan::new(0, u64::MAX).is_err());
        let proof = InclusionProof { size: u64::MAX, index: 0, path: vec![Digest::ZERO; 64] };
        assert_eq!(proof.root(&Digest::ZERO), Err(ProofError::OutOfRange));
    }

    #[test]
    fn a_missing_node_is_named() {
        let plan = InclusionPlan::new(0, 2).unwrap();
        let missing = NodeId { level: 0, index: 1 };
        assert_eq!(plan.finish(&|_| None), Err(TreeError::MissingNode(missing)));
    }

    #[test]
    fn every_pair_of_small_trees_is_consistent_and_no_other_root_is() {
        let all = leaves(40);
        let (_, nodes) = grown(&all);
        let head = |size: usize| TreeHead { size: size as u64, root: naive_root(&all[..size]) };
        for new in 0..=all.len() {
            for old in 0..=new {
                let (old, new) = (head(old), head(new));
                let proof = ConsistencyPlan::new(old.size, new.size).unwrap().finish(&nodes).unwrap();
                assert_eq!(verify_consistency(&old, &new, &proof), Ok(()));
                let other = TreeHead { root: Digest::of(b"other"), ..old };
                assert!(verify_consistency(&other, &new, &proof).is_err());
                let other = TreeHead { root: Digest::of(b"other"), ..new };
                if old.size > 0 {
                    assert!(verify_consistency(&old, &other, &proof).is_err());
                }
            }
        }
    }

    fn flip(digest: &Digest, bit: usize) -> Digest {
        let mut bytes = *digest.bytes();
        bytes[bit / 8 % 32] ^= 1 << (bit % 8);
        Digest::from_bytes(bytes)
    }

    proptest! {
        #[test]
        fn every_leaf_of_a_tree_is_provable(count in 1u64..200, pick in any::<u64>()) {
            let leaves = leaves(count);
            let (frontier, nodes) = grown(&leaves);
            let index = pick % count;
            let proof = InclusionPlan::new(index, count).unwrap().finish(&nodes).unwrap();
            prop_assert_eq!(verify_inclusion(&leaves[index as usize], &proof, &frontier.head()), Ok(()));
        }

        #[test]
        fn a_changed_inclusion_proof_is_refused(count in 2u64..200, pick in any::<u64>(), bit in 0usize..256) {
            let leaves = leaves(count);
            let (frontier, nodes) = grown(&leaves);
            let (index, head) = (pick % count, frontier.head());
            let leaf = leaves[index as usize];
            let proof = InclusionPlan::new(index, count).unwrap().finish(&nodes).unwrap();
            prop_assert!(verify_inclusion(&flip(&leaf, bit), &proof, &head).is_err());
            let mut changed = proof.clone();
            let at = bit % changed.path.len();
            changed.path[at] = flip(&changed.path[at], bit);
            prop_assert!(verify_inclusion(&leaf, &changed, &head).is_err());
            for other in (0..count).filter(|other| *other != index) {
                let moved = InclusionProof { index: other, ..proof.clone() };
                prop_assert!(verify_inclusion(&leaf, &moved, &head).is_err());
            }
            let mut longer = proof.clone();
            longer.path.push(Digest::ZERO);
            prop_assert!(verify_inclusion(&leaf, &longer, &head).is_err());
            let mut shorter = proof;
            shorter.path.pop();
            prop_assert!(verify_inclusion(&leaf, &shorter, &head).is_err());
        }

        #[test]
        fn a_changed_consistency_proof_is_refused(new in 2u64..200, pick in any::<u64>(), bit in 0usize..256) {
            let leaves = leaves(new);
            let (frontier, nodes) = grown(&leaves);
            let old = 1 + pick % (new - 1);
            let old_head = TreeHead { size: old, root: naive_root(&leaves[..old as usize]) };
            let mut proof = ConsistencyPlan::new(old, new).unwrap().finish(&nodes).unwrap();
            let at = bit % proof.path.len();
            proof.path[at] = flip(&proof.path[at], bit);
            prop_assert!(verify_consistency(&old_head, &frontier.head(), &proof).is_err());
        }

        #[test]
        fn any_proof_is_judged_without_a_panic(
            size in any::<u64>(), index in any::<u64>(), hashes in 0usize..80, old in any::<u64>(),
        ) {
            let path = vec![Digest::ZERO; hashes];
            let _ = InclusionProof { size, index, path: path.clone() }.root(&Digest::ZERO);
            let head = |size| TreeHead { size, root: Digest::ZERO };
            let proof = ConsistencyProof { old_size: old, new_size: size, path };
            let _ = verify_consistency(&head(old), &head(size), &proof);
        }
    }
}
