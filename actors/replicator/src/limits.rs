//! Every bound of this crate, with its reason.

use std::time::Duration;

/// Durable events kept in memory beside those that are not: what a reconnecting link or an operator may ask for again.
pub const DURABLE_KEPT: usize = 4096;

/// Most askers waiting for one session's events to become durable: one a running tool call, with room to spare.
pub const DURABLE_WAITERS: usize = 256;

/// Most events one `Read` hands out.
pub const READ_EVENTS: usize = 1024;

/// Longest wait for a heartbeat's answer. The host commits in milliseconds; a second already means trouble, and the
/// link is then given up and made anew.
pub const HEARTBEAT_ANSWER: Duration = Duration::from_secs(5);

/// Longest wait for the host's hello, which may have to read a long tail.
pub const HELLO_ANSWER: Duration = Duration::from_secs(10);

/// Longest attempt to connect.
pub const CONNECT: Duration = Duration::from_secs(3);

/// First pause between attempts; doubled up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(20);

/// Longest pause between attempts: a restarted host is back within this of being ready.
pub const RETRY_MAX: Duration = Duration::from_millis(500);

/// How long the host may be out of reach before the process ends: it is then either gone or has given the lease to
/// another sandbox, and a disposable process serves nobody.
pub const UNREACHABLE: Duration = Duration::from_secs(120);

/// Pages of a tail asked for in one hello: a bound on a host that never comes to an end.
pub const HELLO_PAGES: usize = 100_000;

/// Askers waiting for a restore: the journal is the only one, and asks again only after a restart.
pub const RESTORE_WAITERS: usize = 8;

/// Longest wait of one actor of this crate for another one in the same process.
pub const NEIGHBOUR: Duration = Duration::from_secs(2);
