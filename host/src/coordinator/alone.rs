//! `choird coordinator`: a Coordinator by itself, in memory, over a folder or over Postgres, until it is told to stop.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use choir_chap::Log;
use choir_chap_http::mcp::{chap_tools, serve_lines};
use choir_chap_http::{Auth, Config as HttpConfig, Front, FrontConfig, Limits, Listen, TlsFiles};
use choir_coordinator::{Hooks, Settings};
use choir_messages::mail::Caller;
use choir_persistence::chap::ChapStore;
use choir_persistence::postgres::{self, ClusterError, Source};
use choir_persistence::{Store, StoreError};
use choir_supervisors::{
    Intensity, MailboxSpec, StartError, Strategy, SupervisorSpec, Tree, WhenFull, mailbox,
};
use choir_telemetry::{Telemetry, TelemetryConfig, TelemetryError};
use sqlx::postgres::PgConnectOptions;

use super::House;
use super::identity::{IdentityError, IdentityFile, Verifier};
use super::log_key::{self, LogKeyError};
use crate::daemon::Signals;
use crate::limits;
use crate::state_dir::{StateDir, StateDirError};
use crate::telemetry::{LOG_ENV, remote_parent};

/// Time telemetry has to send its last words.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Where workspaces are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// In memory: they end with the process.
    Memory,
    /// In a folder of this state directory.
    Sqlite(StateDir),
    /// In `DATABASE_URL`'s database, else in a private cluster in this state directory.
    Postgres(StateDir),
}

/// How it is started.
#[derive(Debug, Clone)]
pub struct Alone {
    /// Where it listens; nowhere, if it serves MCP on standard input and output alone.
    pub listen: Option<SocketAddr>,
    /// Whether it serves MCP on standard input and output, and for whom that client acts. It then ends when the client
    /// does.
    pub mcp_stdio: Option<Caller>,
    /// Where workspaces are kept.
    pub store: StoreChoice,
    /// What the rules look at.
    pub rules: choir_chap::Settings,
    /// Who may call.
    pub auth: Auth,
    /// Whose ID tokens and credentials are believed; without it none are looked at.
    pub identity: Option<IdentityFile>,
    /// With TLS, on these files.
    pub tls: Option<TlsFiles>,
    /// Names under which clients reach it.
    pub hosts: Vec<String>,
    /// Origins whose pages may call.
    pub origins: Vec<String>,
    /// Base URL of an OTLP receiver for traces and metrics; without it none are made.
    pub otlp_endpoint: Option<String>,
    /// Whether it keeps log lines off standard error.
    pub quiet: bool,
}

