//! The host of Choir: `choird`, which owns everything durable and starts, watches and restarts agents, and `choirctl`,
//! through which people operate it.
//!
//! Operators speak to choird over a private Unix socket ([`control`]); agents speak to it over their link, each to its
//! own session's gate ([`session`]). It promises what DESIGN §5 lists: a user's message is stored before it is
//! confirmed and ends in exactly one record; an event is acknowledged only once it is durable; an agent runs at most
//! once, and a crash is noticed and recovered from.

pub mod config;
pub mod control;
pub mod coordinator;
pub mod ctl;
pub mod daemon;
pub mod demo;
pub mod limits;
pub mod secrets;
pub mod session;
pub mod state_dir;
mod telemetry;
