//! The edge lane's actor: feeds the state machine and carries its actions out. It waits for nobody: model calls and
//! proposals are pipes, so its mailbox is always drained.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_messages::id::{AgentId, MessageId, ModelCallId};
use choir_messages::json::Json;
use choir_messages::mail::{
    ArbiterMsg, EdgeMsg, JournalMsg, ModelsMsg, Proposal, ProposalRefused, UplinkMsg,
};
use choir_messages::model::{ModelRequest, Turn};
use choir_messages::reply::{ReplyTo, reply_port};
use choir_messages::tool::{Lane, ToolView};
use choir_messages::wire::LaneStatus;
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, Slot};
use tracing::Instrument as _;

use crate::core::{Action, Edge, Input};
use crate::prompt::{Identity, system_prompt};
use crate::trace::{Adopt, TurnTrace};

/// Longest wait for a neighbour in the same process.
const NEIGHBOUR: Duration = Duration::from_secs(10);

/// Pause before something refused is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// What an edge lane needs to start.
#[derive(Clone)]
pub struct EdgeDeps {
    /// Whose lane.
    pub agent: AgentId,
    /// `USER.md` and `SOUL.md`.
    pub identity: Identity,
    /// The tools' views, as the model gets them.
    pub tools: Arc<[ToolView]>,
    /// Where the log is.
    pub journal: Address<JournalMsg>,
    /// Who commits.
    pub arbiter: Address<ArbiterMsg>,
    /// Who calls models.
    pub models: Address<ModelsMsg>,
    /// Who knows the budgets.
    pub uplink: Address<UplinkMsg>,
    /// Who knows where a message came from.
    pub adopt: Adopt,
}

/// The message for which a lane of this process asked the model last. It outlives the lane, for no event says that a
/// model was asked.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<Mutex<Option<MessageId>>>);

impl Asked {
    fn set(&self, message: MessageId) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
    }

    fn get(&self) -> Option<MessageId> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lane that talks to the user.
pub struct EdgeActor {
    deps: EdgeDeps,
    core: Edge,
    asked: Asked,
    system: Turn,
    drains: Vec<ReplyTo<()>>,
    drained: bool,
    trace: TurnTrace,
}

/// The edge lane's place in the tree.
#[must_use]
pub fn child_spec(slot: Slot<EdgeMsg>, deps: EdgeDeps) -> ChildSpec {
    let asked = Asked::default();
    ChildSpec::worker(slot, move |_| {
        let (deps, asked) = (deps.clone(), asked.clone());
        async move {
            let view = deps.journal.call(NEIGHBOUR, |reply| JournalMsg::View { reply }).await?;
            let current = deps.uplink.call(NEIGHBOUR, |reply| UplinkMsg::Current { reply }).await?;
            let budgets = current.map(|(settings, _)| settings.budgets).unwrap_or_default();
            let system = Turn::System(system_prompt(&deps.agent, &deps.identity));
            let core = Edge::new(Arc::unwrap_or_clone(view), budgets, asked.get());
            let trace = TurnTrace::new(deps.agent.clone(), Arc::clone(&deps.adopt));
            let drains = Vec::new();
            Ok::<_, Failure>(EdgeActor { deps, core, asked, system, drains, drained: false, trace })
        }
    })
}

impl Actor for EdgeActor {
    type Msg = EdgeMsg;

    async fn started(&mut self, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        self.step(Input::Begin, cx).await
    }

    async fn handle(&mut self, msg: EdgeMsg, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        let input = match msg {
            EdgeMsg::Committed { events } => {
                self.trace.heard(&events);
                Input::Committed(events)
            }
            EdgeMsg::Answered { call, result } => Input::Answered(call, result),
            EdgeMsg::Limited { call, wait_ms } => Input::Limited(call, wait_ms),
            EdgeMsg::Proposed { result } => Input::Proposed(result.map(|_| ())),
            EdgeMsg::Settings(settings) => Input::Budgets(settings.budgets),
            EdgeMsg::Drain { reply } => {
                if self.drained {
                    reply.send(());
                } else {
                    self.drains.push(reply);
                }
                Input::Drain
            }
            EdgeMsg::Status { reply } => {
                reply.send(LaneStatus {
                    lane: Lane::Edge,
                    state: self.core.state().name().to_owned(),
                    spent: self.core.view().spent,
                    tree: Json::default(),
                });
                return Ok(());
            }
            EdgeMsg::Retry => Input::Retry,
        };
        self.step(input, cx).await
    }
}

impl EdgeActor {
    async fn step(&mut self, input: Input, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        let actions = self.core.step(input);
        let turn = self.trace.follow(self.core.view());
        self.carry_out(actions, cx).instrument(turn).await
    }

    async fn carry_out(&mut self, actions: Vec<Action>, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        for action in actions {
            match action {
                Action::Ask(call) => self.ask(call, cx).await?,
                Action::CancelAsk(call) => {
                    let _ = self.deps.models.send(ModelsMsg::Cancel { call }).await;
                }
                Action::Propose(proposal) => self.propose(proposal, cx)?,
                Action::Resync => {
                    let view = self.deps.journal.call(NEIGHBOUR, |reply| JournalMsg::View { reply }).await?;
                    self.core.resync(Arc::unwrap_or_clone(view));
                    cx.send_after(Duration::ZERO, EdgeMsg::Retry)?;
                }
                Action::RetryLater => {
                    cx.send_after(RETRY, EdgeMsg::Retry)?;
                }
                Action::Drained => {
                    self.drained = true;
                    self.drains.drain(..).for_each(|reply| reply.send(()));
                }
            }
        }
        Ok(())
    }

    async fn ask(&self, call: ModelCallId, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        if let Some(turn) = &self.core.view().turn {
            self.asked.set(turn.message);
        }
        let transcript = &self.core.view().transcript;
        let mut turns = Vec::with_capacity(transcript.len() + 1);
        turns.push(self.system.clone());
        turns.extend(transcript.iter().map(|turn| Turn::clone(turn)));
        let request = ModelRequest { turns, tools: Arc::clone(&self.deps.tools) };
        let (limited, was_limited) = reply_port();
        let (reply, answer) = reply_port();
        let complete = ModelsMsg::Complete { call, lane: Lane::Edge, request, limited, reply };
        // If the models actor takes nothing, the dropped port below says so.
        let _ = self.deps.models.send(complete).await;
        cx.pipe_to_self(answer, move |answer| EdgeMsg::Answered { call, result: answer.ok() })?;
        let address = cx.address();
        cx.pipe_to_self(
            async move {
                if let Ok(wait_ms) = was_limited.await {
                    let _ = address.send(EdgeMsg::Limited { call, wait_ms }).await;
                }
            },
            |()| EdgeMsg::Retry,
        )?;
        Ok(())
    }

    fn propose(&self, proposal: Proposal, cx: &mut Context<EdgeMsg>) -> Result<(), Failure> {
        let arbiter = self.deps.arbiter.clone();
        cx.pipe_to_self(
            async move {
                let call = arbiter.call(NEIGHBOUR, |reply| ArbiterMsg::Propose {
                    lane: Lane::Edge,
                    proposal,
                    reply,
                });
                call.await.unwrap_or(Err(ProposalRefused::NoJournal))
            },
            |result| EdgeMsg::Proposed { result },
        )?;
        Ok(())
    }
}
