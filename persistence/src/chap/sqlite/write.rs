//! What a change writes, statement by statement, within a transaction of the tables'. A change that comes here is durable
//! already, so nothing in it may be refused: only the file itself can fail.

use std::collections::HashSet;

use choir_messages::chap::{Change, Entry, ErasedRecord, Erasure, ObjectKind};
use choir_messages::time::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::super::{convert, names};
use super::shared::Head;
use crate::error::StoreError;

/// Writes a merged change, unless its workspace is not where the change begins; whether it did.
pub(super) fn change(connection: &Connection, change: &Change) -> Result<bool, StoreError> {
    let name = names::key(&change.workspace);
    let found: Option<(i64, i64, i64)> = connection
        .prepare_cached("SELECT ws, version, entries FROM workspaces WHERE name = ?1")?
        .query_row([&name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let (version, entries) = found.map_or((0, 0), |(_, version, entries)| (version, entries));
    let Some(Head { version, entries }) = after(change, Head { version, entries }) else { return Ok(false) };
    let ws = match found {
        Some((ws, ..)) => {
            connection
                .prepare_cached("UPDATE workspaces SET version = ?2, entries = ?3, meta = ?4 WHERE ws = ?1")?
                .execute(params![ws, version, entries, change.meta])?;
            ws
        }
        None => {
            connection
                .prepare_cached(
                    "INSERT INTO workspaces (name, name_json, version, entries, meta) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![
                    name,
                    names::beside(&change.workspace, &name),
                    version,
                    entries,
                    change.meta
                ])?;
            connection.last_insert_rowid()
        }
    };
    objects(connection, ws, change)?;
    for one in &change.entries {
        entry(connection, ws, one)?;
    }
    // Of entries of this very change as well.
    erase(connection, ws, change)?;
    let mut notices = connection.prepare_cached(
        "INSERT OR REPLACE INTO notices (ws, recipient, number, body) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for notice in &change.notices {
        notices.execute(params![ws, names::key(&notice.to), convert::number(notice.number), notice.body])?;
    }
    Ok(true)
}

/// Whether the change orders a record erased.
pub(super) fn erases(change: &Change) -> bool {
    change.puts.iter().any(|object| object.key.kind == ObjectKind::Erasure)
}

fn objects(connection: &Connection, ws: i64, change: &Change) -> Result<(), StoreError> {
    if !change.removes.is_empty() {
        let mut remove =
            connection.prepare_cached("DELETE FROM objects WHERE ws = ?1 AND kind = ?2 AND name = ?3")?;
        for key in &change.removes {
            remove.execute(params![ws, key.kind.as_str(), names::key(&key.id)])?;
        }
    }
    let mut put = connection.prepare_cached(
        "INSERT INTO objects (ws, kind, name, name_json, body, open, due) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
         ON CONFLICT DO UPDATE SET body = excluded.body, open = excluded.open, due = excluded.due",
    )?;
    for object in &change.puts {
        let name = names::key(&object.key.id);
        put.execute(params![
            ws,
            object.key.kind.as_str(),
            name,
            names::beside(&object.key.id, &name),
            object.body,
            object.open,
            object.due.map(|at| convert::bound(at.millis())),
        ])?;
    }
    Ok(())
}

fn entry(connection: &Connection, ws: i64, entry: &Entry) -> Result<(), StoreError> {
    let seq = convert::number(entry.seq);
    let sender = entry.from.as_deref().map(names::key);
    let beside =
        entry.from.as_deref().zip(sender.as_deref()).and_then(|(name, key)| names::beside(name, key));
    connection
        .prepare_cached(
            "INSERT INTO entries
                 (ws, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
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
    let mut about =
        connection.prepare_cached("INSERT OR IGNORE INTO entry_tasks (ws, task, seq) VALUES (?1, ?2, ?3)")?;
    let mut named = HashSet::new();
    for task in entry.tasks.iter().filter(|task| named.insert(task.as_str())) {
        about.execute(params![ws, names::key(task), seq])?;
    }
    Ok(())
}

fn erase(connection: &Connection, ws: i64, change: &Change) -> Result<(), StoreError> {
    for object in change.puts.iter().filter(|object| object.key.kind == ObjectKind::Erasure) {
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
