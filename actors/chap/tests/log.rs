//! The log beyond reading it: ranges checked, checkpoints, redactions that leave the chain whole, exports that verify
//! offline, and statements for a transparency service.

mod support;

use choir_chap::evidence::{GENESIS, link};
use choir_chap::limits::{PAGE_ENTRIES, REDACTION_REASON_BYTES, REDACTIONS};
use choir_chap::verify::{Report, Verdict, Verifier};
use choir_chap::{Settings, codes};
use choir_messages::chap::{Entry, ErasedRecord};
use serde_json::{Value, json};
use support::House;
use support::random::{PEOPLE, PROFILES, furnish};

const ANN: &str = PEOPLE[0];
const BOB: &str = PEOPLE[1];
const CANARY: &str = "a name that must go";

fn by(from: &str, mut params: Value) -> Value {
    params["workspace"] = json!("wsp_a");
    params["from"] = json!(from);
    params
}

fn say(house: &mut House, text: &str) -> u64 {
    house.ok("notify.message", by(BOB, json!({"to": ANN, "text": text})));
    house.store.0.get("wsp_a").map_or(0, |stored| stored.entries.len() as u64 - 1)
}

fn house() -> House {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    for text in ["one", "two", "three"] {
        say(&mut house, text);
    }
    house
}

fn verify(house: &mut House, range: Value) -> Value {
    house.ok("audit.verify", json!({"workspace": "wsp_a", "range": range}))
}

/// Alters a stored entry, behind the rules' back.
fn tamper(house: &mut House, seq: usize, change: impl Fn(&mut Entry)) {
    house.flush("wsp_a");
    change(&mut house.store.0.get_mut("wsp_a").expect("it is there").entries[seq]);
}

/// A page of an export as the lines of a file.
fn lines(page: &Value) -> Vec<String> {
    let mut lines = vec![page["header"].to_string()];
    lines.extend(page["entries"].as_array().into_iter().flatten().map(Value::to_string));
    lines.push(json!({"trailer": page["trailer"]}).to_string());
    lines
}

fn report(lines: &[String]) -> Report {
    let mut verifier = Verifier::new(None);
    for line in lines {
        verifier.line(line).expect("it is a log");
    }
    verifier.finish()
}

#[test]
fn a_range_is_checked_against_the_entries_around_it() {
    let mut house = house();
    let whole = verify(&mut house, json!({}));
    assert_eq!(
        (&whole["ok"], &whole["entries_checked"], &whole["first_link"]),
        (&json!(true), &json!(9), &json!("zeros"))
    );
    let head = house.ok("workspace.describe", json!({"workspace": "wsp_a"}))["evidence_head"].clone();
    assert_eq!(whole["head"], head);
    assert_eq!(
        (&whole["checked"], &whole["not_checked"]),
        (&json!(["chain"]), &json!(["signatures", "receipts"]))
    );
    let part = verify(&mut house, json!({"from_seq": 3, "to_seq": 6}));
    assert_eq!(
        (&part["entries_checked"], &part["first_link"], &part["last_link"]),
        (&json!(3), &json!("as stored"), &json!("the next entry"))
    );
    assert_eq!(part["head"], json!(house.log("wsp_a")[6].prev_hash));
    let top = house.ok("audit.verify", json!({"workspace": "wsp_a", "from_seq": 8, "to_seq": 4000}));
    assert_eq!((&top["entries_checked"], &top["last_link"]), (&json!(1), &json!("the stored head")));
    let empty = verify(&mut house, json!({"from_seq": 4, "to_seq": 4}));
    assert_eq!((&empty["ok"], &empty["reason"]), (&json!(false), &json!("empty_range")));
    let backwards = json!({"workspace": "wsp_a", "from_seq": 5, "to_seq": 4});
    assert_eq!(house.code("audit.verify", backwards), codes::PARAMS);
}

#[test]
fn an_altered_entry_is_found_by_every_range_that_holds_it_and_by_no_other() {
    for (from, to, found) in [(0, 9, true), (5, 6, true), (5, 9, true), (6, 9, false), (0, 5, false)] {
        let mut house = house();
        tamper(&mut house, 5, |entry| entry.record = entry.record.replace("service:mill", "service:mall"));
        let answer =
            house.call("audit.verify", json!({"workspace": "wsp_a", "from_seq": from, "to_seq": to}));
        assert_eq!(answer.is_err(), found, "{from}..{to}: {answer:?}");
    }
    // The last entry has no entry after it; the stored head protects it.
    let mut house = house();
    tamper(&mut house, 8, |entry| entry.record = entry.record.replace("three", "seven"));
    let refused =
        house.call("audit.verify", json!({"workspace": "wsp_a", "from_seq": 7})).expect_err("it was altered");
    assert_eq!(refused["message"], "chain_head mismatch: replay does not match stored head");
}

