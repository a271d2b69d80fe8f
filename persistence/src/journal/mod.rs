//! The durable journal: appends of all sessions gathered into group commits (`choir §13.1`, DESIGN §5).

pub(crate) mod actor;
mod committer;
mod keeper;
pub(crate) mod load;
mod rows;

use choir_messages::event::{ChainError, Event, Head};
use choir_messages::id::{LeaseId, SessionId};
use choir_messages::limits::{BATCH_EVENTS, FRAME_BYTES};
use choir_messages::reply::ReplyTo;
use choir_messages::session::Illegal;
use choir_supervisors::{CallError, SendError};

use crate::error::StoreError;
use crate::limits;
use crate::store::Store;

use actor::{CommitterMsg, Job};
pub(crate) use keeper::Checked;
pub(crate) use rows::{Said, settle};

/// What is durable after an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// The durable head; at least the last event of the batch.
    pub head: Head,
}

/// Why a batch was not appended. Unless it says otherwise, nothing of it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// The session is not active, or under another lease or generation.
    #[error("the lease is no longer valid")]
    LeaseRevoked,
    /// The batch is no continuation of the durable log.
    #[error("the agent's log has diverged from the host's, which stands at revision {}", .durable.rev)]
    Diverged {
        /// What is durable.
        durable: Head,
    },
    /// The batch is broken in itself.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// An event may not come next.
    #[error("the log would not be legal: {0}")]
    Illegal(#[from] Illegal),
    /// The log opens for another agent than the session's.
    #[error("the log belongs to another agent")]
    WrongAgent,
    /// More than one append may carry.
    #[error("the batch has more than {BATCH_EVENTS} events or {FRAME_BYTES} bytes")]
    TooLarge,
    /// Too many appends wait; the same may be repeated.
    #[error("too many appends are waiting for the database; repeat this one")]
    Overloaded,
    /// The database could not do it, or did not confirm that it did. Repeating is safe: what is durable is a no-op.
    #[error(transparent)]
    Database(#[from] StoreError),
}

impl AppendError {
    /// Whether the same append may succeed when repeated a little later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Overloaded => true,
            Self::Database(error) => error.is_transient(),
            _ => false,
        }
    }
}

/// One append on its way to the committer.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) session: SessionId,
    pub(crate) lease: LeaseId,
    pub(crate) generation: u64,
    pub(crate) events: Vec<Checked>,
    pub(crate) bytes: usize,
    pub(crate) reply: ReplyTo<Result<Ack, AppendError>>,
    /// Whose work it is, for the trace: a commit serves several.
    pub(crate) span: tracing::Span,
}

impl Store {
    /// Makes a batch of a session's events durable, with everything that follows from them: the inbox's records, the
    /// answers' and notices' outbox rows, the invocations. Returns once the transaction has committed.
    ///
    /// Events that are durable already are no-ops (`choir §13.3`); the rest must continue the log. All or nothing.
    /// An empty batch only asks whether the lease is valid and what is durable.
    ///
    /// At most [`BATCH_EVENTS`] events of at most [`FRAME_BYTES`] bytes in all.
    #[tracing::instrument(target = "choir::store", name = "store.append", level = "debug", skip_all, fields(%session, events = events.len()))]
    pub async fn append(
        &self,
        session: SessionId,
        lease: LeaseId,
        generation: u64,
        events: Vec<Event>,
    ) -> Result<Ack, AppendError> {
        if events.is_empty() {
            return Ok(Ack { head: self.leased_head(session, lease, generation).await? });
        }
        if events.len() > BATCH_EVENTS {
            return Err(AppendError::TooLarge);
        }
        // Hashing happens here, on the caller's time, so that one session's large batch does not hold up the committer.
        let mut checked = Vec::with_capacity(events.len());
        let mut bytes = 0usize;
        for event in events {
            let event = Checked::new(session, event)?;
            bytes = bytes.saturating_add(event.text.len());
            if u64::try_from(bytes).is_ok_and(|b| b > FRAME_BYTES) {
                return Err(AppendError::TooLarge);
            }
            checked.push(event);
        }
        let span = tracing::Span::current();
        let append = |reply| {
            let append = Append { session, lease, generation, events: checked, bytes, reply, span };
            CommitterMsg(Job::Append(append))
        };
        match self.committer()?.call(limits::APPEND_WITHIN, append).await {
            Ok(verdict) => verdict,
            Err(CallError::Send(SendError::Full | SendError::Deadline)) => Err(AppendError::Overloaded),
            // The committer's place is empty for a moment: it, or the supervisor above it, is being restarted.
            Err(CallError::Send(SendError::Closed)) => {
                let why = "what commits is being restarted";
                Err(AppendError::Database(StoreError::Unavailable(why.into())))
            }
            // It died with this in hand, or is late: the commit may have happened.
            Err(CallError::Unanswered | CallError::Deadline) => {
                Err(AppendError::Database(StoreError::Unconfirmed))
            }
        }
    }
}
