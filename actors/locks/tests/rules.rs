//! The rules of `choir §9`, one scene each.
#![allow(clippy::unwrap_used)] // In helpers of tests, too, a failed unwrap is a failed test.

mod common;

use choir_locks::{Action, LockEvent, MAX_LOCKS_PER_SET, MAX_REQUESTS, MAX_WAIT_MS, MAX_WAITING, Origin};
use choir_messages::mail::LockRefused;
use common::{Desk, acquire, call, granted, lock};

#[test]
fn readers_share_and_a_writer_is_alone() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "edge", &["file:a:S"]));
    assert!(desk.ask(2, "core:a", &["file:a:S"]));
    assert!(!desk.ask(3, "core:b", &["file:a:X"]));
    assert_eq!(desk.done(1), []);
    assert_eq!(desk.done(2), [3]);
    assert!(!desk.ask(4, "core:a", &["file:a:S"]));
    assert_eq!(desk.done(3), [4]);
}

#[test]
fn core_jobs_write_different_files_at_once() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:refactor-auth", &["file:src/auth.go:X"]));
    assert!(desk.ask(2, "core:write-tests", &["file:src/auth_test.go:X"]));
}

#[test]
fn the_workspace_waits_for_every_file_and_then_keeps_them_out() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "edge", &["file:a:S"]));
    assert!(desk.ask(2, "core:a", &["file:b/c:X"]));
    assert!(!desk.ask(3, "core:b", &["workspace:X"]));
    assert_eq!(desk.done(1), []);
    assert_eq!(desk.done(2), [3]);
    assert!(!desk.ask(4, "core:a", &["file:z:S"]));
    assert_eq!(desk.done(3), [4]);
}

#[test]
fn a_folder_covers_what_lies_under_it() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "edge", &["file:src:S"]));
    assert!(desk.ask(2, "core:a", &["file:srcs/x:X"]));
    assert!(!desk.ask(3, "core:a", &["file:src/deep/x:X"]));
    assert_eq!(desk.done(1), [3]);
    assert!(!desk.ask(4, "edge", &["file:.:S"]), "the workspace's own folder covers every file");
}

#[test]
fn the_staging_area_is_independent_of_the_workspace() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert!(desk.ask(2, "core:b", &["choirtmp:X"]));
    assert!(
        !desk.ask(3, "edge", &["file:.choirtmp/send/a.ogg:X"]),
        "a path there is that area, however it is written"
    );
    assert_eq!(desk.done(2), [3]);
}

#[test]
fn other_namespaces_are_independent() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    for (number, key) in
        ["browser_tab:X", "mem:m:X", "repo:m:X", "net:m:X", "ext:m:X", "ext:n:X"].iter().enumerate()
    {
        assert!(desk.ask(10 + number as u128, "core:b", &[key]), "{key}");
    }
    assert!(!desk.ask(30, "core:c", &["ext:m:S"]));
}

#[test]
fn a_set_is_taken_whole_or_not_at_all() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert!(!desk.ask(2, "core:b", &["file:b:X", "file:a:X"]));
    assert!(desk.ask(3, "core:c", &["file:c:X"]));
    assert_eq!(desk.held(), [1, 3], "the waiter does not hold the part that is free");
    assert_eq!(desk.done(1), [2]);
}

#[test]
fn two_sets_in_crossed_order_do_not_deadlock() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X", "file:b:X"]));
    assert!(!desk.ask(2, "core:b", &["file:b:X", "file:a:X"]));
    assert_eq!(desk.done(1), [2]);
    assert_eq!(desk.done(2), []);
}

#[test]
fn a_waiting_writer_keeps_new_readers_out() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:S"]));
    assert!(!desk.ask(2, "core:b", &["file:a:X"]));
    assert!(!desk.ask(3, "core:c", &["file:a:S"]), "shared with the holder, but behind the writer");
    assert!(desk.ask(4, "core:c", &["file:b:S"]), "not in the writer's way");
    assert_eq!(desk.done(1), [2]);
    assert_eq!(desk.done(2), [3]);
}

