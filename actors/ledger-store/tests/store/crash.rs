//! Writers that are killed: every acknowledged event is there, the chain verifies, and a torn end is set aside.

use crate::kit::{Cast, assert_sound, strictly};
use choir_ledger::event::EventType;
use choir_ledger::id::{ClaimId, TraceId};
use choir_ledger::json::Value;
use choir_ledger::payload;
use choir_ledger::verify::Verdict;
use choir_ledger_store::{Home, StoreError};
use choir_messages::chain::Digest;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set for the process that is to be killed: its home.
const INSIDE: &str = "CHOIR_TEST_LEDGER_CRASH";

/// Runs tool calls for ever, and says on standard output which events were acknowledged.
fn append_until_killed(home: &Path) {
    let cast = Cast::at(home);
    let mut writer = cast.begin();
    let mut out = std::io::stdout().lock();
    writeln!(out, "trace {}", writer.trace_id()).unwrap();
    cast.open(&mut writer);
    for number in 0usize.. {
        // Whole bursts in flight, so that a kill meets batches of every size.
        let burst = (0..number % 7 + 1).map(|n| {
            let hash = Digest::of(b"x");
            let note = format!("burst {number} of {n}");
            let record = payload::recorded(&hash, "text/plain").with("note", note.into());
            let (id, descriptor) = cast.put(&mut writer, b"x");
            let event = EventType::ArtifactRecorded;
            cast.try_say(&mut writer, event, record, vec![], vec![descriptor], Some(id)).unwrap()
        });
        for appended in burst.collect::<Vec<_>>() {
            appended.ticket.wait().unwrap();
            writeln!(out, "ack {}", appended.event.event_hash()).unwrap();
            out.flush().unwrap();
        }
    }
}

#[test]
fn every_acknowledged_event_survives_a_kill_in_the_middle_of_appends() {
    if let Some(home) = std::env::var_os(INSIDE) {
        append_until_killed(Path::new(&home));
        return;
    }
    for acks in [1, 2, 9, 40] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crash::every_acknowledged_event_survives_a_kill_in_the_middle_of_appends",
                "--nocapture",
            ])
            .env(INSIDE, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        // The harness may write something of its own before it on the line.
        let trace: TraceId = loop {
            let line = lines.next().expect("the child says which trace it writes");
            if let Some((_, trace)) = line.split_once("trace ") {
                break trace.parse().unwrap();
            }
        };
        let ack = |line: String| line.strip_prefix("ack ").map(|hash| hash.parse::<Digest>().unwrap());
        let mut acknowledged: Vec<Digest> = lines.by_ref().filter_map(ack).take(acks).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(lines.filter_map(ack));

        let cast = Cast::at(folder.path());
        let resumed = cast.home.resume(trace).unwrap();
        let events = cast.home.events(trace).unwrap();
        let hashes: Vec<_> = events.iter().skip(3).map(choir_ledger::event::Event::event_hash).collect();
        assert!(hashes.starts_with(&acknowledged), "{acks}: {} of {}", hashes.len(), acknowledged.len());
        if let Some(torn) = &resumed.torn {
            assert_eq!(std::fs::metadata(&torn.path).unwrap().len(), torn.bytes);
        }
        // The run goes on to its end, and verifies.
        let mut writer = resumed.writer;
        let claim = cast.cycle(&mut writer, 0);
        cast.close(&mut writer, &[claim]);
        assert_sound(folder.path(), trace);
    }
}

/// A trace that was left in the middle, and its ledger.
fn left(folder: &Path) -> (Cast, TraceId, PathBuf) {
    let cast = Cast::at(folder);
    let mut writer = cast.begin();
    cast.open(&mut writer);
    cast.cycle(&mut writer, 0);
    let trace = writer.trace_id();
    drop(writer);
    let ledger = folder.join(choir_ledger::layout::events(trace));
    (cast, trace, ledger)
}

#[test]
fn a_torn_end_is_set_aside_and_never_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (cast, trace, ledger) = left(folder.path());
    let sound = std::fs::read(&ledger).unwrap();
    let last = sound.split_inclusive(|byte| *byte == b'\n').next_back().unwrap().to_vec();
    // The last cut takes the closing brace along: with it, the line could be read.
    let cuts = [1, 2, 17, last.len() / 2, last.len() - 2];
    for (number, cut) in (1..).zip(cuts) {
        std::fs::write(&ledger, [&sound[..], &last[..cut]].concat()).unwrap();
        let report = strictly(folder.path(), trace);
        assert!(report.warnings.iter().any(|warning| format!("{warning:?}").contains("Tail")), "{report:?}");
        let resumed = cast.home.resume(trace).unwrap();
        let torn = resumed.torn.unwrap();
        assert_eq!(torn.path, ledger.with_file_name(format!("events.torn-{number}.jsonl")));
        assert_eq!(std::fs::read(&torn.path).unwrap(), &last[..cut]);
        drop(resumed.writer);
        assert_eq!(std::fs::read(&ledger).unwrap(), sound);
    }
    // An event that only misses its line end was not acknowledged, but can be read.
    std::fs::write(&ledger, &sound[..sound.len() - 1]).unwrap();
    assert_eq!(cast.home.events(trace).unwrap().len(), 7);
    // Bytes that are no text at all, as a disk may leave them.
    std::fs::write(&ledger, [&sound[..], &[0u8; 5000]].concat()).unwrap();
    assert_eq!(cast.home.resume(trace).unwrap().torn.unwrap().bytes, 5000);
}

