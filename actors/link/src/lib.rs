//! The link between a host and the agents in its sandboxes (DESIGN §4): ractor's cluster transport over a Unix socket
//! or TCP with TLS, with a guard between every socket and the node. The host's session supervisor uses [`Links`] and
//! [`Listener`] and hands in a `VerbHandler`; the agent's replicator uses [`connect`] and hands in a `SignalHandler`;
//! both otherwise see only the traits of `choir_messages::wire`.
//!
//! It promises the host, of a peer that is hostile from its first byte:
//!
//! - The node sees nothing of a connection before that has proved, by HMAC under a secret of 256 bits, to be the
//!   sandbox this socket was made for. Who a peer is follows from its socket; there is no name it could claim.
//! - From then on it can call one actor, the gate of its own session, answer calls that were made to it, ping at a
//!   node's rate, and nothing else. No actor, name or process group of the host is visible or reachable; no actor of
//!   the peer's making exists in the host but one stand-in without a name.
//! - What one link holds of the host's memory is a sum of the constants in [`limits`]; when a peer outruns its
//!   answers, the guard stops reading and the socket stalls the peer.
//! - Every wait has a deadline: handshake, half a frame, a write that is not read, a call. A frozen peer costs its
//!   caller the call's deadline and nobody else anything.
//! - What breaks a rule ends the link, with a [`CloseReason`]. Ending one link touches no other.
//!
//! Silence between frames is allowed: that an agent lives is proved by its heartbeat, one layer up, which ends a link
//! by [`Listener::disconnect`].
//!
//! `ractor_cluster` logs every message with its payload, and its cookies' digests, at DEBUG: subscribers must cap the
//! target `ractor_cluster` at INFO, as `choir-telemetry` does.

mod agent;
mod call;
mod frames;
pub mod guard;
mod handshake;
mod host;
pub mod limits;
mod link;
mod node;
mod port;
mod reason;
mod secret;
mod shared;
mod socket;
mod tls;
pub mod wire;

pub use agent::{ConnectError, connect, connect_with};
pub use call::Uplink;
pub use host::{LinkEvent, LinkSpec, Links, Listener};
pub use limits::LinkLimits;
pub use node::StartError;
pub use reason::{CloseReason, FrameKind};
pub use secret::{LinkSecret, SecretError};
pub use socket::{ListenAt, ListenError, PeerInfo, Target};
pub use tls::{Certificate, UnusableCertificate};
