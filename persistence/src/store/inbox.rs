//! The inbox: a user's message is stored before it is confirmed to its source, and ends in exactly one outcome
//! (DESIGN §5).

use choir_messages::event::{MessageOutcome, Revision};
use choir_messages::id::{AgentId, MessageId, SessionId};
use choir_messages::limits::USER_MESSAGE_BYTES;
use choir_messages::time::Timestamp;
use serde::Serialize;

use super::changes::ChangeKind;
use super::{Store, ids};
use crate::error::StoreError;
use crate::journal::{Said, settle};
use crate::limits;

/// What became of a message at the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It is new and durable now.
    New,
    /// It had been accepted before.
    Repeat {
        /// How it ended, if it has.
        outcome: Option<MessageOutcome>,
    },
}

/// What became of the host's wish to close a message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// It is closed now, and its user will be told.
    Closed,
    /// An agent has taken it on; its end is the agent's to write.
    Recorded,
    /// It was closed before, like this.
    Already(MessageOutcome),
    /// There is no such message.
    Unknown,
}

/// One message of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InboxRow {
    /// Its id.
    pub message: MessageId,
    /// For which agent.
    pub agent: AgentId,
    /// Where it came from, and where its answer goes.
    pub source: String,
    /// Its text.
    pub text: String,
    /// When it was accepted.
    pub received_at: Timestamp,
    /// Session and revision that took it on, if any.
    pub recorded: Option<(SessionId, Revision)>,
    /// How it ended, if it has.
    pub outcome: Option<MessageOutcome>,
    /// When it ended.
    pub closed_at: Option<Timestamp>,
}

type Columns =
    (String, String, String, String, i64, Option<String>, Option<i64>, Option<String>, Option<i64>);

/// The columns of an [`InboxRow`].
macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT message_id, agent_id, source, text_json, choir_control.to_ms(received_at), recorded_session,
                 recorded_rev, outcome, choir_control.to_ms(closed_at) FROM choir_control.inbox ",
            $rest
        )
    };
}

fn row(columns: Columns) -> Result<InboxRow, StoreError> {
    let (message, agent, source, text, received, session, rev, outcome, closed) = columns;
    let recorded = match (session, rev) {
        (Some(session), Some(rev)) => Some((ids::parse(&session)?, ids::rev(rev)?)),
        _ => None,
    };
    Ok(InboxRow {
        message: ids::parse(&message)?,
        agent: ids::parse(&agent)?,
        source,
        text: ids::text_from_json(&text)?,
        received_at: ids::at(received),
        recorded,
        outcome: outcome.as_deref().map(ids::outcome).transpose()?,
        closed_at: closed.map(ids::at),
    })
}

impl Store {
    /// Takes a message in; durable when this returns. The same id again is a repeat and changes nothing.
    ///
    /// `source` names the channel, such as `chat` or `telegram:work`; `text` has at most [`USER_MESSAGE_BYTES`].
    pub async fn accept_message(
        &self,
        agent: &AgentId,
        message: MessageId,
        source: &str,
        text: &str,
    ) -> Result<Accepted, StoreError> {
        if text.len() > USER_MESSAGE_BYTES {
            return Err(StoreError::TooLarge { bytes: text.len(), limit: USER_MESSAGE_BYTES });
        }
        ids::check_name(source)?;
        let text = ids::text_to_json(text);
        // One statement: with the count inside it, a burst of senders may overshoot the bound by a few, never by much.
        let inserted = sqlx::query(
            "INSERT INTO choir_control.inbox (message_id, agent_id, source, text_json)
             SELECT $1, a.agent_id, $3, $4 FROM choir_control.agents a
             WHERE a.agent_id = $2 AND (SELECT count(*) FROM choir_control.inbox
                 WHERE agent_id = $2 AND closed_at IS NULL) < $5
             ON CONFLICT DO NOTHING",
        )
        .bind(message.to_string())
        .bind(agent.as_str())
        .bind(source)
        .bind(&text)
        .bind(limits::INBOX_OPEN)
        .execute(self.pool())
        .await?;
        if inserted.rows_affected() == 1 {
            self.changed(agent, ChangeKind::Inbox);
            return Ok(Accepted::New);
        }
        let (known, same, outcome, waiting): (bool, Option<bool>, Option<String>, i64) = sqlx::query_as(
            "SELECT EXISTS (SELECT FROM choir_control.agents WHERE agent_id = $2),
                    i.agent_id = $2 AND i.text_json = $3, i.outcome,
                    (SELECT count(*) FROM choir_control.inbox WHERE agent_id = $2 AND closed_at IS NULL)
             FROM (SELECT) AS one LEFT JOIN choir_control.inbox i ON i.message_id = $1",
        )
        .bind(message.to_string())
        .bind(agent.as_str())
        .bind(&text)
        .fetch_one(self.pool())
        .await?;
        match same {
            Some(true) => Ok(Accepted::Repeat { outcome: outcome.as_deref().map(ids::outcome).transpose()? }),
            Some(false) => Err(StoreError::MessageIdReused(message)),
            None if known => Err(StoreError::InboxFull { agent: agent.clone(), waiting }),
            None => Err(StoreError::UnknownAgent(agent.clone())),
        }
    }

