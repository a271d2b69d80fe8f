//! One record of the journal: changes that became durable together, as bytes.
//!
//! ```text
//! magic      8  "chapjrn1"; a change of what follows takes another
//! number     8  counted from 1, without gaps
//! length     8  bytes of the payload
//! digest    32  SHA-256 of the record with the journal's key in this place
//! payload       the changes
//! zeroes        up to the next block
//! ```
//!
//! A record fills whole blocks, so that writing one never touches the bytes of another. The key is random and kept in
//! the tables: without it a stranger could write a call in whose text a record stands, and hope that a crash brings it up.

use std::io;

use choir_messages::chain::Digest;
use choir_messages::chap::Change;
use choir_messages::codec;

use crate::error::StoreError;

/// What a record is padded to: no disk writes less at once.
pub(super) const BLOCK: usize = 4096;

const MAGIC: &[u8; 8] = b"chapjrn1";
const KEY: std::ops::Range<usize> = 24..HEADER;
const HEADER: usize = 56;

/// Largest payload, in bytes: what a segment could hold.
const PAYLOAD: u64 = super::journal::SEGMENT;

/// What makes a journal's records its own.
pub(super) type Key = [u8; 32];

/// Changes that became durable together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) number: u64,
    pub(super) changes: Vec<Change>,
}

/// Blocks that so many bytes of a record take.
const fn padded(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK) * BLOCK
}

/// A record of these changes, padded.
pub(super) fn encode(key: &Key, number: u64, changes: &[Change]) -> Result<Vec<u8>, StoreError> {
    let payload = codec::encode(&changes, PAYLOAD).map_err(|error| StoreError::corrupt(error.to_string()))?;
    let mut bytes = Vec::with_capacity(padded(HEADER + payload.len()));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(&payload);
    let digest = Digest::of(&bytes);
    bytes[KEY].copy_from_slice(digest.bytes());
    bytes.resize(padded(bytes.len()), 0);
    Ok(bytes)
}

/// The record that begins here, and its length with padding; nothing if none does.
pub(super) fn decode(key: &Key, bytes: &[u8]) -> Option<(Record, usize)> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let (record, length) = (number(8)?, number(16)?);
    let end = HEADER.checked_add(usize::try_from(length).ok()?)?;
    let mut whole = bytes.get(..end)?.to_vec();
    let stated: Key = whole.get(KEY)?.try_into().ok()?;
    whole.get_mut(KEY)?.copy_from_slice(key);
    if Digest::of(&whole).bytes() != &stated {
        return None;
    }
    let changes = codec::decode(whole.get(HEADER..)?, PAYLOAD).ok()?;
    Some((Record { number: record, changes }, padded(end)))
}

/// The length of the record that seems to begin with this block, with padding.
fn length(block: &[u8]) -> Option<usize> {
    let length = u64::from_le_bytes(block.get(16..24)?.try_into().ok()?);
    let whole = HEADER.checked_add(usize::try_from(length).ok()?)?;
    (block.get(..8)? == MAGIC && length <= PAYLOAD).then(|| padded(whole))
}

