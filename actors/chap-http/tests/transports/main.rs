//! The transports as clients meet them: real sockets on loopback, and behind them a small honest Coordinator.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod calls;
mod client;
mod doors;
mod ending;
mod mcp;
mod notices;
mod peer;
mod sockets;
