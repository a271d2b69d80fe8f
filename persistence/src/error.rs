//! What can go wrong with the database, each as one sentence with what to do next.

use std::sync::Arc;

use choir_messages::id::{AgentId, MessageId, SessionId};

/// Why the store did not do what was asked. Nothing was changed, unless the variant says that it is unknown.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The server is not there, is starting or is stopping. The same request may be repeated.
    #[error("the database cannot be reached: {0}")]
    Unavailable(Arc<str>),
    /// The connection was lost or too slow; the change may or may not have been made. Repeating is safe: every write
    /// carries an id or a revision.
    #[error("the database did not confirm in time; the same request may be repeated")]
    Unconfirmed,
    /// The disk of the database is full.
    #[error("the disk of the database is full: free some space; nothing that was confirmed is lost")]
    DiskFull,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// Another choird holds this database.
    #[error("another choird is using this database: stop it, or give this one its own database")]
    InUse,
    /// The schema is from a newer version.
    #[error(
        "the database was migrated by a newer choird (migration {version}, this one knows {newest}): start the newer choird, \
         or restore a backup taken before the upgrade"
    )]
    NewerDatabase {
        /// The applied migration that is not known here.
        version: i64,
        /// The newest known one.
        newest: i64,
    },
    /// Applied migrations are not the ones of this version.
    #[error("the database's schema is not one that this choird made ({0}): restore a backup")]
    Schema(Arc<str>),
    /// pgvector is missing.
    #[error(
        "the database server has no pgvector extension: on Debian install postgresql-<version>-pgvector, or let choird run its \
         own server (scripts/fetch-postgres)"
    )]
    NoPgvector,
    /// The role may not create what is needed.
    #[error("the database role may not do this: {0}")]
    Forbidden(Arc<str>),
    /// No such agent.
    #[error("there is no agent \"{0}\"")]
    UnknownAgent(AgentId),
    /// No such session.
    #[error("there is no session {0}")]
    UnknownSession(SessionId),
    /// The text is too long.
    #[error("the text has {bytes} bytes, more than the {limit} that are accepted")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The id was used for another message.
    #[error("message id {0} was already used for another message")]
    MessageIdReused(MessageId),
    /// Too many messages wait for this agent.
    #[error("{waiting} messages already wait for agent \"{agent}\"; try again when some are answered")]
    InboxFull {
        /// The agent.
        agent: AgentId,
        /// How many wait.
        waiting: i64,
    },
    /// An argument that cannot be stored.
    #[error("{0}")]
    Invalid(&'static str),
    /// A row cannot be understood.
    #[error("the database holds something unreadable: {0}")]
    Corrupt(Arc<str>),
    /// Anything else the server said.
    #[error("the database refused: {0}")]
    Sql(Arc<str>),
}

impl StoreError {
    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into().into())
    }

    /// Whether the same request may succeed when simply repeated a little later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unconfirmed | Self::DiskFull)
    }

    /// Whether the fault is in the rows themselves (a constraint, a value), so that another transaction without them
    /// could succeed on the same connection.
    pub(crate) const fn is_about_data(&self) -> bool {
        matches!(self, Self::Sql(_) | Self::Corrupt(_) | Self::Invalid(_))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(db) => {
                let code = db.code().unwrap_or_default();
                let text: Arc<str> = db.message().into();
                match code.as_ref() {
                    "53100" => Self::DiskFull,
                    // ENOSPC also surfaces as an I/O error of whatever could not grow.
                    "58030" if db.message().contains("No space left") => Self::DiskFull,
                    "42501" => Self::Forbidden(text),
                    "55P03" | "57014" | "40001" | "40P01" => Self::Unconfirmed,
                    "25006" => Self::Unavailable(text),
                    code if code.starts_with("57P") || code.starts_with("53") || code.starts_with("08") => {
                        Self::Unavailable(text)
                    }
                    _ => Self::Sql(text),
                }
            }
            sqlx::Error::PoolTimedOut => Self::Unavailable("no connection became free in time".into()),
            sqlx::Error::PoolClosed => Self::Closed,
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => Self::Unavailable(error.to_string().into()),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::Corrupt(error.to_string().into())
            }
            _ => Self::Sql(error.to_string().into()),
        }
    }
}
