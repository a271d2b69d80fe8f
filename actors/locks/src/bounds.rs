//! Every bound of the lock manager, each with its reason.

use std::time::Duration;

use choir_messages::limits::TOOL_CALLS_PER_ANSWER;

/// Lanes that can be waiting with a whole model answer at once: the edge lane and seven core jobs. More lanes than
/// that still work; they are refused only while the others fill the queue.
const LANES: usize = 8;

/// Requests that may wait at once. A lane proposes at most one model answer at a time, so this is every lane with
/// every call of its answer. Policy when full: refuse the new request.
pub const MAX_WAITING: usize = LANES * TOOL_CALLS_PER_ANSWER;

/// Requests known at once, held and waiting together: as many may run as may wait. It bounds memory and the length of
/// every search through the table. Policy when full: refuse the new request.
pub const MAX_REQUESTS: usize = 2 * MAX_WAITING;

/// Locks in one set as asked for, before repeats are folded. Built-in tools need one or two (`choir §8.7`); a
/// manifest that lists more than this means `workspace`.
pub const MAX_LOCKS_PER_SET: usize = 64;

/// Longest wait, in milliseconds; longer ones are cut to this. No tool call runs for an hour, so whoever waited this
/// long waits for something that will not end by itself.
pub const MAX_WAIT_MS: u64 = 60 * 60 * 1000;

/// Messages in the lock manager's mailbox: an acquire and a release for every request that can be known at once.
pub const MAILBOX_CAPACITY: usize = 2 * MAX_REQUESTS;

/// How long a sender waits at a full mailbox. A message is handled in microseconds, so a mailbox that stays full this
/// long belongs to an actor that is stuck.
pub(crate) const SEND_WAIT: Duration = Duration::from_secs(5);

/// A handler that takes this long is stuck: the worst step, a full table in a debug build, takes well under a second.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// How long a shutdown may take: one answer to each waiter, nothing else.
pub(crate) const SHUTDOWN_WITHIN: Duration = Duration::from_secs(1);
