//! Chaos: kills, freezes, cuts and delays drawn from one printed seed, with checkers that look from outside.
//!
//! [`simulation`] drives the cores of an agent (journal, arbiter, edge lane, lock manager, replicator) against a model
//! of the host, in one thread and without a clock: thousands of crash schedules a second. [`harness`] plays a
//! conversation through the real choird, choir-agent and Postgres, and wounds them at steps that a [`plan`] names;
//! [`check`] then holds what was seen from outside (tables, log, workspace, model endpoint, chat client) against
//! DESIGN §5. Used by this crate's tests only.

pub mod check;
pub mod harness;
pub mod plan;
pub mod seed;
pub mod simulation;
