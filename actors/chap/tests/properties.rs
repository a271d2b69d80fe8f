//! What holds for every call there is: the table of methods makes them up.

#![allow(clippy::unwrap_used, reason = "a failure here is the test's failure")]

mod support;

use choir_chap::evidence::{GENESIS, link, take_apart};
use choir_chap::{COMMON, Settings, Shape, Workspace, methods};
use choir_messages::chap::{Change, ErasedRecord};
use choir_messages::time::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::random::{PEOPLE, Rng, call, furnish, params};
use support::{Commits, House, MapStore};

/// Values of every type, of which at least one fits no shape.
fn odd_values() -> Vec<Value> {
    vec![
        json!(true),
        json!(0),
        json!(-1),
        json!(7.0),
        json!("x"),
        json!(""),
        json!("\u{0}"),
        json!([]),
        json!([1, "x"]),
        json!({}),
        json!({"a": {"b": []}}),
        json!("human:x"),
        json!("2026-01-01T00:00:00Z"),
        json!([[]]),
        json!([{}]),
        json!(9_007_199_254_740_991_u64),
    ]
}

/// A house where much has happened.
fn lived_in(seed: u64, calls: usize) -> House {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    let mut rng = Rng(seed);
    for _ in 0..calls {
        house.now = Timestamp::from_millis(house.now.millis() + 500);
        let (method, params) = call(&house, &mut rng);
        if !matches!(method, "workspace.close" | "workspace.pause" | "participant.leave" | "workspace.evict")
        {
            let _ = house.call(method, params);
        }
    }
    house
}

#[test]
fn a_wrong_type_in_any_field_of_any_method_is_refused_and_changes_nothing() {
    let mut house = lived_in(11, 150);
    let mut rng = Rng(5);
    let (mut tried, mut refused) = (0, 0);
    for method in methods() {
        for param in COMMON.iter().chain(method.params) {
            for odd in odd_values() {
                let mut params = params(&house, &mut rng, method);
                params.insert("from".to_owned(), json!(PEOPLE[0]));
                let fits = param.shape.fits(&odd);
                // A repeat is answered with the first answer before anything else is looked at.
                params.remove("idempotency_key");
                params.insert(param.name.to_owned(), odd.clone());
                // A new workspace is made, where a method makes one, under a name that is free.
                if method.opening && param.name != "workspace" {
                    params.insert("workspace".to_owned(), json!("wsp_new"));
                }
                let before = house.store.clone();
                let answer = house.call(method.name, Value::Object(params.clone()));
                tried += 1;
                let code = answer.as_ref().err().and_then(|error| error["code"].as_i64());
                assert_ne!(code, Some(-32603), "{} {params:?}", method.name);
                if fits {
                    house = replaced(&house, before);
                    continue;
                }
                // A sender who is no text is no member; everything else is a wrong param. A method that is switched
                // off, or a read that looks no further, says so first.
                let Some(code) = code else { panic!("{} took {params:?}", method.name) };
                let known = if param.name == "from" { [-32602, -32011] } else { [-32602, -32602] };
                if code == -32601 {
                    continue;
                }
                assert!(known.contains(&code), "{} answers {code} to {params:?}", method.name);
                assert!(house.store == before, "{} changed something on {params:?}", method.name);
                refused += 1;
            }
        }
    }
    assert!(tried > 2_000 && refused > 1_000, "{tried} tried, {refused} refused");
}

fn replaced(house: &House, store: MapStore) -> House {
    let mut fresh = House::new(house.settings.clone());
    fresh.now = house.now;
    fresh.salt = house.salt;
    fresh.store = store;
    fresh
}

/// The head that a log comes to by itself.
fn replay(house: &mut House) -> Option<String> {
    let mut head = Some(GENESIS.to_owned());
    for (place, entry) in house.log("wsp_a").iter().enumerate() {
        assert_eq!(entry.seq, place as u64);
        // After an erased entry the link is known to the next one alone.
        if head.is_some() {
            assert_eq!(entry.prev_hash, head);
        }
        if ErasedRecord::read(&entry.record).is_some() {
            head = None;
            continue;
        }
        assert_eq!(
            take_apart(&entry.record).map(|(_, refused)| refused),
            Some(entry.refused),
            "{}",
            entry.record
        );
        head = entry.prev_hash.as_ref().map(|previous| link(&entry.record, previous));
    }
    head
}

