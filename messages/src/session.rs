//! What a session's log says: the fold of its events into the state that lanes, the arbiter and recovery work from.
//!
//! [`SessionView::apply`] is the one definition of a legal log. The arbiter proposes nothing it refuses, the host
//! stores nothing it refuses, and a snapshot is this value and nothing else (`choir §13`). Its size is bounded, so a
//! hostile log can be folded safely.
//!
//! The numbered rules (each has its [`Illegal`] variant):
//! 1. The log opens with `SessionOpened`, once.
//! 2. A user message is recorded at most once and closed at most once, and only after it was recorded.
//! 3. Only the message at the head of the queue is worked on.
//! 4. A model answers only when no call of its turn is open.
//! 5. A call is proposed, then requested, then committed, then has exactly one result; a result may come at any stage.
//! 6. A message is closed as answered or failed only when none of its calls is open.
//! 7. A call of the host is asked for, then goes the way of rule 5; it has nothing to do with the turn.

mod host_calls;
mod views;

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::{Event, EventBody, Head, MessageOutcome, Revision};
use crate::id::{AgentId, InvocationId, MessageId, SessionId};
use crate::json::{self, Json};
use crate::limits;
use crate::model::Turn;
use crate::tool::{ToolCall, ToolOutcome, ToolStatus};

pub use views::{
    CallStage, CallView, HostCallView, Illegal, Next, QueuedMessage, Rule, Spent, TurnEnd, TurnView,
};

/// Message ids remembered so that a repeat is recognised. The host resends only what is not durable there, so this
/// needs to cover the replication lag, with a wide margin.
pub const REMEMBERED_MESSAGES: usize = 1024;

/// Transcript entries kept in the view. Whole turns are dropped from the front; the log keeps everything.
pub const TRANSCRIPT_ENTRIES: usize = 256;

/// Bytes of text kept in the transcript, likewise.
pub const TRANSCRIPT_BYTES: usize = 192 * 1024;

/// Instructions waiting for a safe point.
pub const PENDING_INJECTIONS: usize = 16;

/// Ids of ended host calls remembered so that a repeated signal is recognised: the host repeats only what has no durable
/// result yet, so this covers the open ones with a wide margin.
pub const REMEMBERED_HOST_CALLS: usize = 256;

/// The state of a session; see the module's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionView {
    /// The session.
    pub session: SessionId,
    /// Whose it is, once opened.
    pub agent: Option<AgentId>,
    /// Where the chain stands.
    pub head: Head,
    /// Open messages in order; the first has the turn.
    pub queue: VecDeque<QueuedMessage>,
    /// The turn of the first, if any.
    pub turn: Option<TurnView>,
    /// What the model is shown, without the current turn's unpaired calls.
    pub transcript: Vec<Arc<Turn>>,
    /// Counters.
    pub spent: Spent,
    /// Instructions waiting until no call is open.
    pub injections: Vec<String>,
    /// The newest configuration in force.
    pub config_version: u64,
    /// Ids of recorded messages and requests, newest last.
    pub recorded: VecDeque<MessageId>,
    /// Open calls of the host.
    #[serde(default)]
    pub host_calls: Vec<HostCallView>,
    /// Ids of the host's calls that have their result, newest last.
    #[serde(default)]
    pub host_calls_done: VecDeque<InvocationId>,
}

impl SessionView {
    /// The state of a log with nothing in it.
    #[must_use]
    pub const fn new(session: SessionId) -> Self {
        Self {
            session,
            agent: None,
            head: Head::START,
            queue: VecDeque::new(),
            turn: None,
            transcript: Vec::new(),
            spent: Spent { tokens: 0, model_calls: 0, tool_calls: 0, messages: 0 },
            injections: Vec::new(),
            config_version: 0,
            recorded: VecDeque::new(),
            host_calls: Vec::new(),
            host_calls_done: VecDeque::new(),
        }
    }

    /// Whether a message or request with this id is already in the log.
    #[must_use]
    pub fn has_recorded(&self, id: MessageId) -> bool {
        self.recorded.iter().rev().any(|known| *known == id)
    }

    /// What must happen next.
    #[must_use]
    pub fn next(&self) -> Next {
        match &self.turn {
            None => Next::Idle,
            Some(turn) if turn.calls.iter().any(CallView::is_open) => Next::Tools,
            Some(TurnView { end: TurnEnd::Open, .. }) => Next::Model,
            Some(_) => Next::Close,
        }
    }

