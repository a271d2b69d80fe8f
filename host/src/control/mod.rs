//! The control socket: how `choirctl` (and nobody else: the peer's user is checked) speaks to choird. Lines of JSON,
//! versioned; every request carries an id, every answer carries it back; streams are many answers to one request.

pub mod client;
pub mod ledger;
pub mod lines;
pub mod protocol;
pub mod views;

pub use client::{Client, ClientError, Stream};
pub use protocol::{CONTROL_VERSION, ControlError, ErrorCode, Op, Reply, ReplyLine, RequestLine};
