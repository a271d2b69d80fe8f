//! The tools of an agent: the only way a model can see or change its workspace (`choir §8.1`). The arbiter asks the
//! [`ToolRegistry`] to check what a model proposed and what to lock, asks [`prepare`] how a repeat would be recognised,
//! and starts one executor ([`executor_child`]) for each committed call.
//!
//! What it promises:
//!
//! - No path leads out of the workspace: not by `..`, not by a symbolic link, not by a race. Devices, FIFOs and sockets
//!   are never opened.
//! - A call that writes runs only once its commit is durable. A file write is atomic and durable; repeated after a crash
//!   it is recognised, or its outcome is said to be unknown.
//! - A command sees a clean environment, and nothing it started outlives its call, its executor or this process.
//! - Once a call is cancelled, or its executor gone, it changes nothing any more.
//! - Every output fits the log and says what was cut; every refusal is one sentence the model can act on.
//!
//! The tools themselves know neither tokio nor actors; [`executor`] is the thin shell around them.

pub mod exec;
pub mod executor;
pub mod limits;
pub mod read;
pub mod registry;
pub mod search;
pub mod stop;
pub mod text;
pub mod tool;
pub mod workspace;
pub mod write;

pub use executor::{ExecutorActor, execute, executor_child, prepare};
pub use registry::{RegistryError, ToolRegistry, Validated};
pub use tool::{Call, Exposure, RuntimeView, Tool};
pub use workspace::{Workspace, WorkspaceError};

/// Keeps this process's memory and environment, where secrets live, from commands that run under the same user: the
/// kernel then denies them `/proc/<pid>/mem`, `/proc/<pid>/environ` and tracing, unless they have the capability to
/// trace anyone (`choir §14`, `choir §15.3` drops it). Call it first thing in choir-agent.
pub fn hide_process() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}