    /// A call of the current turn.
    #[must_use]
    pub fn call(&self, invocation: InvocationId) -> Option<&CallView> {
        self.turn.as_ref()?.calls.iter().find(|call| call.invocation == invocation)
    }

    /// Folds one event in. The chain (session, revision, hashes) is [`Event::check`]'s business; this checks meaning.
    /// On an error the view is unchanged.
    pub fn apply(&mut self, event: &Event) -> Result<(), Illegal> {
        self.apply_body(event.rev, &event.body).map_err(|rule| Illegal { rev: event.rev, rule })?;
        self.head = event.head();
        Ok(())
    }

    /// Whether a body may come next, without changing anything.
    pub fn permits(&self, body: &EventBody) -> Result<(), Rule> {
        // Checks come before changes in every arm of `apply_body`, so a trial on a copy of the small parts would do
        // the same; the copy is simpler to trust and off the hot path.
        self.clone().apply_body(self.head.rev.saturating_add(1), body)
    }

    fn apply_body(&mut self, rev: Revision, body: &EventBody) -> Result<(), Rule> {
        if matches!(body, EventBody::SessionOpened { .. }) != self.agent.is_none() {
            return Err(Rule::OpensOnce);
        }
        match body {
            EventBody::SessionOpened { agent, .. } => self.agent = Some(agent.clone()),
            EventBody::UserMsg { message, text } => {
                if self.has_recorded(*message) {
                    return Err(Rule::MessageOnce);
                }
                if self.queue.len() >= limits::USER_QUEUE || text.len() > limits::USER_MESSAGE_BYTES {
                    return Err(Rule::Bound);
                }
                self.remember(*message);
                self.queue.push_back(QueuedMessage { message: *message, text: text.clone() });
                self.begin_turn();
            }
            EventBody::TurnResumed { message } => {
                let turn = self.working_on(*message)?;
                turn.resumes = turn.resumes.saturating_add(1);
                turn.stalled = turn.stalled.saturating_add(1);
            }
            EventBody::ModelOutput { message, text, calls, usage, .. } => {
                let turn = self.working_on(*message)?;
                if turn.end != TurnEnd::Open || turn.calls.iter().any(CallView::is_open) {
                    return Err(Rule::NoOpenCall);
                }
                let long = |(_, call): &(InvocationId, ToolCall)| {
                    call.arguments.len() > limits::TOOL_INPUT_BYTES
                        || call.tool.len() > limits::MODEL_NAME_BYTES
                        || call.provider_id.len() > limits::MODEL_NAME_BYTES
                };
                if calls.len() > limits::TOOL_CALLS_PER_ANSWER
                    || text.as_ref().is_some_and(|t| t.len() > limits::MODEL_TEXT_BYTES)
                    || calls.iter().any(long)
                {
                    return Err(Rule::Bound);
                }
                let more = text.as_ref().map_or(0, String::len)
                    + calls.iter().map(|(_, call)| call.arguments.len()).sum::<usize>();
                self.has_room(more)?;
                let turn = self.working_on(*message)?;
                turn.calls = calls
                    .iter()
                    .map(|(invocation, call)| CallView {
                        invocation: *invocation,
                        call: call.clone(),
                        stage: CallStage::Proposed,
                    })
                    .collect();
                turn.model_calls = turn.model_calls.saturating_add(1);
                turn.stalled = 0;
                if calls.is_empty() {
                    turn.end = TurnEnd::Answer(text.clone().unwrap_or_default());
                }
                self.spent.model_calls = self.spent.model_calls.saturating_add(1);
                self.spent.tokens = self.spent.tokens.saturating_add(usage.total());
                self.transcript.push(Arc::new(Turn::Assistant {
                    text: text.clone(),
                    calls: calls.iter().map(|(_, call)| call.clone()).collect(),
                }));
            }
            EventBody::ModelFailed { message, failure, .. } => {
                let turn = self.working_on(*message)?;
                if turn.end != TurnEnd::Open || turn.calls.iter().any(CallView::is_open) {
                    return Err(Rule::NoOpenCall);
                }
                turn.end = TurnEnd::Failure(failure.clone());
            }
            EventBody::ToolCallRequested { invocation, input, .. } => {
                let (call, of_turn) = self.open_call(*invocation)?;
                if call.stage != CallStage::Proposed {
                    return Err(Rule::CallOrder);
                }
                // Twice: escapes may lengthen what the model wrote.
                let text = input.0.to_string();
                if text.len() > 2 * limits::TOOL_INPUT_BYTES
                    || json::memory(text.as_bytes()) > limits::TOOL_INPUT_MEMORY
                {
                    return Err(Rule::Bound);
                }
                call.stage = CallStage::Requested { input: input.clone() };
                self.came_further(of_turn);
            }
            EventBody::ToolCallCommitted { invocation, locks, side_effect, replay, .. } => {
                let (call, of_turn) = self.open_call(*invocation)?;
                let CallStage::Requested { input } = &call.stage else { return Err(Rule::CallOrder) };
                if locks.len() > limits::LOCKS_PER_CALL {
                    return Err(Rule::Bound);
                }
                call.stage = CallStage::Committed {
                    input: input.clone(),
                    locks: locks.clone(),
                    side_effect: *side_effect,
                    replay: replay.clone(),
                    rev,
                };
                self.spent.tool_calls = self.spent.tool_calls.saturating_add(1);
                self.came_further(of_turn);
            }
            EventBody::ToolResultCommitted { invocation, outcome } => {
                let (_, of_turn) = self.open_call(*invocation)?;
                let bytes = outcome.output.0.to_string().len();
                if bytes > limits::TOOL_OUTCOME_BYTES {
                    return Err(Rule::Bound);
                }
                if of_turn {
                    self.has_room(bytes)?;
                    let (call, _) = self.open_call(*invocation)?;
                    call.stage = CallStage::Done { outcome: outcome.clone() };
                    self.came_further(of_turn);
                    self.pair_results();
                } else {
                    self.end_host_call(*invocation);
                }
            }
            EventBody::MemoryWriteCommitted { .. }
            | EventBody::CoreStarted { .. }
            | EventBody::CoreStopped { .. }
            | EventBody::Notice { .. } => {}
            EventBody::InjectedInstruction { message, text } => {
                if self.has_recorded(*message) {
                    return Err(Rule::MessageOnce);
                }
                if self.injections.len() >= PENDING_INJECTIONS || text.len() > limits::USER_MESSAGE_BYTES {
                    return Err(Rule::Bound);
                }
                self.has_room(text.len() + self.injections.iter().map(String::len).sum::<usize>())?;
                self.remember(*message);
                self.injections.push(text.clone());
                self.place_injections();
                self.trim();
            }
            EventBody::Cancelled { message, request } => {
                if self.has_recorded(*request) {
                    return Err(Rule::MessageOnce);
                }
                if let Some(message) = message {
                    self.working_on(*message)?.end = TurnEnd::Cancelled;
                }
                self.remember(*request);
            }
            EventBody::MessageClosed { message, outcome, text } => self.close(*message, *outcome, text)?,
            EventBody::ConfigApplied { version } => self.config_version = *version,
            EventBody::HostCallAsked { invocation, job, tool, arguments } => {
                self.ask_host_call(*invocation, job, tool, arguments)?;
            }
        }
        Ok(())
    }

