//! What was seen.

use std::collections::BTreeMap;

use choir_messages::chain::Digest;
use choir_messages::event::{Head, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, OutboundId, SessionId};
use choir_scripted_model::Entry;

/// A message that the client had confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its id.
    pub message: MessageId,
    /// The tag in its text, by which the model's endpoint knows it.
    pub tag: String,
    /// Lines that its calls may leave, each at most once.
    pub effects: Vec<String>,
}

/// A row of the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxRow {
    /// Its id.
    pub message: MessageId,
    /// How it ended.
    pub outcome: Option<MessageOutcome>,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// Its id.
    pub outbound: OutboundId,
    /// About which message.
    pub message: MessageId,
    /// `answer` or `notice`.
    pub kind: String,
    /// What it says.
    pub text: String,
    /// `prepared`, `sending`, `delivered`, ...
    pub state: String,
}

/// A row of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedEvent {
    /// The exact text that was hashed.
    pub canonical: String,
    /// The hash beside it.
    pub hash: Digest,
}

/// A row of the invocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvocationRow {
    /// The call.
    pub invocation: InvocationId,
    /// `committed` or how it ended.
    pub status: String,
}

/// Something that reached the client, in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its id.
    pub outbound: OutboundId,
    /// About which message.
    pub message: MessageId,
    /// `answer` or `notice`.
    pub kind: String,
    /// What it says.
    pub text: String,
    /// Whether it came as a possible repeat.
    pub repeat: bool,
}

/// Everything that was seen of one conversation.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The session.
    pub session: SessionId,
    /// Where the tables say that its log stands.
    pub head: Head,
    /// The messages, in the order in which they were sent.
    pub asked: Vec<Asked>,
    /// The inbox of this conversation.
    pub inbox: Vec<InboxRow>,
    /// The outbox of this conversation.
    pub outbox: Vec<OutboxRow>,
    /// The session's log.
    pub log: Vec<LoggedEvent>,
    /// The session's calls.
    pub invocations: Vec<InvocationRow>,
    /// What the client saw.
    pub said: Vec<Answer>,
    /// What the model's endpoint saw.
    pub requests: Vec<Entry>,
    /// Lines of the workspace and how often each is there.
    pub lines: BTreeMap<String, u32>,
    /// Leases held after the agent was stopped.
    pub leases: i64,
    /// Wounds that were dealt.
    pub wounds: u32,
}