/// Every record in so many bytes, which are whole blocks; `read` fills a slice from a place on. What is no record is passed
/// over, block by block.
pub(super) fn scan(
    key: &Key,
    bytes: u64,
    read: impl Fn(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<Vec<Record>> {
    let (mut found, mut at, mut block) = (Vec::new(), 0, vec![0; BLOCK]);
    while at < bytes {
        read(&mut block, at)?;
        let mut passed = BLOCK as u64;
        if let Some(length) = length(&block).filter(|length| *length as u64 <= bytes - at) {
            let mut whole = vec![0; length];
            read(&mut whole, at)?;
            if let Some((record, length)) = decode(key, &whole) {
                found.push(record);
                passed = length as u64;
            }
        }
        at += passed;
    }
    Ok(found)
}

/// The same of bytes in memory.
#[cfg(test)]
pub(super) fn scan_bytes(key: &Key, bytes: &[u8]) -> Vec<Record> {
    let mut bytes = bytes.to_vec();
    bytes.resize(padded(bytes.len()), 0);
    let read = |into: &mut [u8], at: u64| {
        let at = usize::try_from(at).unwrap();
        into.copy_from_slice(&bytes[at..at + into.len()]);
        Ok(())
    };
    scan(key, bytes.len() as u64, read).unwrap()
}

/// Of all records found, in any order, those after `applied`, in order.
///
/// # Errors
/// One is missing. The last record may be torn, for it was never acknowledged; but a record was begun only when the one
/// before it was safe, so a gap means that something acknowledged is lost.
pub(super) fn pending(mut found: Vec<Record>, applied: u64) -> Result<Vec<Record>, StoreError> {
    found.retain(|record| record.number > applied);
    found.sort_unstable_by_key(|record| record.number);
    for (record, wanted) in found.iter().zip(applied.saturating_add(1)..) {
        if record.number != wanted {
            let what = format!(
                "the journal lacks record {wanted} though it has {}: restore a backup of the folder",
                record.number
            );
            return Err(StoreError::corrupt(what));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::chap::{Entry, Notice, Object, ObjectKey, ObjectKind};
    use choir_messages::time::Timestamp;
    use proptest::prelude::*;

    const A_KEY: Key = [7; 32];

    fn change(workspace: &str, text: &str) -> Change {
        Change {
            workspace: workspace.to_owned(),
            version_before: 1,
            version_after: 3,
            meta: "{}".to_owned(),
            puts: vec![Object {
                key: ObjectKey { kind: ObjectKind::Task, id: "t".to_owned() },
                body: text.to_owned(),
                open: true,
                due: Some(Timestamp::from_millis(9)),
            }],
            removes: vec![ObjectKey { kind: ObjectKind::Record, id: text.to_owned() }],
            entries: vec![Entry {
                seq: 4,
                arrived: Timestamp::from_millis(5),
                record: text.to_owned(),
                refused: Some(-32011),
                prev_hash: None,
                method: "m".to_owned(),
                from: Some(text.to_owned()),
                tasks: vec!["t".to_owned()],
            }],
            notices: vec![Notice { number: 1, to: "p".to_owned(), body: text.to_owned() }],
        }
    }

    #[test]
    fn the_form_of_a_record_is_what_earlier_versions_wrote() {
        // When this fails the magic must change, or a journal that an earlier version left behind is misread.
        let bytes = encode(&A_KEY, 5, &[change("w", "x")]).unwrap();
        assert_eq!(bytes.len(), BLOCK);
        let digest = Digest::of(&bytes).to_string();
        assert_eq!(digest, "376bd3ce0598bc023372cf19723fbb9e47541fa948b32c2dc4d4ed1f8716c9c0");
    }

    #[test]
    fn a_record_in_a_strangers_text_is_not_taken_for_one() {
        // The text is such that the inner record begins a block; its writer does not know the key.
        let inner = encode(&[0; 32], 2, &[change("forged", "x")]).unwrap();
        let outer = encode(&A_KEY, 1, &[change("w", "y")]).unwrap();
        let mut bytes = outer.clone();
        bytes.extend(&inner);
        assert_eq!(scan_bytes(&A_KEY, &bytes).len(), 1);
        bytes[60] ^= 1;
        assert_eq!(scan_bytes(&A_KEY, &bytes), Vec::new());
    }

    proptest! {
        #[test]
        fn records_come_back_and_any_damage_is_seen(
            texts in prop::collection::vec(".{0,3000}", 1..5), number: u64, place: prop::sample::Index, bit in 0u8..8,
        ) {
            let changes: Vec<Change> = texts.iter().map(|text| change("w", text)).collect();
            let bytes = encode(&A_KEY, number, &changes).unwrap();
            prop_assert_eq!(bytes.len() % BLOCK, 0);
            let (record, length) = decode(&A_KEY, &bytes).unwrap();
            prop_assert_eq!(length, bytes.len());
            prop_assert_eq!(record, Record { number, changes });
            let mut damaged = bytes.clone();
            let place = place.index(damaged.len());
            damaged[place] ^= 1 << bit;
            // What is only padding may be anything.
            let end = HEADER + u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
            prop_assert_eq!(decode(&A_KEY, &damaged).is_none(), place < end);
            prop_assert!(decode(&A_KEY, &bytes[..place.min(end - 1)]).is_none());
        }

        #[test]
        fn noise_is_no_record(bytes: Vec<u8>) {
            prop_assert!(scan_bytes(&A_KEY, &bytes).is_empty());
            let mut begun = MAGIC.to_vec();
            begun.extend(bytes);
            prop_assert!(scan_bytes(&A_KEY, &begun).is_empty());
        }

        /// However far the tables are and whatever old records lie about, what is pending is all that follows, in order;
        /// and a hole in it is never passed over.
        #[test]
        fn what_is_pending_follows_what_was_applied_without_a_gap(
            applied in 0u64..20, newest in 0u64..30, oldest in 0u64..20, lost in 0u64..30,
        ) {
            let number = |number| Record { number, changes: Vec::new() };
            let found: Vec<Record> = (oldest..=newest).filter(|n| *n != lost).rev().map(number).collect();
            let hole = |n: u64| n == lost || n < oldest;
            match pending(found, applied) {
                Ok(pending) => {
                    let numbers: Vec<u64> = pending.iter().map(|record| record.number).collect();
                    let wanted: Vec<u64> = (applied + 1..=newest).filter(|n| !hole(*n)).collect();
                    prop_assert_eq!(&numbers, &wanted);
                    prop_assert!(numbers.iter().zip(applied + 1..).all(|(a, b)| *a == b));
                }
                Err(_) => prop_assert!((applied + 1..newest).any(hole)),
            }
        }
    }
}