    /// Bytes of text in the transcript.
    #[must_use]
    pub fn transcript_bytes(&self) -> usize {
        self.transcript.iter().map(|turn| turn_bytes(turn)).sum()
    }

    /// Whether the transcript may grow by `more` bytes.
    fn has_room(&self, more: usize) -> Result<(), Rule> {
        if self.transcript_bytes().saturating_add(more) > limits::TURN_BYTES_HARD {
            Err(Rule::Bound)
        } else {
            Ok(())
        }
    }

    fn remember(&mut self, id: MessageId) {
        if self.recorded.len() >= REMEMBERED_MESSAGES {
            self.recorded.pop_front();
        }
        self.recorded.push_back(id);
    }

    fn working_on(&mut self, message: MessageId) -> Result<&mut TurnView, Rule> {
        self.turn.as_mut().filter(|turn| turn.message == message).ok_or(Rule::HeadOfQueue)
    }

    /// An open call, and whether it is the turn's.
    fn open_call(&mut self, invocation: InvocationId) -> Result<(&mut CallView, bool), Rule> {
        let of_turn = self.turn.iter_mut().flat_map(|turn| turn.calls.iter_mut()).map(|call| (call, true));
        let of_host = self.host_calls.iter_mut().map(|open| (&mut open.call, false));
        of_turn
            .chain(of_host)
            .find(|(call, _)| call.invocation == invocation && call.is_open())
            .ok_or(Rule::CallOrder)
    }

