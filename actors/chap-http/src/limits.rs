//! Every bound of this crate, each with its reason. Those an operator may want to move are fields of [`Limits`].

use std::time::Duration;

/// Longest canonical envelope, in bytes, unless configured: the reference's default.
pub const ENVELOPE_BYTES: usize = 1024 * 1024;

/// How much longer than the longest envelope a WebSocket frame may be. It is kept whole while it comes, on every
/// socket, so it has less room for white space than a body, which has the budget of [`BODIES_BYTES`].
pub const FRAME_SLACK: usize = 256 * 1024;

/// A body up to this length is taken on the account of its connection: all of them together are 32 MiB.
pub const SMALL_BODY_BYTES: usize = 64 * 1024;

/// Bytes of longer bodies, beyond [`SMALL_BODY_BYTES`] of each, that are held at once while they come and while their
/// calls wait for an answer. The next is turned away.
pub const BODIES_BYTES: usize = 256 * 1024 * 1024;

/// How much of a body that is too long is read and thrown away before the refusal is sent, so that a client which
/// writes everything before it reads gets to see why.
pub const DRAIN_BYTES: usize = 16 * 1024 * 1024;

/// Longest request head, in bytes: room for a token and a long workspace id, not for a flood.
pub const HEAD_BYTES: usize = 32 * 1024;

/// Connections at once, unless configured: half of the usual 1024 descriptors of a process.
pub const CONNECTIONS: usize = 512;

/// How long a fresh connection may take to begin its first request; the TLS handshake has as long again.
pub const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// How long a connection that has been of use may stay silent between requests, and how long a request's head may
/// take to come.
pub const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// How long a body may take to come.
pub const BODY_WITHIN: Duration = Duration::from_secs(30);

/// How long a call may take before its outcome is called unknown.
pub const CALL_WITHIN: Duration = Duration::from_secs(30);

/// How long a client may leave what it is owed lying before it is cut off.
pub const WRITE_WITHIN: Duration = Duration::from_secs(20);

/// Bytes a second that buy a slow client more time: whoever reads faster than this is never cut off, whoever takes a
/// byte now and then is.
pub const SLOWEST_READER: u64 = 16 * 1024;

/// Streams of notices at once, over all connections. With [`SOCKETS`], fewer than the connections there may be: a
/// connection that lasts is never taken from its client, and some must be left for calls.
pub const STREAMS: usize = 192;

/// WebSockets at once.
pub const SOCKETS: usize = 192;

/// WebSockets at once for one token.
pub const SOCKETS_PER_TOKEN: usize = 64;

/// Streams of notices at once for one participant of one workspace: a few devices of one person.
pub const STREAMS_PER_PARTICIPANT: usize = 8;

/// Notices fetched for a stream at once. A notice may be as long as an envelope, so this bounds what a stream holds.
pub const STREAM_PAGE: usize = 16;

/// Notices in one answer of the inbox, unless asked for fewer.
pub const INBOX_PAGE: usize = 100;

/// Most notices in one answer of the inbox.
pub const INBOX_PAGE_MOST: usize = 1000;

/// Workspaces of one page of a listing, unless the asker says otherwise.
pub const WORKSPACES_PAGE: usize = 100;

/// The most of one page.
pub const WORKSPACES_PAGE_MOST: usize = 1000;

/// Longest wait of the inbox, in seconds: below the idle limits of the usual proxies.
pub const INBOX_WAIT_SECONDS: u64 = 55;

/// How often a stream without news says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The first pause after the Coordinator could not serve a stream; it doubles.
pub const TROUBLE_PAUSE: Duration = Duration::from_millis(250);

/// Failures in a row after which a stream ends; its client then comes back with the number it has.
pub const TROUBLES: u32 = 6;

/// How often a WebSocket is pinged.
pub const PING_EVERY: Duration = Duration::from_secs(20);

/// How long a WebSocket may go without a frame, pongs among them: two pings lost and a slow third.
pub const SOCKET_SILENT: Duration = Duration::from_secs(65);

/// How long a WebSocket without a subscription may go without a call.
pub const SOCKET_IDLE: Duration = Duration::from_secs(600);

/// Calls in flight on one WebSocket, or one MCP line connection; further frames stay unread.
pub const CALLS_PER_SOCKET: usize = 32;

/// Subscriptions of one WebSocket.
pub const SUBSCRIPTIONS_PER_SOCKET: usize = 16;

