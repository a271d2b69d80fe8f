//! Collects the evidence: its own database connection, the workspace's files, the model endpoint's journal.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use choir_messages::event::Head;
use choir_messages::id::MessageId;
use choir_persistence::postgres::Source;
use choir_scripted_model::Journal;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::control::{ControlError, ErrorCode};

use super::check::{Asked, Evidence, InboxRow, OutboxRow, Received, Sent, StoredLog};
use super::conversation::{Effect, TURNS};
use super::limits;

/// The demo's own way into the tables. Reads only.
pub(super) struct Tables(PgPool);

fn failed(error: impl Display) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("the tables cannot be read: {error}"))
}

/// Where a message's turn stands, by the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Tool calls committed in it.
    pub(super) committed: i64,
    /// Times it was taken up again.
    pub(super) resumed: i64,
    /// Whether it is over.
    pub(super) closed: bool,
}

impl Tables {
    /// Connects where choird does.
    pub(super) fn open(database: &Source) -> Result<Self, ControlError> {
        let options: PgConnectOptions = match database {
            Source::External(options) => (**options).clone(),
            Source::Embedded(config) => config.options().map_err(failed)?,
        };
        // One connection, made anew when the server was away.
        let pool = PgPoolOptions::new().max_connections(1).acquire_timeout(limits::SQL_WITHIN);
        Ok(Self(pool.connect_lazy_with(options)))
    }

    /// Lets go of the connection.
    pub(super) async fn close(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(2), self.0.close()).await;
    }

    /// Where a message's turn stands.
    pub(super) async fn standing(&self, message: MessageId) -> Result<Standing, ControlError> {
        let (committed, resumed, closed): (i64, i64, bool) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE e.event_type = 'ToolCallCommitted'),
                    count(*) FILTER (WHERE e.event_type = 'TurnResumed'),
                    coalesce(bool_or(i.closed_at IS NOT NULL), false)
             FROM choir_control.inbox i
             LEFT JOIN choir_control.session_events e
                    ON e.session_id = i.recorded_session AND e.rev > i.recorded_rev
             WHERE i.message_id = $1",
        )
        .bind(message.to_string())
        .fetch_one(&self.0)
        .await
        .map_err(failed)?;
        Ok(Standing { committed, resumed, closed })
    }

    /// Outbound messages that are not known to have arrived.
    pub(super) async fn under_way(&self, sent: &[Sent]) -> Result<i64, ControlError> {
        sqlx::query_scalar(
            "SELECT count(*) FROM choir_control.outbox WHERE message_id = ANY($1) AND state <> 'delivered'",
        )
        .bind(ids(sent))
        .fetch_one(&self.0)
        .await
        .map_err(failed)
    }

    async fn inbox(&self, sent: &[Sent]) -> Result<Vec<InboxRow>, ControlError> {
        let rows: Vec<(String, Option<String>)> =
            sqlx::query_as("SELECT message_id, outcome FROM choir_control.inbox WHERE message_id = ANY($1)")
                .bind(ids(sent))
                .fetch_all(&self.0)
                .await
                .map_err(failed)?;
        let row = |(message, outcome): (String, _)| {
            Ok(InboxRow { message: message.parse().map_err(failed)?, outcome })
        };
        rows.into_iter().map(row).collect()
    }

    async fn outbox(&self, sent: &[Sent]) -> Result<Vec<OutboxRow>, ControlError> {
        let rows: Vec<(String, String, String)> = sqlx::query_as(
            "SELECT message_id, kind, text_json FROM choir_control.outbox WHERE message_id = ANY($1)",
        )
        .bind(ids(sent))
        .fetch_all(&self.0)
        .await
        .map_err(failed)?;
        let row = |(message, kind, text): (String, String, String)| {
            let text = serde_json::from_str(&text).map_err(failed)?;
            Ok(OutboxRow { message: message.parse().map_err(failed)?, answer: kind == "answer", text })
        };
        rows.into_iter().map(row).collect()
    }

    /// The whole logs of the sessions that took up these messages, as one view of the tables.
    async fn logs(&self, sent: &[Sent]) -> Result<Vec<StoredLog>, ControlError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        let mut transaction = self.0.begin_with(begin).await.map_err(failed)?;
        let heads: Vec<(String, i64, String)> = sqlx::query_as(
            "SELECT session_id, head_rev, head_hash FROM choir_control.sessions WHERE session_id IN
                 (SELECT recorded_session FROM choir_control.inbox WHERE message_id = ANY($1))",
        )
        .bind(ids(sent))
        .fetch_all(&mut *transaction)
        .await
        .map_err(failed)?;
        let mut logs = Vec::new();
        for (session, rev, hash) in heads {
            let rows: Vec<(i64, String, String)> = sqlx::query_as(
                "SELECT rev, canonical, hash FROM choir_control.session_events WHERE session_id = $1 ORDER BY rev",
            )
            .bind(&session)
            .fetch_all(&mut *transaction)
            .await
            .map_err(failed)?;
            let rows = rows.into_iter().map(|(rev, text, hash)| Ok((number(rev)?, text, hash)));
            logs.push(StoredLog {
                session: session.parse().map_err(failed)?,
                head: Head { rev: number(rev)?, hash: hash.parse().map_err(failed)? },
                rows: rows.collect::<Result<_, ControlError>>()?,
            });
        }
        Ok(logs)
    }

    /// Everything there is to say about these messages.
    pub(super) async fn gather(
        &self,
        sent: Vec<Sent>,
        received: Vec<Received>,
        workspace: &Path,
        journal: Option<&Journal>,
    ) -> Result<Evidence, ControlError> {
        // Only what was asked for must have happened.
        let asked_for = TURNS.iter().filter(|turn| sent.iter().any(|sent| sent.tag == turn.tag));
        let effects: Vec<Effect> = asked_for.flat_map(|turn| turn.effects).copied().collect();
        let mut files = BTreeMap::new();
        for effect in TURNS.iter().flat_map(|turn| turn.effects) {
            if !files.contains_key(effect.file) {
                files.insert(effect.file, lines(&workspace.join(effect.file))?);
            }
        }
        let asked =
            journal.map(|journal| sent.iter().filter_map(|sent| asked(journal, &sent.text)).collect());
        let (inbox, outbox, logs) =
            (self.inbox(&sent).await?, self.outbox(&sent).await?, self.logs(&sent).await?);
        Ok(Evidence { sent, received, inbox, outbox, files, effects, logs, asked })
    }
}

fn ids(sent: &[Sent]) -> Vec<String> {
    sent.iter().map(|sent| sent.message.to_string()).collect()
}

fn number(rev: i64) -> Result<u64, ControlError> {
    u64::try_from(rev).map_err(failed)
}

fn asked(journal: &Journal, message: &str) -> Option<Asked> {
    let about = journal.entries().into_iter().any(|entry| entry.message == message);
    about.then(|| Asked { message: message.to_owned(), answers: journal.final_answers(message) })
}

/// The lines of a file; none if it is not there. The workspace is the agent's, so what is no plain file is not opened.
fn lines(path: &Path) -> Result<Vec<String>, ControlError> {
    if !std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
        return Ok(Vec::new());
    }
    let unreadable = |e: std::io::Error| {
        ControlError::new(ErrorCode::Runtime, format!("cannot read {}: {e}", path.display()))
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(limits::COUNTED_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}
