//! The Coordinator's transparency log: receipts, checkpoints and proofs of growth, checked by what an auditor has.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use choir_chap::verify::{Header, Trailer, Verdict, Verifier, header_line, trailer_line};
use choir_chap::{Log, Settings, entry_to_wire, receipt_check, workspace_key};
use choir_messages::chap::ObjectKind;
use choir_messages::sign::SigningKey;
use choir_transparency::{
    LogKey, Statement, attach_receipts, verify_checkpoint, verify_consistency_receipt, verify_receipt,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{Commits, House};

const W: &str = "wsp_log";

fn log() -> Log {
    Log::of_key(SigningKey::from_seed(&[7; 32]))
}

fn house(commits: Commits) -> House {
    let mut house = House::new(Settings { log: Some(log()), ..Settings::default() });
    house.commits = commits;
    house.ok("workspace.create", json!({"workspace": W, "profiles": ["core/1.0", "audit-scitt/1.0"]}));
    house
        .ok("participant.join", json!({"workspace": W, "from": "human:a", "type": "human", "role": "admin"}));
    house
}

fn grow(house: &mut House, to: usize) {
    while house.log(W).len() < to {
        for _ in 0..(to - house.log(W).len()).min(100) {
            let params =
                json!({"workspace": W, "from": "human:a", "kind": "k", "assignee": "human:a", "input": {}});
            house.ok("task.create", params);
        }
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().expect("base64 text")).expect("base64")
}

/// The key an auditor pinned, and that of the workspace's log.
fn keys(house: &mut House) -> (LogKey, LogKey) {
    let told = house.ok("workspace.describe", json!({"workspace": W}))["log"].clone();
    let key: LogKey = told["key"].as_str().expect("a key line").parse().expect("a key line");
    let own = workspace_key(&key, W).expect("every workspace's log has a name");
    assert_eq!(told["origin"], own.origin.as_str());
    (key, own)
}

fn submit(house: &mut House, params: Value) -> Value {
    let mut all = json!({"workspace": W, "from": "human:a"});
    all.as_object_mut().unwrap().extend(params.as_object().unwrap().clone());
    house.ok("audit.submit_to_scitt", all)
}

fn check(house: &mut House, from: usize, to: usize) {
    let (key, own) = keys(house);
    let entries = house.log(W);
    let answer = submit(house, json!({"range": {"from_seq": from, "to_seq": to}}));
    assert_eq!(answer["log_key"], key.to_string());
    let (head, _) = verify_checkpoint(answer["checkpoint"].as_str().unwrap(), &own).unwrap();
    assert_eq!(head.size, entries.len() as u64);
    let receipts = answer["receipts"].as_array().unwrap();
    assert_eq!(receipts.len(), to - from);
    for (seq, given) in (from..to).zip(receipts) {
        assert_eq!(given["seq"], seq);
        let statement = bytes(&given["receipt"]["statement"]);
        let parsed = Statement::parse(&statement).unwrap();
        parsed.verify(&own.key).unwrap();
        parsed.speaks_of(entries[seq].record.as_bytes()).unwrap();
        let registered = verify_receipt(&statement, &bytes(&given["receipt"]["receipt"]), &own).unwrap();
        assert_eq!((registered.index, registered.head.root), (seq as u64, head.root));
    }
}

#[test]
fn every_entry_has_a_receipt_that_an_auditor_verifies_with_the_published_key() {
    for commits in [Commits::Always, Commits::AndReopen, Commits::Lazily] {
        let mut house = house(commits);
        check(&mut house, 0, 2);
        grow(&mut house, 520);
        for (from, to) in [(0, 2), (250, 260), (511, 513), (519, 520), (0, 0)] {
            check(&mut house, from, to);
        }
        let stored = &house.store.0[W].objects;
        assert_eq!(
            stored.keys().filter(|key| key.kind == ObjectKind::Record).count(),
            3,
            "two blocks and their parent"
        );
    }
}

#[test]
fn a_long_range_goes_on_at_next_seq() {
    let mut house = house(Commits::Always);
    grow(&mut house, 600);
    let (mut next, mut seen) = (0, 0);
    loop {
        let answer = submit(&mut house, json!({"range": {"from_seq": next}}));
        seen += answer["receipts"].as_array().unwrap().len();
        match answer["next_seq"].as_u64() {
            Some(seq) => next = seq,
            None => break,
        }
    }
    assert_eq!(seen, 600);
}

#[test]
fn growth_is_proven_from_every_earlier_checkpoint() {
    let mut house = house(Commits::Always);
    let mut checkpoints = Vec::new();
    for size in [2, 3, 255, 256, 257, 513] {
        grow(&mut house, size);
        let answer = submit(&mut house, json!({"range": {"from_seq": 0, "to_seq": 0}}));
        checkpoints.push(answer["checkpoint"].as_str().unwrap().to_owned());
    }
    let (_, own) = keys(&mut house);
    for checkpoint in checkpoints {
        let (old, _) = verify_checkpoint(&checkpoint, &own).unwrap();
        let range = json!({"from_seq": 0, "to_seq": 0});
        let answer = submit(&mut house, json!({"range": range, "from_size": old.size}));
        let (new, _) = verify_checkpoint(answer["checkpoint"].as_str().unwrap(), &own).unwrap();
        let proven = verify_consistency_receipt(&old, &bytes(&answer["consistency"]), &own).unwrap();
        assert_eq!(proven, new);
    }
    let too_far = json!({"workspace": W, "from": "human:a", "from_size": 10_000});
    assert_eq!(house.code("audit.submit_to_scitt", too_far), -32602);
}

#[test]
fn a_recorded_checkpoint_carries_the_signed_head_of_what_was_before_it() {
    let mut house = house(Commits::Always);
    let (_, own) = keys(&mut house);
    let before = house.log(W).len();
    let answer = house.ok("audit.checkpoint", json!({"workspace": W, "from": "human:a"}));
    let (head, more) = verify_checkpoint(answer["checkpoint"]["note"].as_str().unwrap(), &own).unwrap();
    assert_eq!(head.size, before as u64);
    let chain = format!("chain {before} {}", answer["checkpoint"]["head"].as_str().unwrap());
    assert_eq!(more, [chain], "the head and the number of entries are signed as well");
}

#[test]
fn an_entry_that_was_altered_in_the_store_gets_no_receipt_and_neither_do_those_beside_it() {
    let mut house = house(Commits::AndReopen);
    grow(&mut house, 300);
    let entries = &mut house.store.0.get_mut(W).unwrap().entries;
    entries[120].record = entries[120].record.replace("\"k\"", "\"j\"");
    for (from, to) in [(120, 121), (100, 101), (10, 130)] {
        let params = json!({"workspace": W, "from": "human:a", "range": {"from_seq": from, "to_seq": to}});
        let error = house.call("audit.submit_to_scitt", params).unwrap_err();
        assert_eq!(error["code"], -32080, "{error}");
    }
    check(&mut house, 280, 290);
}

#[test]
fn the_coordinator_verifies_its_own_receipts_and_refuses_every_other() {
    let mut house = house(Commits::Always);
    grow(&mut house, 20);
    let receipts = submit(&mut house, json!({}))["receipts"].clone();
    let good = receipts[5]["receipt"].clone();
    let verified = house.ok("audit.verify_receipt", json!({"receipt": good}));
    assert_eq!(
        (&verified["verified"], &verified["seq"], &verified["workspace"]),
        (&json!(true), &json!(5), &json!(W))
    );
    let flipped = |name: &str, place: usize| {
        let mut changed = bytes(&good[name]);
        let place = place % changed.len();
        changed[place] ^= 1;
        let mut receipt = good.clone();
        receipt[name] = json!(STANDARD.encode(changed));
        receipt
    };
    let mut bad = vec![
        json!({}),
        json!({"statement": good["statement"], "receipt": receipts[6]["receipt"]["receipt"]}),
    ];
    bad.push(json!({"statement": 5, "receipt": "!"}));
    for place in (0..600).step_by(29) {
        bad.extend([flipped("statement", place), flipped("receipt", place)]);
    }
    for receipt in bad {
        assert_eq!(house.code("audit.verify_receipt", json!({"receipt": receipt})), -32082);
    }
    house.settings.log = Some(Log::of_key(SigningKey::from_seed(&[8; 32])));
    assert_eq!(house.code("audit.verify_receipt", json!({"receipt": good})), -32082, "another Coordinator");
}

/// An exported file whose entries carry their receipts.
fn exported(house: &mut House, alter: impl Fn(usize, &mut Value)) -> Vec<String> {
    let entries = house.log(W);
    let receipts = submit(house, json!({}))["receipts"].clone();
    let head =
        house.ok("workspace.describe", json!({"workspace": W}))["evidence_head"].as_str().map(str::to_owned);
    let mut lines = vec![header_line(&Header {
        format: choir_chap::verify::FORMAT.to_owned(),
        workspace: W.to_owned(),
        exported_at: "2026-10-01T00:00:00.000Z".to_owned(),
        first_seq: 0,
        signatures_required: false,
    })];
    for (seq, entry) in entries.iter().enumerate() {
        let mut line: Value = serde_json::from_str(&entry_to_wire(entry)).unwrap();
        let receipt = &receipts[seq]["receipt"];
        let transparent =
            attach_receipts(&bytes(&receipt["statement"]), &[bytes(&receipt["receipt"])]).unwrap();
        line["receipt"] = json!(STANDARD.encode(transparent));
        alter(seq, &mut line);
        lines.push(line.to_string());
    }
    lines.push(trailer_line(&Trailer { entries: entries.len() as u64, head }));
    lines
}

fn judged(lines: &[String], key: LogKey) -> choir_chap::verify::Report {
    let mut verifier = Verifier::new(Some(receipt_check(key)));
    for line in lines {
        verifier.line(line).unwrap();
    }
    verifier.finish()
}

#[test]
fn an_exported_log_with_receipts_is_verified_offline_and_a_moved_receipt_is_told() {
    let mut house = house(Commits::Always);
    grow(&mut house, 12);
    let (key, _) = keys(&mut house);
    let report = judged(&exported(&mut house, |_, _| {}), key.clone());
    assert_eq!(
        (report.receipts.present, report.receipts.good, report.receipts.bad),
        (12, 12, 0),
        "{report:?}"
    );
    assert_ne!(report.verdict, Verdict::Broken, "{report:?}");
    let other = exported(&mut house, |_, _| {});
    let stolen: Value = serde_json::from_str(&other[3]).unwrap();
    let report = judged(
        &exported(&mut house, |seq, line| {
            if seq == 5 {
                line["receipt"] = stolen["receipt"].clone()
            }
        }),
        key,
    );
    assert_eq!((report.receipts.good, report.receipts.bad, report.verdict), (11, 1, Verdict::Broken));
    let stranger = Log::of_key(SigningKey::from_seed(&[9; 32])).public();
    assert_eq!(judged(&other, stranger).receipts.good, 0);
}

#[test]
fn a_redacted_entry_keeps_its_receipt_and_offline_it_shows_that_the_erased_record_was_the_registered_one() {
    let mut house = house(Commits::Always);
    grow(&mut house, 12);
    let (key, _) = keys(&mut house);
    let before = submit(&mut house, json!({}))["receipts"][5]["receipt"]["statement"].clone();
    house.ok("audit.redact", json!({"workspace": W, "from": "human:a", "seq": 5, "reason": "privacy"}));
    let after = submit(&mut house, json!({}))["receipts"][5]["receipt"]["statement"].clone();
    assert_eq!(before, after, "the statement that was registered is made again from the record's hash");
    let export = house.ok("audit.export", json!({"workspace": W, "from": "human:a"}));
    let withheld = |seq: usize, line: &mut Value| {
        let receipt = line["receipt"].take();
        *line = export["entries"][seq].clone();
        line["receipt"] = receipt;
    };
    let file = exported(&mut house, withheld);
    let report = judged(&file, key.clone());
    assert_eq!((report.redacted, report.receipts.good, report.fault_count), (1, 13, 0), "{report:?}");
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert!(
        report.notes.iter().any(|note| note.starts_with("redacted: 1; their hashes were taken as given"))
    );
    let other = exported(&mut house, |seq, line| {
        withheld(seq, line);
        if seq == 5 {
            line["record_digest"] = json!(format!("sha256:{}", "0".repeat(64)));
        }
    });
    assert_eq!(judged(&other, key).verdict, Verdict::Broken, "another hash than the registered one");
}

/// The export of the whole log, as the lines of a file.
fn file(house: &mut House) -> Vec<String> {
    let (mut lines, mut from, mut entries) = (Vec::new(), 0, 0);
    loop {
        let params = json!({"workspace": W, "from": "human:a", "range": {"from_seq": from}});
        let page = house.ok("audit.export", params);
        if lines.is_empty() {
            lines.push(page["header"].to_string());
        }
        lines.extend(page["entries"].as_array().unwrap().iter().map(Value::to_string));
        entries += page["trailer"]["entries"].as_u64().unwrap();
        from = page["next_seq"].as_u64().unwrap();
        if page["done"] == true {
            lines.push(json!({"trailer": {"entries": entries, "head": page["trailer"]["head"]}}).to_string());
            return lines;
        }
    }
}

fn compared(lines: &[String], key: &LogKey, saved: Option<&str>) -> choir_chap::verify::Report {
    let mut verifier = Verifier::new(Some(receipt_check(key.clone())))
        .with_checkpoints(key.clone(), saved.map(str::to_owned));
    for line in lines {
        verifier.line(line).unwrap();
    }
    verifier.finish()
}

fn saved(house: &mut House) -> String {
    let answer = submit(house, json!({"range": {"from_seq": 0, "to_seq": 0}}));
    answer["checkpoint"].as_str().unwrap().to_owned()
}

#[test]
fn every_thousand_entries_the_coordinator_signs_a_checkpoint_that_holds_offline() {
    let mut house = house(Commits::Lazily);
    grow(&mut house, 2_100);
    let log = house.log(W);
    let own: Vec<u64> =
        log.iter().filter(|entry| entry.method == "audit.checkpoint").map(|entry| entry.seq).collect();
    assert_eq!(own, [1_000, 2_000]);
    assert_eq!(log[1_000].from.as_deref(), Some("service:coordinator"));
    assert_eq!(house.ok("audit.verify_chain", json!({"workspace": W}))["ok"], true);
    let (key, _) = keys(&mut house);
    let lines = file(&mut house);
    let report = compared(&lines, &key, None);
    assert_eq!((report.checkpoints.good, report.checkpoints.bad), (2, 0), "{report:?}");
    assert_eq!(report.verdict, Verdict::Verified, "{report:?}");
    let stranger = Log::of_key(SigningKey::from_seed(&[9; 32])).public();
    assert_eq!(compared(&lines, &stranger, None).checkpoints.bad, 2);
    check(&mut house, 995, 1_005);
}

#[test]
fn without_the_profile_no_checkpoints_are_signed() {
    let mut house = House::new(Settings { log: Some(log()), enable_chain: true, ..Settings::default() });
    house.ok("workspace.create", json!({"workspace": W}));
    house
        .ok("participant.join", json!({"workspace": W, "from": "human:a", "type": "human", "role": "admin"}));
    grow(&mut house, 1_010);
    assert_eq!(house.log(W).len(), 1_010);
}

#[test]
fn a_file_is_compared_with_a_checkpoint_that_was_saved_earlier() {
    let mut house = house(Commits::Always);
    grow(&mut house, 40);
    let (key, _) = keys(&mut house);
    let early = saved(&mut house);
    let same = compared(&file(&mut house), &key, Some(&early));
    let of = |report: &choir_chap::verify::Report| report.checkpoints.saved.clone().unwrap();
    assert_eq!(
        (same.verdict, of(&same).entries, of(&same).chain),
        (Verdict::Verified, 40, Some(true)),
        "{same:?}"
    );
    grow(&mut house, 60);
    let late = saved(&mut house);
    let grown = file(&mut house);
    assert_eq!(of(&compared(&grown, &key, Some(&early))).chain, Some(true));
    // With receipts the tree is rebuilt as well.
    let receipts = exported(&mut house, |_, _| {});
    let report = compared(&receipts, &key, Some(&early));
    assert_eq!(
        (of(&report).chain, of(&report).root, report.fault_count),
        (Some(true), Some(true), 0),
        "{report:?}"
    );

    // Cut off at its end, with a trailer that says so.
    let mut short = grown[..50].to_vec();
    let head = serde_json::from_str::<Value>(&grown[50]).unwrap()["prev_hash"].clone();
    short.push(json!({"trailer": {"entries": 49, "head": head}}).to_string());
    assert_eq!(compared(&short, &key, None).fault_count, 0, "it is whole by itself");
    let cut = compared(&short, &key, Some(&late));
    assert_eq!((cut.verdict, of(&cut).chain), (Verdict::Broken, Some(false)), "{cut:?}");
    assert_eq!(compared(&short, &key, Some(&early)).fault_count, 0);

    // Another history of the same length, by whoever holds the database: whole by itself too.
    let mut other = self::house(Commits::Always);
    other.ok(
        "task.create",
        json!({"workspace": W, "from": "human:a", "kind": "z", "assignee": "human:a", "input": {}}),
    );
    grow(&mut other, 60);
    let rewritten = file(&mut other);
    assert_eq!(compared(&rewritten, &key, None).fault_count, 0);
    for checkpoint in [&early, &late] {
        let report = compared(&rewritten, &key, Some(checkpoint));
        assert_eq!((report.verdict, of(&report).chain), (Verdict::Broken, Some(false)), "{report:?}");
    }
    // Not this workspace's, or not this Coordinator's, or not signed.
    for odd in [early.replace("40", "41"), "nothing".to_owned(), early.replace("wsp_log", "wsp_lag")] {
        let report = compared(&grown, &key, Some(&odd));
        assert_eq!((report.verdict, &report.checkpoints.saved), (Verdict::Broken, &None), "{report:?}");
    }
    let stranger = Log::of_key(SigningKey::from_seed(&[9; 32])).public();
    assert_eq!(compared(&grown, &stranger, Some(&early)).verdict, Verdict::Broken);
}

#[test]
fn a_log_begins_where_the_profile_is_advertised_and_does_not_stop_when_it_is_not() {
    let mut house = House::new(Settings { log: Some(log()), ..Settings::default() });
    house.ok("workspace.create", json!({"workspace": W}));
    house
        .ok("participant.join", json!({"workspace": W, "from": "human:a", "type": "human", "role": "admin"}));
    let profiles = |house: &mut House, list: Value| {
        house.ok("workspace.set_profiles", json!({"workspace": W, "from": "human:a", "profiles": list}));
    };
    profiles(&mut house, json!(["audit-scitt/1.0"]));
    profiles(&mut house, json!(["core/1.0"]));
    grow(&mut house, 8);
    profiles(&mut house, json!(["audit-scitt/1.0"]));
    let answer = submit(&mut house, json!({}));
    assert_eq!(answer["from_seq"], 2);
    assert_eq!(answer["receipts"].as_array().unwrap().len(), 7);
    assert_eq!(answer["receipts"][0]["seq"], 2);
    house.ok("audit.verify_receipt", json!({"receipt": answer["receipts"][0]["receipt"]}));
}

#[test]
fn workspaces_of_strange_names_have_logs_of_different_names() {
    let key = log().public();
    let long = "x".repeat(250);
    let names = ["a", "a/b", "a b", "a+b", "\u{e9}", long.as_str(), "sha256-a"];
    let origins: std::collections::BTreeSet<String> =
        names.iter().map(|name| workspace_key(&key, name).unwrap().origin.as_str().to_owned()).collect();
    assert_eq!(origins.len(), names.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn whatever_the_sizes_receipts_and_growth_hold(size in 2usize..560, from in 0usize..560, old in 0u64..560) {
        let mut house = house(Commits::Lazily);
        grow(&mut house, size);
        let from = from.min(size - 1);
        check(&mut house, from, (from + 5).min(size));
        let old = old.min(size as u64);
        let answer = submit(&mut house, json!({"range": {"from_seq": 0, "to_seq": 0}, "from_size": old}));
        prop_assert!(answer["consistency"].is_string());
    }
}
