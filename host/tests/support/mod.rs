//! A whole Choir for a test: the real `choird` and `choir-agent` as processes, a real private Postgres, a scripted model
//! in the test's own process, and a chat client that recognises repeats. Everything ends with the value.

#![allow(clippy::unwrap_used, dead_code, reason = "shared by tests that fail by panicking")]

use std::collections::HashSet;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use choir_host::config::{Template, template};
use choir_host::control::views::{AgentView, SaidView, SentView, VerifyView};
use choir_host::control::{Client, ClientError, ErrorCode, Op};
use choir_host::secrets::Secrets;
use choir_host::state_dir::StateDir;
use choir_messages::id::{AgentId, MessageId, OutboundId};
use choir_persistence::testing;
use choir_scripted_model::{Fault, FaultRule, Handle, JournalSink, Match, Script, ScriptedModel, Step, When};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Longest wait for anything in a test.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Pause between two looks at something that cannot be awaited (a process, a socket that is not there yet).
const LOOK: Duration = Duration::from_millis(20);

/// One Choir.
pub(crate) struct World {
    pub(crate) state: StateDir,
    pub(crate) model: Handle,
    pub(crate) agent: AgentId,
    /// Another agent than the real one.
    pub(crate) agent_program: Option<PathBuf>,
    choird: Option<Child>,
    dir: tempfile::TempDir,
}

/// The agent's executable, which another package builds.
pub(crate) fn agent_binary() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_choird")).parent().unwrap().join("choir-agent");
    assert!(beside.exists(), "{} is missing: run `cargo build -p choir-agent` first", beside.display());
    beside
}

/// A script in which `[work]` has effects: a line appended by the shell, tagged with the message.
pub(crate) fn work() -> Script {
    Script::default().rule(
        Match::Contains("work".into()),
        [
            Step::call("choir.exec", json!({"command": "echo {{user}} >> done.txt"}))
                .on_outcome_unknown([Step::call("choir.fs.read", json!({"path": "done.txt"}))]),
            Step::call("choir.fs.read", json!({"path": "done.txt"})),
            Step::text("answer to {{user}}"),
        ],
    )
}

impl World {
    /// A state directory with one agent, its choird running and its agent up. `tweak` changes config.json first.
    pub(crate) async fn new(script: Script, tweak: impl FnOnce(&mut Value)) -> Self {
        let mut world = Self::stopped(script, tweak).await;
        world.start().await;
        world.agent_start().await;
        world
    }

    /// The same without anything running.
    pub(crate) async fn stopped(script: Script, tweak: impl FnOnce(&mut Value)) -> Self {
        Self::stopped_in(Path::new("/tmp"), script, tweak).await
    }

    /// The same with its folder in another one.
    pub(crate) async fn stopped_in(base: &Path, script: Script, tweak: impl FnOnce(&mut Value)) -> Self {
        agent_binary();
        let dir = tempfile::Builder::new().prefix("choir-").tempdir_in(base).unwrap();
        let state = StateDir::locate(Some(&dir.path().join("s"))).unwrap();
        state.create().unwrap();
        let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
        let text = template(&Template {
            agent: "assistant",
            workspace: &dir.path().join("w"),
            model: "scripted-1",
            endpoint: &model.endpoint(),
            secret: Some("model-key"),
        });
        let mut config: Value = serde_json::from_str(&text).unwrap();
        tweak(&mut config);
        let binaries = testing::binaries().await;
        config["postgres"] = json!({ "binaries": binaries.dir() });
        copy_private(&testing::template(&binaries).await, &state.root().join("postgres/data"));
        std::fs::write(state.config(), config.to_string()).unwrap();
        Secrets::set(&state.secrets(), "model-key", &model.key().to_owned().into()).unwrap();
        Self { state, model, agent: "assistant".parse().unwrap(), agent_program: None, choird: None, dir }
    }

