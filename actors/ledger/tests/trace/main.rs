//! The rules of a trace: as a table, as a model, against the golden traces, and against the strict verifier.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod golden;
mod kit;
mod model;
mod stories;
mod table;
mod verified;

#[path = "../support/mod.rs"]
mod support;
