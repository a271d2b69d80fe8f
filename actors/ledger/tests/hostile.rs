//! Whatever stands in a home, there is a report, nothing is written, and what was changed is found.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod support;

use choir_ledger::id::TraceId;
use choir_ledger::verify::{
    Check, Failure, FailureCode, Folder, Home, MAX_FINDINGS, MAX_LINE, Memory, Options, Profile, Reading,
    Report, Rule, Verdict, verify, verify_folder,
};
use choir_ledger::{canon, json, layout};
use proptest::prelude::*;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use support::{Case, case};

static SOUND: LazyLock<Vec<Case>> =
    LazyLock::new(|| ["v-run-default", "v-challenge-resolved", "v-retry", "v-unicode-nfc"].map(case).into());

fn strict(home: &dyn Home, trace: TraceId) -> Report {
    verify(home, trace, Options::default())
}

fn both(home: &dyn Home, trace: TraceId) -> [Report; 2] {
    [Reading::Strict, Reading::Compat].map(|reading| {
        verify(home, trace, Options { reading, profile: Profile::Strict, ..Options::default() })
    })
}

/// The canonical text of every line that can be read.
fn meaning(ledger: &[u8]) -> Vec<Option<String>> {
    let text = String::from_utf8_lossy(ledger);
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| json::parse(line).ok().and_then(|(value, _)| canon::to_text(&value).ok()))
        .collect()
}

fn with_ledger(case: &Case, ledger: Vec<u8>) -> Memory {
    let mut home = case.home.clone();
    home.insert(layout::events(case.trace), ledger);
    home
}

fn ledger(case: &Case) -> Vec<u8> {
    let path = layout::events(case.trace);
    case.home.files().find(|(name, _)| *name == path).unwrap().1.to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_flipped_bit_of_a_ledger_is_found_or_harmless(which in 0usize..4, at: prop::sample::Index, bit in 0u8..8) {
        let case = &SOUND[which];
        let original = ledger(case);
        let mut flipped = original.clone();
        let at = at.index(flipped.len());
        flipped[at] ^= 1 << bit;
        let report = strict(&with_ledger(case, flipped.clone()), case.trace);
        if report.verification_status != Verdict::Fail {
            prop_assert_eq!(meaning(&flipped), meaning(&original), "byte {} of {}", at, &case.id);
        }
    }

    #[test]
    fn a_ledger_that_is_cut_anywhere_but_at_its_end_fails(which in 0usize..4, at: prop::sample::Index) {
        let case = &SOUND[which];
        let mut cut = ledger(case);
        // The last line end may be missing.
        let len = cut.len() - 1;
        cut.truncate(at.index(len));
        let report = strict(&with_ledger(case, cut), case.trace);
        prop_assert_eq!(report.verification_status, Verdict::Fail);
    }

    #[test]
    fn every_changed_artefact_is_found(which in 0usize..4, file: prop::sample::Index, at: prop::sample::Index, bit in 0u8..8) {
        let case = &SOUND[which];
        let is_blob = |path: &Path| path.extension().is_some_and(|extension| extension == "blob");
        let blobs: Vec<PathBuf> =
            case.home.files().map(|(path, _)| path.to_owned()).filter(|path| is_blob(path)).collect();
        let mut home = case.home.clone();
        let bytes = home.get_mut(&blobs[file.index(blobs.len())]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        for report in both(&home, case.trace) {
            prop_assert!(report.failures.iter().any(|failure| failure.failure_code == FailureCode::ArtifactHashMismatch));
        }
    }

    #[test]
    fn any_bytes_in_any_file_end_in_a_report(
        which in 0usize..4, file: prop::sample::Index, bytes: Vec<u8>, keep: prop::sample::Index, insert: bool,
    ) {
        let case = &SOUND[which];
        let mut home = case.home.clone();
        let paths: Vec<PathBuf> = home.files().map(|(path, _)| path.to_owned()).collect();
        let target = home.get_mut(&paths[file.index(paths.len())]).unwrap();
        let at = if target.is_empty() { 0 } else { keep.index(target.len()) };
        if insert {
            target.splice(at..at, bytes);
        } else {
            *target = bytes;
        }
        for report in both(&home, case.trace) {
            prop_assert_eq!(report.exit_code() == 1, !report.failures.is_empty());
            prop_assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).is_ok());
            prop_assert!(!report.to_text().is_empty());
        }
    }

    #[test]
    fn a_member_with_any_value_in_it_ends_in_a_report(
        which in 0usize..4, line: prop::sample::Index, member: prop::sample::Index, value: prop::sample::Index, inner: bool,
    ) {
        const VALUES: [&str; 14] = [
            "null", "true", "0", "-1", "1e400", "1.5", "\"\"", "\"x\"", "\"\\ud800\"", "[]", "[null]", "[{}]", "{}",
            "{\"a\":1,\"a\":2}",
        ];
        let case = &SOUND[which];
        let text = String::from_utf8(ledger(case)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let line = line.index(lines.len());
        let (event, _) = json::parse(lines[line]).unwrap();
        let (new, _) = json::parse(VALUES[value.index(VALUES.len())]).unwrap();
        let members: Vec<&str> = event.as_object().unwrap().members().iter().filter_map(|(name, _)| name.as_str()).collect();
        let name = members[member.index(members.len())];
        let inside = event.get(name).and_then(|value| value.as_object()).filter(|_| inner);
        let replaced = match inside.and_then(|object| object.members().first()) {
            Some((first, _)) => event.get(name).unwrap().clone().with(first.as_str().unwrap(), new),
            None => new,
        };
        let changed = event.clone().with(name, replaced).to_json();
        let mut lines = lines;
        lines[line] = &changed;
        let home = with_ledger(case, lines.join("\n").into_bytes());
        let [strict, _] = both(&home, case.trace);
        let same = json::parse(&changed).unwrap().0 == event;
        prop_assert_eq!(strict.verification_status == Verdict::Fail, !same);
    }
}

