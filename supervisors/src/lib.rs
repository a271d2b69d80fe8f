//! OTP supervision on ractor: what starts, watches, restarts and stops every actor of Choir. Each component gives a
//! [`ChildSpec`] with a factory, a place in a [`SupervisorSpec`] and a [`mailbox`](mailbox()); everyone else holds its
//! [`Address`]. The words are OTP's and mean what they mean there: one_for_one, one_for_all, rest_for_one; permanent,
//! transient, temporary; intensity; shutdown.
//!
//! What it promises:
//!
//! - An address survives restarts. So does what waits in the mailbox; only the message being handled at a crash is
//!   lost, and whoever asked learns it at once.
//! - A replacement starts only when the old incarnation, its tasks and all its descendants are gone.
//! - A shutdown goes in reverse start order; [`Actor::stopping`] really runs, until a deadline.
//! - Every mailbox has a capacity and a policy when full; every wait has a deadline.
//! - A handler that makes no progress is a failed actor ([`Exit::Stuck`]).
//! - The live tree is data: [`TreeHandle::snapshot`] never asks the actors, so a stuck one cannot hide.
//! - Nothing is global: everything hangs off one [`Tree`], and two trees in a process do not see each other.
//!
//! [`core`] holds the supervisor's rules as a plain state machine; the rest is the shell that carries them out.

mod actor;
pub mod core;
mod dynamic;
mod exit;
mod incarnation;
mod keeper;
pub mod limits;
mod mailbox;
mod node;
mod panics;
mod shell;
mod spec;
mod supervisor;
mod tree;

pub use actor::{Actor, Context, ReplyToSelf, StartContext, TaskHandle, TimerHandle, TooManyTasks};
pub use choir_messages::mail::Mail;
pub use choir_messages::reply::{Answer, ReplyTo, reply_port};
pub use dynamic::{ChildRef, DynamicError, DynamicHandle};
pub use exit::{Exit, Failure};
pub use mailbox::{Address, CallError, MailboxSpec, SendError, Slot, WhenFull, mailbox};
pub use node::{Current, IntensityView, MailboxView, NodeKind, NodeState, TreeNode};
pub use spec::{
    AutoShutdown, Backoff, ChildSpec, DynamicSpec, Intensity, Restart, Shutdown, SpecError, Strategy,
    SupervisorSpec,
};
pub use tree::{ShutdownReport, StartError, SupervisorReport, Tree, TreeHandle};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Target of the spans of messages that no trace leads to: timers' ticks and what follows from them. Subscribers that
/// export traces leave them out; the spans of all other messages have the target `choir::actor`.
pub const BACKGROUND_TARGET: &str = "choir::background";

/// Locks; a panic of another holder leaves the data as it was, since no critical section of this crate calls out.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
