//! The golden traces, read from their archive.

#![allow(dead_code, reason = "each test file uses its own part")]

use choir_ledger::id::TraceId;
use choir_ledger::verify::Memory;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// One case: a home and two answers.
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) trace: TraceId,
    pub(crate) home: Memory,
    pub(crate) expected: Value,
    pub(crate) strict: Value,
}

/// The archive's files.
static ARCHIVE: LazyLock<BTreeMap<PathBuf, Vec<u8>>> = LazyLock::new(|| {
    let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            let path = entry.path().unwrap().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(path, bytes);
        }
    }
    files
});

fn json(path: &Path) -> Value {
    serde_json::from_slice(&ARCHIVE[path]).unwrap()
}

/// A JSON file at the archive's top.
pub(crate) fn top(name: &str) -> Value {
    json(Path::new(name))
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    let manifest = top("manifest.json");
    manifest["cases"].as_array().unwrap().iter().map(case_of).collect()
}

/// One case.
pub(crate) fn case(id: &str) -> Case {
    let manifest = top("manifest.json");
    let entry = manifest["cases"].as_array().unwrap().iter().find(|case| case["id"] == id).unwrap();
    case_of(entry)
}

fn case_of(entry: &Value) -> Case {
    let id = entry["id"].as_str().unwrap().to_owned();
    let folder = Path::new("cases").join(&id);
    let mut home = Memory::new();
    for (path, bytes) in ARCHIVE.range(folder.join("home")..) {
        let Ok(path) = path.strip_prefix(folder.join("home")) else { break };
        home.insert(path, bytes.clone());
    }
    Case {
        trace: entry["trace_id"].as_str().unwrap().parse().unwrap(),
        home,
        expected: json(&folder.join("expected.json")),
        strict: json(&folder.join("strict.json")),
        id,
    }
}
