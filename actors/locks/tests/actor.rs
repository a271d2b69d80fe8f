//! The lock manager in a tree of its own, under paused time.
#![allow(clippy::unwrap_used)] // In helpers of tests, too, a failed unwrap is a failed test.

mod common;

use std::time::Duration;

use choir_locks::{child_spec, mailbox_spec};
use choir_messages::mail::{Acquire, LockRefused, LockTable, LocksMsg};
use choir_messages::reply::{Answer, reply_port};
use choir_supervisors::{Address, Exit, Strategy, SupervisorSpec, Tree, mailbox};
use common::{call, lane, locks};
use tokio::time::{Instant, timeout};

/// Longer than anything here takes, in paused time.
const DEADLINE: Duration = Duration::from_secs(3600);

type Granted = Answer<Result<(), LockRefused>>;

struct Scene {
    tree: Tree,
    locks: Address<LocksMsg>,
}

impl Scene {
    async fn start() -> Self {
        let (address, slot) = mailbox("locks", mailbox_spec());
        let spec = SupervisorSpec::new("session", Strategy::RestForOne).child(child_spec(slot));
        Self { tree: Tree::start(spec).await.unwrap(), locks: address }
    }

    fn ask(&self, number: u128, owner: &str, set: &[&str], wait_ms: u64) -> Granted {
        let (reply, answer) = reply_port();
        let acquire =
            Acquire { owner: lane(owner), invocation: call(number), locks: locks(set), wait_ms, reply };
        self.locks.try_send(LocksMsg::Acquire(acquire)).unwrap();
        answer
    }

    fn release(&self, number: u128) {
        self.locks.try_send(LocksMsg::Release { invocation: call(number) }).unwrap();
    }

    /// The table, once everything sent before has been handled.
    async fn table(&self) -> LockTable {
        self.locks.call(DEADLINE, |reply| LocksMsg::Table { reply }).await.unwrap()
    }

    async fn calls(&self) -> (Vec<u128>, Vec<u128>) {
        let table = self.table().await;
        let bits =
            |sets: &[choir_messages::mail::HeldLock]| sets.iter().map(|set| set.invocation.bits()).collect();
        (bits(&table.held), bits(&table.waiting))
    }

    async fn end(self) {
        let report = self.tree.shutdown().await;
        assert_eq!((report.exit, report.overran, report.left), (Exit::Shutdown, vec![], 0));
    }
}

async fn answer(granted: Granted) -> Result<(), LockRefused> {
    timeout(DEADLINE, granted).await.expect("answered in time").expect("answered at all")
}

