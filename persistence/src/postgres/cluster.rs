//! The private cluster: made if missing, adopted if it runs, else started; watched; stopped.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::binaries::Binaries;
use super::error::ClusterError;
use super::layout::Layout;
use super::pidfile::{self, Postmaster};
use super::process::{Ended, Patience, Process};
use super::run_as::RunAs;
use super::starting::{GivenUp, Starts, wanted};
use super::{NAME, initdb};

/// Longest time from start to the first accepted connection. After a power cut the server replays its log first.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Pause between two looks at a server that is starting; it is usually ready within 100 ms.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Pause before a start is tried again because processes of a killed predecessor still hold the cluster's memory. They
/// notice within milliseconds that their parent is gone.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Longest time for such retries.
const RETRY_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of the log's end that are searched for the reason of a failure.
const LOG_TAIL: u64 = 16 * 1024;

/// What is needed to run a private cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The programs.
    pub binaries: Binaries,
    /// choird's state folder; the cluster lives in `postgres/` under it.
    pub state: PathBuf,
    /// The data folder of a cluster that is stopped, to be copied instead of running `initdb`; for tests and fleets.
    pub template: Option<PathBuf>,
    /// How long stopping may take.
    pub patience: Patience,
    starts: Starts,
}

impl ClusterConfig {
    /// The usual.
    #[must_use]
    pub fn new(binaries: Binaries, state: &Path) -> Self {
        let (patience, starts) = (Patience::default(), Starts::default());
        Self { binaries, state: state.to_owned(), template: None, patience, starts }
    }

    /// Waits until every start with this configuration (or a clone of it) is over, those too that were given up by
    /// dropping the future of [`Cluster::start`]. Then no process is left of them.
    pub async fn settled(&self) {
        self.starts.settled().await;
    }

    /// What can be told of the disk under the cluster.
    ///
    /// # Errors
    ///
    /// [`ClusterError::DiskFull`] where a server would not be started for want of room.
    pub fn check_room(&self) -> Result<(), ClusterError> {
        Layout::prepare(&self.state)?.check_room()
    }

    /// How to connect to the cluster, running or not: the socket's place follows from the state folder.
    pub fn options(&self) -> Result<PgConnectOptions, ClusterError> {
        Ok(options(&Layout::prepare(&self.state)?))
    }
}

/// Where a running cluster came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was made just now.
    Made,
    /// It existed and was started.
    Started,
    /// It was running already, left by a choird that was killed.
    Adopted,
}

/// A running cluster. Dropping it leaves the server running, to be adopted by the next [`Cluster::start`]; only
/// [`Cluster::stop`] ends it. So a choird that crashes and comes back finds its database warm.
#[derive(Debug)]
pub struct Cluster {
    process: Process,
    origin: Origin,
    layout: Layout,
    log_start: u64,
    patience: Patience,
    _lock: File,
}

impl Cluster {
    /// Brings the cluster up and returns when it accepts connections.
    ///
    /// Dropping the future gives the start up: what was begun is ended in order behind the caller's back, see
    /// [`ClusterConfig::settled`].
    pub async fn start(config: &ClusterConfig) -> Result<Self, ClusterError> {
        config.settled().await;
        let (_wanted, given_up) = wanted();
        let (done, started) = oneshot::channel();
        let (entry, config) = (config.starts.enter(), config.clone());
        let start = async move {
            let result = Self::bring_up(&config, given_up).await;
            if let Err(Ok(cluster)) = done.send(result) {
                // It came up in the moment that nobody wanted it any more.
                cluster.stop().await;
            }
            drop(entry);
        };
        tokio::spawn(start.in_current_span());
        // Without an answer the runtime is going down.
        started.await.unwrap_or(Err(ClusterError::GivenUp))
    }

    async fn bring_up(config: &ClusterConfig, mut given_up: GivenUp) -> Result<Self, ClusterError> {
        let layout = Layout::prepare(&config.state)?;
        let lock = layout.lock()?;
        if let Some(process) = adopt(&layout)? {
            let origin = Origin::Adopted;
            let (log_start, patience) = (log_end(&layout), config.patience);
            let mut cluster = Self { process, origin, layout, log_start, patience, _lock: lock };
            match cluster.ready(Instant::now() + READY_WITHIN, &mut given_up).await? {
                None => return Ok(cluster),
                // It was on its way out: start it like any other.
                Some(_) => return Self::start_stopped(config, cluster.layout, cluster._lock, given_up).await,
            }
        }
        Self::start_stopped(config, layout, lock, given_up).await
    }

