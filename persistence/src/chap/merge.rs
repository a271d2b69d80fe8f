//! Several changes of one workspace as the one change that has the same effect.

use std::collections::BTreeMap;

use choir_messages::chap::{Change, Object, ObjectKey};

use crate::error::StoreError;

/// The changes as one; none for none. They must be of one workspace and follow each other.
pub(crate) fn merge(changes: Vec<Change>) -> Result<Option<Change>, StoreError> {
    let mut changes = changes.into_iter();
    let Some(mut whole) = changes.next() else { return Ok(None) };
    let mut objects: BTreeMap<ObjectKey, Option<Object>> = BTreeMap::new();
    fold(&mut objects, std::mem::take(&mut whole.puts), std::mem::take(&mut whole.removes));
    for next in changes {
        if next.workspace != whole.workspace {
            return Err(StoreError::Invalid("changes of two workspaces cannot be one commit"));
        }
        if next.version_before != whole.version_after {
            return Err(StoreError::Invalid("the changes of one commit do not follow each other"));
        }
        whole.version_after = next.version_after;
        whole.meta = next.meta;
        whole.entries.extend(next.entries);
        whole.notices.extend(next.notices);
        fold(&mut objects, next.puts, next.removes);
    }
    if whole.version_after <= whole.version_before {
        return Err(StoreError::Invalid("a change must raise the version"));
    }
    let consecutive = whole.entries.windows(2).all(|pair| match pair {
        [a, b] => a.seq.checked_add(1) == Some(b.seq),
        _ => true,
    });
    if !consecutive {
        return Err(StoreError::Invalid("the entries of one commit do not follow each other"));
    }
    for (key, object) in objects {
        match object {
            Some(object) => whole.puts.push(object),
            None => whole.removes.push(key),
        }
    }
    Ok(Some(whole))
}

/// The last word on each object counts.
fn fold(objects: &mut BTreeMap<ObjectKey, Option<Object>>, puts: Vec<Object>, removes: Vec<ObjectKey>) {
    // Within one change an object that is removed and put is meant to be there.
    for key in removes {
        objects.insert(key, None);
    }
    for object in puts {
        objects.insert(object.key.clone(), Some(object));
    }
}

/// The text of a change in bytes: what it weighs in a group.
pub(crate) fn weight(change: &Change) -> usize {
    let objects: usize = change.puts.iter().map(|o| o.body.len().saturating_add(o.key.id.len())).sum();
    let entries: usize = change.entries.iter().map(|e| e.record.len()).sum();
    let notices: usize = change.notices.iter().map(|n| n.body.len()).sum();
    change.meta.len().saturating_add(objects).saturating_add(entries).saturating_add(notices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::chap::{Entry, ObjectKind};
    use choir_messages::time::Timestamp;
    use proptest::prelude::*;

    fn change(version: u64, puts: &[(u8, u8)], removes: &[u8], entries: std::ops::Range<u64>) -> Change {
        let key = |id: u8| ObjectKey { kind: ObjectKind::Task, id: id.to_string() };
        Change {
            workspace: "w".to_owned(),
            version_before: version,
            version_after: version + 1,
            meta: version.to_string(),
            puts: puts
                .iter()
                .map(|(id, body)| Object { key: key(*id), body: body.to_string(), open: true, due: None })
                .collect(),
            removes: removes.iter().map(|id| key(*id)).collect(),
            entries: entries
                .map(|seq| Entry {
                    seq,
                    arrived: Timestamp::from_millis(0),
                    record: seq.to_string(),
                    refused: None,
                    prev_hash: None,
                    method: String::new(),
                    from: None,
                    tasks: Vec::new(),
                })
                .collect(),
            notices: Vec::new(),
        }
    }

    fn apply(state: &mut BTreeMap<ObjectKey, String>, change: &Change) {
        for key in &change.removes {
            state.remove(key);
        }
        for object in &change.puts {
            state.insert(object.key.clone(), object.body.clone());
        }
    }

    proptest! {
        #[test]
        fn the_merged_change_does_what_the_changes_do_one_after_the_other(
            steps in prop::collection::vec(
                (prop::collection::vec((0u8..6, any::<u8>()), 0..4), prop::collection::vec(0u8..6, 0..3)), 1..12)
        ) {
            let mut seq = 0;
            let changes: Vec<Change> = steps.iter().enumerate().map(|(n, (puts, removes))| {
                let first = seq;
                seq += n as u64 % 3;
                change(n as u64, puts, removes, first..seq)
            }).collect();
            let (mut one_by_one, mut at_once) = (BTreeMap::new(), BTreeMap::new());
            for c in &changes {
                apply(&mut one_by_one, c);
            }
            let last = changes.last().unwrap().clone();
            let entries: Vec<Entry> = changes.iter().flat_map(|c| c.entries.clone()).collect();
            let whole = merge(changes).unwrap().unwrap();
            let mut named: Vec<&ObjectKey> = whole.puts.iter().map(|o| &o.key).chain(&whole.removes).collect();
            let all = named.len();
            named.sort();
            named.dedup();
            prop_assert_eq!(named.len(), all, "each object once");
            apply(&mut at_once, &whole);
            prop_assert_eq!(one_by_one, at_once);
            prop_assert_eq!((whole.version_before, whole.version_after), (0, last.version_after));
            prop_assert_eq!((whole.meta, whole.entries), (last.meta, entries));
        }
    }

    #[test]
    fn changes_that_do_not_follow_each_other_are_refused() {
        assert!(merge(Vec::new()).unwrap().is_none());
        assert!(merge(vec![change(1, &[], &[], 0..0), change(3, &[], &[], 0..0)]).is_err());
        assert!(merge(vec![change(1, &[], &[], 0..1), change(2, &[], &[], 2..3)]).is_err());
        let other = Change { workspace: "v".to_owned(), ..change(2, &[], &[], 0..0) };
        assert!(merge(vec![change(1, &[], &[], 0..0), other]).is_err());
        let still = Change { version_after: 1, ..change(1, &[], &[], 0..0) };
        assert!(merge(vec![still]).is_err());
    }
}