    fn begin_turn(&mut self) {
        if self.turn.is_some() {
            return;
        }
        if let Some(first) = self.queue.front() {
            self.turn = Some(TurnView {
                message: first.message,
                resumes: 0,
                stalled: 0,
                model_calls: 0,
                calls: Vec::new(),
                end: TurnEnd::Open,
            });
            self.transcript.push(Arc::new(Turn::User(first.text.clone())));
        }
    }

    fn came_further(&mut self, of_turn: bool) {
        if let Some(turn) = self.turn.as_mut().filter(|_| of_turn) {
            turn.stalled = 0;
        }
    }

    /// Once every call of an answer has its result, the results join the transcript in the answer's order.
    fn pair_results(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        if turn.calls.iter().any(CallView::is_open) {
            return;
        }
        for call in std::mem::take(&mut turn.calls) {
            if let CallStage::Done { outcome } = call.stage {
                let content = result_text(&outcome);
                self.transcript
                    .push(Arc::new(Turn::ToolResult { provider_id: call.call.provider_id, content }));
            }
        }
        self.place_injections();
    }

    fn place_injections(&mut self) {
        if self.turn.as_ref().is_none_or(|turn| turn.calls.is_empty()) {
            for text in self.injections.drain(..) {
                self.transcript.push(Arc::new(Turn::User(text)));
            }
        }
    }

    fn close(&mut self, message: MessageId, outcome: MessageOutcome, text: &str) -> Result<(), Rule> {
        let at = self.queue.iter().position(|queued| queued.message == message).ok_or(Rule::MessageOnce)?;
        if at == 0 {
            let turn = self.turn.as_ref().ok_or(Rule::HeadOfQueue)?;
            if turn.calls.iter().any(CallView::is_open) {
                return Err(Rule::CloseAfterCalls);
            }
            if outcome == MessageOutcome::Answered && !matches!(turn.end, TurnEnd::Answer(_)) {
                return Err(Rule::CloseAfterCalls);
            }
            if outcome != MessageOutcome::Answered {
                // The model must know why its user got no answer; else the next turn reads as if it had given one.
                self.transcript
                    .push(Arc::new(Turn::Assistant { text: Some(format!("[{text}]")), calls: Vec::new() }));
            }
            self.turn = None;
        } else if matches!(outcome, MessageOutcome::Answered) {
            return Err(Rule::HeadOfQueue);
        }
        self.queue.remove(at);
        self.spent.messages = self.spent.messages.saturating_add(1);
        self.trim();
        self.begin_turn();
        Ok(())
    }

    /// Drops whole turns from the front of the transcript until it is within its bounds. A single turn beyond the bounds
    /// is dropped whole. Nothing is dropped while a turn is running (a waiting message may be closed meanwhile): no call
    /// is ever parted from its result, and no answer from its question.
    fn trim(&mut self) {
        if self.turn.is_some() {
            return;
        }
        let mut bytes: usize = self.transcript.iter().map(|turn| turn_bytes(turn)).sum();
        let mut entries = self.transcript.len();
        let mut cut = 0;
        while entries > TRANSCRIPT_ENTRIES || bytes > TRANSCRIPT_BYTES {
            // The rest is still too long: drop up to the next user's message, or everything.
            while let Some(dropped) = self.transcript.get(cut) {
                bytes -= turn_bytes(dropped);
                entries -= 1;
                cut += 1;
                if self.transcript.get(cut).is_none_or(|next| matches!(**next, Turn::User(_))) {
                    break;
                }
            }
        }
        self.transcript.drain(..cut);
    }
}

/// What the model reads of a result: `{"status":...,"output":...}`.
fn result_text(outcome: &ToolOutcome) -> String {
    #[derive(Serialize)]
    struct Shown<'a> {
        status: ToolStatus,
        output: &'a Json,
    }
    serde_json::to_string(&Shown { status: outcome.status, output: &outcome.output })
        .unwrap_or_else(|_| "{\"status\":\"error\"}".to_owned())
}

fn turn_bytes(turn: &Turn) -> usize {
    match turn {
        Turn::System(text) | Turn::User(text) => text.len(),
        Turn::Assistant { text, calls } => {
            text.as_ref().map_or(0, String::len)
                + calls.iter().map(|c| c.arguments.len() + c.tool.len() + c.provider_id.len()).sum::<usize>()
        }
        Turn::ToolResult { content, .. } => content.len(),
    }
}

#[cfg(test)]
mod tests;