#[tokio::test(start_paused = true)]
async fn a_call_is_granted_waits_its_turn_and_is_told_so() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["workspace:X"], 1_000)).await, Ok(()));
    let waiting = scene.ask(2, "core:b", &["file:a:S"], 1_000);
    assert_eq!(answer(scene.ask(3, "edge", &["file:a:S"], 1_000)).await, Ok(()));
    assert_eq!(scene.calls().await, (vec![1, 3], vec![2]));
    scene.release(1);
    assert_eq!(answer(waiting).await, Ok(()));
    assert_eq!(scene.calls().await, (vec![3, 2], vec![]));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_refused_at_its_deadline_though_nobody_says_anything() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["file:a:X"], 1_000)).await, Ok(()));
    let began = Instant::now();
    let refused = answer(scene.ask(2, "core:b", &["file:a:X"], 700)).await;
    assert!(matches!(refused, Err(LockRefused::Deadline { waited_ms: 700..=702, .. })), "{refused:?}");
    let waited = began.elapsed().as_millis();
    assert!((700..=702).contains(&waited), "{waited} ms on the paused clock");
    assert_eq!(scene.calls().await, (vec![1], vec![]));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn deadlines_are_kept_in_whatever_order_they_come() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["file:a:X"], 1_000)).await, Ok(()));
    let began = Instant::now();
    let waits = [400u64, 100, 300, 100, 500, 200];
    let asked: Vec<(u64, Granted)> = (10u128..)
        .zip(waits)
        .map(|(number, wait_ms)| (wait_ms, scene.ask(number, "core:b", &["file:a:X"], wait_ms)))
        .collect();
    let ends = asked.into_iter().map(|(wait_ms, granted)| async move {
        let refused = answer(granted).await;
        assert!(matches!(refused, Err(LockRefused::Deadline { .. })), "{refused:?}");
        let waited = u64::try_from(began.elapsed().as_millis()).unwrap();
        assert!(
            (wait_ms..=wait_ms + 2).contains(&waited),
            "{waited} ms for {wait_ms} ms on the paused clock"
        );
    });
    let mut ends: tokio::task::JoinSet<()> = ends.collect();
    while let Some(end) = ends.join_next().await {
        end.unwrap();
    }
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_request_is_refused_at_its_own_port_and_the_first_keeps_its_place() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["file:a:X"], 1_000)).await, Ok(()));
    let first = scene.ask(2, "core:b", &["file:a:X"], 1_000);
    assert_eq!(answer(scene.ask(2, "core:b", &["file:a:X"], 1_000)).await, Err(LockRefused::Duplicate));
    scene.release(1);
    assert_eq!(answer(first).await, Ok(()));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_epoch_refuses_who_waits_and_frees_what_is_held() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["workspace:X"], 1_000)).await, Ok(()));
    let waiting = scene.ask(2, "core:b", &["file:a:X"], 1_000);
    scene.locks.call(DEADLINE, |reply| LocksMsg::NewEpoch { reply }).await.unwrap();
    assert_eq!(answer(waiting).await, Err(LockRefused::Void));
    assert_eq!(scene.calls().await, (vec![], vec![]));
    assert_eq!(answer(scene.ask(1, "core:a", &["workspace:X"], 1_000)).await, Ok(()));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_while_waiting_is_answered_too() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["file:a:X"], 1_000)).await, Ok(()));
    let waiting = scene.ask(2, "core:b", &["file:a:X"], 1_000);
    scene.release(2);
    assert_eq!(answer(waiting).await, Err(LockRefused::Void));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_behind_an_asker_who_has_given_up() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["file:a:S"], 1_000)).await, Ok(()));
    drop(scene.ask(2, "core:b", &["file:a:X"], 1_000));
    assert_eq!(answer(scene.ask(3, "core:c", &["file:a:S"], 1_000)).await, Ok(()));
    assert_eq!(scene.calls().await, (vec![1, 3], vec![]));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_reaches_nobody_is_taken_back() {
    let scene = Scene::start().await;
    drop(scene.ask(1, "core:a", &["workspace:X"], 1_000));
    assert_eq!(scene.calls().await, (vec![], vec![]));
    assert_eq!(answer(scene.ask(2, "core:b", &["workspace:X"], 0)).await, Ok(()));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_answers_who_waits() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["workspace:X"], 1_000)).await, Ok(()));
    let waiting = scene.ask(2, "core:b", &["file:a:X"], 1_000);
    scene.table().await;
    scene.end().await;
    assert_eq!(answer(waiting).await, Err(LockRefused::Void));
}

#[tokio::test(start_paused = true)]
async fn a_killed_lock_manager_loses_its_table_and_leaves_no_asker_hanging() {
    let scene = Scene::start().await;
    assert_eq!(answer(scene.ask(1, "core:a", &["workspace:X"], 1_000)).await, Ok(()));
    let waiting = scene.ask(2, "core:b", &["file:a:X"], 1_000_000);
    scene.table().await;
    assert!(scene.tree.handle().kill("session/locks"));
    timeout(DEADLINE, waiting).await.expect("told in time").expect_err("told that there is no answer");
    assert_eq!(scene.calls().await, (vec![], vec![]), "the replacement starts empty, at the same address");
    assert_eq!(scene.locks.generation(), 2);
    assert_eq!(answer(scene.ask(3, "core:b", &["file:a:X"], 0)).await, Ok(()));
    scene.end().await;
}
