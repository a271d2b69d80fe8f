//! What verifying a whole home costs, every signature included: `cargo bench -p choir-ledger`. The traces come from the scale
//! recipe, so other implementations can be measured on the same bytes. Prints also the most memory the process has held.

#![allow(clippy::print_stdout, reason = "a bench prints")]

use choir_ledger::scale;
use choir_ledger::verify::{Options, Reading, Verdict, verify_folder};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// `VmHWM` of this process in MiB, where the system tells.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}

fn verify(c: &mut Criterion) {
    let mut group = c.benchmark_group("verify");
    group.sample_size(20);
    for n in [1_000u64, 10_000] {
        let home = tempfile::tempdir().expect("a temporary folder");
        let trace = scale::write_home(home.path(), n).expect("the home is written");
        group.throughput(Throughput::Elements(n));
        for reading in [Reading::Strict, Reading::Compat] {
            let options = Options { reading, ..Options::default() };
            group.bench_with_input(BenchmarkId::new(reading.to_string(), n), &n, |bench, _| {
                bench.iter(|| {
                    let report = verify_folder(home.path(), trace, options);
                    assert_eq!(report.verification_status, Verdict::Pass);
                });
            });
        }
        if let Some(peak) = peak_mib() {
            println!("verify: at most {peak} MiB resident after {n} events");
        }
    }
    group.finish();
}

criterion_group!(benches, verify);
criterion_main!(benches);
