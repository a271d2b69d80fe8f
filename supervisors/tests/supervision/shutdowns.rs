//! How trees and children are stopped.

use crate::kit::*;
use choir_supervisors::*;
use std::sync::mpsc;
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test(start_paused = true)]
async fn a_shutdown_goes_in_reverse_start_order_and_every_stopping_runs() {
    let kit = Kit::default();
    let inner =
        SupervisorSpec::new("inner", Strategy::RestForOne).child(kit.probe("b").1).child(kit.probe("c").1);
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .child(kit.probe("a").1)
        .child(ChildSpec::supervisor(inner))
        .child(kit.probe("d").1);
    let tree = Tree::start(spec).await.unwrap();
    assert_eq!(kit.log.take(), ["a+1", "b+1", "c+1", "d+1"]);
    let report = tree.shutdown().await;
    assert_eq!(report, ShutdownReport { exit: Exit::Shutdown, overran: vec![], left: 0 });
    assert_eq!(kit.log.take(), ["d~1", "d-1", "c~1", "c-1", "b~1", "b-1", "a~1", "a-1"]);
}

#[tokio::test(start_paused = true)]
async fn the_running_handler_finishes_and_nothing_queued_is_handled() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
    address.send(Msg::Work(3)).await.unwrap();
    address.send(Msg::Note(1)).await.unwrap();
    while tree.handle().snapshot().children[0].current.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(tree.shutdown().await.overran, [""; 0]);
    assert_eq!(kit.log.all(), ["worker+1", "worker worked", "worker~1", "worker-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_past_its_shutdown_deadline_is_killed_and_named() {
    let kit = Kit::default();
    let (address, hanging) = kit.probe("hanging");
    let slow = kit.probe_with("slow", ROOMY, Some(Duration::from_secs(50))).1;
    let patient = kit.probe_with("patient", ROOMY, Some(Duration::from_secs(50))).1;
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .child(hanging.shutdown(Shutdown::Within(Duration::from_secs(2))))
        .child(slow.shutdown(Shutdown::Within(Duration::from_secs(3))))
        .child(patient.shutdown(Shutdown::Infinity));
    let tree = Tree::start(spec).await.unwrap();
    address.send(Msg::Hang).await.unwrap();
    let before = tokio::time::Instant::now();
    let report = tree.shutdown().await;
    assert_eq!(before.elapsed().as_secs(), 55);
    assert_eq!(report.overran, ["top/slow", "top/hanging"]);
    assert_eq!(report.left, 0);
    assert_eq!(kit.log.all()[3..], ["patient~1", "patient-1", "slow-1", "hanging-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_brutal_shutdown_does_not_wait_for_anything() {
    let kit = Kit::default();
    let slow = kit.probe_with("slow", ROOMY, Some(Duration::from_secs(50))).1.shutdown(Shutdown::Brutal);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(slow)).await.unwrap();
    let before = tokio::time::Instant::now();
    assert_eq!(tree.shutdown().await.left, 0);
    assert_eq!(before.elapsed().as_secs(), 0);
    assert_eq!(kit.log.all(), ["slow+1", "slow-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_called_off_is_undone_in_reverse_order() {
    let kit = Kit::default();
    let (_, slot) = mailbox::<Msg>("slow", ROOMY);
    let (begun, beginning) = tokio::sync::watch::channel(false);
    let slow = ChildSpec::worker(slot, move |_| {
        begun.send_replace(true);
        std::future::pending::<Result<Quiet, Failure>>()
    });
    let inner = SupervisorSpec::new("inner", Strategy::OneForOne).child(kit.probe("b").1).child(slow);
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .child(kit.probe("a").1)
        .child(ChildSpec::supervisor(inner))
        .child(kit.probe("never").1);
    let mut beginning = beginning;
    let stop = async { drop(beginning.wait_for(|begun| *begun).await) };
    assert!(Tree::start_unless(spec, stop).await.unwrap().is_none());
    assert_eq!(kit.log.all(), ["a+1", "b+1", "b~1", "b-1", "a~1", "a-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_not_called_off_is_like_any_other() {
    let kit = Kit::default();
    let spec = SupervisorSpec::new("top", Strategy::OneForOne).child(kit.probe("a").1);
    let tree = Tree::start_unless(spec, std::future::pending()).await.unwrap().unwrap();
    end(tree).await;
    assert_eq!(kit.log.all(), ["a+1", "a~1", "a-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_during_a_restarting_childs_start_gives_the_start_up() {
    let kit = Kit::default();
    let (_, slot) = mailbox::<Msg>("slow", ROOMY);
    let made = kit.probe("inside").1;
    drop(made);
    let log = kit.log.clone();
    let slow = ChildSpec::worker(slot, move |cx: StartContext<Msg>| {
        let log = log.clone();
        async move {
            log.add(format!("start {}", cx.generation()));
            if cx.generation() > 1 {
                assert_eq!(cx.previous(), Some(&Exit::Killed));
                std::future::pending::<()>().await;
            }
            Ok::<Quiet, Failure>(Quiet)
        }
    })
    .backoff(Backoff::NONE);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(slow)).await.unwrap();
    tree.handle().kill("top/slow");
    while kit.log.all().len() < 2 {
        tokio::task::yield_now().await;
    }
    let before = tokio::time::Instant::now();
    end(tree).await;
    assert_eq!(before.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_stops_itself_has_as_long_for_it_as_for_any_stop() {
    let kit = Kit::default();
    let (address, slow) = kit.probe_with("slow", ROOMY, Some(Duration::from_secs(50)));
    let slow = slow.shutdown(Shutdown::Within(Duration::from_secs(2))).restart(Restart::Transient);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(slow)).await.unwrap();
    let before = tokio::time::Instant::now();
    address.send(Msg::Stop).await.unwrap();
    let root = running(&tree.handle(), "top/slow", 2).await;
    assert_eq!(before.elapsed().as_secs(), 2);
    assert_eq!(root.children[0].last_exit, Some(Exit::Killed));
    assert_eq!(tree.shutdown().await.overran, ["top/slow", "top/slow"]);
}

#[tokio::test(start_paused = true)]
async fn an_actor_may_stop_itself_before_its_first_message() {
    struct Mayfly;
    impl Actor for Mayfly {
        type Msg = Msg;
        async fn started(&mut self, cx: &mut Context<Msg>) -> Result<(), Failure> {
            cx.stop();
            tokio::task::yield_now().await;
            Ok(())
        }
        async fn handle(&mut self, _: Msg, _: &mut Context<Msg>) -> Result<(), Failure> {
            Ok(())
        }
    }
    let (address, slot) = mailbox::<Msg>("mayfly", ROOMY);
    let mayfly = ChildSpec::worker(slot, |_| async { Ok(Mayfly) })
        .restart(Restart::Transient)
        .shutdown(Shutdown::Brutal);
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(mayfly)).await.unwrap();
    let root =
        eventually(&tree.handle(), "the mayfly ended", |root| root.children[0].state == NodeState::Ended)
            .await;
    assert_eq!(root.children[0].last_exit, Some(Exit::Normal));
    assert!(address.is_closed());
    end(tree).await;
}

struct Quiet;

impl Actor for Quiet {
    type Msg = Msg;
    async fn handle(&mut self, _: Msg, _: &mut Context<Msg>) -> Result<(), Failure> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_is_dropped_dies_and_leaves_nothing() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let inner = SupervisorSpec::new("inner", Strategy::OneForOne).child(worker);
    let tree =
        Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(ChildSpec::supervisor(inner)))
            .await
            .unwrap();
    address.send(Msg::PipeHolding(Box::new(()))).await.unwrap();
    ask(&address).await;
    let handle = tree.handle();
    assert_eq!(handle.living(), 4);
    drop(tree);
    timeout(LONG, handle.deserted()).await.unwrap();
    assert_eq!(timeout(LONG, handle.ended()).await.unwrap(), Exit::Killed);
    assert_eq!(kit.log.all(), ["worker+1", "worker-1"]);
    assert_eq!(address.try_send(Msg::Note(1)), Err(SendError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_stopping_does_not_stop_the_shutdown() {
    struct Thorn;
    impl Actor for Thorn {
        type Msg = Msg;
        async fn handle(&mut self, _: Msg, _: &mut Context<Msg>) -> Result<(), Failure> {
            Ok(())
        }
        async fn stopping(&mut self, _: &mut Context<Msg>) {
            panic!("at the end");
        }
    }
    impl Drop for Thorn {
        fn drop(&mut self) {
            panic!("and once more");
        }
    }
    let kit = Kit::default();
    let (_, slot) = mailbox::<Msg>("thorn", ROOMY);
    let thorn = ChildSpec::worker(slot, |_| async { Ok(Thorn) });
    let tree =
        Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(kit.probe("a").1).child(thorn))
            .await
            .unwrap();
    let mut reports = tree.handle().subscribe();
    assert_eq!(tree.shutdown().await.left, 0);
    let exit = reports.recv().await.unwrap().exit;
    assert!(matches!(&exit, Exit::Panicked { message, .. } if message == "at the end"), "{exit}");
    assert_eq!(kit.log.all(), ["a+1", "a~1", "a-1"]);
}

/// The one thing that cannot be ended is a thread. No replacement may then start beside it: the failure goes up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_that_blocks_its_thread_is_not_replaced_but_escalated() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let spec =
        SupervisorSpec::new("top", Strategy::OneForOne).child(worker.stuck_after(Duration::from_millis(10)));
    let tree = Tree::start(spec).await.unwrap();
    let handle = tree.handle();
    let (free, until) = mpsc::channel();
    address.send(Msg::Spin(until)).await.unwrap();
    let exit = timeout(LONG, handle.ended()).await.unwrap();
    assert!(matches!(&exit, Exit::Failed(reason) if reason.contains("could not be stopped")), "{exit}");
    assert_eq!(kit.log.all(), ["worker+1"]);
    assert!(handle.living() > 0, "the leak is visible");
    drop(free);
    timeout(LONG, handle.deserted()).await.unwrap();
}
