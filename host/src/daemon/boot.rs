//! From nothing to "choird ready" (`choir §6.2`), and the ordered end.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use choir_persistence::postgres::{ClusterError, Source};
use choir_sandbox::{Preference, SandboxError, detect};
use choir_supervisors::{
    DynamicSpec, Intensity, MailboxSpec, StartError, Strategy, SupervisorSpec, Tree, WhenFull, mailbox,
};
use choir_telemetry::{Telemetry, TelemetryError};
use tokio::sync::watch;

use super::coordinator::{self, CoordinatorError};
use super::database::{self, DatabaseError};
use super::links::{Carrier, CarrierError};
use super::roster::Roster;
use super::settings::{self, Settings};
use super::shared::{DatabaseHealth, Host, SandboxInUse};
use super::signals::Signals;
use super::{admission, changes, front, leases, ledger, links, recovery};
use crate::config::{ConfigError, SandboxChoice};
use crate::limits;
use crate::state_dir::{StateDir, StateDirError};

/// The environment variable that names the agent's executable, where it is not beside choird's.
pub(crate) const AGENT_ENV: &str = "CHOIR_AGENT_BIN";

/// Time telemetry has to send its last words.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// How choird is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where its state is.
    pub state: StateDir,
    /// Whether to keep log lines off standard error.
    pub quiet: bool,
}

