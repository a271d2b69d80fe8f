//! The roles over a trace in memory: every rule of the trace, real signatures, no disk and no clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actors;
mod play;
mod stories;
mod world;
