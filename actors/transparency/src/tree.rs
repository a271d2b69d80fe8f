//! The append-only Merkle tree: RFC 9162 §2.1 hashing, and the frontier from which the next root is computed.
//!
//! A [`NodeId`] names a complete subtree: level 0 are the leaves, and node `(level, index)` covers the leaves from
//! `index << level` up to, not including, `(index + 1) << level`. Complete nodes never change, so a store only ever
//! inserts them: one a leaf, and on average one more above it.

use choir_messages::chain::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

use crate::limits::MAX_TREE_SIZE;

/// What is wrong with a tree, or with what was asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The tree has its last leaf.
    #[error("the log is full at {MAX_TREE_SIZE} statements; start a new log under another origin")]
    Full,
    /// A stored frontier whose parts disagree.
    #[error(
        "the stored frontier does not belong to a tree of {size} leaves; rebuild it from the stored nodes"
    )]
    BadFrontier {
        /// The size it claims.
        size: u64,
    },
    /// A node that the store should have.
    #[error("the store has no node at level {}, index {}; restore the log from a backup", .0.level, .0.index)]
    MissingNode(NodeId),
    /// A leaf or an older size outside the tree.
    #[error("{asked} lies outside a tree of {size} leaves")]
    OutOfRange {
        /// The leaf or size asked for.
        asked: u64,
        /// The tree's size.
        size: u64,
    },
}

/// Names one complete subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId {
    /// Its height over the leaves, 0 for a leaf.
    pub level: u8,
    /// Its place from the left among the nodes of its level.
    pub index: u64,
}

/// One complete subtree with its hash, ready to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Its hash.
    pub hash: Digest,
}

/// Where stored nodes are read. A store that answers asynchronously fetches what a plan
/// [needs](crate::InclusionPlan::needs) first and hands the result over as a map or closure.
pub trait NodeSource {
    /// The hash of the node, if the store has it.
    fn node(&self, id: NodeId) -> Option<Digest>;
}

impl<F: Fn(NodeId) -> Option<Digest>> NodeSource for F {
    fn node(&self, id: NodeId) -> Option<Digest> {
        self(id)
    }
}

/// Nodes held in memory: what was fetched for one plan, or the whole of a small log.
#[derive(Debug, Clone, Default)]
pub struct MemoryNodes(BTreeMap<NodeId, Digest>);

impl MemoryNodes {
    /// Keeps the nodes.
    pub fn extend(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.0.extend(nodes.into_iter().map(|node| (node.id, node.hash)));
    }

    /// How many nodes are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl NodeSource for MemoryNodes {
    fn node(&self, id: NodeId) -> Option<Digest> {
        self.0.get(&id).copied()
    }
}

/// The size and root that a checkpoint or receipt speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeHead {
    /// How many leaves the tree has.
    pub size: u64,
    /// Its root (RFC 9162 §2.1.1).
    pub root: Digest,
}

/// The hash of a leaf: SHA-256 of a zero byte and the leaf's bytes.
#[must_use]
pub fn leaf_hash(bytes: &[u8]) -> Digest {
    Digest::from_bytes(Sha256::new().chain_update([0]).chain_update(bytes).finalize().into())
}

/// The hash of two subtrees: SHA-256 of a one byte and both hashes.
pub(crate) fn node_hash(left: &Digest, right: &Digest) -> Digest {
    let hash = Sha256::new().chain_update([1]).chain_update(left.bytes()).chain_update(right.bytes());
    Digest::from_bytes(hash.finalize().into())
}

/// The root of the tree without leaves: SHA-256 of nothing.
pub(crate) fn empty_root() -> Digest {
    Digest::of(b"")
}

/// The right edge of a tree: the hashes of its complete subtrees, the largest first, one for each bit set in its size.
/// With it leaves are appended and roots computed without reading the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredFrontier")]
pub struct Frontier {
    size: u64,
    peaks: Vec<Digest>,
}

/// The frontier as read from storage, before it is checked.
#[derive(Deserialize)]
struct StoredFrontier {
    size: u64,
    peaks: Vec<Digest>,
}

impl TryFrom<StoredFrontier> for Frontier {
    type Error = TreeError;
    fn try_from(stored: StoredFrontier) -> Result<Self, TreeError> {
        let StoredFrontier { size, peaks } = stored;
        if size > MAX_TREE_SIZE || peaks.len() != size.count_ones() as usize {
            return Err(TreeError::BadFrontier { size });
        }
        Ok(Self { size, peaks })
    }
}

impl Default for Frontier {
    fn default() -> Self {
        Self::new()
    }
}

impl Frontier {
    /// The tree without leaves.
    #[must_use]
    pub const fn new() -> Self {
        Self { size: 0, peaks: Vec::new() }
    }

    /// How many leaves the tree has.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Appends a leaf by its hash (see [`leaf_hash`]) and returns the nodes it completes, the leaf first: rows to store
    /// in the same transaction as the leaf.
    pub fn append(&mut self, leaf: Digest) -> Result<Vec<Node>, TreeError> {
        if self.size >= MAX_TREE_SIZE {
            return Err(TreeError::Full);
        }
        let mut id = NodeId { level: 0, index: self.size };
        let mut hash = leaf;
        let mut completed = vec![Node { id, hash }];
        while id.index & 1 == 1 {
            let Some(left) = self.peaks.pop() else {
                return Err(TreeError::BadFrontier { size: self.size });
            };
            hash = node_hash(&left, &hash);
            id = NodeId { level: id.level + 1, index: id.index >> 1 };
            completed.push(Node { id, hash });
        }
        self.peaks.push(hash);
        self.size += 1;
        Ok(completed)
    }

