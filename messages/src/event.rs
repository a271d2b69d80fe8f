//! The event log of a session (`choir §7.4`): the one record of what happened, hash-chained from its first entry.
//!
//! An event is appended by the arbiter only, streamed to the host at once, and there kept as its canonical text.

use serde::{Deserialize, Serialize};

use crate::canonical::{self, CanonicalError};
use crate::chain::Digest;
use crate::id::{AgentId, InvocationId, JobName, MessageId, ModelCallId, SessionId};
use crate::json::Json;
use crate::limits;
use crate::model::{ModelFailure, Usage};
use crate::time::Timestamp;
use crate::tool::{Lane, LockSpec, Replay, SideEffect, ToolCall, ToolOutcome};

/// Position in a session's log; the first event has revision 1, 0 means "nothing yet".
pub type Revision = u64;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The session it belongs to.
    pub session: SessionId,
    /// Its position, contiguous from 1.
    pub rev: Revision,
    /// When it was appended, by the appender's clock.
    pub at: Timestamp,
    /// The lane it is about.
    pub lane: Lane,
    /// What happened.
    pub body: EventBody,
    /// Hash of the event before; [`Digest::ZERO`] for the first.
    pub prev: Digest,
    /// SHA-256 of the canonical JSON of all the fields above.
    pub hash: Digest,
}

/// The hashed part of an event; its field names are the canonical JSON's.
#[derive(Serialize)]
struct Hashed<'a> {
    session: SessionId,
    rev: Revision,
    at: Timestamp,
    lane: &'a Lane,
    body: &'a EventBody,
    prev: Digest,
}

/// Why an event does not belong where it claims to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// Another session's event.
    #[error("revision {rev}: the event belongs to another session")]
    WrongSession {
        /// Revision of the event.
        rev: Revision,
    },
    /// A gap or a repeat.
    #[error("expected revision {expected}, found {found}")]
    WrongRevision {
        /// The revision that must come next.
        expected: Revision,
        /// The one that came.
        found: Revision,
    },
    /// `prev` is not the hash of the event before.
    #[error("revision {rev}: the link to the event before is broken")]
    BrokenLink {
        /// Revision of the event.
        rev: Revision,
    },
    /// The content does not match the hash.
    #[error("revision {rev}: the content does not match its hash")]
    WrongHash {
        /// Revision of the event.
        rev: Revision,
    },
    /// Larger than the log accepts.
    #[error("revision {rev}: the event is larger than {} bytes", limits::EVENT_BYTES)]
    TooLarge {
        /// Revision of the event.
        rev: Revision,
    },
    /// No canonical form.
    #[error("revision {rev}: {error}")]
    NotCanonical {
        /// Revision of the event.
        rev: Revision,
        /// Why.
        error: CanonicalError,
    },
}

/// Where a chain stands: the next event must follow this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Revision of the last event, 0 for none.
    pub rev: Revision,
    /// Its hash.
    pub hash: Digest,
}

impl Head {
    /// The head of an empty log.
    pub const START: Self = Self { rev: 0, hash: Digest::ZERO };
}

impl Event {
    /// Makes the event that follows `head`, and the canonical text that was hashed (without its `hash` field).
    pub fn append(
        session: SessionId,
        head: Head,
        at: Timestamp,
        lane: Lane,
        body: EventBody,
    ) -> Result<(Self, String), ChainError> {
        let rev = head.rev.saturating_add(1);
        let text =
            canonical_text(&Hashed { session, rev, at, lane: &lane, body: &body, prev: head.hash }, rev)?;
        let hash = Digest::of(text.as_bytes());
        Ok((Self { session, rev, at, lane, body, prev: head.hash, hash }, text))
    }

    /// Checks that this event follows `head` in `session` and that its hash is its content's. Returns the canonical
    /// text that was hashed, which is what the host stores.
    pub fn check(&self, session: SessionId, head: Head) -> Result<String, ChainError> {
        let rev = self.rev;
        if self.session != session {
            return Err(ChainError::WrongSession { rev });
        }
        if rev != head.rev.saturating_add(1) {
            return Err(ChainError::WrongRevision { expected: head.rev.saturating_add(1), found: rev });
        }
        if self.prev != head.hash {
            return Err(ChainError::BrokenLink { rev });
        }
        let text = self.canonical()?;
        if Digest::of(text.as_bytes()) != self.hash {
            return Err(ChainError::WrongHash { rev });
        }
        Ok(text)
    }

    /// The canonical text that is hashed: every field but `hash`.
    pub fn canonical(&self) -> Result<String, ChainError> {
        let Self { session, rev, at, lane, body, prev, hash: _ } = self;
        canonical_text(&Hashed { session: *session, rev: *rev, at: *at, lane, body, prev: *prev }, *rev)
    }

    /// Reads an event back from the canonical text the host stored and the hash stored beside it.
    pub fn from_canonical(text: &str, hash: Digest) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Stored {
            session: SessionId,
            rev: Revision,
            at: Timestamp,
            lane: Lane,
            body: EventBody,
            prev: Digest,
        }
        let Stored { session, rev, at, lane, body, prev } = serde_json::from_str(text)?;
        Ok(Self { session, rev, at, lane, body, prev, hash })
    }

    /// The head of the log once this event is in it.
    #[must_use]
    pub const fn head(&self) -> Head {
        Head { rev: self.rev, hash: self.hash }
    }
}