/// Why it did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum AloneError {
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateDirError),
    /// No programs, no server.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was asked for is refused.
    #[error(transparent)]
    Refused(#[from] choir_chap_http::ConfigError),
    /// The key of its transparency log.
    #[error(transparent)]
    LogKey(#[from] LogKeyError),
    /// Identity providers.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Logs.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// A part of the tree.
    #[error("the Coordinator could not start: {0}")]
    Start(#[from] StartError),
    /// Signal handlers.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The MCP client on standard input and output.
    #[error("the MCP client cannot be served on standard input and output: {0}")]
    Stdio(std::io::Error),
    /// The tree gave up.
    #[error("the Coordinator gave up: {0}; its log says more")]
    GaveUp(String),
}

/// Runs until a signal. `ready` learns where it listens, once it does.
pub async fn run(options: Alone, ready: impl FnOnce(&Listen)) -> Result<(), AloneError> {
    let signals = Signals::listen().map_err(AloneError::Signals)?;
    let server = options.server();
    if let Some(server) = &server {
        server.check()?;
    }
    let telemetry = log(&options)?;
    let result = live(&options, server, &signals, ready).await;
    if let Err(error) = &result {
        tracing::error!(%error, "the Coordinator ends");
    }
    if let Err(error) = telemetry.shutdown(LAST_WORDS).await {
        tracing::warn!(%error, "telemetry did not end in order");
    }
    result
}

impl StoreChoice {
    fn state(&self) -> Option<&StateDir> {
        match self {
            Self::Memory => None,
            Self::Sqlite(state) | Self::Postgres(state) => Some(state),
        }
    }
}

impl Alone {
    fn server(&self) -> Option<HttpConfig> {
        let listen = Listen::Tcp(self.listen?);
        Some(HttpConfig { listen, tls: self.tls.clone(), front: self.front() })
    }

    fn front(&self) -> FrontConfig {
        FrontConfig {
            auth: self.auth.clone(),
            hosts: self.hosts.clone(),
            origins: self.origins.clone(),
            limits: Limits { envelope_bytes: self.rules.max_envelope_bytes, ..Limits::default() },
            profiles: self.rules.default_profiles.clone(),
            // Whoever may read any log may know which there are.
            listing: !self.rules.require_read_membership,
            remote_parent: Some(remote_parent),
        }
    }
}

fn log(options: &Alone) -> Result<Telemetry, TelemetryError> {
    let mut config = TelemetryConfig::new("choird", "coordinator");
    config.log_to_stderr = !options.quiet;
    config.otlp_endpoint.clone_from(&options.otlp_endpoint);
    if let Some(state) = options.store.state() {
        config.log_file = Some(state.log_file("coordinator"));
    }
    if let Ok(filter) = std::env::var(LOG_ENV) {
        config.filter = filter;
    }
    choir_telemetry::init(config)
}

async fn live(
    options: &Alone,
    server: Option<HttpConfig>,
    signals: &Signals,
    ready: impl FnOnce(&Listen),
) -> Result<(), AloneError> {
    let Some(state) = options.store.state() else {
        let log = log_key::fleeting()?;
        return serve(ChapStore::memory(), log, options, server, signals, ready).await;
    };
    state.create()?;
    let _held = state.hold()?;
    let log = log_key::kept(state)?;
    if matches!(options.store, StoreChoice::Sqlite(_)) {
        let store = ChapStore::sqlite(&state.coordinator_folder())?;
        let result = serve(store.clone(), log, options, server, signals, ready).await;
        store.close().await;
        return result;
    }
    let source = tokio::select! {
        source = Source::find(None, None, state.root()) => source?,
        _ = signals.first() => return Ok(()),
    };
    let Some(database) = Database::start(&source, signals).await? else { return Ok(()) };
    let result = over(&database, log, options, server, signals, ready).await;
    database.stop().await;
    result
}

/// The private cluster, if it is one, and how to reach the database.
struct Database {
    cluster: Option<Tree>,
    options: PgConnectOptions,
}

impl Database {
    /// None if a signal came first.
    async fn start(source: &Source, signals: &Signals) -> Result<Option<Self>, AloneError> {
        let config = match source {
            Source::External(options) => {
                return Ok(Some(Self { cluster: None, options: options.as_ref().clone() }));
            }
            Source::Embedded(config) => config,
        };
        let (_, slot) = mailbox("postgres", MailboxSpec { capacity: 16, when_full: WhenFull::Refuse });
        // A database that crashes is started again for as long as it takes: callers are told meanwhile.
        let patient = Intensity { restarts: u32::MAX, within: Duration::from_secs(1) };
        let spec = SupervisorSpec::new("store", Strategy::OneForOne)
            .intensity(patient)
            .child(postgres::child_spec(slot, config.clone()));
        let called_off = async {
            signals.first().await;
        };
        let Some(tree) = Tree::start_unless(spec, called_off).await? else {
            config.settled().await;
            return Ok(None);
        };
        Ok(Some(Self { cluster: Some(tree), options: config.options()? }))
    }

    async fn stop(self) {
        if let Some(tree) = self.cluster {
            tree.shutdown().await;
        }
    }
}

async fn over(
    database: &Database,
    log: Log,
    options: &Alone,
    server: Option<HttpConfig>,
    signals: &Signals,
    ready: impl FnOnce(&Listen),
) -> Result<(), AloneError> {
    // The claim on the database and its migrations are the store's.
    let store = tokio::select! {
        store = Store::open(database.options.clone()) => store?,
        _ = signals.first() => return Ok(()),
    };
    let chap = ChapStore::postgres(&store);
    let result = serve(chap.clone(), log, options, server, signals, ready).await;
    chap.close().await;
    store.close().await;
    result
}

/// A file of this process as one that is read and written without holding anybody up.
fn own(file: BorrowedFd<'_>) -> std::io::Result<tokio::fs::File> {
    Ok(tokio::fs::File::from_std(std::fs::File::from(file.try_clone_to_owned()?)))
}

async fn serve(
    store: ChapStore,
    log: Log,
    options: &Alone,
    server: Option<HttpConfig>,
    signals: &Signals,
    ready: impl FnOnce(&Listen),
) -> Result<(), AloneError> {
    let mut settings = Settings { rules: options.rules.clone(), ..Settings::default() };
    settings.rules.log = Some(log);
    let mut hooks = Hooks::default();
    if let Some(file) = &options.identity {
        let verifier = Verifier::new(file)?;
        (settings.rules.verify_oidc, settings.rules.verify_vc) = verifier.verifies();
        hooks.attest = Some(Arc::new(verifier));
    }
    let house = House::new(store, settings, hooks, server.into_iter().collect());
    let front = Front::new(house.address.clone(), options.front(), &chap_tools());
    let lines = async {
        match options.mcp_stdio.clone() {
            Some(caller) => {
                let (input, output) = (own(std::io::stdin().as_fd())?, own(std::io::stdout().as_fd())?);
                serve_lines(&front, caller, input, output).await
            }
            None => std::future::pending().await,
        }
    };
    let mut root = SupervisorSpec::new("choird", Strategy::OneForOne)
        .intensity(Intensity { restarts: 60, within: Duration::from_secs(10) })
        .child(house.coordinator);
    for front in house.fronts {
        root = root.child(front);
    }
    let called_off = async {
        signals.first().await;
    };
    let Some(tree) = Tree::start_unless(root, called_off).await? else { return Ok(()) };
    for mut bound in house.bound {
        let listening = tokio::time::timeout(limits::SHUTDOWN_WITHIN, bound.wait_for(Option::is_some)).await;
        if let Ok(Ok(listen)) = listening
            && let Some(listen) = listen.as_ref()
        {
            ready(listen);
            break;
        }
    }
    let handle = tree.handle();
    let result = tokio::select! {
        by = signals.first() => {
            tracing::info!(by, "the Coordinator shuts down");
            Ok(())
        }
        ended = lines => match ended {
            // A client that stops reading has left as well.
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(AloneError::Stdio(error)),
            _ => {
                tracing::info!("the MCP client left; the Coordinator shuts down");
                Ok(())
            }
        },
        exit = handle.ended() => Err(AloneError::GaveUp(exit.to_string())),
    };
    tokio::select! {
        report = tree.shutdown() => {
            for path in report.overran {
                tracing::warn!(path, "did not stop in time and was killed");
            }
        }
        () = signals.second() => tracing::warn!("another signal: not waiting any longer"),
        () = tokio::time::sleep(limits::SHUTDOWN_WITHIN) => tracing::error!("the shutdown took too long"),
    }
    result
}