#[test]
fn a_ledger_shorter_than_its_checkpoint_or_another_one_is_refused_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let (cast, trace, ledger) = left(folder.path());
    let sound = std::fs::read(&ledger).unwrap();
    let lines: Vec<_> = sound.split_inclusive(|byte| *byte == b'\n').collect();
    let refused = |bytes: &[u8]| {
        std::fs::write(&ledger, bytes).unwrap();
        let refused = cast.home.resume(trace).unwrap_err();
        assert_eq!(std::fs::read(&ledger).unwrap(), bytes, "nothing was changed");
        refused
    };
    for kept in 0..lines.len() {
        let error = refused(&lines[..kept].concat());
        assert!(matches!(error, StoreError::RolledBack { signed: 7, .. }), "{kept}: {error}");
    }
    // Cut in the middle of a line: the torn end is not set aside, for what is missing was acknowledged.
    let error = refused(&sound[..sound.len() - 3]);
    assert!(matches!(error, StoreError::RolledBack { .. }), "{error}");
    for (line, bad) in [(3, b"null\n".to_vec()), (5, lines[3].to_vec()), (1, b"\xff\n".to_vec())] {
        let mut changed: Vec<Vec<u8>> = lines.iter().map(|line| line.to_vec()).collect();
        changed[line - 1] = bad;
        let error = refused(&changed.concat());
        assert!(matches!(&error, StoreError::Damaged { line: at, .. } if *at == line as u64), "{error}");
    }
    std::fs::write(&ledger, &sound).unwrap();
    let checkpoint = ledger.with_file_name(choir_ledger_store::CHECKPOINT);
    let note = std::fs::read_to_string(&checkpoint).unwrap();
    std::fs::write(&checkpoint, note.replace("\n7\n", "\n6\n")).unwrap();
    assert!(matches!(cast.home.resume(trace), Err(StoreError::Unreadable { .. })), "a forged checkpoint");
    std::fs::remove_file(&checkpoint).unwrap();
    assert!(matches!(cast.home.resume(trace), Err(StoreError::NoCheckpoint(_))));
    std::fs::write(&checkpoint, note).unwrap();
    assert!(cast.home.resume(trace).is_ok());
}

#[test]
fn a_last_event_with_a_forged_signature_is_not_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (cast, trace, ledger) = left(folder.path());
    // Somebody appends an event that is well formed, chained and hashed, but signed by a key of his own.
    let last = cast.home.events(trace).unwrap().pop().unwrap();
    let forged = choir_ledger::event::UnsignedEvent {
        trace_id: trace,
        event_id: choir_ledger::id::EventId::fresh(),
        event_type: EventType::ClaimChallenged,
        created_at: last.created_at(),
        actor: cast.signer(choir_ledger::event::Role::Critic).actor(choir_ledger::event::Role::Critic),
        payload: payload::challenge(claim_of(last.payload()), "made up"),
        claims: vec![],
        artifacts: vec![],
    };
    let key = choir_messages::sign::SigningKey::from_seed(&[9; 32]);
    let forged = forged.sign(&key, last.event_hash()).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&ledger).unwrap();
    writeln!(file, "{}", forged.line()).unwrap();
    let error = cast.home.resume(trace).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { line: 8, .. }), "{error}");
    assert_eq!(strictly(folder.path(), trace).verification_status, Verdict::Fail);

    let evidence = std::fs::read(&ledger).unwrap();
    let meta = cast.home.condemn(trace, &error.to_string()).unwrap();
    assert_eq!(meta.status, choir_ledger::meta::TraceStatus::Tampered);
    assert!(matches!(cast.home.resume(trace), Err(StoreError::Ended(_))));
    assert_eq!(cast.home.open_traces().unwrap(), []);
    assert_eq!(std::fs::read(&ledger).unwrap(), evidence, "the evidence stays as it is");
}

fn claim_of(payload: &Value<'_>) -> ClaimId {
    payload.get("claim_id").and_then(Value::as_str).unwrap().parse().unwrap()
}

#[test]
fn a_trace_that_was_complete_but_for_its_status_is_finished_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    let claim = cast.cycle(&mut writer, 0);
    let last = payload::final_statement(&[claim], "done");
    cast.try_say(&mut writer, EventType::FinalStatementSigned, last, vec![claim], vec![], None).unwrap();
    cast.say(&mut writer, EventType::VerificationRunStarted, payload::verification_started("default"));
    let report = choir_ledger::id::ReportId::fresh();
    cast.say(
        &mut writer,
        EventType::VerificationRunCompleted,
        payload::verification_completed("pass", report),
    );
    let trace = writer.trace_id();
    drop(writer);
    let another = Home::open(folder.path()).unwrap();
    assert_eq!(another.open_traces().unwrap(), [trace]);
    let mut writer = another.resume(trace).unwrap().writer;
    writer.finish(choir_ledger::meta::TraceStatus::Succeeded, None).unwrap();
    drop(writer);
    assert_sound(folder.path(), trace);
    assert_eq!(another.open_traces().unwrap(), []);
}
