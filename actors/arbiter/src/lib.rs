//! The arbiter: the only one that commits (`choir §7.4`). Lanes and the host propose; it checks a proposal against the
//! log's rules, the tools' schemas and the session's budgets, has it appended to the journal, and carries out what the
//! committed events ask for: locks, executions, releases.
//!
//! Promised: commits are serial, executions are not, so a slow tool delays nobody who does not wait for its locks. What
//! the arbiter does after a commit is a function of the committed events alone ([`Arbiter::committed`]); a restarted
//! arbiter reads the journal's view and takes up every open call when the turn's resumption is committed. A call whose
//! effect is unknown is never repeated, and a turn that is interrupted at the same step again is set aside.

mod actor;
mod core;
mod tools;

pub use actor::{ArbiterActor, ArbiterDeps, child_spec};
pub use core::{Answer, Arbiter, Decision, Effect, Input};
pub use tools::{ToolHost, ToolRules, ValidCall};
