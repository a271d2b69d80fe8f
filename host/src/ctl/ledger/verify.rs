//! `choirctl ledger verify`: offline, and changing nothing.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_ledger::meta::TraceMeta;
use choir_ledger::verify::{Folder, Options, Profile, Reading, Report, Verdict, verify};
use choir_ledger_store::{Bundle, Home, PROOF, REGISTRY_LOG, check_bundle, check_registry};
use choir_transparency::note::LogKey;
use serde::Serialize;
use serde_json::Value;

use crate::control::{ControlError, ErrorCode};
use crate::ctl::print::plain;
use crate::ctl::{Outcome, Printer};

/// What is to be verified, as the command line says it.
pub(super) struct Asked {
    pub(super) place: Option<PathBuf>,
    pub(super) trace: Option<String>,
    pub(super) profile: Option<Profile>,
    pub(super) compat: bool,
    pub(super) log_key: Option<String>,
}

/// Largest meta file or proof read here, in bytes.
const DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    report: Report,
    /// What was found of its publication, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    publication: Option<Publication>,
}

#[derive(Serialize)]
struct Publication {
    proven: bool,
    says: String,
}

#[derive(Serialize)]
struct Everything {
    traces: Vec<Verified>,
    /// What the registry's signed log does not bear out.
    registry_findings: Vec<String>,
}

fn usage(what: impl Into<String>) -> ControlError {
    ControlError::new(ErrorCode::Usage, what)
        .next("`choirctl ledger verify --help` shows what can be verified")
}

/// The home a place is in, and the trace it names.
fn locate(place: &Path) -> Result<(PathBuf, Option<TraceId>), ControlError> {
    let found = std::fs::metadata(place).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorCode::Usage,
            _ => ErrorCode::Runtime,
        };
        ControlError::new(code, format!("{}: {error}", place.display()))
    })?;
    // The ledger itself may be named, too.
    let folder = if found.is_dir() { place } else { place.parent().unwrap_or(place) };
    if folder.join(layout::TRACES).is_dir() {
        return Ok((folder.to_owned(), None));
    }
    let folder = std::fs::canonicalize(folder)
        .map_err(|error| ControlError::new(ErrorCode::Runtime, format!("{}: {error}", folder.display())))?;
    let traces = folder.parent().filter(|parent| parent.ends_with(layout::TRACES));
    let home = traces.and_then(Path::parent);
    let trace = folder.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
    match (home, trace) {
        (Some(home), Some(trace)) => Ok((home.to_owned(), Some(trace))),
        _ => Err(usage(format!(
            "{} is neither a ledger home nor the folder of a trace in one",
            place.display()
        ))),
    }
}

fn read_trace(text: &str) -> Result<TraceId, ControlError> {
    text.parse().map_err(|error: choir_ledger::id::IdError| {
        let shown: String = plain(text).chars().take(60).collect();
        // What could lead out of the home is refused, not merely misspelt.
        let code = if text.contains(['/', '\\']) || text.contains("..") {
            ErrorCode::Refused
        } else {
            ErrorCode::Usage
        };
        ControlError::new(code, format!("\"{shown}\" names no trace: {error}"))
    })
}

fn traces(home: &Path) -> Result<Vec<TraceId>, ControlError> {
    let listed = std::fs::read_dir(home.join(layout::TRACES))
        .map_err(|error| ControlError::new(ErrorCode::Runtime, format!("{}: {error}", home.display())))?;
    let mut traces: Vec<TraceId> =
        listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    traces.sort();
    Ok(traces)
}

fn read_small(path: &Path) -> Option<String> {
    let small = std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= DOCUMENT_BYTES);
    small.then(|| std::fs::read_to_string(path).ok())?
}

/// The profile a trace was kept by.
fn own_profile(home: &Path, trace: TraceId) -> Profile {
    let meta = read_small(&home.join(layout::meta(trace)));
    let meta = meta.and_then(|text| serde_json::from_str::<TraceMeta>(&text).ok());
    meta.and_then(|meta| meta.policy_profile.parse().ok()).unwrap_or_default()
}

