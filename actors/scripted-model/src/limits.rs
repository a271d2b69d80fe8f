//! Every bound of this crate, each with its reason.

use std::time::Duration;

/// Longest request read, in bytes: a whole transcript with its largest tool results, several times over.
pub const REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// Longest piece of a tool result quoted in a text, in bytes: an answer is for a person to read.
pub const QUOTE_BYTES: usize = 4000;

/// Requests kept in the journal in memory; older ones are only in its file. Room for the longest chaos run.
pub const JOURNAL_ENTRIES: usize = 50_000;

/// Longest text kept of a user's message or an answer in a journal entry, in bytes.
pub const JOURNAL_TEXT_BYTES: usize = 16 * 1024;

/// Longest answer made on demand, in bytes: well past what any client accepts, well below what hurts this process.
pub const HUGE_BYTES: usize = 256 * 1024 * 1024;

/// Bytes of a huge answer made at a time.
pub const HUGE_PIECE_BYTES: usize = 64 * 1024;

/// How long open connections get to end at shutdown before they are dropped.
pub const SHUTDOWN_WITHIN: Duration = Duration::from_secs(2);

/// How deep branches may nest; deeper ones are a mistake in a script.
pub const BRANCH_DEPTH: usize = 16;
