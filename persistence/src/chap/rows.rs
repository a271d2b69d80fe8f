//! What a group of commits writes: one statement, whatever the group's size. A workspace whose version does not fit
//! yields no rows at all in it, so a conflict of one costs the others nothing.

use std::collections::HashSet;

use choir_messages::chap::Change;
use sqlx::PgConnection;

use super::names;
use crate::store::ids;

/// The statement. A workspace moves only from the version and the log's end that the change builds on; every other row
/// joins those that moved. It is a transaction of its own, so one round trip makes it durable.
const WRITE: &str = "
WITH heads AS (
    SELECT * FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[])
        AS h (ord, name, name_json, version_before, version_after, meta, entries_before, entries_after)),
created AS (
    INSERT INTO choir_control.chap_workspaces (name, name_json, version, entries, meta)
    SELECT name, name_json, version_after, COALESCE(entries_after, 0), meta FROM heads
    WHERE version_before = 0 AND COALESCE(entries_before, 0) = 0
    ON CONFLICT (name) DO NOTHING RETURNING ws, name),
moved AS (
    UPDATE choir_control.chap_workspaces w
    SET version = h.version_after, meta = h.meta, entries = COALESCE(h.entries_after, w.entries)
    FROM heads h
    WHERE h.version_before > 0 AND w.name = h.name AND w.version = h.version_before
        AND w.entries = COALESCE(h.entries_before, w.entries)
    RETURNING w.ws, h.ord),
taken AS (
    SELECT c.ws, h.ord FROM created c JOIN heads h ON h.name = c.name UNION ALL SELECT ws, ord FROM moved),
removed AS (
    DELETE FROM choir_control.chap_objects o
    USING UNNEST($9::bigint[], $10::text[], $11::text[]) AS r (ord, kind, name) JOIN taken t ON t.ord = r.ord
    WHERE o.ws = t.ws AND o.kind = r.kind AND o.name = r.name),
put AS (
    INSERT INTO choir_control.chap_objects AS o (ws, kind, name, name_json, body, open, due)
    SELECT t.ws, p.kind, p.name, p.name_json, p.body, p.open, p.due
    FROM UNNEST($12::bigint[], $13::text[], $14::text[], $15::text[], $16::text[], $17::boolean[], $18::bigint[])
        AS p (ord, kind, name, name_json, body, open, due) JOIN taken t ON t.ord = p.ord
    ON CONFLICT (ws, kind, name) DO UPDATE SET body = EXCLUDED.body, open = EXCLUDED.open, due = EXCLUDED.due),
entered AS (
    INSERT INTO choir_control.chap_entries
        (ws, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
    SELECT t.ws, e.seq, e.arrived, e.refused, e.method, e.sender, e.sender_json, e.tasks_json, e.record, e.prev_hash
    FROM UNNEST($19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::text[], $24::text[], $25::text[],
                $26::text[], $27::text[], $28::text[])
        AS e (ord, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
        JOIN taken t ON t.ord = e.ord),
about AS (
    INSERT INTO choir_control.chap_entry_tasks (ws, task, seq)
    SELECT t.ws, a.task, a.seq FROM UNNEST($29::bigint[], $30::text[], $31::bigint[]) AS a (ord, task, seq)
        JOIN taken t ON t.ord = a.ord),
noticed AS (
    INSERT INTO choir_control.chap_notices (ws, recipient, number, body)
    SELECT t.ws, n.recipient, n.number, n.body
    FROM UNNEST($32::bigint[], $33::text[], $34::bigint[], $35::text[]) AS n (ord, recipient, number, body)
        JOIN taken t ON t.ord = n.ord)
SELECT ord FROM taken";

/// The columns of a group; texts are borrowed from its changes.
#[derive(Debug, Default)]
pub(crate) struct Rows<'a> {
    head: Heads<'a>,
    removed: Removed<'a>,
    put: Puts<'a>,
    entry: Entries<'a>,
    about: About<'a>,
    notice: Notices<'a>,
}

#[derive(Debug, Default)]
struct Heads<'a> {
    ord: Vec<i64>,
    name: Vec<std::borrow::Cow<'a, str>>,
    name_json: Vec<Option<String>>,
    version_before: Vec<i64>,
    version_after: Vec<i64>,
    meta: Vec<&'a str>,
    entries_before: Vec<Option<i64>>,
    entries_after: Vec<Option<i64>>,
}

#[derive(Debug, Default)]
struct Removed<'a> {
    ord: Vec<i64>,
    kind: Vec<&'a str>,
    name: Vec<std::borrow::Cow<'a, str>>,
}

#[derive(Debug, Default)]
struct Puts<'a> {
    ord: Vec<i64>,
    kind: Vec<&'a str>,
    name: Vec<std::borrow::Cow<'a, str>>,
    name_json: Vec<Option<String>>,
    body: Vec<&'a str>,
    open: Vec<bool>,
    due: Vec<Option<i64>>,
}

#[derive(Debug, Default)]
struct Entries<'a> {
    ord: Vec<i64>,
    seq: Vec<i64>,
    arrived: Vec<i64>,
    refused: Vec<Option<i64>>,
    method: Vec<std::borrow::Cow<'a, str>>,
    sender: Vec<Option<std::borrow::Cow<'a, str>>>,
    sender_json: Vec<Option<String>>,
    tasks_json: Vec<Option<String>>,
    record: Vec<&'a str>,
    prev_hash: Vec<Option<&'a str>>,
}

#[derive(Debug, Default)]
struct About<'a> {
    ord: Vec<i64>,
    task: Vec<std::borrow::Cow<'a, str>>,
    seq: Vec<i64>,
}