/// Whether the trace's head is in the log that this key signs.
fn publication(home: &Path, trace: TraceId, key: &LogKey) -> Publication {
    let kept = read_small(&home.join(PROOF)).and_then(|text| serde_json::from_str::<Bundle>(&text).ok());
    let bundle = match kept.filter(|bundle| bundle.trace_id == trace) {
        Some(bundle) => Ok(bundle),
        None => Home::open(home).and_then(|home| home.prove(trace)).map_err(|error| error.to_string()),
    };
    let proven = bundle.and_then(|bundle| {
        check_bundle(&bundle, key, &home.join(layout::trace_dir(trace))).map_err(|fault| fault.to_string())
    });
    match proven {
        Ok(proven) => {
            let later = match proven.later_events {
                0 => String::new(),
                n => format!("; {n} events came after it was published"),
            };
            let says = format!(
                "its head is entry {} of the log of {} entries{later}",
                proven.index, proven.log.size
            );
            Publication { proven: true, says }
        }
        Err(why) => Publication { proven: false, says: why },
    }
}

/// Verifies what is asked for; `home` is looked at where no place is named.
pub(super) fn run(asked: &Asked, home: impl FnOnce() -> PathBuf, printer: &Printer) -> Outcome {
    let key: Option<LogKey> = match &asked.log_key {
        Some(text) => Some(text.parse().map_err(|error| usage(format!("--log-key: {error}")))?),
        None => None,
    };
    let named = asked.trace.as_deref().map(read_trace).transpose()?;
    let place = asked.place.clone().unwrap_or_else(home);
    let (home, of_place) = locate(&place)?;
    let wanted = match named.or(of_place) {
        Some(trace) if home.join(layout::trace_dir(trace)).is_dir() => vec![trace],
        Some(trace) => return Err(usage(format!("there is no trace {trace} in {}", home.display()))),
        None => traces(&home)?,
    };
    if wanted.is_empty() {
        return Err(usage(format!("there is no trace in {}", home.display())));
    }
    let folder = Folder::new(&home);
    let reading = if asked.compat { Reading::Compat } else { Reading::Strict };
    let verified: Vec<Verified> = wanted
        .iter()
        .map(|trace| {
            let profile = asked.profile.unwrap_or_else(|| own_profile(&home, *trace));
            let report = verify(&folder, *trace, Options { reading, profile, awaiting_verdict: false });
            Verified { report, publication: key.as_ref().map(|key| publication(&home, *trace, key)) }
        })
        .collect();
    // The original knows no such log, and neither does its reading.
    let logged = !asked.compat && home.join(REGISTRY_LOG).exists();
    let findings = if logged { check_registry(&home, key.as_ref()) } else { Vec::new() };
    let registry_findings: Vec<String> = findings
        .iter()
        .map(|finding| {
            let line = finding.line.map(|line| format!(" line {line}")).unwrap_or_default();
            format!("{}{line}: {}", finding.path.display(), finding.message)
        })
        .collect();
    let good = registry_findings.is_empty()
        && verified.iter().all(|one| {
            one.report.verification_status != Verdict::Fail
                && one.publication.as_ref().is_none_or(|p| p.proven)
        });
    let human = |verified: &[Verified]| {
        let mut text = String::new();
        for (at, one) in verified.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            text.push_str(&plain(&one.report.to_text()));
            if let Some(publication) = &one.publication {
                let _ = writeln!(text, "publication: {}", plain(&publication.says));
            }
        }
        for finding in &registry_findings {
            let _ = writeln!(text, "registry: {}", plain(finding));
        }
        text
    };
    match (verified.len(), registry_findings.is_empty()) {
        // One report is what the original's readers expect.
        (1, true) => {
            let one = verified.first();
            printer.show(&one, || human(&verified));
        }
        _ => {
            let text = human(&verified);
            let all: Value = serde_json::to_value(Everything { traces: verified, registry_findings })
                .map_err(|error| ControlError::new(ErrorCode::Internal, error.to_string()))?;
            printer.show(&all, || text);
        }
    }
    Ok(good)
}
