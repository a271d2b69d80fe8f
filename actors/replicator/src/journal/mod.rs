//! The journal: the in-memory event log of a session and its fold.

mod actor;
mod core;

pub use actor::{JournalActor, JournalDeps, child_spec};
pub use core::Journal;
