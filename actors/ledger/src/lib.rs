//! The signed ledger's forms and its verifier: canonical JSON, signed and hash-chained events, identities, the layout of a
//! home on disk, and a verifier that reads any home offline. The store and the roles write with it, `choirctl ledger verify`
//! and the Auditor read with it. Plain types and `std::io` readers: no tokio, no actors, no sockets.
//!
//! It promises: reading is total (any bytes end in a report or an error, never in a panic), the verifier changes nothing
//! and its memory does not grow with a trace's length beyond what [`verify`] lists, and what is written here is read the
//! same way by the original implementation (repository Adjoshi06/chainofCommand).

pub mod canon;
pub mod event;
pub mod id;
pub mod identity;
pub mod json;
pub mod layout;
pub mod meta;
pub mod payload;
pub mod scale;
pub mod time;
pub mod trace;
pub mod verify;
