//! Every invariant is broken by the table or step made to break it, so that none of them is true of everything.

use super::*;
use crate::manager::Request;
use choir_messages::mail::LockRefused;

fn set(texts: &[&str]) -> LockSet {
    LockSet::canonical(raw(texts))
}

fn raw(texts: &[&str]) -> Vec<LockSpec> {
    let lock = |text: &&str| {
        let (key, mode) = text.rsplit_once(':').unwrap();
        let mode = if mode == "X" { LockMode::X } else { LockMode::S };
        LockSpec { resource: key.parse().unwrap(), mode }
    };
    texts.iter().map(lock).collect()
}

fn call(number: u128) -> InvocationId {
    InvocationId::from_bits(number)
}

fn held(number: u128, owner: &str, texts: &[&str]) -> Held {
    Held { owner: owner.parse().unwrap(), invocation: call(number), set: set(texts), since_ms: 0 }
}

fn waiter(number: u128, owner: &str, texts: &[&str], blocker: u128) -> Waiter {
    Waiter {
        owner: owner.parse().unwrap(),
        invocation: call(number),
        set: set(texts),
        since_ms: 0,
        deadline_ms: 10,
        blocker: call(blocker),
    }
}

fn table(held: Vec<Held>, waiting: Vec<Waiter>) -> LockManager {
    LockManager { held, waiting }
}

fn broken_state(table: &LockManager) -> Vec<&'static str> {
    check_invariants(table).iter().map(|broken| broken.id).collect()
}

fn broken_step(
    before: &LockManager,
    event: &LockEvent,
    now_ms: u64,
    actions: &[Action],
    after: &LockManager,
) -> Vec<&'static str> {
    let step = Step { before, event, now_ms, actions, after };
    let broken = STEP.iter().filter(|invariant| !(invariant.holds)(&step));
    broken.map(|invariant| invariant.id).collect()
}

fn acquire(number: u128, owner: &str, texts: &[&str]) -> LockEvent {
    LockEvent::Acquire(Request {
        owner: owner.parse().unwrap(),
        invocation: call(number),
        locks: raw(texts),
        wait_ms: 10,
    })
}

const fn grant(number: u128, from: Origin) -> Action {
    Action::Grant { invocation: call_const(number), from, waited_ms: 0 }
}

const fn call_const(number: u128) -> InvocationId {
    InvocationId::from_bits(number)
}

#[test]
fn a_table_as_it_should_be_breaks_nothing() {
    let good = table(
        vec![held(1, "core:a", &["workspace:X"]), held(2, "edge", &["file:a:S"])],
        vec![waiter(3, "core:b", &["file:b:X"], 1), waiter(4, "core:b", &["file:b:S"], 3)],
    );
    assert_eq!(broken_state(&good), [""; 0]);
    assert_eq!(broken_state(&LockManager::new()), [""; 0]);
}

#[test]
fn l1_sees_two_holders_that_exclude_each_other() {
    for (one, other) in [
        (held(1, "core:a", &["file:a:X"]), held(2, "core:b", &["file:a:S"])),
        (held(1, "edge", &["workspace:X"]), held(2, "edge", &["file:a:S"])),
        (held(1, "core:a", &["workspace:X"]), held(2, "core:b", &["file:a:S"])),
        (held(1, "core:a", &["workspace:X"]), held(2, "edge", &["file:a:X"])),
        (held(1, "core:a", &["workspace:X"]), held(2, "edge", &["workspace:S"])),
        (held(1, "core:a", &["file:a:X"]), held(2, "edge", &["file:a:S"])),
    ] {
        assert_eq!(broken_state(&table(vec![one, other], vec![])), ["L1"]);
    }
}

#[test]
fn l1_allows_a_dirty_read_only_if_the_core_job_was_there_first() {
    let core = held(1, "core:a", &["workspace:X"]);
    let edge = held(2, "edge", &["file:a:S"]);
    assert_eq!(broken_state(&table(vec![core.clone(), edge.clone()], vec![])), [""; 0]);
    assert_eq!(broken_state(&table(vec![edge, core], vec![])), ["L1"]);
}

