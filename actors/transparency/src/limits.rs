//! Every bound of the transparency log, each with its reason.

/// Most leaves in one tree: the largest integer that JSON readers hold exactly, since sizes travel as JSON numbers.
pub const MAX_TREE_SIZE: u64 = (1 << 53) - 1;

/// Most hashes in one proof. A path of a tree with at most 2^53 leaves has at most 53, a consistency proof one more.
pub const MAX_PROOF_HASHES: usize = 54;

/// Largest statement, receipts attached. A CHAP envelope is 1 MiB by default; a hash envelope serves larger ones.
pub const MAX_STATEMENT_BYTES: usize = 4 << 20;

/// Largest receipt: a name, a subject and a longest path need about 3.5 KiB; twice that leaves room.
pub const MAX_RECEIPT_BYTES: usize = 8 << 10;

/// Most receipts attached to one statement: a statement goes to a handful of logs.
pub const MAX_RECEIPTS: usize = 16;

/// Longest issuer, subject, content type or chain hash in a protected header.
pub const MAX_TEXT_BYTES: usize = 1024;

/// Deepest CBOR nesting: tag, envelope, header, proofs by type, list of proofs, proof, and one to spare.
pub const MAX_CBOR_DEPTH: usize = 6;

/// Most items in one CBOR document outside of strings; the longest legal one has under 100.
pub const MAX_CBOR_ITEMS: usize = 512;

/// Largest signed note: a checkpoint is three short lines and a few signatures.
pub const MAX_NOTE_BYTES: usize = 8 << 10;

/// Most signature lines looked at in one note: the log's own and its witnesses'.
pub const MAX_NOTE_SIGNATURES: usize = 16;

/// Longest name of a log: it is a host name with a path.
pub const MAX_ORIGIN_BYTES: usize = 255;
