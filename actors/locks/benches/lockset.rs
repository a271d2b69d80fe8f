//! What a lockset costs (DESIGN §8: less than 5 µs uncontended). Run with `cargo bench -p choir-locks`.

use std::hint::black_box;

use choir_locks::{LockEvent, LockManager, Request};
use choir_messages::id::InvocationId;
use choir_messages::tool::{Lane, LockMode, LockSpec, ResourceKey};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

fn file(path: String, mode: LockMode) -> LockSpec {
    LockSpec { resource: ResourceKey::File(path), mode }
}

fn acquire(number: u128, locks: Vec<LockSpec>) -> LockEvent {
    let owner = Lane::Core("bench".parse().expect("a name"));
    let invocation = InvocationId::from_bits(number);
    LockEvent::Acquire(Request { owner, invocation, locks, wait_ms: 60_000 })
}

const fn release(number: u128) -> LockEvent {
    LockEvent::Release { invocation: InvocationId::from_bits(number) }
}

fn pair() -> Vec<LockSpec> {
    vec![
        file("src/main.rs".to_owned(), LockMode::X),
        LockSpec { resource: ResourceKey::ChoirTmp, mode: LockMode::X },
    ]
}

/// 100 calls hold a file each, 100 wait for one of them each.
fn busy() -> LockManager {
    let mut table = LockManager::new();
    for number in 0..200u128 {
        let path = format!("src/module_{:03}/file.rs", number % 100);
        table.step(acquire(1_000 + number, vec![file(path, LockMode::X)]), 0);
    }
    assert_eq!(table.len(), (100, 100));
    table
}

/// One holds the workspace, 100 wait for a file each.
fn queue() -> LockManager {
    let mut table = LockManager::new();
    let workspace = LockSpec { resource: ResourceKey::Workspace, mode: LockMode::X };
    table.step(acquire(1, vec![workspace]), 0);
    for number in 0..100u128 {
        table.step(acquire(1_000 + number, vec![file(format!("src/{number}.rs"), LockMode::X)]), 0);
    }
    assert_eq!(table.len(), (1, 100));
    table
}

fn locksets(criterion: &mut Criterion) {
    let mut empty = LockManager::new();
    criterion.bench_function("acquire and release 2 locks, empty table", |bencher| {
        bencher.iter_batched(
            || acquire(1, pair()),
            |request| {
                black_box(empty.step(request, 0));
                black_box(empty.step(release(1), 0))
            },
            BatchSize::SmallInput,
        );
    });

    let mut table = busy();
    criterion.bench_function("acquire and release 2 free locks, 100 held, 100 waiting", |bencher| {
        bencher.iter_batched(
            || acquire(1, pair()),
            |request| {
                black_box(table.step(request, 0));
                black_box(table.step(release(1), 0))
            },
            BatchSize::SmallInput,
        );
    });

    let table = busy();
    criterion.bench_function("a release that grants one waiter, 100 held, 100 waiting", |bencher| {
        bencher.iter_batched(
            || table.clone(),
            |mut table| black_box(table.step(release(1_050), 0)),
            BatchSize::LargeInput,
        );
    });

    let table = queue();
    criterion.bench_function("the end of a workspace:X that grants 100 waiters", |bencher| {
        bencher.iter_batched(
            || table.clone(),
            |mut table| black_box(table.step(release(1), 0)),
            BatchSize::LargeInput,
        );
    });
}

criterion_group!(benches, locksets);
criterion_main!(benches);
