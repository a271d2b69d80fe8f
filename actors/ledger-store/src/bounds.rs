//! Every bound of the store, each with its reason.

use std::time::Duration;

/// Largest line of a ledger that is written, in bytes. What is larger belongs into an artefact.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// Largest line of a ledger that is read, in bytes: others may have written longer ones.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// Largest artefact that is stored or read whole, in bytes.
pub const MAX_ARTIFACT_BYTES: u64 = 256 << 20;

/// Largest meta file, report, registry or checkpoint that is read, in bytes.
pub const MAX_DOCUMENT_BYTES: u64 = 16 << 20;

/// Events that wait to be written. Beyond it an append waits, for [`QUEUE_WAIT`] at most.
pub const QUEUE: usize = 4096;

/// How long an append waits for a place in the queue before it says that the disk is too slow.
pub const QUEUE_WAIT: Duration = Duration::from_secs(30);

/// Bytes written before one sync: large enough that syncs do not set the pace, small enough that the first of a batch does
/// not wait long for the last.
pub const BATCH_BYTES: usize = 1 << 20;

/// How long a blocking wait for a ticket lasts at most. A disk that does not sync within it is as good as broken.
pub const TICKET_WAIT: Duration = Duration::from_secs(120);

/// Quiet after which the checkpoint and the meta file are written: a burst of events shares them.
pub const CHECKPOINT_IDLE: Duration = Duration::from_millis(20);

/// Events after which they are written although no quiet came: what a rollback could hide at most.
pub const CHECKPOINT_EVERY: u64 = 4096;

/// References kept in an artefact's sidecar. No check reads them; a common artefact must not get slower to store.
pub const MAX_REFERENCES: usize = 64;

/// Traces of one home that are listed.
pub const MAX_TRACES: usize = 1_000_000;

/// Longest task id, in bytes: it stands in every list.
pub const MAX_TASK_ID_BYTES: usize = 256;

/// Torn tails kept beside a ledger, more are a disk that must be looked at.
pub const MAX_TORN: u32 = 10_000;

/// How long the registry's or the log's lock is waited for. Whoever holds it writes a few small files.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How often a lock that is held is tried again: the system offers no wait with a deadline.
pub const LOCK_POLL: Duration = Duration::from_millis(5);