#[test]
fn a_stream_of_writers_does_not_starve_a_reader_who_came_first() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert!(!desk.ask(2, "core:b", &["file:a:S"]));
    assert!(!desk.ask(3, "core:a", &["file:a:X"]));
    assert_eq!(desk.done(1), [2]);
    assert_eq!(desk.done(2), [3]);
}

#[test]
fn a_later_request_overtakes_only_where_it_is_in_nobodys_way() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert!(!desk.ask(2, "core:b", &["file:a:X", "browser_tab:X"]));
    assert!(!desk.ask(3, "core:c", &["browser_tab:X"]), "free, but it would delay the one ahead");
    assert!(desk.ask(4, "core:c", &["choirtmp:X"]));
    assert_eq!(desk.done(1), [2]);
    assert_eq!(desk.done(2), [3]);
}

#[test]
fn a_waiter_who_gives_up_lets_those_behind_it_move() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:S"]));
    assert!(!desk.ask(2, "core:b", &["file:a:X"]));
    assert!(!desk.ask(3, "core:c", &["file:a:S"]));
    let actions = desk.step(common::release(2));
    assert_eq!(
        actions[0],
        Action::Refuse { invocation: call(2), from: Origin::Queue, why: LockRefused::Void }
    );
    assert_eq!(granted(&actions), [3]);
}

#[test]
fn edge_reads_files_dirtily_while_a_core_job_holds_the_workspace() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert!(desk.ask(2, "edge", &["file:a:S"]));
    assert!(desk.ask(3, "edge", &["file:.:S"]), "searching the whole workspace is reading files");
    assert!(!desk.ask(4, "core:b", &["file:a:S"]), "core jobs do not");
    assert!(!desk.ask(5, "edge", &["file:b:X"]), "only reads");
    assert!(!desk.ask(6, "edge", &["workspace:S"]), "only files");
}

#[test]
fn dirty_reads_pass_waiting_writers() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert!(!desk.ask(2, "core:b", &["workspace:X"]));
    assert!(!desk.ask(3, "core:c", &["file:a:X"]));
    assert!(desk.ask(4, "edge", &["file:a:S"]));
    assert_eq!(desk.done(1), [], "a writer waits for the dirty reads still open");
    assert!(!desk.ask(5, "edge", &["file:b:S"]), "but for no new ones: no core job holds the workspace now");
    assert_eq!(desk.done(4), [2, 5], "and the next core job's hold opens the exception again");
}

#[test]
fn a_waiting_edge_read_goes_on_when_a_core_job_gets_the_workspace() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert!(!desk.ask(2, "core:b", &["workspace:X"]));
    assert!(!desk.ask(3, "core:c", &["file:b:X"]));
    assert!(
        !desk.ask(4, "edge", &["file:b:S"]),
        "nobody holds the workspace, so the waiting writers come first"
    );
    assert_eq!(desk.done(1), [2, 4]);
}

#[test]
fn the_exception_is_about_core_jobs_and_not_about_edges_own_command() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "edge", &["workspace:X"]));
    assert!(!desk.ask(2, "edge", &["file:a:S"]));
    assert_eq!(desk.done(1), [2]);
}

#[test]
fn the_exception_is_about_the_workspace_and_not_about_files() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert!(desk.ask(2, "core:b", &["file:b:S"]));
    assert!(!desk.ask(3, "edge", &["file:a:S"]));
}

#[test]
fn the_exception_works_one_way_a_core_job_waits_for_the_edge_reads_that_came_first() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "edge", &["file:a:S"]));
    assert!(!desk.ask(2, "core:a", &["workspace:X"]));
    assert_eq!(desk.done(1), [2]);
}

#[test]
fn only_the_file_reads_of_a_set_are_under_the_exception() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X", "choirtmp:X"]));
    assert!(!desk.ask(2, "edge", &["file:a:S", "choirtmp:X"]));
    assert_eq!(desk.done(1), [2]);
}

