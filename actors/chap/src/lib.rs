//! CHAP's rules, without any I/O: what a call means, who may make it, what it changes, and what evidence it leaves. The
//! Coordinator's actors feed it calls, deadlines and stored objects; it answers with what to store and what to say. It
//! promises that a step either changes everything it says or nothing, that no input reaches a panic or -32603, that the
//! order of checks and the evidence are those of the protocol, and that nothing in it waits, reads a clock or draws
//! random bits. Facts: the protocol digest; behaviour follows the reference of version 0.3.3 except where the digest
//! lists a fault.

mod append;
mod call;
mod canonical;
pub mod codes;
pub mod evidence;
mod json;
pub mod limits;
mod method;
mod methods;
pub mod model;
pub mod moment;
mod params;
pub mod patch;
mod ranges;
mod read;
mod redaction;
mod refusal;
mod register;
pub mod report;
mod settings;
mod signature;
mod statements;
mod step;
mod txn;
pub mod uri;
pub mod verify;
mod workspace;

pub use call::{Answer, Body, Call, Presented, content_hash, withheld};
pub use method::{COMMON, Floor, Method, all as methods, find as method};
pub use methods::Gate;
pub use params::{Param, Params, Shape};
pub use read::{Plan, entry_to_wire};
pub use redaction::{Redaction, Redactions};
pub use refusal::Refusal;
pub use register::{Log, Register, portable_receipt, receipt_check, workspace_key};
pub use settings::Settings;
pub use step::{Attested, Context, OidcClaims, Outcome, VcSubject, merge};
pub use workspace::{Corrupt, Meta, Workspace, WorkspaceState};
