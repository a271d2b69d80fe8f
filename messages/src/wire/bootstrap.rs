//! What a sandbox is told on its standard input: one line of JSON, then silence until the host is gone (end of file).
//! The link's secret travels here and nowhere else: never argv, never the environment (`choir §14.1`).

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::chain::Digest;
use crate::id::{AgentId, LeaseId, SessionId};

/// Longest bootstrap line, in bytes.
pub const BOOTSTRAP_BYTES: usize = 16 * 1024;

/// The bootstrap line. Its `Debug` hides the secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// [`super::WIRE_VERSION`] of the host.
    pub version: u16,
    /// Which agent.
    pub agent: AgentId,
    /// Which session.
    pub session: SessionId,
    /// Under which lease.
    pub lease: LeaseId,
    /// And generation.
    pub generation: u64,
    /// Where the link's other end is.
    pub link: LinkAddress,
    /// The link's secret, hex.
    pub link_secret: String,
    /// The workspace, as seen from inside the sandbox.
    pub workspace: PathBuf,
    /// Identity and tools (`/choir`), likewise; absent where there is none.
    pub choir_dir: Option<PathBuf>,
    /// Where to send OTLP, if anywhere.
    pub otlp_endpoint: Option<String>,
}

/// Where an agent finds its host: one of the link's carriers (DESIGN §4). Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LinkAddress {
    /// A Unix socket.
    Unix {
        /// Its path, as seen from inside the sandbox.
        socket: PathBuf,
    },
    /// TCP under TLS.
    Tcp {
        /// Address and port.
        address: SocketAddr,
        /// SHA-256 of the DER of the one certificate that is the host's; any other is an impostor's.
        certificate: Digest,
    },
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap")
            .field("agent", &self.agent)
            .field("session", &self.session)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}
