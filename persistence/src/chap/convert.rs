//! Between rows and the types of `messages::chap`. A row that does not fit is corrupt, never a panic.

use choir_messages::chap::{Entry, Object, ObjectKey, ObjectKind};
use choir_messages::time::Timestamp;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{Due, WorkspaceSummary, names};
use crate::error::StoreError;
use crate::store::ids;

/// kind, name, name_json, body, open, due
pub(crate) type ObjectRow = (String, String, Option<String>, String, bool, Option<i64>);

pub(crate) fn count(stored: i64) -> Result<u64, StoreError> {
    u64::try_from(stored).map_err(|_| StoreError::corrupt(format!("the count {stored}")))
}

/// A number as its column holds it. Versions, places and times are counted up from small ones; one beyond the column
/// would be a defect, and then meets a constraint instead of another number's row.
pub(crate) fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(-1)
}

/// A number as a bound in a query; what is beyond the column is beyond every row.
pub(crate) fn bound(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn kind(stored: &str) -> Result<ObjectKind, StoreError> {
    ObjectKind::from_name(stored).ok_or_else(|| StoreError::corrupt(format!("the object kind \"{stored}\"")))
}

pub(crate) fn object(row: ObjectRow) -> Result<Object, StoreError> {
    let (stored_kind, name, name_json, body, open, due) = row;
    let key = ObjectKey { kind: kind(&stored_kind)?, id: names::name(name, name_json.as_deref())? };
    Ok(Object { key, body, open, due: due.map(ids::at) })
}

/// The tasks of an entry as their column holds them.
pub(crate) fn tasks_json(tasks: &[String]) -> Option<String> {
    (!tasks.is_empty()).then(|| serde_json::Value::from(tasks).to_string())
}

pub(crate) fn tasks(stored: Option<&str>) -> Result<Vec<String>, StoreError> {
    let Some(json) = stored else { return Ok(Vec::new()) };
    serde_json::from_str(json).map_err(|e| StoreError::corrupt(format!("tasks: {e}")))
}

/// workspace, workspace's name_json, kind, name, name_json, due
pub(crate) type DueRow = (String, Option<String>, String, String, Option<String>, i64);

pub(crate) fn due(row: DueRow) -> Result<Due, StoreError> {
    let (workspace, workspace_json, stored_kind, name, name_json, at) = row;
    Ok(Due {
        workspace: names::name(workspace, workspace_json.as_deref())?,
        key: ObjectKey { kind: kind(&stored_kind)?, id: names::name(name, name_json.as_deref())? },
        at: ids::at(at),
    })
}

/// name, name_json, version, entries
pub(crate) type SummaryRow = (String, Option<String>, i64, i64);

pub(crate) fn summary(row: SummaryRow) -> Result<WorkspaceSummary, StoreError> {
    let (name, name_json, version, entries) = row;
    Ok(WorkspaceSummary {
        workspace: names::name(name, name_json.as_deref())?,
        version: count(version)?,
        entries: count(entries)?,
    })
}

/// Reads seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash.
pub(crate) fn entry(row: &PgRow) -> Result<Entry, StoreError> {
    let sender_json: Option<&str> = row.try_get(5)?;
    let tasks = tasks(row.try_get(6)?)?;
    Ok(Entry {
        seq: count(row.try_get(0)?)?,
        arrived: Timestamp::from_millis(count(row.try_get(1)?)?),
        record: row.try_get(7)?,
        refused: row.try_get(2)?,
        prev_hash: row.try_get(8)?,
        method: row.try_get(3)?,
        from: row.try_get::<Option<String>, _>(4)?.map(|key| names::name(key, sender_json)).transpose()?,
        tasks,
    })
}
