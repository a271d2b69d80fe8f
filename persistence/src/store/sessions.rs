//! Sessions, their generations, and the exclusive resources leased to them (`choir §6.4`, invariant 11).

use choir_messages::event::{Head, MessageOutcome};
use choir_messages::id::{AgentId, LeaseId, SessionId};
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::changes::ChangeKind;
use super::{Store, ids};
use crate::error::StoreError;
use crate::journal::{AppendError, Said, settle};
use crate::limits;

/// One resource bound to a session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// Its kind, such as `workspace` or `llm`.
    pub kind: String,
    /// Its name in the configuration.
    pub name: String,
    /// Whether only one session may have it.
    pub exclusive: bool,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionStatus {
    /// It has a sandbox, or is about to.
    Active,
    /// Stopped in order; can be resumed.
    Stopped,
    /// Its sandbox or choird died; can be resumed.
    Crashed,
    /// Over for good.
    Ended,
}

impl SessionStatus {
    const fn text(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Stopped => "stopped",
            Self::Crashed => "crashed",
            Self::Ended => "ended",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        match text {
            "active" => Ok(Self::Active),
            "stopped" => Ok(Self::Stopped),
            "crashed" => Ok(Self::Crashed),
            "ended" => Ok(Self::Ended),
            other => Err(StoreError::corrupt(format!("session status \"{other}\""))),
        }
    }
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// Whose it is.
    pub agent: AgentId,
    /// The lease of its newest sandbox.
    pub lease: LeaseId,
    /// Counts its sandboxes from 1.
    pub generation: u64,
    /// Where it stands.
    pub status: SessionStatus,
    /// What is durable of its log.
    pub head: Head,
    /// Its resources.
    pub bindings: Vec<Binding>,
    /// When it was last started.
    pub started_at: Timestamp,
    /// When it stopped, if it has.
    pub ended_at: Option<Timestamp>,
}

/// A lease on an exclusive resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeaseRow {
    /// Kind of the resource.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Who holds it.
    pub agent: AgentId,
    /// In which session.
    pub session: SessionId,
    /// Since when.
    pub granted_at: Timestamp,
}

/// Why a session was not opened. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// Invariant 11: at most one active instance an agent.
    #[error(
        "agent \"{agent}\" is already running (session {session}); stop it first: choirctl agent stop {agent}"
    )]
    AlreadyActive {
        /// The agent.
        agent: AgentId,
        /// Its active session.
        session: SessionId,
    },
    /// An exclusive resource is in use.
    #[error(
        "{kind} \"{name}\" is in use by agent \"{holder}\"; stop that agent or start this one with another {kind}"
    )]
    ResourceHeld {
        /// Kind of the resource.
        kind: String,
        /// Its name.
        name: String,
        /// Who holds it.
        holder: AgentId,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] StoreError),
}

impl From<sqlx::Error> for OpenError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What a choird found left over by the one before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Sessions that were active; they are marked crashed and their leases released.
    pub crashed: Vec<(AgentId, SessionId)>,
    /// Outbound messages that were being sent; they are ambiguous now.
    pub ambiguous: u64,
}

type Columns = (String, String, String, i64, String, i64, String, String, i64, Option<i64>);

macro_rules! columns {
    () => {
        "session_id, agent_id, lease_id, generation, status, head_rev, head_hash, resource_bindings::text,
         choir_control.to_ms(started_at), choir_control.to_ms(ended_at)"
    };
}

fn row(columns: Columns) -> Result<SessionRow, StoreError> {
    let (session, agent, lease, generation, status, rev, hash, bindings, started, ended) = columns;
    Ok(SessionRow {
        session: ids::parse(&session)?,
        agent: ids::parse(&agent)?,
        lease: ids::parse(&lease)?,
        generation: ids::rev(generation)?,
        status: SessionStatus::parse(&status)?,
        head: ids::head(rev, &hash)?,
        bindings: serde_json::from_str(&bindings).map_err(|e| StoreError::corrupt(e.to_string()))?,
        started_at: ids::at(started),
        ended_at: ended.map(ids::at),
    })
}

