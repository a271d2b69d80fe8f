//! One Choir: the real choird and choir-agent as processes, a private Postgres, all in one folder. It keeps choird
//! running as an init system would, and can tell afterwards whether anything was left behind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_host::config::{Template, template};
use choir_host::control::views::AgentView;
use choir_host::control::{Client, ClientError, Op};
use choir_host::secrets::Secrets;
use choir_host::state_dir::StateDir;
use choir_messages::id::AgentId;
use choir_persistence::testing::{Watchdog, binaries, template as database_template};
use choir_scripted_model::{Handle, JournalSink, Options, Script, ScriptedModel};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::procfs::{Process, holding};
use super::{HarnessError, limits};

/// The agent's name.
const AGENT: &str = "assistant";

/// The secret that holds the model's key.
const SECRET: &str = "model-key";

/// Lines of choird's last words that are told.
const LAST_WORDS: usize = 6;

/// How choird stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Choird {
    /// It is starting, or about to.
    Coming,
    /// It accepts commands.
    Ready(u32),
    /// It was told to end, and did, with this code.
    Ended(Option<i32>),
    /// It does not start.
    Hopeless(String),
}

/// What a house is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup<'a> {
    /// A word of config.json: `process` or `bubblewrap`.
    pub sandbox: &'a str,
    /// A word of config.json: `unix` or `tcp`.
    pub link: &'a str,
    /// The silence after which an agent is taken for crashed.
    pub crash: Duration,
}

impl Default for Setup<'_> {
    /// Plain processes, Unix sockets, and a silence that is short, since runs wait for it, but long enough for a machine with two cores
    /// and several conversations.
    fn default() -> Self {
        Self { sandbox: "process", link: "unix", crash: Duration::from_millis(1500) }
    }
}

/// One Choir.
pub struct House {
    setup: Setup<'static>,
    dir: PathBuf,
    state: StateDir,
    agent: AgentId,
    choird: watch::Receiver<Choird>,
    closing: watch::Sender<bool>,
    keeper: JoinHandle<()>,
    /// Ends of choird, as the keeper saw them.
    deaths: Arc<Mutex<Vec<String>>>,
    model: Options,
    watchdog: Option<Watchdog>,
}

/// A program beside which this test was built.
fn program(name: &str) -> Result<PathBuf, HarnessError> {
    let test = std::env::current_exe()?;
    // target/<profile>/deps/<test>
    let dir = test.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let path = dir.join(name);
    if path.is_file() { Ok(path) } else { Err(HarnessError::NotBuilt(path)) }
}

impl House {
    /// Makes a folder, starts choird in it, and returns once it accepts commands.
    pub async fn open(setup: Setup<'static>) -> Result<Self, HarnessError> {
        let (choird, _) = (program("choird")?, program("choir-agent")?);
        let postgres = binaries().await;
        // Short, because of the sockets in it.
        let dir = tempfile::Builder::new().prefix("choir-x-").tempdir_in("/tmp")?.keep();
        let state = StateDir::locate(Some(&dir.join("s")))?;
        state.create()?;
        let watchdog = Watchdog::over(state.root());
        std::fs::create_dir(dir.join("w"))?;
        copy(&database_template(&postgres).await, &state.root().join("postgres/data"))?;
        // The endpoint of every conversation is where this one was.
        let model = ScriptedModel::start(Script::default(), JournalSink::Memory).await?;
        let options = Options { port: model.port(), key: Some(model.key().to_owned()) };
        let text = template(&Template {
            agent: AGENT,
            workspace: &dir.join("w"),
            model: "scripted",
            endpoint: &model.endpoint(),
            secret: Some(SECRET),
        });
        Secrets::set(&state.secrets(), SECRET, &model.key().to_owned().into())
            .map_err(|error| HarnessError::Setup(error.to_string()))?;
        model.shutdown().await;
        let mut config: Value =
            serde_json::from_str(&text).map_err(|error| HarnessError::Setup(error.to_string()))?;
        if let Some(config) = config.as_object_mut() {
            config.insert("sandbox".into(), json!(setup.sandbox));
            config.insert("link".into(), json!({ "carrier": setup.link }));
            config.insert("heartbeat_interval_ms".into(), json!(limits::HEARTBEAT_MS));
            config.insert("crash_detection_threshold_ms".into(), json!(millis(setup.crash)));
            config.insert("postgres".into(), json!({ "binaries": postgres.dir() }));
        }
        std::fs::write(state.config(), config.to_string())?;
        let (tell, choird_is) = watch::channel(Choird::Coming);
        let (closing, closes) = watch::channel(false);
        let deaths: Arc<Mutex<Vec<String>>> = Arc::default();
        let keeper = Keeper {
            program: choird,
            state: state.clone(),
            errors: dir.join("choird.err"),
            tell,
            closes,
            deaths: Arc::clone(&deaths),
        };
        let keeper = tokio::spawn(keeper.run());
        let agent = AGENT.parse().map_err(|_| HarnessError::Setup("the agent's name".into()))?;
        let watchdog = Some(watchdog);
        let house = Self {
            setup,
            dir,
            state,
            agent,
            choird: choird_is,
            closing,
            keeper,
            deaths,
            model: options,
            watchdog,
        };
        house.ready().await?;
        Ok(house)
    }

