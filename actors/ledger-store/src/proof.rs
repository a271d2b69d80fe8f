//! Proofs that travel: a bundle is checked offline with the log's key and the trace's folder, and nothing else.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_messages::chain::Digest;
use choir_transparency::{
    ConsistencyProof, InclusionProof, LogKey, Payload, Statement, TreeHead, leaf_hash, verify_checkpoint,
    verify_consistency, verify_inclusion,
};
use serde::{Deserialize, Serialize};

use crate::ledger::{self, End};
use crate::log::{HEAD_CONTENT_TYPE, TraceHead};

/// That a statement about a trace's head is in a transparency log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// The trace.
    pub trace_id: TraceId,
    /// The signed statement, a COSE_Sign1 in base64.
    pub statement: String,
    /// Its place in the log.
    pub inclusion: InclusionProof,
    /// The log's signed checkpoint.
    pub checkpoint: String,
}

/// What a bundle proves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proven {
    /// What the log's keeper said about the trace.
    pub head: TraceHead,
    /// The statement's place in the log.
    pub index: u64,
    /// The log's size and root.
    pub log: TreeHead,
    /// When it was said, in seconds since 1970.
    pub at: Option<u64>,
    /// Events of the ledger after the head that was published.
    pub later_events: u64,
}

/// Why a bundle proves nothing about a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofFault {
    /// The bundle itself.
    #[error("the proof does not hold: {0}")]
    Bundle(String),
    /// The trace is not the one proven.
    #[error("the trace is not what the log says of it: {0}")]
    Trace(String),
}

fn bundle(why: impl ToString) -> ProofFault {
    ProofFault::Bundle(why.to_string())
}

/// Checks a bundle: the checkpoint's signature, the statement's place in that tree, the statement's signature and subject,
/// and that the ledger in the trace's folder has exactly that event at that place, every line before it chained.
pub fn check_bundle(proof: &Bundle, log: &LogKey, trace_folder: &Path) -> Result<Proven, ProofFault> {
    let (tree, _) = verify_checkpoint(&proof.checkpoint, log).map_err(bundle)?;
    let bytes = STANDARD.decode(&proof.statement).map_err(|_| bundle("its statement is not base64"))?;
    verify_inclusion(&leaf_hash(&bytes), &proof.inclusion, &tree).map_err(bundle)?;
    let statement = Statement::parse(&bytes).map_err(bundle)?;
    statement.verify(&log.key).map_err(bundle)?;
    let head: TraceHead = match statement.payload() {
        Payload::Record { content_type, bytes } if content_type == HEAD_CONTENT_TYPE => {
            serde_json::from_slice(bytes)
                .map_err(|_| bundle("its statement says nothing about a trace's head"))?
        }
        _ => return Err(bundle("its statement says nothing about a trace's head")),
    };
    let named = (proof.trace_id, statement.claims().subject.clone());
    if named != (head.trace_id, head.trace_id.to_string()) {
        return Err(bundle("its statement is about another trace"));
    }
    let mut found = (head.event_count == 0).then_some(Digest::ZERO);
    let mut place = 0u64;
    let extent = ledger::each(&trace_folder.join(layout::EVENTS), head.trace_id, End::Reading, |_, event| {
        place += 1;
        if place == head.event_count {
            found = Some(event.event_hash());
        }
        Ok(())
    });
    let extent = extent.map_err(|why| ProofFault::Trace(why.to_string()))?;
    match found {
        Some(hash) if hash == head.head_event_hash => {}
        Some(_) => {
            let line = head.event_count;
            return Err(ProofFault::Trace(format!("its event {line} is not the one that was published")));
        }
        None => {
            return Err(ProofFault::Trace(format!(
                "it has {} events, and {} were published",
                extent.events, head.event_count
            )));
        }
    }
    Ok(Proven {
        later_events: extent.events - head.event_count,
        index: proof.inclusion.index,
        log: tree,
        at: statement.claims().issued_at,
        head,
    })
}

/// Whether a later checkpoint of the log extends an earlier one: nothing that was published is gone or changed.
pub fn check_log_growth(
    earlier: &str,
    later: &str,
    proof: &ConsistencyProof,
    log: &LogKey,
) -> Result<(), ProofFault> {
    let (old, _) = verify_checkpoint(earlier, log).map_err(bundle)?;
    let (new, _) = verify_checkpoint(later, log).map_err(bundle)?;
    verify_consistency(&old, &new, proof).map_err(bundle)
}
