//! The store in Postgres: reads through the pool, commits through the [`committer`](super::committer).

use std::sync::{Arc, Mutex, PoisonError};

use choir_messages::chap::{Change, EntryPage, EntryQuery, Notice, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, Postgres as Pg};
use sqlx::{Connection as _, QueryBuilder, Row as _};
use tokio::task::JoinHandle;

use super::committer::Committer;
use super::convert::{self, DueRow, ObjectRow, SummaryRow};
use super::queue::Queue;
use super::{CommitError, Done, Due, WorkspaceSummary, names};
use crate::Store;
use crate::error::StoreError;
use crate::limits::{self, CHAP_PAGE, CHAP_PAGE_BYTES};
use crate::store::claim::Claim;
use crate::store::{ids, with_deadlines};

/// The claim of the Coordinator's committer: the letters "chap" as a number.
const CLAIM: i64 = 0x6368_6170;

/// version (of the workspace's own row), then as an object's row; the workspace's body is its meta
type MemberRow = (Option<i64>, String, String, Option<String>, String, bool, Option<i64>);

#[derive(Debug, Clone)]
pub(crate) struct Postgres {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: PgPool,
    commits: Queue,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl Postgres {
    pub(crate) fn new(store: &Store) -> Self {
        Self::over((*store.pool().connect_options()).clone())
    }

    pub(crate) fn connect(options: PgConnectOptions) -> Self {
        Self::over(with_deadlines(options))
    }

    fn over(options: PgConnectOptions) -> Self {
        // Every statement here is served by an index, in its order. A planner without statistics, on a table that has
        // just grown, may think otherwise; it is not asked.
        let options =
            options.options([("enable_seqscan", "off"), ("enable_bitmapscan", "off"), ("jit", "off")]);
        // A pool of its own: auditors reading logs must not keep users' messages waiting for a connection.
        let pool = PgPoolOptions::new()
            .max_connections(limits::CHAP_CONNECTIONS)
            .acquire_timeout(limits::ACQUIRE_WITHIN)
            // A connection that was just used is not asked first whether it still lives.
            .test_before_acquire(false)
            .before_acquire(|connection, about| {
                Box::pin(async move {
                    if about.idle_for > limits::TRUSTED_WHILE_USED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .connect_lazy_with(options.clone());
        // The statement of a group never gains from the values it is planned for, and planning it takes longer than
        // running it.
        let options = options.options([("plan_cache_mode", "force_generic_plan")]);
        let (commits, queue) = Queue::new();
        let task = tokio::spawn(Committer::new(Claim::with_key(options, CLAIM)).run(queue));
        Self { inner: Arc::new(Inner { pool, commits, committer: Mutex::new(Some(task)) }) }
    }

    fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    pub(crate) fn waiting(&self) -> usize {
        self.inner.commits.waiting()
    }

    pub(crate) async fn close(&self) {
        self.inner.commits.close();
        let task = self.inner.committer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut task) = task
            && tokio::time::timeout(limits::CHAP_COMMIT_WITHIN, &mut task).await.is_err()
        {
            task.abort();
        }
        // Waits for connections that are in use, each of which has the server's own deadline on its statement.
        let _ = tokio::time::timeout(limits::STATEMENT_WITHIN, self.inner.pool.close()).await;
    }

    pub(crate) async fn commit(&self, change: Change) -> Result<(), CommitError> {
        self.inner.commits.commit(change).await
    }

    pub(crate) fn submit(&self, change: Change, done: Done) {
        self.inner.commits.submit(change, done);
    }

    pub(crate) async fn open(&self, workspace: &str) -> Result<Option<Opened>, StoreError> {
        // One statement, so one snapshot: the first row is the workspace, the others are its members.
        let rows: Vec<MemberRow> = sqlx::query_as(
            "WITH w AS (SELECT * FROM choir_control.chap_workspaces WHERE name = $1)
             SELECT version, '', '', NULL, meta, false, NULL FROM w
             UNION ALL
             SELECT NULL, o.kind, o.name, o.name_json, o.body, o.open, o.due
             FROM w JOIN choir_control.chap_objects o ON o.ws = w.ws AND o.kind = $2",
        )
        .bind(names::key(workspace))
        .bind(ObjectKind::Member.as_str())
        .fetch_all(self.pool())
        .await?;
        let (mut head, mut members) = (None, Vec::new());
        for (version, kind, name, name_json, body, open, due) in rows {
            match version {
                Some(version) => head = Some((convert::count(version)?, body)),
                None => {
                    members.push((name.clone(), convert::object((kind, name, name_json, body, open, due))?))
                }
            }
        }
        members.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let members = members.into_iter().map(|(_, object)| object).collect();
        Ok(head.map(|(version, meta)| Opened { version, meta, members }))
    }

    pub(crate) async fn load(&self, workspace: &str, keys: &[ObjectKey]) -> Result<Vec<Object>, StoreError> {
        let mut found = Vec::new();
        for keys in keys.chunks(CHAP_PAGE) {
            let rows: Vec<ObjectRow> = sqlx::query_as(
                "SELECT o.kind, o.name, o.name_json, o.body, o.open, o.due
                 FROM (SELECT DISTINCT kind, name FROM UNNEST($2::text[], $3::text[]) AS k (kind, name)) k
                 JOIN choir_control.chap_workspaces w ON w.name = $1
                 JOIN choir_control.chap_objects o ON o.ws = w.ws AND o.kind = k.kind AND o.name = k.name",
            )
            .bind(names::key(workspace))
            .bind(keys.iter().map(|key| key.kind.as_str()).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| names::key(&key.id)).collect::<Vec<_>>())
            .fetch_all(self.pool())
            .await?;
            for row in rows {
                found.push(convert::object(row)?);
            }
        }
        Ok(found)
    }

    pub(crate) async fn open_objects(
        &self,
        workspace: &str,
        kind: ObjectKind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Object>, StoreError> {
        let rows: Vec<ObjectRow> = sqlx::query_as(
            "SELECT o.kind, o.name, o.name_json, o.body, o.open, o.due
             FROM choir_control.chap_workspaces w
             JOIN choir_control.chap_objects o ON o.ws = w.ws AND o.kind = $2 AND o.open
             WHERE w.name = $1 AND ($3::text IS NULL OR o.name > $3) ORDER BY o.name LIMIT $4",
        )
        .bind(names::key(workspace))
        .bind(kind.as_str())
        .bind(after.map(names::key))
        .bind(rows_wanted(limit))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(convert::object).collect()
    }

    pub(crate) async fn entries(&self, workspace: &str, query: &EntryQuery) -> Result<EntryPage, StoreError> {
        let limit = query.limit.clamp(1, CHAP_PAGE);
        let mut sql = select_entries(workspace, query);
        // One more than wanted tells whether there are more.
        sql.push(" LIMIT ").push_bind(rows_wanted(limit).saturating_add(1));
        let mut connection = self.pool().acquire().await?;
        let mut page = EntryPage { entries: Vec::with_capacity(limit), next_seq: 0 };
        let (mut bytes, mut unread, mut end, mut more) = (0usize, false, None, false);
        let mut rows = sql.build().fetch(&mut *connection);
        while let Some(row) = rows.try_next().await? {
            let entry = convert::entry(&row)?;
            end = Some(convert::count(row.try_get(ENTRIES)?)?);
            bytes = bytes.saturating_add(entry.record.len());
            if let Some(last) = page.entries.last()
                && (page.entries.len() == limit || bytes > CHAP_PAGE_BYTES)
            {
                page.next_seq = last.seq.saturating_add(1);
                unread = page.entries.len() < limit;
                more = true;
                break;
            }
            page.entries.push(entry);
        }
        drop(rows);
        if unread {
            // The server may have a gigabyte of rows to send yet: another connection is cheaper than reading them.
            drop(connection.detach());
        } else if !more {
            let end = match end {
                Some(end) => end,
                // Nothing matched, so no row told where the log ends.
                None => match entry_count(&mut connection, workspace).await? {
                    Some(end) => end,
                    None => return Ok(page),
                },
            };
            let to = query.to_seq.unwrap_or(end).min(end);
            page.next_seq = query.from_seq.max(to).min(end);
        }
        Ok(page)
    }

    pub(crate) async fn notices(
        &self,
        workspace: &str,
        participant: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Notice>, StoreError> {
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "SELECT number, body FROM (
                 SELECT number, body, row_number() OVER (ORDER BY number) AS place,
                        sum(octet_length(body)) OVER (ORDER BY number) AS bytes
                 FROM (SELECT n.number, n.body FROM choir_control.chap_workspaces w
                       JOIN choir_control.chap_notices n ON n.ws = w.ws AND n.recipient = $2 AND n.number > $3
                       WHERE w.name = $1 ORDER BY n.number LIMIT $4) page) p
             WHERE place = 1 OR bytes <= $5 ORDER BY number",
        )
        .bind(names::key(workspace))
        .bind(names::key(participant))
        .bind(convert::bound(after))
        .bind(rows_wanted(limit.max(1)))
        .bind(rows_wanted_bytes())
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|(number, body)| {
                Ok(Notice { number: convert::count(number)?, to: participant.to_owned(), body })
            })
            .collect()
    }

    pub(crate) async fn prune_notices(
        &self,
        workspace: &str,
        participant: &str,
        up_to: u64,
        keep: usize,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        // Times in notices are the Coordinator's own, in one form, so their order is that of their texts. The server
        // cannot take texts with an escaped U+0000 apart as JSON; no quote within a string stands unescaped.
        let pruned = sqlx::query(
            r#"DELETE FROM choir_control.chap_notices n USING choir_control.chap_workspaces w
             WHERE w.name = $1 AND n.ws = w.ws AND n.recipient = $2 AND n.number <= $3
                 AND (n.number <= COALESCE(
                         (SELECT k.number FROM choir_control.chap_notices k
                          WHERE k.ws = w.ws AND k.recipient = $2 AND k.number <= $3
                          ORDER BY k.number DESC OFFSET $4 LIMIT 1), 0)
                     OR substring(n.body FROM '"ts":"([0-9TZ:.-]{24})"') < $5)"#,
        )
        .bind(names::key(workspace))
        .bind(names::key(participant))
        .bind(convert::bound(up_to))
        .bind(rows_wanted(keep))
        .bind(older_than.to_string())
        .execute(self.pool())
        .await?;
        Ok(pruned.rows_affected())
    }

    pub(crate) async fn due(
        &self,
        until: Timestamp,
        except: &[String],
        limit: usize,
    ) -> Result<Vec<Due>, StoreError> {
        let rows: Vec<DueRow> = sqlx::query_as(
            "SELECT w.name, w.name_json, o.kind, o.name, o.name_json, o.due
             FROM choir_control.chap_objects o JOIN choir_control.chap_workspaces w ON w.ws = o.ws
             WHERE o.due <= $1 AND w.name <> ALL ($3) ORDER BY o.due LIMIT $2",
        )
        .bind(convert::bound(until.millis()))
        .bind(rows_wanted(limit))
        .bind(except.iter().map(|name| names::key(name)).collect::<Vec<_>>())
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(convert::due).collect()
    }

    pub(crate) async fn next_due(&self, after: Option<Timestamp>) -> Result<Option<Timestamp>, StoreError> {
        let (next,): (Option<i64>,) =
            sqlx::query_as("SELECT min(due) FROM choir_control.chap_objects WHERE due > $1")
                .bind(after.map_or(-1, |after| convert::bound(after.millis())))
                .fetch_one(self.pool())
                .await?;
        Ok(next.map(ids::at))
    }

    pub(crate) async fn workspaces(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<WorkspaceSummary>, StoreError> {
        let rows: Vec<SummaryRow> = sqlx::query_as(
            "SELECT name, name_json, version, entries FROM choir_control.chap_workspaces
             WHERE $1::text IS NULL OR name > $1 ORDER BY name LIMIT $2",
        )
        .bind(after.map(names::key))
        .bind(rows_wanted(limit))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(convert::summary).collect()
    }
}

/// Entries in a workspace's log; none if there is no such workspace.
async fn entry_count(connection: &mut PgConnection, workspace: &str) -> Result<Option<u64>, StoreError> {
    let found: Option<(i64,)> =
        sqlx::query_as("SELECT entries FROM choir_control.chap_workspaces WHERE name = $1")
            .bind(names::key(workspace))
            .fetch_optional(connection)
            .await?;
    found.map(|(entries,)| convert::count(entries)).transpose()
}

/// The column of [`select_entries`] that has the length of the whole log.
const ENTRIES: usize = 9;

/// Entries that match, in order. One text a combination of filters, each planned with the index that serves it. The
/// columns are those of [`convert::entry`] and, of the same snapshot, how many entries the log has.
fn select_entries(workspace: &str, query: &EntryQuery) -> QueryBuilder<Pg> {
    let name = names::key(workspace).into_owned();
    let mut sql: QueryBuilder<Pg> = QueryBuilder::new(
        "SELECT e.seq, e.arrived, e.refused, e.method, e.sender, e.sender_json, e.tasks_json, e.record, e.prev_hash,
                (SELECT entries FROM choir_control.chap_workspaces WHERE name = ",
    );
    sql.push_bind(name.clone()).push(") FROM choir_control.chap_entries e");
    let place = if query.task.is_some() {
        sql.push(" JOIN choir_control.chap_entry_tasks t ON t.ws = e.ws AND t.seq = e.seq");
        "t"
    } else {
        "e"
    };
    sql.push(format!(" WHERE {place}.ws = (SELECT ws FROM choir_control.chap_workspaces WHERE name = "));
    sql.push_bind(name).push(")");
    sql.push(format!(" AND {place}.seq >= ")).push_bind(convert::bound(query.from_seq));
    if let Some(to) = query.to_seq {
        sql.push(format!(" AND {place}.seq < ")).push_bind(convert::bound(to));
    }
    if let Some(task) = &query.task {
        sql.push(" AND t.task = ").push_bind(names::key(task).into_owned());
    }
    if let Some(method) = &query.method {
        sql.push(" AND e.method = ").push_bind(names::key(method).into_owned());
    }
    if let Some(from) = &query.from {
        sql.push(" AND e.sender = ").push_bind(names::key(from).into_owned());
    }
    match query.refused {
        Some(true) => drop(sql.push(" AND e.refused IS NOT NULL")),
        Some(false) => drop(sql.push(" AND e.refused IS NULL")),
        None => {}
    }
    sql.push(format!(" ORDER BY {place}.seq"));
    sql
}

/// A page's rows as the server counts them.
fn rows_wanted(limit: usize) -> i64 {
    i64::try_from(limit.min(CHAP_PAGE)).unwrap_or(i64::MAX)
}

fn rows_wanted_bytes() -> i64 {
    i64::try_from(CHAP_PAGE_BYTES).unwrap_or(i64::MAX)
}