fn canonical_text(hashed: &Hashed<'_>, rev: Revision) -> Result<String, ChainError> {
    let inexact = |n: &u64| *n > canonical::SAFE_INTEGER;
    if let Some(number) = [rev, hashed.at.millis()].into_iter().chain(numbers(hashed.body)).find(inexact) {
        let error = CanonicalError::Inexact(number.to_string());
        return Err(ChainError::NotCanonical { rev, error });
    }
    let text = canonical::to_string(hashed).map_err(|error| ChainError::NotCanonical { rev, error })?;
    if text.len() > limits::EVENT_BYTES { Err(ChainError::TooLarge { rev }) } else { Ok(text) }
}

/// The integers of a body that have more than 53 bits. A canonical text would round large ones, and its event could not be
/// read again; only a hostile sandbox has such numbers.
fn numbers(body: &EventBody) -> [u64; 2] {
    match body {
        EventBody::ModelOutput { usage, .. } => [usage.prompt_tokens, usage.completion_tokens],
        EventBody::ModelFailed {
            failure:
                ModelFailure::RateLimited { waited_ms: number }
                | ModelFailure::Timeout { after_ms: number }
                | ModelFailure::TooLarge { limit: number },
            ..
        } => [*number, 0],
        EventBody::ToolResultCommitted { outcome, .. } => [outcome.cut_bytes, 0],
        EventBody::ConfigApplied { version } => [*version, 0],
        _ => [0, 0],
    }
}

/// How a user's message ended; each ends in exactly one of these (DESIGN §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageOutcome {
    /// The agent answered.
    Answered,
    /// It was not taken on (queue full, session over).
    Refused,
    /// The agent took it on and could not answer; the text says why.
    Failed,
    /// It waited too long.
    Expired,
}

/// What happened. The names are the seed's (`choir §7.4`), with what recovery needs beside them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum EventBody {
    /// The first event of every log.
    SessionOpened {
        /// Whose session.
        agent: AgentId,
        /// Hash of the tools' views, so that drift shows.
        tool_manifest: Digest,
    },
    /// A user's message was taken into the queue.
    UserMsg {
        /// Its id, chosen by the host's inbox.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// An interrupted turn was taken up again. Counts against [`limits::TRIES_PER_STEP`] and
    /// [`limits::RESUMES_PER_MESSAGE`].
    TurnResumed {
        /// The message being answered.
        message: MessageId,
    },
    /// A model answered.
    ModelOutput {
        /// The call.
        call: ModelCallId,
        /// The message being answered.
        message: MessageId,
        /// Text, if any.
        text: Option<String>,
        /// Proposed tool calls, each with the invocation id it was given.
        calls: Vec<(InvocationId, ToolCall)>,
        /// What it cost.
        usage: Usage,
        /// Which model.
        model: String,
    },
    /// A model call failed.
    ModelFailed {
        /// The call.
        call: ModelCallId,
        /// The message being answered.
        message: MessageId,
        /// Why.
        failure: ModelFailure,
    },
    /// A tool call passed validation and waits for its locks.
    ToolCallRequested {
        /// Its invocation id.
        invocation: InvocationId,
        /// The tool.
        tool: String,
        /// Validated input.
        input: Json,
    },
    /// A tool call holds its locks and will run once this event is durable (`write`, `external`) or at once (`read`).
    ToolCallCommitted {
        /// Its invocation id.
        invocation: InvocationId,
        /// The tool.
        tool: String,
        /// The locks it holds.
        locks: Vec<LockSpec>,
        /// What it does to the world.
        side_effect: SideEffect,
        /// How a repeat would be recognised.
        replay: Replay,
    },
    /// A tool call ended; every proposed call gets exactly one.
    ToolResultCommitted {
        /// Its invocation id.
        invocation: InvocationId,
        /// How.
        outcome: ToolOutcome,
    },
    /// Something was written to long-term memory.
    MemoryWriteCommitted {
        /// The knowledge key.
        key: String,
        /// Hash of the text.
        content: Digest,
    },
    /// A core job began.
    CoreStarted {
        /// Its task, as edge wrote it (`choir §12.7`).
        job: Json,
    },
    /// A core job ended.
    CoreStopped {
        /// Its result or error.
        result: Json,
    },
    /// An instruction was added to a running lane (`choir §12.8`).
    InjectedInstruction {
        /// Its id, so that a repeat is recognised.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// The current turn was cancelled on request.
    Cancelled {
        /// The message that was being answered, if any.
        message: Option<MessageId>,
        /// Id of the request, so that a repeat is recognised.
        request: MessageId,
    },
    /// Something the user should know that is no answer (`choir §7.7`: a rate limit).
    Notice {
        /// The message it is about.
        message: MessageId,
        /// The sentence.
        text: String,
    },
    /// A user's message has its end. The host turns this into the outbound message in the same transaction.
    MessageClosed {
        /// The message.
        message: MessageId,
        /// How it ended.
        outcome: MessageOutcome,
        /// What the user is told.
        text: String,
    },
    /// A new configuration took effect.
    ConfigApplied {
        /// Its version.
        version: u64,
    },
    /// The host asked for a tool call beside any turn. The same again, while the call is open: it was interrupted and is
    /// taken up. Counts against [`limits::HOST_CALL_TRIES`].
    HostCallAsked {
        /// Its invocation id, chosen by the host.
        invocation: InvocationId,
        /// The job it is for; its lane is `core:<job>`.
        job: JobName,
        /// The tool.
        tool: String,
        /// The arguments as they were asked for.
        arguments: String,
    },
}

impl EventBody {
    /// The variant's name, as logs and tables show it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::SessionOpened { .. } => "SessionOpened",
            Self::UserMsg { .. } => "UserMsg",
            Self::TurnResumed { .. } => "TurnResumed",
            Self::ModelOutput { .. } => "ModelOutput",
            Self::ModelFailed { .. } => "ModelFailed",
            Self::ToolCallRequested { .. } => "ToolCallRequested",
            Self::ToolCallCommitted { .. } => "ToolCallCommitted",
            Self::ToolResultCommitted { .. } => "ToolResultCommitted",
            Self::MemoryWriteCommitted { .. } => "MemoryWriteCommitted",
            Self::CoreStarted { .. } => "CoreStarted",
            Self::CoreStopped { .. } => "CoreStopped",
            Self::InjectedInstruction { .. } => "InjectedInstruction",
            Self::Cancelled { .. } => "Cancelled",
            Self::Notice { .. } => "Notice",
            Self::MessageClosed { .. } => "MessageClosed",
            Self::ConfigApplied { .. } => "ConfigApplied",
            Self::HostCallAsked { .. } => "HostCallAsked",
        }
    }
}

