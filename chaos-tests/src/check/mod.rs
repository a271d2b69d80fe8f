//! DESIGN §5, held against what was seen from outside: the tables, the log in them, the workspace, the model's endpoint
//! and the chat client. Plain data in, violations out; nothing here asks the parts under test how they did.

mod effects;
mod evidence;
mod log;
mod messages;

pub use evidence::{Answer, Asked, Evidence, InboxRow, InvocationRow, LoggedEvent, OutboxRow};

use choir_messages::event::{Event, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, OutboundId};
use choir_messages::tool::ToolStatus;

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Confirmed to its sender, but not in the inbox.
    #[error("message {0} was confirmed to its sender and is not in the inbox")]
    NotStored(MessageId),
    /// In the inbox, but nobody sent it.
    #[error("message {0} is in the inbox and nobody sent it")]
    Stranger(MessageId),
    /// No end.
    #[error("message {0} is lost: the inbox has no outcome for it")]
    Lost(MessageId),
    /// Recorded twice, or not at all.
    #[error("message {message} was recorded in the log {times} times")]
    Recorded {
        /// Which.
        message: MessageId,
        /// How often.
        times: usize,
    },
    /// Closed twice, or not at all.
    #[error("message {message} was closed in the log {times} times")]
    Closed {
        /// Which.
        message: MessageId,
        /// How often.
        times: usize,
    },
    /// Inbox and log tell different ends.
    #[error("message {message} is {inbox:?} in the inbox and {log:?} in the log")]
    TwoOutcomes {
        /// Which.
        message: MessageId,
        /// In the inbox.
        inbox: MessageOutcome,
        /// In the log.
        log: MessageOutcome,
    },
    /// Not answered, though nothing that was done to it explains that.
    #[error("message {message} ended {outcome:?} without a reason that the run gave: \"{text}\"")]
    Unexplained {
        /// Which.
        message: MessageId,
        /// How.
        outcome: MessageOutcome,
        /// What its user was told.
        text: String,
    },
    /// Not exactly one answer in the outbox.
    #[error("message {message} has {answers} answers in the outbox")]
    Outbox {
        /// Which.
        message: MessageId,
        /// How many.
        answers: usize,
    },
    /// Not exactly one answer at the client.
    #[error("message {message} was answered {answers} times to its sender")]
    Answered {
        /// Which.
        message: MessageId,
        /// Different outbound messages with an answer to it.
        answers: usize,
    },
    /// An answer that says something else than the log.
    #[error("the answer to message {message} reads \"{found}\" in {place} and \"{log}\" in the log")]
    OtherText {
        /// Which.
        message: MessageId,
        /// Outbox or client.
        place: &'static str,
        /// There.
        found: String,
        /// In the log.
        log: String,
    },
    /// Shown to the client, but not born in the outbox.
    #[error("outbound message {0} reached the client and is not in the outbox")]
    Unborn(OutboundId),
    /// Sent again without saying so.
    #[error("outbound message {0} was sent again as if it were the first time")]
    BlindRepeat(OutboundId),
    /// The client confirmed it, the outbox does not know.
    #[error("outbound message {outbound} is \"{state}\" at the end")]
    NotDelivered {
        /// Which.
        outbound: OutboundId,
        /// Its state.
        state: String,
    },
    /// Answers overtook each other.
    #[error("the answers reached the client in another order than the log's")]
    Order,
    /// The log does not verify.
    #[error("the log does not verify: {0}")]
    Chain(String),
    /// A tag more than once.
    #[error("the effect \"{tag}\" happened {times} times")]
    Repeated {
        /// Which.
        tag: String,
        /// How often.
        times: u32,
    },
    /// Success without the effect.
    #[error("the effect \"{0}\" is missing although its call succeeded")]
    Missing(String),
    /// An effect before its call was durable.
    #[error("the effect \"{0}\" happened without a committed call in the log")]
    Unrecorded(String),
    /// An effect of a call that the model was told did not happen.
    #[error("the effect \"{tag}\" happened although its call ended {status:?}")]
    Denied {
        /// Which.
        tag: String,
        /// How its calls ended.
        status: ToolStatus,
    },
    /// A line that no call leaves.
    #[error("the workspace has \"{0}\", which no call leaves")]
    Strange(String),
    /// A call without exactly one result.
    #[error("call {invocation} has {results} results in the log")]
    Results {
        /// Which.
        invocation: InvocationId,
        /// How many.
        results: usize,
    },
    /// The invocations table tells another story than the log.
    #[error("call {invocation} is \"{table}\" in the table and \"{log}\" in the log")]
    Invocation {
        /// Which.
        invocation: InvocationId,
        /// There.
        table: String,
        /// Here.
        log: String,
    },
    /// The endpoint refused a request as malformed, or was asked what the script does not know.
    #[error("model request {number}: {what}")]
    Model {
        /// Which.
        number: u64,
        /// What happened.
        what: String,
    },
    /// The model gave two different last answers to one message.
    #[error("the model ended its work on {0} in two different ways")]
    TwoEnds(String),
    /// A stopped agent still holds something.
    #[error("{0} leases are held although the agent is stopped")]
    Leases(i64),
}

/// Everything that is wrong, in no particular order.
#[must_use]
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    let events: Vec<Event> = log::read(evidence, &mut found);
    messages::check(evidence, &events, &mut found);
    effects::check(evidence, &events, &mut found);
    log::invocations(evidence, &events, &mut found);
    log::model(evidence, &mut found);
    if evidence.leases != 0 {
        found.push(Violation::Leases(evidence.leases));
    }
    found
}

#[cfg(test)]
mod tests;
