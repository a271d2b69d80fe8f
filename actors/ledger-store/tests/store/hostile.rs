//! Files that somebody else has written: judged, never trusted, and never the end of the process.

use crate::kit::Cast;
use choir_ledger::layout;
use choir_ledger_store::{CHECKPOINT, REGISTRY_LOG, ROOT_KEY, check_registry, read_checkpoint};
use proptest::prelude::*;
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

/// A home with one trace that was left in the middle; made once, and copied.
static LEFT: LazyLock<(TempDir, choir_ledger::id::TraceId)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let cast = Cast::at(folder.path());
    let mut writer = cast.begin();
    cast.open(&mut writer);
    cast.cycle(&mut writer, 0);
    let trace = writer.trace_id();
    drop(writer);
    (folder, trace)
});

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A change of a file: bytes replaced, put in, or cut off.
fn damage(bytes: &mut Vec<u8>, place: proptest::sample::Index, kind: u8, with: &[u8]) {
    let at = place.index(bytes.len());
    match kind {
        0 => bytes[at] ^= with.first().copied().unwrap_or(1) | 1,
        1 => bytes.truncate(at),
        2 => drop(bytes.splice(at..at, with.iter().copied())),
        _ => {
            let end = (at + with.len()).min(bytes.len());
            bytes.drain(at..end);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_damaged_ledger_is_refused_unchanged_or_resumed_with_all_it_signed(
        place in any::<proptest::sample::Index>(),
        kind in 0u8..4,
        with in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        copy(LEFT.0.path(), folder.path());
        let (trace, home) = (LEFT.1, choir_ledger_store::Home::open(folder.path()).unwrap());
        let ledger = folder.path().join(layout::events(trace));
        let mut bytes = std::fs::read(&ledger).unwrap();
        let sound = bytes.clone();
        damage(&mut bytes, place, kind, &with);
        std::fs::write(&ledger, &bytes).unwrap();
        match home.resume(trace) {
            Err(_) => prop_assert_eq!(std::fs::read(&ledger).unwrap(), bytes),
            Ok(resumed) => {
                drop(resumed);
                prop_assert!(std::fs::read(&ledger).unwrap().len() >= sound.len(), "nothing that was signed is gone");
                prop_assert_eq!(home.events(trace).unwrap().len(), 7);
            }
        }
    }

    #[test]
    fn a_damaged_registry_log_or_checkpoint_is_found_and_never_a_panic(
        which in 0usize..4,
        place in any::<proptest::sample::Index>(),
        kind in 0u8..4,
        with in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        copy(LEFT.0.path(), folder.path());
        let home = choir_ledger_store::Home::open(folder.path()).unwrap();
        let note = folder.path().join(layout::trace_dir(LEFT.1)).join(CHECKPOINT);
        let files = [REGISTRY_LOG, layout::REGISTRY, ROOT_KEY].map(|file| folder.path().join(file));
        let path = files.get(which).unwrap_or(&note);
        let mut bytes = std::fs::read(path).unwrap();
        let sound = bytes.clone();
        damage(&mut bytes, place, kind, &with);
        prop_assume!(bytes != sound);
        std::fs::write(path, &bytes).unwrap();
        let meaning = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
        if which < 3 {
            let found = !check_registry(folder.path(), Some(home.log_key())).is_empty();
            // White space says nothing in a registry, nor around a key.
            let same = (which == 1 && meaning(&bytes).is_some() && meaning(&bytes) == meaning(&sound))
                || (which == 2 && bytes.trim_ascii() == sound.trim_ascii());
            prop_assert!(found || same);
        } else {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let read = read_checkpoint(&text, home.log_key(), LEFT.1);
            prop_assert!(read.is_err(), "{read:?}");
        }
    }
}
