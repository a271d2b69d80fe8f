//! The four roles of the signed ledger as actors: planner, critic, executor and auditor work on one task over one signed
//! trace, each with its own key and its own questions to the model. Whoever assembles a tree calls [`run::run_spec`] for each run
//! and brings the [`Book`](book::Book) (where the trace is written), the [`Hands`](hands::Hands) (where tools run) and the
//! models' address; `choird` does.
//!
//! What it promises:
//!
//! - A role acts on what the trace says and on nothing else. Kill any of them at any step: the next incarnation reads the
//!   same board and goes on from the last complete event.
//! - One scribe appends. A draft that was made of an older board is turned back and looked at again, so the chain is
//!   never raced for.
//! - The critic's policy may only be stricter than its model; a model that gives no usable answer approves nothing.
//! - A tool runs only after the signed intent, its approval where one is needed, and the start are in the trace; what a
//!   crash interrupted is asked for again under the same id, and reported as failed where its outcome is unknown.
//! - Everything is bounded: time, tool calls, failures, revisions, challenges, bad answers.
//!
//! [`board`], [`duty`] and [`driver`] are the rules and know no I/O; [`scribe`], [`role`] and [`run`] carry them out.

mod answer;
pub mod auditor;
pub mod board;
pub mod book;
pub mod claims;
pub mod critic;
pub mod draft;
pub mod driver;
pub mod duty;
mod executor;
pub mod hands;
pub mod limits;
pub mod planner;
pub mod policy;
pub mod role;
pub mod run;
pub mod scribe;
mod steps;
pub mod task;
mod words;
