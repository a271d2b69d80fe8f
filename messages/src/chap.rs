//! What a CHAP workspace is in storage: the rows its rules hand to a store, and a store hands back. Plain data; the
//! rules live in `choir-chap`, the tables in `choir-persistence`. Facts: the protocol digest, §3.3 and §3.6.
//!
//! A workspace is one small text of its own (`meta`), a set of objects, an append-only log of evidence entries, and the
//! notices its participants are owed. One [`Change`] alters all four together, or nothing.

use serde::{Deserialize, Serialize};

use crate::chain::Digest;
use crate::time::Timestamp;

/// The kinds of objects a workspace keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A participant, by URI; one who left stays, as a former member.
    Member,
    /// A task, by id.
    Task,
    /// A whisper, by id.
    Whisper,
    /// A deliberation, by id.
    Deliberation,
    /// A handoff, by id.
    Handoff,
    /// A snapshot artefact, by id.
    Snapshot,
    /// An override artefact, by id.
    Override,
    /// A route, depth or escalation decision artefact, by id.
    Decision,
    /// An idempotency key of `task.create`, by the digest of the key.
    Idempotency,
    /// A signed call that was recorded, by the SHA-256 of its canonical form without `sig`, in hex.
    SignedCall,
    /// An invitation, capture, checkpoint or other record of the wider methods, by id.
    Record,
    /// A redaction's order to the store, by the redacted entry's `seq` in decimal: its body is an [`Erasure`], and storing
    /// it overwrites that entry's record with [`ErasedRecord`]'s text, in the same commit.
    Erasure,
}

impl ObjectKind {
    /// The name it is stored under.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Task => "task",
            Self::Whisper => "whisper",
            Self::Deliberation => "deliberation",
            Self::Handoff => "handoff",
            Self::Snapshot => "snapshot",
            Self::Override => "override",
            Self::Decision => "decision",
            Self::Idempotency => "idempotency",
            Self::SignedCall => "signed_call",
            Self::Record => "record",
            Self::Erasure => "erasure",
        }
    }

    /// The kind stored under this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Member,
            Self::Task,
            Self::Whisper,
            Self::Deliberation,
            Self::Handoff,
            Self::Snapshot,
            Self::Override,
            Self::Decision,
            Self::Idempotency,
            Self::SignedCall,
            Self::Record,
            Self::Erasure,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == name)
    }
}

/// Names one object of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its id within the kind.
    pub id: String,
}

/// One object as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its name.
    pub key: ObjectKey,
    /// Its JSON text, of the rules' own making.
    pub body: String,
    /// Whether it is unfinished: lists of open objects look only at these.
    pub open: bool,
    /// When a timer must look at it, if it waits for a deadline.
    pub due: Option<Timestamp>,
}

/// One evidence entry (digest §3.3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place, from 0.
    pub seq: u64,
    /// The Coordinator's clock when it arrived.
    pub arrived: Timestamp,
    /// Canonical JSON of the record: the envelope, or `{"outcome":…,"request":…}` for a refusal.
    pub record: String,
    /// The refusal's code, or none for an accepted call.
    pub refused: Option<i64>,
    /// `sha256:…` head before it, when the log is chained.
    pub prev_hash: Option<String>,
    /// The method called.
    pub method: String,
    /// The sender's URI, where the call had one.
    pub from: Option<String>,
    /// The tasks it is about, for the filter by task.
    pub tasks: Vec<String>,
}

/// The body of an [`ObjectKind::Erasure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// The redaction's own entry.
    pub by_seq: u64,
}

/// What stands in the place of an erased record: `{"erased":{"by_seq":…,"digest":"sha256:…"}}`, exactly. No call's record
/// reads like it, since every call has a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErasedRecord {
    /// The redaction's own entry.
    pub by_seq: u64,
    /// The SHA-256 of the text that was there.
    pub digest: Digest,
}

impl ErasedRecord {
    /// What takes the place of that record.
    #[must_use]
    pub fn of(record: &str, by_seq: u64) -> Self {
        Self { by_seq, digest: Digest::of(record.as_bytes()) }
    }

    /// Reads the text; `None` for every other one.
    #[must_use]
    pub fn read(record: &str) -> Option<Self> {
        let inner = record.strip_prefix(r#"{"erased":{"by_seq":"#)?.strip_suffix(r#""}}"#)?;
        let (by_seq, digest) = inner.split_once(r#","digest":"sha256:"#)?;
        let this = Self { by_seq: by_seq.parse().ok()?, digest: digest.parse().ok()? };
        (this.to_string() == record).then_some(this)
    }
}

impl std::fmt::Display for ErasedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, r#"{{"erased":{{"by_seq":{},"digest":"sha256:{}"}}}}"#, self.by_seq, self.digest)
    }
}

/// One message that a participant is owed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Its place among the workspace's notices, from 1, without gaps.
    pub number: u64,
    /// The participant's URI.
    pub to: String,
    /// Its JSON text.
    pub body: String,
}

/// One atomic change of one workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The workspace's id.
    pub workspace: String,
    /// The version it had before; 0 creates it.
    pub version_before: u64,
    /// The version it has afterwards.
    pub version_after: u64,
    /// The workspace's own text, whole: settings, counters, chain head.
    pub meta: String,
    /// Objects to insert or replace.
    pub puts: Vec<Object>,
    /// Objects to remove.
    pub removes: Vec<ObjectKey>,
    /// Entries to append, in order; the first has the `seq` after the last one stored.
    pub entries: Vec<Entry>,
    /// Notices to add, in order.
    pub notices: Vec<Notice>,
}

/// A workspace as a store opens it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its version.
    pub version: u64,
    /// Its own text.
    pub meta: String,
    /// Its members, former ones among them.
    pub members: Vec<Object>,
}

/// Which entries are wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryQuery {
    /// From this place on.
    pub from_seq: u64,
    /// Up to, not including, this place.
    pub to_seq: Option<u64>,
    /// Only calls of this method.
    pub method: Option<String>,
    /// Only calls of this sender.
    pub from: Option<String>,
    /// Only entries about this task.
    pub task: Option<String>,
    /// Only refused (`Some(true)`) or accepted (`Some(false)`) ones.
    pub refused: Option<bool>,
    /// Most entries wanted.
    pub limit: usize,
}

/// Entries found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPage {
    /// In order of `seq`.
    pub entries: Vec<Entry>,
    /// Where to go on: every entry before it that matches has been returned. Never past the log's end.
    pub next_seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erased_record_reads_back_and_nothing_like_it_does() {
        let erased = ErasedRecord::of("{\"jsonrpc\":\"2.0\"}", 41);
        let text = erased.to_string();
        assert_eq!(ErasedRecord::read(&text), Some(erased));
        let longer = text.replace("}}", "},\"jsonrpc\":\"2.0\",\"method\":\"x\"}");
        for other in
            [&longer, &text.replace("41", "041"), &text.replace("41", "+41"), &text.to_uppercase(), ""]
        {
            assert_eq!(ErasedRecord::read(other), None, "{other}");
        }
    }
}
