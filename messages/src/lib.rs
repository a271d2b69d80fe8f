//! The ground floor: every mailbox, event, wire envelope and id of Choir, and the three things every log is built
//! from: canonical JSON ([`canonical`]), the SHA-256 chain ([`chain`]) and Ed25519 signatures ([`sign`]).
//!
//! Plain data and pure functions: no tokio, no sockets, no clock. Everything here is read by both the host and the
//! container, so decoders are total and a hostile peer's bytes end in an error, never in a panic.

pub mod canonical;
pub mod chain;
pub mod chap;
pub mod codec;
pub mod event;
pub mod id;
pub mod invariant;
pub mod json;
pub mod limits;
pub mod mail;
pub mod model;
pub mod reply;
pub mod secret;
pub mod session;
pub mod sign;
pub mod time;
pub mod tool;
pub mod wire;