    /// Messages of an agent that are open and in no log yet, in order of arrival: what is pushed when it (re)connects.
    /// At most [`limits::LIST_ROWS`] of them.
    pub async fn unrecorded(&self, agent: &AgentId) -> Result<Vec<InboxRow>, StoreError> {
        self.inbox_where(agent, true, limits::LIST_ROWS).await
    }

    /// Messages of an agent that have no outcome yet, in order of arrival; at most [`limits::LIST_ROWS`].
    pub async fn unanswered(&self, agent: &AgentId) -> Result<Vec<InboxRow>, StoreError> {
        self.inbox_where(agent, false, limits::LIST_ROWS).await
    }

    async fn inbox_where(
        &self,
        agent: &AgentId,
        unrecorded: bool,
        limit: u32,
    ) -> Result<Vec<InboxRow>, StoreError> {
        let rows: Vec<Columns> = sqlx::query_as(select!(
            "WHERE agent_id = $1 AND closed_at IS NULL AND NOT ($3 AND recorded_rev IS NOT NULL)
             ORDER BY seq LIMIT $2"
        ))
        .bind(agent.as_str())
        .bind(i64::from(limit))
        .bind(unrecorded)
        .fetch_all(self.pool())
        .await?;
        rows.into_iter().map(row).collect()
    }

    /// One message.
    pub async fn message(&self, message: MessageId) -> Result<Option<InboxRow>, StoreError> {
        let columns: Option<Columns> = sqlx::query_as(select!("WHERE message_id = $1"))
            .bind(message.to_string())
            .fetch_optional(self.pool())
            .await?;
        columns.map(row).transpose()
    }

    /// The newest messages, of one agent or of all, newest first; at most `limit`, itself at most
    /// [`limits::LIST_ROWS`].
    pub async fn inbox(&self, agent: Option<&AgentId>, limit: u32) -> Result<Vec<InboxRow>, StoreError> {
        let rows: Vec<Columns> =
            sqlx::query_as(select!("WHERE $1::text IS NULL OR agent_id = $1 ORDER BY seq DESC LIMIT $2"))
                .bind(agent.map(AgentId::as_str))
                .bind(i64::from(limit.min(limits::LIST_ROWS)))
                .fetch_all(self.pool())
                .await?;
        rows.into_iter().map(row).collect()
    }

    /// Closes a message that no agent has taken on, with what its user is told, in one transaction.
    pub async fn close_message(
        &self,
        message: MessageId,
        outcome: MessageOutcome,
        text: &str,
    ) -> Result<Closing, StoreError> {
        let mut transaction = self.pool().begin().await?;
        let found: Option<(String, bool, Option<String>)> = sqlx::query_as(
            "SELECT agent_id, recorded_rev IS NOT NULL, outcome FROM choir_control.inbox
             WHERE message_id = $1 FOR UPDATE",
        )
        .bind(message.to_string())
        .fetch_optional(&mut *transaction)
        .await?;
        let agent: AgentId = match found {
            None => return Ok(Closing::Unknown),
            Some((_, _, Some(outcome))) => return Ok(Closing::Already(ids::outcome(&outcome)?)),
            Some((_, true, None)) => return Ok(Closing::Recorded),
            Some((agent, false, None)) => ids::parse(&agent)?,
        };
        let said =
            Said { message, agent: agent.clone(), outcome: Some(outcome), text: text.to_owned(), rev: None };
        settle(&mut transaction, &[said]).await?;
        transaction.commit().await?;
        self.changed(&agent, ChangeKind::Inbox);
        self.changed(&agent, ChangeKind::Outbox);
        Ok(Closing::Closed)
    }
}
