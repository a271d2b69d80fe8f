//! The arbiter's actor: commits through the journal, then carries out what the committed events ask for.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::event::{Event, EventBody};
use choir_messages::id::AgentId;
use choir_messages::limits::TOOL_OUTCOME_BYTES;
use choir_messages::mail::{
    Acquire, ArbiterMsg, EdgeMsg, JournalMsg, LocksMsg, Proposal, ProposalRefused, UplinkMsg,
};
use choir_messages::reply::{ReplyTo, reply_port};
use choir_messages::tool::{Lane, ToolOutcome, ToolStatus};
use choir_messages::wire::{SignalAck, SignalRefused};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, Slot};

use crate::core::{Answer, Arbiter, Decision, Effect, Input};
use crate::tools::ToolHost;

/// Longest wait for a neighbour in the same process.
const NEIGHBOUR: Duration = Duration::from_secs(5);

/// Longest wait of a call for its locks: long enough for a slow command to end, short enough that the model hears of it.
const LOCK_WAIT: Duration = Duration::from_secs(120);

/// What an arbiter needs to start.
#[derive(Clone)]
pub struct ArbiterDeps {
    /// Whose log it keeps.
    pub agent: AgentId,
    /// The keeper of the log.
    pub journal: Address<JournalMsg>,
    /// The lock manager.
    pub locks: Address<LocksMsg>,
    /// Who hears of commits.
    pub edge: Address<EdgeMsg>,
    /// Who knows the budgets.
    pub uplink: Address<UplinkMsg>,
    /// Rules and hands.
    pub tools: Arc<dyn ToolHost>,
}

/// The one that commits.
pub struct ArbiterActor {
    deps: ArbiterDeps,
    core: Arbiter,
}

/// The arbiter's place in the tree. A start reads the journal's view and voids the locks of an earlier life; its open
/// calls are taken up when the lane, which starts later, proposes to resume the turn.
#[must_use]
pub fn child_spec(slot: Slot<ArbiterMsg>, deps: ArbiterDeps) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = deps.clone();
        async move {
            let view = deps.journal.call(NEIGHBOUR, |reply| JournalMsg::View { reply }).await?;
            deps.locks.call(NEIGHBOUR, |reply| LocksMsg::NewEpoch { reply }).await?;
            let current = deps.uplink.call(NEIGHBOUR, |reply| UplinkMsg::Current { reply }).await?;
            let budgets = current.map(|(settings, _)| settings.budgets).unwrap_or_default();
            let core = Arbiter::new(deps.agent.clone(), Arc::unwrap_or_clone(view), budgets);
            Ok::<_, Failure>(ArbiterActor { deps, core })
        }
    })
}

impl Actor for ArbiterActor {
    type Msg = ArbiterMsg;

    async fn started(&mut self, cx: &mut Context<ArbiterMsg>) -> Result<(), Failure> {
        let decision = self.core.start(self.deps.tools.as_ref());
        self.carry_out(Lane::Edge, decision, cx)
            .await
            .map_err(|refused| Failure::new(refused.to_string()))?;
        Ok(())
    }

    async fn handle(&mut self, msg: ArbiterMsg, cx: &mut Context<ArbiterMsg>) -> Result<(), Failure> {
        match msg {
            ArbiterMsg::Signal { request, reply } => self.signal(request.signal, reply, cx).await,
            ArbiterMsg::Propose { lane, proposal, reply } => self.propose(lane, proposal, reply, cx).await,
            ArbiterMsg::Settings(settings) => self.core.set_budgets(settings.budgets),
            ArbiterMsg::Locked { invocation, result } => {
                self.go_on(Input::Locked(invocation, result), cx).await?;
            }
            ArbiterMsg::Prepared { invocation, result } => {
                self.go_on(Input::Prepared(invocation, result), cx).await?;
            }
            ArbiterMsg::Executed { invocation, outcome } => {
                let outcome = outcome.map(bounded);
                self.go_on(Input::Executed(invocation, outcome), cx).await?;
            }
        }
        Ok(())
    }
}

impl ArbiterActor {
    async fn signal(
        &mut self,
        signal: choir_messages::wire::Signal,
        reply: ReplyTo<SignalAck>,
        cx: &mut Context<ArbiterMsg>,
    ) {
        let lane = match &signal {
            choir_messages::wire::Signal::RunTool { job, .. } => Lane::Core(job.clone()),
            _ => Lane::Edge,
        };
        let mut decision = self.core.decide(Input::Signal(signal), self.deps.tools.as_ref());
        let answer = decision.answer.take();
        let ack = match (self.carry_out(lane, decision, cx).await, answer) {
            (Ok(_), Some(Answer::Now(ack))) => ack,
            (Ok(events), _) => match events.first() {
                Some(event) => SignalAck::Recorded { rev: event.rev },
                None => SignalAck::Refused(SignalRefused::NotReady),
            },
            (Err(refused), _) => {
                tracing::warn!(%refused, "a signal was not recorded");
                SignalAck::Refused(SignalRefused::NotReady)
            }
        };
        reply.send(ack);
    }