impl Store {
    /// Opens a session for an agent: its last one if that was stopped or crashed, else a new one; with `fresh` always
    /// a new one, and the last one is ended. Either way with a new lease id and the next generation, and with every
    /// exclusive binding leased, or none.
    ///
    /// Ending a session closes its recorded but unanswered messages as failed: they may have had effects already, so
    /// they are not done again. Messages that no log has are left for the new session.
    pub async fn open_or_resume_session(
        &self,
        agent: &AgentId,
        bindings: &[Binding],
        fresh: bool,
    ) -> Result<SessionRow, OpenError> {
        if bindings.len() > limits::BINDINGS {
            return Err(StoreError::Invalid("too many resources are bound to one session").into());
        }
        for binding in bindings {
            ids::check_name(&binding.kind)?;
            ids::check_name(&binding.name)?;
        }
        let mut transaction = self.pool().begin().await?;
        let known = sqlx::query("SELECT FROM choir_control.agents WHERE agent_id = $1 FOR NO KEY UPDATE")
            .bind(agent.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
        if known.is_none() {
            return Err(StoreError::UnknownAgent(agent.clone()).into());
        }
        let last: Option<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.sessions WHERE agent_id = $1 AND status <> 'ended'
              ORDER BY status = 'active' DESC, started_at DESC, session_id DESC LIMIT 1 FOR NO KEY UPDATE"
        ))
        .bind(agent.as_str())
        .fetch_optional(&mut *transaction)
        .await?;
        let last = last.map(row).transpose()?;
        if let Some(active) = last.as_ref().filter(|s| s.status == SessionStatus::Active) {
            return Err(OpenError::AlreadyActive { agent: agent.clone(), session: active.session });
        }
        let (session, generation) = match last {
            Some(last) if !fresh => (last.session, last.generation.saturating_add(1)),
            Some(last) => {
                close(&mut transaction, &last, SessionStatus::Ended).await?;
                (SessionId::fresh(), 1)
            }
            None => (SessionId::fresh(), 1),
        };
        let lease = LeaseId::fresh();
        let columns: Columns = sqlx::query_as(concat!(
            "INSERT INTO choir_control.sessions
                 (session_id, agent_id, lease_id, generation, status, resource_bindings)
             VALUES ($1, $2, $3, $4, 'active', $5::text::jsonb)
             ON CONFLICT (session_id) DO UPDATE SET lease_id = $3, generation = $4, status = 'active',
                 resource_bindings = $5::text::jsonb, started_at = now(), ended_at = NULL
             RETURNING ",
            columns!()
        ))
        .bind(session.to_string())
        .bind(agent.as_str())
        .bind(lease.to_string())
        .bind(ids::column(generation)?)
        .bind(serde_json::to_string(bindings).map_err(|e| StoreError::corrupt(e.to_string()))?)
        .fetch_one(&mut *transaction)
        .await?;
        let opened = row(columns)?;
        take_leases(&mut transaction, &opened).await?;
        transaction.commit().await?;
        self.changed(agent, ChangeKind::Session);
        Ok(opened)
    }

    /// The session stopped in order. False if it is not active under this generation (nothing was changed).
    pub async fn mark_stopped(&self, session: SessionId, generation: u64) -> Result<bool, StoreError> {
        self.close_session(session, Some(generation), SessionStatus::Stopped).await
    }

    /// The session's sandbox died. False if it is not active under this generation: a late report about an old sandbox
    /// must not end its successor.
    pub async fn mark_crashed(&self, session: SessionId, generation: u64) -> Result<bool, StoreError> {
        self.close_session(session, Some(generation), SessionStatus::Crashed).await
    }

    /// The session is over for good, whatever it was; its recorded, unanswered messages are closed as failed. False if
    /// it was over already.
    pub async fn mark_ended(&self, session: SessionId) -> Result<bool, StoreError> {
        self.close_session(session, None, SessionStatus::Ended).await
    }

    async fn close_session(
        &self,
        session: SessionId,
        generation: Option<u64>,
        to: SessionStatus,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.pool().begin().await?;
        let found: Option<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.sessions WHERE session_id = $1 FOR NO KEY UPDATE"
        ))
        .bind(session.to_string())
        .fetch_optional(&mut *transaction)
        .await?;
        let Some(found) = found.map(row).transpose()? else {
            return Err(StoreError::UnknownSession(session));
        };
        let admits = match generation {
            Some(generation) => found.status == SessionStatus::Active && found.generation == generation,
            None => found.status != SessionStatus::Ended,
        };
        if !admits {
            return Ok(false);
        }
        close(&mut transaction, &found, to).await?;
        transaction.commit().await?;
        self.changed(&found.agent, ChangeKind::Session);
        if to == SessionStatus::Ended {
            self.changed(&found.agent, ChangeKind::Outbox);
        }
        Ok(true)
    }

    /// What a starting choird does first: every session still called active is marked crashed and its leases are
    /// released, and every message that was being sent is called ambiguous. Safe because of the claim that
    /// [`Store::open`] holds.
    pub async fn clean_up_after_crash(&self) -> Result<Leftovers, StoreError> {
        let mut transaction = self.pool().begin().await?;
        let crashed: Vec<(String, String)> = sqlx::query_as(
            "UPDATE choir_control.sessions SET status = 'crashed', ended_at = now() WHERE status = 'active'
             RETURNING agent_id, session_id",
        )
        .fetch_all(&mut *transaction)
        .await?;
        sqlx::query("DELETE FROM choir_control.leases").execute(&mut *transaction).await?;
        let edges = super::outbox::OutboxStep::Lost.edges();
        let ambiguous = sqlx::query(
            "UPDATE choir_control.outbox SET state = $1, uncertain = true, updated_at = now()
             WHERE state = 'sending'",
        )
        .bind(edges.to)
        .execute(&mut *transaction)
        .await?
        .rows_affected();
        transaction.commit().await?;
        let crashed = crashed
            .into_iter()
            .map(|(agent, session)| Ok((ids::parse(&agent)?, ids::parse(&session)?)))
            .collect::<Result<Vec<_>, StoreError>>()?;
        Ok(Leftovers { crashed, ambiguous })
    }

    /// One session.
    pub async fn session(&self, session: SessionId) -> Result<Option<SessionRow>, StoreError> {
        let columns: Option<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.sessions WHERE session_id = $1"
        ))
        .bind(session.to_string())
        .fetch_optional(self.pool())
        .await?;
        columns.map(row).transpose()
    }

    /// Sessions of one agent or of all, newest first; at most `limit`, itself at most [`limits::LIST_ROWS`].
    pub async fn sessions(&self, agent: Option<&AgentId>, limit: u32) -> Result<Vec<SessionRow>, StoreError> {
        let rows: Vec<Columns> = sqlx::query_as(concat!(
            "SELECT ",
            columns!(),
            " FROM choir_control.sessions WHERE $1::text IS NULL OR agent_id = $1
              ORDER BY started_at DESC, session_id DESC LIMIT $2"
        ))
        .bind(agent.map(AgentId::as_str))
        .bind(i64::from(limit.min(limits::LIST_ROWS)))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(row).collect()
    }

    /// All leases, by kind and name; at most [`limits::LIST_ROWS`].
    pub async fn leases(&self) -> Result<Vec<LeaseRow>, StoreError> {
        let rows: Vec<(String, String, String, String, i64)> = sqlx::query_as(
            "SELECT kind, name, agent_id, session_id, choir_control.to_ms(granted_at)
             FROM choir_control.leases ORDER BY kind, name LIMIT $1",
        )
        .bind(i64::from(limits::LIST_ROWS))
        .fetch_all(self.pool())
        .await?;
        rows.into_iter()
            .map(|(kind, name, agent, session, granted)| {
                Ok(LeaseRow {
                    kind,
                    name,
                    agent: ids::parse(&agent)?,
                    session: ids::parse(&session)?,
                    granted_at: ids::at(granted),
                })
            })
            .collect()
    }

    /// The durable head of a session that is active under this lease and generation.
    pub(crate) async fn leased_head(
        &self,
        session: SessionId,
        lease: LeaseId,
        generation: u64,
    ) -> Result<Head, AppendError> {
        let found: Option<(i64, String)> = sqlx::query_as(
            "SELECT head_rev, head_hash FROM choir_control.sessions
             WHERE session_id = $1 AND lease_id = $2 AND generation = $3 AND status = 'active'",
        )
        .bind(session.to_string())
        .bind(lease.to_string())
        .bind(i64::try_from(generation).unwrap_or(i64::MAX))
        .fetch_optional(self.pool())
        .await
        .map_err(StoreError::from)?;
        let (rev, hash) = found.ok_or(AppendError::LeaseRevoked)?;
        Ok(ids::head(rev, &hash)?)
    }
}

