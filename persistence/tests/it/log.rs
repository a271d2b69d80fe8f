//! An agent's log as a test writes it.

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{AgentId, InvocationId, MessageId, ModelCallId, SessionId};
use choir_messages::json::Json;
use choir_messages::model::Usage;
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use choir_persistence::store::sessions::SessionRow;
use choir_persistence::{Ack, AppendError, Store};

pub(crate) fn agent(name: &str) -> AgentId {
    name.parse().unwrap()
}

/// Builds events one after the other.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) row: SessionRow,
    pub(crate) head: Head,
}

impl Log {
    pub(crate) fn of(row: SessionRow) -> Self {
        let head = row.head;
        Self { row, head }
    }

    pub(crate) fn add(&mut self, body: EventBody) -> Event {
        let at = Timestamp::from_millis(1_700_000_000_000 + self.head.rev);
        let (event, _) = Event::append(self.row.session, self.head, at, Lane::Edge, body).unwrap();
        self.head = event.head();
        event
    }

    pub(crate) fn open(&mut self) -> Event {
        self.add(EventBody::SessionOpened { agent: self.row.agent.clone(), tool_manifest: Digest::ZERO })
    }

    /// A message and its answer, without tools.
    pub(crate) fn exchange(&mut self, message: MessageId, answer: &str) -> Vec<Event> {
        vec![
            self.user(message),
            self.says(message, answer),
            self.close(message, MessageOutcome::Answered, answer),
        ]
    }

    pub(crate) fn user(&mut self, message: MessageId) -> Event {
        self.add(EventBody::UserMsg { message, text: "hello \0 there".to_owned() })
    }

    pub(crate) fn says(&mut self, message: MessageId, text: &str) -> Event {
        self.output(message, Some(text.to_owned()), Vec::new())
    }

    pub(crate) fn calls(&mut self, message: MessageId, invocation: InvocationId) -> Event {
        let call = ToolCall { provider_id: "1".to_owned(), tool: "t".to_owned(), arguments: "{}".to_owned() };
        self.output(message, None, vec![(invocation, call)])
    }

    fn output(
        &mut self,
        message: MessageId,
        text: Option<String>,
        calls: Vec<(InvocationId, ToolCall)>,
    ) -> Event {
        self.add(EventBody::ModelOutput {
            call: ModelCallId::from_bits(1),
            message,
            text,
            calls,
            usage: Usage::default(),
            model: "m".to_owned(),
        })
    }

    pub(crate) fn close(&mut self, message: MessageId, outcome: MessageOutcome, text: &str) -> Event {
        self.add(EventBody::MessageClosed { message, outcome, text: text.to_owned() })
    }

    pub(crate) fn request(&mut self, invocation: InvocationId) -> Event {
        let input = Json(serde_json::json!({}));
        self.add(EventBody::ToolCallRequested { invocation, tool: "t\0".to_owned(), input })
    }

    pub(crate) fn commit(&mut self, invocation: InvocationId) -> Event {
        self.add(EventBody::ToolCallCommitted {
            invocation,
            tool: "t\0".to_owned(),
            locks: Vec::new(),
            side_effect: SideEffect::Write,
            replay: Replay::Unrepeatable,
        })
    }

    pub(crate) fn result(&mut self, invocation: InvocationId) -> Event {
        let outcome = ToolOutcome::says(ToolStatus::Success, "done\0");
        self.add(EventBody::ToolResultCommitted { invocation, outcome })
    }

    /// A harmless event, to make a log long.
    pub(crate) fn config(&mut self, version: u64) -> Event {
        self.add(EventBody::ConfigApplied { version })
    }

    pub(crate) async fn append(&self, store: &Store, events: Vec<Event>) -> Result<Ack, AppendError> {
        store.append(self.row.session, self.row.lease, self.row.generation, events).await
    }
}

/// A new session of a registered agent, with its first event durable.
pub(crate) async fn session(store: &Store, name: &str) -> Log {
    let name = agent(name);
    store.register_agent(&name).await.unwrap();
    let mut log = Log::of(store.open_or_resume_session(&name, &[], false).await.unwrap());
    let first = log.open();
    log.append(store, vec![first]).await.unwrap();
    log
}

pub(crate) fn id(n: u128) -> MessageId {
    MessageId::from_bits(n)
}

pub(crate) fn call(n: u128) -> InvocationId {
    InvocationId::from_bits(n)
}

pub(crate) fn unknown_session() -> SessionId {
    SessionId::from_bits(99)
}
