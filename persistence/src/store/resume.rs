//! Where an agent and its host stand towards each other after a (re)connect (`choir §13.2`).

use choir_messages::event::{Event, Head};
use choir_messages::id::SessionId;
use choir_messages::limits::{BATCH_BYTES, BATCH_EVENTS};
use choir_messages::session::SessionView;

use super::{Store, ids};
use crate::error::StoreError;
use crate::journal::load;

/// What the agent is given to catch up.
#[derive(Debug, Clone, PartialEq)]
pub struct ResumePoint {
    /// What is durable.
    pub durable: Head,
    /// The newest snapshot, if it is ahead of what the agent has.
    pub snapshot: Option<SessionView>,
    /// The events after the snapshot, or after what the agent has; at most [`BATCH_EVENTS`] and [`BATCH_BYTES`] (one
    /// larger event comes alone). Ask again with the new head until it is the durable one.
    pub tail: Vec<Event>,
}

/// Why there is no resume point.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ResumeError {
    /// The host's log does not contain the agent's head: the agent must start over from the host's.
    #[error("the agent's log has diverged from the host's, which stands at revision {}", .durable.rev)]
    Diverged {
        /// What is durable.
        durable: Head,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] StoreError),
}

impl From<sqlx::Error> for ResumeError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Store {
    /// What an agent whose log stands at `agent_head` needs to reach the durable head.
    pub async fn resume_point(
        &self,
        session: SessionId,
        agent_head: Head,
    ) -> Result<ResumePoint, ResumeError> {
        // One transaction with one view of the tables, so that the head and the events belong together.
        let mut transaction =
            self.pool().begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let found: Option<(i64, String)> =
            sqlx::query_as("SELECT head_rev, head_hash FROM choir_control.sessions WHERE session_id = $1")
                .bind(session.to_string())
                .fetch_optional(&mut *transaction)
                .await?;
        let (rev, hash) = found.ok_or(StoreError::UnknownSession(session))?;
        let durable = ids::head(rev, &hash)?;
        let contains = if agent_head.rev == 0 {
            agent_head == Head::START
        } else if agent_head.rev > durable.rev {
            false
        } else {
            let at = load::hashes(&mut transaction, session, (agent_head.rev, agent_head.rev)).await?;
            at.get(&agent_head.rev) == Some(&agent_head.hash)
        };
        if !contains {
            return Err(ResumeError::Diverged { durable });
        }
        let snapshot = if agent_head == durable {
            None
        } else {
            load::snapshot(&mut transaction, session, durable.rev)
                .await?
                .filter(|view| view.head.rev > agent_head.rev)
        };
        let after = snapshot.as_ref().map_or(agent_head.rev, |view| view.head.rev);
        let limit = i64::try_from(BATCH_EVENTS).unwrap_or(i64::MAX);
        let tail = load::events(&mut transaction, session, after, limit, BATCH_BYTES).await?;
        transaction.commit().await?;
        Ok(ResumePoint { durable, snapshot, tail })
    }
}