    async fn start_stopped(
        config: &ClusterConfig,
        layout: Layout,
        lock: File,
        mut given_up: GivenUp,
    ) -> Result<Self, ClusterError> {
        layout.check_room()?;
        let run_as = given_up.unless(RunAs::choose()).await??;
        run_as.give(&layout.root)?;
        run_as.give(&layout.sockets)?;
        let program = config.binaries.program("postgres");
        given_up.unless(run_as.check_reach(&layout.root, &program)).await??;
        let template = config.template.as_deref();
        let made = initdb::ensure(&layout, &config.binaries, run_as, template, &mut given_up).await?;
        let origin = if made { Origin::Made } else { Origin::Started };
        let deadline = Instant::now() + READY_WITHIN;
        let retry_until = Instant::now() + RETRY_WITHIN;
        let patience = config.patience;
        let (process, log_start) = spawn(&layout, &config.binaries, run_as)?;
        let mut cluster = Self { process, origin, layout, log_start, patience, _lock: lock };
        loop {
            let Some(ended) = cluster.ready(deadline, &mut given_up).await? else { return Ok(cluster) };
            let said = cluster.said();
            if !(said.contains("is still in use") && Instant::now() < retry_until) {
                tracing::warn!(how = ended.how, "the database server ended while it was starting");
                return Err(initdb::explain("postgres", &said, &cluster.layout, cluster.layout.log.clone()));
            }
            given_up.unless(tokio::time::sleep(RETRY_AFTER)).await?;
            (cluster.process, cluster.log_start) = spawn(&cluster.layout, &config.binaries, run_as)?;
        }
    }

    /// Waits until the server accepts connections to our database. Returns how it ended if it did instead. Given up, it
    /// stops the server first.
    async fn ready(
        &mut self,
        deadline: Instant,
        given_up: &mut GivenUp,
    ) -> Result<Option<Ended>, ClusterError> {
        let options = self.options();
        loop {
            let knock = async {
                match knock(&options).await {
                    Knock::Open => true,
                    Knock::NotYet => {
                        tokio::time::sleep(LOOK_EVERY).await;
                        false
                    }
                }
            };
            tokio::select! {
                ended = self.process.ended() => return Ok(Some(ended)),
                open = knock => if open { return Ok(None) },
                () = given_up.wait() => {
                    self.process.stop(self.patience).await;
                    return Err(ClusterError::GivenUp);
                }
                () = tokio::time::sleep_until(deadline) => {
                    let seconds = READY_WITHIN.as_secs();
                    let log = self.layout.log.clone();
                    // A server that hangs at its start must not be left behind.
                    self.process.stop(self.patience).await;
                    return Err(ClusterError::Slow { program: "postgres", seconds, log });
                }
            }
        }
    }

    /// How to connect.
    #[must_use]
    pub fn options(&self) -> PgConnectOptions {
        options(&self.layout)
    }

    /// The same as a URL, for `psql` and others.
    #[must_use]
    pub fn url(&self) -> String {
        let mut host = String::new();
        for byte in self.layout.sockets.as_os_str().as_encoded_bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' => {
                    host.push(char::from(*byte))
                }
                other => host.push_str(&format!("%{other:02X}")),
            }
        }
        format!("postgres:///{NAME}?host={host}&user={NAME}")
    }

    /// The postmaster's process id.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Waits for the server's end without borrowing the cluster; [`Cluster::ended`] then gives the reason.
    pub fn watch(&self) -> Result<impl Future<Output = ()> + Send + 'static, ClusterError> {
        self.process.watch().map_err(|e| ClusterError::file(&self.layout.data, &e))
    }

    /// Where it came from.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// The server's log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.layout.log
    }

    /// Waits for the server to end, which it does not do by itself: returns the reason for a person.
    pub async fn ended(&mut self) -> ClusterError {
        let Ended { how } = self.process.ended().await;
        let said = self.said();
        match initdb::explain("postgres", &said, &self.layout, self.layout.log.clone()) {
            full @ ClusterError::DiskFull { .. } => full,
            _ => ClusterError::Failed {
                program: "postgres",
                why: format!("it ended ({how})"),
                log: self.layout.log.clone(),
            },
        }
    }

    /// Stops the server in order (then less politely, see [`Patience`]) and returns when it is gone.
    pub async fn stop(mut self) -> Ended {
        self.process.stop(self.patience).await
    }

    /// The end of what the server has logged since it was started.
    fn said(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.layout.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.log_start.max(length.saturating_sub(LOG_TAIL)).min(length)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn options(layout: &Layout) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(&layout.sockets)
        .port(5432)
        .username(NAME)
        .database(NAME)
        .ssl_mode(PgSslMode::Disable)
}