#[derive(Debug, Default)]
struct Notices<'a> {
    ord: Vec<i64>,
    recipient: Vec<std::borrow::Cow<'a, str>>,
    number: Vec<i64>,
    body: Vec<&'a str>,
}

/// A number as its column holds it. Versions, places and times are counted up from small ones; one beyond the column
/// would be a defect, and then meets a constraint instead of another number's row.
fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(-1)
}

impl<'a> Rows<'a> {
    /// Takes one merged change; `ord` is its place in the group.
    pub(crate) fn add(&mut self, ord: i64, change: &'a Change) {
        let name = names::key(&change.workspace);
        self.head.ord.push(ord);
        self.head.name_json.push(names::beside(&change.workspace, &name));
        self.head.name.push(name);
        self.head.version_before.push(number(change.version_before));
        self.head.version_after.push(number(change.version_after));
        self.head.meta.push(&change.meta);
        self.head.entries_before.push(change.entries.first().map(|e| number(e.seq)));
        self.head.entries_after.push(change.entries.last().map(|e| number(e.seq.saturating_add(1))));
        for key in &change.removes {
            self.removed.ord.push(ord);
            self.removed.kind.push(key.kind.as_str());
            self.removed.name.push(names::key(&key.id));
        }
        for object in &change.puts {
            let name = names::key(&object.key.id);
            self.put.ord.push(ord);
            self.put.kind.push(object.key.kind.as_str());
            self.put.name_json.push(names::beside(&object.key.id, &name));
            self.put.name.push(name);
            self.put.body.push(&object.body);
            self.put.open.push(object.open);
            // A deadline beyond the column is further off than any clock.
            self.put.due.push(object.due.map(|at| i64::try_from(at.millis()).unwrap_or(i64::MAX)));
        }
        for entry in &change.entries {
            let seq = number(entry.seq);
            let sender = entry.from.as_deref().map(names::key);
            let sender_json =
                entry.from.as_deref().zip(sender.as_deref()).and_then(|(n, k)| names::beside(n, k));
            self.entry.ord.push(ord);
            self.entry.seq.push(seq);
            self.entry.arrived.push(number(entry.arrived.millis()));
            self.entry.refused.push(entry.refused);
            self.entry.method.push(names::key(&entry.method));
            self.entry.sender.push(sender);
            self.entry.sender_json.push(sender_json);
            self.entry.tasks_json.push(
                (!entry.tasks.is_empty()).then(|| serde_json::Value::from(entry.tasks.clone()).to_string()),
            );
            self.entry.record.push(&entry.record);
            self.entry.prev_hash.push(entry.prev_hash.as_deref());
            let mut named = HashSet::new();
            for task in entry.tasks.iter().filter(|task| named.insert(task.as_str())) {
                self.about.ord.push(ord);
                self.about.task.push(names::key(task));
                self.about.seq.push(seq);
            }
        }
        for notice in &change.notices {
            self.notice.ord.push(ord);
            self.notice.recipient.push(names::key(&notice.to));
            self.notice.number.push(number(notice.number));
            self.notice.body.push(&notice.body);
        }
    }

    /// Writes everything; returns the places of the changes that were taken. The others conflict.
    pub(crate) async fn write(&self, connection: &mut PgConnection) -> Result<HashSet<i64>, sqlx::Error> {
        let Self { head, removed, put, entry, about, notice } = self;
        // To the end of the answer, not to its first row: only then has the server committed.
        let rows: Vec<(i64,)> = sqlx::query_as(WRITE)
            .bind(&head.ord)
            .bind(&head.name)
            .bind(&head.name_json)
            .bind(&head.version_before)
            .bind(&head.version_after)
            .bind(&head.meta)
            .bind(&head.entries_before)
            .bind(&head.entries_after)
            .bind(&removed.ord)
            .bind(&removed.kind)
            .bind(&removed.name)
            .bind(&put.ord)
            .bind(&put.kind)
            .bind(&put.name)
            .bind(&put.name_json)
            .bind(&put.body)
            .bind(&put.open)
            .bind(&put.due)
            .bind(&entry.ord)
            .bind(&entry.seq)
            .bind(&entry.arrived)
            .bind(&entry.refused)
            .bind(&entry.method)
            .bind(&entry.sender)
            .bind(&entry.sender_json)
            .bind(&entry.tasks_json)
            .bind(&entry.record)
            .bind(&entry.prev_hash)
            .bind(&about.ord)
            .bind(&about.task)
            .bind(&about.seq)
            .bind(&notice.ord)
            .bind(&notice.recipient)
            .bind(&notice.number)
            .bind(&notice.body)
            .fetch_all(connection)
            .await?;
        Ok(rows.into_iter().map(|(ord,)| ord).collect())
    }
}

/// Where a workspace stands, for settling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) version: i64,
    pub(crate) meta: String,
}

/// Where these workspaces stand now, by the key of their names.
pub(crate) async fn standings(
    connection: &mut PgConnection,
    keys: &[String],
) -> Result<std::collections::HashMap<String, Standing>, sqlx::Error> {
    let rows: Vec<(String, i64, String)> =
        sqlx::query_as("SELECT name, version, meta FROM choir_control.chap_workspaces WHERE name = ANY($1)")
            .bind(keys)
            .fetch_all(connection)
            .await?;
    Ok(rows.into_iter().map(|(name, version, meta)| (name, Standing { version, meta })).collect())
}

impl Standing {
    /// Whether this is what the change leaves behind. The meta decides where two changes could have one version.
    pub(crate) fn is_after(&self, change: &Change) -> bool {
        ids::column(change.version_after).is_ok_and(|after| after == self.version) && self.meta == change.meta
    }
}
