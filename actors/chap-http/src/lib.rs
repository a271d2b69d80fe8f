//! CHAP's transports over one Coordinator: JSON-RPC by `POST /chap`, the inbox for clients that poll, server-sent events,
//! WebSocket (`chap.v1`), and MCP over HTTP and over lines. Clients, people's browsers and the host's front use it; it
//! knows the Coordinator's mailbox and nothing behind it, and everything it offers can be had by message as well.
//!
//! What it promises:
//!
//! - A call is handed over as the bytes that came, so that a signature holds; its answer is the Coordinator's own. A call
//!   without an answer is told apart from a refusal, and it is said whether it may be repeated.
//! - A stream resumes by the number of the last notice its client has; a reader that is too slow is cut off, and nothing
//!   is kept for it.
//! - Whoever must show a token speaks only for the participants it names. Foreign host names and foreign web pages are
//!   refused on every route. Off loopback nothing is served without TLS and tokens.
//! - Every wait has a deadline and everything that piles up a bound ([`limits`]); connections that say nothing give way
//!   to those that do.
//!
//! [`router`] has the routes alone; [`serve`] adds connections and TLS; [`child_spec`] makes it a supervised actor. The
//! rules of MCP are plain data in, plain data out ([`mcp`]).

mod about;
mod accounts;
mod actor;
mod auth;
mod body;
mod call;
mod config;
mod connections;
mod events;
mod front;
mod inbox;
pub mod limits;
mod listen;
pub mod mcp;
mod mcp_http;
mod names;
mod pace;
mod refusal;
mod serve;
mod socket;
mod subscription;
mod trace;
mod workspaces;

pub use actor::{HttpMsg, child_spec, mailbox_spec};
pub use auth::{Auth, Grant, NotADigest, TokenDigest};
pub use config::{Config, ConfigError, Listen, TlsFiles};
pub use front::{Front, FrontConfig, router};
pub use limits::Limits;
pub use listen::ServeError;
pub use serve::{Serving, serve};
pub use trace::RemoteParent;
