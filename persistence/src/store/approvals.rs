//! Approvals (`choir §8.10`, `choir §23.1`): bound to the hash of the exact request, decided once, used once. Nobody's
//! decision means no.

use choir_messages::chain::Digest;
use choir_messages::id::{AgentId, ApprovalId, SessionId};
use choir_messages::json::Json;
use choir_messages::time::Timestamp;
use choir_messages::wire::ApprovalStatus;
use serde::Serialize;

use super::{Store, ids};
use crate::error::StoreError;
use crate::limits;

/// One request for a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApprovalRow {
    /// Its id.
    pub approval: ApprovalId,
    /// Which session asks.
    pub session: SessionId,
    /// Whose.
    pub agent: AgentId,
    /// What kind of decision.
    pub kind: String,
    /// The exact thing to decide.
    pub payload: Json,
    /// SHA-256 of the payload's canonical JSON.
    pub payload_hash: Digest,
    /// Where it stands.
    pub status: ApprovalStatus,
    /// Whether the approval was used.
    pub used: bool,
    /// When it was asked.
    pub created_at: Timestamp,
}

type Columns = (String, String, String, String, String, String, String, bool, i64);

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT approval_id, session_id, agent_id, request_type, payload, payload_hash, status,
                 used_at IS NOT NULL, choir_control.to_ms(created_at) FROM choir_control.pending_approvals ",
            $rest
        )
    };
}

fn row(columns: Columns) -> Result<ApprovalRow, StoreError> {
    let (approval, session, agent, kind, payload, hash, status, used, created) = columns;
    Ok(ApprovalRow {
        approval: ids::parse(&approval)?,
        session: ids::parse(&session)?,
        agent: ids::parse(&agent)?,
        kind,
        payload: serde_json::from_str(&payload).map_err(|e| StoreError::corrupt(e.to_string()))?,
        payload_hash: ids::parse(&hash)?,
        status: match status.as_str() {
            "pending" => ApprovalStatus::Pending,
            "approved" => ApprovalStatus::Approved,
            _ => ApprovalStatus::Rejected,
        },
        used,
        created_at: ids::at(created),
    })
}

impl Store {
    /// Writes a request down; durable when this returns. The same request while it is pending is the same row.
    pub async fn request_approval(
        &self,
        session: SessionId,
        kind: &str,
        payload: &Json,
    ) -> Result<ApprovalRow, StoreError> {
        let text = choir_messages::canonical::to_string(payload)
            .map_err(|_| StoreError::Invalid("the request has no canonical JSON form"))?;
        if text.len() > limits::APPROVAL_BYTES {
            return Err(StoreError::TooLarge { bytes: text.len(), limit: limits::APPROVAL_BYTES });
        }
        ids::check_name(kind)?;
        let hash = Digest::of(text.as_bytes()).to_string();
        let columns: Option<Columns> = sqlx::query_as(
            "INSERT INTO choir_control.pending_approvals AS p
                 (approval_id, session_id, agent_id, request_type, payload, payload_hash)
             SELECT $1, s.session_id, s.agent_id, $3, $4, $5 FROM choir_control.sessions s WHERE s.session_id = $2
             ON CONFLICT (session_id, request_type, payload_hash) WHERE status = 'pending'
                 DO UPDATE SET request_type = p.request_type
             RETURNING approval_id, session_id, agent_id, request_type, payload, payload_hash, status,
                 used_at IS NOT NULL, choir_control.to_ms(created_at)",
        )
        .bind(ApprovalId::fresh().to_string())
        .bind(session.to_string())
        .bind(kind)
        .bind(&text)
        .bind(&hash)
        .fetch_optional(self.pool())
        .await?;
        row(columns.ok_or(StoreError::UnknownSession(session))?)
    }

    /// One request.
    pub async fn approval(&self, approval: ApprovalId) -> Result<Option<ApprovalRow>, StoreError> {
        let columns: Option<Columns> = sqlx::query_as(select!("WHERE approval_id = $1"))
            .bind(approval.to_string())
            .fetch_optional(self.pool())
            .await?;
        columns.map(row).transpose()
    }

    /// Requests that nobody has decided, oldest first; at most [`limits::LIST_ROWS`].
    pub async fn pending_approvals(&self) -> Result<Vec<ApprovalRow>, StoreError> {
        let rows: Vec<Columns> =
            sqlx::query_as(select!("WHERE status = 'pending' ORDER BY created_at, approval_id LIMIT $1"))
                .bind(i64::from(limits::LIST_ROWS))
                .fetch_all(self.pool())
                .await?;
        rows.into_iter().map(row).collect()
    }

    /// Decides a pending request. False if it was decided before, or does not exist.
    pub async fn decide_approval(&self, approval: ApprovalId, approve: bool) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE choir_control.pending_approvals SET status = $2, resolved_at = now()
             WHERE approval_id = $1 AND status = 'pending'",
        )
        .bind(approval.to_string())
        .bind(if approve { "approved" } else { "rejected" })
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Uses an approval for exactly the thing with this hash. True once, and only if it was approved.
    pub async fn use_approval(&self, approval: ApprovalId, payload_hash: Digest) -> Result<bool, StoreError> {
        let done = sqlx::query(
            "UPDATE choir_control.pending_approvals SET used_at = now()
             WHERE approval_id = $1 AND payload_hash = $2 AND status = 'approved' AND used_at IS NULL",
        )
        .bind(approval.to_string())
        .bind(payload_hash.to_string())
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected() == 1)
    }
}
