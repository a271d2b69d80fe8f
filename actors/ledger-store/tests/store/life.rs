//! A trace from its beginning to its end, and looked at.

use crate::kit::{Cast, TOOL, assert_sound, bytes_of, strictly};
use choir_ledger::event::{EventType, Role};
use choir_ledger::id::{ReportId, TraceId};
use choir_ledger::meta::TraceStatus;
use choir_ledger::payload;
use choir_ledger::trace::{Phase, Policy, PolicyProfile, Refused};
use choir_ledger_store::{Draft, Home, StoreError};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn a_run_verifies_strictly_and_as_the_original_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let trace = cast.run(3);
    assert_sound(folder.path(), trace);
    assert_eq!(cast.home.check_registry(), vec![]);

    let meta = cast.home.meta(trace).unwrap();
    assert_eq!((meta.status, meta.event_count), (TraceStatus::Succeeded, 18));
    assert_eq!(cast.home.events(trace).unwrap().len(), 18);
    assert_eq!(cast.home.trace(trace).unwrap().phase(), Phase::Completed);
    assert_eq!(cast.home.open_traces().unwrap(), vec![]);
    let [summary] = &cast.home.list().unwrap()[..] else { panic!("one trace") };
    assert_eq!(summary.meta.as_ref(), Some(&meta));
    assert_eq!((summary.verdict.as_deref(), summary.problem.as_deref()), (None, None));
}

#[test]
fn the_session_states_the_policy_under_its_signature() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let policy = Policy { tool_calls: Some(1), ..Policy::default() };
    let mut writer = cast.home.begin(cast.new_trace(policy.clone())).unwrap();
    let other =
        payload::session("t", "o", &[]).with("policy", Policy::protocol(PolicyProfile::Default).to_value());
    let refused = cast.try_say(&mut writer, EventType::SessionInitialized, other, vec![], vec![], None);
    assert!(matches!(refused, Err(StoreError::Refused(Refused::Policy { .. }))));
    cast.open(&mut writer);
    let trace = writer.trace_id();
    drop(writer);
    let session = &cast.home.events(trace).unwrap()[0];
    assert_eq!(Policy::of_session(session.payload()), Ok(Some(policy.clone())));
    let resumed = cast.home.resume(trace).unwrap();
    assert_eq!(resumed.writer.trace().policy(), &policy);
}

#[test]
fn everything_in_a_home_is_for_its_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("ledger");
    let cast = Cast::at(&home);
    let trace = cast.run(1);
    cast.home.publish(trace).unwrap();
    let mut folders = vec![home];
    while let Some(next) = folders.pop() {
        let mode = std::fs::metadata(&next).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", next.display());
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o600, "{}", entry.path().display());
            }
        }
    }
}

#[test]
fn a_second_writer_is_told_that_the_trace_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let writer = cast.begin();
    let trace = writer.trace_id();
    let another = Home::open(folder.path()).unwrap();
    let refused = another.resume(trace).unwrap_err();
    assert!(matches!(refused, StoreError::Locked(_)), "{refused}");
    drop(writer);
    assert!(another.resume(trace).is_ok());
}

#[test]
fn a_refused_event_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    writer.checkpoint().unwrap().wait().unwrap();
    let (before, head) = (bytes_of(folder.path()), writer.head());
    let refused = cast.try_say(
        &mut writer,
        EventType::ToolExecutionStarted,
        payload::started(TOOL, "exec_0"),
        vec![],
        vec![],
        None,
    );
    assert!(matches!(refused, Err(StoreError::Refused(Refused::NoIntent { .. }))));
    // The right type under the wrong role, and an agent that does not take part.
    let signer = cast.signer(Role::Executor);
    let draft = |event_type, role, signer| Draft {
        event_id: None,
        event_type,
        signer,
        role,
        payload: payload::intent(TOOL, &Digest::of(b""), "low", "needed"),
        claims: vec![],
        artifacts: vec![],
    };
    let refused = writer.append(draft(EventType::ToolIntentSigned, Role::Critic, signer)).unwrap_err();
    assert!(matches!(refused, StoreError::NotParticipant { .. }), "{refused}");
    let stranger = cast.home.ensure_agent("stranger", "Stranger", &[Role::Executor]).unwrap();
    let refused = writer.append(draft(EventType::ToolIntentSigned, Role::Executor, &stranger)).unwrap_err();
    assert!(matches!(refused, StoreError::NotParticipant { .. }), "{refused}");
    let huge = payload::intent(TOOL, &Digest::of(b""), "low", &"x".repeat(2 << 20));
    let refused =
        cast.try_say(&mut writer, EventType::ToolIntentSigned, huge, vec![], vec![], None).unwrap_err();
    assert!(matches!(refused, StoreError::TooLarge { .. }), "{refused}");
    assert_eq!(writer.head(), head);
    writer.checkpoint().unwrap().wait().unwrap();
    let now = bytes_of(folder.path());
    let ledger = |files: &std::collections::BTreeMap<_, _>| {
        files
            .iter()
            .filter(|(path, _): &(&std::path::PathBuf, _)| path.starts_with(folder.path().join("traces")))
            .map(|(path, bytes): (&std::path::PathBuf, &Vec<u8>)| (path.clone(), bytes.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(ledger(&before), ledger(&now));
    cast.cycle(&mut writer, 0);
}

#[test]
fn times_of_events_do_not_go_back_with_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(AtomicU64::new(1_790_000_000_000));
    let read = clock.clone();
    let now = Arc::new(move || Timestamp::from_millis(read.load(Ordering::SeqCst)));
    let cast = Cast::of(Home::create_with_clock(folder.path(), now).unwrap());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    clock.fetch_sub(3_600_000, Ordering::SeqCst);
    let claim = cast.cycle(&mut writer, 0);
    let trace = writer.trace_id();
    drop(writer);
    let mut writer = cast.home.resume(trace).unwrap().writer;
    clock.fetch_sub(3_600_000, Ordering::SeqCst);
    let claims = [claim, cast.cycle(&mut writer, 1)];
    cast.close(&mut writer, &claims);
    assert_sound(folder.path(), trace);
}

#[test]
fn a_trace_ends_once_and_only_a_verified_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    assert!(matches!(writer.finish(TraceStatus::Succeeded, None), Err(StoreError::Conflict(_))));
    let meta = writer.finish(TraceStatus::Aborted, Some("the operator said so")).unwrap();
    assert_eq!(meta.other.get("status_reason").unwrap(), "the operator said so");
    assert!(matches!(writer.finish(TraceStatus::Failed, None), Err(StoreError::Ended(_))));
    // Whoever verifies it is told that the end is missing because somebody wanted it so.
    let report = strictly(folder.path(), writer.trace_id());
    let run = report.run.as_ref().unwrap();
    assert_eq!((run.status.as_str(), run.reason.as_deref()), ("aborted", Some("the operator said so")));
    assert_eq!(run.ended_at, meta.ended_at);
    let text = report.to_text();
    assert!(text.contains("was aborted before its end") && text.contains(": the operator said so"), "{text}");
    let review = payload::proposal("again", &[], &[], &[]);
    let refused = cast.try_say(&mut writer, EventType::ProposalCreated, review, vec![], vec![], None);
    assert!(matches!(refused, Err(StoreError::Ended(_))));
    let trace = writer.trace_id();
    drop(writer);
    assert!(matches!(cast.home.resume(trace), Err(StoreError::Ended(_))));
    assert_eq!(cast.home.trace(trace).unwrap().phase(), Phase::Aborted);
    assert_eq!(cast.home.meta(trace).unwrap().status, TraceStatus::Aborted);
}