    /// A command of ours, with nothing of the test's environment that would change it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_remove("DATABASE_URL").env("CHOIR_STATE_DIR", self.state.root()).kill_on_drop(true);
        command
    }

    /// Starts choird and waits until it is ready.
    pub(crate) async fn start(&mut self) {
        let log = std::fs::File::create(self.dir.path().join("choird.err")).unwrap();
        let mut command = self.command(env!("CARGO_BIN_EXE_choird"));
        if let Some(program) = &self.agent_program {
            command.env("CHOIR_AGENT_BIN", program);
        }
        let mut child =
            command.arg("--quiet").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first =
            tokio::time::timeout(SOON, lines.next_line()).await.expect("choird is ready in time").unwrap();
        let said = std::fs::read_to_string(self.dir.path().join("choird.err")).unwrap();
        let first = first.unwrap_or_else(|| panic!("choird did not start: {said}"));
        assert!(first.contains("\"ready\":true"), "{first}");
        self.choird = Some(child);
    }

    pub(crate) fn choird_pid(&self) -> u32 {
        self.choird.as_ref().unwrap().id().unwrap()
    }

    /// kill -9 of choird.
    pub(crate) async fn kill_choird(&mut self) {
        let mut child = self.choird.take().unwrap();
        child.start_kill().unwrap();
        child.wait().await.unwrap();
    }

    /// SIGTERM; returns choird's exit code once it is gone.
    pub(crate) async fn stop_choird(&mut self) -> Option<i32> {
        let mut child = self.choird.take().unwrap();
        signal(child.id().unwrap(), rustix::process::Signal::TERM);
        tokio::time::timeout(SOON, child.wait()).await.expect("choird ends in time").unwrap().code()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.state.control_socket(), SOON).await.unwrap()
    }

    pub(crate) async fn agent_start(&self) -> AgentView {
        let op = Op::AgentStart { agent: self.agent.clone(), fresh: false, workspace: None, llm: None };
        self.client().await.call(op, SOON).await.unwrap()
    }

    pub(crate) async fn view(&self) -> AgentView {
        self.client().await.call(Op::AgentStatus { agent: self.agent.clone() }, SOON).await.unwrap()
    }

    /// Looks at the agent until something holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&AgentView) -> bool) -> AgentView {
        let until = Instant::now() + SOON;
        loop {
            let view = self.view().await;
            if holds(&view) {
                return view;
            }
            assert!(Instant::now() < until, "not seen in time: {what}; {view:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The test's own folder.
    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("w")
    }

    /// What the agent's commands left in the workspace.
    pub(crate) fn done(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.workspace().join("done.txt")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A connection of the test's own to the database.
    pub(crate) async fn sql(&self) -> PgConnection {
        let options = PgConnectOptions::new_without_pgpass()
            .socket(self.state.root().join("postgres/sock"))
            .username("choir")
            .database("choir");
        options.connect().await.unwrap()
    }

    /// Answers in the outbox by message.
    pub(crate) async fn answers(&self) -> Vec<(String, i64)> {
        let mut sql = self.sql().await;
        let rows = sqlx::query_as(
            "SELECT message_id, count(*) FROM choir_control.outbox WHERE kind = 'answer' GROUP BY 1",
        )
        .fetch_all(&mut sql)
        .await
        .unwrap();
        sql.close().await.unwrap();
        rows
    }

    /// Processes that have the state directory in their command line.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mark = self.dir.path().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&mark) {
                found.push((pid, line));
            }
        }
        found
    }
}

/// Copies a folder of Postgres, which must be private, so that no test needs to make its own.
fn copy_private(from: &Path, to: &Path) {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_private(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What happened is in the logs.
            self.dir.disable_cleanup(true);
            let _ = writeln!(std::io::stderr(), "the state is kept in {}", self.dir.path().display());
        }
        if let Some(child) = &mut self.choird
            && let Some(pid) = child.id()
        {
            signal(pid, rustix::process::Signal::TERM);
            let until = Instant::now() + Duration::from_secs(20);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
        // A choird that was killed leaves its database for the next; here there is no next.
        let pid_file = self.state.root().join("postgres/data/postmaster.pid");
        let pid = std::fs::read_to_string(pid_file).ok().and_then(|text| text.lines().next()?.parse().ok());
        for (found, _) in self.processes() {
            if Some(found) == pid {
                signal(found, rustix::process::Signal::QUIT);
            }
        }
    }
}

