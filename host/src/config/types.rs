//! What `config.json` says, once it has been found good (`choir §6.3`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use choir_messages::id::AgentId;
use choir_messages::json::Json;
use choir_messages::model::ModelConfig;
use choir_messages::wire::Budgets;
use serde::Serialize;

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

    /// Whether going from `self` to `new` needs restarts, and of what; the rest is hot-reloadable (`choir §15.5`).
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<String> {
        let mut what = Vec::new();
        if self.postgres != new.postgres {
            what.push("postgres: takes effect when choird is restarted".into());
        }
        if self.telemetry != new.telemetry {
            what.push("telemetry: takes effect when choird is restarted".into());
        }
        if self.log_archive_threshold_lines != new.log_archive_threshold_lines {
            what.push("log_archive_threshold_lines: takes effect when choird is restarted".into());
        }
        if self.sandbox != new.sandbox {
            what.push("sandbox: takes effect for each agent with `choirctl agent restart`".into());
        }
        for (id, agent) in &self.agents {
            match new.agents.get(id) {
                None => what.push(format!(
                    "agents.{id}: removed; a running one goes on until `choirctl agent stop {id}`"
                )),
                Some(now)
                    if (&now.workspace, &now.choir_dir, &now.other_exclusive)
                        != (&agent.workspace, &agent.choir_dir, &agent.other_exclusive) =>
                {
                    what.push(format!(
                        "agents.{id}: its resources take effect with `choirctl agent restart {id}`"
                    ));
                }
                Some(_) => {}
            }
        }
        what
    }
}
