//! The uplink: the agent's one link to its host. It connects, says hello, reconnects, and hands the link to whoever
//! speaks over it (`choir §12`, `choir §13.2`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Mail;
use crate::event::{Event, Head};
use crate::reply::ReplyTo;
use crate::secret::Secret;
use crate::session::SessionView;
use crate::wire::{AgentSettings, ControlPlane, LinkError, Reply, Request};

/// What the uplink is told.
pub enum UplinkMsg {
    /// Give me the host's log of this session, to start from. Only the journal asks, at each start.
    Restore {
        /// Answered when the host has been reached and the whole tail is here.
        reply: ReplyTo<Restored>,
    },
    /// Say one verb. Refused at once while the link is down.
    Call {
        /// The verb.
        request: Request,
        /// Longest wait in milliseconds.
        deadline_ms: u64,
        /// The answer.
        reply: ReplyTo<Result<Reply, LinkError>>,
    },
    /// The secrets of these names, asked of the host now.
    Secrets {
        /// The names.
        names: Vec<String>,
        /// The values.
        reply: ReplyTo<Result<BTreeMap<String, Secret>, LinkError>>,
    },
    /// The host has a newer configuration.
    ConfigChanged {
        /// Its version.
        version: u64,
    },
    /// An attempt to connect ended.
    Connected {
        /// Which attempt.
        attempt: u64,
        /// The link.
        result: Result<Arc<dyn ControlPlane>, LinkError>,
    },
    /// A hello ended.
    Greeted {
        /// On which attempt's link.
        attempt: u64,
        /// What the host said.
        result: Result<Box<Greeted>, LinkError>,
    },
    /// A link broke.
    Lost {
        /// Which attempt's.
        attempt: u64,
    },
    /// A new configuration was fetched.
    Fetched {
        /// The settings, if newer, and the model's key.
        result: Result<Option<CurrentSettings>, LinkError>,
    },
    /// Tell the replicator how the link stands. The replicator asks at each start.
    Attach,
    /// The configuration in force, for whoever starts or starts again.
    Current {
        /// The settings and the model's key, once the host has been reached.
        reply: ReplyTo<Option<CurrentSettings>>,
    },
    /// The host's verdict, met elsewhere, ends this process.
    End(UplinkEnd),
    /// Time to try again.
    Retry,
    /// A call that was carried over the link ended; its asker has the answer.
    Carried,
}

/// Why an agent's process must end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UplinkEnd {
    /// The lease is void.
    #[error("the lease was revoked")]
    LeaseRevoked,
    /// The logs differ; a fresh process starts from the host's.
    #[error("this agent's log differs from the host's")]
    Diverged,
    /// The host was out of reach for too long.
    #[error("the host was out of reach for {0} ms")]
    Unreachable(u64),
    /// The host speaks another version.
    #[error("the host speaks another version of the wire")]
    Version,
}

/// The settings in force and the model's key, if it needs one and the host has it.
pub type CurrentSettings = (Box<AgentSettings>, Option<Secret>);

/// A hello's result.
#[derive(Debug, Clone)]
pub struct Greeted {
    /// The head that was said: [`Head::START`] when the whole log was asked for.
    pub from: Head,
    /// What is durable on the host.
    pub durable: Head,
    /// What came back.
    pub restored: Restored,
}

/// A session as the host has it.
#[derive(Debug, Clone)]
pub struct Restored {
    /// The newest snapshot, or an empty view.
    pub view: SessionView,
    /// Events after it, complete.
    pub tail: Vec<Event>,
    /// The configuration in force.
    pub settings: AgentSettings,
    /// The key of the configured model, if it needs one and the host has it.
    pub key: Option<Secret>,
}

impl Mail for UplinkMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Restore { .. } => "restore",
            Self::Call { .. } => "call",
            Self::Secrets { .. } => "secrets",
            Self::ConfigChanged { .. } => "config_changed",
            Self::Connected { .. } => "connected",
            Self::Greeted { .. } => "greeted",
            Self::Lost { .. } => "lost",
            Self::Fetched { .. } => "fetched",
            Self::Attach => "attach",
            Self::Current { .. } => "current",
            Self::End(_) => "end",
            Self::Retry => "retry",
            Self::Carried => "carried",
        }
    }
}
