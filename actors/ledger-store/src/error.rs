//! What can go wrong in the store: a sentence for a person, and the next step where there is one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use choir_ledger::event::BuildError;
use choir_ledger::id::TraceId;
use choir_ledger::trace::Refused;
use choir_messages::sign::SignatureError;
use choir_transparency::tiles::TileError;
use choir_transparency::{NoteError, StatementError, TreeError};

/// What can go wrong.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The disk is full, or the user's share of it.
    #[error("no room left on the disk to {doing} {}; make room and resume", path.display())]
    NoRoom {
        /// What was done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
    },
    /// A file or folder may not be used.
    #[error("no permission to {doing} {}; give this user its rights back", path.display())]
    Denied {
        /// What was done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
    },
    /// Anything else that the system said.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// What was done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// There is no home here.
    #[error("{} is no ledger home; `choirctl ledger run` makes one", .0.display())]
    NoHome(PathBuf),
    /// There is no such trace.
    #[error("there is no trace {0} in this home; `choirctl ledger list` shows them")]
    NoTrace(TraceId),
    /// Something exists and is not overwritten.
    #[error("{} exists already and is not overwritten; choose another place", .0.display())]
    Exists(PathBuf),
    /// Another writer has the trace, the keys or the log.
    #[error("{} is in use by another writer; wait until it is done, or stop it", .0.display())]
    Locked(PathBuf),
    /// The rules do not admit the event.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The event cannot be written.
    #[error("{0}")]
    Build(#[from] BuildError),
    /// The event is too large for a line.
    #[error("the event has {bytes} bytes and a line takes {limit}; store what is large as an artefact")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The actor does not take part in the trace, or may not act in this role.
    #[error(
        "{agent_id} with key {key_id} does not take part in this trace as {role}; name it as a participant of a new trace"
    )]
    NotParticipant {
        /// The agent.
        agent_id: String,
        /// Its key.
        key_id: String,
        /// The role.
        role: &'static str,
    },
    /// The queue stayed full.
    #[error("the disk is too slow: {0} events wait to be written; try again later")]
    Busy(usize),
    /// A ticket was waited for too long.
    #[error("the disk has not confirmed the event in time; resume the trace to see whether it is there")]
    Slow,
    /// The writer stopped after an error; nothing more is written by it.
    #[error("the trace's writer has stopped ({0}); resume the trace to go on")]
    Stopped(Arc<StoreError>),
    /// The ledger is shorter than its checkpoint, or another one.
    #[error(
        "the ledger of {trace} was rolled back: its checkpoint signs {signed} events, {found}; restore it from a backup, nothing was changed"
    )]
    RolledBack {
        /// The trace.
        trace: TraceId,
        /// Events under the checkpoint.
        signed: u64,
        /// What is there.
        found: String,
    },
    /// A trace cannot be gone on with because its ledger is damaged.
    #[error(
        "the ledger of {trace} is damaged at line {line}: {why}; `choirctl ledger verify` tells more, nothing was changed"
    )]
    Damaged {
        /// The trace.
        trace: TraceId,
        /// The line, from 1.
        line: u64,
        /// Why.
        why: String,
    },
    /// A document cannot be read.
    #[error("{} cannot be read: {why}; restore it from a backup", path.display())]
    Unreadable {
        /// The document.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The trace has ended.
    #[error("the trace {0} has ended; start a new one")]
    Ended(TraceId),
    /// The trace has no checkpoint of this home.
    #[error(
        "the trace {0} has no checkpoint of this home: it was imported, or its checkpoint was removed; it can be verified, not gone on with"
    )]
    NoCheckpoint(TraceId),
    /// A key that is not there, or not of use.
    #[error("the key {key_id} {why}; `choirctl ledger key list` shows the keys")]
    Key {
        /// The key.
        key_id: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A key that is needed where it is.
    #[error(
        "the running trace {trace} signs with the key {key_id}, so it cannot be rotated now: wait until the run has ended, or end it \
         with `choirctl ledger abort {trace}`; if the key is compromised, `choirctl ledger key revoke {key_id}` withdraws it at once"
    )]
    KeyInUse {
        /// The key.
        key_id: String,
        /// The trace.
        trace: TraceId,
    },
    /// A private key that others can read.
    #[error("the private key {} can be read by others; make it private (chmod 600), and rotate it if anyone may have read it", .0.display())]
    KeyExposed(PathBuf),
    /// The registry is not what its log says.
    #[error("the key registry is not what its signed log says: {0}; restore keys/ from a backup")]
    Registry(String),
    /// A name that may not become part of a path or an event.
    #[error("{what} must be {form}")]
    Name {
        /// What.
        what: &'static str,
        /// Its form.
        form: &'static str,
    },
    /// An artefact that is not there, damaged or too large.
    #[error("the artefact {hash} {why}")]
    Artifact {
        /// Its hash.
        hash: String,
        /// What is wrong.
        why: &'static str,
    },
    /// What is imported does not pass verification.
    #[error(
        "the trace {trace} does not verify ({failures} failures, the first: {first}); it was not imported"
    )]
    Unverified {
        /// The trace.
        trace: TraceId,
        /// How many failures.
        failures: usize,
        /// The first.
        first: String,
    },
    /// What is asked for contradicts what is here.
    #[error("{0}")]
    Conflict(String),
    /// The transparency log.
    #[error("{0}")]
    Log(String),
    /// The system gave no random bytes.
    #[error("{0}")]
    Random(#[from] SignatureError),
}

impl StoreError {
    /// What the system said, sorted by what a person can do about it.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::NoRoom { doing, path }
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { doing, path }
            }
            _ => Self::Io { doing, path, source: Arc::new(source) },
        }
    }

    pub(crate) fn unreadable(path: &Path, why: impl ToString) -> Self {
        Self::Unreadable { path: path.to_owned(), why: why.to_string() }
    }
}

impl From<TileError> for StoreError {
    fn from(error: TileError) -> Self {
        Self::Log(error.to_string())
    }
}

impl From<TreeError> for StoreError {
    fn from(error: TreeError) -> Self {
        Self::Log(error.to_string())
    }
}

impl From<NoteError> for StoreError {
    fn from(error: NoteError) -> Self {
        Self::Log(error.to_string())
    }
}

impl From<StatementError> for StoreError {
    fn from(error: StatementError) -> Self {
        Self::Log(error.to_string())
    }
}
