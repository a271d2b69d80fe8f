//! The eight verbs a container may say to its host (`choir §12.5`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{BoxFuture, TraceContext};
use crate::chain::Digest;
use crate::event::{Event, Head, Revision};
use crate::id::{AgentId, ApprovalId, InvocationId, LeaseId, RequestId, SessionId};
use crate::json::Json;
use crate::limits;
use crate::model::ModelConfig;
use crate::secret::Secret;
use crate::session::{SessionView, Spent};
use crate::time::Timestamp;
use crate::tool::{Lane, ToolOutcome};

/// Everything said upwards: who says it, under which lease, and what.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Envelope {
    /// [`super::WIRE_VERSION`] of the sender.
    pub version: u16,
    /// Id of this request; a repeat carries the same.
    pub request: RequestId,
    /// The session it is about.
    pub session: SessionId,
    /// The lease under which the sandbox was started.
    pub lease: LeaseId,
    /// The lease's generation: counts the sandboxes of this session.
    pub generation: u64,
    /// The caller's span.
    pub trace: TraceContext,
    /// What is asked.
    pub body: Request,
}

/// The names of the verbs, as logs and metrics show them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verb {
    /// Who I am; where do we stand?
    InitHello,
    /// Secrets of the bound resources.
    GetSecrets,
    /// New events; what is durable?
    Heartbeat,
    /// A person must decide.
    RequestApproval,
    /// How the lanes are.
    ReportStatus,
    /// I am done.
    TerminateSelf,
    /// The configuration, if newer.
    FetchDynamicConfig,
    /// A tool that runs on the host.
    ExecuteHostTool,
}

/// A verb with its payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// `INIT_HELLO`.
    InitHello(Hello),
    /// `GET_SECRETS`: names of secrets, of the session's bound resources only.
    GetSecrets {
        /// At most [`limits::SECRET_NAMES`] names.
        #[serde(deserialize_with = "few_names")]
        names: Vec<String>,
    },
    /// `HEARTBEAT`.
    Heartbeat(Heartbeat),
    /// `REQUEST_APPROVAL`.
    RequestApproval {
        /// What kind of decision.
        kind: String,
        /// The exact thing to decide.
        payload: Json,
    },
    /// `REPORT_STATUS`.
    ReportStatus(LaneStatus),
    /// `TERMINATE_SELF`.
    TerminateSelf {
        /// Why, in one sentence.
        reason: String,
    },
    /// `FETCH_DYNAMIC_CONFIG`.
    FetchDynamicConfig {
        /// The version in force at the agent.
        current: u64,
    },
    /// `EXECUTE_HOST_TOOL`.
    ExecuteHostTool {
        /// The committed call.
        invocation: InvocationId,
        /// The tool.
        tool: String,
        /// Validated input.
        input: Json,
    },
}

/// Reads names and stops at the first too many: an empty one is a byte of a frame and 24 of memory.
fn few_names<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {} names", limits::SECRET_NAMES)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<String>, A::Error> {
            let mut names = Vec::new();
            while let Some(name) = seq.next_element()? {
                if names.len() == limits::SECRET_NAMES {
                    return Err(A::Error::invalid_length(names.len() + 1, &self));
                }
                names.push(name);
            }
            Ok(names)
        }
    }
    d.deserialize_seq(Few)
}

impl Request {
    /// The verb.
    #[must_use]
    pub const fn verb(&self) -> Verb {
        match self {
            Self::InitHello(_) => Verb::InitHello,
            Self::GetSecrets { .. } => Verb::GetSecrets,
            Self::Heartbeat(_) => Verb::Heartbeat,
            Self::RequestApproval { .. } => Verb::RequestApproval,
            Self::ReportStatus(_) => Verb::ReportStatus,
            Self::TerminateSelf { .. } => Verb::TerminateSelf,
            Self::FetchDynamicConfig { .. } => Verb::FetchDynamicConfig,
            Self::ExecuteHostTool { .. } => Verb::ExecuteHostTool,
        }
    }
}

/// `INIT_HELLO`: said first on every link, also after a reconnect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// Which agent.
    pub agent: AgentId,
    /// Version of the agent's binary or image.
    pub image_version: String,
    /// Hash of the tools' views.
    pub tool_manifest: Digest,
    /// Hash of the skills.
    pub skill_manifest: Digest,
    /// Where the agent's log stands: revision 0 on a fresh start, else its local head, so that a reconnect gets no tail
    /// it has. A local head that the host's log does not contain means the agent must start over.
    pub head: Head,
}

/// The answer to `INIT_HELLO`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HelloAnswer {
    /// What is durable on the host.
    pub durable: Head,
    /// The newest snapshot, if the agent's own log does not already cover it.
    pub snapshot: Option<Box<SessionView>>,
    /// Events after the snapshot (or from the start), at most [`crate::limits::BATCH_EVENTS`] and
    /// [`crate::limits::BATCH_BYTES`]; ask again with the new head until `head == durable`.
    pub tail: Vec<Event>,
    /// Names of the resources leased to the session, by kind (`workspace`, `llm`, ...).
    pub bindings: BTreeMap<String, String>,
    /// The configuration in force.
    pub settings: AgentSettings,
}

/// Hot-reloadable configuration of an agent, as one versioned value (`choir §16.3`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSettings {
    /// Version, rises with every apply.
    pub version: u64,
    /// The edge lane's model.
    pub model: ModelConfig,
    /// Budgets of the session.
    pub budgets: Budgets,
    /// How often to say `HEARTBEAT` when nothing else is said, in milliseconds.
    pub heartbeat_interval_ms: u64,
}

