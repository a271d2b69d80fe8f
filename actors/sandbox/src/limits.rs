//! Every bound of this crate, with its reason.

use std::time::Duration;

/// Bytes of an agent's output kept per start: enough for days of logs, and a hostile agent cannot fill the disk.
pub const LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes of an agent's last output kept for the report of its end: some lines of a panic.
pub const LAST_WORDS_BYTES: usize = 2 * 1024;

/// How long a start may take until the bootstrap line is written. The pipe takes the line at once unless the system is
/// out of pipe memory.
pub const START_DEADLINE: Duration = Duration::from_secs(10);

/// How long killed processes may take to be gone. The kernel needs milliseconds; a process in uninterruptible disk wait
/// needs as long as the disk.
pub const KILL_DEADLINE: Duration = Duration::from_secs(10);

/// How long the trial run of bubblewrap may take.
pub(crate) const PROBE_DEADLINE: Duration = Duration::from_secs(10);

/// Files a process in the sandbox may hold open: above any build's need, below what strains the kernel.
pub const OPEN_FILES: u64 = 4096;

/// Size of `/tmp` and `/run` in the sandbox, each, in bytes: they are memory.
pub const TMPFS_BYTES: u64 = 512 * 1024 * 1024;

/// Rounds of looking for processes to kill. Each round kills all it sees; more rounds mean that something forks as
/// fast as it is killed.
pub(crate) const SWEEP_ROUNDS: u32 = 200;

/// Pause between rounds: the kernel needs a moment to tear a killed process down.
pub(crate) const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Starts waiting for the spawning thread; a host starts a handful of agents, one at a time each.
pub(crate) const SPAWN_QUEUE: usize = 16;

/// How long the rest of a dead agent's output is awaited; the pipe's writers are dead by then.
pub(crate) const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Longest label.
pub(crate) const LABEL_BYTES: usize = 64;
