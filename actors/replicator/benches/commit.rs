//! What one commit costs the agent: hash, chain, legality check and append, by size of the event. DESIGN §8 allows 50 µs.

#![allow(missing_docs, reason = "criterion's macros write the functions")]

use choir_messages::chain::Digest;
use choir_messages::event::EventBody;
use choir_messages::id::{MessageId, SessionId};
use choir_messages::session::SessionView;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use choir_replicator::journal::Journal;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

/// A journal with a conversation behind it, so that views have their usual size.
fn lived_in() -> Journal<()> {
    let mut journal = Journal::restore(SessionView::new(SessionId::from_bits(1)), Vec::new()).expect("empty");
    let now = Timestamp::from_millis(1);
    let agent = "bench".parse().expect("a name");
    let opened = EventBody::SessionOpened { agent, tool_manifest: Digest::ZERO };
    journal.append(&Lane::Edge, vec![opened], now).expect("legal");
    for n in 0..200u128 {
        let text = format!("instruction {n} {}", "words ".repeat(100));
        let body = EventBody::InjectedInstruction { message: MessageId::from_bits(n), text };
        journal.append(&Lane::Edge, vec![body], now).expect("legal");
        journal.acknowledged(journal.status().head).expect("its own");
    }
    journal
}

fn commit(c: &mut Criterion) {
    let mut group = c.benchmark_group("commit");
    for bytes in [100, 1_000, 10_000] {
        let mut journal = lived_in();
        let mut n = 1_000u128;
        group.bench_function(format!("{bytes} B"), |b| {
            b.iter_batched(
                || {
                    n += 1;
                    vec![EventBody::Notice { message: MessageId::from_bits(n), text: "x".repeat(bytes) }]
                },
                |bodies| {
                    journal.append(&Lane::Edge, bodies, Timestamp::from_millis(2)).expect("legal");
                    journal.acknowledged(journal.status().head).expect("its own")
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, commit);
criterion_main!(benches);
