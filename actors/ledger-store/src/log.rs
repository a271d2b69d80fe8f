//! The home's transparency log: a Merkle tree over signed statements about trace heads, kept as C2SP tiles in `log/`, with a
//! signed checkpoint. A statement that is in the log cannot be taken back without every later checkpoint showing it.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_ledger::meta::TraceStatus;
use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_transparency::tiles::{self, TileNodes, TileWriter};
use choir_transparency::{
    Claims, ConsistencyPlan, ConsistencyProof, InclusionPlan, LogSigner, Payload, TreeHead, sign_checkpoint,
    sign_statement, verify_checkpoint,
};
use serde::{Deserialize, Serialize};

use crate::bounds::MAX_DOCUMENT_BYTES;
use crate::checkpoint::Head;
use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::home::Home;
use crate::proof::Bundle;

/// The log's folder, below the home.
pub const LOG: &str = "log";

/// The media type of what is said about a trace's head.
pub const HEAD_CONTENT_TYPE: &str = "application/vnd.choir.trace-head+json";

/// Which statements about a trace are in the log, in the trace's folder: a note of ours, the log itself is the proof.
const PUBLISHED: &str = "log.json";

/// What a statement says about a trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceHead {
    /// The trace.
    pub trace_id: TraceId,
    /// The last event's hash.
    pub head_event_hash: Digest,
    /// How many events there are.
    pub event_count: u64,
    /// How the trace stands.
    pub status: TraceStatus,
    /// The SHA-256 of the registry log's last line: the keys by which the trace is to be judged.
    pub registry_head: Digest,
}

/// A statement's place in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Its place, from 0.
    pub index: u64,
    /// What it says.
    pub head: TraceHead,
}

impl Home {
    fn log_path(&self, relative: &str) -> PathBuf {
        self.path(LOG).join(relative)
    }

    fn log_file(&self, relative: &str) -> Option<Vec<u8>> {
        disk::read(&self.log_path(relative), MAX_DOCUMENT_BYTES).ok().flatten()
    }

    /// The log's checkpoint as it stands; `None` before the first statement.
    pub fn log_checkpoint(&self) -> Result<Option<String>, StoreError> {
        disk::read_text(&self.log_path("checkpoint"), MAX_DOCUMENT_BYTES)
    }

    fn log_head(&self) -> Result<TreeHead, StoreError> {
        match self.log_checkpoint()? {
            None => Ok(TileWriter::new().head()),
            Some(note) => Ok(verify_checkpoint(&note, self.log_key())?.0),
        }
    }

    /// What would be said about the trace now: its signed checkpoint, held against the ledger's length, or the ledger read
    /// through where there is none (an imported trace).
    fn trace_head(&self, trace: TraceId) -> Result<TraceHead, StoreError> {
        let meta = self.meta(trace)?;
        let head = match self.checkpoint(trace)? {
            Some(head) => head,
            None => {
                let mut hash = Digest::ZERO;
                let events = self.each_event(trace, |_, event| {
                    hash = event.event_hash();
                    Ok(())
                })?;
                Head { events, hash, status: meta.status, artifacts: meta.artifact_count }
            }
        };
        Ok(TraceHead {
            trace_id: trace,
            head_event_hash: head.hash,
            event_count: head.events,
            status: head.status,
            registry_head: self.registry_head()?,
        })
    }

    /// The statements about a trace that are in the log, the oldest first.
    pub fn published(&self, trace: TraceId) -> Result<Vec<Published>, StoreError> {
        let path = self.path(layout::trace_dir(trace)).join(PUBLISHED);
        match disk::read_text(&path, MAX_DOCUMENT_BYTES)? {
            None => Ok(Vec::new()),
            Some(text) => serde_json::from_str(&text).map_err(|why| StoreError::unreadable(&path, why)),
        }
    }

    /// Enters the trace's head into the log, and returns its place; a head that is there already is not entered twice. Files
    /// first, the checkpoint last: after a crash in between, the log is as it was.
    pub fn publish(&self, trace: TraceId) -> Result<Published, StoreError> {
        let head = self.trace_head(trace)?;
        disk::make_folder(&self.path(LOG))?;
        let _lock = Lock::wait(&self.log_path(".lock"), &self.path(LOG))?;
        let mut published = self.published(trace)?;
        let same = |old: &&Published| {
            (old.head.event_count, old.head.head_event_hash, old.head.status)
                == (head.event_count, head.head_event_hash, head.status)
        };
        if let Some(old) = published.iter().find(same) {
            return Ok(old.clone());
        }
        let mut log = TileWriter::open(&self.log_head()?, |path| self.log_file(path))?;
        let index = log.head().size;
        let statement = self.statement(&head)?;
        let full = log.append(&statement)?;
        for file in full.iter().chain(&log.edge()) {
            let path = self.log_path(&file.path);
            if let Some(folder) = path.parent() {
                disk::make_folder(folder)?;
            }
            disk::write_whole(&path, &file.bytes)?;
        }
        let signer = LogSigner { origin: &self.log_key().origin, key: self.key() };
        let checkpoint = sign_checkpoint(&signer, &log.head(), &[])?;
        disk::write_whole(&self.log_path("checkpoint"), checkpoint.as_bytes())?;
        for folder in full.iter().filter_map(tiles::superseded) {
            // What is left of the narrower tiles is of no use, and no harm.
            let _ = std::fs::remove_dir_all(self.log_path(&folder));
        }
        let new = Published { index, head };
        published.push(new.clone());
        let path = self.path(layout::trace_dir(trace)).join(PUBLISHED);
        let text =
            serde_json::to_string_pretty(&published).map_err(|why| StoreError::unreadable(&path, why))?;
        disk::write_whole(&path, text.as_bytes())?;
        Ok(new)
    }

    fn statement(&self, head: &TraceHead) -> Result<Vec<u8>, StoreError> {
        let bytes = canonical::to_vec(head).map_err(|why| StoreError::Log(why.to_string()))?;
        let claims = Claims {
            issuer: self.log_key().origin.as_str().to_owned(),
            subject: head.trace_id.to_string(),
            issued_at: Some(self.now().millis() / 1000),
            position: None,
        };
        let payload = Payload::Record { content_type: HEAD_CONTENT_TYPE.to_owned(), bytes };
        Ok(sign_statement(&claims, &payload, self.key())?)
    }

    /// The proof that the latest published head of this trace is in the log, to be checked offline with
    /// [`crate::check_bundle`].
    pub fn prove(&self, trace: TraceId) -> Result<Bundle, StoreError> {
        let latest = self.published(trace)?.pop();
        let latest = latest.ok_or_else(|| {
            StoreError::Log(format!("nothing about the trace {trace} is in the log; publish it first"))
        })?;
        let checkpoint = self.log_checkpoint()?.unwrap_or_default();
        let (head, _) = verify_checkpoint(&checkpoint, self.log_key())?;
        let nodes = TileNodes::new(head.size, |path: &str| self.log_file(path));
        let inclusion = InclusionPlan::new(latest.index, head.size)?.finish(&nodes)?;
        let statement = tiles::entry(latest.index, head.size, |path| self.log_file(path))?;
        Ok(Bundle { trace_id: trace, statement: STANDARD.encode(statement), inclusion, checkpoint })
    }

    /// The proof that the log as it stands extends the log that had `old_size` statements.
    pub fn consistency(&self, old_size: u64) -> Result<ConsistencyProof, StoreError> {
        let head = self.log_head()?;
        let nodes = TileNodes::new(head.size, |path: &str| self.log_file(path));
        Ok(ConsistencyPlan::new(old_size, head.size)?.finish(&nodes)?)
    }
}
