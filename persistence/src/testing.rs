//! Throwaway Postgres clusters for tests, here and in the crates that build on this one (feature `testing`).
//!
//! Nothing is skipped: a test that cannot have its cluster fails with a sentence that says what to run. Each cluster is
//! a copy of one template, so it is up in a fraction of a second, and a watchdog ends it with the test's process,
//! however that ends.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot have its database must fail, loudly"
)]

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::Store;
use crate::postgres::{Binaries, Cluster, ClusterConfig, ClusterError, FETCHED};

/// Bumped when what is in the template changes.
const TEMPLATE: u32 = 2;

/// Ends whatever server runs in a state folder, and removes the folder, once its standard input is closed.
const WATCHDOG: &str = r#"cat >/dev/null
pid=$(head -n 1 "$1/postgres/data/postmaster.pid" 2>/dev/null)
ours() { [ -n "$pid" ] && tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | grep -qxF "$1/postgres/data"; }
ours "$1" && kill -QUIT "$pid"
n=0
while ours "$1" && [ $n -lt 500 ]; do sleep 0.01; n=$((n + 1)); done
ours "$1" && kill -KILL "$pid"
rm -rf "$1"
"#;

/// Ends what a test leaves behind: once this is dropped, or its process dies in whatever way, the server of a state
/// folder is ended and the folder is removed.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
}

impl Watchdog {
    /// Watches over a state folder.
    #[must_use]
    pub fn over(state: &Path) -> Self {
        let child = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("sh can be started");
        Self { child }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A cluster of one test, in a folder of its own.
#[derive(Debug)]
pub struct TestCluster {
    config: ClusterConfig,
    cluster: Option<Cluster>,
    _watchdog: Watchdog,
}

impl TestCluster {
    /// A running cluster with an empty database.
    pub async fn start() -> Self {
        let mut this = Self::stopped().await;
        this.up().await;
        this
    }

    /// The same, not started yet.
    pub async fn stopped() -> Self {
        let binaries = binaries().await;
        let template = template(&binaries).await;
        let state = tempfile::Builder::new()
            .prefix("choir-t-")
            .tempdir()
            .expect("the temporary folder is writable")
            // The watchdog removes it, after the server has gone.
            .keep();
        let watchdog = Watchdog::over(&state);
        let mut config = ClusterConfig::new(binaries, &state);
        config.template = Some(template);
        Self { config, cluster: None, _watchdog: watchdog }
    }

    /// Starts the server, or adopts a running one.
    pub async fn up(&mut self) {
        assert!(self.cluster.is_none(), "the cluster is up already");
        self.cluster = Some(Cluster::start(&self.config).await.unwrap_or_else(|e| panic!("{e}")));
    }

    /// Its configuration; its state folder is `config().state`.
    #[must_use]
    pub const fn config(&self) -> &ClusterConfig {
        &self.config
    }

    /// The cluster; panics if it is not up.
    #[must_use]
    pub const fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("the cluster is up")
    }

    /// Takes the cluster's manager out; dropping it is what a killed choird does.
    #[must_use]
    pub const fn take(&mut self) -> Cluster {
        self.cluster.take().expect("the cluster is up")
    }

    /// Kills the postmaster with SIGKILL, and waits until it is gone.
    pub async fn kill(&mut self) {
        let mut cluster = self.take();
        kill_9(cluster.pid());
        let _ = cluster.ended().await;
    }

    /// How to connect.
    #[must_use]
    pub fn options(&self) -> PgConnectOptions {
        self.cluster().options()
    }

    /// A connection of its own, for looking from outside.
    pub async fn connect(&self) -> PgConnection {
        self.options().connect().await.unwrap_or_else(|e| panic!("{e}"))
    }

    /// A store on its database.
    pub async fn store(&self) -> Store {
        Store::open(self.options()).await.unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Kills one process with SIGKILL.
pub fn kill_9(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
    // Gone already is as good.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// PostgreSQL's programs, fetched if they are not there. Panics with what to do if they cannot be had.
pub async fn binaries() -> Binaries {
    match Binaries::find(None, Path::new("/nonexistent")).await {
        Ok(found) => return found,
        Err(ClusterError::NoBinaries { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/fetch-postgres");
    let fetched = Command::new(&script).stdin(Stdio::null()).output();
    match fetched {
        Ok(output) if output.status.success() => {
            let dir = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Binaries::at(Path::new(&dir)).await.unwrap_or_else(|e| panic!("{e}"))
        }
        Ok(output) => panic!(
            "these tests need PostgreSQL: run scripts/fetch-postgres and see why it fails:\n{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => {
            panic!("these tests need PostgreSQL: run scripts/fetch-postgres ({}: {error})", script.display())
        }
    }
}

/// The data folder of a stopped cluster with an empty database, made once a machine.
pub async fn template(binaries: &Binaries) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let home =
        std::env::temp_dir().join(format!("choir-template-{uid}-{FETCHED}-{}-{TEMPLATE}", binaries.major()));
    std::fs::create_dir_all(&home).expect("the temporary folder is writable");
    let ready = home.join("data");
    let lock = File::create(home.join("lock")).expect("the temporary folder is writable");
    lock.lock().expect("a file can be locked");
    if !ready.exists() {
        let making = home.join("making");
        let _ = std::fs::remove_dir_all(&making);
        let mut config = ClusterConfig::new(binaries.clone(), &making);
        config.template = None;
        let cluster = Cluster::start(&config).await.unwrap_or_else(|e| panic!("{e}"));
        slim(&cluster).await.unwrap_or_else(|e| panic!("{e}"));
        cluster.stop().await;
        std::fs::rename(making.join("postgres/data"), &ready).expect("a folder can be moved");
        let _ = std::fs::remove_dir_all(&making);
    }
    ready
}

/// Drops the databases that no test uses: three quarters of what every test would copy.
async fn slim(cluster: &Cluster) -> Result<(), sqlx::Error> {
    let mut connection = cluster.options().connect().await?;
    sqlx::query("UPDATE pg_database SET datistemplate = false").execute(&mut connection).await?;
    for sql in ["DROP DATABASE postgres", "DROP DATABASE template0", "DROP DATABASE template1"] {
        sqlx::query(sql).execute(&mut connection).await?;
    }
    Ok(())
}
