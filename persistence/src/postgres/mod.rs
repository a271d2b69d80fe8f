//! Postgres itself: an external server, or choird's own private cluster run from native programs as a child process
//! (DESIGN §6).
//!
//! The private cluster listens on a Unix socket only, in a folder that none but its owner can enter; inside that fence
//! every connection is trusted, since the peer's user cannot be checked where Postgres runs under a mapped uid. It
//! survives a choird that was killed, and is adopted by the next one.

mod actor;
mod binaries;
mod cluster;
mod error;
mod initdb;
mod layout;
mod pidfile;
mod process;
mod run_as;
mod source;
mod starting;

pub use actor::{PostgresMsg, PostgresStatus, child_spec};
pub use binaries::{Binaries, FETCHED, POSTGRES_BIN_VAR};
pub use cluster::{Cluster, ClusterConfig, Origin};
pub use error::ClusterError;
pub use layout::FREE_MIB;
pub use process::{Ended, Patience};
pub use source::{DATABASE_URL_VAR, Source};

/// The role and the database of a private cluster.
pub const NAME: &str = "choir";
