//! The roles as actors: any of them is killed at any step, and the run goes on from the last complete event.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_ledger::event::Role;
use choir_ledger::trace::{Policy, PolicyProfile, Step, Trace};
use choir_ledger_roles::book::Ending;
use choir_ledger_roles::driver::Report;
use choir_ledger_roles::duty::Question;
use choir_ledger_roles::hands::{Hands, HandsCall};
use choir_ledger_roles::run::{Archive, Boxed, Opened, RunEnd, RunHandle, RunParts, run_spec};
use choir_ledger_roles::scribe::ScribeMsg;
use choir_messages::id::{AgentId, InvocationId};
use choir_messages::json::Json;
use choir_messages::mail::ModelsMsg;
use choir_messages::tool::{ToolOutcome, ToolStatus};
use choir_messages::wire::BoxFuture;
use choir_supervisors::{
    Actor, ChildSpec, Context, Failure, MailboxSpec, Slot, Strategy, SupervisorSpec, Tree, WhenFull, mailbox,
};
use serde_json::json;

use crate::play::{Dice, Mind, task};
use crate::world::{MemoryBook, Shelf, TRACE, tools};

/// Longest wait for a run, in paused time.
const SOON: Duration = Duration::from_secs(300);

struct Models(Arc<Mutex<Mind>>);

impl Actor for Models {
    type Msg = ModelsMsg;

    async fn handle(&mut self, msg: ModelsMsg, _cx: &mut Context<ModelsMsg>) -> Result<(), Failure> {
        if let ModelsMsg::Complete { request, reply, .. } = msg {
            let question = Question { turns: request.turns, tools: request.tools };
            let answer = self.0.lock().unwrap().answer(&question);
            // Long enough for a kill to find the question under way.
            tokio::time::sleep(Duration::from_millis(5)).await;
            reply.send(Ok(answer));
        }
        Ok(())
    }
}

fn models(slot: Slot<ModelsMsg>) -> ChildSpec {
    let mind = Arc::new(Mutex::new(Mind::new(Dice { challenges: 50, ..Dice::GOOD })));
    ChildSpec::worker(slot, move |_| {
        let mind = Arc::clone(&mind);
        async move { Ok(Models(mind)) }
    })
}

/// Hands that run nothing, and remember what was asked by its id.
#[derive(Default)]
struct Asked(Mutex<Vec<InvocationId>>);

