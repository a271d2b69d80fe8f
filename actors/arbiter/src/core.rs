//! The arbiter's rules, without I/O: what a proposal becomes ([`Arbiter::decide`]) and what committed events ask for
//! ([`Arbiter::committed`]).

mod host_call;
mod resume;

use std::collections::BTreeMap;
use std::sync::Arc;

use choir_messages::event::{Event, EventBody, MessageOutcome, Revision};
use choir_messages::id::{AgentId, InvocationId, MessageId};
use choir_messages::limits;
use choir_messages::mail::{Execution, LockRefused, Proposal};
use choir_messages::model::ModelFailure;
use choir_messages::session::{Rule, SessionView};
use choir_messages::tool::{Lane, LockSpec, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use choir_messages::wire::{Budgets, Signal, SignalAck, SignalRefused};

use crate::tools::{ToolRules, ValidCall};

/// Something the arbiter must decide on.
#[derive(Debug, Clone)]
pub enum Input {
    /// A host's signal.
    Signal(Signal),
    /// A lane's proposal.
    Propose(Lane, Proposal),
    /// The lock manager's word on a call.
    Locked(InvocationId, Result<(), LockRefused>),
    /// A call's replay guard, or why it cannot run.
    Prepared(InvocationId, Result<Replay, ToolOutcome>),
    /// A call's end; `None` when its executor died.
    Executed(InvocationId, Option<ToolOutcome>),
}

/// What an input becomes: events to append (all or none), then effects that need no event, and the answer to a signal.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    /// Bodies to append.
    pub commit: Vec<EventBody>,
    /// Effects beside those of the committed events.
    pub effects: Vec<Effect>,
    /// What a signal is answered; a commit that fails turns it into `NotReady`.
    pub answer: Option<Answer>,
}

/// The answer to a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// This.
    Now(SignalAck),
    /// The revision of the first committed event.
    Recorded,
}

/// What must be done in the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask for a call's locks.
    Acquire {
        /// The call.
        invocation: InvocationId,
        /// Who will hold them.
        owner: Lane,
        /// Which.
        locks: Vec<LockSpec>,
    },
    /// Give a call's locks back, or its place in the queue.
    Release(InvocationId),
    /// Work out a replay guard.
    Prepare(Execution),
    /// Run a call.
    Execute(Execution),
    /// Stop a running call.
    Cancel(InvocationId),
}

/// How far an open call has come in this life of the arbiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Locking,
    Preparing,
    Running,
}

/// An open call.
#[derive(Debug, Clone)]
struct Pending {
    lane: Lane,
    tool: String,
    call: ValidCall,
    phase: Phase,
    /// A committed call of an earlier life: run it with this guard once its locks are held again.
    again: Option<Again>,
}

/// A call that is run a second time.
#[derive(Debug, Clone)]
struct Again {
    /// By which its effect is recognised.
    replay: Replay,
    /// The resumption, which must be durable first: a call that ends its process is else tried without being counted.
    resumed: Revision,
}

/// The arbiter's state: the fold of the log, and the open calls.
#[derive(Debug)]
pub struct Arbiter {
    agent: AgentId,
    view: SessionView,
    budgets: Budgets,
    pending: BTreeMap<InvocationId, Pending>,
    /// The message whose turn an earlier life left open.
    left_open: Option<MessageId>,
}

impl Arbiter {
    /// An arbiter over the log so far.
    #[must_use]
    pub fn new(agent: AgentId, view: SessionView, budgets: Budgets) -> Self {
        let left_open = view.turn.as_ref().map(|turn| turn.message);
        Self { agent, view, budgets, pending: BTreeMap::new(), left_open }
    }

    /// The fold of the log so far.
    #[must_use]
    pub const fn view(&self) -> &SessionView {
        &self.view
    }

    /// New budgets; they bind what is decided from now on.
    pub const fn set_budgets(&mut self, budgets: Budgets) {
        self.budgets = budgets;
    }

    /// What an arbiter does first: open a fresh log. Calls that an earlier life left open wait for the lane, which
    /// starts after the arbiter and proposes to resume the turn it finds open.
    pub fn start(&self, rules: &dyn ToolRules) -> Decision {
        let mut decision = Decision::default();
        if self.view.agent.is_none() {
            decision.commit.push(EventBody::SessionOpened {
                agent: self.agent.clone(),
                tool_manifest: rules.manifest(),
            });
        }
        decision
    }

