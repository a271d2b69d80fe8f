//! A role as an actor: feeds its [`Driver`] and carries its actions out. It keeps nothing that the trace does not say, so
//! a kill costs the question or the call that was under way, and the next incarnation asks again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use choir_ledger::event::Role;
use choir_messages::id::{InvocationId, ModelCallId};
use choir_messages::mail::{Mail, ModelsMsg};
use choir_messages::model::ModelRequest;
use choir_messages::reply::reply_port;
use choir_messages::time::Timestamp;
use choir_messages::tool::{ToolOutcome, ToolStatus};
use choir_supervisors::{
    Actor, ChildSpec, Context, Failure, MailboxSpec, Shutdown, Slot, TaskHandle, WhenFull,
};
use tracing::Instrument as _;

use crate::book::Ending;
use crate::driver::{Action, Driver, Input, NotAppended};
use crate::duty::{Key, Question};
use crate::hands::HandsCall;
use crate::limits::{LOOK, SCRIBE, TOOL_WITHIN, VERIFY_WITHIN};
use crate::run::RunDeps;
use crate::scribe::ScribeMsg;

/// Hints, and what the role's own tasks bring, which always finds room.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: 64, when_full: WhenFull::DropOldest };

/// How long a call that was stopped may take to say so.
const STOPPING: Duration = Duration::from_secs(30);

/// What a role is told.
#[derive(Debug)]
pub enum RoleMsg {
    /// The board may have moved.
    Moved,
    /// The role's own clock.
    Tick,
    /// Something it waited for.
    Came(Input),
    /// A task of its own ended that brings nothing.
    Done,
}

impl Mail for RoleMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::Tick => "tick",
            Self::Came(_) => "came",
            Self::Done => "done",
        }
    }
}

pub(crate) struct RoleActor {
    deps: Arc<RunDeps>,
    role: Role,
    driver: Driver,
    tasks: BTreeMap<Key, TaskHandle>,
}

pub(crate) fn child(slot: Slot<RoleMsg>, role: Role, deps: Arc<RunDeps>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = Arc::clone(&deps);
        async move {
            let driver = Driver::new(role, Arc::clone(&deps.tools));
            Ok(RoleActor { deps, role, driver, tasks: BTreeMap::new() })
        }
    })
    // It holds nothing that is not in the trace.
    .shutdown(Shutdown::Brutal)
}

impl Actor for RoleActor {
    type Msg = RoleMsg;

    async fn started(&mut self, cx: &mut Context<RoleMsg>) -> Result<(), Failure> {
        cx.send_interval(LOOK, || RoleMsg::Tick)?;
        self.step(Input::Look, cx)
    }

    async fn handle(&mut self, msg: RoleMsg, cx: &mut Context<RoleMsg>) -> Result<(), Failure> {
        match msg {
            RoleMsg::Moved | RoleMsg::Tick => self.step(Input::Look, cx),
            RoleMsg::Came(input) => self.step(input, cx),
            RoleMsg::Done => Ok(()),
        }
    }
}

/// What a piped future brings back.
fn came(input: Input) -> RoleMsg {
    RoleMsg::Came(input)
}

impl RoleActor {
    fn step(&mut self, input: Input, cx: &mut Context<RoleMsg>) -> Result<(), Failure> {
        let board = Arc::clone(&self.deps.board.borrow());
        let fresh = || InvocationId::fresh().to_string();
        let actions = self.driver.step(input, &board, Timestamp::now().millis(), &fresh);
        if actions.is_empty() {
            return Ok(());
        }
        for action in actions {
            self.carry_out(action, cx)?;
        }
        Ok(())
    }

    /// A span of this role in the run's trace.
    fn span(&self, what: &'static str, key: &Key) -> tracing::Span {
        let (role, trace) = (self.role.as_str(), self.deps.trace);
        let name = format!("{role} {what}");
        let span = tracing::info_span!(
            target: "choir::ledger", parent: None, "role", otel.name = name, choir.ledger.trace = %trace,
            choir.ledger.role = role, choir.ledger.need = ?key
        );
        (self.deps.adopt)(&span);
        span
    }

