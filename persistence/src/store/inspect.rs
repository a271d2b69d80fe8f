//! What an operator wants to know of the database itself: versions, migrations, its clock.

use choir_messages::time::Timestamp;

use super::{Store, ids, schema};
use crate::error::StoreError;
use crate::limits;

/// The database as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The server's version, such as `18.1`.
    pub server: String,
    /// The database's clock.
    pub now: Timestamp,
    /// When the newest event was stored, by that clock; none if there is no event yet.
    pub newest_event: Option<Timestamp>,
    /// pgvector, if the server offers it.
    pub pgvector: Option<Pgvector>,
    /// The schema's migrations.
    pub migrations: Migrations,
}

/// pgvector's versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pgvector {
    /// What the server could install.
    pub available: String,
    /// What is installed in this database.
    pub installed: Option<String>,
}

/// Migrations by their numbers, each list rising.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Migrations {
    /// Known to this choird and applied.
    pub applied: Vec<i64>,
    /// Known and not applied.
    pub pending: Vec<i64>,
    /// Applied by a newer choird.
    pub unknown: Vec<i64>,
}

impl Migrations {
    fn compare(known: &[i64], done: &[i64]) -> Self {
        let (applied, pending) = known.iter().partition(|version| done.contains(version));
        let unknown = done.iter().filter(|version| !known.contains(version)).copied().collect();
        Self { applied, pending, unknown }
    }
}

impl Store {
    /// Looks at the database itself.
    pub async fn inspect(&self) -> Result<Inspection, StoreError> {
        let (server, now): (String, i64) = sqlx::query_as(
            "SELECT current_setting('server_version'), choir_control.to_ms(clock_timestamp())",
        )
        .fetch_one(self.pool())
        .await?;
        // The newest of each session is found by its key; the table has no index on time.
        let (newest,): (Option<i64>,) = sqlx::query_as(
            "SELECT choir_control.to_ms(max(newest)) FROM (
                 SELECT (SELECT created_at FROM choir_control.session_events e
                         WHERE e.session_id = s.session_id ORDER BY rev DESC LIMIT 1) AS newest
                 FROM choir_control.sessions s ORDER BY started_at DESC LIMIT $1) sessions",
        )
        .bind(i64::from(limits::LIST_ROWS))
        .fetch_one(self.pool())
        .await?;
        let pgvector: Option<(String, Option<String>)> = sqlx::query_as(
            "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'",
        )
        .fetch_optional(self.pool())
        .await?;
        let done: Vec<(i64,)> = sqlx::query_as(
            "SELECT version FROM choir_control.schema_migrations WHERE success ORDER BY version",
        )
        .fetch_all(self.pool())
        .await?;
        let done: Vec<i64> = done.into_iter().map(|(version,)| version).collect();
        Ok(Inspection {
            server,
            now: ids::at(now),
            newest_event: newest.map(ids::at),
            pgvector: pgvector.map(|(available, installed)| Pgvector { available, installed }),
            migrations: Migrations::compare(&schema::known(), &done),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_applied_pending_or_unknown() {
        let found = Migrations::compare(&[1, 2, 4], &[1, 4, 9]);
        assert_eq!(found, Migrations { applied: vec![1, 4], pending: vec![2], unknown: vec![9] });
    }
}
