//! What a change writes, statement by statement, within a transaction of the tables'. A change that comes here is durable
//! already, so nothing in it may be refused: only the file itself can fail.

use std::collections::{BTreeMap, HashSet};

use choir_messages::chap::{Change, ErasedRecord, Erasure, Object, ObjectKey, ObjectKind};
use choir_messages::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::super::{convert, names};
use super::shared::Head;
use crate::error::StoreError;

/// Writes changes of one workspace, which follow each other, unless it is not where they begin; whether it did. What they
/// change more than once is written once.
pub(super) fn changes(connection: &Connection, changes: &[&Change]) -> Result<bool, StoreError> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return Ok(true) };
    let name = names::key(&first.workspace);
    let found: Option<(i64, i64, i64)> = connection
        .prepare_cached("SELECT ws, version, entries FROM workspaces WHERE name = ?1")?
        .query_row([&name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (version, entries) = found.map_or((0, 0), |(_, version, entries)| (version, entries));
    let stands = changes.iter().try_fold(Head { version, entries }, |head, change| after(change, head));
    let Some(Head { version, entries }) = stands else { return Ok(false) };
    let ws = match found {
        Some((ws, ..)) => {
            connection
                .prepare_cached("UPDATE workspaces SET version = ?2, entries = ?3, meta = ?4 WHERE ws = ?1")?
                .execute(params![ws, version, entries, last.meta])?;
            ws
        }
        None => {
            connection
                .prepare_cached(
                    "INSERT INTO workspaces (name, name_json, version, entries, meta) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![
                    name,
                    names::beside(&first.workspace, &name),
                    version,
                    entries,
                    last.meta
                ])?;
            connection.last_insert_rowid()
        }
    };
    objects(connection, ws, changes)?;
    write_entries(connection, ws, changes)?;
    // Of entries of these very changes as well.
    erase(connection, ws, changes)?;
    notices(connection, ws, changes)?;
    Ok(true)
}

/// Whether the change orders a record erased.
pub(super) fn erases(change: &Change) -> bool {
    change.puts.iter().any(|object| object.key.kind == ObjectKind::Erasure)
}

/// The last word on each object counts.
fn objects(connection: &Connection, ws: i64, changes: &[&Change]) -> Result<(), StoreError> {
    let mut last: BTreeMap<&ObjectKey, Option<&Object>> = BTreeMap::new();
    for change in changes {
        // Within one change an object that is removed and put is meant to be there.
        last.extend(change.removes.iter().map(|key| (key, None)));
        last.extend(change.puts.iter().map(|object| (&object.key, Some(object))));
    }
    let mut remove =
        connection.prepare_cached("DELETE FROM objects WHERE ws = ?1 AND kind = ?2 AND name = ?3")?;
    let mut put = connection.prepare_cached(
        "INSERT INTO objects (ws, kind, name, name_json, body, open, due) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET body = excluded.body, open = excluded.open, due = excluded.due",
    )?;
    for (key, object) in last {
        let (kind, name) = (key.kind.as_str(), names::key(&key.id));
        match object {
            None => remove.execute(params![ws, kind, name])?,
            Some(object) => put.execute(params![
                ws,
                kind,
                name,
                names::beside(&key.id, &name),
                object.body,
                object.open,
                object.due.map(|at| convert::bound(at.millis())),
            ])?,
        };
    }
    Ok(())
}

