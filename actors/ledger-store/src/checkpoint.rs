//! The signed checkpoint of a ledger: how many events it has and the last one's hash, as a C2SP signed note. A ledger that
//! is shorter than its checkpoint, or another one, was rolled back. The first three lines are those of a tlog-checkpoint,
//! with the chain's head in the place of a root; two more give the status and the count of artefact references.

use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_ledger::meta::TraceStatus;
use choir_messages::chain::Digest;
use choir_transparency::{LogKey, LogSigner, Origin, TreeHead, sign_checkpoint, verify_checkpoint};
use std::path::PathBuf;

use crate::disk;
use crate::error::StoreError;
use crate::home::Home;

/// The checkpoint's name in a trace's folder.
pub const CHECKPOINT: &str = "head.checkpoint";

/// Largest checkpoint: five short lines and a signature.
const MAX_BYTES: u64 = 4096;

/// What a checkpoint says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// How many events there are.
    pub events: u64,
    /// The last one's hash; zeros if there is none.
    pub hash: Digest,
    /// How the trace stands.
    pub status: TraceStatus,
    /// How many artefact references the events have.
    pub artifacts: u64,
}

/// The status as it stands in meta files.
pub(crate) const fn status_word(status: TraceStatus) -> &'static str {
    match status {
        TraceStatus::Running => "running",
        TraceStatus::Succeeded => "succeeded",
        TraceStatus::Failed => "failed",
        TraceStatus::Aborted => "aborted",
        TraceStatus::Tampered => "tampered",
    }
}

fn status_of(word: &str) -> Option<TraceStatus> {
    [
        TraceStatus::Running,
        TraceStatus::Succeeded,
        TraceStatus::Failed,
        TraceStatus::Aborted,
        TraceStatus::Tampered,
    ]
    .into_iter()
    .find(|status| status_word(*status) == word)
}

/// The name under which a trace's checkpoints are signed.
fn origin(home: &LogKey, trace: TraceId) -> Result<Origin, StoreError> {
    Ok(Origin::new(format!("{}/trace/{trace}", home.origin.as_str()))?)
}

/// The head that a signed checkpoint of this trace states, or why it states none.
pub fn read_checkpoint(note: &str, home: &LogKey, trace: TraceId) -> Result<Head, StoreError> {
    let log = LogKey { origin: origin(home, trace)?, key: home.key };
    let (tree, more) = verify_checkpoint(note, &log)?;
    let mut more = more.into_iter();
    let head = (|| {
        let status = status_of(more.next()?.strip_prefix("status ")?)?;
        let artifacts = more.next()?.strip_prefix("artifacts ")?.parse().ok()?;
        Some(Head { events: tree.size, hash: tree.root, status, artifacts })
    })();
    head.ok_or_else(|| StoreError::Log("the signed note is no checkpoint of this trace".into()))
}

impl Home {
    pub(crate) fn checkpoint_path(&self, trace: TraceId) -> PathBuf {
        self.path(layout::trace_dir(trace)).join(CHECKPOINT)
    }

    pub(crate) fn checkpoint_text(&self, trace: TraceId, head: &Head) -> Result<String, StoreError> {
        let origin = origin(self.log_key(), trace)?;
        let more = [format!("status {}", status_word(head.status)), format!("artifacts {}", head.artifacts)];
        let tree = TreeHead { size: head.events, root: head.hash };
        Ok(sign_checkpoint(&LogSigner { origin: &origin, key: self.key() }, &tree, &more)?)
    }

    /// The trace's signed checkpoint, if it has one of this home.
    pub fn checkpoint(&self, trace: TraceId) -> Result<Option<Head>, StoreError> {
        let path = self.checkpoint_path(trace);
        let Some(note) = disk::read_text(&path, MAX_BYTES)? else { return Ok(None) };
        let head = read_checkpoint(&note, self.log_key(), trace);
        head.map(Some).map_err(|why| StoreError::unreadable(&path, why))
    }
}
