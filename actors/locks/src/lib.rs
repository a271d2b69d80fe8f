//! The lock manager of an agent (`choir §9`): the arbiter asks it for the lockset of every tool call and tells it when
//! the call has ended, however it ended. It promises that a set is granted whole or not at all, that two calls never
//! hold sets that exclude each other (but for the edge lane's dirty reads, `choir §9.4`), that every request is answered
//! within its deadline, that nobody waits for ever behind later requests, and that nothing deadlocks. Its table is lost
//! with it by design: whoever ran under its locks is restarted with it.
//!
//! [`LockManager`] is the whole rule book as plain data (`step(event, now) -> actions`); [`invariants`] are its promises
//! in numbers; [`LocksActor`] carries it in the tree.

mod actor;
mod bounds;
pub mod invariants;
mod lockset;
mod manager;

pub use actor::{LocksActor, child_spec, mailbox_spec};
pub use bounds::{MAILBOX_CAPACITY, MAX_LOCKS_PER_SET, MAX_REQUESTS, MAX_WAIT_MS, MAX_WAITING};
pub use lockset::{LockSet, contains, excludes};
pub use manager::{Action, LockEvent, LockManager, Origin, Request};