#[test]
fn l2_sees_a_set_that_is_empty() {
    assert_eq!(broken_state(&table(vec![held(1, "edge", &[])], vec![])), ["L2"]);
}

#[test]
fn l3_sees_a_call_that_holds_and_waits() {
    let twice = table(vec![held(1, "core:a", &["file:a:X"])], vec![waiter(1, "core:a", &["file:a:X"], 1)]);
    assert_eq!(broken_state(&twice), ["L3"]);
}

#[test]
fn l4_and_l5_see_a_waiter_nobody_is_in_the_way_of() {
    let lost = waiter(2, "core:b", &["file:b:X"], 1);
    assert_eq!(
        broken_state(&table(vec![held(1, "core:a", &["file:a:X"])], vec![lost.clone()])),
        ["L4", "L6"]
    );
    assert_eq!(broken_state(&table(vec![], vec![lost])), ["L4", "L5", "L6"]);
    let dirty = waiter(2, "edge", &["file:b:S"], 1);
    assert_eq!(broken_state(&table(vec![held(1, "core:a", &["workspace:X"])], vec![dirty])), ["L4", "L6"]);
}

#[test]
fn l6_sees_a_blocker_that_is_not_in_the_way() {
    let holders = vec![held(1, "core:a", &["file:a:X"]), held(2, "core:b", &["file:b:X"])];
    let wrong = table(holders.clone(), vec![waiter(3, "core:c", &["file:a:S"], 2)]);
    assert_eq!(broken_state(&wrong), ["L6"]);
    let behind = vec![waiter(3, "core:c", &["file:a:X"], 4), waiter(4, "core:c", &["file:a:X"], 1)];
    assert_eq!(broken_state(&table(holders, behind)), ["L6"]);
}

