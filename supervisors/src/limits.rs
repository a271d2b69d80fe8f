//! Every bound of this crate, each with its reason.

use std::time::Duration;

/// Messages one wake handles before the actor's loop looks at its other ports: enough that a burst costs one wake, few
/// enough that a kill is seen within a batch of cheap messages.
pub const BATCH: usize = 64;

/// Senders that may wait at one full mailbox at once. Each holds one message, so this bounds the memory behind a
/// mailbox to capacity + this; the next sender is refused at once.
pub const PARKED_SENDERS: usize = 1024;

/// Pipes and timers one incarnation may have running. Each delivers at most one message beyond the mailbox's capacity,
/// so this bounds that excess too.
pub const TASKS_PER_ACTOR: usize = 1024;

/// How long a killed incarnation and its descendants may take to be gone before their tasks are aborted, and once
/// more after that. A future that is never polled again ends at its next await; only code that blocks its thread
/// lasts longer.
pub const GONE_WITHIN: Duration = Duration::from_secs(5);

/// The default deadline for a worker's shutdown (OTP's).
pub const SHUTDOWN_WITHIN: Duration = Duration::from_secs(5);

/// The default deadline for a worker's start.
pub const START_WITHIN: Duration = Duration::from_secs(30);

/// The default bound on a dynamic supervisor's children: an actor costs about 12 KB, so this is 50 MB.
pub const DYNAMIC_CHILDREN: usize = 4096;

/// Requests to one dynamic supervisor in flight at once; more wait their turn.
pub const DYNAMIC_REQUESTS: usize = 64;

/// How long a request to a dynamic supervisor waits for its turn, and for the supervisor when it is itself being
/// restarted.
pub const DYNAMIC_WAIT: Duration = Duration::from_secs(5);

/// Supervisor reports kept for a subscriber that is slow; it then learns how many it missed.
pub const REPORTS: usize = 256;

/// Longest text kept of a panic message or failure, in bytes: reports are logged and shown.
pub const REASON_BYTES: usize = 1024;
