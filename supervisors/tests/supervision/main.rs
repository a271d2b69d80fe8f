//! Supervision as a component meets it: real trees of real actors, one universe a test.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod addresses;
mod dynamics;
mod kit;
mod live;
mod overlap;
mod random;
mod restarts;
mod shutdowns;