#[test]
fn a_log_that_was_chained_later_says_which_part_of_a_range_was_not_evaluated() {
    let mut house = House::new(Settings::default());
    house.ok("workspace.create", json!({"workspace": "wsp_a"}));
    house
        .ok("participant.join", json!({"workspace": "wsp_a", "from": ANN, "type": "human", "role": "admin"}));
    house.ok("participant.join", json!({"workspace": "wsp_a", "from": BOB, "type": "human"}));
    assert_eq!(house.code("audit.verify", json!({"workspace": "wsp_a"})), codes::PARAMS);
    house.ok("workspace.set_profiles", by(ANN, json!({"profiles": PROFILES})));
    say(&mut house, "chained");
    let whole = verify(&mut house, json!({}));
    assert_eq!(
        (&whole["status"], &whole["ok"], &whole["reason"]),
        (&json!("not_evaluated"), &json!(false), &json!("unchained_prefix"))
    );
    assert_eq!(
        (&whole["entries_checked"], &whole["entries_unchecked"], &whole["checked_from_seq"]),
        (&json!(2), &json!(3), &json!(3))
    );
    assert_eq!(verify(&mut house, json!({"from_seq": 3}))["first_link"], "zeros");
    assert_eq!(verify(&mut house, json!({"from_seq": 0, "to_seq": 2}))["head"], Value::Null);
}

#[test]
fn a_checkpoint_names_the_log_before_it_and_its_own_entry_says_the_same() {
    let mut house = house();
    let checkpoint = house.ok("audit.checkpoint", by(BOB, json!({})))["checkpoint"].clone();
    let own = house.log("wsp_a").pop().expect("its entry");
    assert_eq!(own.method, "audit.checkpoint");
    assert_eq!((&checkpoint["entries"], &checkpoint["head"]), (&json!(own.seq), &json!(own.prev_hash)));
    assert_eq!(checkpoint["workspace"], "wsp_a");
}

#[test]
fn a_redacted_entry_is_erased_from_store_and_reads_and_the_chain_still_verifies() {
    let mut house = house();
    let seq = say(&mut house, CANARY);
    say(&mut house, "after");
    let redact = |seq: u64, reason: &str| json!({"seq": seq, "reason": reason});
    assert_eq!(house.code("audit.redact", by(BOB, redact(seq, "privacy"))), codes::NOT_AUTHORISED);
    assert_eq!(house.code("audit.redact", by(ANN, redact(seq, ""))), codes::PARAMS);
    assert_eq!(house.code("audit.redact", by(ANN, redact(4000, "x"))), codes::PARAMS);
    assert_eq!(house.code("audit.redact", by(ANN, json!({"reason": "x"}))), codes::PARAMS);
    let reason = "erasure request ".repeat(20);
    let done = house.ok("audit.redact", by(ANN, redact(seq, &reason)));
    let by_seq = done["by_seq"].as_u64().expect("a number");
    assert_eq!(house.log("wsp_a").len() as u64, by_seq + 1);
    assert!(!format!("{:?}", house.store.0["wsp_a"].entries).contains(CANARY), "it is gone from the store");
    assert_eq!(house.code("audit.redact", by(ANN, redact(seq, "again"))), codes::PARAMS);
    assert_eq!(
        house.code("audit.redact", by(ANN, redact(by_seq, "hush"))),
        codes::PARAMS,
        "a redaction stays readable"
    );

    let page = house.ok("audit.read", json!({"workspace": "wsp_a"}));
    assert!(!page.to_string().contains(CANARY), "{page}");
    let entry = &page["entries"][seq as usize];
    let mut names: Vec<&String> = entry.as_object().into_iter().flatten().map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(names, ["arrived", "method", "prev_hash", "record_digest", "redacted", "seq"]);
    assert_eq!((&entry["redacted"]["by_seq"], &entry["method"]), (&json!(by_seq), &json!("notify.message")));
    assert_eq!(entry["redacted"]["reason"].as_str().map(str::len), Some(REDACTION_REASON_BYTES));
    assert_eq!(page["entries"][by_seq as usize]["envelope"]["params"]["reason"], reason.as_str());
    let filtered =
        json!({"workspace": "wsp_a", "range": {"from_seq": seq}, "filter": {"method": "notify.message"}});
    assert!(!house.ok("audit.read", filtered).to_string().contains(CANARY));
    assert!(!house.ok("audit.submit_to_scitt", by(ANN, json!({}))).to_string().contains(CANARY));
    let export = house.ok("audit.export", by(ANN, json!({})));
    assert!(!export.to_string().contains(CANARY));

    let verified = house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}));
    assert_eq!((&verified["ok"], &verified["entries_redacted"]), (&json!(true), &json!(1)));
    assert_eq!(verify(&mut house, json!({"from_seq": seq, "to_seq": seq + 1}))["ok"], true);
    let report = report(&lines(&export));
    assert_eq!(
        (report.verdict, report.redacted, report.fault_count),
        (Verdict::Incomplete, 1, 0),
        "{report:?}"
    );
    assert!(report.notes.iter().any(|note| note.contains("redacted")));
}