#[test]
fn there_are_no_upgrades_a_call_that_holds_or_waits_and_asks_again_is_refused() {
    let mut desk = Desk::default();
    let duplicate =
        |number| Action::Refuse { invocation: call(number), from: Origin::Door, why: LockRefused::Duplicate };
    assert!(desk.ask(1, "edge", &["file:a:S"]));
    assert_eq!(desk.step(acquire(1, "edge", &["file:a:X"], 60_000)), [duplicate(1)]);
    assert!(!desk.ask(2, "core:a", &["file:a:X"]));
    assert_eq!(desk.step(acquire(2, "core:a", &["file:b:X"], 60_000)), [duplicate(2)]);
    assert_eq!(desk.step(acquire(1, "edge", &[], 60_000)), [duplicate(1)]);
    assert_eq!((desk.held(), desk.waiting()), (vec![1], vec![2]), "and nothing has changed");
}

#[test]
fn a_tool_without_locks_never_blocks_and_leaves_nothing_behind() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert!(desk.ask(2, "core:b", &[]));
    assert_eq!(desk.held(), [1]);
}

#[test]
fn releasing_what_is_not_known_does_nothing() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert_eq!(desk.step(common::release(9)), []);
    assert_eq!(desk.done(1), []);
    assert_eq!(desk.step(common::release(1)), []);
}

#[test]
fn a_wait_ends_at_its_deadline_and_the_refusal_names_the_holder_at_its_root() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:src:X"]));
    assert!(!desk.ask(2, "core:b", &["file:src/x:X", "browser_tab:X"]));
    desk.now_ms = 100;
    assert_eq!(desk.step(acquire(3, "core:c", &["browser_tab:S"], 50)), []);
    assert_eq!(desk.table.next_deadline_ms(), Some(150));
    desk.now_ms = 149;
    assert_eq!(desk.step(LockEvent::Tick), []);
    desk.now_ms = 150;
    let why =
        LockRefused::Deadline { waited_ms: 50, blocked_by: "core:a".into(), resource: "file:src".into() };
    assert_eq!(
        desk.step(LockEvent::Tick),
        [Action::Refuse { invocation: call(3), from: Origin::Queue, why }]
    );
    assert_eq!(desk.waiting(), [2]);
    assert_eq!(desk.table.next_deadline_ms(), Some(60_000));
}

#[test]
fn a_deadline_that_has_passed_comes_before_the_event_that_finds_it() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:S"]));
    assert_eq!(desk.step(acquire(2, "core:b", &["file:a:X"], 10)), []);
    assert!(!desk.ask(3, "core:c", &["file:a:S"]));
    desk.now_ms = 11;
    let actions = desk.step(common::release(1));
    assert!(matches!(
        &actions[..],
        [
            Action::Refuse { why: LockRefused::Deadline { waited_ms: 11, .. }, .. },
            Action::Grant { waited_ms: 11, from: Origin::Queue, .. },
            Action::Released { held_ms: 11, .. },
        ]
    ));
    assert_eq!(desk.held(), [3]);
}

#[test]
fn a_call_whose_wait_has_ended_may_ask_again_in_the_same_moment() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert_eq!(desk.step(acquire(2, "core:b", &["file:a:X"], 10)), []);
    desk.now_ms = 10;
    let actions = desk.step(acquire(2, "core:b", &["file:b:X"], 10));
    assert!(matches!(
        &actions[..],
        [Action::Refuse { from: Origin::Queue, .. }, Action::Grant { from: Origin::Door, .. }]
    ));
}

#[test]
fn a_request_that_will_not_wait_is_decided_at_the_door() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    let why = LockRefused::Deadline { waited_ms: 0, blocked_by: "core:a".into(), resource: "file:a".into() };
    let refused = Action::Refuse { invocation: call(2), from: Origin::Door, why };
    assert_eq!(desk.step(acquire(2, "core:b", &["workspace:X"], 0)), [refused]);
    assert_eq!(desk.waiting(), []);
}

#[test]
fn no_wait_is_longer_than_the_longest() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    desk.now_ms = 5;
    assert_eq!(desk.step(acquire(2, "core:b", &["file:a:X"], u64::MAX)), []);
    assert_eq!(desk.table.next_deadline_ms(), Some(5 + MAX_WAIT_MS));
}