/// Checks a run of events from `head` on; returns the new head.
pub fn verify_chain<'a>(
    session: SessionId,
    head: Head,
    events: impl IntoIterator<Item = &'a Event>,
) -> Result<Head, ChainError> {
    let mut head = head;
    for event in events {
        event.check(session, head)?;
        head = event.head();
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(n: u64) -> (SessionId, Vec<Event>) {
        let session = SessionId::from_bits(7);
        let mut head = Head::START;
        let mut events = Vec::new();
        for i in 0..n {
            let body = EventBody::UserMsg {
                message: MessageId::from_bits(u128::from(i)),
                text: format!("m{i}\0é"),
            };
            let (event, text) =
                Event::append(session, head, Timestamp::from_millis(i), Lane::Edge, body).unwrap();
            assert_eq!(Event::from_canonical(&text, event.hash).unwrap(), event);
            head = event.head();
            events.push(event);
        }
        (session, events)
    }

    #[test]
    fn a_log_verifies_and_any_change_shows() {
        let (session, events) = log(5);
        assert_eq!(verify_chain(session, Head::START, &events).unwrap().rev, 5);
        for i in 0..events.len() {
            let mut changed = events.clone();
            changed[i].at = Timestamp::from_millis(99);
            assert_eq!(
                verify_chain(session, Head::START, &changed),
                Err(ChainError::WrongHash { rev: i as u64 + 1 })
            );
            let mut gone = events.clone();
            gone.remove(i);
            assert_eq!(verify_chain(session, Head::START, &gone).is_err(), i + 1 < events.len());
        }
        assert!(verify_chain(SessionId::from_bits(8), Head::START, &events).is_err());
    }

    #[test]
    fn an_event_that_could_not_be_read_again_is_no_event() {
        let append = |at, body| {
            let session = SessionId::from_bits(7);
            Event::append(session, Head::START, Timestamp::from_millis(at), Lane::Edge, body)
        };
        let largest = canonical::SAFE_INTEGER;
        let (event, text) = append(largest, EventBody::ConfigApplied { version: largest }).unwrap();
        assert_eq!(Event::from_canonical(&text, event.hash).unwrap(), event);
        for (at, version) in [(largest + 1, 1), (1, largest + 1), (1, u64::MAX), (u64::MAX, 1)] {
            let refused = append(at, EventBody::ConfigApplied { version });
            assert!(matches!(refused, Err(ChainError::NotCanonical { .. })), "{at} {version}");
            let hostile = Event {
                at: Timestamp::from_millis(at),
                body: EventBody::ConfigApplied { version },
                ..event.clone()
            };
            assert!(hostile.check(hostile.session, Head::START).is_err());
        }
    }

    #[test]
    fn an_event_survives_both_codecs() {
        let (_, events) = log(2);
        for event in &events {
            let bytes = crate::codec::encode(event, 4096).unwrap();
            assert_eq!(&crate::codec::decode::<Event>(&bytes, 4096).unwrap(), event);
            let text = serde_json::to_string(event).unwrap();
            assert_eq!(&serde_json::from_str::<Event>(&text).unwrap(), event);
        }
    }
}
