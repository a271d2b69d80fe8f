//! Every bound of this crate, each with its reason. The bounds that the event log shares are in
//! [`choir_messages::limits`].

use std::time::Duration;

use choir_messages::limits;

/// Longest response body read from a provider, in bytes: one event's worth of content, doubled for JSON escapes and the
/// provider's own fields. Past it the connection is dropped, so a hostile endpoint cannot fill memory.
pub const ANSWER_BODY_BYTES: usize = 2 * limits::EVENT_BYTES;

/// Longest text and calls of one answer together, in bytes of JSON: they go into one event of the log, which also holds
/// the names, ids and hashes around them.
pub const ANSWER_JSON_BYTES: usize = limits::EVENT_BYTES - 256 * 1024;

/// Most memory the values of one response's body may take, in bytes: an answer is a few long texts, so little more than
/// the body itself. The same number of bytes in small objects would take a hundred times theirs.
pub const ANSWER_MEMORY: usize = 2 * ANSWER_BODY_BYTES;

/// Longest part of an error's body that is read, in bytes: one sentence of it is shown.
pub const ERROR_BODY_BYTES: usize = 64 * 1024;

/// Longest wait for an error's body once its status is known: the status alone already says enough.
pub const ERROR_BODY_WAIT: Duration = Duration::from_secs(2);

/// Longest reason taken from a provider's words, in characters: a sentence or two for a chat message.
pub const REASON_CHARS: usize = 300;

/// Longest tool name accepted from a model, in bytes; longer than any registered name, short enough for a log line.
pub const TOOL_NAME_BYTES: usize = 256;

/// Longest call id accepted from a provider, in bytes. Some providers pack state into ids, so this is generous.
pub const PROVIDER_ID_BYTES: usize = 8 * 1024;

/// Longest model name kept from an answer, in bytes.
pub const MODEL_NAME_BYTES: usize = 256;

/// Most tokens one answer can claim to have cost: above any real context window, and small enough that a lying provider
/// cannot push the session's sums past what JSON holds exactly.
pub const TOKENS_CLAIMED: u64 = 1_000_000_000;

/// Longest wait a provider can ask for with Retry-After. A turn is held meanwhile, and past two minutes a person would
/// rather be told.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// Longest wait for a connection (name lookup, TCP, TLS), unless the call's own deadline is shorter.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Longest deadline a configuration can give one try: an hour is past every provider's own limit.
pub const CALL_WITHIN_MAX: Duration = Duration::from_secs(3600);

/// How long an idle connection is kept: shorter than the common server side limits, so that a request is not written
/// into a connection that is being closed.
pub const IDLE_CONNECTION: Duration = Duration::from_secs(20);

/// Idle connections kept: as many as calls can end together.
pub const IDLE_CONNECTIONS: usize = CALLS_IN_FLIGHT;

/// Calls made at the same time by one agent: its edge lane and a handful of core jobs.
pub const CALLS_IN_FLIGHT: usize = 8;

/// Calls waiting for a place. Every waiting one holds a transcript in memory; more are refused at once.
pub const CALLS_WAITING: usize = 32;

/// How often a running call looks whether its asker still waits; an abandoned call would only cost money.
pub const ABANDONED_CHECK: Duration = Duration::from_millis(250);
