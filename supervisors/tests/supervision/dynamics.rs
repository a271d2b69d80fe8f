//! Children that come and go.

use crate::kit::*;
use choir_supervisors::*;
use std::time::Duration;
use tokio::time::timeout;

const MANY: Intensity = Intensity::new(1000, Duration::from_secs(1));

async fn start(max: usize) -> (Tree, DynamicHandle) {
    let (handle, spec) = DynamicSpec::with("pool", MANY, max);
    let tree =
        Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(spec.backoff(Backoff::NONE)))
            .await
            .unwrap();
    (tree, handle)
}

#[tokio::test(start_paused = true)]
async fn a_child_is_up_when_its_start_returns_and_gone_when_it_is_terminated() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    assert_eq!((pool.path().as_str(), pool.count()), ("top/pool", 0));
    let (address, spec) = kit.probe("one");
    let child = pool.start_child(spec).await.unwrap();
    assert_eq!((child.name(), child.path()), ("one", "top/pool/one"));
    assert_eq!(ask(&address).await, 1);
    let which = pool.which_children();
    assert_eq!(which.len(), 1);
    assert_eq!((which[0].path.as_str(), which[0].state), ("top/pool/one", NodeState::Running));

    pool.terminate_child("one").await.unwrap();
    assert_eq!(kit.log.all(), ["one+1", "one~1", "one-1"]);
    assert_eq!(pool.count(), 0);
    assert_eq!(child.ended().await, Exit::Shutdown);
    assert_eq!(address.try_send(Msg::Note(1)), Err(SendError::Closed));
    assert_eq!(pool.terminate_child("one").await, Err(DynamicError::NotFound("one".into())));
    assert!(pool.start_child(kit.probe("one").1).await.is_ok(), "the name is free again");
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_child_that_ends_for_good_disappears_and_says_how() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    for (restart, message, exit) in [
        (Restart::Temporary, Msg::Fail, Exit::Failed("told to fail".into())),
        (Restart::Temporary, Msg::Stop, Exit::Normal),
        (Restart::Transient, Msg::Stop, Exit::Normal),
    ] {
        let (address, spec) = kit.probe("job");
        let child = pool.start_child(spec.restart(restart)).await.unwrap();
        address.send(message).await.unwrap();
        assert_eq!(timeout(LONG, child.ended()).await.unwrap(), exit);
        assert_eq!(pool.count(), 0);
    }
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn children_restart_alone() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    let (a, a_spec) = kit.probe("a");
    let (b, b_spec) = kit.probe("b");
    pool.start_child(a_spec).await.unwrap();
    pool.start_child(b_spec.restart(Restart::Transient)).await.unwrap();
    a.send(Msg::Panic).await.unwrap();
    assert_eq!(ask(&a).await, 2);
    assert!(tree.handle().kill("top/pool/b"));
    assert_eq!(ask(&b).await, 2);
    assert_eq!(ask(&a).await, 2);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_first_start_that_fails_is_reported_and_not_retried() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    kit.sick.lock().unwrap().insert("ill".into());
    let (address, spec) = kit.probe("ill");
    let error = pool.start_child(spec).await.unwrap_err();
    assert_eq!(error.to_string(), "the child did not start: it failed: the factory is sick");
    assert_eq!(pool.count(), 0);
    assert!(address.is_closed());
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn names_and_the_number_of_children_are_checked() {
    let kit = Kit::default();
    let (tree, pool) = start(2).await;
    pool.start_child(kit.probe("a").1).await.unwrap();
    assert_eq!(
        pool.start_child(kit.probe("a").1).await.unwrap_err().to_string(),
        "\"top/pool\" has a child named \"a\" already"
    );
    assert!(matches!(pool.start_child(kit.probe("").1).await, Err(DynamicError::Spec(_))));
    pool.start_child(kit.probe("b").1).await.unwrap();
    assert_eq!(
        pool.start_child(kit.probe("c").1).await.unwrap_err(),
        DynamicError::Full { supervisor: "top/pool".into(), limit: 2 }
    );
    pool.terminate_child("a").await.unwrap();
    pool.start_child(kit.probe("c").1).await.unwrap();
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn children_are_shut_down_at_once_not_one_after_the_other() {
    let kit = Kit::default();
    let (tree, pool) = start(100).await;
    for n in 0..20 {
        let spec = kit.probe_with(&format!("c{n}"), ROOMY, Some(Duration::from_secs(2))).1;
        pool.start_child(spec).await.unwrap();
    }
    let before = tokio::time::Instant::now();
    end(tree).await;
    assert_eq!(before.elapsed().as_secs(), 2);
    assert_eq!(kit.log.all().iter().filter(|entry| entry.contains('~')).count(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_killed_dynamic_supervisor_comes_back_empty_and_its_handle_still_works() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    let (old, spec) = kit.probe("a");
    let child = pool.start_child(spec).await.unwrap();
    let asking = tokio::spawn({
        let old = old.clone();
        async move { old.call(LONG, Msg::HangAsk).await }
    });
    tokio::task::yield_now().await;
    assert!(tree.handle().kill("top/pool"));
    assert_eq!(timeout(LONG, child.ended()).await.unwrap(), Exit::Killed);
    assert!(asking.await.unwrap().is_err());
    let (new, spec) = kit.probe("a");
    pool.start_child(spec).await.unwrap();
    assert_eq!(ask(&new).await, 1);
    assert!(old.is_closed());
    running(&tree.handle(), "top/pool", 2).await;
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_to_an_ended_or_unstarted_supervisor_is_refused_in_time() {
    let kit = Kit::default();
    let (pool, _spec) = DynamicSpec::new("pool");
    let before = tokio::time::Instant::now();
    assert_eq!(pool.start_child(kit.probe("a").1).await.unwrap_err(), DynamicError::Unavailable);
    assert_eq!(before.elapsed(), limits::DYNAMIC_WAIT);
    let (tree, pool) = start(9).await;
    end(tree).await;
    let before = tokio::time::Instant::now();
    assert_eq!(pool.start_child(kit.probe("a").1).await.unwrap_err(), DynamicError::Unavailable);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_dynamic_child_may_be_a_whole_supervisor() {
    let kit = Kit::default();
    let (tree, pool) = start(9).await;
    let (address, worker) = kit.probe("worker");
    let session = SupervisorSpec::new("session", Strategy::OneForAll).child(worker);
    let child = pool.start_child(ChildSpec::supervisor(session).restart(Restart::Temporary)).await.unwrap();
    assert_eq!(address.path(), "top/pool/session/worker");
    tree.handle().crash("top/pool/session/worker");
    assert_eq!(ask(&address).await, 2);
    tree.handle().kill("top/pool/session");
    assert_eq!(timeout(LONG, child.ended()).await.unwrap(), Exit::Killed);
    assert_eq!(pool.count(), 0);
    assert!(address.is_closed());
    end(tree).await;
}