#[test]
fn whoever_erases_an_entry_in_the_store_without_a_redaction_on_the_log_is_found_out() {
    let mut house = house();
    let seq = say(&mut house, CANARY);
    let by_seq = say(&mut house, "after");
    house.ok("audit.redact", by(ANN, json!({"seq": by_seq, "reason": "privacy"})));
    let redaction = by_seq + 1;
    say(&mut house, "more");
    let broken = |house: &mut House| house.code("audit.verify_chain", json!({"workspace": "wsp_a"}));
    let good = house.store.clone();
    // No entry of that number is a redaction, it is one of another entry, or it is none at all.
    for by in [seq + 1, redaction, redaction + 1, seq, 0] {
        house.store = good.clone();
        tamper(&mut house, seq as usize, |entry| {
            entry.record = ErasedRecord::of(&entry.record, by).to_string()
        });
        assert_eq!(broken(&mut house), codes::PARAMS, "erased by {by}");
    }
    house.store = good.clone();
    assert_eq!(house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}))["ok"], true);
    // A redaction that is taken back does not bring the content back, and shows.
    tamper(&mut house, redaction as usize, |entry| {
        entry.record = entry.record.replace("privacy", "a mistake")
    });
    assert_eq!(broken(&mut house), codes::PARAMS);
}

#[test]
fn a_call_that_reads_like_an_erased_record_is_an_ordinary_entry() {
    let mut house = house();
    let digest = "0".repeat(64);
    let call = json!({
        "erased": {"by_seq": 99, "digest": format!("sha256:{digest}")}, "jsonrpc": "2.0", "id": "m", "method": "task.create",
        "params": {"workspace": "wsp_a", "from": ANN, "kind": "k", "assignee": ANN, "input": {}},
    });
    house.bytes(call.to_string().as_bytes()).into_result().expect("it is a call");
    let verified = house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}));
    assert_eq!((&verified["ok"], verified.get("entries_redacted")), (&json!(true), None));
    let page = house.ok("audit.read", json!({"workspace": "wsp_a"}));
    let last = page["entries"].as_array().and_then(|all| all.last()).cloned().unwrap_or_default();
    assert_eq!(last["envelope"]["erased"]["by_seq"], 99);
}

#[test]
fn a_redaction_outlives_a_restart_and_there_are_only_so_many() {
    let mut house = house();
    let seq = say(&mut house, CANARY);
    house.ok("audit.redact", by(ANN, json!({"seq": seq, "reason": "privacy"})));
    house.commits = support::Commits::AndReopen;
    say(&mut house, "after");
    assert!(!house.ok("audit.read", json!({"workspace": "wsp_a"})).to_string().contains(CANARY));
    let targets: Vec<u64> = (0..REDACTIONS as u64).map(|_| say(&mut house, "more")).collect();
    house.commits = support::Commits::Always;
    for seq in &targets[1..] {
        house.ok("audit.redact", by(ANN, json!({"seq": seq, "reason": "y"})));
    }
    let refused = house
        .call("audit.redact", by(ANN, json!({"seq": targets[0], "reason": "y"})))
        .expect_err("it is full");
    assert!(refused["message"].as_str().is_some_and(|m| m.starts_with("At most")), "{refused}");
}

#[test]
fn an_export_verifies_offline_and_a_changed_one_does_not() {
    let mut house = house();
    assert_eq!(house.code("audit.export", by("human:eve@e.org", json!({}))), codes::NOT_AUTHORISED);
    let length = house.log("wsp_a").len();
    let export = house.ok("audit.export", by(BOB, json!({})));
    assert_eq!(house.log("wsp_a").len(), length, "an export is a read");
    assert_eq!((&export["done"], &export["next_seq"]), (&json!(true), &json!(length)));
    let file = lines(&export);
    let good = report(&file);
    assert_eq!((good.verdict, good.entries), (Verdict::Verified, length as u64), "{good:?}");
    let changed: Vec<String> = file.iter().map(|line| line.replace("\"two\"", "\"ten\"")).collect();
    assert_eq!(report(&changed).verdict, Verdict::Broken);
    let shorter: Vec<String> =
        file.iter().enumerate().filter(|(n, _)| *n != 4).map(|(_, line)| line.clone()).collect();
    assert_eq!(report(&shorter).verdict, Verdict::Broken);
    let part = house.ok("audit.export", by(BOB, json!({"range": {"from_seq": 2, "to_seq": 5}})));
    let part = report(&lines(&part));
    assert_eq!((part.verdict, part.entries, part.fault_count), (Verdict::Incomplete, 3, 0), "{part:?}");
}

