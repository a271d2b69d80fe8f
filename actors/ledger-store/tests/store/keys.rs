//! The registry and its signed log.

use crate::kit::{Cast, assert_sound, strictly};
use choir_ledger::event::{EventType, Role};
use choir_ledger::identity::{KeyStatus, Registry};
use choir_ledger::layout;
use choir_ledger::meta::TraceStatus;
use choir_ledger::payload;
use choir_ledger::trace::Policy;
use choir_ledger::verify::Verdict;
use choir_ledger_store::{Home, REGISTRY_LOG, StoreError, check_registry};
use std::path::Path;

fn registry(home: &Path) -> Registry {
    serde_json::from_slice(&std::fs::read(home.join(layout::REGISTRY)).unwrap()).unwrap()
}

fn findings(home: &Path) -> Vec<String> {
    check_registry(home, None).iter().map(ToString::to_string).collect()
}

#[test]
fn new_rotated_and_revoked_keys_stand_in_a_registry_that_is_the_fold_of_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let before = cast.run(1);
    let old = cast.signer(Role::Executor).identity().key_id.clone();
    let new = cast.home.rotate_key(&old).unwrap();
    assert_ne!(new.identity().key_id, old);
    assert!(
        matches!(cast.home.rotate_key(&old), Err(StoreError::Key { .. })),
        "a rotated key rotates no more"
    );
    let critic = cast.signer(Role::Critic).identity().key_id.clone();
    let revoked = cast.home.revoke_key(&critic, "lost").unwrap();
    assert_eq!((revoked.status, revoked.revoked_reason.as_deref()), (KeyStatus::Revoked, Some("lost")));
    assert!(matches!(cast.home.revoke_key(&critic, "again"), Err(StoreError::Key { .. })));
    assert!(matches!(cast.home.signer(&critic), Err(StoreError::Key { .. })));

    let statuses: Vec<_> =
        registry(folder.path()).identities.iter().map(|identity| identity.status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == KeyStatus::Rotated).count(), 1);
    assert_eq!(statuses.len(), 5);
    assert_eq!(findings(folder.path()), Vec::<String>::new());
    // What was signed before stays good; what is signed now is signed by the new keys.
    assert_sound(folder.path(), before);
    let after = Cast::of(Home::open(folder.path()).unwrap());
    assert_eq!(after.signer(Role::Executor).identity().key_id, new.identity().key_id);
    assert_sound(folder.path(), after.run(1));
}

#[test]
fn a_key_of_a_running_trace_is_not_rotated_and_a_revoked_one_signs_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    let key = cast.signer(Role::Executor).identity().key_id.clone();
    let trace = writer.trace_id();
    let refused = cast.home.rotate_key(&key).unwrap_err();
    assert!(matches!(&refused, StoreError::KeyInUse { trace: busy, .. } if *busy == trace), "{refused}");
    for next in [format!("ledger abort {trace}"), format!("key revoke {key}"), "wait".to_owned()] {
        assert!(refused.to_string().contains(&next), "{refused}");
    }
    // Another process revokes it; this one sees that at the next event.
    Home::open(folder.path()).unwrap().revoke_key(&key, "compromised").unwrap();
    let record = payload::intent("text.count", &choir_messages::chain::Digest::of(b""), "low", "why");
    let refused = cast.try_say(&mut writer, EventType::ToolIntentSigned, record, vec![], vec![], None);
    assert!(matches!(refused, Err(StoreError::Key { .. })));
}

#[test]
fn a_key_is_not_rotated_under_a_trace_that_begins_at_the_same_moment() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::create(folder.path()).unwrap();
    for _ in 0..20 {
        let cast = Cast::of(home.clone());
        let key = cast.signer(Role::Critic).identity().key_id.clone();
        let (begun, rotated) = std::thread::scope(|scope| {
            let begins = scope.spawn(|| cast.home.begin(cast.new_trace(Policy::default())));
            let rotates = scope.spawn(|| Home::open(folder.path()).unwrap().rotate_key(&key));
            (begins.join().unwrap(), rotates.join().unwrap())
        });
        match (begun, rotated) {
            (Ok(mut writer), Err(StoreError::KeyInUse { .. })) => {
                cast.open(&mut writer);
                writer.finish(TraceStatus::Aborted, None).unwrap();
            }
            (Err(StoreError::Key { .. }), Ok(_)) => {}
            other => panic!("one of them goes first: {other:?}"),
        }
    }
    assert_eq!(findings(folder.path()), Vec::<String>::new());
}

