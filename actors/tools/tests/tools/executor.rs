use std::sync::Arc;
use std::time::Duration;

use choir_messages::chain::Digest;
use choir_messages::event::Head;
use choir_messages::id::InvocationId;
use choir_messages::json::Json;
use choir_messages::mail::{Execution, ExecutorMsg, JournalMsg};
use choir_messages::reply::ReplyTo;
use choir_messages::tool::{Lane, Replay, ToolOutcome, ToolStatus};
use choir_supervisors::{
    Actor, Address, CallError, ChildSpec, Context, DynamicHandle, DynamicSpec, Failure, MailboxSpec,
    Strategy, SupervisorSpec, Tree, WhenFull, mailbox,
};
use choir_tools::{executor_child, prepare};
use serde_json::{Value, json};

use crate::support::{Bench, DEADLINE, bench, fifo, hear, wait_gone};

/// A journal that knows only what is durable.
struct FakeJournal {
    durable: u64,
    waiting: Vec<(u64, ReplyTo<()>)>,
}

fn acknowledged(rev: u64) -> JournalMsg {
    JournalMsg::Acknowledged { head: Head { rev, hash: Digest::ZERO } }
}

impl Actor for FakeJournal {
    type Msg = JournalMsg;

    async fn handle(&mut self, msg: JournalMsg, _cx: &mut Context<JournalMsg>) -> Result<(), Failure> {
        match msg {
            JournalMsg::Acknowledged { head } => self.durable = head.rev,
            JournalMsg::WaitDurable { rev, reply } => self.waiting.push((rev, reply)),
            other => return Err(Failure::new(format!("not asked for in these tests: {other:?}"))),
        }
        for (rev, reply) in std::mem::take(&mut self.waiting) {
            if rev <= self.durable {
                reply.send(());
            } else {
                self.waiting.push((rev, reply));
            }
        }
        Ok(())
    }
}

struct World {
    bench: Bench,
    tree: Tree,
    journal: Address<JournalMsg>,
    executors: DynamicHandle,
}

async fn world() -> World {
    let (journal, slot) = mailbox("journal", MailboxSpec { capacity: 16, when_full: WhenFull::Refuse });
    let keeper = ChildSpec::worker(slot, |_| async { Ok(FakeJournal { durable: 0, waiting: Vec::new() }) });
    let (executors, dynamic) = DynamicSpec::new("executors");
    let root = SupervisorSpec::new("test", Strategy::OneForAll).child(keeper).child(dynamic);
    World { bench: bench(), tree: Tree::start(root).await.unwrap(), journal, executors }
}

impl World {
    async fn execution(&self, tool: &str, input: Value, durable_first: Option<u64>) -> Execution {
        let valid = self.bench.registry.validate(&Lane::Edge, tool, &input.to_string()).unwrap();
        let registry = Arc::clone(&self.bench.registry);
        let replay = prepare(registry, tool.to_owned(), valid.input.clone()).await.unwrap();
        Execution {
            invocation: InvocationId::fresh(),
            lane: Lane::Edge,
            tool: tool.to_owned(),
            input: valid.input,
            durable_first,
            replay,
            again: false,
        }
    }

    async fn start(&self, execution: Execution) -> Address<ExecutorMsg> {
        let (address, spec) =
            executor_child(execution, Arc::clone(&self.bench.registry), self.journal.clone());
        self.executors.start_child(spec).await.unwrap();
        address
    }

    /// Waits until no executor is left.
    async fn deserted(&self) {
        let mut changes = self.tree.handle().changes();
        while self.executors.count() > 0 {
            tokio::time::timeout(DEADLINE, changes.changed()).await.expect("an executor stays").unwrap();
        }
    }
}

async fn run(executor: &Address<ExecutorMsg>) -> Result<ToolOutcome, CallError> {
    executor.call(DEADLINE, |reply| ExecutorMsg::Run { reply }).await
}

#[tokio::test]
async fn a_read_runs_at_once_and_its_executor_is_gone_afterwards() {
    let world = world().await;
    world.bench.file("f", "hello");
    let execution = world.execution("choir.fs.read", json!({"path": "f"}), None).await;
    assert_eq!(execution.replay, Replay::Idempotent);
    let outcome = run(&world.start(execution).await).await.unwrap();
    assert_eq!(outcome.output.value()["content"], "hello");
    world.deserted().await;
    world.tree.shutdown().await;
}

