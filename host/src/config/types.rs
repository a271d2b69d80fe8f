//! What `config.json` says, once it has been found good (`choir §6.3`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use choir_messages::id::AgentId;
use choir_messages::json::Json;
use choir_messages::model::ModelConfig;
use choir_messages::wire::Budgets;
use serde::Serialize;

use super::identity::IdentitySection;

/// Version of the file's format that this choird writes and reads.
pub const FORMAT: u64 = 1;

/// The whole configuration. Every reference in it has been checked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// Version of the file's format.
    pub version: u64,
    /// Named workspaces.
    pub workspaces: BTreeMap<String, Workspace>,
    /// Named models.
    pub models: BTreeMap<String, Model>,
    /// The agents.
    pub agents: BTreeMap<AgentId, Agent>,
    /// Where the database is.
    pub postgres: Postgres,
    /// How agents are isolated.
    pub sandbox: SandboxChoice,
    /// What carries the links to agents.
    pub link: Link,
    /// The CHAP Coordinator.
    pub coordinator: Coordinator,
    /// Where telemetry goes.
    pub telemetry: Telemetry,
    /// Budgets of each session.
    pub budgets: Budgets,
    /// How often an agent says it lives, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// Silence after which it is taken for crashed, in milliseconds; at least twice the interval.
    pub crash_detection_threshold_ms: u64,
    /// Wait after a 429 that names no time, in milliseconds.
    pub rate_limit_retry_ms: u64,
    /// Lines after which choird's log is archived.
    pub log_archive_threshold_lines: u64,
    /// Age in milliseconds at which a message that no agent could take is closed as expired.
    pub message_max_age_ms: u64,
    /// Names of secrets that anything in the file refers to.
    pub secret_names: BTreeSet<String>,
    /// Sections of later versions that are present: checked for shape, not used yet.
    pub unused_sections: Vec<String>,
}

/// A directory that agents work in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Workspace {
    /// Its absolute path.
    pub path: PathBuf,
}

/// A model behind an OpenAI-compatible endpoint (`choir §21`).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    /// The provider's name, for people.
    pub provider: String,
    /// The provider's model id.
    pub model: String,
    /// Base URL.
    pub endpoint: String,
    /// Sampling temperature; `null` for models that take none; 0.7 when the field is absent.
    pub temperature: Option<f64>,
    /// Passed as it is.
    pub reasoning_effort: Option<String>,
    /// Name of the secret with the key; absent for endpoints that need none.
    pub secret: Option<String>,
    /// Deadline of one call in milliseconds.
    pub timeout_ms: u64,
    /// Extra request fields.
    pub extra: serde_json::Value,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Agent {
    /// Name of its workspace, leased exclusively.
    pub workspace: String,
    /// Name of its model.
    pub llm: String,
    /// Directory shown to it read-only as `/choir`.
    pub choir_dir: Option<PathBuf>,
    /// Whether choird starts it although nobody asked.
    pub autostart: bool,
    /// Exclusive resources of later versions, by kind; leased already now, so that two agents never share one.
    pub other_exclusive: BTreeMap<String, String>,
}

/// Which database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Postgres {
    /// A private cluster that choird runs.
    Embedded {
        /// Directory of the binaries, if not the usual one.
        binaries: Option<PathBuf>,
    },
    /// A server that is run by others.
    External {
        /// Host name, or the directory of its socket.
        host: String,
        /// Port.
        port: u16,
        /// Database.
        database: String,
        /// Role.
        user: String,
        /// Name of the secret with the password (or with `user:password`).
        secret: Option<String>,
    },
}

/// How agents are isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxChoice {
    /// Bubblewrap where it works, else a process, with a warning.
    Auto,
    /// Bubblewrap or nothing.
    Bubblewrap,
    /// A plain process: does not isolate.
    Process,
}

/// What carries the links between choird and its agents. The same in meaning, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "carrier")]
pub enum Link {
    /// A Unix socket for each agent, in a folder that only this user can enter.
    Unix,
    /// TCP under TLS, a port for each agent.
    Tcp {
        /// The address to listen on; its port is 0, so that the system chooses one for each agent.
        listen: SocketAddr,
        /// Whether `listen` may be an address that other machines reach.
        reachable_from_other_machines: bool,
    },
}

/// How the CHAP Coordinator is served: always on a private socket, and where `listen` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Coordinator {
    /// An address to listen on besides.
    pub listen: Option<SocketAddr>,
    /// Profiles of workspaces whose creator names none.
    pub default_profiles: Vec<String>,
    /// Whether every log is chained, whatever its workspace advertises.
    pub enable_chain: bool,
    /// Whether only signed calls are taken.
    pub require_signatures: bool,
    /// Whether privileged methods ask people for a fresh login.
    pub enforce_step_up: bool,
    /// Whether only members read.
    pub require_read_membership: bool,
    /// Largest envelope, in bytes of its canonical form.
    pub max_envelope_bytes: u64,
    /// File with the digests of bearer tokens, for `listen`.
    pub tokens_file: Option<PathBuf>,
    /// TLS, for `listen`.
    pub tls: Option<CoordinatorTls>,
    /// Whose ID tokens and credentials are believed; without it none are looked at.
    pub identity: Option<IdentitySection>,
}

/// PEM files for TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CoordinatorTls {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Default for Coordinator {
    /// A log that an auditor can use: chained.
    fn default() -> Self {
        Self {
            listen: None,
            default_profiles: vec!["core/1.0".into(), "review/1.0".into()],
            enable_chain: true,
            require_signatures: false,
            enforce_step_up: false,
            require_read_membership: false,
            max_envelope_bytes: 1024 * 1024,
            tokens_file: None,
            tls: None,
            identity: None,
        }
    }
}

/// Telemetry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Telemetry {
    /// Base URL of an OTLP receiver (HTTP); absent: off.
    pub otlp_endpoint: Option<String>,
}

impl Config {
    /// How to reach a model by its name in the file.
    #[must_use]
    pub fn model_config(&self, name: &str) -> Option<ModelConfig> {
        let model = self.models.get(name)?;
        Some(ModelConfig {
            name: name.to_owned(),
            model: model.model.clone(),
            endpoint: model.endpoint.clone(),
            temperature: model.temperature,
            reasoning_effort: model.reasoning_effort.clone(),
            secret: model.secret.clone(),
            timeout_ms: model.timeout_ms,
            rate_limit_retry_ms: self.rate_limit_retry_ms,
            extra: Json(model.extra.clone()),
        })
    }

    /// The silence after which an agent is taken for crashed.
    #[must_use]
    pub const fn crash_threshold(&self) -> Duration {
        Duration::from_millis(self.crash_detection_threshold_ms)
    }
}