/// Calls in flight for one token, or for all callers together where nobody has to show one.
pub const CALLS_PER_CALLER: usize = 128;

/// Calls a second for one token: far above what a durable store takes, so that it only stops a runaway.
pub const CALLS_PER_SECOND: u32 = 10_000;

/// Seconds after which a caller that was turned away may try again.
pub const RETRY_AFTER_SECONDS: u64 = 1;

/// How long an ending server waits for open answers.
pub const STOP_WITHIN: Duration = Duration::from_secs(4);

/// How long the accept loop rests after an error such as too many open files.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Longest token looked at, in bytes: it is hashed before anything is known of its sender.
pub const TOKEN_BYTES: usize = 4096;

/// Milliseconds for which an MCP client may keep the list of tools: it changes only with the program.
pub const TOOLS_TTL_MS: u64 = 3_600_000;

/// The bounds an operator may move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Longest canonical envelope in bytes, as the Coordinator has it ([`ENVELOPE_BYTES`]).
    pub envelope_bytes: usize,
    /// Bytes of large bodies held at once ([`BODIES_BYTES`]).
    pub bodies_bytes: usize,
    /// Connections at once ([`CONNECTIONS`]).
    pub connections: usize,
    /// Streams of notices at once ([`STREAMS`]).
    pub streams: usize,
    /// WebSockets at once ([`SOCKETS`]).
    pub sockets: usize,
    /// WebSockets for one token ([`SOCKETS_PER_TOKEN`]).
    pub sockets_per_token: usize,
    /// Streams of notices for one participant ([`STREAMS_PER_PARTICIPANT`]).
    pub streams_per_participant: usize,
    /// Calls in flight for one caller ([`CALLS_PER_CALLER`]).
    pub calls_per_caller: usize,
    /// Calls a second for one token ([`CALLS_PER_SECOND`]).
    pub calls_per_second: u32,
    /// Until the first request ([`FIRST_REQUEST_WITHIN`]).
    pub first_request_within: Duration,
    /// Between requests, and for a head ([`HEAD_WITHIN`]).
    pub head_within: Duration,
    /// For a body ([`BODY_WITHIN`]).
    pub body_within: Duration,
    /// For a call ([`CALL_WITHIN`]).
    pub call_within: Duration,
    /// For a client to take what it is owed ([`WRITE_WITHIN`]).
    pub write_within: Duration,
    /// Between signs of life on a stream ([`HEARTBEAT`]).
    pub heartbeat: Duration,
    /// Between pings ([`PING_EVERY`]).
    pub ping_every: Duration,
    /// Without any frame ([`SOCKET_SILENT`]).
    pub socket_silent: Duration,
    /// Without a call or a subscription ([`SOCKET_IDLE`]).
    pub socket_idle: Duration,
    /// For open answers at the end ([`STOP_WITHIN`]).
    pub stop_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            envelope_bytes: ENVELOPE_BYTES,
            bodies_bytes: BODIES_BYTES,
            connections: CONNECTIONS,
            streams: STREAMS,
            sockets: SOCKETS,
            sockets_per_token: SOCKETS_PER_TOKEN,
            streams_per_participant: STREAMS_PER_PARTICIPANT,
            calls_per_caller: CALLS_PER_CALLER,
            calls_per_second: CALLS_PER_SECOND,
            first_request_within: FIRST_REQUEST_WITHIN,
            head_within: HEAD_WITHIN,
            body_within: BODY_WITHIN,
            call_within: CALL_WITHIN,
            write_within: WRITE_WITHIN,
            heartbeat: HEARTBEAT,
            ping_every: PING_EVERY,
            socket_silent: SOCKET_SILENT,
            socket_idle: SOCKET_IDLE,
            stop_within: STOP_WITHIN,
        }
    }
}

impl Limits {
    /// Longest WebSocket frame, in bytes.
    #[must_use]
    pub const fn frame_bytes(&self) -> usize {
        self.envelope_bytes.saturating_add(FRAME_SLACK)
    }

    /// Longest body that is handed to the Coordinator, in bytes. The limit is on the canonical form, and only
    /// the Coordinator makes that; white space and escapes take room beside it.
    #[must_use]
    pub const fn body_bytes(&self) -> usize {
        self.envelope_bytes.saturating_mul(choir_chap::limits::BODY_FACTOR)
    }
}