#[test]
fn artefacts_are_stored_once_by_any_number_of_threads_and_damaged_ones_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    let (trace, at) = (writer.trace_id(), writer.now());
    let ids: Vec<_> = (0..8).map(|_| writer.new_event_id()).collect();
    let home = &cast.home;
    let put = |id| home.put_artifact(b"the same", "text/plain", "utf-8", trace, id, at).unwrap();
    let descriptors: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = ids.iter().map(|id| scope.spawn(move || put(*id))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let hash = Digest::of(b"the same");
    assert!(descriptors.iter().all(|descriptor| descriptor.artifact_hash == hash));
    assert_eq!(home.artifact(&hash).unwrap(), b"the same");
    let blob = folder.path().join(&descriptors[0].storage_uri);
    let sidecar = std::fs::read_to_string(blob.with_extension("meta.json")).unwrap();
    let sidecar: serde_json::Value = serde_json::from_str(&sidecar).unwrap();
    assert_eq!(sidecar["references"].as_array().unwrap().len(), 8);
    let names: Vec<_> = std::fs::read_dir(blob.parent().unwrap()).unwrap().collect();
    assert_eq!(names.len(), 2, "the bytes and their sidecar, nothing temporary");

    std::fs::write(&blob, b"the sane").unwrap();
    assert!(matches!(home.artifact(&hash), Err(StoreError::Artifact { .. })));
    home.put_artifact(b"the same", "text/plain", "utf-8", trace, ids[0], at).unwrap();
    assert_eq!(home.artifact(&hash).unwrap(), b"the same", "whoever has the right bytes puts them right");
    assert!(matches!(home.artifact(&Digest::of(b"none")), Err(StoreError::Artifact { .. })));
}

#[test]
fn reports_are_kept_and_the_latest_verdict_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let trace = cast.run(1);
    let report = crate::kit::strictly(folder.path(), trace);
    let (id, json) = (ReportId::fresh(), serde_json::to_value(&report).unwrap());
    let path = cast.home.save_report(trace, id, &json, &report.to_text()).unwrap();
    assert!(path.with_extension("txt").exists());
    assert!(matches!(cast.home.save_report(trace, id, &json, ""), Err(StoreError::Exists(_))));
    assert_eq!(cast.home.summary(trace).verdict.as_deref(), Some("pass"));
    assert!(matches!(cast.home.save_report(TraceId::fresh(), id, &json, ""), Err(StoreError::NoTrace(_))));
}

#[test]
fn a_ticket_is_a_future_too() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    let session = payload::session("task-1", "count", &[]);
    let ticket = cast.say(&mut writer, EventType::SessionInitialized, session).ticket;
    let mut ticket = std::pin::pin!(ticket);
    let (sender, woken) = std::sync::mpsc::channel();
    struct Tell(std::sync::Mutex<std::sync::mpsc::Sender<()>>);
    impl std::task::Wake for Tell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let waker = Arc::new(Tell(std::sync::Mutex::new(sender))).into();
    let mut context = std::task::Context::from_waker(&waker);
    while ticket.as_mut().poll(&mut context).map(Result::unwrap).is_pending() {
        woken.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

#[test]
fn a_home_that_is_none_and_a_name_that_is_no_trace_are_said() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Home::open(folder.path()), Err(StoreError::NoHome(_))));
    let cast = Cast::at(folder.path());
    assert!("../../etc/passwd".parse::<TraceId>().is_err(), "what is no id becomes no path");
    assert!(matches!(cast.home.meta(TraceId::fresh()), Err(StoreError::NoTrace(_))));
    let few = choir_ledger_store::NewTrace {
        participants: cast.participants()[..2].to_vec(),
        ..cast.new_trace(Policy::default())
    };
    assert!(matches!(cast.home.begin(few), Err(StoreError::Name { .. })));
}
