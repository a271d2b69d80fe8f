//! Every bound of the link in one place, each with its reason. What both sides must agree on (the size of a frame)
//! is [`choir_messages::limits`]; the rest is what one side allows the other.

use std::time::Duration;

use choir_messages::limits::{FRAME_BYTES, USER_MESSAGE_BYTES};

/// Time for the whole handshake after the connection stands: three messages of under 100 bytes between processes that
/// wait for nothing else. A client that says nothing is gone after it.
pub const HANDSHAKE: Duration = Duration::from_secs(2);

/// Time for the TLS handshake before that; certificates are checked and the peer may be far away.
pub const TLS_HANDSHAKE: Duration = Duration::from_secs(5);

/// Connections of one socket that may be inside the handshake at once; when another comes, the oldest is closed. A TCP
/// port can be dialled by every process of the machine, so silence must not hold a place: with [`ACCEPTS_BURST`] and
/// [`ACCEPTS_PER_SECOND`], whoever is let in keeps its place for at least 0.37 s, and an honest agent needs
/// milliseconds. Each holds at most one message of the TLS handshake (64 KiB) and one small frame: 8 MiB in all.
pub const PENDING_HANDSHAKES: usize = 128;

/// Connections taken from a socket's queue in a burst, and the refill per second: an agent reconnects at most a few
/// times a second, and a flood of connections must not become a flood of work.
pub const ACCEPTS_BURST: u32 = 32;
/// See [`ACCEPTS_BURST`].
pub const ACCEPTS_PER_SECOND: u32 = 256;

/// Refused connections of one socket that its owner is told of in a burst, and the refill per second. More would let a
/// stranger fill the owner's log.
pub const REFUSALS_BURST: u32 = 16;
/// See [`REFUSALS_BURST`].
pub const REFUSALS_PER_SECOND: u32 = 2;

/// Time for the local node to take a link in, or to let it go: messages between actors of this process.
pub const NODE_STEP: Duration = Duration::from_secs(5);

/// Calls of the peer that are being answered at once. At this number the guard stops reading, so that the socket's
/// buffer stalls the peer: [`SLOW_CALLS`] and eight quick ones.
pub const CALLS_IN_FLIGHT: usize = 32;

/// Of those, how many an agent uses for verbs that may take minutes; the rest stays free for heartbeats, so that slow
/// host tools never look like a dead agent.
pub const SLOW_CALLS: usize = 24;

/// Signals one host has under way to one agent. Signals are answered as fast as an event is recorded.
pub const SIGNALS_IN_FLIGHT: usize = 16;

/// Largest signal, in bytes: a user's message and its envelope, with room for escapes.
pub const SIGNAL_BYTES: usize = 2 * USER_MESSAGE_BYTES;

/// Largest answer to a signal, in bytes: a revision or a refusal in one sentence.
pub const ACK_BYTES: usize = 16 * 1024;

/// What a frame adds to its payload at most, in bytes: six protobuf headers and five numbers.
pub const FRAME_OVERHEAD: usize = 256;

/// Largest payload of a call or reply, in bytes.
pub const PAYLOAD_BYTES: usize = FRAME_BYTES as usize;

/// Largest frame, in bytes.
pub const FRAME: usize = PAYLOAD_BYTES + FRAME_OVERHEAD;

/// Bytes of one link's inbound calls that wait for their answer: two frames of the largest size. When a call does not
/// fit, the guard stops reading until it does.
pub const INBOUND_BYTES: usize = 2 * FRAME;

/// Bytes on their way out of one link, handed to the node and not yet to the socket: again two of the largest.
pub const OUTBOUND_BYTES: usize = 2 * FRAME;

/// A frame that has begun must be complete within this time: the largest one at 280 KB/s.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(30);

/// The socket must take each [`WRITE_CHUNK`] within this time; a peer that does not read is frozen or hostile.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Bytes written under one deadline. Sets the slowest rate: 6.4 KB/s.
pub const WRITE_CHUNK: usize = 64 * 1024;

/// Longest time a call may take, whatever its caller asks: a host tool with a person's patience. Later it is answered
/// with "unavailable" and its handler is dropped.
pub const CALL_DEADLINE: Duration = Duration::from_secs(600);

/// How much longer than a call's own deadline the node waits for its answer, so that the answer "too late" is always
/// the gate's and the accounts always balance.
pub const REPLY_GRACE: Duration = Duration::from_secs(5);

/// Calls of ours that a peer may leave unanswered over a link's life before the link is of no use: four times what
/// can be under way at once.
pub const UNANSWERED: usize = 128;

/// Pings of the peer in a burst, and the refill per second. A node pings once in 1 to 5 seconds.
pub const PINGS_BURST: u32 = 8;
/// See [`PINGS_BURST`].
pub const PINGS_PER_SECOND: u32 = 2;

/// Bytes buffered between guard and node, per direction: one read of the node's.
pub const PIPE_BYTES: usize = 64 * 1024;

/// The bounds that a test or an operator may tighten, with the constants above as defaults.
#[derive(Debug, Clone)]
pub struct LinkLimits {
    /// See [`HANDSHAKE`].
    pub handshake: Duration,
    /// See [`FRAME_DEADLINE`].
    pub frame: Duration,
    /// See [`WRITE_DEADLINE`].
    pub write: Duration,
    /// See [`CALL_DEADLINE`].
    pub call: Duration,
    /// See [`CALLS_IN_FLIGHT`]; at least 1.
    pub calls_in_flight: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            handshake: HANDSHAKE,
            frame: FRAME_DEADLINE,
            write: WRITE_DEADLINE,
            call: CALL_DEADLINE,
            calls_in_flight: CALLS_IN_FLIGHT,
        }
    }
}

/// A token bucket: `burst` at once, then `per_second`. Time is given in, so that it can be tested without a clock.
#[derive(Debug, Clone)]
pub struct Bucket {
    burst: u32,
    per_second: u32,
    tokens: f64,
    last: std::time::Instant,
}

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(burst: u32, per_second: u32, now: std::time::Instant) -> Self {
        Self { burst, per_second, tokens: f64::from(burst), last: now }
    }

    /// Takes one token; `false` when there is none.
    pub fn take(&mut self, now: std::time::Instant) -> bool {
        let passed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = now;
        self.tokens = (self.tokens + passed * f64::from(self.per_second)).min(f64::from(self.burst));
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::new(3, 2, start);
        assert_eq!((0..5).filter(|_| bucket.take(start)).count(), 3);
        assert!(bucket.take(start + Duration::from_millis(500)));
        assert!(!bucket.take(start + Duration::from_millis(600)));
        assert_eq!((0..9).filter(|_| bucket.take(start + Duration::from_secs(60))).count(), 3);
    }
}