    /// What it is like.
    #[must_use]
    pub const fn setup(&self) -> Setup<'static> {
        self.setup
    }

    /// Everything of this Choir is in here.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The agent.
    #[must_use]
    pub const fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// The agent's workspace.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.dir.join("w")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.state.control_socket()
    }

    /// Starts a model where config.json says that it is.
    pub(super) async fn model(&self, script: Script) -> Result<Handle, HarnessError> {
        Ok(ScriptedModel::start_with(script, JournalSink::Memory, self.model.clone()).await?)
    }

    /// Waits until choird accepts commands; its process.
    pub(super) async fn ready(&self) -> Result<u32, HarnessError> {
        let mut choird = self.choird.clone();
        let settled = choird.wait_for(|choird| !matches!(choird, Choird::Coming));
        match timeout(limits::READY, settled).await {
            Ok(Ok(choird)) => match &*choird {
                Choird::Ready(pid) => Ok(*pid),
                Choird::Hopeless(why) => Err(HarnessError::NoChoird(why.clone())),
                Choird::Coming | Choird::Ended(_) => Err(HarnessError::NoChoird("it has ended".into())),
            },
            _ => Err(HarnessError::Deadline("choird to be ready")),
        }
    }

    /// The ends of choird that nobody has taken yet.
    pub(super) fn take_deaths(&self) -> Vec<String> {
        std::mem::take(&mut *self.deaths.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One request over a connection of its own.
    pub async fn ask<T: DeserializeOwned>(&self, op: Op) -> Result<T, ClientError> {
        let client = Client::connect(&self.socket(), limits::REQUEST).await?;
        client.call(op, limits::REQUEST).await
    }

    /// How the agent is.
    pub async fn view(&self) -> Result<AgentView, ClientError> {
        self.ask(Op::AgentStatus { agent: self.agent.clone() }).await
    }

    /// A connection of the harness's own to the database, tried until it is there.
    pub(super) async fn sql(&self) -> Result<PgConnection, HarnessError> {
        let options = PgConnectOptions::new_without_pgpass()
            .socket(self.state.root().join("postgres/sock"))
            .username("choir")
            .database("choir");
        let connecting = async {
            loop {
                match options.connect().await {
                    Ok(connection) => return connection,
                    // It is being restarted.
                    Err(_) => tokio::time::sleep(limits::AGAIN).await,
                }
            }
        };
        timeout(limits::SETTLED, connecting)
            .await
            .map_err(|_| HarnessError::Deadline("a connection to the database"))
    }

    /// choird's own process, as the keeper started it.
    pub(super) fn choird(&self) -> Option<Process> {
        match &*self.choird.borrow() {
            Choird::Ready(pid) => Process::of(*pid),
            _ => None,
        }
    }

    /// The agent's own process, checked to descend from choird.
    pub(super) async fn agent_process(&self) -> Option<Process> {
        let view = self.view().await.ok()?;
        let process = Process::of(view.agent_pid.or(view.pid)?)?;
        process.descends_from(self.choird()?.pid).then_some(process)
    }

    /// The postmaster and its children, checked to be of this house's cluster.
    pub(super) fn postgres(&self) -> Vec<Process> {
        let data = self.state.root().join("postgres/data");
        let text = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let pid = text.lines().next().and_then(|line| line.trim().parse().ok());
        let Some(postmaster) = pid.and_then(Process::of).filter(|found| found.was_given(&data)) else {
            return Vec::new();
        };
        let mut all = vec![postmaster];
        all.extend(postmaster.children());
        all
    }

    /// Shuts choird down, and checks that it ended in order and that nothing is left. The folder is removed unless it
    /// is to be kept; then it is moved, so that nothing can touch it any more. Returns where it is.
    pub async fn close(mut self, keep: bool) -> Result<Option<PathBuf>, HarnessError> {
        self.closing.send_replace(true);
        let _: Result<Value, ClientError> = self.ask(Op::Shutdown).await;
        let mut choird = self.choird.clone();
        let ended = choird.wait_for(|choird| matches!(choird, Choird::Ended(_) | Choird::Hopeless(_)));
        let ended = match timeout(limits::STOPPED, ended).await {
            Ok(Ok(ended)) => Some(ended.clone()),
            _ => None,
        };
        self.keeper.abort();
        let left =
            holding(&self.dir).into_iter().filter(|line| !line.contains("watchdog")).collect::<Vec<_>>();
        let kept = self.dir.with_extension("kept");
        if keep {
            std::fs::rename(&self.dir, &kept)?;
        }
        drop(self.watchdog.take());
        if !keep {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
        match ended {
            Some(Choird::Ended(Some(0))) if left.is_empty() => Ok(keep.then_some(kept)),
            Some(Choird::Ended(Some(0))) => Err(HarnessError::Left(left)),
            Some(Choird::Ended(code)) => Err(HarnessError::Disorder(format!("{code:?}"))),
            Some(Choird::Hopeless(why)) => Err(HarnessError::NoChoird(why)),
            _ => Err(HarnessError::Deadline("choird to end")),
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // The keeper's child dies with it, and the watchdog ends the database.
        self.keeper.abort();
        if self.watchdog.take().is_some() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Keeps choird running.
struct Keeper {
    program: PathBuf,
    state: StateDir,
    errors: PathBuf,
    tell: watch::Sender<Choird>,
    closes: watch::Receiver<bool>,
    deaths: Arc<Mutex<Vec<String>>>,
}

impl Keeper {
    async fn run(self) {
        let mut fruitless = 0;
        loop {
            self.tell.send_replace(Choird::Coming);
            let mut child = match self.spawn() {
                Ok(child) => child,
                Err(error) => {
                    self.tell.send_replace(Choird::Hopeless(error.to_string()));
                    return;
                }
            };
            let first = match child.stdout.take() {
                Some(out) => BufReader::new(out).lines().next_line().await.ok().flatten(),
                None => None,
            };
            if first.is_some_and(|line| line.contains("\"ready\":true"))
                && let Some(pid) = child.id()
            {
                fruitless = 0;
                self.tell.send_replace(Choird::Ready(pid));
            } else {
                fruitless += 1;
            }
            let status = child.wait().await;
            let code = status.as_ref().ok().and_then(std::process::ExitStatus::code);
            if *self.closes.borrow() {
                self.tell.send_replace(Choird::Ended(code));
                return;
            }
            let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            let last = self.last_words();
            self.deaths.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{how} {last}"));
            if fruitless >= limits::FRUITLESS {
                self.tell.send_replace(Choird::Hopeless(format!("{how} {last}")));
                return;
            }
            self.tell.send_replace(Choird::Coming);
            tokio::time::sleep(limits::RESPAWN).await;
        }
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let errors = File::options().create(true).append(true).open(&self.errors)?;
        Command::new(&self.program)
            .arg("--state-dir")
            .arg(self.state.root())
            .arg("--quiet")
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
    }

    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let mut last: Vec<&str> = text.lines().rev().take(LAST_WORDS).collect();
        last.reverse();
        last.join("\n")
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Copies a folder of plain files and folders, private to this user.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Ends a connection; what is lost with it does not matter.
pub(super) async fn hang_up(connection: PgConnection) {
    let _ = connection.close().await;
}
