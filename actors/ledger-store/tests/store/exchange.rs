//! Traces that travel.

use crate::kit::{Cast, assert_sound, bytes_of, strictly};
use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_ledger::scale::write_home;
use choir_ledger::verify::Verdict;
use choir_ledger_store::{Home, ImportOptions, PROOF, StoreError, check_registry};
use std::path::Path;

#[test]
fn an_exported_trace_is_a_home_and_is_imported_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(&folder.path().join("here"));
    let (trace, _other) = (cast.run(2), cast.run(1));
    cast.home.publish(trace).unwrap();
    let out = folder.path().join("out");
    let exported = cast.home.export(trace, &out).unwrap();
    assert_eq!((exported.events, exported.artifacts, exported.missing.len()), (14, 4, 0));
    assert_sound(&out, trace);
    assert_eq!(check_registry(&out, Some(cast.home.log_key())), vec![]);
    assert!(out.join(PROOF).exists());
    assert!(!out.join("keys/private").exists(), "no private key travels");
    assert!(matches!(cast.home.export(trace, &out), Err(StoreError::Exists(_))));

    let there = Cast::at(&folder.path().join("there"));
    let imported = there.home.import(&out, &ImportOptions::default()).unwrap();
    assert_eq!((imported.trace, imported.artifacts, imported.keys), (trace, 4, 4));
    assert_sound(there.home.root(), trace);
    assert_eq!(there.home.check_registry(), vec![]);
    assert_eq!(there.home.summary(trace).meta, cast.home.summary(trace).meta);
    assert!(matches!(there.home.import(&out, &ImportOptions::default()), Err(StoreError::Exists(_))));
    // A home that had no agents of its own before gets its own keys, whatever keys came along.
    let late = Home::create(&folder.path().join("late")).unwrap();
    late.import(&out, &ImportOptions::default()).unwrap();
    let late = Cast::of(late);
    assert_sound(late.home.root(), late.run(1));
    // What was written elsewhere is verified, not gone on with; and can be published and exported again.
    there.home.publish(trace).unwrap();
    there.home.export(trace, &folder.path().join("again")).unwrap();
    assert_sound(&folder.path().join("again"), trace);
}

#[test]
fn a_trace_that_fails_is_not_imported_unless_that_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(&folder.path().join("here"));
    let trace = cast.run(1);
    let out = folder.path().join("out");
    cast.home.export(trace, &out).unwrap();
    let ledger = out.join(layout::events(trace));
    let text = std::fs::read_to_string(&ledger).unwrap();
    std::fs::write(&ledger, text.replace("small and local", "small and lofal")).unwrap();

    let there = Home::create(&folder.path().join("there")).unwrap();
    let before = bytes_of(there.root());
    let refused = there.import(&out, &ImportOptions::default()).unwrap_err();
    assert!(matches!(refused, StoreError::Unverified { .. }), "{refused}");
    assert_eq!(bytes_of(there.root()), before, "nothing was taken");
    let options = ImportOptions { accept_failing: true, ..ImportOptions::default() };
    let imported = there.import(&out, &options).unwrap();
    assert_eq!(imported.report.verification_status, Verdict::Fail);
    assert_eq!(strictly(there.root(), trace).verification_status, Verdict::Fail);
}

#[test]
fn a_trace_of_the_original_is_imported_and_one_with_known_event_ids_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::create(&folder.path().join("home")).unwrap();
    let trace = write_home(&folder.path().join("a"), 26).unwrap();
    let imported = home.import(&folder.path().join("a"), &ImportOptions::default()).unwrap();
    assert_eq!((imported.trace, imported.keys), (trace, 4));
    assert_eq!(home.trace(trace).unwrap().standing().events, 26);
    assert!(matches!(home.resume(trace), Err(StoreError::NoCheckpoint(_))));
    // The recipe gives every trace the same event ids.
    write_home(&folder.path().join("b"), 31).unwrap();
    let refused = home.import(&folder.path().join("b"), &ImportOptions::default()).unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused}");
    assert_eq!(home.list().unwrap().len(), 1);
}

#[test]
fn an_import_says_which_trace_it_needs_and_takes_no_links() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::create(&folder.path().join("home")).unwrap();
    assert!(matches!(home.import(folder.path(), &ImportOptions::default()), Err(StoreError::NoHome(_))));
    let (two, wanted) = (folder.path().join("two"), TraceId::fresh());
    let trace = write_home(&two, 11).unwrap();
    write_home(&two, 12).unwrap();
    assert!(matches!(home.import(&two, &ImportOptions::default()), Err(StoreError::Conflict(_))));
    let options = ImportOptions { trace: Some(wanted), ..ImportOptions::default() };
    assert!(matches!(home.import(&two, &options), Err(StoreError::NoTrace(_))));

    // A report that is a link to a file of the importing user's.
    let one = folder.path().join("one");
    let trace_dir = one.join(layout::trace_dir(write_home(&one, 11).unwrap()));
    std::fs::create_dir_all(trace_dir.join("reports")).unwrap();
    let secret: &Path = &folder.path().join("secret.json");
    std::fs::write(secret, "secret").unwrap();
    std::os::unix::fs::symlink(secret, trace_dir.join("reports/x.json")).unwrap();
    home.import(&one, &ImportOptions::default()).unwrap();
    assert!(!home.root().join(layout::trace_dir(trace)).join("reports/x.json").exists());
}
