//! Every bound of this crate, each with its reason.

use std::time::Duration;

use choir_messages::event::Revision;

/// Connections of the pool. Appends have their own connection, so these serve only the inbox, the outbox and the CLI.
pub const POOL_CONNECTIONS: u32 = 6;

/// Longest wait for a pooled connection before the caller is told that the database is busy or gone.
pub const ACQUIRE_WITHIN: Duration = Duration::from_secs(5);

/// Longest time to open one connection, including TLS to an external server.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Longest run of one statement, enforced by the server. The longest legitimate ones read a page of events.
pub const STATEMENT_WITHIN: Duration = Duration::from_secs(10);

/// Longest wait for a row lock, enforced by the server: a transaction of this crate holds its locks for milliseconds.
pub const LOCK_WITHIN: Duration = Duration::from_secs(3);

/// Longest duration of one group commit, from its first statement to the answer to COMMIT. Past it the connection is
/// dropped and every append of the group is told that its outcome is unknown.
pub const COMMIT_WITHIN: Duration = Duration::from_secs(10);

/// Longest wait of an append, from its arrival in the queue to its answer: one commit in progress, and its own.
pub const APPEND_WITHIN: Duration = Duration::from_secs(25);

/// Longest wait of an append for a place in the queue.
pub const ENQUEUE_WITHIN: Duration = Duration::from_secs(2);

/// Appends waiting for the committer. One session has one append in flight, so this is far above the sessions of a host.
pub const APPEND_QUEUE: usize = 256;

/// Appends of one group commit.
pub const GROUP_APPENDS: usize = 64;

/// Bytes of canonical text in one group commit, unless one append alone is larger: bounds memory and the time that
/// others wait behind one transaction.
pub const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// Hashes of durable events kept in memory a session, so that a repeated append is recognised without the database.
pub const REMEMBERED_HASHES: usize = 512;

/// Sessions whose state is kept in memory by the committer; the least recently used is forgotten and read again when needed.
pub const KEEPERS: usize = 64;

/// Revisions between two snapshots: bounds what must be folded after a crash (`choir §13.1`).
pub const SNAPSHOT_EVERY: Revision = 200;

/// Snapshots kept a session. One would do; a second one helps if the newest cannot be read.
pub const SNAPSHOTS_KEPT: Revision = 2;

/// Events read at a time when a log is folded or verified.
pub const READ_PAGE: i64 = 512;

/// Most rows of one page of a listing.
pub const LIST_ROWS: u32 = 1000;

/// Messages of one agent that have no outcome yet; more are refused at the door.
pub const INBOX_OPEN: i64 = 1024;

/// Longest name of a message's source, in bytes.
pub const SOURCE_BYTES: usize = 128;

/// Most resources bound to one session.
pub const BINDINGS: usize = 64;

/// Longest payload of an approval request, in bytes of canonical JSON: a tool input and its envelope.
pub const APPROVAL_BYTES: usize = 2 * 1024 * 1024;

/// Changes buffered for a slow subscriber; one that lags is told so and must look at the tables.
pub const CHANGES: usize = 1024;

/// Longest wait for the claim on a database that an earlier choird's connection has not let go of yet.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(5);

/// Connections for reading workspaces, besides the committer's own.
pub const CHAP_CONNECTIONS: u32 = 6;

/// A connection used within this time is not asked first whether it still lives: a round trip saved for busy stores.
pub const TRUSTED_WHILE_USED: Duration = Duration::from_millis(200);

/// Workspaces whose commits share one statement.
pub const CHAP_GROUP: usize = 64;

/// Longest wait for commits that are likely to join a group: a tenth of what making one durable takes.
pub const CHAP_LINGER: Duration = Duration::from_micros(300);

/// Commits waiting for the committer. A workspace has one in flight, so this is as many as live workspace actors.
pub const CHAP_QUEUE: usize = 1024;

/// Longest wait for a lost database to come back and say whether a commit was made: a server that was killed and is
/// started again by its supervisor is back well within it.
pub const CHAP_SETTLE_WITHIN: Duration = Duration::from_secs(10);

/// Pause between two tries to reach a database that is away.
pub const CHAP_SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Longest wait of a commit, from its arrival in the queue to its answer: a commit in progress and its own, each with
/// its settling.
pub const CHAP_COMMIT_WITHIN: Duration = Duration::from_secs(45);

/// Most entries, notices, objects or workspaces of one page.
pub const CHAP_PAGE: usize = 1000;

/// Bytes of text in one page, unless one row alone is larger.
pub const CHAP_PAGE_BYTES: usize = 8 * 1024 * 1024;

/// Longest name that is its own key, in bytes: every id and URI the rules accept; it fits an index row with room to spare.
pub const CHAP_NAME_BYTES: usize = 512;

/// Connections that read a file of workspaces at once; each has [`CHAP_READER_CACHE_KIB`].
pub const CHAP_READERS: usize = 6;

/// Cache of a file's writer, in KiB: the pages that busy workspaces write again and again.
pub const CHAP_WRITER_CACHE_KIB: i64 = 8 * 1024;

/// Cache of a connection that reads a file, in KiB.
pub const CHAP_READER_CACHE_KIB: i64 = 2 * 1024;

/// Statements that a connection to a file keeps prepared: all of a writer's, and the combinations of filters.
pub const CHAP_STATEMENTS: usize = 64;

/// Objects or entries of a file that are read without leaving the task that asks: a tenth of a millisecond's work.
pub const CHAP_GLANCE: usize = 32;

/// Pages of 4 KiB in SQLite's log at which it is moved into the tables: enough that pages written often are moved once,
/// few enough that the move, a few milliseconds, is no event.
pub const CHAP_LOG_PAGES: usize = 4096;

/// Records of a journal that are brought into the tables in one transaction.
pub const CHAP_APPLY: usize = 256;

/// Longest wait for more records before a transaction where several workspaces write: a page that changes ten times in it
/// is written once. Whoever reads what waits ends the wait.
pub const CHAP_APPLY_LINGER: Duration = Duration::from_millis(25);

/// Bytes of records that may wait for the tables, besides what the journal itself bounds; beyond it commits wait.
pub const CHAP_UNAPPLIED_BYTES: usize = 8 * 1024 * 1024;

/// Workspaces of which a folder's writer remembers where they stand: far more than are busy at once.
pub const CHAP_HEADS: usize = 4096;