/// Files of a folder with their bytes and times.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>, std::time::SystemTime)> {
    let home = Memory::load(folder).unwrap();
    home.files()
        .map(|(path, bytes)| {
            let modified = std::fs::metadata(folder.join(path)).unwrap().modified().unwrap();
            (path.to_owned(), bytes.to_vec(), modified)
        })
        .collect()
}

fn unpack(case: &Case) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, bytes) in case.home.files() {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

#[test]
fn a_verifier_changes_nothing_where_the_original_does() {
    // The first three are cut by the original, in the fourth it makes a registry.
    for id in ["h-bom", "h-partial-tail", "h-garbage-line", "t-registry-missing", "v-run-default"] {
        let case = case(id);
        let folder = unpack(&case);
        let before = snapshot(folder.path());
        for reading in [Reading::Strict, Reading::Compat] {
            let on_disk = verify_folder(folder.path(), case.trace, Options { reading, ..Options::default() });
            let in_memory = verify(&case.home, case.trace, Options { reading, ..Options::default() });
            assert_eq!(on_disk.failures, in_memory.failures);
        }
        assert_eq!(snapshot(folder.path()), before, "{id}");
    }
}

#[test]
fn a_home_that_is_not_there_fails_with_a_report() {
    let trace = TraceId::from_bits(1);
    for report in both(&Memory::new(), trace) {
        assert_eq!((report.verification_status, report.exit_code()), (Verdict::Fail, 1));
    }
    assert_eq!(strict(&Folder::new("/nonexistent/home"), trace).verification_status, Verdict::Fail);
}

/// A home nobody may read.
struct Denied;

impl Home for Denied {
    fn open(&self, _: &Path) -> io::Result<Option<Box<dyn Read + '_>>> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn traces(&self) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[test]
fn a_folder_without_read_permission_fails_and_says_so() {
    let report = strict(&Denied, TraceId::from_bits(1));
    assert_eq!(report.verification_status, Verdict::Fail);
    assert!(report.failures.iter().any(|failure| failure.message.contains("permission denied")));
}

#[test]
fn pipes_and_folders_in_place_of_files_are_not_waited_for() {
    let case = case("v-run-default");
    let folder = unpack(&case);
    for path in [layout::events(case.trace), layout::REGISTRY.into(), layout::meta(case.trace)] {
        let path = folder.path().join(path);
        std::fs::remove_file(&path).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(
            verify_folder(folder.path(), case.trace, Options::default()).verification_status,
            Verdict::Fail
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(
            verify_folder(folder.path(), case.trace, Options::default()).verification_status,
            Verdict::Fail
        );
    }
}

/// The failures of a sound ledger with this line put in before line 3.
fn with_line(line: &[u8]) -> Vec<Failure> {
    let case = &SOUND[0];
    let original = ledger(case);
    let at = original.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(1).unwrap().0 + 1;
    let changed = [&original[..at], line, b"\n", &original[at..]].concat();
    let [strict, compat] = both(&with_ledger(case, changed), case.trace);
    assert_eq!(compat.verification_status, strict.verification_status);
    strict.failures
}

#[test]
fn huge_deep_and_null_lines_are_one_finding_and_the_rest_is_still_checked() {
    let huge = vec![b'x'; MAX_LINE + 1];
    let deep = "[".repeat(1 << 20).into_bytes();
    let nested = format!("{{\"a\":{}1{}}}", "[".repeat(9_999), "]".repeat(9_999)).into_bytes();
    for (line, rule) in [
        (huge, Rule::AlwaysAReport),
        (deep, Rule::AlwaysAReport),
        (nested, Rule::AlwaysAReport),
        (b"null".to_vec(), Rule::AlwaysAReport),
        (b"[]".to_vec(), Rule::AlwaysAReport),
        (b"{\"a\":".to_vec(), Rule::SoundJson),
        (b"\xff\xfe".to_vec(), Rule::SoundJson),
        (b"\0".to_vec(), Rule::SoundJson),
    ] {
        let failures = with_line(&line);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert_eq!((failures[0].line, failures[0].rule), (Some(3), Some(rule)));
        assert_eq!(failures[0].failure_code, FailureCode::SchemaInvalid);
    }
    assert_eq!(with_line(b" \t\r"), []);
}

#[test]
fn an_empty_object_is_an_event_with_everything_missing() {
    let failures = with_line(b"{}");
    for check in [Check::Schema, Check::EventHash, Check::Chain, Check::Signature, Check::Key, Check::Role] {
        let found =
            failures.iter().any(|failure| failure.verification_step == check && failure.line == Some(3));
        assert!(found, "{check}");
    }
}

#[test]
fn findings_beyond_the_bound_are_counted_and_not_kept() {
    let case = &SOUND[0];
    let lines = 3 * MAX_FINDINGS;
    let report = strict(&with_ledger(case, "garbage\n".repeat(lines).into_bytes()), case.trace);
    assert!((MAX_FINDINGS / 2..=MAX_FINDINGS).contains(&report.failures.len()));
    // What is said of the trace as a whole is not lost behind the lines.
    assert!(report.failures.iter().any(|failure| failure.verification_step == Check::Finalization));
    assert!(report.metrics.failure_count >= lines as u64);
    assert!(report.to_text().contains("more"));
}

#[test]
fn an_id_that_another_trace_of_the_home_uses_is_found() {
    let case = &SOUND[0];
    let mut home = case.home.clone();
    let other = TraceId::from_bits(7);
    home.insert(layout::events(other), ledger(case));
    let report = strict(&home, case.trace);
    let found: Vec<_> =
        report.failures.iter().filter(|failure| failure.rule == Some(Rule::IdUsedOnce)).collect();
    assert_eq!(found.len() as u64, report.metrics.event_count);
    assert!(found.iter().all(|failure| failure.line.is_some() && failure.event_id.is_some()));
}

#[test]
fn a_registry_with_two_entries_for_a_key_is_trusted_with_neither() {
    let case = &SOUND[0];
    let mut home = case.home.clone();
    let registry = home.get_mut(Path::new(layout::REGISTRY)).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(registry).unwrap();
    let first = value["identities"][0].clone();
    value["identities"].as_array_mut().unwrap().push(first);
    *registry = serde_json::to_vec(&value).unwrap();
    let report = strict(&home, case.trace);
    assert!(report.failures.iter().any(|failure| failure.verification_step == Check::Key));
}

#[test]
fn an_auditor_about_to_record_its_verdict_is_not_told_that_it_is_missing() {
    let case = &SOUND[0];
    let text = String::from_utf8(ledger(case)).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.pop();
    let (last, _) = json::parse(lines[lines.len() - 1]).unwrap();
    let mut home = with_ledger(case, format!("{}\n", lines.join("\n")).into_bytes());
    let meta = home.get_mut(&layout::meta(case.trace)).unwrap();
    let mut value: serde_json::Value = serde_json::from_slice(meta).unwrap();
    value["event_count"] = lines.len().into();
    value["head_event_hash"] = last.get("event_hash").unwrap().as_str().unwrap().into();
    *meta = serde_json::to_vec(&value).unwrap();
    assert_eq!(strict(&home, case.trace).verification_status, Verdict::Fail);
    let options = Options { awaiting_verdict: true, ..Options::default() };
    assert_eq!(verify(&home, case.trace, options).failures, []);
}

/// A ledger that breaks off with an error of the disk after these bytes.
struct Failing(Vec<u8>);

impl Home for Failing {
    fn open(&self, path: &Path) -> io::Result<Option<Box<dyn Read + '_>>> {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the disk is broken"))
            }
        }
        let is_ledger = path == layout::events(TraceId::from_bits(1));
        Ok(is_ledger.then(|| Box::new(self.0.as_slice().chain(Broken)) as Box<dyn Read + '_>))
    }
    fn traces(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

#[test]
fn a_long_ledger_that_ends_early_ends_the_pass_and_leaves_no_thread_waiting() {
    const LINES: usize = 2_000;
    let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(1_000));
    let mut bytes = line.repeat(LINES).into_bytes();
    for report in both(&Failing(bytes.clone()), TraceId::from_bits(1)) {
        assert!(report.failures.iter().any(|failure| failure.message.contains("the disk is broken")));
    }
    // For the original a ledger ends at its first unreadable line.
    let middle = line.len() * (LINES / 2);
    bytes[middle] = b'#';
    let mut home = Memory::new();
    home.insert(layout::events(TraceId::from_bits(1)), bytes);
    let [strict, compat] = both(&home, TraceId::from_bits(1));
    assert_eq!(strict.metrics.event_count, LINES as u64 - 1);
    assert_eq!(compat.metrics.event_count, LINES as u64 / 2);
}
