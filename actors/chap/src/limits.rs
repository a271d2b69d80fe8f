//! Every bound of the rules, in one place, each with its reason.

/// Canonical bytes of one envelope unless the operator says otherwise: what the specification asks every Coordinator to
/// take (§4.4).
pub const ENVELOPE_BYTES: usize = 1024 * 1024;

/// How much longer than its canonical form a body may be: `\u0041` is six bytes for one, and some white space is fair.
pub const BODY_FACTOR: usize = 8;

/// Levels of nesting of one call, the envelope and a scalar at the bottom counted (digest §3.1).
pub const NESTING: usize = 64;

/// Longest id of a workspace, a task or any other object, in bytes: it is a key in an index.
pub const ID_BYTES: usize = 256;

/// Longest participant URI, in bytes: it is a key in an index and part of every answer about members.
pub const URI_BYTES: usize = 512;

/// Members of one workspace: they are all in memory, and a broadcast makes a notice for each.
pub const MEMBERS: usize = 2_000;

/// Keys of one member, old ones among them: they are all in memory.
pub const KEYS_PER_MEMBER: usize = 128;

/// Profiles a workspace may advertise; the catalogue has a dozen.
pub const PROFILES: usize = 64;

/// Steps kept in a task's own history: its first, and the newest ones. The log has them all.
pub const HISTORY: usize = 256;

/// Decisions of one review: with distinct reviewers a rule is met or broken long before.
pub const DECISIONS_PER_REVIEW: usize = 1_000;

/// Reviewers of one review, voters of one deliberation, askees of one whisper.
pub const ADDRESSEES: usize = 1_000;

/// Tasks that one handoff may carry: they are all loaded and changed together.
pub const TASKS_PER_HANDOFF: usize = 256;

/// Open tasks that one snapshot may list.
pub const TASKS_PER_SNAPSHOT: usize = 10_000;

/// Operations of one JSON Patch (digest §3.5).
pub const PATCH_OPERATIONS: usize = 1_000;

/// Nodes of a document after each operation (digest §3.5).
pub const PATCH_NODES: usize = 100_000;

/// Bytes of text in a patched document: copies of one long string are few nodes and much memory.
pub const PATCH_BYTES: usize = 4 * 1024 * 1024;

/// Nodes that one patch may copy in all, so that a patch of copies and removals ends soon.
pub const PATCH_WORK: usize = 1_000_000;

/// Entries of one page of the log, whatever the caller asks for.
pub const PAGE_ENTRIES: usize = 1_000;

/// Text of the records in one page of the log, in bytes, beyond which the page ends early (never before its first
/// entry): an answer stays small enough to send and to hold.
pub const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Entries of one workspace that may be redacted: the list is part of the workspace's own text, stored with every change.
pub const REDACTIONS: usize = 1_000;

/// How much of a redaction's reason that list keeps, in bytes; the log has all of it.
pub const REDACTION_REASON_BYTES: usize = 100;

/// Receipts given in one answer: they and their proofs are made together, from a few blocks of entries.
pub const RECEIPTS: u64 = 256;

/// Entries between two checkpoints that the Coordinator signs of itself (specification §10.4).
pub const CHECKPOINT_EVERY: u64 = 1_000;

/// Objects a workspace keeps in memory besides what is not stored yet.
pub const CACHED_OBJECTS: usize = 1_024;

/// Bytes of their texts.
pub const CACHED_BYTES: usize = 4 * 1024 * 1024;

/// Longest wait for an answer to a whisper, in milliseconds: a year.
pub const WHISPER_MS: u64 = 366 * 24 * 3600 * 1000;

/// Longest step-up window, in seconds: a year.
pub const STEP_UP_SECONDS: u64 = 366 * 24 * 3600;