impl Hands for Asked {
    fn place(&self, _agent: AgentId) -> BoxFuture<'static, Result<(String, u64), String>> {
        Box::pin(async { Ok(("01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(), 7)) })
    }

    fn run(&self, call: HandsCall) -> BoxFuture<'static, ToolOutcome> {
        assert_eq!(call.place, Some(("01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(), 7)));
        self.0.lock().unwrap().push(call.invocation);
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ToolOutcome { status: ToolStatus::Success, output: Json(json!({ "content": "x" })), cut_bytes: 0 }
        })
    }

    fn stop(&self, _agent: AgentId, _invocation: InvocationId) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

struct NoDisk;

impl Archive for NoDisk {
    fn verify(&self) -> Boxed<Result<Report, String>> {
        Box::pin(async {
            Ok(Report {
                status: "pass".to_owned(),
                id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned(),
                json: "{}".to_owned(),
                text: "all is well".to_owned(),
            })
        })
    }

    fn keep(&self, _report: Report) -> Boxed<()> {
        Box::pin(async {})
    }
}

struct House {
    tree: Tree,
    handle: RunHandle,
    shelf: Arc<Mutex<Shelf>>,
    hands: Arc<Asked>,
}

impl House {
    async fn new() -> Self {
        let shelf = Arc::new(Mutex::new(Shelf::default()));
        let hands = Arc::new(Asked::default());
        let (asked, slot) = mailbox(
            "models",
            MailboxSpec { capacity: 64, when_full: WhenFull::Wait(Duration::from_secs(1)) },
        );
        let kept = Arc::clone(&shelf);
        let open = move || -> Boxed<Result<Opened, String>> {
            let kept = Arc::clone(&kept);
            Box::pin(async move {
                while kept.lock().unwrap().held {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let ended = kept.lock().unwrap().ended.clone();
                Ok(match ended {
                    Some((ending, reason)) => {
                        Opened::Ended(RunEnd { ending, reason, refused: false, verdict: None })
                    }
                    None => Opened::Book(Box::new(MemoryBook::open(&kept))),
                })
            })
        };
        let parts = RunParts {
            trace: TRACE,
            task: Some(task("default", "standard", 8)),
            agent: "assistant".parse().unwrap(),
            lane: "core:ledger".parse().unwrap(),
            tools: tools(),
            open: Arc::new(open),
            hands: hands.clone(),
            archive: Arc::new(NoDisk),
            models: asked,
            adopt: Arc::new(|_| {}),
        };
        let (handle, spec) = run_spec(parts, models(slot));
        let root = SupervisorSpec::new("root", Strategy::OneForOne).child(spec);
        let tree = Tree::start(root).await.unwrap();
        Self { tree, handle, shelf, hands }
    }

    async fn reached(&self, events: usize) {
        let mut board = self.handle.board.clone();
        let mut end = self.handle.end.clone();
        let reached = async {
            tokio::select! {
                _ = board.wait_for(|board| board.count >= events) => {}
                _ = end.wait_for(Option::is_some) => {}
            }
        };
        tokio::time::timeout(SOON, reached).await.expect("the run comes that far");
    }

    async fn end(&self) -> RunEnd {
        let mut end = self.handle.end.clone();
        let ended = tokio::time::timeout(SOON, end.wait_for(Option::is_some)).await.expect("the run ends");
        ended.unwrap().clone().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn any_of_them_may_be_killed_at_any_step_and_the_run_is_completed() {
    for victim in ["planner", "critic", "executor", "auditor", "scribe", "models"] {
        for step in 0..14 {
            let house = House::new().await;
            house.reached(step).await;
            house.tree.handle().kill(&format!("root/{TRACE}/{victim}"));
            let end = house.end().await;
            assert_eq!(end.ending, Ending::Completed, "{victim} killed after {step} events: {}", end.reason);
            let trace = {
                let shelf = house.shelf.lock().unwrap();
                let steps = shelf.events.iter().map(|event| Step::of(event).unwrap());
                Trace::replay(Policy::protocol(PolicyProfile::Default), steps).unwrap()
            };
            assert!(trace.standing().verified.is_some());
            // An executor that is killed while its tool runs asks for it again, under the same id.
            let asked: std::collections::BTreeSet<InvocationId> =
                house.hands.0.lock().unwrap().iter().copied().collect();
            assert_eq!(asked.len(), trace.executions().len(), "{victim} killed after {step} events");
            house.tree.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_whose_key_is_revoked_ends_the_run_as_failed_when_it_next_speaks() {
    for role in Role::ALL.iter().copied() {
        for step in [0, 1, 4] {
            let house = House::new().await;
            house.reached(step).await;
            let said = {
                let mut shelf = house.shelf.lock().unwrap();
                shelf.revoked = Some(role);
                shelf.events.len()
            };
            let end = house.end().await;
            if end.ending == Ending::Completed {
                // The planner may have said all it had to say.
                let later = house.shelf.lock().unwrap().events.split_off(said);
                assert!(later.iter().all(|event| event.actor().role != role), "{role} after {step} events");
                assert_eq!(role, Role::Planner);
            } else {
                let told = format!("the {role}'s key was revoked");
                assert_eq!((end.ending, end.reason.as_str()), (Ending::Failed, told.as_str()));
                assert_eq!(house.shelf.lock().unwrap().ended, Some((Ending::Failed, told)));
            }
            let run = house.tree.handle().snapshot().children.remove(0);
            assert!(run.children.iter().all(|child| child.restarts == 0), "nobody crashed of it");
            house.tree.shutdown().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_operators_word_ends_a_run_and_nothing_is_appended_afterwards() {
    let house = House::new().await;
    house.reached(4).await;
    let end = ScribeMsg::End { ending: Ending::Aborted, reason: "enough".to_owned(), refused: false };
    house.handle.scribe.send(end).await.unwrap();
    let end = house.end().await;
    assert_eq!((end.ending, end.reason.as_str()), (Ending::Aborted, "enough"));
    let events = house.shelf.lock().unwrap().events.len();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(house.shelf.lock().unwrap().events.len(), events);
    house.tree.shutdown().await;
}
