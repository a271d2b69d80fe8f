//! The uplink: keeps one link to the host, says hello on each, and hands settings round.

mod actor;
mod greet;

pub use actor::{Connector, UplinkActor, UplinkDeps, child_spec};
pub use greet::greet;