/// Session budgets (`choir §7.6`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    /// Most core jobs at once.
    pub max_core_jobs: u32,
    /// Tokens of all model calls of a session.
    pub total_session_tokens: u64,
    /// Tool calls of a session.
    pub max_tool_calls_per_session: u64,
    /// Model calls of one turn, so that a model that loops is stopped.
    pub max_model_calls_per_turn: u32,
}

impl Default for Budgets {
    fn default() -> Self {
        Self {
            max_core_jobs: 4,
            total_session_tokens: 2_000_000,
            max_tool_calls_per_session: 2_000,
            max_model_calls_per_turn: 40,
        }
    }
}

/// `HEARTBEAT`: proves life and carries the events that are not durable yet, contiguous.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The last revision the host acknowledged.
    pub base: Revision,
    /// The agent's newest revision (the events may stop short of it).
    pub newest: Revision,
    /// Events after `base`, in order; already durable ones are no-ops.
    pub events: Vec<Event>,
    /// Version of the configuration in force.
    pub config_version: u64,
    /// The agent's clock, for operators only.
    pub at: Timestamp,
}

/// The answer to `HEARTBEAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAck {
    /// Where the durable log stands. Its hash says whose log that is: what is durable there may be of an earlier life.
    pub durable: Head,
    /// The newest configuration.
    pub config_version: u64,
}

/// `REPORT_STATUS`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatus {
    /// Which lane.
    pub lane: Lane,
    /// Its state's name, such as `EDGE_REASONING`.
    pub state: String,
    /// What was spent.
    pub spent: Spent,
    /// The live actor tree of the container as JSON, for `choirctl tree`; at most 64 KiB.
    pub tree: Json,
}

/// Where an approval stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    /// Nobody has decided.
    Pending,
    /// Yes, once, for exactly this.
    Approved,
    /// No.
    Rejected,
}

/// Answers to the verbs, in their order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reply {
    /// To `INIT_HELLO`.
    Hello(Box<HelloAnswer>),
    /// To `GET_SECRETS`. Never logged; `Debug` hides the values.
    Secrets {
        /// Value by name.
        #[serde(with = "crate::secret::on_the_link")]
        values: BTreeMap<String, Secret>,
    },
    /// To `HEARTBEAT`.
    Heartbeat(HeartbeatAck),
    /// To `REQUEST_APPROVAL`.
    Approval {
        /// Its id.
        approval: ApprovalId,
        /// Where it stands.
        status: ApprovalStatus,
    },
    /// To `FETCH_DYNAMIC_CONFIG`: the settings when newer than the caller's.
    Config {
        /// The newest version.
        version: u64,
        /// Absent when the caller has it.
        settings: Option<Box<AgentSettings>>,
    },
    /// To `EXECUTE_HOST_TOOL`.
    HostTool(ToolOutcome),
    /// To `REPORT_STATUS` and `TERMINATE_SELF`.
    Done,
}

/// Why the host did not do what was asked. Explicit, so that nobody hangs and nobody guesses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Verdict {
    /// The lease or its generation is no longer valid: the sandbox must end.
    #[error("the lease is no longer valid")]
    LeaseRevoked,
    /// Another wire version.
    #[error("the host speaks wire version {0}")]
    Version(u16),
    /// The agent's log is not a continuation of the host's: start over from the host's log.
    #[error("the agent's log has diverged from the host's, which stands at revision {}", .durable.rev)]
    Diverged {
        /// What is durable.
        durable: Head,
    },
    /// The request breaks the protocol; nothing was done.
    #[error("the request is not acceptable: {0}")]
    Rejected(String),
    /// The host cannot do it now; the same request may be repeated.
    #[error("the host cannot do this now: {0}")]
    Unavailable(String),
}

/// Why a call over the link gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The link is down; what was asked may or may not have been done.
    #[error("the link to the host is down")]
    Down,
    /// No answer in time; likewise.
    #[error("the host did not answer within {0:?}")]
    Deadline(Duration),
    /// Too large for a frame; nothing was sent.
    #[error("the message is larger than a frame of the link")]
    TooLarge,
    /// The answer was not understood.
    #[error("the host's answer is malformed")]
    Malformed,
    /// The host answered no.
    #[error(transparent)]
    Refused(#[from] Verdict),
}

/// The agent's side of the verbs. One carrier per link implements it; business logic knows nothing else.
pub trait ControlPlane: Send + Sync {
    /// Says one verb and waits at most `deadline` for the answer.
    fn call(&self, envelope: Envelope, deadline: Duration) -> BoxFuture<'_, Result<Reply, LinkError>>;

    /// Resolves once the link is down for good; a new one must be made.
    fn closed(&self) -> BoxFuture<'_, ()>;
}

/// The host's side of the verbs. A carrier calls it once per request, with the link's own identity already checked.
pub trait VerbHandler: Send + Sync {
    /// Answers one request.
    fn handle(&self, envelope: Envelope) -> BoxFuture<'_, Result<Reply, Verdict>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn more_names_than_may_be_asked_for_are_refused_while_they_are_read() {
        let ask = |names| {
            codec::encode(&Request::GetSecrets { names: vec![String::new(); names] }, 1 << 24).unwrap()
        };
        let read = |bytes: &[u8]| codec::decode::<Request>(bytes, 1 << 24);
        assert!(read(&ask(limits::SECRET_NAMES)).is_ok());
        assert!(read(&ask(limits::SECRET_NAMES + 1)).is_err());
        assert!(read(&ask(1 << 20)).is_err());
    }
}