#[test]
fn any_change_of_the_registry_or_its_log_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    cast.home.rotate_key(&cast.signer(Role::Planner).identity().key_id).unwrap();
    let (registry_path, log_path) = (folder.path().join(layout::REGISTRY), folder.path().join(REGISTRY_LOG));
    let (text, log) =
        (std::fs::read_to_string(&registry_path).unwrap(), std::fs::read_to_string(&log_path).unwrap());
    let lines: Vec<&str> = log.lines().collect();

    let stranger = tempfile::tempdir().unwrap();
    Cast::at(stranger.path());
    let swapped = std::fs::read_to_string(stranger.path().join(layout::REGISTRY)).unwrap();
    for changed in [
        text.replace("critic-agent", "critic-agenz"),
        text.replace("rotated", "active"),
        swapped,
        "{}".into(),
    ] {
        std::fs::write(&registry_path, &changed).unwrap();
        assert_eq!(findings(folder.path()).len(), 1, "{changed}");
        // It is not gone on with, nor put right in passing.
        assert_eq!(std::fs::read_to_string(&registry_path).unwrap(), changed);
    }
    std::fs::remove_file(&registry_path).unwrap();
    assert_eq!(findings(folder.path()).len(), 1);
    std::fs::write(&registry_path, &text).unwrap();

    let mut without = lines.clone();
    without.remove(2);
    let mut swapped = lines.clone();
    swapped.swap(1, 2);
    let edited = log.replace("planner-agent", "planner-agenz");
    let cut = &log[..log.len() - 10];
    for changed in [
        without.join("\n") + "\n",
        swapped.join("\n") + "\n",
        edited,
        cut.to_owned(),
        lines[..3].join("\n") + "\n",
        String::new(),
    ] {
        std::fs::write(&log_path, &changed).unwrap();
        assert!(!findings(folder.path()).is_empty(), "{changed}");
        let refused = cast.home.ensure_agent("late-agent", "Late", &[Role::Critic]);
        let shorter = changed.lines().count() == 3 && lines.starts_with(&changed.lines().collect::<Vec<_>>());
        assert!(refused.is_err() || shorter, "a log that is not in order is gone on with by nobody");
        std::fs::write(&registry_path, &text).unwrap();
    }
    std::fs::write(&log_path, &log).unwrap();
    assert_eq!(findings(folder.path()), Vec::<String>::new());

    // All of keys/ replaced by a stranger's: in order by itself, but not under the pinned root key.
    for file in [layout::REGISTRY, REGISTRY_LOG, choir_ledger_store::ROOT_KEY] {
        std::fs::copy(stranger.path().join(file), folder.path().join(file)).unwrap();
    }
    assert_eq!(findings(folder.path()), Vec::<String>::new());
    assert_eq!(check_registry(folder.path(), Some(cast.home.log_key())).len(), 1);
    assert!(matches!(cast.home.rotate_key("key_0000000000000000"), Err(StoreError::Key { .. })));
}

#[test]
fn a_crash_between_the_log_and_the_registry_is_put_right_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let path = folder.path().join(layout::REGISTRY);
    let before = std::fs::read(&path).unwrap();
    cast.home.rotate_key(&cast.signer(Role::Auditor).identity().key_id).unwrap();
    std::fs::write(&path, before).unwrap();
    assert_eq!(findings(folder.path()).len(), 1);
    Home::create(folder.path()).unwrap();
    assert_eq!(findings(folder.path()), Vec::<String>::new());
}

#[test]
fn a_trace_judged_by_another_homes_registry_fails() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trace = Cast::at(folder.path()).run(1);
    Cast::at(other.path());
    std::fs::copy(other.path().join(layout::REGISTRY), folder.path().join(layout::REGISTRY)).unwrap();
    assert_eq!(strictly(folder.path(), trace).verification_status, Verdict::Fail);
}

#[test]
fn a_registry_of_the_original_has_no_log_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    choir_ledger::scale::write_home(folder.path(), 11).unwrap();
    let [finding] = &findings(folder.path())[..] else { panic!("one finding") };
    assert!(finding.contains("there is no signed log"), "{finding}");
}

#[test]
fn ids_that_would_leave_the_folder_and_roles_in_passing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    for id in ["../evil", "", "A", ".hidden", "a/b"] {
        assert!(
            matches!(cast.home.ensure_agent(id, "x", &[Role::Critic]), Err(StoreError::Name { .. })),
            "{id}"
        );
    }
    assert!(matches!(
        cast.home.ensure_agent("critic-agent", "x", &[Role::Auditor]),
        Err(StoreError::Key { .. })
    ));
}
