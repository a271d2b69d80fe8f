//! Agents and what the operator wants of them, so that a restarted choird goes on where it was.

use choir_messages::id::AgentId;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Store, ids};
use crate::error::StoreError;
use crate::limits;

/// What the operator wants an agent to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Desired {
    /// Running; started again with choird.
    Running,
    /// Stopped.
    Stopped,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentRow {
    /// Its id.
    pub agent: AgentId,
    /// What the operator wants.
    pub desired: Desired,
    /// When choird first knew of it.
    pub created_at: Timestamp,
}

impl Store {
    /// Makes an agent known; nothing happens if it is.
    pub async fn register_agent(&self, agent: &AgentId) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO choir_control.agents (agent_id) VALUES ($1) ON CONFLICT DO NOTHING")
            .bind(agent.as_str())
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// Writes down what the operator wants.
    pub async fn set_desired(&self, agent: &AgentId, desired: Desired) -> Result<(), StoreError> {
        let text = match desired {
            Desired::Running => "running",
            Desired::Stopped => "stopped",
        };
        let done = sqlx::query(
            "UPDATE choir_control.agents SET desired = $2, updated_at = now() WHERE agent_id = $1",
        )
        .bind(agent.as_str())
        .bind(text)
        .execute(self.pool())
        .await?;
        if done.rows_affected() == 0 { Err(StoreError::UnknownAgent(agent.clone())) } else { Ok(()) }
    }

    /// All agents, by name; at most [`limits::LIST_ROWS`].
    pub async fn agents(&self) -> Result<Vec<AgentRow>, StoreError> {
        let rows: Vec<(String, bool, i64)> = sqlx::query_as(
            "SELECT agent_id, desired = 'running', choir_control.to_ms(created_at)
             FROM choir_control.agents ORDER BY agent_id LIMIT $1",
        )
        .bind(i64::from(limits::LIST_ROWS))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|(agent, running, created)| {
                Ok(AgentRow {
                    agent: ids::parse(&agent)?,
                    desired: if running { Desired::Running } else { Desired::Stopped },
                    created_at: ids::at(created),
                })
            })
            .collect()
    }
}
