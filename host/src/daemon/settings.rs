//! Configuration and secrets in force, and how new ones take over (`choir §16.3`): the whole or nothing, under a
//! version that only rises.

use std::sync::Arc;

use choir_messages::id::AgentId;
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_messages::wire::AgentSettings;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};

use super::shared::Host;
use crate::config::{Config, ConfigError};
use crate::control::views::AppliedView;
use crate::control::{ControlError, ErrorCode};
use crate::secrets::Secrets;
use crate::state_dir::StateDir;

/// One version of configuration and secrets.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rises with every apply, also across restarts of choird: it is the time of the apply in milliseconds, or one more
    /// than the version before.
    pub version: u64,
    /// The configuration.
    pub config: Config,
    /// The secrets.
    pub secrets: Secrets,
}

impl Settings {
    /// Reads both files. A broken `config.json` is an error.
    pub fn load(state: &StateDir, after: u64) -> Result<Self, ConfigError> {
        let config = Config::load(&state.config())?;
        let secrets = Secrets::load(&state.secrets())?;
        Ok(Self { version: next_version(after), config, secrets })
    }

    /// Reads both files; where `config.json` cannot be used, the last one that could, and says so.
    pub fn load_or_last_good(state: &StateDir) -> Result<(Self, Option<String>), ConfigError> {
        let error = match Self::load(state, 0) {
            Ok(settings) => return Ok((settings, None)),
            Err(error) => error,
        };
        let about_config =
            matches!(&error, ConfigError::Invalid { file, .. } if file.ends_with("config.json"));
        if !about_config || !state.last_good_config().exists() {
            return Err(error);
        }
        let Ok(config) = Config::load(&state.last_good_config()) else { return Err(error) };
        let secrets = Secrets::load(&state.secrets())?;
        let warning = format!("running on the last good configuration, because {error}");
        Ok((Self { version: next_version(0), config, secrets }, Some(warning)))
    }

    /// What one agent is told.
    #[must_use]
    pub fn for_agent(&self, llm: &str) -> Option<AgentSettings> {
        Some(AgentSettings {
            version: self.version,
            model: self.config.model_config(llm)?,
            budgets: self.config.budgets,
            heartbeat_interval_ms: self.config.heartbeat_interval_ms,
        })
    }

    /// Keeps a copy of the configuration, to fall back on.
    pub(crate) fn keep_as_last_good(state: &StateDir) {
        let beside = state.last_good_config().with_extension("new");
        let copied = std::fs::copy(state.config(), &beside)
            .and_then(|_| std::fs::rename(&beside, state.last_good_config()));
        if let Err(error) = copied {
            tracing::warn!(%error, "the configuration could not be kept as the last good one");
        }
    }
}

fn next_version(after: u64) -> u64 {
    Timestamp::now().millis().max(after.saturating_add(1))
}

/// What the settings actor is told.
#[derive(Debug)]
pub(crate) enum SettingsMsg {
    /// Read both files again, and put them into force unless it is only asked what that would change.
    Reload { dry_run: bool, reply: ReplyTo<Result<AppliedView, ControlError>> },
    /// Read the secrets again and put them into force.
    ApplySecrets { reply: ReplyTo<Result<AppliedView, ControlError>> },
}

impl Mail for SettingsMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Reload { .. } => "reload",
            Self::ApplySecrets { .. } => "apply_secrets",
        }
    }
}

pub(crate) fn child_spec(slot: Slot<SettingsMsg>, host: Arc<Host>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move { Ok(SettingsActor { host }) }
    })
}

struct SettingsActor {
    host: Arc<Host>,
}

impl Actor for SettingsActor {
    type Msg = SettingsMsg;

    async fn handle(&mut self, msg: SettingsMsg, _cx: &mut Context<SettingsMsg>) -> Result<(), Failure> {
        match msg {
            SettingsMsg::Reload { dry_run, reply } => reply.send(self.reload(dry_run).await),
            SettingsMsg::ApplySecrets { reply } => reply.send(self.apply_secrets().await),
        }
        Ok(())
    }
}

impl SettingsActor {
    async fn reload(&self, dry_run: bool) -> Result<AppliedView, ControlError> {
        let old = self.host.settings();
        let new = Settings::load(&self.host.state, old.version).map_err(unusable)?;
        let (changes, needs_restart) =
            (old.config.changes(&new.config), old.config.needs_restart(&new.config));
        if dry_run {
            return Ok(AppliedView {
                applied: false,
                config_version: old.version,
                told: Vec::new(),
                changes,
                needs_restart,
                warnings: missing(&new),
            });
        }
        Settings::keep_as_last_good(&self.host.state);
        Ok(AppliedView { changes, needs_restart, ..self.put_into_force(new).await })
    }

    async fn apply_secrets(&self) -> Result<AppliedView, ControlError> {
        let old = self.host.settings();
        let secrets = Secrets::load(&self.host.state.secrets()).map_err(unusable)?;
        let new = Settings { version: next_version(old.version), config: old.config.clone(), secrets };
        Ok(self.put_into_force(new).await)
    }

    async fn put_into_force(&self, new: Settings) -> AppliedView {
        let version = new.version;
        let mut warnings = missing(&new);
        crate::telemetry::learn_secrets(&self.host.scrubber, &new.secrets);
        self.host.settings.send_replace(Arc::new(new));
        if let Err(error) = self.host.roster.admit_configured(&self.host).await {
            warnings.push(format!("a new agent could not be set up: {error}"));
        }
        let told: Vec<AgentId> = self.host.roster.tell_settings_changed(version);
        tracing::info!(version, told = told.len(), "configuration in force");
        let (changes, needs_restart) = (Vec::new(), Vec::new());
        AppliedView { applied: true, config_version: version, told, changes, needs_restart, warnings }
    }
}

fn missing(settings: &Settings) -> Vec<String> {
    settings.secrets.missing(&settings.config).iter().map(ToString::to_string).collect()
}

fn unusable(error: ConfigError) -> ControlError {
    ControlError::new(ErrorCode::Refused, format!("nothing was changed: {error}"))
}
