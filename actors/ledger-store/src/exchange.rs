//! Export and import of one trace, as a folder in the original's layout: a home with that trace, its artefacts and the
//! registry.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use choir_ledger::event::Event;
use choir_ledger::id::{EventId, TraceId};
use choir_ledger::identity::Registry;
use choir_ledger::layout;
use choir_ledger::verify::{Folder, Options, Profile, Reading, Report, Verdict, verify};
use choir_messages::chain::Digest;
use serde::Serialize;

use crate::bounds::{MAX_ARTIFACT_BYTES, MAX_DOCUMENT_BYTES, MAX_LINE_BYTES};
use crate::checkpoint::CHECKPOINT;
use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::home::Home;
use crate::log::LOG;
use crate::registry::{REGISTRY_LOG, ROOT_KEY};

/// The name of the proof of publication in an exported home.
pub const PROOF: &str = "log.proof.json";

/// The lock of imports.
const IMPORT_LOCK: &str = "traces/.import.lock";

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exported {
    /// The new home.
    pub path: PathBuf,
    /// Events of the trace.
    pub events: u64,
    /// Artefacts that went along.
    pub artifacts: u64,
    /// Artefacts that the trace names and this home does not have.
    pub missing: Vec<Digest>,
}

/// How an import is to be judged.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImportOptions {
    /// Which trace; needed only if there are several.
    pub trace: Option<TraceId>,
    /// The policy profile of the verification; by default the trace's own.
    pub profile: Option<Profile>,
    /// Whether a trace that fails the verification is imported all the same.
    pub accept_failing: bool,
}

/// What was imported.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The trace.
    pub trace: TraceId,
    /// Artefacts that were not here before.
    pub artifacts: u64,
    /// Keys that were not here before.
    pub keys: u64,
    /// What the strict verifier said.
    pub report: Report,
}

impl Home {
    /// Writes the trace, its artefacts and the registry into a new folder, which is a home in the original's layout. The
    /// registry's signed log and the trace's checkpoint go along, and the proof of publication if there is one. `to` must not
    /// exist; it appears whole or not at all.
    pub fn export(&self, trace: TraceId, to: &Path) -> Result<Exported, StoreError> {
        self.meta(trace)?;
        if to.exists() {
            return Err(StoreError::Exists(to.to_owned()));
        }
        let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let staging = to.with_file_name(format!(".{name}.export-{}", std::process::id()));
        let _sweep = Sweep(&staging);
        for folder in ["keys", layout::TRACES, "artifacts/sha256"] {
            disk::make_folder(&staging.join(folder))?;
        }
        for file in [layout::REGISTRY, REGISTRY_LOG, ROOT_KEY] {
            if let Some(bytes) = disk::read(&self.path(file), MAX_DOCUMENT_BYTES)? {
                disk::write_whole(&staging.join(file), &bytes)?;
            }
        }
        let folder = layout::trace_dir(trace);
        copy_trace(&self.path(&folder), &staging.join(&folder), &[CHECKPOINT])?;
        let scan = scan(&staging.join(layout::events(trace)))?;
        let mut exported =
            Exported { path: to.to_owned(), events: scan.lines, artifacts: 0, missing: Vec::new() };
        for hash in scan.artifacts {
            let from = self.path(layout::storage_uri(&hash));
            match disk::read(&from, MAX_ARTIFACT_BYTES)? {
                None => exported.missing.push(hash),
                Some(bytes) => {
                    put(&staging, &layout::storage_uri(&hash), &bytes)?;
                    let sidecar = layout::artifact_meta(&hash);
                    if let Some(bytes) = disk::read(&self.path(&sidecar), MAX_DOCUMENT_BYTES)? {
                        put(&staging, &sidecar.to_string_lossy(), &bytes)?;
                    }
                    exported.artifacts += 1;
                }
            }
        }
        if self.path(LOG).exists() && !self.published(trace)?.is_empty() {
            let proof = serde_json::to_string_pretty(&self.prove(trace)?);
            let proof = proof.map_err(|why| StoreError::Log(why.to_string()))?;
            disk::write_whole(&staging.join(PROOF), proof.as_bytes())?;
        }
        fs::rename(&staging, to).map_err(|error| StoreError::io("write", to, error))?;
        to.parent().map_or(Ok(()), disk::sync_folder)?;
        Ok(exported)
    }

