//! What changed, told in-process after the commit. A hint, never the truth: the tables are, and a subscriber that lags
//! looks at them.

use choir_messages::event::Head;
use choir_messages::id::{AgentId, SessionId};
use tokio::sync::broadcast;

/// One committed change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whose.
    pub agent: AgentId,
    /// Of what.
    pub kind: ChangeKind,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// A message was accepted, recorded or closed.
    Inbox,
    /// Something may be waiting to be sent, or its state changed.
    Outbox,
    /// A session was opened or closed.
    Session,
    /// Events became durable.
    Journal {
        /// The session.
        session: SessionId,
        /// Its head now.
        head: Head,
    },
}

/// A subscription, from [`crate::Store::changes`].
#[derive(Debug)]
pub struct Changes(pub(crate) broadcast::Receiver<Option<Change>>);

/// Why there is no next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangesError {
    /// At least so many were not told: the subscriber was too slow, or the committer died after a commit and before it
    /// could tell. Look at the tables, then go on.
    #[error("{0} changes were missed: look at the tables")]
    Missed(u64),
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl Changes {
    /// The next change.
    pub async fn next(&mut self) -> Result<Change, ChangesError> {
        match self.0.recv().await {
            Ok(change) => change.ok_or(ChangesError::Missed(1)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Err(ChangesError::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => Err(ChangesError::Closed),
        }
    }
}
