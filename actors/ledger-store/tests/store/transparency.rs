//! The log of trace heads, and proofs from it.

use crate::kit::Cast;
use choir_ledger::event::EventType;
use choir_ledger::layout;
use choir_ledger::meta::TraceStatus;
use choir_ledger::payload;
use choir_ledger_store::{Bundle, ProofFault, StoreError, check_bundle, check_log_growth};
use choir_messages::chain::Digest;

#[test]
fn a_published_head_is_proven_offline_by_the_bundle_the_key_and_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let (first, second) = (cast.run(1), cast.run(2));
    assert!(matches!(cast.home.prove(first), Err(StoreError::Log(_))), "nothing is published yet");
    let published = cast.home.publish(first).unwrap();
    assert_eq!((published.index, published.head.status), (0, TraceStatus::Succeeded));
    assert_eq!(cast.home.publish(first).unwrap(), published, "a head is entered once");
    let early = cast.home.log_checkpoint().unwrap().unwrap();
    assert_eq!(cast.home.publish(second).unwrap().index, 1);

    let key = cast.home.log_key();
    let path = |trace| folder.path().join(layout::trace_dir(trace));
    let bundle = cast.home.prove(second).unwrap();
    let proven = check_bundle(&bundle, key, &path(second)).unwrap();
    assert_eq!((proven.head.event_count, proven.index, proven.log.size), (14, 1, 2));
    let text = serde_json::to_string(&bundle).unwrap();
    assert_eq!(serde_json::from_str::<Bundle>(&text).unwrap(), bundle);

    let late = cast.home.log_checkpoint().unwrap().unwrap();
    let growth = cast.home.consistency(1).unwrap();
    assert_eq!(check_log_growth(&early, &late, &growth, key), Ok(()));
    assert!(check_log_growth(&late, &early, &growth, key).is_err());

    // Another trace, another key, and every part of the bundle changed.
    assert!(matches!(check_bundle(&bundle, key, &path(first)), Err(ProofFault::Trace(_))));
    let stranger = Cast::at(tempfile::tempdir().unwrap().path());
    assert!(matches!(
        check_bundle(&bundle, stranger.home.log_key(), &path(second)),
        Err(ProofFault::Bundle(_))
    ));
    let changes: [fn(&mut Bundle); 5] = [
        |bundle| bundle.inclusion.index = 0,
        |bundle| bundle.inclusion.path[0] = Digest::ZERO,
        |bundle| bundle.statement.replace_range(40..41, "-"),
        |bundle| bundle.checkpoint = bundle.checkpoint.replace("\n2\n", "\n3\n"),
        |bundle| bundle.trace_id = choir_ledger::id::TraceId::fresh(),
    ];
    for change in changes {
        let mut changed = bundle.clone();
        change(&mut changed);
        assert!(check_bundle(&changed, key, &path(second)).is_err());
    }
}

#[test]
fn a_ledger_rewritten_after_it_was_published_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let trace = cast.run(1);
    cast.home.publish(trace).unwrap();
    let bundle = cast.home.prove(trace).unwrap();
    let path = folder.path().join(layout::trace_dir(trace));
    let ledger = path.join(layout::EVENTS);
    let sound = std::fs::read_to_string(&ledger).unwrap();
    let lines: Vec<_> = sound.lines().collect();
    let shorter = lines[..lines.len() - 1].join("\n") + "\n";
    for changed in [shorter, sound.replace("count", "coumt"), String::new()] {
        std::fs::write(&ledger, changed).unwrap();
        let fault = check_bundle(&bundle, cast.home.log_key(), &path).unwrap_err();
        assert!(matches!(fault, ProofFault::Trace(_)), "{fault}");
    }
}

#[test]
fn heads_of_a_growing_trace_stay_provable_and_a_lost_tile_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    let trace = writer.trace_id();
    let mut checkpoints = Vec::new();
    for number in 0..20 {
        let (id, descriptor) = cast.put(&mut writer, b"x");
        let record = payload::recorded(&Digest::of(b"x"), "text/plain").with("number", number.into());
        let event = EventType::ArtifactRecorded;
        cast.try_say(&mut writer, event, record, vec![], vec![descriptor], Some(id)).unwrap();
        writer.checkpoint().unwrap().wait().unwrap();
        assert_eq!(cast.home.publish(trace).unwrap().index, number as u64);
        checkpoints.push(cast.home.log_checkpoint().unwrap().unwrap());
    }
    let last = checkpoints.last().unwrap();
    for (size, earlier) in (1u64..).zip(&checkpoints) {
        let proof = cast.home.consistency(size).unwrap();
        assert_eq!(check_log_growth(earlier, last, &proof, cast.home.log_key()), Ok(()), "{size}");
    }
    // Later events do not take the proof of an earlier head away.
    let bundle = cast.home.prove(trace).unwrap();
    cast.cycle(&mut writer, 0);
    writer.checkpoint().unwrap().wait().unwrap();
    let path = folder.path().join(layout::trace_dir(trace));
    assert_eq!(check_bundle(&bundle, cast.home.log_key(), &path).unwrap().later_events, 4);

    let tile = folder.path().join("log/tile/0/000.p/20");
    let bytes = std::fs::read(&tile).unwrap();
    std::fs::remove_file(&tile).unwrap();
    assert!(matches!(cast.home.publish(trace), Err(StoreError::Log(_))));
    std::fs::write(&tile, bytes).unwrap();
    cast.home.publish(trace).unwrap();
}