fn log_end(layout: &Layout) -> u64 {
    std::fs::metadata(&layout.log).map_or(0, |m| m.len())
}

/// The running server of this cluster, if there is one. A leftover `postmaster.pid` is removed.
fn adopt(layout: &Layout) -> Result<Option<Process>, ClusterError> {
    match pidfile::look(&layout.data) {
        Postmaster::None => {
            layout.remove_socket_lock()?;
            Ok(None)
        }
        Postmaster::Stale => {
            pidfile::remove_stale(&layout.data)?;
            layout.remove_socket_lock()?;
            Ok(None)
        }
        Postmaster::Living(pid) => {
            let process = Process::adopt(pid).map_err(|e| ClusterError::file(&layout.data, &e))?;
            // Between the two looks the number may have passed to another process: look again, now that it is held.
            Ok(process.filter(|_| pidfile::look(&layout.data) == Postmaster::Living(pid)))
        }
    }
}

fn spawn(layout: &Layout, binaries: &Binaries, run_as: RunAs) -> Result<(Process, u64), ClusterError> {
    let program = binaries.program("postgres");
    let (log, log_start) = layout.open_log()?;
    let log_too = log.try_clone().map_err(|e| ClusterError::file(&layout.log, &e))?;
    let mut command = run_as.command(&program);
    command.arg("-D").arg(&layout.data).arg("-k").arg(&layout.sockets).stdout(log).stderr(log_too);
    for setting in SETTINGS {
        command.arg("-c").arg(setting);
    }
    if binaries.major() >= 18 {
        // Three helper processes saved; this database is small enough to be in memory.
        command.args(["-c", "io_method=sync"]);
    }
    let child = command.spawn().map_err(|e| ClusterError::file(&program, &e))?;
    let process = Process::child(child).map_err(|e| ClusterError::file(&program, &e))?;
    Ok((process, log_start))
}

/// Settings of the server, given on its command line so that a file cannot take them back.
const SETTINGS: [&str; 16] = [
    // The only way in is the private socket.
    "listen_addresses=",
    "unix_socket_permissions=0700",
    // What was acknowledged is on disk.
    "fsync=on",
    "full_page_writes=on",
    "synchronous_commit=on",
    // One host, few connections: small and quiet.
    "max_connections=40",
    "shared_buffers=32MB",
    "max_wal_size=256MB",
    "min_wal_size=16MB",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_parallel_workers_per_gather=0",
    "jit=off",
    // A log that a person can read.
    "log_destination=stderr",
    "logging_collector=off",
    "log_checkpoints=off",
];

enum Knock {
    Open,
    NotYet,
}

/// One try to connect to our database, which is made if the server is there and the database is not.
async fn knock(options: &PgConnectOptions) -> Knock {
    match options.connect().await {
        Ok(connection) => {
            let _ = connection.close().await;
            Knock::Open
        }
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("3D000") => {
            match create_database(options).await {
                Ok(()) => Knock::Open,
                Err(error) => {
                    tracing::warn!(%error, "the database could not be created yet");
                    Knock::NotYet
                }
            }
        }
        // Not listening yet, or "the database system is starting up".
        Err(_) => Knock::NotYet,
    }
}

async fn create_database(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let mut connection = options.clone().database("postgres").connect().await?;
    let made = sqlx::query("CREATE DATABASE choir").execute(&mut connection).await;
    let _ = connection.close().await;
    made.map(|_| ())
}