    /// The tree's size and root.
    #[must_use]
    pub fn head(&self) -> TreeHead {
        TreeHead { size: self.size, root: fold(&self.peaks).unwrap_or_else(empty_root) }
    }

    /// The nodes from which [`Frontier::from_nodes`] rebuilds the frontier of a tree of this size.
    #[must_use]
    pub fn needs(size: u64) -> Vec<NodeId> {
        cover(0, size)
    }

    /// The frontier of a tree of this size, from stored nodes.
    pub fn from_nodes(size: u64, nodes: &impl NodeSource) -> Result<Self, TreeError> {
        if size > MAX_TREE_SIZE {
            return Err(TreeError::BadFrontier { size });
        }
        let peaks = Self::needs(size).into_iter().map(|id| nodes.node(id).ok_or(TreeError::MissingNode(id)));
        Ok(Self { size, peaks: peaks.collect::<Result<_, _>>()? })
    }
}

/// The complete nodes that make up the leaves from `begin` to `end`, the largest first. `begin` must be where a subtree
/// of RFC 9162's recursion begins, which every caller here sees to.
pub(crate) fn cover(mut begin: u64, end: u64) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    while begin < end {
        let level = (end - begin).ilog2();
        // A level is below 64, so it fits.
        nodes.push(NodeId { level: u8::try_from(level).unwrap_or(u8::MAX), index: begin >> level });
        begin += 1 << level;
    }
    nodes
}

/// The root over subtrees, given the largest first; none over nothing.
pub(crate) fn fold(peaks: &[Digest]) -> Option<Digest> {
    let (last, rest) = peaks.split_last()?;
    Some(rest.iter().rev().fold(*last, |right, left| node_hash(left, &right)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The root by the recursion of RFC 9162 §2.1.1, leaf by leaf.
    pub(crate) fn naive_root(leaves: &[Digest]) -> Digest {
        match leaves {
            [] => empty_root(),
            [leaf] => *leaf,
            _ => {
                let half = leaves.len().next_power_of_two() / 2;
                let (left, right) = leaves.split_at(half);
                node_hash(&naive_root(left), &naive_root(right))
            }
        }
    }

    pub(crate) fn leaves(count: u64) -> Vec<Digest> {
        (0..count).map(|n| leaf_hash(&n.to_be_bytes())).collect()
    }

    /// A tree with everything it would have stored.
    pub(crate) fn grown(leaves: &[Digest]) -> (Frontier, MemoryNodes) {
        let (mut frontier, mut nodes) = (Frontier::new(), MemoryNodes::default());
        for leaf in leaves {
            nodes.extend(frontier.append(*leaf).unwrap());
        }
        (frontier, nodes)
    }

    /// The eight leaves of the published Certificate Transparency tests.
    pub(crate) fn published_leaves() -> Vec<Digest> {
        ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
            .iter()
            .map(|text| leaf_hash(&hex::decode(text).unwrap()))
            .collect()
    }

    #[test]
    fn published_roots_are_reproduced() {
        let roots = [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut frontier = Frontier::new();
        assert_eq!(frontier.head().root.to_string(), roots[0]);
        for (leaf, root) in published_leaves().into_iter().zip(&roots[1..]) {
            frontier.append(leaf).unwrap();
            assert_eq!(frontier.head().root.to_string(), *root);
        }
    }

    #[test]
    fn a_full_tree_takes_no_leaf() {
        let stored = format!(
            r#"{{"size":{MAX_TREE_SIZE},"peaks":[{}]}}"#,
            vec![format!("\"{}\"", Digest::ZERO); 53].join(",")
        );
        let mut frontier: Frontier = serde_json::from_str(&stored).unwrap();
        assert_eq!(frontier.append(Digest::ZERO), Err(TreeError::Full));
    }

    #[test]
    fn a_stored_frontier_with_a_peak_too_few_is_refused() {
        assert!(serde_json::from_str::<Frontier>(r#"{"size":3,"peaks":[]}"#).is_err());
        assert!(serde_json::from_str::<Frontier>(r#"{"size":9007199254740992,"peaks":[]}"#).is_err());
    }

    proptest! {
        #[test]
        fn a_grown_tree_has_the_root_of_a_naive_recomputation(count in 0u64..300) {
            let leaves = leaves(count);
            let (frontier, nodes) = grown(&leaves);
            prop_assert_eq!(frontier.head(), TreeHead { size: count, root: naive_root(&leaves) });
            prop_assert_eq!(Frontier::from_nodes(count, &nodes), Ok(frontier.clone()));
            let text = serde_json::to_string(&frontier).unwrap();
            prop_assert_eq!(serde_json::from_str::<Frontier>(&text).unwrap(), frontier);
            prop_assert!(nodes.len() < 2 * leaves.len() + 1, "at most two rows a leaf");
        }
    }
}
