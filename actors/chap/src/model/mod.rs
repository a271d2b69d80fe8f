//! The objects of a workspace as they are stored: plain data, each with the kind it is kept under.

mod exchange;
mod member;
mod task;

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use exchange::{Comment, Deliberation, Handoff, HandoffState, Vote, Whisper, WhisperState};
pub use member::{Key, Member};
pub use task::{Decision, Mode, Override, Parties, Review, Step, Task, TaskState};

/// An object that a workspace stores.
pub trait Stored: Serialize + DeserializeOwned {
    /// The kind it is kept under.
    const KIND: ObjectKind;

    /// Its id within the kind.
    fn id(&self) -> &str;

    /// Whether it is unfinished, so that lists of open objects name it.
    fn open(&self) -> bool {
        false
    }

    /// When a timer must look at it.
    fn due(&self) -> Option<Timestamp> {
        None
    }
}

/// An idempotency key of `task.create`, kept by the digest of the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Idempotency {
    /// SHA-256 of the key, in hex.
    pub id: String,
    /// The task it made.
    pub task_id: String,
}

impl Stored for Idempotency {
    const KIND: ObjectKind = ObjectKind::Idempotency;
    fn id(&self) -> &str {
        &self.id
    }
}

/// A signed call that is on the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct SignedCall {
    /// SHA-256 of its canonical form without `sig`, in hex.
    pub id: String,
    /// Where it was recorded last.
    pub seq: u64,
    /// The code it was refused with, if it was.
    pub refused: Option<i64>,
}

impl Stored for SignedCall {
    const KIND: ObjectKind = ObjectKind::SignedCall;
    fn id(&self) -> &str {
        &self.id
    }
}
