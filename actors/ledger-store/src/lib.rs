//! The signed ledger on disk: a home in the original's layout, private to its user, with one writer a trace. The roles of a
//! run append through it, `choirctl ledger` lists, exports, imports and proves with it. It promises that an event whose
//! ticket came true is on the disk, with every artefact it names; that the ledger of a failed append is as it was; that a
//! crash loses nothing that was acknowledged and cuts nothing silently; that a rollback is seen; and that the key registry
//! is the fold of a signed log.
//!
//! - [`Home`]: the folder; keys, registry, artefacts, traces, export, import, transparency log.
//! - [`TraceWriter`]: admits by the rules of [`choir_ledger::trace`], signs, and syncs in groups.
//! - [`check_registry`], [`check_bundle`], [`check_log_growth`]: what an auditor checks offline.
//!
//! Plain files and one thread an open trace; no async runtime. A [`Ticket`] is a future as well as something to wait for.

mod artifacts;
pub mod bounds;
mod checkpoint;
mod disk;
mod error;
mod exchange;
mod home;
mod keys;
mod ledger;
mod log;
pub mod pem;
mod proof;
mod registry;
mod scribe;
mod ticket;
mod traces;
mod writer;

pub use checkpoint::{CHECKPOINT, Head, read_checkpoint};
pub use error::StoreError;
pub use exchange::{Exported, ImportOptions, Imported, PROOF};
pub use home::{Clock, Home};
pub use keys::Signer;
pub use ledger::Torn;
pub use log::{HEAD_CONTENT_TYPE, LOG, Published, TraceHead};
pub use proof::{Bundle, ProofFault, Proven, check_bundle, check_log_growth};
pub use registry::{Change, Entry, Finding, REGISTRY_LOG, ROOT_KEY, check_registry};
pub use ticket::Ticket;
pub use traces::{NewTrace, Resumed, Summary};
pub use writer::{Appended, Draft, STATUS_REASON, TraceWriter};
