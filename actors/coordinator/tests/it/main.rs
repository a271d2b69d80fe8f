//! The Coordinator's actors against their stores.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its helpers")]

mod bounds;
mod calls;
mod chaos;
mod faults;
mod inbox;
mod presented;
mod support;
mod timers;