    /// What an input becomes. Changes nothing that a refused commit would have to undo.
    pub fn decide(&mut self, input: Input, rules: &dyn ToolRules) -> Decision {
        match input {
            Input::Signal(signal) => self.signal(signal, rules),
            Input::Propose(lane, proposal) => self.propose(&lane, proposal, rules),
            Input::Locked(invocation, result) => self.locked(invocation, result),
            Input::Prepared(invocation, guard) => self.prepared(invocation, guard),
            Input::Executed(invocation, outcome) => self.executed(invocation, outcome),
        }
    }

    /// Takes in committed events and says what they ask for.
    pub fn committed(&mut self, events: &[Arc<Event>], rules: &dyn ToolRules) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            // The journal checked it by the same rules; a difference would be a fault of this program.
            let applied = self.view.apply(event);
            debug_assert!(applied.is_ok(), "the journal took what the arbiter's view refuses: {applied:?}");
            match &event.body {
                EventBody::ToolCallRequested { invocation, tool, input } => {
                    let job = self.view.host_call(*invocation).map(|open| open.job.clone());
                    let lane = job.map_or_else(|| event.lane.clone(), Lane::Core);
                    if let Ok(call) = rules.validate(&lane, tool, &input.0.to_string()) {
                        effects.push(Effect::Acquire {
                            invocation: *invocation,
                            owner: lane.clone(),
                            locks: call.locks.clone(),
                        });
                        self.pending.insert(
                            *invocation,
                            Pending { lane, tool: tool.clone(), call, phase: Phase::Locking, again: None },
                        );
                    }
                }
                EventBody::ToolCallCommitted { invocation, side_effect, replay, .. } => {
                    if let Some(pending) = self.pending.get_mut(invocation) {
                        pending.phase = Phase::Running;
                        let durable_first = (*side_effect != SideEffect::Read).then_some(event.rev);
                        effects.push(Effect::Execute(execution(
                            *invocation,
                            pending,
                            durable_first,
                            replay.clone(),
                            false,
                        )));
                    }
                }
                EventBody::ToolResultCommitted { invocation, .. }
                    if self.pending.remove(invocation).is_some() =>
                {
                    effects.push(Effect::Release(*invocation));
                }
                EventBody::Cancelled { .. } => {
                    effects.extend(
                        self.pending
                            .iter()
                            .filter(|(_, pending)| {
                                pending.phase == Phase::Running && pending.lane == Lane::Edge
                            })
                            .map(|(invocation, _)| Effect::Cancel(*invocation)),
                    );
                }
                _ => {}
            }
        }
        if let Some(resumed) =
            events.iter().rev().find(|event| matches!(event.body, EventBody::TurnResumed { .. }))
        {
            self.take_up(resumed.rev, rules, &mut effects);
        }
        for event in events {
            if let EventBody::HostCallAsked { invocation, .. } = &event.body {
                self.take_up_host_call(*invocation, event.rev, rules, &mut effects);
            }
        }
        effects
    }

    fn signal(&self, signal: Signal, rules: &dyn ToolRules) -> Decision {
        let now = |ack| Decision { answer: Some(Answer::Now(ack)), ..Decision::default() };
        let refuse = |why| now(SignalAck::Refused(why));
        if self.view.agent.is_none() {
            return refuse(SignalRefused::NotReady);
        }
        let repeat = |id| self.view.has_recorded(id);
        let recorded = SignalAck::Recorded { rev: self.view.head.rev };
        match signal {
            Signal::UserMessage { message, .. } | Signal::Inject { message, .. } if repeat(message) => {
                now(recorded)
            }
            Signal::Cancel { request } if repeat(request) => now(recorded),
            Signal::UserMessage { text, .. } | Signal::Inject { text, .. }
                if text.len() > limits::USER_MESSAGE_BYTES =>
            {
                refuse(SignalRefused::TooLarge { limit: limits::USER_MESSAGE_BYTES as u64 })
            }
            Signal::UserMessage { message, text } => {
                if let Some(which) = self.budget_used_up() {
                    return refuse(SignalRefused::Budget { which });
                }
                let body = EventBody::UserMsg { message, text };
                if self.view.permits(&body).is_err() {
                    let waiting = u32::try_from(self.view.queue.len()).unwrap_or(u32::MAX);
                    return refuse(SignalRefused::QueueFull { waiting });
                }
                Decision { commit: vec![body], effects: Vec::new(), answer: Some(Answer::Recorded) }
            }
            Signal::Inject { message, text } => {
                let body = EventBody::InjectedInstruction { message, text };
                if self.view.permits(&body).is_err() {
                    let waiting = u32::try_from(self.view.injections.len()).unwrap_or(u32::MAX);
                    return refuse(SignalRefused::QueueFull { waiting });
                }
                Decision { commit: vec![body], effects: Vec::new(), answer: Some(Answer::Recorded) }
            }
            Signal::Cancel { request } => {
                let message = self.view.turn.as_ref().map(|turn| turn.message);
                let mut commit = vec![EventBody::Cancelled { message, request }];
                // Calls that do not run yet end here; running ones are stopped and end with their own outcome.
                commit.extend(
                    self.pending
                        .iter()
                        .filter(|(_, pending)| pending.phase != Phase::Running && pending.lane == Lane::Edge)
                        .map(|(invocation, _)| result(*invocation, stopped())),
                );
                Decision { commit, effects: Vec::new(), answer: Some(Answer::Recorded) }
            }
            Signal::RunTool { invocation, job, tool, arguments } => {
                self.run_tool(invocation, job, tool, arguments, rules)
            }
            Signal::StopTool { invocation } => self.stop_tool(invocation),
            Signal::ConfigChanged { .. } | Signal::ShutDown { .. } | Signal::KillActor { .. } => {
                now(SignalAck::Noted)
            }
        }
    }

    fn propose(&mut self, lane: &Lane, proposal: Proposal, rules: &dyn ToolRules) -> Decision {
        let mut decision = Decision::default();
        match proposal {
            Proposal::Answer { message, call, answer } => {
                let calls: Vec<(InvocationId, ToolCall)> =
                    answer.calls.into_iter().map(|call| (InvocationId::fresh(), call)).collect();
                decision.commit.push(EventBody::ModelOutput {
                    call,
                    message,
                    text: answer.text.clone(),
                    calls: calls.clone(),
                    usage: answer.usage,
                    model: answer.model,
                });
                if decision.commit.iter().any(|body| self.view.permits(body) == Err(Rule::Bound)) {
                    // Asking again would give the same; the user is told instead.
                    let failure = ModelFailure::TooLarge { limit: limits::EVENT_BYTES as u64 };
                    return self.propose(lane, Proposal::ModelFailed { message, call, failure }, rules);
                }
                if calls.is_empty() {
                    let text = answer.text.unwrap_or_default();
                    decision.commit.push(EventBody::MessageClosed {
                        message,
                        outcome: MessageOutcome::Answered,
                        text,
                    });
                }
                let open = self.pending.len() as u64;
                let mut left = self
                    .budgets
                    .max_tool_calls_per_session
                    .saturating_sub(self.view.spent.tool_calls.saturating_add(open));
                for (invocation, call) in &calls {
                    if left == 0 {
                        decision.commit.push(result(*invocation, over_budget()));
                    } else {
                        left -= 1;
                        self.take_on(*invocation, lane, call, rules, &mut decision);
                    }
                }
            }
            Proposal::ModelFailed { message, call, failure } => {
                let text = failure.to_string();
                decision.commit.push(EventBody::ModelFailed { call, message, failure });
                decision.commit.push(EventBody::MessageClosed {
                    message,
                    outcome: MessageOutcome::Failed,
                    text,
                });
            }
            Proposal::Close { message, outcome, text } => {
                decision.commit.push(EventBody::MessageClosed { message, outcome, text });
            }
            Proposal::Resume { message, asked } => self.resume(message, asked, lane, rules, &mut decision),
            Proposal::Notice { message, text } => decision.commit.push(EventBody::Notice { message, text }),
        }
        decision
    }

    /// A proposed call becomes a request, or a refusal the model reads.
    fn take_on(
        &self,
        invocation: InvocationId,
        lane: &Lane,
        call: &ToolCall,
        rules: &dyn ToolRules,
        decision: &mut Decision,
    ) {
        decision.commit.push(match rules.validate(lane, &call.tool, &call.arguments) {
            Ok(valid) => {
                EventBody::ToolCallRequested { invocation, tool: call.tool.clone(), input: valid.input }
            }
            Err(refused) => result(invocation, refused),
        });
    }

    fn locked(&mut self, invocation: InvocationId, granted: Result<(), LockRefused>) -> Decision {
        let mut decision = Decision::default();
        let Some(pending) = self.pending.get_mut(&invocation) else {
            if granted.is_ok() {
                decision.effects.push(Effect::Release(invocation));
            }
            return decision;
        };
        if pending.phase != Phase::Locking {
            return decision;
        }
        match granted {
            Err(LockRefused::Void) => {}
            Err(refused) => {
                let outcome = if pending.again.is_some() && pending.call.side_effect != SideEffect::Read {
                    unknown()
                } else {
                    ToolOutcome::says(ToolStatus::Error, &refused.to_string())
                };
                decision.commit.push(result(invocation, outcome));
            }
            Ok(()) => {
                if let Some(Again { replay, resumed }) = pending.again.take() {
                    pending.phase = Phase::Running;
                    let run = execution(invocation, pending, Some(resumed), replay, true);
                    decision.effects.push(Effect::Execute(run));
                } else if let Some(replay) = pending.call.replay.clone() {
                    decision.commit.push(committed(invocation, pending, replay));
                } else {
                    pending.phase = Phase::Preparing;
                    let run = execution(invocation, pending, None, Replay::Unrepeatable, false);
                    decision.effects.push(Effect::Prepare(run));
                }
            }
        }
        decision
    }

    fn prepared(&self, invocation: InvocationId, guard: Result<Replay, ToolOutcome>) -> Decision {
        let mut decision = Decision::default();
        if let Some(pending) = self.pending.get(&invocation).filter(|p| p.phase == Phase::Preparing) {
            decision.commit.push(match guard {
                Ok(replay) => committed(invocation, pending, replay),
                Err(outcome) => result(invocation, outcome),
            });
        }
        decision
    }

    fn executed(&self, invocation: InvocationId, outcome: Option<ToolOutcome>) -> Decision {
        let mut decision = Decision::default();
        if let Some(pending) = self.pending.get(&invocation) {
            let outcome = outcome.unwrap_or_else(|| match pending.call.side_effect {
                SideEffect::Read => {
                    ToolOutcome::says(ToolStatus::Error, "the tool failed without a result; try again")
                }
                SideEffect::Write | SideEffect::External => unknown(),
            });
            decision.commit.push(result(invocation, outcome));
        }
        decision
    }

    /// Which budget is used up, if any (`choir §7.6`).
    fn budget_used_up(&self) -> Option<String> {
        if self.view.spent.tokens >= self.budgets.total_session_tokens {
            Some("total_session_tokens".to_owned())
        } else if self.view.spent.tool_calls >= self.budgets.max_tool_calls_per_session {
            Some("max_tool_calls_per_session".to_owned())
        } else {
            None
        }
    }
}

