//! The edge lane's state machine (`choir §7.2`), without I/O. What it does next follows from the log's fold
//! ([`SessionView::next`]) and from the two things in flight: one model call, one proposal.

use std::sync::Arc;

use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{MessageId, ModelCallId};
use choir_messages::limits::TURN_BYTES;
use choir_messages::mail::{Proposal, ProposalRefused};
use choir_messages::model::{ModelAnswer, ModelFailure};
use choir_messages::session::{Next, SessionView, TurnEnd};
use choir_messages::wire::Budgets;

/// What the lane is told.
#[derive(Debug, Clone)]
pub enum Input {
    /// Nothing: look at what is to be done (after a start).
    Begin,
    /// The arbiter committed these.
    Committed(Vec<Arc<Event>>),
    /// A model call ended; `None` when the models actor died.
    Answered(ModelCallId, Option<Result<ModelAnswer, ModelFailure>>),
    /// The provider limits the rate; the call waits this many milliseconds.
    Limited(ModelCallId, u64),
    /// The arbiter's answer to the open proposal.
    Proposed(Result<(), ProposalRefused>),
    /// New budgets.
    Budgets(Budgets),
    /// Take up nothing new.
    Drain,
    /// Try again what was refused for want of a neighbour.
    Retry,
}

/// What the lane does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Ask the model, with the view's transcript.
    Ask(ModelCallId),
    /// Give up a model call.
    CancelAsk(ModelCallId),
    /// Propose to the arbiter.
    Propose(Proposal),
    /// The view has a gap: read it from the journal again.
    Resync,
    /// Try again shortly.
    RetryLater,
    /// Drained: at a safe point, with nothing in flight.
    Drained,
}

/// The states of `choir §7.2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EdgeState {
    /// Waiting for a message.
    Idle,
    /// A message is taken up; the model is not asked yet.
    ContextReady,
    /// The model is asked.
    Reasoning,
    /// Tool calls are open.
    WaitingTool,
    /// The answer is being recorded.
    Finalizing,
    /// A budget is used up, or the session ends.
    Terminated,
}

impl EdgeState {
    /// The seed's name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "EDGE_IDLE",
            Self::ContextReady => "EDGE_CONTEXT_READY",
            Self::Reasoning => "EDGE_REASONING",
            Self::WaitingTool => "EDGE_WAITING_TOOL",
            Self::Finalizing => "EDGE_FINALIZING",
            Self::Terminated => "EDGE_TERMINATED",
        }
    }
}

/// The lane.
#[derive(Debug)]
pub struct Edge {
    view: SessionView,
    budgets: Budgets,
    asking: Option<ModelCallId>,
    /// A proposal is with the arbiter; one at a time keeps the lane's decisions in order with the log.
    proposing: bool,
    /// Notices wait for the open proposal.
    notices: Vec<Proposal>,
    /// The turn that was found open at the start, until the arbiter has said what becomes of it.
    found: Option<MessageId>,
    /// The message for which an earlier lane of this process asked the model last.
    asked: Option<MessageId>,
    /// The model's answer waits for the arbiter to take it.
    answer: Option<Proposal>,
    draining: bool,
    drained: bool,
}

/// Notices kept while a proposal is open; more are dropped, the first says it all.
const NOTICES: usize = 4;

impl Edge {
    /// A lane over the log so far. `asked` is the message for which an earlier lane of this process asked the model
    /// last, if there was one: with it the arbiter knows whether a turn found open was interrupted.
    #[must_use]
    pub fn new(view: SessionView, budgets: Budgets, asked: Option<MessageId>) -> Self {
        let found = view.turn.as_ref().map(|turn| turn.message);
        Self {
            view,
            budgets,
            asking: None,
            proposing: false,
            notices: Vec::new(),
            found,
            asked,
            answer: None,
            draining: false,
            drained: false,
        }
    }

    /// The fold the lane works from.
    #[must_use]
    pub const fn view(&self) -> &SessionView {
        &self.view
    }

    /// Replaces the fold, after [`Action::Resync`].
    pub fn resync(&mut self, view: SessionView) {
        if view.head.rev < self.view.head.rev {
            return;
        }
        // The events in between were not followed one by one; what they mean for what is in flight shows in the fold.
        let resumes = |view: &SessionView| view.turn.as_ref().map(|turn| (turn.message, turn.resumes));
        if resumes(&view) != resumes(&self.view) {
            self.found = None;
        }
        let asked = |view: &SessionView| {
            let turn = view.turn.as_ref();
            (view.spent.model_calls, turn.map(|turn| (turn.message, turn.end == TurnEnd::Open)))
        };
        if asked(&view) != asked(&self.view) {
            self.asking = None;
            self.answer = None;
        }
        self.view = view;
    }

    /// The state, by name.
    #[must_use]
    pub fn state(&self) -> EdgeState {
        match self.view.next() {
            _ if self.drained => EdgeState::Terminated,
            Next::Idle if self.budget_used_up().is_some() => EdgeState::Terminated,
            Next::Idle => EdgeState::Idle,
            Next::Model if self.asking.is_some() || self.answer.is_some() => EdgeState::Reasoning,
            Next::Model => EdgeState::ContextReady,
            Next::Tools => EdgeState::WaitingTool,
            Next::Close => EdgeState::Finalizing,
        }
    }

