//! The tools against a real file system, real processes and a real actor tree.

// Clippy's leave for tests does not reach their helpers.
#![allow(clippy::unwrap_used)]

mod confinement;
mod exec;
mod executor;
mod foreign;
mod read;
mod replay;
mod search;
mod support;
mod write;
