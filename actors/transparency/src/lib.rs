//! The transparency log under `audit-scitt/1.0` (digest §3.6): the Coordinator signs a statement about each evidence
//! entry, appends it to a Merkle tree, and hands out receipts and signed checkpoints that anyone can verify without the
//! Coordinator. The Coordinator's workspace actors build with it; `choirctl verify` and auditors check with it. It
//! promises that nothing verifies of which a single bit was changed, that the tree's memory is one hash per bit of its
//! size, and that foreign bytes end in an error, never in a panic or in an allocation larger than the bytes.
//!
//! - [`tree`]: RFC 9162 hashing; [`Frontier`] appends leaves and names the nodes to store.
//! - [`proof`]: what a proof needs from the store, how it is put together, how it is verified.
//! - [`note`] and [`checkpoint`]: the tree head as signed text (C2SP signed-note and tlog-checkpoint).
//! - [`statement`] and [`evidence`]: COSE_Sign1 statements (RFC 9052, RFC 9943), whole or as a hash envelope (RFC 9995).
//! - [`tiles`]: the log as files (C2SP tlog-tiles): what to write for a leaf, and proofs read from them.
//! - [`receipt`]: COSE receipts of inclusion and consistency (RFC 9942).
//!
//! Pure: no clock, no store, no sockets. Times are passed in; node hashes are read through [`NodeSource`].

mod cbor;
pub mod checkpoint;
mod envelope;
pub mod evidence;
pub mod limits;
pub mod note;
pub mod proof;
pub mod receipt;
pub mod statement;
pub mod tiles;
pub mod tree;

pub use checkpoint::{sign_checkpoint, verify_checkpoint};
pub use envelope::{CoseError, key_thumbprint};
pub use evidence::{Form, evidence_statement};
pub use note::{LogKey, NoteError, Origin};
pub use proof::{
    ConsistencyPlan, ConsistencyProof, InclusionPlan, InclusionProof, ProofError, verify_consistency,
    verify_inclusion,
};
pub use receipt::{
    LogSigner, ReceiptError, Registered, attach_receipts, verify_consistency_receipt, verify_receipt,
    verify_transparent,
};
pub use statement::{Claims, Payload, Position, Statement, StatementError, sign_statement};
pub use tree::{Frontier, MemoryNodes, Node, NodeId, NodeSource, TreeError, TreeHead, leaf_hash};