/// Why choird did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// config.json or secrets.json.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// What carries the links.
    #[error(transparent)]
    Link(#[from] CarrierError),
    /// Logs and traces.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The agent's executable.
    #[error("{0}")]
    NoAgent(String),
    /// What the Coordinator is served with.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// A part of the tree.
    #[error("choird could not start: {}", innermost(.0))]
    Start(#[from] StartError),
    /// Signal handlers.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The tree gave up.
    #[error("choird gave up: {0}; see `choirctl logs choird`, or the log file")]
    GaveUp(String),
}

/// The reason at the bottom: which supervisors passed it up says nothing to a person, and the log has it.
fn innermost(error: &StartError) -> String {
    let text = error.to_string();
    text.rsplit("it failed: ").next().unwrap_or(&text).to_owned()
}

impl From<ClusterError> for BootError {
    fn from(error: ClusterError) -> Self {
        Self::Database(error.into())
    }
}

/// Runs choird until it is told to stop. `ready` is called once it accepts commands.
pub async fn run(options: Options, ready: impl FnOnce()) -> Result<(), BootError> {
    let started = Instant::now();
    options.state.create()?;
    let _held = options.state.hold()?;
    let (settings, warning) = Settings::load_or_last_good(&options.state)?;
    let telemetry = crate::telemetry::start(&options.state, &settings, options.quiet)?;
    let result = live(options, settings, warning, started, &telemetry, ready).await;
    match &result {
        Ok(()) => tracing::info!("choird ends"),
        Err(error) => tracing::error!(%error, "choird ends"),
    }
    if let Err(error) = telemetry.shutdown(LAST_WORDS).await {
        tracing::warn!(%error, "telemetry did not end in order");
    }
    result
}

async fn live(
    options: Options,
    settings: Settings,
    warning: Option<String>,
    started: Instant,
    telemetry: &Telemetry,
    ready: impl FnOnce(),
) -> Result<(), BootError> {
    // First, so that a signal during the start is not lost.
    let signals = Signals::listen().map_err(BootError::Signals)?;
    let warnings = look_over(&options.state, &settings, warning);
    let found = tokio::select! {
        found = find(&options.state, &settings) => found?,
        by = signals.first() => {
            tracing::info!(by, "told to stop before anything was started");
            return Ok(());
        }
    };
    let (host, root) = house(options, settings, warnings, started, telemetry, &found)?;
    tracing::info!("steps 4 to 7: database, orphans, stale leases");
    let called_off = async {
        let by = signals.first().await;
        tracing::info!(by, "told to stop during the start: what was started is stopped again");
    };
    let tree = tokio::select! {
        tree = Tree::start_unless(root, called_off) => tree?,
        () = signals.second() => {
            tracing::warn!("a second signal: not waiting any longer");
            return Ok(());
        }
    };
    let Some(tree) = tree else {
        tokio::select! {
            () = found.settled() => tracing::info!("everything that was started is gone"),
            () = signals.second() => tracing::warn!("a second signal: not waiting any longer"),
            () = tokio::time::sleep(limits::SHUTDOWN_WITHIN) => tracing::error!("the database does not end"),
        }
        return Ok(());
    };
    let handle = tree.handle();
    let _ = host.tree.set(handle.clone());
    let observed = handle.clone();
    host.metrics.observe_tree(move || crate::telemetry::samples(&observed));
    tracing::info!(
        config_version = host.settings().version,
        agents = host.roster.all().len(),
        sandbox = host.sandbox.borrow().sandbox.name(),
        after_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "choird ready"
    );
    ready();

    let mut asked = host.shutdown.subscribe();
    let why = tokio::select! {
        by = signals.first() => Ok(by.to_owned()),
        asked = asked.wait_for(Option::is_some) => {
            Ok(asked.ok().and_then(|why| why.clone()).unwrap_or_default())
        }
        exit = handle.ended() => Err(exit.to_string()),
    };
    let before = signals.count();
    let result = match why {
        Ok(why) => {
            tracing::info!(why, "choird shuts down");
            Ok(())
        }
        Err(why) => Err(BootError::GaveUp(why)),
    };
    // One more signal means: now.
    tokio::select! {
        () = shut_down(&host, tree) => {}
        () = signals.more_than(before) => tracing::warn!("another signal: not waiting any longer"),
        () = tokio::time::sleep(limits::SHUTDOWN_WITHIN) => tracing::error!("the shutdown took too long"),
    }
    result
}

/// Says what is configured, and collects what an operator should know of it.
fn look_over(state: &StateDir, settings: &Settings, warning: Option<String>) -> Vec<String> {
    let mut warnings: Vec<String> = warning.into_iter().collect();
    tracing::info!(
        config_version = settings.version,
        agents = settings.config.agents.len(),
        models = settings.config.models.len(),
        workspaces = settings.config.workspaces.len(),
        "step 1: config.json is read"
    );
    if warnings.is_empty() {
        Settings::keep_as_last_good(state);
    }
    if !settings.config.unused_sections.is_empty() {
        let sections = settings.config.unused_sections.join(", ");
        warnings.push(format!("config.json has sections that this version does not use yet: {sections}"));
    }
    tracing::info!(secrets = settings.secrets.names().count(), "step 2: secrets.json is read");
    for problem in settings.secrets.missing(&settings.config) {
        tracing::warn!("{problem}");
    }
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    warnings
}

/// What the system has to offer, found before anything is started.
struct Found {
    agent_binary: PathBuf,
    source: Source,
    sandbox: SandboxInUse,
}

impl Found {
    /// Resolves once no process is left of a database whose start was given up.
    async fn settled(&self) {
        if let Source::Embedded(cluster) = &self.source {
            cluster.settled().await;
        }
    }
}

async fn find(state: &StateDir, settings: &Settings) -> Result<Found, BootError> {
    let agent_binary = find_agent_binary().map_err(BootError::NoAgent)?;
    let source = database::find(&settings.config, &settings.secrets, state).await?;
    tracing::info!(embedded = matches!(source, Source::Embedded(_)), "step 3: the database is found");
    let detected = detect(match settings.config.sandbox {
        SandboxChoice::Auto => Preference::Auto,
        SandboxChoice::Bubblewrap => Preference::Bubblewrap,
        SandboxChoice::Process => Preference::Process,
    })
    .await?;
    if let Some(warning) = &detected.warning {
        tracing::warn!("{warning}");
    }
    for caveat in detected.sandbox.caveats() {
        tracing::info!(sandbox = detected.sandbox.name(), "{caveat}");
    }
    let sandbox = SandboxInUse { sandbox: detected.sandbox, warning: detected.warning };
    Ok(Found { agent_binary, source, sandbox })
}

/// What all parts share, and the spec of the whole tree.
fn house(
    options: Options,
    settings: Settings,
    mut warnings: Vec<String>,
    started: Instant,
    telemetry: &Telemetry,
    found: &Found,
) -> Result<(Arc<Host>, SupervisorSpec), BootError> {
    let carrier = Carrier::choose(settings.config.link)?;
    tracing::info!(?carrier, "agents are linked");
    if let Some(warning) = carrier.warning() {
        tracing::warn!("{warning}");
        warnings.push(warning);
    }
    let (agents, agents_spec) = DynamicSpec::with(
        "agents",
        Intensity { restarts: 100, within: Duration::from_secs(10) },
        limits::AGENTS,
    );
    let patient =
        MailboxSpec { capacity: limits::MAILBOX, when_full: WhenFull::Wait(limits::SIGNAL_DEADLINE) };
    let (leases, leases_slot) = mailbox("leases", patient);
    let (settings_actor, settings_slot) = mailbox("settings", patient);
    let (ledger, ledger_slot) = ledger::mailbox_of_desk();
    let coordinator = coordinator::part(&settings.config.coordinator, &options.state, &found.source)?;
    let host = Arc::new(Host {
        state: options.state,
        started,
        agent_binary: found.agent_binary.clone(),
        settings: watch::Sender::new(Arc::new(settings)),
        settings_actor,
        store: watch::Sender::new(None),
        health: watch::Sender::new(DatabaseHealth { up: false, trouble: Some("it is starting".into()) }),
        links: watch::Sender::new(None),
        carrier,
        sandbox: watch::Sender::new(found.sandbox.clone()),
        roster: Roster::new(agents, leases),
        coordinator: coordinator.address,
        ledger,
        scrubber: telemetry.scrubber().clone(),
        metrics: telemetry.metrics().clone(),
        tree: OnceLock::new(),
        shutdown: watch::Sender::new(None),
        warnings,
        cluster: match &found.source {
            Source::Embedded(cluster) => Some(cluster.clone()),
            Source::External(_) => None,
        },
    });
    let mut root = SupervisorSpec::new("choird", Strategy::OneForOne)
        .intensity(Intensity { restarts: 60, within: Duration::from_secs(10) })
        .child(settings::child_spec(settings_slot, Arc::clone(&host)))
        .child(database::child_spec(&found.source, Arc::clone(&host))?)
        .child(coordinator.coordinator)
        .child(links::child_spec(Arc::clone(&host)))
        .child(recovery::child_spec(Arc::clone(&host)))
        .child(leases::child_spec(leases_slot, Arc::clone(&host)))
        .child(changes::child_spec(Arc::clone(&host)))
        .child(agents_spec)
        .child(admission::child_spec(Arc::clone(&host)))
        // After the agents, whose tools its runs use: those that are open are taken up as it starts.
        .child(ledger::child_spec(ledger_slot, Arc::clone(&host)));
    for front in coordinator.fronts {
        root = root.child(front);
    }
    let root = root
        // The front comes last, so that it is there only when everything behind it is.
        .child(front::child_spec(front::slot(), Arc::clone(&host)));
    Ok((host, root))
}

async fn shut_down(host: &Host, tree: Tree) {
    host.roster.quit_all(limits::STOP_WITHIN + limits::GONE_WITHIN).await;
    let report = tree.shutdown().await;
    for path in report.overran {
        tracing::warn!(path, "did not stop in time and was killed");
    }
}

/// The agent's executable: named by [`AGENT_ENV`], else `choir-agent` beside this program.
pub fn find_agent_binary() -> Result<PathBuf, String> {
    let named = std::env::var_os(AGENT_ENV).filter(|v| !v.is_empty()).map(PathBuf::from);
    let path = match named {
        Some(path) => path,
        None => {
            let own =
                std::env::current_exe().map_err(|e| format!("where this program is cannot be told: {e}"))?;
            own.parent().unwrap_or(Path::new("/")).join("choir-agent")
        }
    };
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() => {
            std::fs::canonicalize(&path).map_err(|e| format!("{}: {e}", path.display()))
        }
        _ => Err(format!(
            "the agent's executable is not at {}; build it with `cargo build`, or name it in {AGENT_ENV}",
            path.display()
        )),
    }
}