    fn carry_out(&mut self, action: Action, cx: &mut Context<RoleMsg>) -> Result<(), Failure> {
        match action {
            Action::Ask(key, question) => self.ask(key, question, cx),
            Action::Pause(key, pause) => {
                cx.send_after(pause, came(Input::Paused(key)))?;
                Ok(())
            }
            Action::Place(key) => {
                let (hands, agent) = (Arc::clone(&self.deps.hands), self.deps.agent.clone());
                let span = self.span("finds its agent", &key);
                let place = async move { hands.place(agent).await }.instrument(span);
                self.pipe(key, place, cx, Input::Placed)
            }
            Action::Run { key, execution, tool, input, place } => {
                self.run(key, execution, tool, &input, place, cx)
            }
            Action::Verify(key) => {
                let (archive, scribe) = (Arc::clone(&self.deps.archive), self.deps.scribe.clone());
                let span = self.span("verifies", &key);
                let verify = async move {
                    let ready = scribe.call(SCRIBE, |reply| ScribeMsg::Checkpoint { reply }).await;
                    ready.map_err(|error| error.to_string())??;
                    let report = tokio::time::timeout(VERIFY_WITHIN, archive.verify()).await;
                    report.unwrap_or_else(|_| Err(format!("it took longer than {VERIFY_WITHIN:?}")))
                };
                self.pipe(key, verify.instrument(span), cx, Input::Verified)
            }
            Action::Keep(report) => {
                let archive = Arc::clone(&self.deps.archive);
                cx.pipe_to_self(async move { archive.keep(report).await }, |()| RoleMsg::Done)?;
                Ok(())
            }
            Action::Submit { key, drafts, seen } => {
                let (scribe, role) = (self.deps.scribe.clone(), self.role);
                let span = self.span("submits", &key);
                let submit = async move {
                    let call = scribe.call(SCRIBE, |reply| ScribeMsg::Submit { role, drafts, seen, reply });
                    call.await.unwrap_or_else(|error| Err(NotAppended::Unavailable(error.to_string())))
                };
                self.pipe(key, submit.instrument(span), cx, Input::Submitted)
            }
            Action::Drop(key) => {
                if let Some(task) = self.tasks.remove(&key) {
                    task.abort();
                }
                Ok(())
            }
            Action::Fail { reason, refused } => {
                let scribe = self.deps.scribe.clone();
                let end = ScribeMsg::End { ending: Ending::Failed, reason, refused };
                // If the scribe is between two lives, the need is still there at the next look of the next driver; the
                // mail itself waits for the scribe.
                cx.pipe_to_self(async move { scribe.send(end).await }, |_| RoleMsg::Done)?;
                Ok(())
            }
        }
    }

    fn pipe<T: Send + 'static>(
        &mut self,
        key: Key,
        work: impl Future<Output = T> + Send + 'static,
        cx: &mut Context<RoleMsg>,
        input: fn(Key, T) -> Input,
    ) -> Result<(), Failure> {
        let of = key.clone();
        let task = cx.pipe_to_self(work, move |result| came(input(of, result)))?;
        self.tasks.insert(key, task);
        Ok(())
    }

    fn ask(&mut self, key: Key, question: Question, cx: &mut Context<RoleMsg>) -> Result<(), Failure> {
        let models = self.deps.models.clone();
        let lane = self.deps.lane.clone();
        let span = self.span("asks", &key);
        let ask = async move {
            let request = ModelRequest { turns: question.turns, tools: question.tools };
            let (limited, _was_limited) = reply_port();
            let (reply, answer) = reply_port();
            let call = ModelCallId::fresh();
            let complete = ModelsMsg::Complete { call, lane, request, limited, reply };
            models.send(complete).await.map_err(|error| error.to_string())?;
            match answer.await {
                Ok(answer) => answer.map_err(|failure| failure.to_string()),
                Err(_) => Err("the models actor was restarted".to_owned()),
            }
        };
        self.pipe(key, ask.instrument(span), cx, Input::Answered)
    }

    /// Runs a tool, for as long as the task's time lasts.
    fn run(
        &mut self,
        key: Key,
        execution: String,
        tool: String,
        input: &str,
        place: Option<(String, u64)>,
        cx: &mut Context<RoleMsg>,
    ) -> Result<(), Failure> {
        let board = Arc::clone(&self.deps.board.borrow());
        let budget = board.task.as_ref().map_or(0, |(task, _)| task.time_budget().saturating_mul(1000));
        let until = board.began.saturating_add(budget);
        let left = Duration::from_millis(until.saturating_sub(Timestamp::now().millis())).min(TOOL_WITHIN);
        let invocation = execution.strip_prefix("exec_").and_then(|id| id.parse::<InvocationId>().ok());
        let (hands, agent) = (Arc::clone(&self.deps.hands), self.deps.agent.clone());
        let span = self.span("runs a tool", &key);
        let input = input.to_owned();
        let run = async move {
            let Some(invocation) = invocation else {
                return ToolOutcome::says(ToolStatus::Refused, "the execution's id is none of this Choir");
            };
            let call = HandsCall { agent: agent.clone(), invocation, tool, input, place };
            let mut run = hands.run(call);
            if let Ok(outcome) = tokio::time::timeout(left, &mut run).await {
                return outcome;
            }
            hands.stop(agent, invocation).await;
            tokio::time::timeout(STOPPING, run).await.unwrap_or_else(|_| {
                ToolOutcome::says(
                    ToolStatus::OutcomeUnknown,
                    "the task's time was used up, and the call did not say that it was stopped",
                )
            })
        };
        self.pipe(key, run.instrument(span), cx, Input::Ran)
    }
}
