//! What Choir must not forget: sessions with their event logs and snapshots, leases, the inbox of users' messages, the
//! outbox of answers, tool invocations and approvals, in Postgres (`choir §13`, `choir §23`); and the private Postgres
//! itself, run as a supervised child of choird.
//!
//! Used by choird only; nothing of it is linked into a container. Three promises: what [`Store::append`] and
//! [`Store::accept_message`] return has been committed to disk; an answer is born in the same transaction as the event
//! that says it; and a log is kept as the exact text that was hashed, so that anyone can verify it offline.
//!
//! - [`postgres`]: finding the programs, and the cluster: made, started, watched, adopted, stopped.
//! - [`Store`]: everything that is read and written, in one cheap handle.
//! - [`chap`]: the workspaces of the CHAP Coordinator, in the same database or in memory.

pub mod chap;
mod error;
mod journal;
pub mod limits;
pub mod postgres;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

pub use error::StoreError;
pub use journal::actor::{CommitterMsg, committer_mailbox, committer_spec};
pub use journal::{Ack, AppendError};
pub use store::Store;
