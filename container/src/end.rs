//! How an agent's process ends, and the exit code that tells its host.

use choir_messages::mail::UplinkEnd;

/// Why the process ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// Told to shut down, and did so in order.
    #[error("told to shut down")]
    ShutDown,
    /// Standard input ended: the host is gone.
    #[error("the host is gone")]
    Lifeline,
    /// The uplink says so.
    #[error(transparent)]
    Uplink(#[from] UplinkEnd),
    /// The tree gave up: restarts exceeded their intensity.
    #[error("the actor tree gave up: {0}")]
    Tree(String),
    /// The bootstrap could not be read.
    #[error("no usable bootstrap on standard input: {0}")]
    Bootstrap(String),
}

impl End {
    /// The process's exit code; `choird` logs its meaning.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::ShutDown => 0,
            Self::Bootstrap(_) => 2,
            Self::Tree(_) => 4,
            Self::Uplink(UplinkEnd::LeaseRevoked) => 10,
            Self::Uplink(UplinkEnd::Diverged) => 11,
            Self::Uplink(UplinkEnd::Unreachable(_)) => 12,
            Self::Uplink(UplinkEnd::Version) => 13,
            Self::Lifeline => 14,
        }
    }
}
