//! What the rules cost by themselves: a step, the canonical form, and the verification of 50,000 entries.

#![allow(clippy::unwrap_used, missing_docs, reason = "a bench")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;

use choir_chap::verify::{FORMAT, Header, Trailer, Verifier, header_line, trailer_line};
use choir_chap::{Call, Settings, entry_to_wire};
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::json;
use support::House;
use support::random::{PEOPLE, furnish};

fn benches(c: &mut Criterion) {
    let create = json!({"jsonrpc": "2.0", "id": "01J00000000000000000000000", "method": "task.create", "params": {
        "workspace": "wsp_a", "from": PEOPLE[0], "to": PEOPLE[3], "ts": "2026-10-01T00:00:00.000Z", "kind": "draft",
        "assignee": PEOPLE[3], "input": {"text": "Where is my parcel?", "order": 4711}}})
    .to_string();
    let settings = Settings::default();
    c.bench_function("parse and canonicalise a call of 300 bytes", |b| {
        b.iter(|| Call::parse(black_box(create.as_bytes()), &settings).unwrap());
    });

    let mut house = House::new(Settings::default());
    furnish(&mut house);
    c.bench_function("task.create: parse, step, chain, store in a map", |b| {
        b.iter(|| house.bytes(create.as_bytes()))
    });
    c.bench_function("task.create and task.complete, the same", |b| {
        b.iter(|| {
            let created = house.bytes(create.as_bytes()).into_result().unwrap();
            let complete = json!({"jsonrpc": "2.0", "id": 1, "method": "task.complete", "params": {
                "workspace": "wsp_a", "from": PEOPLE[3], "task_id": created["task_id"], "output": {"text": "done"}}});
            house.bytes(complete.to_string().as_bytes())
        });
    });

    let mut house = House::new(Settings::default());
    furnish(&mut house);
    let missing = 50_000 - house.log("wsp_a").len();
    for _ in 0..missing {
        house.bytes(create.as_bytes());
    }
    let mut group = c.benchmark_group("50,000 entries");
    group.sample_size(10);
    group.bench_function("audit.verify_chain", |b| {
        b.iter(|| house.ok("audit.verify_chain", json!({"workspace": "wsp_a"})));
    });
    let log = house.log("wsp_a");
    let header = Header {
        format: FORMAT.to_owned(),
        workspace: "wsp_a".to_owned(),
        exported_at: house.now.to_string(),
        first_seq: 0,
        signatures_required: false,
    };
    let head = house.ok("workspace.describe", json!({"workspace": "wsp_a"}))["evidence_head"]
        .as_str()
        .map(str::to_owned);
    let mut lines = vec![header_line(&header)];
    lines.extend(log.iter().map(entry_to_wire));
    lines.push(trailer_line(&Trailer { entries: log.len() as u64, head }));
    group.bench_function("verify an exported file", |b| {
        b.iter(|| {
            let mut verifier = Verifier::new(None);
            lines.iter().for_each(|line| verifier.line(line).unwrap());
            let report = verifier.finish();
            assert_eq!(report.fault_count, 0);
            report
        });
    });
    group.finish();
}

criterion_group!(rules, benches);
criterion_main!(rules);
