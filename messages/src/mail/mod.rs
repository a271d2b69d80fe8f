//! Every mailbox: one enum a component, each variant with its meaning. Actors know each other by these types only.

mod arbiter;
mod coordinator;
mod edge;
mod executor;
mod journal;
mod ledger;
mod locks;
mod models;
mod replicator;
mod uplink;

pub use arbiter::{ArbiterMsg, Proposal, ProposalRefused};
pub use coordinator::{CallAnswer, Caller, CoordinatorMsg, NoticePage, Unanswered, WorkspaceLine};
pub use edge::EdgeMsg;
pub use executor::{Execution, ExecutorMsg};
pub use journal::{Appended, JournalError, JournalMsg, JournalStatus};
pub use ledger::{LedgerEnd, LedgerEvent, LedgerMsg, LedgerPage, LedgerRefused, LedgerRun};
pub use locks::{Acquire, HeldLock, LockRefused, LockTable, LocksMsg};
pub use models::ModelsMsg;
pub use replicator::{LinkState, ReplicatorMsg, ReplicatorStatus};
pub use uplink::{CurrentSettings, Greeted, Restored, UplinkEnd, UplinkMsg};

/// A mailbox's message type.
pub trait Mail: Send + 'static {
    /// The variant's name, for the live tree, spans and logs. Never payload.
    fn label(&self) -> &'static str;
}
