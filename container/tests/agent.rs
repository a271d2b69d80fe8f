//! The real choir-agent against a host in the test's process: real links, real tools, a scripted model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use choir_messages::wire::{Signal, SignalAck};
use choir_scripted_model::{Fault, FaultRule, Match, Script, Step, When};
use serde_json::json;
use support::{Memory, SOON, TestHost, lines};

/// A turn that writes, reads, searches and runs a command that leaves one line each time it runs.
fn work() -> Script {
    Script::default().rule(
        Match::Contains("work".into()),
        [
            Step::call("choir.fs.write", json!({"path": "notes.txt", "mode": "append", "content": "tea\n"})),
            Step::call("choir.exec", json!({"command": "echo ran >> ran.txt; cat notes.txt"}))
                .on_outcome_unknown([Step::call("choir.fs.read", json!({"path": "ran.txt"}))]),
            Step::calls([
                ("choir.fs.read", json!({"path": "notes.txt"})),
                ("choir.fs.search", json!({"pattern": "tea"})),
            ]),
            Step::text("done: {{user}}"),
        ],
    )
}

#[tokio::test]
async fn a_message_is_answered_through_every_tool() {
    let mut host = TestHost::new(work()).await;
    let _agent = host.start().await;
    let message = host.say("do the work").await;
    assert_eq!(host.answer(message).await, "done: do the work");
    assert_eq!(lines(&host.workspace().join("notes.txt")), ["tea"]);
    assert_eq!(lines(&host.workspace().join("ran.txt")), ["ran"]);
    assert_eq!(host.closings(), 1);
}

#[tokio::test]
async fn after_kill_9_in_the_middle_of_a_turn_it_goes_on_and_repeats_nothing() {
    let mut host = TestHost::new(work()).await;
    let mut agent = host.start().await;
    // The model's third call (after the command ran) is held open while the process dies.
    host.model
        .add_fault(FaultRule::once(When::Message { contains: "work".into(), step: Some(2) }, Fault::Hold));
    let message = host.say("do the work").await;
    host.model.until_held(SOON).await.unwrap();
    agent.child.kill().await.unwrap();
    host.model.clear_faults();
    host.model.release_all();
    let _agent = host.start().await;
    assert_eq!(host.answer(message).await, "done: do the work");
    assert_eq!(lines(&host.workspace().join("notes.txt")), ["tea"]);
    assert_eq!(lines(&host.workspace().join("ran.txt")), ["ran"]);
    let next = host.say("more work").await;
    assert_eq!(host.answer(next).await, "done: more work");
    assert_eq!(host.closings(), 2);
}

#[tokio::test]
async fn a_step_that_is_interrupted_twice_is_set_aside_with_its_turn_and_the_next_is_answered() {
    let mut host = TestHost::new(work()).await;
    let mut agent = host.start().await;
    // The model's second call, after the first tool ran, is where the process dies each time.
    let when = When::Message { contains: "poison".into(), step: Some(1) };
    host.model.add_fault(FaultRule { when, fault: Fault::Hold, times: Some(2) });
    let poison = host.say("do the poison work").await;
    for resumed in 0..2 {
        host.model.until_held(SOON).await.unwrap();
        // The same step each time: what was done before it is durable, and so is that it was resumed.
        let durable = |memory: &Memory| {
            let kinds: Vec<_> = memory.events.iter().map(|event| event.body.kind()).collect();
            let done = kinds.contains(&"ToolResultCommitted");
            (done && kinds.iter().filter(|kind| **kind == "TurnResumed").count() == resumed).then_some(())
        };
        host.until("resumption", durable).await;
        agent.child.kill().await.unwrap();
        host.model.release_all();
        agent = host.start().await;
    }
    let told = host.answer(poison).await;
    assert!(told.contains("interrupted 2 times at the same step, so it is set aside"), "{told}");
    let next = host.say("more work").await;
    assert_eq!(host.answer(next).await, "done: more work");
}

#[tokio::test]
async fn any_actor_may_be_killed_and_the_conversation_goes_on() {
    let mut host = TestHost::new(work()).await;
    let _agent = host.start().await;
    let mut said = 0;
    for actor in [
        "uplink",
        "session/journal",
        "session/replicator",
        "session/locks",
        "session/arbiter",
        "session/executors",
        "session/models",
        "session/edge",
        "session",
        "reporter",
    ] {
        let path = format!("choir-agent/{actor}");
        let ack = host.push(Signal::KillActor { path: path.clone() }).await;
        assert_eq!(ack, SignalAck::Noted, "{path}");
        let message = host.say(&format!("work after {actor}")).await;
        said += 1;
        assert_eq!(host.answer(message).await, format!("done: work after {actor}"));
        assert_eq!(lines(&host.workspace().join("ran.txt")).len(), said, "after {path}");
    }
    assert_eq!(host.closings(), said);
}

#[tokio::test]
async fn a_shutdown_flushes_says_goodbye_and_exits_with_0() {
    let mut host = TestHost::new(work()).await;
    let mut agent = host.start().await;
    let message = host.say("do the work").await;
    host.answer(message).await;
    assert_eq!(host.push(Signal::ShutDown { within_ms: 5000 }).await, SignalAck::Noted);
    let status = tokio::time::timeout(SOON, agent.child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0), "{}", host.log());
    assert!(host.verbs.memory.lock().unwrap().goodbye);
}

#[tokio::test]
async fn an_agent_whose_host_is_gone_ends_by_itself() {
    let mut host = TestHost::new(work()).await;
    let mut agent = host.start().await;
    agent.stdin = None;
    let status = tokio::time::timeout(SOON, agent.child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(14), "{}", host.log());
}

#[tokio::test]
async fn the_status_report_shows_the_live_tree() {
    let mut host = TestHost::new(work()).await;
    let _agent = host.start().await;
    let message = host.say("do the work").await;
    host.answer(message).await;
    let tree = host.until("status", |memory| memory.status.clone().map(|status| status.tree)).await;
    let text = tree.0.to_string();
    for actor in ["journal", "arbiter", "locks", "edge"] {
        assert!(text.contains(actor), "{actor} is not in {text}");
    }
}

#[tokio::test]
async fn a_message_sent_twice_is_answered_once() {
    let mut host = TestHost::new(work()).await;
    let _agent = host.start().await;
    let message = host.say("do the work").await;
    let again = Signal::UserMessage { message, text: "do the work".to_owned() };
    assert!(matches!(host.push(again).await, SignalAck::Recorded { .. }));
    host.answer(message).await;
    tokio::time::timeout(Duration::from_millis(300), std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(host.closings(), 1);
}

#[tokio::test]
async fn the_first_model_request_is_below_8_kb() {
    let mut host = TestHost::new(work()).await;
    let _agent = host.start().await;
    let message = host.say("do the work").await;
    host.answer(message).await;
    let entry = host.model.journal().entries().into_iter().next().unwrap();
    println!("first model request: {} bytes", entry.request_bytes);
    assert!(entry.request_bytes < 8192, "{} bytes", entry.request_bytes);
}
