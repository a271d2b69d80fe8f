//! Between rows and the types of `messages`. A row that does not fit is corrupt, never a panic.

use std::fmt::Display;
use std::str::FromStr;

use choir_messages::event::{Head, MessageOutcome, Revision};
use choir_messages::time::Timestamp;

use crate::error::StoreError;

/// Reads an id, a digest or a name.
pub(crate) fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|e: T::Err| StoreError::corrupt(e.to_string()))
}

pub(crate) fn rev(stored: i64) -> Result<Revision, StoreError> {
    Revision::try_from(stored).map_err(|_| StoreError::corrupt(format!("revision {stored}")))
}

/// A revision as the column's type. Revisions are counted by this crate from 1, so they fit.
pub(crate) fn column(rev: Revision) -> Result<i64, StoreError> {
    i64::try_from(rev).map_err(|_| StoreError::Invalid("the revision is beyond the database's range"))
}

pub(crate) fn head(rev_stored: i64, hash: &str) -> Result<Head, StoreError> {
    Ok(Head { rev: rev(rev_stored)?, hash: parse(hash)? })
}

pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}

pub(crate) const fn outcome_text(outcome: MessageOutcome) -> &'static str {
    match outcome {
        MessageOutcome::Answered => "answered",
        MessageOutcome::Refused => "refused",
        MessageOutcome::Failed => "failed",
        MessageOutcome::Expired => "expired",
    }
}

pub(crate) fn outcome(text: &str) -> Result<MessageOutcome, StoreError> {
    match text {
        "answered" => Ok(MessageOutcome::Answered),
        "refused" => Ok(MessageOutcome::Refused),
        "failed" => Ok(MessageOutcome::Failed),
        "expired" => Ok(MessageOutcome::Expired),
        other => Err(StoreError::corrupt(format!("message outcome \"{other}\""))),
    }
}

/// Foreign text as a JSON text, which can stand in a `text` column whatever it contains.
pub(crate) fn text_to_json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(crate) fn text_from_json(stored: &str) -> Result<String, StoreError> {
    serde_json::from_str(stored).map_err(|e| StoreError::corrupt(e.to_string()))
}

/// A short name from a stranger as a `text` column can hold it: no U+0000, at most `bytes` bytes.
pub(crate) fn storable(text: &str, bytes: usize) -> String {
    let mut out: String = text.replace('\0', "\u{FFFD}");
    if out.len() > bytes {
        let mut cut = bytes;
        while !out.is_char_boundary(cut) {
            cut -= 1;
        }
        out.truncate(cut);
    }
    out
}

/// Whether a name of the host's own configuration can be stored.
pub(crate) fn check_name(text: &str) -> Result<(), StoreError> {
    if text.is_empty() || text.len() > crate::limits::SOURCE_BYTES || text.contains('\0') {
        Err(StoreError::Invalid("a name must have 1 to 128 bytes and no NUL"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_survives_its_column(text in any::<String>()) {
            let stored = text_to_json(&text);
            prop_assert!(!stored.contains('\0'));
            prop_assert_eq!(text_from_json(&stored).unwrap(), text);
        }

        #[test]
        fn a_strangers_name_is_cut_to_its_bound(text in any::<String>(), bytes in 0usize..40) {
            let out = storable(&text, bytes);
            prop_assert!(out.len() <= bytes && !out.contains('\0'));
        }
    }
}
