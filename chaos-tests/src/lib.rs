//! Chaos: kills, cuts and delays drawn from one printed seed, with checkers that look from outside.
//!
//! [`simulation`] drives the cores of an agent (journal, arbiter, edge lane, lock manager, replicator) against a model
//! of the host, in one thread and without a clock: thousands of crash schedules a second. The tests beside it kill real
//! actors and real processes.

pub mod seed;
pub mod simulation;
