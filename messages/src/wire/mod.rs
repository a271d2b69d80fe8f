//! What host and container say to each other (`choir §12`): eight verbs upwards, eight signals downwards, one envelope,
//! one trait each way. Carriers (UDS, TCP with TLS, later HTTP) implement the traits and nothing else.

mod bootstrap;
mod signals;
mod verbs;

pub use bootstrap::{BOOTSTRAP_BYTES, Bootstrap, LinkAddress};
pub use signals::{Signal, SignalAck, SignalHandler, SignalRefused, SignalRequest, SignalSender};
pub use verbs::{
    AgentSettings, ApprovalStatus, Budgets, ControlPlane, Envelope, Heartbeat, HeartbeatAck, Hello,
    HelloAnswer, LaneStatus, LinkError, Reply, Request, Verb, VerbHandler, Verdict,
};

use std::future::Future;
use std::pin::Pin;

use crate::id::MessageId;

/// A boxed future, for the object-safe traits of the link.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Version of the wire's messages; both sides must have the same.
pub const WIRE_VERSION: u16 = 1;

/// W3C trace context of the sender's span: the `traceparent` header's text, empty when not traced.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct TraceContext(pub String);

impl TraceContext {
    /// The root of a user message's trace. It follows from the message's id alone, so every process that works on the
    /// message, also after a crash, continues the same trace and nothing has to be kept for it: the id's 128 bits are
    /// the trace's id, its last 64 (random, in a ULID) the root span's. Zero is no id to OpenTelemetry; one is.
    #[must_use]
    pub fn of_message(message: MessageId) -> Self {
        let (trace, span) = Self::ids_of(message);
        Self(format!("00-{trace:032x}-{span:016x}-01"))
    }

    /// The ids in [`TraceContext::of_message`]: of the trace and of its root span.
    #[must_use]
    pub fn ids_of(message: MessageId) -> (u128, u64) {
        let bits = message.bits();
        (bits.max(1), (bits as u64).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_of_a_message_follows_from_its_id() {
        let message = MessageId::from_bits(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let trace = TraceContext::of_message(message);
        assert_eq!(trace.0, "00-0123456789abcdef0011223344556677-0011223344556677-01");
        let nothing = TraceContext::of_message(MessageId::from_bits(0));
        assert_eq!(nothing.0, "00-00000000000000000000000000000001-0000000000000001-01");
    }
}
