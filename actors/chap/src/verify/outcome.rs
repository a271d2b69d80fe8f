//! What a verification comes to: plain data, for a person or a program.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The outcome in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything in the file holds, and everything that could be checked was.
    Verified,
    /// Nothing is wrong with what was checked, and something could not be: `notes` say what.
    Incomplete,
    /// Something is wrong: `faults` say what.
    Broken,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The entry, where it is one.
    pub seq: Option<u64>,
    /// One sentence.
    pub what: String,
}

/// What was checked of the chain.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChainReport {
    /// Entries whose link was checked.
    pub checked: u64,
    /// Entries before the chain began, which nothing protects.
    pub unchecked: u64,
    /// The first checked entry.
    pub from_seq: Option<u64>,
    /// The head that the entries come to.
    pub head: Option<String>,
}

/// What was checked of the signatures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SignatureReport {
    /// Entries that carry one.
    pub signed: u64,
    /// Those that hold, with a key that was valid when the entry arrived.
    pub good: u64,
    /// Those that do not hold.
    pub bad: u64,
    /// Those that could not be checked, by reason.
    pub unchecked: BTreeMap<String, u64>,
}

/// What was checked of the receipts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReceiptReport {
    /// Entries that carry one.
    pub present: u64,
    /// Those that hold.
    pub good: u64,
    /// Those that do not.
    pub bad: u64,
}

/// What was checked of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// Signed checkpoints of the Coordinator that stand on the log; counted where its log key was given.
    pub present: u64,
    /// Those that hold: signature, number of entries and head.
    pub good: u64,
    /// Those that do not.
    pub bad: u64,
    /// The one that was saved earlier, if the file was compared with one.
    pub saved: Option<SavedReport>,
}

/// A saved checkpoint against a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedReport {
    /// Entries on the log when it was made.
    pub entries: u64,
    /// The chain's head then.
    pub head: String,
    /// Leaves of the tree then.
    pub tree_size: u64,
    /// Whether the file's chain comes to that head at that place; none if that cannot be seen.
    pub chain: Option<bool>,
    /// Whether the tree that the file's receipts make has that root; none without receipts for all of it.
    pub root: Option<bool>,
}

/// What a file turned out to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// In one word.
    pub verdict: Verdict,
    /// The workspace.
    pub workspace: String,
    /// Entries in the file.
    pub entries: u64,
    /// Refused calls among them.
    pub refused: u64,
    /// Redacted entries among them.
    pub redacted: u64,
    /// The chain.
    pub chain: ChainReport,
    /// The signatures.
    pub signatures: SignatureReport,
    /// The receipts.
    pub receipts: ReceiptReport,
    /// The checkpoints.
    #[serde(default)]
    pub checkpoints: CheckpointReport,
    /// What is wrong, at most [`super::FAULTS_TOLD`] of it.
    pub faults: Vec<Fault>,
    /// All that is wrong, counted.
    pub fault_count: u64,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
}
