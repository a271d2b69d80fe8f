//! Which exits restart whom, when, and when a supervisor gives up.

use crate::kit::*;
use choir_supervisors::core::Reaction;
use choir_supervisors::*;
use std::time::Duration;
use tokio::time::timeout;

const MANY: Intensity = Intensity::new(1000, Duration::from_secs(1));

/// The ends a worker can come to by itself or by an outside hand.
const ENDS: [&str; 5] = ["normal", "killed", "panicked", "failed", "stuck"];

fn inflict(end: &str, tree: &TreeHandle, path: &str, address: &Address<Msg>) {
    match end {
        "normal" => address.try_send(Msg::Stop).unwrap(),
        "killed" => assert!(tree.kill(path)),
        "panicked" => address.try_send(Msg::Panic).unwrap(),
        "failed" => address.try_send(Msg::Fail).unwrap(),
        _ => address.try_send(Msg::Hang).unwrap(),
    }
}

fn is(end: &str, exit: &Exit) -> bool {
    match end {
        "normal" => *exit == Exit::Normal,
        "killed" => *exit == Exit::Killed,
        "panicked" => {
            matches!(exit, Exit::Panicked { message, location: Some(place) }
                if message == "told to panic" && place.contains("kit.rs"))
        }
        "failed" => *exit == Exit::Failed("told to fail".into()),
        _ => matches!(exit, Exit::Stuck { message, for_ms } if message == "hang" && *for_ms >= 3000),
    }
}