fn write_entries(connection: &Connection, ws: i64, changes: &[&Change]) -> Result<(), StoreError> {
    let mut append = connection.prepare_cached(
        "INSERT INTO entries
             (ws, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?;
    let mut about =
        connection.prepare_cached("INSERT OR IGNORE INTO entry_tasks (ws, task, seq) VALUES (?1, ?2, ?3)")?;
    for entry in changes.iter().flat_map(|change| &change.entries) {
        let seq = convert::number(entry.seq);
        let sender = entry.from.as_deref().map(names::key);
        let beside =
            entry.from.as_deref().zip(sender.as_deref()).and_then(|(name, key)| names::beside(name, key));
        append.execute(params![
            ws,
            seq,
            convert::number(entry.arrived.millis()),
            entry.refused,
            names::key(&entry.method),
            sender,
            beside,
            convert::tasks_json(&entry.tasks),
            entry.record,
            entry.prev_hash,
        ])?;
        let mut named = HashSet::new();
        for task in entry.tasks.iter().filter(|task| named.insert(task.as_str())) {
            about.execute(params![ws, names::key(task), seq])?;
        }
    }
    Ok(())
}

fn notices(connection: &Connection, ws: i64, changes: &[&Change]) -> Result<(), StoreError> {
    let mut tell = connection.prepare_cached(
        "INSERT OR REPLACE INTO notices (ws, recipient, number, body) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for notice in changes.iter().flat_map(|change| &change.notices) {
        tell.execute(params![ws, names::key(&notice.to), convert::number(notice.number), notice.body])?;
    }
    Ok(())
}

fn erase(connection: &Connection, ws: i64, changes: &[&Change]) -> Result<(), StoreError> {
    let puts = changes.iter().flat_map(|change| &change.puts);
    for object in puts.filter(|object| object.key.kind == ObjectKind::Erasure) {
        let order = serde_json::from_str::<Erasure>(&object.body).ok().zip(object.key.id.parse::<i64>().ok());
        let Some((erasure, seq)) = order else {
            tracing::error!("a redaction's order cannot be read; nothing was erased by it");
            continue;
        };
        let record: Option<String> = connection
            .prepare_cached("SELECT record FROM entries WHERE ws = ?1 AND seq = ?2")?
            .query_row([ws, seq], |row| row.get(0))
            .optional()?;
        // An order that is stored again erases nothing again.
        if let Some(record) = record.filter(|record| ErasedRecord::read(record).is_none()) {
            connection
                .prepare_cached("UPDATE entries SET record = ?3 WHERE ws = ?1 AND seq = ?2")?
                .execute(params![ws, seq, ErasedRecord::of(&record, erasure.by_seq).to_string()])?;
        }
    }
    Ok(())
}

/// Where a workspace stands, by the key of its name; one that is not there stands at the beginning.
pub(super) fn head(connection: &Connection, key: &str) -> Result<Head, StoreError> {
    let found = connection
        .prepare_cached("SELECT version, entries FROM workspaces WHERE name = ?1")?
        .query_row([key], |row| Ok(Head { version: row.get(0)?, entries: row.get(1)? }))
        .optional()?;
    Ok(found.unwrap_or(Head { version: 0, entries: 0 }))
}

/// Where a change leaves its workspace, if that stands where the change begins.
pub(super) fn after(change: &Change, head: Head) -> Option<Head> {
    let continues = change.entries.first().is_none_or(|first| convert::number(first.seq) == head.entries);
    let fits = continues && head.version == convert::number(change.version_before);
    let entries = change.entries.last().map_or(head.entries, |e| convert::number(e.seq.saturating_add(1)));
    fits.then(|| Head { version: convert::number(change.version_after), entries })
}

/// Removes notices that are not wanted again; how many.
pub(super) fn prune_notices(
    connection: &Connection,
    workspace: &str,
    participant: &str,
    up_to: u64,
    keep: usize,
    older_than: Timestamp,
) -> Result<u64, StoreError> {
    // Times in notices are the Coordinator's own, in one form, so their order is that of their texts.
    let pruned = connection
        .prepare_cached(
            "DELETE FROM notices
             WHERE ws = (SELECT ws FROM workspaces WHERE name = ?1) AND recipient = ?2 AND number <= ?3
                 AND (number <= COALESCE(
                         (SELECT k.number FROM notices k
                          WHERE k.ws = notices.ws AND k.recipient = ?2 AND k.number <= ?3
                          ORDER BY k.number DESC LIMIT 1 OFFSET ?4), 0)
                     OR json_extract(body, '$.params.ts') < ?5)",
        )?
        .execute(params![
            names::key(workspace),
            names::key(participant),
            convert::bound(up_to),
            i64::try_from(keep).unwrap_or(i64::MAX),
            older_than.to_string(),
        ])?;
    Ok(u64::try_from(pruned).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chap::sqlite::file;
    use choir_messages::chap::{Entry, Notice};
    use proptest::prelude::*;

    /// What one change does: bodies to put under ids, ids to remove, tasks of its entries, a number to erase.
    type Step = (Vec<(u8, u8)>, Vec<u8>, Vec<Vec<u8>>, Option<u8>);

    fn key(id: u8) -> ObjectKey {
        ObjectKey { kind: ObjectKind::Task, id: format!("t{id}") }
    }

    fn put(key: ObjectKey, body: String, odd: bool) -> Object {
        Object { key, body, open: odd, due: odd.then(|| Timestamp::from_millis(5)) }
    }

    fn consecutive(steps: &[Step]) -> Vec<Change> {
        let mut seq = 0;
        let change = |(version, (puts, removes, entries, erased)): (u64, &Step)| {
            let first = seq;
            seq += entries.len() as u64;
            let mut puts: Vec<Object> =
                puts.iter().map(|(id, body)| put(key(*id), body.to_string(), body % 2 == 1)).collect();
            if let Some(victim) = erased.filter(|victim| u64::from(*victim) < seq) {
                let erasure = ObjectKey { kind: ObjectKind::Erasure, id: victim.to_string() };
                let by_seq = version;
                puts.push(put(erasure, serde_json::to_string(&Erasure { by_seq }).unwrap(), false));
            }
            let entry = |(n, tasks): (u64, &Vec<u8>)| Entry {
                seq: n,
                arrived: Timestamp::from_millis(n),
                record: format!("record {n}"),
                refused: (n % 3 == 0).then_some(-32602),
                prev_hash: None,
                method: "task.create".to_owned(),
                from: (n % 2 == 0).then(|| "agent:a".to_owned()),
                tasks: tasks.iter().map(|task| format!("t{task}")).collect(),
            };
            Change {
                workspace: "w".to_owned(),
                version_before: version,
                version_after: version + 1,
                meta: version.to_string(),
                removes: removes.iter().map(|id| key(*id)).collect(),
                entries: (first..).zip(entries).map(entry).collect(),
                notices: vec![Notice {
                    number: version + 1,
                    to: "agent:a".to_owned(),
                    body: "{}".to_owned(),
                }],
                puts,
            }
        };
        (0..).zip(steps).map(change).collect()
    }

    fn everything(connection: &Connection) -> Vec<Vec<rusqlite::types::Value>> {
        let mut rows = Vec::new();
        for table in ["workspaces", "objects", "entries", "entry_tasks", "notices"] {
            let mut all = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).unwrap();
            let columns = all.column_count();
            let read = all.query_map([], |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
            rows.extend(read.map(Result::unwrap));
        }
        rows
    }

    fn tables() -> (tempfile::TempDir, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("workspaces.sqlite");
        file::create(&path).unwrap();
        let connection = file::writer(&path).unwrap();
        (folder, connection)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// In whatever batches changes are brought in, the tables come out the same.
        #[test]
        fn changes_together_write_what_they_write_one_after_the_other(
            steps in prop::collection::vec((
                prop::collection::vec((0u8..4, any::<u8>()), 0..4),
                prop::collection::vec(0u8..4, 0..3),
                prop::collection::vec(prop::collection::vec(0u8..3, 0..3), 0..3),
                prop::option::weighted(0.2, 0u8..8),
            ), 1..10),
            cut: prop::sample::Index,
        ) {
            let steps = consecutive(&steps);
            let all: Vec<&Change> = steps.iter().collect();
            let ((_one, alone), (_two, together)) = (tables(), tables());
            for change in &all {
                prop_assert!(changes(&alone, &[change]).unwrap());
            }
            let (first, second) = all.split_at(cut.index(all.len()));
            prop_assert!(changes(&together, first).unwrap() && changes(&together, second).unwrap());
            prop_assert_eq!(everything(&alone), everything(&together));
            // Whatever was brought in already is not where the workspace stands.
            prop_assert!(!changes(&together, &all).unwrap());
        }
    }
}
