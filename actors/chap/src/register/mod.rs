//! The Coordinator's own transparency log (`audit-scitt/1.0`): one append-only Merkle tree a workspace, whose leaf for an
//! entry is a COSE_Sign1 statement about it. An entry becomes a leaf in the very change that appends it, so the tree is
//! never behind the log, and like the chain it begins where the profile is first advertised and then never stops.
//!
//! What is kept is little: the tree's right edge in the workspace's own text, and the nodes over whole blocks of
//! [`BLOCK`] leaves as objects. Everything below is recomputed from the entries when a proof is asked for: statements are
//! deterministic. An entry that was altered in the store therefore gives another root, and gets no receipt.

mod check;
mod proofs;

use std::fmt;
use std::sync::Arc;

use choir_messages::chain::Digest;
use choir_messages::chap::{Entry, ObjectKind};
use choir_messages::sign::SigningKey;
use choir_transparency::{
    Form, Frontier, LogKey, LogSigner, NodeId, NoteError, Origin, StatementError, TreeHead,
    evidence_statement, key_thumbprint, leaf_hash, verify_checkpoint,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use check::verify;
pub use check::{portable_receipt, receipt_check};
pub(crate) use proofs::submit;

use crate::model::Stored;
use crate::uri::{COORDINATOR, is_id};
use crate::workspace::Meta;

/// Leaves under one stored node, as a power of two. A proof recomputes at most a few such blocks, milliseconds of
/// signing each; a workspace stores two rows a block.
const BLOCK_LEVEL: u8 = 8;

/// The leaves of one block.
pub(crate) const BLOCK: u64 = 1 << BLOCK_LEVEL;

/// The log's name and key. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<Named>);

struct Named {
    name: Origin,
    key: SigningKey,
    thumbprint: Digest,
}

impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name && self.0.thumbprint == other.0.thumbprint
    }
}

impl Eq for Log {}

impl fmt::Debug for Log {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Log").field(&self.0.name.as_str()).finish()
    }
}

/// Longest name of a Coordinator's log, in bytes: with a workspace's part it is still a legal origin.
const NAME_BYTES: usize = 128;

/// Longest id of a workspace that stands in its log's name as it is, in bytes; a longer one stands there as its digest.
const PLAIN_BYTES: usize = 100;

impl Log {
    /// A log of that name, usually a host name with a path, signed with that key.
    pub fn new(name: &str, key: SigningKey) -> Result<Self, NoteError> {
        if name.len() > NAME_BYTES {
            return Err(NoteError::BadName);
        }
        let thumbprint = key_thumbprint(&key.public());
        Ok(Self(Arc::new(Named { name: Origin::new(name)?, key, thumbprint })))
    }

    /// A log that is named after its key.
    #[must_use]
    pub fn of_key(key: SigningKey) -> Self {
        let thumbprint = key_thumbprint(&key.public());
        let short: String = thumbprint.to_string().chars().take(16).collect();
        let name = Origin::new(format!("coordinator-{short}")).expect("hex digits are legal in a name");
        Self(Arc::new(Named { name, key, thumbprint }))
    }

    /// What an auditor pins: the Coordinator's log name and key, as `name+hash+key`. The logs of its workspaces are named
    /// after it ([`workspace_key`]).
    #[must_use]
    pub fn public(&self) -> LogKey {
        LogKey { origin: self.0.name.clone(), key: self.0.key.public() }
    }

    fn origin(&self, workspace: &str) -> Option<Origin> {
        origin(&self.0.name, workspace)
    }

    fn signer<'a>(&'a self, origin: &'a Origin) -> LogSigner<'a> {
        LogSigner { origin, key: &self.0.key }
    }

    /// The statement about an entry. It carries the record's hash, so it may be shown to whoever must not see the record.
    fn statement(&self, workspace: &str, entry: &Entry) -> Result<Vec<u8>, StatementError> {
        evidence_statement(workspace, entry, COORDINATOR, Form::Hash, &self.0.key)
    }
}

/// The name of a workspace's log, under that of its Coordinator.
fn origin(name: &Origin, workspace: &str) -> Option<Origin> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '@');
    let part = if workspace.len() <= PLAIN_BYTES
        && workspace.chars().all(plain)
        && !workspace.starts_with("sha256-")
    {
        workspace.to_owned()
    } else {
        format!("sha256-{}", Digest::of(workspace.as_bytes()))
    };
    Origin::new(format!("{}/{part}", name.as_str())).ok()
}

