//! A client of any CHAP Coordinator, ours or another: it makes calls over HTTP (on a Unix socket, loopback or TLS), plays
//! scenarios (lists of calls with what must come back) and reads whole logs page by page. Used by `choirctl` and by tests.
//!
//! It promises that no call waits without a deadline, that an answer larger than [`ANSWER_BYTES`] is refused instead of
//! kept, and that a token is never printed.

mod client;
mod logs;
mod play;
mod scenario;
mod signer;

pub use client::{ANSWER_BYTES, CallError, Client, Endpoint, EndpointError, RpcError};
pub use logs::{LogPage, LogReader};
pub use play::{PlayError, Played, play};
pub use scenario::{Scenario, ScenarioError, Step};
pub use signer::{Signer, SignerError};
