//! The replicator: streams the journal's events to the host and carries the acknowledgements back.

mod actor;
mod core;

pub use actor::{ReplicatorActor, ReplicatorDeps, child_spec};
pub use core::{Action, Event, Outcome, Stream};
