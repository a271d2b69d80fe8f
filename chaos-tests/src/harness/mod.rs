//! The real thing under chaos: a [`House`] with choird, choir-agent and Postgres as processes, a scripted model and a
//! chat client in this process, and [`play`], which plays one plan in it and returns what was seen.
//!
//! Processes are only ever signalled by numbers that choird, the cluster's own file or the kernel told, and that were
//! verified in `/proc` first.

mod client;
mod evidence;
mod house;
mod limits;
mod procfs;
mod run;
mod shard;
mod stage;
mod surgeon;

pub use house::{House, Setup};
pub use run::{Played, play};
pub use shard::Tally;

use std::path::PathBuf;

use choir_host::control::ClientError;
use choir_host::state_dir::StateDirError;
use choir_scripted_model::StartError;

/// Why a run could not be played, or did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A program is missing.
    #[error("{0} is not there; run `cargo build --workspace` first (`make test` does)")]
    NotBuilt(PathBuf),
    /// A file or process.
    #[error("the system refuses: {0}")]
    Io(#[from] std::io::Error),
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// The model.
    #[error(transparent)]
    Model(#[from] StartError),
    /// Something of the harness's own.
    #[error("the house cannot be set up: {0}")]
    Setup(String),
    /// choird does not come up.
    #[error("choird does not start: {0}")]
    NoChoird(String),
    /// choird answered no where it must not.
    #[error("choird: {0}")]
    Control(#[from] ClientError),
    /// The database.
    #[error("the tables cannot be read: {0}")]
    Sql(#[from] sqlx::Error),
    /// What is in the tables or in the tree cannot be read.
    #[error("what was seen cannot be read: {0}")]
    Unreadable(String),
    /// Something took too long.
    #[error("waited in vain for {0}")]
    Deadline(&'static str),
    /// choird ended although nobody wounded it.
    #[error("choird ended by itself: {0}")]
    Fell(String),
    /// choird was told to end and did not do so in order.
    #[error("choird did not end in order, but with code {0}")]
    Disorder(String),
    /// Processes were left behind.
    #[error("processes were left behind: {}", .0.join("; "))]
    Left(Vec<String>),
}
