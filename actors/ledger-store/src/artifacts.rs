//! Artefacts: bytes under their SHA-256, written and synced before any event names them.

use std::path::Path;

use choir_ledger::event::Descriptor;
use choir_ledger::id::{EventId, TraceId};
use choir_ledger::layout;
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use serde_json::{Map, Value, json};

use crate::bounds::{MAX_ARTIFACT_BYTES, MAX_DOCUMENT_BYTES, MAX_REFERENCES};
use crate::disk;
use crate::error::StoreError;
use crate::home::Home;

impl Home {
    /// Stores the bytes as produced by this event of this trace, and returns their descriptor. When this returns, they are on
    /// the disk. Bytes that are there already are not written again; any number of threads may store at once.
    pub fn put_artifact(
        &self,
        bytes: &[u8],
        media_type: &str,
        encoding: &str,
        trace: TraceId,
        event: EventId,
        at: Timestamp,
    ) -> Result<Descriptor, StoreError> {
        let descriptor = Descriptor::of(bytes, media_type, encoding, trace, event, &at.to_string());
        if bytes.len() as u64 > MAX_ARTIFACT_BYTES {
            let hash = descriptor.artifact_hash.to_string();
            return Err(StoreError::Artifact { hash, why: "is larger than 256 MiB; store it in parts" });
        }
        self.put_blob(&descriptor.artifact_hash, bytes)?;
        self.put_sidecar(&descriptor, trace)?;
        Ok(descriptor)
    }

    pub(crate) fn put_blob(&self, hash: &Digest, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(layout::storage_uri(hash));
        if let Some(folder) = path.parent() {
            disk::make_folder(folder)?;
        }
        if holds(&path, hash, bytes.len())? {
            // It may have been renamed into place by somebody who has not synced the folder yet.
            return path.parent().map_or(Ok(()), disk::sync_folder);
        }
        disk::write_whole(&path, bytes)
    }

    /// The sidecar says where the bytes came from; no check reads it.
    fn put_sidecar(&self, descriptor: &Descriptor, trace: TraceId) -> Result<(), StoreError> {
        let path = self.path(layout::artifact_meta(&descriptor.artifact_hash));
        let reference = json!({
            "trace_id": trace,
            "producer_event_id": descriptor.producer_event_id,
            "created_at": descriptor.created_at,
        });
        let _one = self.sidecars();
        let old = disk::read_text(&path, MAX_DOCUMENT_BYTES)?;
        let old = old.and_then(|text| serde_json::from_str::<Map<String, Value>>(&text).ok());
        let mut sidecar = match old {
            Some(old) => old,
            None => match serde_json::to_value(descriptor) {
                Ok(Value::Object(fresh)) => fresh,
                _ => return Ok(()),
            },
        };
        let list = sidecar.entry("references").or_insert_with(|| json!([]));
        let Some(references) = list.as_array_mut() else { return Ok(()) };
        if references.len() >= MAX_REFERENCES || references.contains(&reference) {
            return Ok(());
        }
        references.push(reference);
        let text =
            serde_json::to_string_pretty(&sidecar).map_err(|why| StoreError::unreadable(&path, why))?;
        let temporary = disk::write_beside(&path, text.as_bytes())?;
        disk::rename(&temporary, &path)
    }

    /// The bytes of an artefact, held against their hash.
    pub fn artifact(&self, hash: &Digest) -> Result<Vec<u8>, StoreError> {
        let fault = |why| StoreError::Artifact { hash: hash.to_string(), why };
        let bytes = disk::read(&self.path(layout::storage_uri(hash)), MAX_ARTIFACT_BYTES)?;
        let bytes = bytes.ok_or_else(|| fault("is not in this home"))?;
        if Digest::of(&bytes) == *hash {
            Ok(bytes)
        } else {
            Err(fault("is damaged: its bytes have another hash"))
        }
    }
}

/// Whether the file holds the bytes of this hash. Damaged bytes are written again by whoever has the right ones.
fn holds(path: &Path, hash: &Digest, length: usize) -> Result<bool, StoreError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() == length as u64 => {
            let bytes = disk::read(path, MAX_ARTIFACT_BYTES)?;
            Ok(bytes.is_some_and(|bytes| Digest::of(&bytes) == *hash))
        }
        _ => Ok(false),
    }
}
