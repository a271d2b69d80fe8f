//! Every bound of the demo, each with its reason.

use std::time::Duration;

/// From starting choird to its first word: a new database cluster is made in it, on a slow disk.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(120);

/// How often a wait says that it still waits.
pub(super) const SAY_EVERY: Duration = Duration::from_secs(5);

/// One request to choird, with the tries it takes while choird is away.
pub(super) const ASK_WITHIN: Duration = Duration::from_secs(60);

/// One attempt of such a request.
pub(super) const ATTEMPT: Duration = Duration::from_secs(40);

/// The pause between attempts, and between looks at tables that cannot be waited on.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// From a message to its answer where the model is scripted: seconds of work, a crash in between, a busy machine.
pub(super) const SCRIPTED_ANSWER: Duration = Duration::from_secs(90);

/// The same where a real model thinks, several times in a turn, and its provider may ask for patience.
pub(super) const REAL_ANSWER: Duration = Duration::from_secs(420);

/// From a kill to the first sign of recovery.
pub(super) const RECOVERED_WITHIN: Duration = Duration::from_secs(90);

/// From a message to the moment in its turn at which something is killed.
pub(super) const MOMENT_WITHIN: Duration = Duration::from_secs(60);

/// Longest wait, drawn anew each time, between a committed tool call and a kill where no model call can be held open.
pub(super) const KILL_SPREAD_MS: u64 = 400;

/// How long choird may take to end by itself before it is killed: its own bound and room.
pub(super) const END_WITHIN: Duration = Duration::from_secs(45);

/// How long what is left after choird may take to end after being asked to.
pub(super) const LEFT_WITHIN: Duration = Duration::from_secs(8);

/// Texts on their way from choird to the chat.
pub(super) const SAID_QUEUE: usize = 16;

/// One statement of the demo's own database connection.
pub(super) const SQL_WITHIN: Duration = Duration::from_secs(30);

/// Largest file of the workspace that is counted, in bytes; the play's files have a few hundred.
pub(super) const COUNTED_BYTES: u64 = 1024 * 1024;

/// Lines of choird's own words shown when it does not start.
pub(super) const LAST_LINES: usize = 12;
