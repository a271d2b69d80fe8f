//! A `choird coordinator` process for a test, and the command line beside it. Everything ends with the value.

#![allow(clippy::unwrap_used, dead_code, reason = "shared by tests that fail by panicking")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use choir_chap_client::{Client, Endpoint};
use choir_messages::id::MessageId;
use choir_persistence::testing;
use serde_json::{Value, json};

/// Longest wait for anything in a test.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Pause between two looks at something that cannot be awaited.
const LOOK: Duration = Duration::from_millis(20);

/// A name that no other test uses.
pub(crate) fn fresh(prefix: &str) -> String {
    format!("{prefix}_{}", MessageId::fresh())
}

/// What a command printed and how it ended.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

fn run(program: &str, arguments: &[&str]) -> Ended {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(program)
        .args(arguments)
        .env("HOME", home.path())
        .env_remove("CHOIR_STATE_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ended {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs `choirctl`.
pub(crate) fn choirctl(arguments: &[&str]) -> Ended {
    run(env!("CARGO_BIN_EXE_choirctl"), arguments)
}

/// Runs `choird` until it ends by itself.
pub(crate) fn choird(arguments: &[&str]) -> Ended {
    run(env!("CARGO_BIN_EXE_choird"), arguments)
}

/// A running Coordinator.
pub(crate) struct Coordinator {
    child: Option<Child>,
    listen: String,
    options: Vec<String>,
    /// Where it keeps its workspaces; in memory without.
    store: Option<&'static str>,
    /// Ends the database whatever becomes of the test.
    watchdog: Option<testing::Watchdog>,
    dir: tempfile::TempDir,
}

impl Coordinator {
    /// One in memory, with these options.
    pub(crate) async fn start(options: &[&str]) -> Self {
        Self::with(options, None).await
    }

    /// One over a private Postgres.
    pub(crate) async fn durable(options: &[&str]) -> Self {
        Self::with(options, Some("postgres")).await
    }

    /// One over a folder, with no server.
    pub(crate) async fn in_folder(options: &[&str]) -> Self {
        Self::with(options, Some("sqlite")).await
    }

    async fn with(options: &[&str], store: Option<&'static str>) -> Self {
        let dir = tempfile::Builder::new().prefix("choir-chap").tempdir_in("/tmp").unwrap();
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let listen = "127.0.0.1:0".into();
        let mut server = Self { child: None, listen, options, store, watchdog: None, dir };
        if store == Some("postgres") {
            testing::binaries().await;
            server.watchdog = Some(testing::Watchdog::over(&server.state()));
        }
        server.start_again().await;
        server
    }

    /// Starts it on the port it had, so that clients find it again.
    pub(crate) async fn start_again(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_choird"));
        command.args(["coordinator", "--quiet", "--listen", &self.listen]).args(&self.options);
        if let Some(store) = self.store {
            command.args(["--store", store, "--state-dir"]).arg(self.state());
        }
        let mut child =
            command.env_remove("DATABASE_URL").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(out).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(SOON, line).await.expect("it starts in time").unwrap().unwrap();
        let ready: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("it did not start: {line:?}"));
        self.listen = ready["listen"].as_str().unwrap().to_owned();
        self.child = Some(child);
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A folder of the test's own.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    pub(crate) fn client(&self) -> Client {
        let at: Endpoint = self.url().parse().unwrap();
        Client::new(at, None, Duration::from_secs(10)).unwrap()
    }

    /// A workspace with one member and so many tasks, `{"n": 0}` on.
    pub(crate) async fn tasks(&self, workspace: &str, count: u64) {
        let client = self.client();
        let join = json!({ "workspace": workspace, "from": "human:w@e.org", "type": "human" });
        client.call("participant.join", join).await.unwrap();
        for n in 0..count {
            let params = json!({
                "workspace": workspace, "from": "human:w@e.org", "kind": "k", "assignee": "human:w@e.org",
                "input": { "n": n },
            });
            client.call("task.create", params).await.unwrap();
        }
    }

    async fn entries(&self, workspace: &str) -> Option<u64> {
        let described = self.client().call("workspace.describe", json!({ "workspace": workspace })).await;
        described.ok()?["audit_count"].as_u64()
    }

    /// How many entries there are, once somebody answers.
    pub(crate) async fn entries_eventually(&self, workspace: &str) -> u64 {
        let until = Instant::now() + SOON;
        loop {
            if let Some(count) = self.entries(workspace).await {
                return count;
            }
            assert!(Instant::now() < until, "nobody answers");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the log has so many entries.
    pub(crate) async fn until_entries(&self, workspace: &str, count: u64) {
        let until = Instant::now() + SOON;
        while self.entries_eventually(workspace).await < count {
            assert!(Instant::now() < until, "the log does not grow");
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn postgres_pid(&self) -> u32 {
        let file = self.state().join("postgres/data/postmaster.pid");
        std::fs::read_to_string(file).unwrap().lines().next().unwrap().trim().parse().unwrap()
    }

    /// Ends it in order; gives its exit code.
    pub(crate) async fn stop(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        Command::new("kill").arg(child.id().to_string()).status().unwrap();
        let ended = tokio::task::spawn_blocking(move || child.wait());
        tokio::time::timeout(SOON, ended).await.expect("it ends").unwrap().unwrap().code()
    }

    pub(crate) async fn kill_9(&mut self) {
        let mut child = self.child.take().unwrap();
        testing::kill_9(child.id());
        tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // In order, so that its database ends with it.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
            let until = Instant::now() + Duration::from_secs(20);
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