#[tokio::test(start_paused = true)]
async fn every_end_under_every_restart_and_strategy_restarts_whom_otp_restarts() {
    for strategy in [Strategy::OneForOne, Strategy::OneForAll, Strategy::RestForOne] {
        for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
            for end_kind in ENDS {
                let kit = Kit::default();
                let (_, a) = kit.probe("a");
                let (b_address, b) = kit.probe("b");
                let (_, c) = kit.probe("c");
                let b = b.restart(restart).stuck_after(Duration::from_secs(3));
                let spec = SupervisorSpec::new("top", strategy).intensity(MANY).child(a).child(b).child(c);
                let tree = Tree::start(spec).await.unwrap();
                let handle = tree.handle();
                let mut reports = handle.subscribe();
                kit.log.take();

                inflict(end_kind, &handle, "top/b", &b_address);

                let report = timeout(LONG, reports.recv()).await.unwrap().unwrap();
                let case = format!("{strategy:?} {restart:?} {end_kind}: {report:?}");
                assert_eq!((report.path.as_str(), report.generation), ("top/b", 1), "{case}");
                assert!(is(end_kind, &report.exit), "{case}");
                let restarted =
                    restart == Restart::Permanent || (restart == Restart::Transient && end_kind != "normal");
                let dropped = match end_kind {
                    "normal" => vec!["b~1", "b-1"],
                    _ => vec!["b-1"],
                };
                let after = match (restarted, strategy) {
                    (false, _) => vec![],
                    (true, Strategy::OneForOne) => vec!["b+2"],
                    (true, Strategy::OneForAll) => vec!["c~1", "c-1", "a~1", "a-1", "a+2", "b+2", "c+2"],
                    (true, Strategy::RestForOne) => vec!["c~1", "c-1", "b+2", "c+2"],
                };
                let expected = [dropped, after].concat();
                if restarted {
                    assert_eq!(report.action, Reaction::Restarting { after: Duration::ZERO }, "{case}");
                    running(&handle, "top/b", 2).await;
                    if strategy != Strategy::OneForOne {
                        running(&handle, "top/c", 2).await;
                    }
                    assert_eq!(ask(&b_address).await, 2, "{case}");
                } else {
                    assert_eq!(report.action, Reaction::Left, "{case}");
                    eventually(&handle, &case, |root| root.children[1].state == NodeState::Ended).await;
                    assert_eq!(b_address.try_send(Msg::Note(1)), Err(SendError::Closed), "{case}");
                }
                assert_eq!(kit.log.all(), expected, "{case}");
                end(tree).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_shut_itself_down_is_restarted_only_if_permanent() {
    for (restart, generation) in [(Restart::Permanent, 2), (Restart::Transient, 1)] {
        let kit = Kit::default();
        let (address, worker) = kit.probe("worker");
        let inner = SupervisorSpec::new("inner", Strategy::OneForOne)
            .auto_shutdown(AutoShutdown::AnySignificant)
            .child(worker.restart(Restart::Transient).significant());
        let top = SupervisorSpec::new("top", Strategy::OneForOne)
            .child(ChildSpec::supervisor(inner).restart(restart).backoff(Backoff::NONE));
        let tree = Tree::start(top).await.unwrap();
        address.send(Msg::Stop).await.unwrap();
        let root = eventually(&tree.handle(), "the inner supervisor ended once", |root| {
            let inner = &root.children[0];
            inner.last_exit == Some(Exit::Shutdown)
                && matches!(inner.state, NodeState::Running | NodeState::Ended)
        })
        .await;
        assert_eq!(root.children[0].generation, generation, "{restart:?}");
        assert_eq!(address.is_closed(), restart == Restart::Transient);
        end(tree).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_restart_too_many_fails_the_supervisor_and_its_parent_restarts_it_as_a_failed_child() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let (_, sibling) = kit.probe("sibling");
    let inner = SupervisorSpec::new("inner", Strategy::OneForOne)
        .intensity(Intensity::new(2, Duration::from_secs(60)))
        .child(sibling)
        .child(worker);
    let top = SupervisorSpec::new("top", Strategy::OneForOne)
        .child(ChildSpec::supervisor(inner).restart(Restart::Transient).backoff(Backoff::NONE));
    let tree = Tree::start(top).await.unwrap();
    let handle = tree.handle();
    let mut reports = handle.subscribe();
    for generation in 1..=2 {
        running(&handle, "top/inner/worker", generation).await;
        assert!(handle.crash("top/inner/worker"));
    }
    let root = running(&handle, "top/inner/worker", 3).await;
    let inner = root.children[0].intensity.as_ref().unwrap();
    assert_eq!((inner.recent, inner.restarts), (2, 2));
    // Waits over the escalation: the mailbox belongs to the place, not to any incarnation above it.
    handle.crash("top/inner/worker");
    address.send(Msg::Note(9)).await.unwrap();
    running(&handle, "top/inner/worker", 4).await;
    let root = running(&handle, "top/inner", 2).await;
    assert_eq!(ask(&address).await, 4);
    assert!(kit.log.all().contains(&"worker:9".to_owned()));
    let inner = &root.children[0];
    let Some(Exit::Failed(reason)) = &inner.last_exit else { panic!("{:?}", inner.last_exit) };
    assert!(reason.starts_with("more than 2 restarts within 60s; the last child panicked"), "{reason}");
    let mut actions = Vec::new();
    while let Ok(report) = reports.try_recv() {
        actions.push((report.path, report.action));
    }
    assert!(actions.contains(&("top/inner/worker".into(), Reaction::Escalated)));
    assert!(actions.contains(&("top/inner/sibling".into(), Reaction::Stopped)));
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn when_the_root_gives_up_the_tree_has_ended_and_says_why() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .intensity(Intensity::new(0, Duration::from_secs(1)))
        .child(worker);
    let tree = Tree::start(spec).await.unwrap();
    let handle = tree.handle();
    address.send(Msg::Fail).await.unwrap();
    let exit = timeout(LONG, handle.ended()).await.unwrap();
    assert_eq!(
        exit,
        Exit::Failed("more than 0 restarts within 1s; the last child failed: told to fail".into())
    );
    assert_eq!(address.try_send(Msg::Note(1)), Err(SendError::Closed));
    assert_eq!(handle.living(), 0);
    assert_eq!(handle.snapshot().state, NodeState::Ended);
}

#[tokio::test(start_paused = true)]
async fn restarts_back_off_and_a_stable_run_starts_over() {
    let kit = Kit::default();
    let (_, worker) = kit.probe("worker");
    let backoff = Backoff {
        immediate: 1,
        initial: Duration::from_secs(1),
        max: Duration::from_secs(3),
        factor: 2,
        stable_after: Duration::from_secs(60),
    };
    let spec = SupervisorSpec::new("top", Strategy::OneForOne).intensity(MANY).child(worker.backoff(backoff));
    let tree = Tree::start(spec).await.unwrap();
    let handle = tree.handle();
    for (generation, delay) in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)] {
        running(&handle, "top/worker", generation).await;
        let before = tokio::time::Instant::now();
        handle.kill("top/worker");
        running(&handle, "top/worker", generation + 1).await;
        assert_eq!(before.elapsed().as_secs(), delay, "after incarnation {generation}");
    }
    tokio::time::advance(Duration::from_secs(61)).await;
    let before = tokio::time::Instant::now();
    handle.kill("top/worker");
    running(&handle, "top/worker", 7).await;
    assert_eq!(before.elapsed().as_secs(), 0);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_factory_is_retried_under_back_off_and_counts_as_a_restart() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let worker = worker.backoff(Backoff::doubling(Duration::from_secs(1), Duration::from_secs(60)));
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).intensity(MANY).child(worker))
        .await
        .unwrap();
    let handle = tree.handle();
    kit.sick.lock().unwrap().insert("worker".into());
    handle.kill("top/worker");
    let root = eventually(&handle, "three failed starts", |root| root.children[0].restarts == 3).await;
    assert_eq!(root.children[0].last_exit, Some(Exit::Failed("the factory is sick".into())));
    assert_eq!(root.children[0].state, NodeState::BackingOff);
    kit.sick.lock().unwrap().clear();
    assert_eq!(ask(&address).await, 4, "what was asked meanwhile is answered by the replacement");
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_makes_progress_is_not_stuck_and_one_that_does_not_is() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let worker = worker.stuck_after(Duration::from_secs(3));
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
    let handle = tree.handle();
    address.send(Msg::Work(20)).await.unwrap();
    assert_eq!(ask(&address).await, 1);
    assert!(kit.log.all().contains(&"worker worked".to_owned()));
    let before = tokio::time::Instant::now();
    assert_eq!(address.call(LONG, Msg::HangAsk).await, Err(CallError::Unanswered));
    assert_eq!(before.elapsed(), Duration::from_secs(3), "the deadline is exact");
    let root = running(&handle, "top/worker", 2).await;
    assert_eq!(root.children[0].last_exit, Some(Exit::Stuck { message: "hang_ask".into(), for_ms: 3000 }));
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long_or_panics_is_a_failed_start() {
    let never = mailbox::<Msg>("never", ROOMY).1;
    let kit = Kit::default();
    let (_, first) = kit.probe("first");
    let slow = ChildSpec::worker(never, |_| std::future::pending::<Result<Probe, Failure>>())
        .start_within(Duration::from_secs(2));
    let spec = SupervisorSpec::new("top", Strategy::OneForOne).child(first).child(slow);
    let error = Tree::start(spec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tree did not start: it failed: a child did not start: it failed: it had not started within 2s"
    );
    assert_eq!(
        kit.log.take(),
        ["first+1", "first~1", "first-1"],
        "the earlier child was stopped in good order"
    );

    let slot = mailbox::<Msg>("broken", ROOMY).1;
    async fn broken(_: StartContext<Msg>) -> Result<Probe, Failure> {
        panic!("no wheels")
    }
    let spec = SupervisorSpec::new("top", Strategy::OneForOne).child(ChildSpec::worker(slot, broken));
    let error = Tree::start(spec).await.unwrap_err().to_string();
    assert!(error.contains("panicked at") && error.contains("no wheels"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_spec_with_two_children_of_one_name_or_a_bad_name_is_refused() {
    let kit = Kit::default();
    let spec =
        SupervisorSpec::new("top", Strategy::OneForOne).child(kit.probe("twin").1).child(kit.probe("twin").1);
    assert_eq!(
        Tree::start(spec).await.unwrap_err().to_string(),
        "the supervisor \"top\" has two children named \"twin\"; give each its own name"
    );
    let spec = SupervisorSpec::new("top", Strategy::OneForOne).child(kit.probe("a/b").1);
    assert!(matches!(Tree::start(spec).await, Err(StartError::Spec(SpecError::Name(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_crash_strikes_in_the_middle_of_a_handler() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
    let handle = tree.handle();
    let asking = tokio::spawn({
        let address = address.clone();
        async move { address.call(LONG, Msg::HangAsk).await }
    });
    while handle.snapshot().children[0].current.is_none() {
        tokio::task::yield_now().await;
    }
    assert!(handle.crash("top/worker"));
    assert_eq!(asking.await.unwrap(), Err(CallError::Unanswered));
    let root = running(&handle, "top/worker", 2).await;
    assert!(
        matches!(&root.children[0].last_exit, Some(Exit::Panicked { message, .. }) if message == "crashed on request")
    );
    assert!(!handle.crash("top/nobody"));
    assert!(!handle.kill("bottom"));
    end(tree).await;
}
