//! Artefacts: is the blob there, and is it the blob? Each distinct one is read once, streaming. Checks 6 and 7, R13.

use super::finding::{Check, Failure, FailureCode, Findings, Place};
use super::home::Home;
use super::line::Carried;
use super::rule::Rule;
use choir_messages::chain::Digest;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a blob that are in memory at a time.
const BLOCK: usize = 64 << 10;

/// What is known of a blob.
#[derive(Clone, Copy)]
enum Blob {
    Missing,
    Altered,
    Sound { size: u64 },
}

/// The artefacts met so far. Grows by one entry of 48 bytes a distinct artefact.
pub(super) struct Blobs<'h> {
    home: &'h dyn Home,
    known: HashMap<Digest, Blob>,
    block: Vec<u8>,
    /// Blobs that were there.
    pub(super) found: u64,
}

impl<'h> Blobs<'h> {
    pub(super) fn new(home: &'h dyn Home) -> Self {
        Self { home, known: HashMap::new(), block: Vec::new(), found: 0 }
    }

    /// Whether the artefact was carried, and if so, whether its bytes are there and right.
    pub(super) fn is_sound(&self, hash: &Digest) -> Option<bool> {
        self.known.get(hash).map(|blob| matches!(blob, Blob::Sound { .. }))
    }

    /// An event carries a descriptor.
    pub(super) fn take(&mut self, carried: &Carried, place: Place, strict: bool, findings: &mut Findings) {
        let missing = |why: &'static str| {
            Failure::new(Check::ArtifactExistence, FailureCode::ArtifactMissing, place, why)
        };
        let Some(hash) = carried.hash else {
            findings.fail(missing("the descriptor names no hash, so no artefact"));
            return;
        };
        let known = self.known.get(&hash).copied();
        let blob = match known {
            Some(blob) => blob,
            None => {
                let blob = self.read(&hash).unwrap_or(Blob::Missing);
                self.known.insert(hash, blob);
                self.found += u64::from(!matches!(blob, Blob::Missing));
                blob
            }
        };
        match blob {
            Blob::Missing => {
                findings.fail(missing("the artefact is not there, or cannot be read").about(hash))
            }
            Blob::Altered if known.is_none() => {
                let failure = Failure::new(
                    Check::ArtifactHash,
                    FailureCode::ArtifactHashMismatch,
                    Place::default(),
                    "the artefact's bytes are not those of its hash",
                );
                findings.fail(failure.about(hash));
            }
            #[expect(clippy::cast_precision_loss, reason = "no blob has 2^53 bytes")]
            Blob::Sound { size } if strict && carried.size.is_some_and(|said| said != size as f64) => {
                let failure = Failure::new(
                    Check::ArtifactHash,
                    FailureCode::ArtifactHashMismatch,
                    place,
                    format!("byte_size is not the artefact's {size} bytes"),
                );
                findings.fail(failure.by(Rule::EvidenceCarried).about(hash));
            }
            Blob::Altered | Blob::Sound { .. } => {}
        }
    }

    fn read(&mut self, hash: &Digest) -> io::Result<Blob> {
        let path = crate::layout::storage_uri(hash);
        let Some(mut file) = self.home.open(Path::new(&path))? else { return Ok(Blob::Missing) };
        self.block.resize(BLOCK, 0);
        let (mut hasher, mut size) = (Sha256::new(), 0u64);
        loop {
            let read = match file.read(&mut self.block) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hasher.update(self.block.get(..read).unwrap_or_default());
            size += read as u64;
        }
        let sound = Digest::from_bytes(hasher.finalize().into()) == *hash;
        Ok(if sound { Blob::Sound { size } } else { Blob::Altered })
    }
}
