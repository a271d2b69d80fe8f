//! The edge lane: the mouth and ears of an agent (`choir §7.1`, `choir §7.2`). It takes the user's messages one at a
//! time, asks the model, hands its tool calls to the arbiter, and closes each message with exactly one answer.
//!
//! The lane holds no truth: its state is the fold of the journal's events, so a restarted lane goes on where the log
//! stands. The arbiter sends it committed events, the models actor sends it answers; it blocks on nobody.

mod actor;
mod core;
mod prompt;
mod trace;

pub use actor::{EdgeActor, EdgeDeps, child_spec};
pub use core::{Action, Edge, EdgeState, Input};
pub use prompt::{Identity, system_prompt};
pub use trace::Adopt;