/// The name and key of a workspace's log, from what its Coordinator publishes.
#[must_use]
pub fn workspace_key(coordinator: &LogKey, workspace: &str) -> Option<LogKey> {
    Some(LogKey { origin: origin(&coordinator.origin, workspace)?, key: coordinator.key })
}

/// A workspace's tree, as its own text keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// The thumbprint of the key its statements are signed with: another key makes other leaves, so another tree.
    key: String,
    /// The entry of the first leaf.
    from: u64,
    /// Its right edge.
    frontier: Frontier,
}

impl Register {
    /// The entry that the next leaf is for.
    fn next(&self) -> u64 {
        self.from.saturating_add(self.frontier.size())
    }

    fn is_of(&self, log: &Log) -> bool {
        self.key == log.0.thumbprint.to_string()
    }
}

/// One stored node of a workspace's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeNode {
    id: String,
    hash: Digest,
}

impl TreeNode {
    fn name(id: NodeId) -> String {
        format!("tree_{}_{}", id.level, id.index)
    }
}

impl Stored for TreeNode {
    const KIND: ObjectKind = ObjectKind::Record;
    fn id(&self) -> &str {
        &self.id
    }
}

/// Makes an entry that is about to be appended a leaf; gives the nodes to store with it. A log that was switched off for
/// a while leaves a gap, and a tree with a gap goes on no more: what it registered stays provable.
pub(crate) fn enter(meta: &mut Meta, log: &Log, workspace: &str, entry: &Entry) -> Vec<TreeNode> {
    if meta.register.is_none() && !meta.has_profile("audit-scitt") {
        return Vec::new();
    }
    let Ok(statement) = log.statement(workspace, entry) else { return Vec::new() };
    let register = match &mut meta.register {
        Some(register) if register.is_of(log) => register,
        other => other.insert(Register {
            key: log.0.thumbprint.to_string(),
            from: entry.seq,
            frontier: Frontier::new(),
        }),
    };
    if register.next() != entry.seq {
        return Vec::new();
    }
    let completed = register.frontier.append(leaf_hash(&statement)).unwrap_or_default();
    let kept = completed.into_iter().filter(|node| node.id.level >= BLOCK_LEVEL);
    kept.map(|node| TreeNode { id: TreeNode::name(node.id), hash: node.hash }).collect()
}

/// What a workspace says of its log: who signs, and how far it reaches. `None` if it has none.
pub(crate) fn describe(meta: &Meta, log: &Log, workspace: &str) -> Option<Value> {
    let register = meta.register.as_ref().filter(|register| register.is_of(log))?;
    let origin = log.origin(workspace)?;
    Some(json!({
        "key": log.public().to_string(),
        "origin": origin.as_str(),
        "from_seq": register.from,
        "size": register.frontier.size(),
    }))
}

/// The signed checkpoint of a workspace's log as it stands.
pub(crate) fn checkpoint(meta: &Meta, log: &Log, workspace: &str) -> Option<String> {
    let register = meta.register.as_ref().filter(|register| register.is_of(log))?;
    let origin = log.origin(workspace)?;
    choir_transparency::sign_checkpoint(&log.signer(&origin), &register.frontier.head(), &chain_lines(meta))
        .ok()
}

/// What a checkpoint says of the chain, beside the tree: how many entries the log has, and their head. So a checkpoint is
/// compared with an exported log even where that carries no receipts.
fn chain_lines(meta: &Meta) -> Vec<String> {
    meta.head.iter().map(|head| format!("chain {} {head}", meta.entries)).collect()
}

/// A checkpoint of a workspace's log, its signature verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    /// The tree.
    pub(crate) tree: TreeHead,
    /// Entries on the log.
    pub(crate) entries: u64,
    /// The chain's head after them.
    pub(crate) head: String,
}

impl Checkpoint {
    /// Reads a checkpoint that this Coordinator's log signed for that workspace.
    pub(crate) fn read(note: &str, coordinator: &LogKey, workspace: &str) -> Result<Self, String> {
        let key = workspace_key(coordinator, workspace).ok_or("the workspace's log can have no name")?;
        let (tree, more) = verify_checkpoint(note, &key).map_err(|error| error.to_string())?;
        let chain = more.iter().find_map(|line| line.strip_prefix("chain ")?.split_once(' '));
        let (entries, head) = chain.ok_or("it says nothing of the chain")?;
        let entries = entries.parse().map_err(|_| "its number of entries is none")?;
        Ok(Self { tree, entries, head: head.to_owned() })
    }
}

/// Whether a text may be a workspace's id, so that its log has a name.
fn names_a_workspace(text: &str) -> bool {
    is_id(text)
}