#[test]
fn an_entry_cannot_be_left_out_of_an_export_by_calling_it_redacted() {
    let mut house = house();
    let seq = say(&mut house, CANARY);
    house.ok("audit.redact", by(ANN, json!({"seq": seq, "reason": "privacy"})));
    let by_seq = seq + 1;
    let mut export = house.ok("audit.export", by(ANN, json!({})));
    let withheld = |seq: u64| json!({"by_seq": seq, "reason": "trust me"});
    let victim = export["entries"][6].as_object_mut().expect("an entry");
    victim.remove("envelope");
    victim.insert("redacted".into(), withheld(by_seq));
    let twice = report(&lines(&export));
    assert_eq!(twice.verdict, Verdict::Broken, "one redaction withholds one entry: {twice:?}");
    export["entries"][6]["redacted"] = withheld(8);
    let by_another = report(&lines(&export));
    assert_eq!(by_another.verdict, Verdict::Broken, "entry 8 is no redaction: {by_another:?}");
}

#[test]
fn the_pages_of_a_long_log_join_into_one_file_and_each_is_a_file_by_itself() {
    let mut house = house();
    for number in 0..PAGE_ENTRIES {
        say(&mut house, &number.to_string());
    }
    let first = house.ok("audit.export", by(ANN, json!({})));
    assert_eq!((&first["done"], &first["next_seq"]), (&json!(false), &json!(PAGE_ENTRIES)));
    assert_eq!(first["entries"].as_array().map(Vec::len), Some(PAGE_ENTRIES));
    let second = house.ok("audit.export", by(ANN, json!({"range": {"from_seq": first["next_seq"]}})));
    assert_eq!(second["done"], true);
    for page in [&first, &second] {
        assert_eq!(report(&lines(page)).fault_count, 0);
    }
    let mut joined = lines(&first);
    joined.pop();
    joined.extend(lines(&second)[1..].iter().cloned());
    let total = house.log("wsp_a").len();
    let trailer = json!({"trailer": {"entries": total, "head": second["trailer"]["head"]}}).to_string();
    *joined.last_mut().expect("a trailer") = trailer;
    let whole = report(&joined);
    assert_eq!((whole.verdict, whole.entries), (Verdict::Verified, total as u64), "{whole:?}");
}

#[test]
fn without_a_log_of_its_own_a_coordinator_hands_out_statements_and_takes_no_receipt_for_good() {
    let mut house = house();
    let wanted =
        json!({"workspace": "wsp_a", "range": {"from_seq": 1, "to_seq": 3}, "issuer": "https://e.org"});
    let answer = house.ok("audit.submit_to_scitt", wanted);
    let statements = answer["statements"].as_array().expect("a list");
    assert_eq!(statements.len(), 2);
    let log = house.log("wsp_a");
    assert_eq!(statements[0]["payload"], json!(log[1].record));
    let protected = &statements[1]["protected"];
    assert_eq!(
        (&protected["iss"], &protected["cwt_claims"]["sub"]),
        (&json!("https://e.org"), &json!("wsp_a"))
    );
    assert_eq!(answer.get("receipts"), None);
    assert_eq!(house.code("audit.submit_to_scitt", json!({"workspace": "wsp_none"})), codes::PARAMS);
    assert_eq!(
        house.code("audit.verify_receipt", json!({"receipt": {"a": 1}})),
        codes::SCITT_RECEIPT_INVALID
    );
    for odd in [json!({"receipt": "x"}), json!({}), json!({"receipt": null})] {
        assert_eq!(house.code("audit.verify_receipt", odd), codes::PARAMS);
    }
    house.ok("workspace.set_profiles", by(ANN, json!({"profiles": ["core/1.0"]})));
    assert_eq!(house.code("audit.submit_to_scitt", json!({"workspace": "wsp_a"})), codes::METHOD);
}

#[test]
fn the_head_of_an_export_is_what_its_entries_come_to() {
    let mut house = house();
    let export = house.ok("audit.export", by(ANN, json!({"range": {"to_seq": 4}})));
    let head =
        house.log("wsp_a").iter().take(4).fold(GENESIS.to_owned(), |head, entry| link(&entry.record, &head));
    assert_eq!(export["trailer"], json!({"entries": 4, "head": head}));
}