#[test]
fn a_clock_that_runs_backwards_or_ends_is_survived() {
    let mut desk = Desk { now_ms: u64::MAX, ..Desk::default() };
    assert!(desk.ask(1, "core:a", &["file:a:X"]));
    assert_eq!(desk.table.step(acquire(2, "core:b", &["file:a:X"], 5), u64::MAX - 9), []);
    desk.now_ms = 3;
    assert_eq!(desk.done(1), [2]);
}

#[test]
fn a_new_epoch_voids_what_is_held_and_what_waits() {
    let mut desk = Desk::default();
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    assert!(!desk.ask(2, "core:b", &["file:a:X"]));
    assert!(!desk.ask(3, "core:c", &["file:a:X"]));
    let void =
        |number| Action::Refuse { invocation: call(number), from: Origin::Queue, why: LockRefused::Void };
    assert_eq!(
        desk.step(LockEvent::NewEpoch),
        [void(2), void(3), Action::Released { invocation: call(1), held_ms: 0 }]
    );
    assert!(desk.ask(2, "core:b", &["workspace:X"]), "the same call may ask again");
}

#[test]
fn too_many_locks_in_one_set_are_refused() {
    let mut desk = Desk::default();
    let names: Vec<String> = (0..=MAX_LOCKS_PER_SET).map(|n| format!("file:{n}:S")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let why = LockRefused::TooMany { limit: MAX_LOCKS_PER_SET as u32 };
    let refused = Action::Refuse { invocation: call(1), from: Origin::Door, why };
    assert_eq!(desk.step(acquire(1, "edge", &names, 60_000)), [refused]);
    assert!(desk.ask(1, "edge", &names[1..]));
}

#[test]
fn the_queue_is_bounded_and_so_is_the_table() {
    let mut desk = Desk::default();
    let full = |number, waiting: usize| Action::Refuse {
        invocation: call(number),
        from: Origin::Door,
        why: LockRefused::QueueFull { waiting: waiting as u32 },
    };
    assert!(desk.ask(1, "core:a", &["workspace:X"]));
    // Filled without the checks of every step, which take a debug build seconds here.
    for number in 0..MAX_WAITING as u128 {
        let actions = desk.table.step_unchecked(acquire(1_000 + number, "core:b", &["file:a:S"], 60_000), 0);
        assert_eq!(actions, []);
    }
    assert_eq!(desk.step(acquire(2, "core:c", &["file:a:S"], 1)), [full(2, MAX_WAITING)]);
    assert!(desk.ask(3, "core:c", &["choirtmp:X"]), "who need not wait is served still");
    assert_eq!(desk.done(1).len(), MAX_WAITING);
    desk.done(3);
    for number in 0..(MAX_REQUESTS - MAX_WAITING) as u128 {
        let actions = desk.table.step_unchecked(acquire(10_000 + number, "core:b", &["file:a:S"], 60_000), 0);
        assert_eq!(granted(&actions), [10_000 + number]);
    }
    assert_eq!(desk.step(acquire(4, "core:c", &["file:b:S"], 1)), [full(4, 0)]);
    assert!(desk.ask(5, "core:c", &[]));
}

#[test]
fn the_table_shows_holders_oldest_first_and_waiters_in_order() {
    let mut desk = Desk::default();
    assert!(desk.ask(2, "edge", &["file:b:S", "file:b:S", "file:./a:S"]));
    desk.now_ms = 10;
    assert!(desk.ask(1, "core:a", &["file:b:S"]));
    assert!(!desk.ask(3, "core:b", &["workspace:X"]));
    desk.now_ms = 15;
    let table = desk.table.table(desk.now_ms);
    let ages = |held: &[choir_messages::mail::HeldLock]| -> Vec<(u128, u64)> {
        held.iter().map(|held| (held.invocation.bits(), held.age_ms)).collect()
    };
    assert_eq!(ages(&table.held), [(2, 15), (1, 5)]);
    assert_eq!(ages(&table.waiting), [(3, 5)]);
    assert_eq!(table.held[0].locks, [lock("file:a:S"), lock("file:b:S")]);
}
