use super::*;
use crate::proof::{ConsistencyPlan, InclusionPlan, verify_consistency, verify_inclusion};
use crate::tree::tests::naive_root;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Files = BTreeMap<String, Vec<u8>>;

fn statement(number: u64) -> Vec<u8> {
    vec![u8::try_from(number % 251).unwrap(); usize::try_from(number % 7).unwrap()]
}

fn keep(files: &mut Files, written: Vec<TileFile>) {
    for file in written {
        if let Some(folder) = superseded(&file) {
            files.retain(|path, _| !path.starts_with(&format!("{folder}/")));
        }
        files.insert(file.path, file.bytes);
    }
}

/// A log of so many statements, its writer opened anew after each batch.
fn grown(batches: &[u64]) -> (TreeHead, Files) {
    let (mut files, mut head, mut number) = (Files::new(), TileWriter::new().head(), 0);
    for batch in batches {
        let mut writer = TileWriter::open(&head, |path| files.get(path).cloned()).unwrap();
        for _ in 0..*batch {
            let full = writer.append(&statement(number)).unwrap();
            keep(&mut files, full);
            number += 1;
        }
        keep(&mut files, writer.edge());
        head = writer.head();
    }
    (head, files)
}

#[test]
fn paths_are_those_of_the_specification() {
    for (level, index, width, path) in [
        (Some(0), 0, 1, "tile/0/000.p/1"),
        (Some(0), 1_234_067, 256, "tile/0/x001/x234/067"),
        (Some(3), 1000, 17, "tile/3/x001/000.p/17"),
        (None, 999, 256, "tile/entries/999"),
    ] {
        assert_eq!(Tile { level, index, width }.path(), path);
    }
}

#[test]
fn a_log_of_two_levels_of_tiles_proves_every_kind_of_place() {
    let (head, files) = grown(&[1, 255, 300, 65_536 - 556 + 3]);
    assert_eq!(head.size, 65_539);
    assert!(files.contains_key("tile/1/000") && files.contains_key("tile/2/000.p/1"));
    assert!(!files.keys().any(|path| path.starts_with("tile/0/000.p/")), "narrow tiles go when full");
    let nodes = TileNodes::new(head.size, |path: &str| files.get(path).cloned());
    for index in [0, 255, 256, 65_535, 65_538] {
        let proof = InclusionPlan::new(index, head.size).unwrap().finish(&nodes).unwrap();
        let leaf = entry(index, head.size, |path| files.get(path).cloned()).unwrap();
        assert_eq!(leaf, statement(index));
        verify_inclusion(&leaf_hash(&leaf), &proof, &head).unwrap();
    }
}

#[test]
fn a_missing_or_changed_tile_is_seen_when_the_log_is_opened() {
    let (head, files) = grown(&[300]);
    let open = |files: &Files| TileWriter::open(&head, |path| files.get(path).cloned());
    assert!(open(&files).is_ok());
    for path in ["tile/0/001.p/44", "tile/1/000.p/1", "tile/entries/001.p/44"] {
        let mut without = files.clone();
        without.remove(path);
        assert_eq!(open(&without), Err(TileError::Missing(path.into())));
    }
    let mut changed = files;
    changed.get_mut("tile/1/000.p/1").unwrap()[0] ^= 1;
    assert_eq!(open(&changed), Err(TileError::OtherRoot));
}

#[test]
fn a_statement_too_long_for_a_bundle_changes_nothing() {
    let mut writer = TileWriter::new();
    assert_eq!(writer.append(&vec![0; 65_536]), Err(TileError::TooLong(65_536)));
    assert_eq!(writer, TileWriter::new());
    assert!(writer.append(&vec![0; 65_535]).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn files_hold_the_log_however_it_was_batched(batches in proptest::collection::vec(0u64..300, 1..6)) {
        let (head, files) = grown(&batches);
        let leaves: Vec<_> = (0..head.size).map(|number| leaf_hash(&statement(number))).collect();
        prop_assert_eq!(head.root, naive_root(&leaves));
        let nodes = TileNodes::new(head.size, |path: &str| files.get(path).cloned());
        let mut old = 0;
        for batch in &batches {
            old += batch;
            let before = TreeHead { size: old, root: naive_root(&leaves[..usize::try_from(old).unwrap()]) };
            let proof = ConsistencyPlan::new(old, head.size).unwrap().finish(&nodes).unwrap();
            prop_assert!(verify_consistency(&before, &head, &proof).is_ok());
        }
    }

    #[test]
    fn any_bytes_as_a_bundle_are_judged_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = entries(&bytes);
    }
}
