//! Between rows and the types of `messages::chap`. A row that does not fit is corrupt, never a panic.

use choir_messages::chap::{Entry, Object, ObjectKey, ObjectKind};
use choir_messages::time::Timestamp;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::names;
use crate::error::StoreError;
use crate::store::ids;

/// kind, name, name_json, body, open, due
pub(crate) type ObjectRow = (String, String, Option<String>, String, bool, Option<i64>);

pub(crate) fn count(stored: i64) -> Result<u64, StoreError> {
    u64::try_from(stored).map_err(|_| StoreError::corrupt(format!("the count {stored}")))
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

/// Reads seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash.
pub(crate) fn entry(row: &PgRow) -> Result<Entry, StoreError> {
    let sender_json: Option<&str> = row.try_get(5)?;
    let tasks = match row.try_get::<Option<&str>, _>(6)? {
        Some(json) => serde_json::from_str(json).map_err(|e| StoreError::corrupt(format!("tasks: {e}")))?,
        None => Vec::new(),
    };
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
