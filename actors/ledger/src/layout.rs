//! Where things lie in a home. All paths are relative to the home; only ids that were checked become part of one.

use crate::id::{ReportId, TraceId};
use choir_messages::chain::Digest;
use std::path::PathBuf;

/// The registry of identities.
pub const REGISTRY: &str = "keys/registry.json";

/// The folder of traces.
pub const TRACES: &str = "traces";

/// The folder of artefacts.
pub const ARTIFACTS: &str = "artifacts";

/// The ledger's name in a trace's folder.
pub const EVENTS: &str = "events.jsonl";

/// The meta file's name in a trace's folder.
pub const META: &str = "trace.meta.json";

/// The latest report's name in a trace's folder.
pub const LATEST_REPORT: &str = "verification.latest.json";

/// The folder of one trace: `traces/<id>`.
#[must_use]
pub fn trace_dir(trace: TraceId) -> PathBuf {
    PathBuf::from(TRACES).join(trace.to_string())
}

/// The ledger of one trace.
#[must_use]
pub fn events(trace: TraceId) -> PathBuf {
    trace_dir(trace).join(EVENTS)
}

/// The meta file of one trace.
#[must_use]
pub fn meta(trace: TraceId) -> PathBuf {
    trace_dir(trace).join(META)
}

/// A report: `traces/<id>/reports/<report>.json`.
#[must_use]
pub fn report(trace: TraceId, report: ReportId) -> PathBuf {
    trace_dir(trace).join("reports").join(format!("{report}.json"))
}

/// The bytes of an artefact, as descriptors spell it: `artifacts/sha256/aa/bb/<hash>.blob`.
#[must_use]
pub fn storage_uri(hash: &Digest) -> String {
    artifact(hash, "blob")
}

/// The sidecar of an artefact: `artifacts/sha256/aa/bb/<hash>.meta.json`.
#[must_use]
pub fn artifact_meta(hash: &Digest) -> PathBuf {
    artifact(hash, "meta.json").into()
}

fn artifact(hash: &Digest, extension: &str) -> String {
    let hash = hash.to_string();
    let (first, rest) = hash.split_at(2);
    let (second, _) = rest.split_at(2);
    format!("{ARTIFACTS}/sha256/{first}/{second}/{hash}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_original() {
        let hash = Digest::of(b"x");
        assert_eq!(storage_uri(&hash), format!("artifacts/sha256/2d/71/{hash}.blob"));
        let trace = TraceId::from_bits(0);
        assert_eq!(events(trace), PathBuf::from("traces/00000000000000000000000000/events.jsonl"));
    }
}