/// Leases every exclusive binding of a session, or says who holds one.
async fn take_leases(connection: &mut PgConnection, session: &SessionRow) -> Result<(), OpenError> {
    // In one order, so that two starts that want the same two resources never wait for each other.
    let wanted: std::collections::BTreeSet<(&str, &str)> =
        session.bindings.iter().filter(|b| b.exclusive).map(|b| (b.kind.as_str(), b.name.as_str())).collect();
    for (kind, name) in wanted {
        let taken = sqlx::query(
            "INSERT INTO choir_control.leases (kind, name, agent_id, session_id, lease_id)
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        )
        .bind(kind)
        .bind(name)
        .bind(session.agent.as_str())
        .bind(session.session.to_string())
        .bind(session.lease.to_string())
        .execute(&mut *connection)
        .await?;
        if taken.rows_affected() == 0 {
            let holder: Option<(String,)> =
                sqlx::query_as("SELECT agent_id FROM choir_control.leases WHERE kind = $1 AND name = $2")
                    .bind(kind)
                    .bind(name)
                    .fetch_optional(&mut *connection)
                    .await?;
            let Some((holder,)) = holder else {
                // Released between the two statements: the caller may simply try again.
                return Err(StoreError::Unconfirmed.into());
            };
            return Err(OpenError::ResourceHeld {
                kind: kind.to_owned(),
                name: name.to_owned(),
                holder: ids::parse(&holder)?,
            });
        }
    }
    Ok(())
}