#[tokio::test]
async fn a_write_has_no_effect_before_its_commit_is_durable() {
    let world = world().await;
    let execution = world.execution("choir.fs.write", json!({"path": "f", "content": "x"}), Some(7)).await;
    let executor = world.start(execution).await;
    let call = tokio::spawn(async move { run(&executor).await });
    world.journal.send(acknowledged(6)).await.unwrap();
    // The journal has answered everything up to revision 6 once it has answered this.
    world.journal.call(DEADLINE, |reply| JournalMsg::WaitDurable { rev: 6, reply }).await.unwrap();
    assert!(!world.bench.root().join("f").exists());
    world.journal.send(acknowledged(7)).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().status, ToolStatus::Success);
    assert_eq!(world.bench.content("f"), "x");
    world.tree.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_commit_does_not_become_durable_in_time_is_not_run() {
    let world = world().await;
    let execution = world.execution("choir.fs.write", json!({"path": "f", "content": "x"}), Some(7)).await;
    let executor = world.start(execution).await;
    let outcome = executor.call(Duration::from_secs(3600), |reply| ExecutorMsg::Run { reply }).await.unwrap();
    assert_eq!(outcome.status, ToolStatus::Error);
    assert!(outcome.output.value()["error"].as_str().unwrap().contains("was not run"));
    assert!(!world.bench.root().join("f").exists());
    world.tree.shutdown().await;
}

#[tokio::test]
async fn a_cancel_ends_a_wait_and_a_running_command_alike() {
    let world = world().await;
    let waiting = world.execution("choir.fs.write", json!({"path": "f", "content": "x"}), Some(7)).await;
    let executor = world.start(waiting).await;
    let call = tokio::spawn({
        let executor = executor.clone();
        async move { run(&executor).await }
    });
    executor.send(ExecutorMsg::Cancel).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().status, ToolStatus::Cancelled);
    assert!(!world.bench.root().join("f").exists());

    let ready = fifo(&world.bench);
    let command = format!("echo $$ > {}; exec sleep 1000", ready.display());
    let running = world.execution("choir.exec", json!({ "command": command }), None).await;
    let executor = world.start(running).await;
    let call = tokio::spawn({
        let executor = executor.clone();
        async move { run(&executor).await }
    });
    let pid = tokio::task::spawn_blocking(move || hear(&ready)).await.unwrap();
    executor.send(ExecutorMsg::Cancel).await.unwrap();
    assert_eq!(call.await.unwrap().unwrap().status, ToolStatus::Cancelled);
    wait_gone(&pid);
    world.deserted().await;
    world.tree.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_executor_takes_its_command_along_and_its_asker_is_told() {
    let world = world().await;
    let ready = fifo(&world.bench);
    let command = format!("sleep 1000 & echo $! > {}; wait", ready.display());
    let execution = world.execution("choir.exec", json!({ "command": command }), None).await;
    let executor = world.start(execution).await;
    let path = executor.path();
    let call = tokio::spawn(async move { run(&executor).await });
    let pid = tokio::task::spawn_blocking(move || hear(&ready)).await.unwrap();
    assert!(world.tree.handle().kill(&path), "{path}");
    assert!(matches!(call.await.unwrap(), Err(CallError::Unanswered)));
    tokio::task::spawn_blocking(move || wait_gone(&pid)).await.unwrap();
    world.deserted().await;
    world.tree.shutdown().await;
}

#[tokio::test]
async fn a_second_run_has_no_second_effect() {
    let world = world().await;
    world.bench.file("f", "a");
    let input = json!({"path": "f", "mode": "append", "content": "b"});
    let execution = world.execution("choir.fs.write", input, Some(1)).await;
    let executor = world.start(execution).await;
    let first = tokio::spawn({
        let executor = executor.clone();
        async move { run(&executor).await }
    });
    tokio::task::yield_now().await;
    let second = run(&executor);
    world.journal.send(acknowledged(1)).await.unwrap();
    let (first, second) = (first.await.unwrap(), second.await);
    let outcomes = [first, second].into_iter().filter_map(Result::ok).collect::<Vec<_>>();
    assert_eq!(outcomes.len(), 1);
    assert_eq!(world.bench.content("f"), "ab");
    world.tree.shutdown().await;
}

#[tokio::test]
async fn a_tool_that_is_unknown_or_cannot_run_is_told_before_the_commit() {
    let world = world().await;
    let registry = || Arc::clone(&world.bench.registry);
    let unknown = prepare(registry(), "choir.fs.delete".into(), Json(json!({}))).await.unwrap_err();
    assert_eq!(unknown.status, ToolStatus::Refused);
    let input = Json(json!({"path": "none", "mode": "insert", "line": 1, "content": "x"}));
    let missing = prepare(registry(), "choir.fs.write".into(), input).await.unwrap_err();
    assert_eq!(missing.status, ToolStatus::Error);
    world.tree.shutdown().await;
}
