//! What a group of commits writes: one statement, whatever the group's size. A workspace whose version does not fit
//! yields no rows at all in it, so a conflict of one costs the others nothing.

use std::collections::HashSet;

use choir_messages::chap::Change;
use sqlx::PgConnection;

use super::queue::Standing;
use super::{convert, names};

/// The statement. The function moves a workspace only from the version and the log's end that the change builds on, and
/// writes the other rows of those that moved. It is a transaction of its own, so one round trip makes it durable.
const WRITE: &str = "SELECT choir_control.chap_commit(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34)";

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

impl<'a> Rows<'a> {
    /// Takes one merged change; its place in the group is how many were taken before.
    pub(crate) fn add(&mut self, change: &'a Change) {
        let name = names::key(&change.workspace);
        let ord = i64::try_from(self.head.name.len()).unwrap_or(i64::MAX);
        self.head.name_json.push(names::beside(&change.workspace, &name));
        self.head.name.push(name);
        self.head.version_before.push(convert::number(change.version_before));
        self.head.version_after.push(convert::number(change.version_after));
        self.head.meta.push(&change.meta);
        self.head.entries_before.push(change.entries.first().map(|e| convert::number(e.seq)));
        self.head.entries_after.push(change.entries.last().map(|e| convert::number(e.seq.saturating_add(1))));
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
            let seq = convert::number(entry.seq);
            let sender = entry.from.as_deref().map(names::key);
            let sender_json =
                entry.from.as_deref().zip(sender.as_deref()).and_then(|(n, k)| names::beside(n, k));
            self.entry.ord.push(ord);
            self.entry.seq.push(seq);
            self.entry.arrived.push(convert::number(entry.arrived.millis()));
            self.entry.refused.push(entry.refused);
            self.entry.method.push(names::key(&entry.method));
            self.entry.sender.push(sender);
            self.entry.sender_json.push(sender_json);
            self.entry.tasks_json.push(convert::tasks_json(&entry.tasks));
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
            self.notice.number.push(convert::number(notice.number));
            self.notice.body.push(&notice.body);
        }
    }

    /// Writes everything; returns the places of the changes that were taken. The others conflict.
    pub(crate) async fn write(&self, connection: &mut PgConnection) -> Result<HashSet<i64>, sqlx::Error> {
        let Self { head, removed, put, entry, about, notice } = self;
        // To the end of the answer, not to its first row: only then has the server committed.
        let (taken,): (Vec<i64>,) = sqlx::query_as(WRITE)
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
            .fetch_one(connection)
            .await?;
        Ok(taken.into_iter().collect())
    }
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