    /// Takes a trace from another home or an export. The strict verifier reads it first, where it is, and what fails is not
    /// taken unless that is accepted. Nothing here is ever overwritten: a trace, an event id or a key that is here already with
    /// other facts is a conflict. Bytes of artefacts are taken only if they have the hash they are named by.
    pub fn import(&self, from: &Path, options: &ImportOptions) -> Result<Imported, StoreError> {
        let trace = choose(from, options.trace)?;
        let _lock = Lock::wait(&self.path(IMPORT_LOCK), &self.path(layout::TRACES))?;
        let target = self.path(layout::trace_dir(trace));
        if target.exists() {
            return Err(StoreError::Exists(target));
        }
        // Copied first, so that what is verified is what is taken, whatever happens to the source meanwhile.
        let staging = self.path(layout::TRACES).join(format!(".import-{trace}-{}", std::process::id()));
        let _sweep = Sweep(&staging);
        let inner = staging.join(layout::trace_dir(trace));
        copy_trace(&from.join(layout::trace_dir(trace)), &inner, &[])?;
        let registry_text = disk::read_text(&from.join(layout::REGISTRY), MAX_DOCUMENT_BYTES)?;
        if let Some(text) = &registry_text {
            put(&staging, layout::REGISTRY, text.as_bytes())?;
        }
        let scan = scan(&staging.join(layout::events(trace)))?;
        for hash in &scan.artifacts {
            let uri = layout::storage_uri(hash);
            if let Some(bytes) = disk::read(&from.join(&uri), MAX_ARTIFACT_BYTES)? {
                put(&staging, &uri, &bytes)?;
            }
        }
        let how =
            Options { reading: Reading::Strict, profile: profile(&inner, options), awaiting_verdict: false };
        let report = verify(&Folder::new(&staging), trace, how);
        if report.verification_status == Verdict::Fail && !options.accept_failing {
            let first =
                report.failures.first().map(|failure| failure.message.to_string()).unwrap_or_default();
            return Err(StoreError::Unverified { trace, failures: report.failures.len(), first });
        }
        self.refuse_known_events(&scan.ids)?;
        let registry: Option<Registry> = registry_text.and_then(|text| serde_json::from_str(&text).ok());
        let mut imported = Imported { trace, artifacts: 0, keys: 0, report };
        let identities = registry.map(|registry| registry.identities).unwrap_or_default();
        for identity in identities.iter().filter(|identity| scan.keys.contains(&identity.key_id)) {
            imported.keys += u64::from(self.adopt(identity)?);
        }
        for hash in &scan.artifacts {
            let Some(bytes) = disk::read(&staging.join(layout::storage_uri(hash)), MAX_ARTIFACT_BYTES)?
            else {
                continue;
            };
            if Digest::of(&bytes) == *hash {
                imported.artifacts += u64::from(!self.path(layout::storage_uri(hash)).exists());
                self.put_blob(hash, &bytes)?;
            }
        }
        fs::rename(&inner, &target).map_err(|error| StoreError::io("write", &target, error))?;
        disk::sync_folder(&self.path(layout::TRACES))?;
        Ok(imported)
    }

    /// Event ids are used once in a home (R08).
    fn refuse_known_events(&self, ids: &BTreeSet<EventId>) -> Result<(), StoreError> {
        for other in self.trace_ids()? {
            let known = scan(&self.path(layout::events(other)))?.ids;
            if let Some(id) = ids.intersection(&known).next() {
                return Err(StoreError::Conflict(format!(
                    "its event {id} is here already, in the trace {other}; it was not imported"
                )));
            }
        }
        Ok(())
    }
}

