//! The lock manager (`choir §9`): grants whole locksets or nothing.

use serde::{Deserialize, Serialize};

use super::Mail;
use crate::id::InvocationId;
use crate::reply::ReplyTo;
use crate::tool::{Lane, LockSpec};

/// What the lock manager is told.
#[derive(Debug)]
pub enum LocksMsg {
    /// Take every lock of a set, or wait for all of them.
    Acquire(Acquire),
    /// Let go of everything this invocation holds, or of its place in the queue.
    Release {
        /// Whose.
        invocation: InvocationId,
    },
    /// A new arbiter has begun: every lock and every waiter from before is void.
    NewEpoch {
        /// Answered once it is so.
        reply: ReplyTo<()>,
    },
    /// The lock table.
    Table {
        /// The table.
        reply: ReplyTo<LockTable>,
    },
    /// Time to look at the deadlines.
    Tick,
}

/// A request for a lockset.
#[derive(Debug)]
pub struct Acquire {
    /// The lane that will hold the locks.
    pub owner: Lane,
    /// The call they are for; the key of their release.
    pub invocation: InvocationId,
    /// The set; repeats and covered locks are folded together.
    pub locks: Vec<LockSpec>,
    /// Longest wait in milliseconds.
    pub wait_ms: u64,
    /// `Ok` once all are held.
    pub reply: ReplyTo<Result<(), LockRefused>>,
}

/// Why a lockset was not granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum LockRefused {
    /// Not in time.
    #[error("the locks were not free within {waited_ms} ms; {blocked_by} holds {resource}")]
    Deadline {
        /// How long was waited.
        waited_ms: u64,
        /// Who was in the way.
        blocked_by: String,
        /// On what.
        resource: String,
    },
    /// Too many wait already.
    #[error("too many calls wait for locks already ({waiting})")]
    QueueFull {
        /// How many.
        waiting: u32,
    },
    /// The call already holds or awaits locks.
    #[error("the call already holds or awaits locks")]
    Duplicate,
    /// Too many locks in one set.
    #[error("more than {limit} locks in one set")]
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// Void: withdrawn by its asker, or from before the arbiter's or the manager's restart.
    #[error("the request is void: it was withdrawn, or its asker was restarted")]
    Void,
}

/// One granted lockset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// Who.
    pub owner: Lane,
    /// For which call.
    pub invocation: InvocationId,
    /// What.
    pub locks: Vec<LockSpec>,
    /// For how long, in milliseconds.
    pub age_ms: u64,
}

/// The lock table, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LockTable {
    /// Granted sets, oldest first.
    pub held: Vec<HeldLock>,
    /// Waiting sets, in order.
    pub waiting: Vec<HeldLock>,
}

impl Mail for LocksMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Release { .. } => "release",
            Self::NewEpoch { .. } => "new_epoch",
            Self::Table { .. } => "table",
            Self::Tick => "tick",
        }
    }
}