fn execution(
    invocation: InvocationId,
    pending: &Pending,
    durable_first: Option<u64>,
    replay: Replay,
    again: bool,
) -> Execution {
    Execution {
        invocation,
        lane: pending.lane.clone(),
        tool: pending.tool.clone(),
        input: pending.call.input.clone(),
        durable_first,
        replay,
        again,
    }
}

fn committed(invocation: InvocationId, pending: &Pending, replay: Replay) -> EventBody {
    EventBody::ToolCallCommitted {
        invocation,
        tool: pending.tool.clone(),
        locks: pending.call.locks.clone(),
        side_effect: pending.call.side_effect,
        replay,
    }
}

fn result(invocation: InvocationId, outcome: ToolOutcome) -> EventBody {
    EventBody::ToolResultCommitted { invocation, outcome }
}

fn unknown() -> ToolOutcome {
    ToolOutcome::says(
        ToolStatus::OutcomeUnknown,
        "the process that ran this call ended before its result was recorded; it may or may not have taken effect: \
         check before you repeat it",
    )
}

fn stopped() -> ToolOutcome {
    ToolOutcome::says(ToolStatus::Cancelled, "the turn was cancelled before this call ran")
}

fn over_budget() -> ToolOutcome {
    ToolOutcome::says(
        ToolStatus::Refused,
        "the session's budget of tool calls is used up; answer with what is known",
    )
}
