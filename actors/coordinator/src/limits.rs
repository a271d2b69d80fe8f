//! Every bound of this crate, each with its reason.

use std::time::Duration;

use choir_supervisors::Backoff;

/// Calls waiting for the router or the dispatcher; a caller that finds them full is told at once that the Coordinator is
/// busy. At 20 µs a call a full mailbox is 20 ms of work.
pub const ROUTER_MAILBOX: usize = 1024;

/// Longest body that the router reads itself, in bytes: a millisecond of its time at most. Longer ones are read beside it.
pub const READ_INLINE: usize = 32 * 1024;

/// Long bodies being read at once: each may take ten times its size in memory meanwhile.
pub const READ_BESIDE: usize = 16;

/// Tokens and presentations being verified at once; each may wait for the network.
pub const ATTESTING: usize = 64;

/// Longest wait for a token or presentation to be verified.
pub const ATTEST_WITHIN: Duration = Duration::from_secs(10);

/// Calls waiting in a workspace actor's mailbox, and as many more in its hands: half a second of work at two thousand
/// calls a second.
pub const WORKSPACE_QUEUE: usize = 512;

/// Calls stepped before one commit: bounds what a failed commit undoes, and how long its answers wait for each other.
pub const BATCH_CALLS: usize = 128;

/// Text of changes in one commit, in bytes, beyond which a batch ends early.
pub const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// Longest wait for calls that are likely to join a batch: a tenth of what making one durable takes.
pub const LINGER: Duration = Duration::from_micros(300);

/// Reads of one workspace's log under way at once: each holds a page.
pub const READS: usize = 16;

/// How often one step may ask for more objects. The rules need three rounds at most; more would be a defect.
pub const ROUNDS: usize = 16;

/// How often a call is taken in hand anew, after its actor crashed or another writer was quicker, before it is given up.
pub const TRIES: u32 = 5;

/// Workspace actors alive at once unless the settings say otherwise: each holds at most 4 MiB of objects.
pub const LIVE_WORKSPACES: usize = 256;

/// How long a workspace actor lives without work unless the settings say otherwise.
pub const IDLE_AFTER: Duration = Duration::from_secs(60);

/// How often idle workspace actors are looked for.
pub const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// Restarts of workspace actors that are too many, within [`RESTARTS_WITHIN`]: two hundred actors may crash once each
/// before the supervisor gives up and all are made anew.
pub const RESTARTS: u32 = 200;

/// See [`RESTARTS`].
pub const RESTARTS_WITHIN: Duration = Duration::from_secs(10);

/// How long a crashed workspace actor waits before it is restarted. Calls wait with it, so the waits are short; a call
/// that crashes it every time is given up after [`TRIES`], which ends a row of crashes sooner than any pause.
pub const RESTART_BACKOFF: Backoff = Backoff {
    immediate: 3,
    initial: Duration::from_millis(10),
    max: Duration::from_millis(200),
    factor: 2,
    stable_after: Duration::from_secs(1),
};

/// Longest time one message may keep a workspace actor busy: several reads of a slow store, each with its own deadline.
pub const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Words about notices waiting for the hub of inboxes: one a commit that has any.
pub const WRITES_MAILBOX: usize = 1024;

/// Longest wait for commits under way when the Coordinator ends: the store's own deadline for one.
pub const WRITES_END_WITHIN: Duration = Duration::from_secs(50);

/// Participants whose calls are counted. One with nothing under way that has not called for a while is forgotten first;
/// past this, newcomers share one account.
pub const PARTICIPANTS: usize = 16 * 1024;

/// Askers waiting for a notice, in all: each is a few hundred bytes.
pub const WAITERS: usize = 4096;

/// Askers waiting for a notice for one participant of one workspace: its windows and devices.
pub const WAITERS_EACH: usize = 16;

/// Reads of notices under way at once; more wait their turn.
pub const INBOX_READS: usize = 64;

/// Notices of one page, whatever is asked for.
pub const INBOX_PAGE: usize = 1000;

/// Notices kept for a participant that has read them: another of its devices may be behind.
pub const NOTICES_KEPT: usize = 1_000;

/// Oldest notice kept for a participant that has read it: a device that was off for longer reads the log instead.
pub const NOTICES_KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many notices further a participant must have read before its old ones are looked for again: a look costs a
/// statement.
pub const PRUNE_EVERY: u64 = 256;

/// Participants whose reading is followed. Past this all are forgotten, which only delays a look.
pub const READERS: usize = 16 * 1024;

/// Operators waiting for a listing: they are few, and ask again.
pub const CATALOGUE_MAILBOX: usize = 32;

/// Workspaces of one page of a listing, whatever is asked for.
pub const CATALOGUE_PAGE: usize = 1000;

/// Longest wait for the store to list a page.
pub const CATALOGUE_WITHIN: Duration = Duration::from_secs(10);

/// How often waiting askers that gave up are looked for.
pub const WAITERS_SWEEP: Duration = Duration::from_secs(5);

/// How often the store is asked for what is due even if nothing is known to be: the clock may have been set.
pub const TIMERS_EVERY: Duration = Duration::from_secs(60);

/// Objects due that are looked at in one go.
pub const DUE_PAGE: usize = 500;

/// Pause before the next look when that many were due.
pub const DUE_PAUSE: Duration = Duration::from_millis(50);

/// How long after a fruitless attempt an object that is due is tried again, doubling up to [`LAPSE_RETRY_MAX`].
pub const LAPSE_RETRY: Duration = Duration::from_secs(1);

/// See [`LAPSE_RETRY`].
pub const LAPSE_RETRY_MAX: Duration = Duration::from_secs(60);

/// Attempts after which a deadline counts as one that cannot be met for now: its whole workspace is then left alone until
/// the next attempt.
pub const LAPSE_STUCK: u32 = 3;