#[test]
fn l7_sees_every_bound_that_is_passed() {
    let reader = |number: u128| held(number, "core:a", &["file:a:S"]);
    let full = table((0..MAX_REQUESTS as u128).map(reader).collect(), vec![]);
    assert!((STATE[6].holds)(&full));
    let over = table((0..=MAX_REQUESTS as u128).map(reader).collect(), vec![]);
    let queue = (1..=MAX_WAITING as u128 + 1).map(|number| waiter(number, "core:b", &["file:a:X"], 0));
    let long = table(vec![reader(0)], queue.collect());
    let names: Vec<String> = (0..=MAX_LOCKS_PER_SET).map(|name| format!("file:{name}:S")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let wide = table(vec![held(1, "edge", &names)], vec![]);
    for table in [over, long, wide] {
        assert!(!(STATE[6].holds)(&table));
    }
}

#[test]
fn t1_and_t2_see_a_reader_granted_past_a_waiting_writer() {
    let before = table(vec![held(1, "core:a", &["file:a:S"])], vec![waiter(2, "core:b", &["file:a:X"], 1)]);
    let mut after = before.clone();
    after.held.push(held(3, "core:c", &["file:a:S"]));
    let event = acquire(3, "core:c", &["file:a:S"]);
    assert_eq!(broken_step(&before, &event, 0, &[grant(3, Origin::Door)], &after), ["T1", "T2"]);
}

#[test]
fn t1_sees_a_writer_granted_past_a_waiting_reader() {
    let before = table(
        vec![held(1, "core:a", &["browser_tab:X"])],
        vec![waiter(2, "core:b", &["browser_tab:S", "file:a:S"], 1)],
    );
    let mut after = before.clone();
    after.held.push(held(3, "core:c", &["file:a:X"]));
    let event = acquire(3, "core:c", &["file:a:X"]);
    assert_eq!(broken_step(&before, &event, 0, &[grant(3, Origin::Door)], &after), ["T1"]);
}

#[test]
fn t3_sees_a_grant_of_less_than_was_asked_for() {
    let before = LockManager::new();
    let after = table(vec![held(1, "core:a", &["file:a:X"])], vec![]);
    let event = acquire(1, "core:a", &["file:a:X", "file:b:X"]);
    assert_eq!(broken_step(&before, &event, 0, &[grant(1, Origin::Door)], &after), ["T3"]);
    assert_eq!(broken_step(&before, &event, 0, &[grant(1, Origin::Door)], &before), ["T3"]);
}

#[test]
fn t4_sees_requests_that_are_never_answered_or_answered_twice() {
    let before = table(vec![held(1, "core:a", &["file:a:X"])], vec![waiter(2, "core:b", &["file:a:X"], 1)]);
    let gone = table(before.held.clone(), vec![]);
    assert_eq!(broken_step(&before, &LockEvent::Tick, 10, &[], &gone), ["T4"]);
    let refuse = Action::Refuse { invocation: call(2), from: Origin::Queue, why: LockRefused::Void };
    assert_eq!(broken_step(&before, &LockEvent::Tick, 10, &[refuse.clone(), refuse], &gone), ["T4"]);
    assert_eq!(broken_step(&gone, &acquire(3, "core:c", &["file:a:X"]), 0, &[], &gone), ["T4"]);
    let stranger = Action::Refuse { invocation: call(9), from: Origin::Queue, why: LockRefused::Void };
    assert_eq!(broken_step(&gone, &LockEvent::Tick, 0, &[stranger], &gone), ["T4"]);
}

#[test]
fn t5_sees_what_outlives_an_epoch() {
    let before = table(vec![held(1, "core:a", &["file:a:X"])], vec![]);
    assert_eq!(broken_step(&before, &LockEvent::NewEpoch, 0, &[], &before), ["T5", "T7"]);
}

#[test]
fn t6_sees_a_queue_that_changes_its_order() {
    let holder = vec![held(1, "core:a", &["file:a:X"])];
    let one = waiter(2, "core:b", &["file:a:X"], 1);
    let other = waiter(3, "core:c", &["file:a:X"], 1);
    let before = table(holder.clone(), vec![one.clone(), other.clone()]);
    let after = table(holder.clone(), vec![other.clone(), one.clone()]);
    assert_eq!(broken_step(&before, &LockEvent::Tick, 0, &[], &after), ["T6"]);
    let (before, after) = (table(holder.clone(), vec![one.clone()]), table(holder, vec![other, one]));
    assert_eq!(broken_step(&before, &acquire(3, "core:c", &["file:a:X"]), 0, &[], &after), ["T6"]);
}

#[test]
fn t7_sees_a_set_that_is_lost_or_kept_without_cause() {
    let before = table(vec![held(1, "core:a", &["file:a:X"])], vec![]);
    assert_eq!(broken_step(&before, &LockEvent::Tick, 0, &[], &LockManager::new()), ["T7"]);
    let release = LockEvent::Release { invocation: call(1) };
    assert_eq!(broken_step(&before, &release, 0, &[], &before), ["T7"]);
}

#[test]
fn t8_sees_who_waits_past_the_deadline() {
    let late = table(vec![held(1, "core:a", &["file:a:X"])], vec![waiter(2, "core:b", &["file:a:X"], 1)]);
    assert_eq!(broken_step(&late, &LockEvent::Tick, 9, &[], &late), [""; 0]);
    assert_eq!(broken_step(&late, &LockEvent::Tick, 10, &[], &late), ["T8"]);
}

#[test]
fn the_numbers_are_unique_and_in_order() {
    let ids: Vec<&str> =
        STATE.iter().map(|invariant| invariant.id).chain(STEP.iter().map(|invariant| invariant.id)).collect();
    let expected: Vec<String> =
        (1..=STATE.len()).map(|n| format!("L{n}")).chain((1..=STEP.len()).map(|n| format!("T{n}"))).collect();
    assert_eq!(ids, expected);
}
