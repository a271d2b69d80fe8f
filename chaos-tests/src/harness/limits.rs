//! Every deadline and size of the harness, each with its reason.

use std::time::Duration;

/// From starting choird to its word that it is ready. Its database may have to recover first, on a busy machine.
pub(super) const READY: Duration = Duration::from_secs(60);

/// From telling choird to shut down to its end: its own bound, with room.
pub(super) const STOPPED: Duration = Duration::from_secs(60);

/// From the last message to the last answer. A recovery takes a second; what takes this long has hung.
pub(super) const CONVERSATION: Duration = Duration::from_secs(60);

/// For starting or stopping an agent, and for everything that is delivered to be recorded as such.
pub(super) const SETTLED: Duration = Duration::from_secs(45);

/// Longest single request to choird: its own bound for one operation, with room.
pub(super) const REQUEST: Duration = Duration::from_secs(32);

/// Longest time for a wound to be dealt: an actor that is between two lives cannot be killed just then.
pub(super) const DEALT: Duration = Duration::from_secs(5);

/// How long the client holds its confirmation back for a wound.
pub(super) const HELD: Duration = Duration::from_secs(20);

/// Pause before something that failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(20);

/// Pause between a death of choird and its next start, as an init system would make.
pub(super) const RESPAWN: Duration = Duration::from_millis(20);

/// Ends of choird before it was ready that are taken in a row.
pub(super) const FRUITLESS: u32 = 5;

/// Heartbeats of the agent, in milliseconds: the shortest that config.json takes.
pub(super) const HEARTBEAT_MS: u64 = 250;

/// How much longer than the crash threshold a stunned agent stays frozen, unless it is killed before.
pub(super) const STUN: Duration = Duration::from_millis(700);