/// How things stand, for the message of a test that waited in vain.
pub(crate) async fn diagnosis(state: &StateDir, agent: &AgentId) -> String {
    let Ok(client) = Client::connect(&state.control_socket(), SOON).await else { return "no choird".into() };
    let view: Result<AgentView, _> = client.call(Op::AgentStatus { agent: agent.clone() }, SOON).await;
    let tree: Result<Value, _> = client.call(Op::Tree, SOON).await;
    let tree = tree.map(|tree| tree["agents"].to_string());
    let log = std::fs::read_to_string(state.log_file("choird")).unwrap_or_default();
    let last: Vec<_> = log.lines().rev().take(20).collect();
    format!("{view:?}; {last:#?}; {tree:?}")
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// A user: sends messages, reads answers, keeps the conversation over lost connections.
pub(crate) struct User {
    state: StateDir,
    agent: AgentId,
    pub(crate) said: Vec<SaidView>,
    shown: HashSet<OutboundId>,
}

impl User {
    pub(crate) fn of(world: &World) -> Self {
        Self {
            state: world.state.clone(),
            agent: world.agent.clone(),
            said: Vec::new(),
            shown: HashSet::new(),
        }
    }

    /// Sends a message until it is confirmed, always under the same id.
    pub(crate) async fn send(&self, text: &str) -> MessageId {
        let message = MessageId::fresh();
        let until = Instant::now() + SOON;
        loop {
            match self.try_send(message, text).await {
                Ok(_) => return message,
                // "The database is away" may be over the next time; every other refusal is final.
                Err(ClientError::Refused(error)) if error.code != ErrorCode::Runtime => panic!("{error}"),
                Err(error) => assert!(Instant::now() < until, "not accepted in time: {error}"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn try_send(&self, message: MessageId, text: &str) -> Result<SentView, ClientError> {
        let client = Client::connect(&self.state.control_socket(), SOON).await?;
        let op = Op::Send { agent: self.agent.clone(), message, text: text.to_owned() };
        client.call(op, SOON).await
    }

    /// Reads until this message is answered.
    pub(crate) async fn answer_to(&mut self, message: MessageId) -> SaidView {
        let until = Instant::now() + SOON;
        loop {
            if let Some(said) = self.said.iter().find(|said| said.message == message && said.kind == "answer")
            {
                return said.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let now = diagnosis(&self.state, &self.agent).await;
                panic!("no answer in time; said so far: {:?}; {now}", self.said);
            }
            let read = tokio::time::timeout(left, self.read_until(message)).await;
            if !matches!(read, Ok(Ok(()))) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    async fn read_until(&mut self, message: MessageId) -> Result<(), ClientError> {
        let client = Client::connect(&self.state.control_socket(), SOON).await?;
        let mut stream = client.stream(Op::Chat { agent: self.agent.clone(), redeliver: true }).await?;
        while let Some(item) = stream.item().await? {
            let said: SaidView = serde_json::from_value(item).unwrap();
            let delivered = Op::Delivered { agent: self.agent.clone(), outbound: said.outbound };
            let last = said.message == message && said.kind == "answer";
            if self.shown.insert(said.outbound) {
                self.said.push(said);
            }
            client.call::<Value>(delivered, SOON).await?;
            if last {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Sends a message whose model call is held after its command has run, and waits for that moment.
pub(crate) async fn held(world: &World, user: &User, text: &str) -> MessageId {
    let when = When::Message { contains: text.into(), step: Some(1) };
    world.model.add_fault(FaultRule::once(when, Fault::Hold));
    let message = user.send(text).await;
    if world.model.until_held(SOON).await.is_err() {
        panic!("the model was not asked in time; {}", diagnosis(&world.state, &world.agent).await);
    }
    message
}

/// Every message was answered once, every effect happened once, in order, and the log verifies.
pub(crate) async fn is_whole(world: &World, user: &mut User, messages: &[(MessageId, &str)]) {
    for (message, text) in messages {
        let said = user.answer_to(*message).await;
        assert_eq!(said.text, format!("answer to {text}"));
    }
    let answers: Vec<_> = user.said.iter().filter(|said| said.kind == "answer").collect();
    assert_eq!(answers.len(), messages.len(), "{answers:?}");
    let mut table = world.answers().await;
    table.sort();
    let mut expected: Vec<_> = messages.iter().map(|(message, _)| (message.to_string(), 1)).collect();
    expected.sort();
    assert_eq!(table, expected, "one answer a message in the table");
    assert_eq!(world.done(), messages.iter().map(|(_, text)| (*text).to_owned()).collect::<Vec<_>>());
    let session = world.view().await.session.unwrap();
    let verified: VerifyView = world.client().await.call(Op::SessionVerify { session }, SOON).await.unwrap();
    assert!(verified.verified, "{verified:?}");
}