/// One call of a sequence, or the timers firing.
type Move = (Timestamp, Option<(&'static str, Value)>);

/// Makes a sequence up while playing it.
fn play(seed: u64, calls: usize) -> (House, Vec<Move>, Vec<Value>) {
    let mut house = House::new(Settings::default());
    furnish(&mut house);
    let mut rng = Rng(seed);
    let (mut moves, mut answers) = (Vec::new(), Vec::new());
    for number in 0..calls {
        let now = Timestamp::from_millis(house.now.millis() + rng.next() % 20_000);
        let what = if number % 17 == 16 { None } else { Some(call(&house, &mut rng)) };
        answers.push(make(&mut house, now, what.clone()));
        moves.push((now, what));
    }
    (house, moves, answers)
}

fn make(house: &mut House, now: Timestamp, what: Option<(&'static str, Value)>) -> Value {
    house.now = now;
    let Some((method, params)) = what else {
        house.timers(None);
        return Value::Null;
    };
    let answer = house.call(method, params.clone()).unwrap_or_else(|error| error);
    assert_ne!(answer["code"], -32603, "{method} {params}: {answer}");
    answer
}

/// Plays a sequence again in another house.
fn replayed(commits: Commits, moves: &[Move]) -> (House, Vec<Value>) {
    let mut house = House::new(Settings::default());
    house.commits = commits;
    furnish(&mut house);
    let answers = moves.iter().map(|(now, what)| make(&mut house, *now, what.clone())).collect();
    house.flush("wsp_a");
    (house, answers)
}

/// A workspace opened from what the first changes stored.
fn opened_after(changes: &[Change]) -> (MapStore, Workspace) {
    let mut store = MapStore::default();
    changes.iter().for_each(|change| store.commit(change));
    let workspace = Workspace::open("wsp_a", &store.open("wsp_a").unwrap()).unwrap();
    (store, workspace)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn after_any_sequence_the_chain_verifies_and_the_log_replays_to_the_head(seed in any::<u64>()) {
        let (mut house, _, _) = play(seed, 120);
        let head = replay(&mut house);
        let (_, workspace) = opened_after(&house.changes);
        prop_assert_eq!(workspace.meta().unwrap().head.clone(), head.clone());
        if workspace.meta().unwrap().state == choir_chap::WorkspaceState::Active {
            let verdict = house.ok("audit.verify_chain", json!({"workspace": "wsp_a"}));
            prop_assert_eq!(&verdict["status"], "verified");
            prop_assert_eq!(verdict["chain_head"].as_str().map(str::to_owned), head);
        }
    }

    #[test]
    fn a_crash_between_any_two_calls_changes_no_answer_and_nothing_stored(seed in any::<u64>()) {
        let (kept, moves, answers) = play(seed, 80);
        let (reopened, again) = replayed(Commits::AndReopen, &moves);
        prop_assert_eq!(&answers, &again);
        prop_assert!(kept.store == reopened.store);
        prop_assert_eq!(&kept.changes, &reopened.changes);
        // Nor does it matter how many calls are stored together.
        let (merged, again) = replayed(Commits::Lazily, &moves);
        prop_assert_eq!(answers, again);
        prop_assert!(kept.store == merged.store);
        prop_assert!(merged.changes.len() < kept.changes.len());
    }

    #[test]
    fn changes_cut_off_anywhere_leave_a_workspace_that_opens_to_the_same_state(seed in any::<u64>(), cut in 0usize..200) {
        let (house, _, _) = play(seed, 60);
        let whole = house.changes.clone();
        let cut = 6.max(cut % whole.len());
        let (store, workspace) = opened_after(&whole[..cut]);
        prop_assert_eq!(workspace.version(), whole[cut - 1].version_after);
        prop_assert_eq!(workspace.meta().unwrap().entries, store.0["wsp_a"].entries.len() as u64);
        prop_assert_eq!(workspace.meta().unwrap().notices, store.0["wsp_a"].notices.len() as u64);
        // And merged changes store the same as one after the other.
        let mut merged = MapStore::default();
        let mut one = whole[0].clone();
        for change in &whole[1..cut] {
            choir_chap::merge(&mut one, change.clone());
        }
        merged.commit(&one);
        prop_assert!(merged == store);
    }

    #[test]
    fn any_params_at_all_never_reach_an_internal_error(seed in any::<u64>()) {
        let mut house = lived_in(seed, 25);
        let mut rng = Rng(seed);
        for method in methods() {
            let mut params = params(&house, &mut rng, method);
            for param in method.params {
                if rng.chance(20) {
                    params.insert(param.name.to_owned(), rng.pick(&odd_values()).clone());
                }
            }
            if rng.chance(30) {
                params.remove(method.params.first().map_or("from", |param| param.name));
            }
            let before = house.store.clone();
            let entries = house.log("wsp_a").len();
            if let Err(error) = house.call(method.name, Value::Object(params.clone())) {
                prop_assert_ne!(&error["code"], -32603, "{} {:?}", method.name, params);
                // A refusal is at most one entry.
                if house.log("wsp_a").len() == entries {
                    prop_assert!(house.store == before, "{} {:?}", method.name, params);
                } else {
                    prop_assert_eq!(house.log("wsp_a").len(), entries + 1);
                    prop_assert!(house.log("wsp_a")[entries].refused.is_some());
                    let (old, new) = (&before.0["wsp_a"], &house.store.0["wsp_a"]);
                    prop_assert_eq!(&old.objects, &new.objects);
                    prop_assert_eq!(&old.notices, &new.notices);
                }
            }
        }
    }

    #[test]
    fn no_bytes_at_all_panic_or_reach_an_internal_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut house = House::new(Settings::default());
        let answer = house.bytes(&bytes);
        prop_assert_ne!(answer.refusal().map(|refusal| refusal.code), Some(-32603));
        prop_assert!(serde_json::from_slice::<Value>(&answer.to_bytes()).is_ok());
    }
}

#[test]
fn every_ref_in_the_table_is_loaded_before_the_step() {
    // A step that only looks at what its params refer to asks for nothing more.
    let mut house = lived_in(3, 120);
    house.commits = Commits::AndReopen;
    for method in
        methods().filter(|method| method.params.iter().any(|param| matches!(param.shape, Shape::Ref(_))))
    {
        let mut rng = Rng(9);
        let params = params(&house, &mut rng, method);
        let _ = house.call(method.name, Value::Object(params));
    }
}