/// The profile of an import's verification: the one asked for, or the trace's own.
fn profile(folder: &Path, options: &ImportOptions) -> Profile {
    let meta = disk::read_text(&folder.join(layout::META), MAX_DOCUMENT_BYTES).ok().flatten();
    let meta = meta.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    let own = meta.as_ref().and_then(|meta| meta.get("policy_profile")).and_then(serde_json::Value::as_str);
    options.profile.unwrap_or(match own {
        Some("strict") => Profile::Strict,
        Some("lenient") => Profile::Lenient,
        _ => Profile::Default,
    })
}

/// The one trace in a home, or the one that is asked for.
fn choose(from: &Path, asked: Option<TraceId>) -> Result<TraceId, StoreError> {
    if let Some(trace) = asked {
        let there = from.join(layout::trace_dir(trace)).is_dir();
        return if there { Ok(trace) } else { Err(StoreError::NoTrace(trace)) };
    }
    let names = disk::names(&from.join(layout::TRACES))?;
    let traces: Vec<TraceId> = names.iter().filter_map(|name| name.parse().ok()).collect();
    match traces.as_slice() {
        [trace] => Ok(*trace),
        [] => Err(StoreError::NoHome(from.to_owned())),
        many => Err(StoreError::Conflict(format!(
            "{} holds {} traces: say which one is to be imported",
            from.display(),
            many.len()
        ))),
    }
}

/// Copies a trace's own files: ledger, meta file, reports, torn ends, and what else is named.
fn copy_trace(from: &Path, to: &Path, also: &[&str]) -> Result<(), StoreError> {
    disk::make_folder(&to.join("reports"))?;
    let torn = |name: &String| name.starts_with("events.torn-") && name.ends_with(".jsonl");
    let mut names: Vec<String> = disk::names(from)?.into_iter().filter(torn).collect();
    names.extend([layout::EVENTS, layout::META, layout::LATEST_REPORT].map(str::to_owned));
    names.extend(also.iter().map(|name| (*name).to_owned()));
    let report = |name: &String| name.ends_with(".json") || name.ends_with(".txt");
    let reports = disk::names(&from.join("reports"))?.into_iter().filter(report);
    names.extend(reports.map(|name| format!("reports/{name}")));
    for name in names {
        let source = from.join(&name);
        // Only plain files: what a link of a stranger's folder leads to is not part of a trace.
        let plain = fs::symlink_metadata(&source).is_ok_and(|metadata| metadata.is_file());
        if plain {
            let failed = |error| StoreError::io("copy", &source, error);
            let target = to.join(&name);
            fs::copy(&source, &target).map_err(failed)?;
            let file = File::open(&target).map_err(failed)?;
            use std::os::unix::fs::PermissionsExt as _;
            file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(failed)?;
            file.sync_all().map_err(failed)?;
        }
    }
    disk::sync_folder(to)
}

fn put(home: &Path, relative: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let path = home.join(relative);
    if let Some(folder) = path.parent() {
        disk::make_folder(folder)?;
    }
    disk::write_whole(&path, bytes)
}

/// What a ledger refers to, as far as its lines can be read.
#[derive(Default)]
struct Scan {
    lines: u64,
    ids: BTreeSet<EventId>,
    keys: BTreeSet<String>,
    artifacts: BTreeSet<Digest>,
}

fn scan(path: &Path) -> Result<Scan, StoreError> {
    let failed = |error| StoreError::io("read", path, error);
    let mut scan = Scan::default();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(scan),
        Err(error) => return Err(failed(error)),
    };
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    loop {
        line.clear();
        let read =
            reader.by_ref().take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line).map_err(failed)?;
        if read == 0 {
            return Ok(scan);
        }
        scan.lines += u64::from(line.ends_with(b"\n"));
        if let Some(event) =
            std::str::from_utf8(&line).ok().and_then(|line| Event::parse(line.trim_end()).ok())
        {
            scan.ids.insert(event.event_id());
            scan.keys.insert(event.actor().key_id.clone());
            scan.artifacts.extend(event.artifacts().iter().map(|item| item.artifact_hash));
        }
    }
}

/// Removes what was staged, unless it was moved where it belongs.
struct Sweep<'a>(&'a Path);

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        // What stays behind has a name that nothing reads.
        let _ = fs::remove_dir_all(self.0);
    }
}
