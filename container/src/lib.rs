//! choir-agent: the disposable process that thinks. It assembles the agent's tree (DESIGN §3) from the component crates
//! and holds no authority of its own: everything it may do, its host decides, and everything it did, its host has on
//! record before an effect.
//!
//! One process serves one lease. It reads its bootstrap from standard input, keeps that open as its lifeline, connects
//! to the host, restores the session's log from there, and runs until it is told to stop, its lease is revoked, or its
//! host is gone.

pub mod bootstrap;
mod connector;
pub mod end;
mod identity;
mod reporter;
mod signals;
mod tools;
mod tree;

pub use tree::{Agent, AgentError, AgentSpec, start};
