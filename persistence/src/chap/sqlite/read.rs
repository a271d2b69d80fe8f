//! Reads of the file: each of one snapshot, and served by an index in its order.

use std::borrow::Cow;

use choir_messages::chap::{Entry, EntryPage, EntryQuery, Notice, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Row, params, params_from_iter};

use super::super::convert::ObjectRow;
use super::super::{Due, WorkspaceSummary, convert, names};
use crate::error::StoreError;
use crate::limits::{CHAP_PAGE, CHAP_PAGE_BYTES};
use crate::store::ids;

type Result<T> = std::result::Result<T, StoreError>;

/// The number of a workspace and how long its log is.
fn place(connection: &Connection, workspace: &str) -> Result<Option<(i64, u64)>> {
    let found: Option<(i64, i64)> = connection
        .prepare_cached("SELECT ws, entries FROM workspaces WHERE name = ?1")?
        .query_row([names::key(workspace)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    found.map(|(ws, entries)| Ok((ws, convert::count(entries)?))).transpose()
}

fn rows_wanted(limit: usize) -> i64 {
    convert::bound(u64::try_from(limit.min(CHAP_PAGE)).unwrap_or(u64::MAX))
}

/// How keys of names after this one, or all, compare with what.
fn beyond(after: Option<&str>) -> (&'static str, Cow<'_, str>) {
    after.map_or((">=", Cow::Borrowed("")), |name| (">", names::key(name)))
}

/// Reads kind, name, name_json, body, open, due.
fn object(row: &Row<'_>) -> rusqlite::Result<ObjectRow> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
}

pub(super) fn open(connection: &Connection, workspace: &str) -> Result<Option<Opened>> {
    let snapshot = connection.unchecked_transaction()?;
    let head: Option<(i64, i64, String)> = snapshot
        .prepare_cached("SELECT ws, version, meta FROM workspaces WHERE name = ?1")?
        .query_row([names::key(workspace)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((ws, version, meta)) = head else { return Ok(None) };
    let members = snapshot
        .prepare_cached(
            "SELECT kind, name, name_json, body, open, due FROM objects
             WHERE ws = ?1 AND kind = ?2 ORDER BY name",
        )?
        .query_map(params![ws, ObjectKind::Member.as_str()], object)?
        .map(|row| convert::object(row?))
        .collect::<Result<Vec<_>>>()?;
    Ok(Some(Opened { version: convert::count(version)?, meta, members }))
}

pub(super) fn load(connection: &Connection, workspace: &str, keys: &[ObjectKey]) -> Result<Vec<Object>> {
    let Some((ws, _)) = place(connection, workspace)? else { return Ok(Vec::new()) };
    let mut one = connection.prepare_cached(
        "SELECT kind, name, name_json, body, open, due FROM objects WHERE ws = ?1 AND kind = ?2 AND name = ?3",
    )?;
    let mut keys: Vec<&ObjectKey> = keys.iter().collect();
    keys.sort_unstable();
    keys.dedup();
    let mut found = Vec::with_capacity(keys.len());
    for key in keys {
        let row = one.query_row(params![ws, key.kind.as_str(), names::key(&key.id)], object).optional()?;
        found.extend(row.map(convert::object).transpose()?);
    }
    Ok(found)
}

pub(super) fn open_objects(
    connection: &Connection,
    workspace: &str,
    kind: ObjectKind,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Object>> {
    let (beyond, after) = beyond(after);
    let sql = format!(
        "SELECT kind, name, name_json, body, open, due FROM objects INDEXED BY objects_open
         WHERE ws = (SELECT ws FROM workspaces WHERE name = ?1) AND kind = ?2 AND open AND name {beyond} ?3
         ORDER BY name LIMIT ?4"
    );
    connection
        .prepare_cached(&sql)?
        .query_map(params![names::key(workspace), kind.as_str(), after, rows_wanted(limit)], object)?
        .map(|row| convert::object(row?))
        .collect()
}

/// The most matching entries of a page that are read.
pub(super) enum Upto {
    /// As many as a page has.
    Page,
    /// This many; beyond it there is no answer.
    Rows(usize),
}

/// A page of a log; none if it has more matches than were to be read.
pub(super) fn entries(
    connection: &Connection,
    workspace: &str,
    query: &EntryQuery,
    upto: &Upto,
) -> Result<Option<EntryPage>> {
    let snapshot = connection.unchecked_transaction()?;
    let mut page = EntryPage { entries: Vec::new(), next_seq: 0 };
    let Some((ws, end)) = place(&snapshot, workspace)? else { return Ok(Some(page)) };
    let to = query.to_seq.unwrap_or(end).min(end);
    page.next_seq = query.from_seq.max(to).min(end);
    let limit = query.limit.clamp(1, CHAP_PAGE);
    let (sql, bound) = select_entries(ws, query, limit);
    let mut statement = snapshot.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(bound))?;
    let mut bytes = 0usize;
    while let Some(row) = rows.next()? {
        if let Upto::Rows(most) = upto
            && page.entries.len() == *most
        {
            return Ok(None);
        }
        let entry = entry(row)?;
        bytes = bytes.saturating_add(entry.record.len());
        if let Some(last) = page.entries.last()
            && (page.entries.len() == limit || bytes > CHAP_PAGE_BYTES)
        {
            page.next_seq = last.seq.saturating_add(1);
            break;
        }
        page.entries.push(entry);
    }
    Ok(Some(page))
}

/// Entries that match, in order, by the index of the rarest thing asked for: a task, a sender, a method. One text a
/// combination of filters. One more than wanted tells whether there are more.
fn select_entries(ws: i64, query: &EntryQuery, limit: usize) -> (String, Vec<Value>) {
    let mut bound = vec![
        Value::from(ws),
        Value::from(convert::bound(query.from_seq)),
        Value::from(convert::bound(query.to_seq.unwrap_or(u64::MAX))),
    ];
    let mut conditions = String::new();
    let mut wants = |column: &str, name: Option<&String>| {
        if let Some(name) = name {
            bound.push(Value::from(names::key(name).into_owned()));
            conditions.push_str(&format!(" AND {column} = ?{}", bound.len()));
        }
    };
    wants("t.task", query.task.as_ref());
    wants("e.sender", query.from.as_ref());
    wants("e.method", query.method.as_ref());
    match query.refused {
        Some(true) => conditions.push_str(" AND e.refused IS NOT NULL"),
        Some(false) => conditions.push_str(" AND e.refused IS NULL"),
        None => {}
    }
    let (from, place) = if query.task.is_some() {
        ("entry_tasks t CROSS JOIN entries e ON e.ws = t.ws AND e.seq = t.seq", "t")
    } else if query.from.is_some() {
        ("entries e INDEXED BY entries_by_sender", "e")
    } else if query.method.is_some() {
        ("entries e INDEXED BY entries_by_method", "e")
    } else if query.refused == Some(true) {
        ("entries e INDEXED BY entries_refused", "e")
    } else {
        ("entries e", "e")
    };
    bound.push(Value::from(rows_wanted(limit).saturating_add(1)));
    let sql = format!(
        "SELECT e.seq, e.arrived, e.refused, e.method, e.sender, e.sender_json, e.tasks_json, e.record, e.prev_hash
         FROM {from} WHERE {place}.ws = ?1 AND {place}.seq >= ?2 AND {place}.seq < ?3{conditions}
         ORDER BY {place}.seq LIMIT ?{}",
        bound.len()
    );
    (sql, bound)
}

fn entry(row: &Row<'_>) -> Result<Entry> {
    let sender_json: Option<String> = row.get(5)?;
    let tasks: Option<String> = row.get(6)?;
    Ok(Entry {
        seq: convert::count(row.get(0)?)?,
        arrived: Timestamp::from_millis(convert::count(row.get(1)?)?),
        record: row.get(7)?,
        refused: row.get(2)?,
        prev_hash: row.get(8)?,
        method: row.get(3)?,
        from: row
            .get::<_, Option<String>>(4)?
            .map(|key| names::name(key, sender_json.as_deref()))
            .transpose()?,
        tasks: convert::tasks(tasks.as_deref())?,
    })
}

pub(super) fn notices(
    connection: &Connection,
    workspace: &str,
    participant: &str,
    after: u64,
    limit: usize,
) -> Result<Vec<Notice>> {
    let mut statement = connection.prepare_cached(
        "SELECT number, body FROM notices
         WHERE ws = (SELECT ws FROM workspaces WHERE name = ?1) AND recipient = ?2 AND number > ?3
         ORDER BY number LIMIT ?4",
    )?;
    let mut rows = statement.query(params![
        names::key(workspace),
        names::key(participant),
        convert::bound(after),
        rows_wanted(limit.max(1)),
    ])?;
    let (mut page, mut bytes) = (Vec::new(), 0usize);
    while let Some(row) = rows.next()? {
        let body: String = row.get(1)?;
        bytes = bytes.saturating_add(body.len());
        if bytes > CHAP_PAGE_BYTES && !page.is_empty() {
            break;
        }
        page.push(Notice { number: convert::count(row.get(0)?)?, to: participant.to_owned(), body });
    }
    Ok(page)
}

pub(super) fn due(
    connection: &Connection,
    until: Timestamp,
    except: &[String],
    limit: usize,
) -> Result<Vec<Due>> {
    let except: Vec<Cow<'_, str>> = except.iter().map(|name| names::key(name)).collect();
    let except = serde_json::to_string(&except).map_err(|error| StoreError::corrupt(error.to_string()))?;
    connection
        .prepare_cached(
            "SELECT w.name, w.name_json, o.kind, o.name, o.name_json, o.due
             FROM objects o INDEXED BY objects_due CROSS JOIN workspaces w ON w.ws = o.ws
             WHERE o.due <= ?1 AND w.name NOT IN (SELECT value FROM json_each(?2))
             ORDER BY o.due LIMIT ?3",
        )?
        .query_map(params![convert::bound(until.millis()), except, rows_wanted(limit)], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, Option<String>>(1)?,
                row.get::<_, String>(2)?,
                row.get::<_, String>(3)?,
                row.get::<_, Option<String>>(4)?,
                row.get::<_, i64>(5)?,
            ))
        })?
        .map(|row| convert::due(row?))
        .collect()
}

pub(super) fn next_due(connection: &Connection, after: Option<Timestamp>) -> Result<Option<Timestamp>> {
    let after = after.map_or(-1, |after| convert::bound(after.millis()));
    let next: Option<i64> = connection
        .prepare_cached("SELECT min(due) FROM objects WHERE due > ?1")?
        .query_row([after], |row| row.get(0))?;
    Ok(next.map(ids::at))
}

pub(super) fn workspaces(
    connection: &Connection,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<WorkspaceSummary>> {
    let (beyond, after) = beyond(after);
    let sql = format!(
        "SELECT name, name_json, version, entries FROM workspaces WHERE name {beyond} ?1 ORDER BY name LIMIT ?2"
    );
    connection
        .prepare_cached(&sql)?
        .query_map(params![after, rows_wanted(limit)], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, Option<String>>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, i64>(3)?,
            ))
        })?
        .map(|row| convert::summary(row?))
        .collect()
}