    /// Takes in one input.
    pub fn step(&mut self, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Begin | Input::Retry => {}
            Input::Committed(events) => {
                for event in &events {
                    if event.rev <= self.view.head.rev {
                        continue;
                    }
                    if event.prev != self.view.head.hash || self.view.apply(event).is_err() {
                        return vec![Action::Resync];
                    }
                    self.follow(&event.body, &mut actions);
                }
            }
            Input::Answered(call, result) => {
                if self.asking != Some(call) {
                    return actions;
                }
                self.asking = None;
                let turn = self.view.turn.as_ref().map(|turn| turn.message);
                match (turn, result) {
                    (Some(message), Some(Ok(answer))) => {
                        self.answer = Some(Proposal::Answer { message, call, answer });
                    }
                    (Some(message), Some(Err(failure))) => {
                        self.answer = Some(Proposal::ModelFailed { message, call, failure });
                    }
                    // The models actor died: the call is made again, a model call has no side effect.
                    (Some(_), None) => return vec![Action::RetryLater],
                    (None, _) => {}
                }
            }
            Input::Limited(call, wait_ms) => {
                if let Some(turn) = self.view.turn.as_ref().filter(|_| self.asking == Some(call))
                    && self.notices.len() < NOTICES
                {
                    let text = format!(
                        "The model's provider is limiting requests; trying again in {:.1} s.",
                        wait_ms as f64 / 1000.0
                    );
                    self.notices.push(Proposal::Notice { message: turn.message, text });
                }
            }
            Input::Proposed(result) => {
                self.proposing = false;
                match result {
                    // Nothing else is proposed before the turn that was found, so it is what the arbiter speaks of.
                    Ok(()) => self.found = None,
                    // The log moved on under the proposal (a cancel, say): look again with the newest view.
                    Err(ProposalRefused::Journal(choir_messages::mail::JournalError::Illegal(_))) => {
                        self.answer = None;
                        return vec![Action::Resync];
                    }
                    Err(ProposalRefused::Journal(_) | ProposalRefused::NoJournal) => {
                        return vec![Action::RetryLater];
                    }
                }
            }
            Input::Budgets(budgets) => self.budgets = budgets,
            Input::Drain => self.draining = true,
        }
        self.drive(&mut actions);
        actions
    }

    /// What a committed event means for what is in flight.
    fn follow(&mut self, body: &EventBody, actions: &mut Vec<Action>) {
        match body {
            EventBody::Cancelled { message: Some(_), .. } => {
                if let Some(call) = self.asking.take() {
                    actions.push(Action::CancelAsk(call));
                }
                self.answer = None;
            }
            EventBody::TurnResumed { .. } => self.found = None,
            EventBody::ModelOutput { .. } | EventBody::ModelFailed { .. } => self.answer = None,
            EventBody::MessageClosed { message, .. } if self.found == Some(*message) => {
                self.found = None;
            }
            _ => {}
        }
    }

    /// Starts whatever the log asks for next.
    fn drive(&mut self, actions: &mut Vec<Action>) {
        if self.proposing {
            return;
        }
        if let Some(notice) = (!self.notices.is_empty()).then(|| self.notices.remove(0)) {
            self.propose(notice, actions);
            return;
        }
        let Some(turn) = &self.view.turn else {
            self.settle(actions);
            return;
        };
        let message = turn.message;
        let next = self.view.next();
        if self.found == Some(message) && next != Next::Close {
            self.propose(Proposal::Resume { message, asked: self.asked == Some(message) }, actions);
            return;
        }
        match next {
            Next::Idle | Next::Tools => {}
            Next::Model => {
                if let Some(answer) = self.answer.clone() {
                    self.propose(answer, actions);
                } else if self.asking.is_none() {
                    self.ask(message, turn.model_calls, actions);
                }
            }
            Next::Close => {
                let (outcome, text) = match &turn.end {
                    TurnEnd::Answer(text) => (MessageOutcome::Answered, text.clone()),
                    TurnEnd::Failure(failure) => (MessageOutcome::Failed, failure.to_string()),
                    TurnEnd::Cancelled | TurnEnd::Open => {
                        (MessageOutcome::Failed, "Cancelled on request.".to_owned())
                    }
                };
                self.propose(Proposal::Close { message, outcome, text }, actions);
            }
        }
        self.settle(actions);
    }

    fn ask(&mut self, message: MessageId, model_calls: u32, actions: &mut Vec<Action>) {
        // A used-up budget of tool calls does not stop the model from answering with what it knows.
        let used_up = if self.view.spent.tokens >= self.budgets.total_session_tokens {
            Some("total_session_tokens")
        } else if model_calls >= self.budgets.max_model_calls_per_turn {
            Some("max_model_calls_per_turn")
        } else if self.view.transcript_bytes() > TURN_BYTES {
            Some("the length of one turn")
        } else {
            None
        };
        if let Some(which) = used_up {
            let text = ModelFailure::Budget { which: which.to_owned() }.to_string();
            self.propose(Proposal::Close { message, outcome: MessageOutcome::Failed, text }, actions);
        } else if !self.draining {
            let call = ModelCallId::fresh();
            self.asking = Some(call);
            actions.push(Action::Ask(call));
        }
    }

    fn propose(&mut self, proposal: Proposal, actions: &mut Vec<Action>) {
        self.proposing = true;
        actions.push(Action::Propose(proposal));
    }

    /// Says once that a draining lane is at a safe point.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        let busy = self.proposing || self.asking.is_some() || self.view.next() == Next::Tools;
        if self.draining && !self.drained && !busy {
            self.drained = true;
            actions.push(Action::Drained);
        }
    }

    fn budget_used_up(&self) -> Option<String> {
        let spent = self.view.spent;
        if spent.tokens >= self.budgets.total_session_tokens {
            Some("total_session_tokens".to_owned())
        } else if spent.tool_calls >= self.budgets.max_tool_calls_per_session {
            Some("max_tool_calls_per_session".to_owned())
        } else {
            None
        }
    }
}
