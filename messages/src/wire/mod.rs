//! What host and container say to each other (`choir §12`): eight verbs upwards, five signals downwards, one envelope,
//! one trait each way. Carriers (UDS, TCP with TLS, later HTTP) implement the traits and nothing else.

mod bootstrap;
mod signals;
mod verbs;

pub use bootstrap::{BOOTSTRAP_BYTES, Bootstrap};
pub use signals::{Signal, SignalAck, SignalHandler, SignalRefused, SignalRequest, SignalSender};
pub use verbs::{
    AgentSettings, ApprovalStatus, Budgets, ControlPlane, Envelope, Heartbeat, HeartbeatAck, Hello,
    HelloAnswer, LaneStatus, LinkError, Reply, Request, Verb, VerbHandler, Verdict,
};

use std::future::Future;
use std::pin::Pin;

/// A boxed future, for the object-safe traits of the link.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Version of the wire's messages; both sides must have the same.
pub const WIRE_VERSION: u16 = 1;

/// W3C trace context of the sender's span: the `traceparent` header's text, empty when not traced.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct TraceContext(pub String);
