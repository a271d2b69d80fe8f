//! Redactions (specification §10.6): entries whose content is erased. The commit that records the redaction has the store
//! overwrite the record with its SHA-256, so nothing gives it back. The chain's link over it can then no longer be
//! computed: it is taken from the next entry's `prev_hash`, and the entry's leaf in the Merkle tree, which is made of that
//! SHA-256, still shows that it was this record and no other. The wire keeps the entry's place, time, method, outcome and
//! `prev_hash`, says which entry redacted it, and gives the SHA-256. Whoever knows what the record may have been can check
//! a guess against it, and could so already against the next `prev_hash`.

use std::collections::BTreeMap;

use choir_messages::chap::{Entry, ErasedRecord, Erasure, ObjectKind};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::limits::{REDACTION_REASON_BYTES, REDACTIONS};
use crate::model::Stored;

/// One redaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redaction {
    /// The `audit.redact` entry.
    pub by_seq: u64,
    /// The beginning of its reason; the whole of it stands in that entry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The order to the store to erase an entry's record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    #[serde(skip)]
    id: String,
    #[serde(flatten)]
    erasure: Erasure,
}

impl Order {
    pub(crate) fn new(seq: u64, by_seq: u64) -> Self {
        Self { id: seq.to_string(), erasure: Erasure { by_seq } }
    }
}

impl Stored for Order {
    const KIND: ObjectKind = ObjectKind::Erasure;
    fn id(&self) -> &str {
        &self.id
    }
}

/// A workspace's redactions, by the entry redacted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Redactions(BTreeMap<u64, Redaction>);

impl Redactions {
    /// Whether nothing is redacted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The redaction of that entry.
    #[must_use]
    pub fn of(&self, seq: u64) -> Option<&Redaction> {
        self.0.get(&seq)
    }

    /// Whether that entry is itself a redaction.
    pub(crate) fn is_by(&self, seq: u64) -> bool {
        self.0.values().any(|redaction| redaction.by_seq == seq)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= REDACTIONS
    }

    pub(crate) fn add(&mut self, seq: u64, by_seq: u64, reason: &str) {
        let mut end = reason.len().min(REDACTION_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = reason.get(..end).unwrap_or_default().to_owned();
        self.0.insert(seq, Redaction { by_seq, reason });
    }

    /// Those of a range, for a read that is carried out later: what is redacted meanwhile is none of its business.
    pub(crate) fn between(&self, from_seq: u64, to_seq: u64) -> Self {
        if from_seq >= to_seq {
            return Self::default();
        }
        Self(self.0.range(from_seq..to_seq).map(|(seq, redaction)| (*seq, redaction.clone())).collect())
    }

    /// An entry as it is given out: with its content, or with what withholds it.
    pub(crate) fn wire(&self, entry: &Entry) -> String {
        let erased = ErasedRecord::read(&entry.record);
        match (self.of(entry.seq), erased) {
            (Some(redaction), erased) => withheld(entry, redaction, erased),
            // It was erased after this read was planned.
            (None, Some(erased)) => {
                withheld(entry, &Redaction { by_seq: erased.by_seq, reason: String::new() }, Some(erased))
            }
            (None, None) => crate::read::entry_to_wire(entry),
        }
    }
}

fn withheld(entry: &Entry, redaction: &Redaction, erased: Option<ErasedRecord>) -> String {
    let mut out = json!({
        "seq": entry.seq,
        "arrived": entry.arrived.to_string(),
        "method": entry.method,
        "redacted": redaction,
    });
    if let Some(code) = entry.refused {
        out["outcome"] = json!({"status": "refused", "code": code});
    }
    if let Some(previous) = &entry.prev_hash {
        out["prev_hash"] = json!(previous);
    }
    if let Some(erased) = erased {
        out["record_digest"] = json!(format!("sha256:{}", erased.digest));
    }
    out.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let mut redactions = Redactions::default();
        redactions.add(3, 9, &"é".repeat(REDACTION_REASON_BYTES));
        let kept = redactions.of(3).map(|redaction| redaction.reason.len());
        assert_eq!(kept, Some(REDACTION_REASON_BYTES / 2 * 2));
        assert!(redactions.is_by(9) && !redactions.is_by(3));
    }

    #[test]
    fn redactions_are_stored_and_read_again() {
        let mut redactions = Redactions::default();
        redactions.add(3, 9, "a name");
        redactions.add(12, 13, "");
        let text = serde_json::to_string(&redactions).expect("plain data");
        assert_eq!(serde_json::from_str::<Redactions>(&text).ok(), Some(redactions.clone()));
        assert!(redactions.between(4, 12).is_empty() && redactions.between(9, 2).is_empty());
    }
}