    async fn propose(
        &mut self,
        lane: Lane,
        proposal: Proposal,
        reply: ReplyTo<Result<Vec<Arc<Event>>, ProposalRefused>>,
        cx: &mut Context<ArbiterMsg>,
    ) {
        let decision = self.core.decide(Input::Propose(lane.clone(), proposal), self.deps.tools.as_ref());
        reply.send(self.carry_out(lane, decision, cx).await);
    }

    /// A step of a call that only the arbiter itself drives. If the journal cannot take it, this life of the arbiter is
    /// over: the next one takes the call up from the log.
    async fn go_on(&mut self, input: Input, cx: &mut Context<ArbiterMsg>) -> Result<(), Failure> {
        let decision = self.core.decide(input, self.deps.tools.as_ref());
        self.carry_out(Lane::Edge, decision, cx)
            .await
            .map_err(|refused| Failure::new(refused.to_string()))?;
        Ok(())
    }

    /// Commits, tells the lane, and starts the effects.
    async fn carry_out(
        &mut self,
        lane: Lane,
        decision: Decision,
        cx: &mut Context<ArbiterMsg>,
    ) -> Result<Vec<Arc<Event>>, ProposalRefused> {
        let mut effects = decision.effects;
        let mut events = Vec::new();
        if !decision.commit.is_empty() {
            events = self.append(lane, decision.commit).await?;
            effects.extend(self.core.committed(&events, self.deps.tools.as_ref()));
            for event in &events {
                tracing::debug!(rev = event.rev, kind = event.body.kind(), "committed");
            }
            // A lane that is being restarted reads the view; one that is merely full catches up by resynchronising.
            let _ = self.deps.edge.send(EdgeMsg::Committed { events: events.clone() }).await;
        }
        for effect in effects {
            self.start_effect(effect, cx).await;
        }
        Ok(events)
    }

    async fn append(&self, lane: Lane, bodies: Vec<EventBody>) -> Result<Vec<Arc<Event>>, ProposalRefused> {
        let appended = self
            .deps
            .journal
            .call(NEIGHBOUR, |reply| JournalMsg::Append { lane, bodies, reply })
            .await
            .map_err(|_| ProposalRefused::NoJournal)??;
        Ok(appended.events)
    }

    async fn start_effect(&self, effect: Effect, cx: &mut Context<ArbiterMsg>) {
        let tools = Arc::clone(&self.deps.tools);
        let piped = match effect {
            Effect::Acquire { invocation, owner, locks } => {
                let (reply, answer) = reply_port();
                let wait_ms = u64::try_from(LOCK_WAIT.as_millis()).unwrap_or(u64::MAX);
                let acquire = Acquire { owner, invocation, locks, wait_ms, reply };
                let sent = self.deps.locks.send(LocksMsg::Acquire(acquire)).await;
                if let Err(error) = sent {
                    tracing::warn!(%error, "the lock manager takes no request");
                }
                cx.pipe_to_self(answer, move |answer| ArbiterMsg::Locked {
                    invocation,
                    // A lock manager that dies takes the arbiter with it; the restart takes the call up.
                    result: answer.unwrap_or(Err(choir_messages::mail::LockRefused::Void)),
                })
            }
            Effect::Release(invocation) => {
                if let Err(error) = self.deps.locks.send(LocksMsg::Release { invocation }).await {
                    tracing::warn!(%error, "the lock manager takes no release");
                }
                return;
            }
            Effect::Prepare(execution) => {
                let invocation = execution.invocation;
                cx.pipe_to_self(async move { tools.prepare(execution).await }, move |result| {
                    ArbiterMsg::Prepared { invocation, result }
                })
            }
            Effect::Execute(execution) => {
                let invocation = execution.invocation;
                cx.pipe_to_self(async move { tools.run(execution).await }, move |outcome| {
                    ArbiterMsg::Executed { invocation, outcome }
                })
            }
            Effect::Cancel(invocation) => {
                tools.cancel(invocation);
                return;
            }
        };
        if let Err(error) = piped {
            // Bounded by the calls of one answer, far below the limit of an actor's pipes.
            tracing::error!(%error, "an effect could not be started");
        }
    }
}

/// Cuts an outcome down to what the log takes. Executors bound their output themselves; this is the last line.
fn bounded(outcome: ToolOutcome) -> ToolOutcome {
    let bytes = outcome.output.0.to_string().len();
    if bytes <= TOOL_OUTCOME_BYTES {
        return outcome;
    }
    let mut cut = ToolOutcome::says(
        if outcome.status == ToolStatus::Success { ToolStatus::Error } else { outcome.status },
        "the tool's output is larger than can be kept; ask for less",
    );
    cut.cut_bytes = bytes as u64;
    cut
}
