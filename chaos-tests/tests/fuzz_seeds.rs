//! The fuzz targets without a fuzzer: every seed, and simple damage to every seed, through the same functions that
//! libFuzzer drives with nightly (`make fuzz`). A property that no longer holds, a seed that is no longer understood and
//! a target that was only half added show here.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use choir_fuzz_targets::{TARGETS, Target};

/// Damaged copies of one seed. What finds more is the fuzzer's work.
const DAMAGED: usize = 48;

/// Bytes of all seeds together: they are examples, not a corpus.
const SEED_BYTES: usize = 50_000;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn seeds(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = fuzz().join("seeds").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths: BTreeSet<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.into_iter().map(|path| (path.display().to_string(), fs::read(&path).unwrap())).collect()
}

#[test]
fn every_property_holds_for_every_seed_and_each_target_understands_one() {
    for target in TARGETS {
        let seeds = seeds(target);
        let understood = seeds.iter().filter(|(_, seed)| (target.run)(seed)).count();
        assert!(understood > 0, "no seed of {} reaches what it is about", target.name);
        // Inputs that once broke a property are kept as `finding-...`; whether they are understood does not matter.
        for (path, seed) in seeds.iter().filter(|(path, _)| path.contains("/good-")) {
            assert!((target.run)(seed), "{path} is no longer understood");
        }
    }
}

#[test]
fn every_property_holds_for_damaged_seeds() {
    for target in TARGETS {
        for (_, seed) in seeds(target) {
            // A fixed walk: the same damage in every run.
            let mut state = seed.len() as u64 + 1;
            let mut next = |below: usize| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize % below.max(1)
            };
            for _ in 0..DAMAGED {
                let mut damaged = seed.clone();
                let at = next(damaged.len());
                match next(4) {
                    0 => damaged.truncate(at),
                    1 => damaged.insert(at, next(256) as u8),
                    2 => damaged.extend_from_slice(&seed[at..]),
                    _ if damaged.is_empty() => {}
                    _ => damaged[at] ^= 1 << next(8),
                }
                (target.run)(&damaged);
            }
        }
    }
}

#[test]
fn every_target_has_its_program_and_its_seeds() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names_in(&fuzz().join("fuzz_targets")), targets);
    assert_eq!(names_in(&fuzz().join("seeds")), targets);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in &targets {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml does not name {name}");
        let program = fs::read_to_string(fuzz().join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(
            program.contains(&format!("choir_fuzz_targets::{name}(data)")),
            "{name}.rs runs another target"
        );
    }
    let bytes: usize = TARGETS.iter().flat_map(seeds).map(|(_, seed)| seed.len()).sum();
    assert!(bytes <= SEED_BYTES, "the seeds have {bytes} bytes");
}
