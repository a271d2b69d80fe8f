//! What the command line shows of logs and invocations.

use choir_messages::event::{Event, Revision};
use choir_messages::id::{InvocationId, SessionId};
use choir_messages::time::Timestamp;
use serde::Serialize;

use super::{Store, ids};
use crate::error::StoreError;
use crate::journal::load;
use crate::limits;

/// One event as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredEvent {
    /// The event.
    pub event: Event,
    /// When it became durable, by the database's clock.
    pub stored_at: Timestamp,
}

/// One committed tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InvocationRow {
    /// Its id.
    pub invocation: InvocationId,
    /// The tool.
    pub tool: String,
    /// `read`, `write` or `external`.
    pub side_effect: String,
    /// Revision of its commit.
    pub committed_rev: Revision,
    /// `committed` while it has no result; then the result's status.
    pub status: String,
    /// Revision of its result, if it has one.
    pub result_rev: Option<Revision>,
}

impl Store {
    /// Events of a session after a revision, in order; at most `limit`, itself at most [`limits::LIST_ROWS`], and at
    /// most [`limits::GROUP_BYTES`] of them.
    pub async fn events(
        &self,
        session: SessionId,
        after: Revision,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(
            "SELECT canonical, hash, choir_control.to_ms(created_at) FROM (
                 SELECT rev, canonical, hash, created_at, sum(octet_length(canonical)) OVER (ORDER BY rev) AS total
                 FROM (SELECT * FROM choir_control.session_events
                       WHERE session_id = $1 AND rev > $2 ORDER BY rev LIMIT $3) page) counted
             WHERE total <= $4 OR rev = $2 + 1 ORDER BY rev",
        )
        .bind(session.to_string())
        .bind(i64::try_from(after).unwrap_or(i64::MAX - 1))
        .bind(i64::from(limit.min(limits::LIST_ROWS)))
        .bind(i64::try_from(limits::GROUP_BYTES).unwrap_or(i64::MAX))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|(canonical, hash, at)| {
                Ok(StoredEvent { event: load::event(&canonical, &hash)?, stored_at: ids::at(at) })
            })
            .collect()
    }

    /// A session's committed tool calls, newest first; at most `limit`, itself at most [`limits::LIST_ROWS`].
    pub async fn invocations(
        &self,
        session: SessionId,
        limit: u32,
    ) -> Result<Vec<InvocationRow>, StoreError> {
        self.invocations_where(session, None, limit).await
    }

    /// One committed tool call of a session, if it was committed.
    pub async fn invocation(
        &self,
        session: SessionId,
        invocation: InvocationId,
    ) -> Result<Option<InvocationRow>, StoreError> {
        Ok(self.invocations_where(session, Some(invocation), 1).await?.pop())
    }

    async fn invocations_where(
        &self,
        session: SessionId,
        invocation: Option<InvocationId>,
        limit: u32,
    ) -> Result<Vec<InvocationRow>, StoreError> {
        let rows: Vec<(String, String, String, i64, String, Option<i64>)> = sqlx::query_as(
            "SELECT invocation_id, tool, side_effect, committed_rev, status, result_rev FROM choir_control.invocations
             WHERE session_id = $1 AND ($2::text IS NULL OR invocation_id = $2)
             ORDER BY committed_rev DESC LIMIT $3",
        )
        .bind(session.to_string())
        .bind(invocation.map(|id| id.to_string()))
        .bind(i64::from(limit.min(limits::LIST_ROWS)))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|(invocation, tool, side_effect, committed, status, result)| {
                Ok(InvocationRow {
                    invocation: ids::parse(&invocation)?,
                    tool,
                    side_effect,
                    committed_rev: ids::rev(committed)?,
                    status,
                    result_rev: result.map(ids::rev).transpose()?,
                })
            })
            .collect()
    }
}
