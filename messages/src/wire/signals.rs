//! What the host pushes to a container (`choir §12.1`, DESIGN §4); each signal is acknowledged by the revision of the
//! event that records it, and a repeat is recognised by its id.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::verbs::LinkError;
use super::{BoxFuture, TraceContext};
use crate::event::Revision;
use crate::id::{InvocationId, JobName, LeaseId, MessageId};

/// A signal with its trace context and the lease it is meant for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SignalRequest {
    /// [`super::WIRE_VERSION`] of the sender.
    pub version: u16,
    /// The lease the host believes the sandbox has.
    pub lease: LeaseId,
    /// And its generation.
    pub generation: u64,
    /// The sender's span.
    pub trace: TraceContext,
    /// The signal.
    pub signal: Signal,
}

/// What the host wants of a running agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// A user's message, already durable in the host's inbox.
    UserMessage {
        /// Its id.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// An instruction for the running turn (`/inject`).
    Inject {
        /// Its id.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// Cancel the current turn.
    Cancel {
        /// Id of the request.
        request: MessageId,
    },
    /// A newer configuration can be fetched.
    ConfigChanged {
        /// Its version.
        version: u64,
    },
    /// Reach a safe point, flush, say `TERMINATE_SELF`, exit.
    ShutDown {
        /// Milliseconds until the sandbox is killed.
        within_ms: u64,
    },
    /// Kill one actor of the container's tree, as an operator's test of recovery.
    KillActor {
        /// Its path, such as `choir-agent/session/arbiter`.
        path: String,
    },
    /// Run one tool call for a job of the host, beside any turn: validated, locked, executed and replicated like every
    /// other. Its result is the `ToolResultCommitted` of this invocation. Repeating the signal is harmless, and takes up
    /// a call that an earlier life of the agent left open.
    RunTool {
        /// The call's id, chosen by the host.
        invocation: InvocationId,
        /// The job; the call's lane is `core:<job>`.
        job: JobName,
        /// The tool's canonical name.
        tool: String,
        /// Its arguments, a JSON text.
        arguments: String,
    },
    /// Stop a call of [`Signal::RunTool`]; it ends with a result that says so.
    StopTool {
        /// Which.
        invocation: InvocationId,
    },
}

/// What became of a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalAck {
    /// Recorded in the log at this revision (also when it had been before).
    Recorded {
        /// The revision.
        rev: Revision,
    },
    /// Taken note of; the signal is one that leaves no event.
    Noted,
    /// Not taken.
    Refused(SignalRefused),
}

/// Why an agent does not take a signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SignalRefused {
    /// The queue of user messages is full.
    #[error("the agent already has {waiting} messages waiting; try again when it has answered some")]
    QueueFull {
        /// How many wait.
        waiting: u32,
    },
    /// A budget of the session is used up.
    #[error("the session's budget is used up ({which}); start a new session")]
    Budget {
        /// Which.
        which: String,
    },
    /// The text is larger than a message may be.
    #[error("the message is larger than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// Not while starting, stopping or recovering; the same signal may be sent again.
    #[error("the agent is not ready")]
    NotReady,
    /// Meant for another lease or generation.
    #[error("the signal is meant for another lease")]
    WrongLease,
    /// No such actor.
    #[error("there is no actor at that path")]
    NoSuchActor,
}

/// The host's end for signals to one container.
pub trait SignalSender: Send + Sync {
    /// Sends one signal and waits at most `deadline` for its acknowledgement.
    fn signal(
        &self,
        request: SignalRequest,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<SignalAck, LinkError>>;
}

/// The agent's end: a carrier calls it once per signal.
pub trait SignalHandler: Send + Sync {
    /// Acts on one signal.
    fn handle(&self, request: SignalRequest) -> BoxFuture<'_, SignalAck>;
}