/// Closes a locked session: status, leases and, when it is over for good, its unanswered messages.
async fn close(
    connection: &mut PgConnection,
    session: &SessionRow,
    to: SessionStatus,
) -> Result<(), StoreError> {
    let id = session.session.to_string();
    sqlx::query(
        "UPDATE choir_control.sessions SET status = $2, ended_at = COALESCE(ended_at, now()) WHERE session_id = $1",
    )
    .bind(&id)
    .bind(to.text())
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM choir_control.leases WHERE session_id = $1")
        .bind(&id)
        .execute(&mut *connection)
        .await?;
    if to != SessionStatus::Ended {
        return Ok(());
    }
    let open: Vec<(String,)> = sqlx::query_as(
        "SELECT message_id FROM choir_control.inbox
         WHERE agent_id = $1 AND recorded_session = $2 AND closed_at IS NULL ORDER BY seq FOR UPDATE",
    )
    .bind(session.agent.as_str())
    .bind(&id)
    .fetch_all(&mut *connection)
    .await?;
    let said = open
        .into_iter()
        .map(|(message,)| {
            Ok(Said {
                message: ids::parse(&message)?,
                agent: session.agent.clone(),
                outcome: Some(MessageOutcome::Failed),
                text: "The session was ended before this was answered. Ask again if it still matters."
                    .to_owned(),
                rev: None,
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    settle(connection, &said).await?;
    Ok(())
}
