//! The budgets of DESIGN §8, measured on the real processes with the scripted model. Prints a table; asserts nothing.
//!
//! Run it with `make bench` (it needs choird and choir-agent of the release build beside it).

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and stops when it cannot go on"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use choir_host::config::{Template, template};
use choir_host::control::views::{AgentView, SaidView, SentView};
use choir_host::control::{Client, Op};
use choir_host::secrets::Secrets;
use choir_host::state_dir::StateDir;
use choir_messages::id::{AgentId, MessageId};
use choir_scripted_model::{Fault, FaultRule, Handle, JournalSink, Match, Script, ScriptedModel, Step, When};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(30);
const TURNS: usize = 100;

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

fn row(what: &str, budget: &str, measured: &str) {
    println!("| {what} | {budget} | {measured} |");
}

async fn measure() {
    let bin = bin_dir();
    let dir = tempfile::Builder::new().prefix("choir-b-").tempdir_in("/tmp").unwrap();
    let state = StateDir::locate(Some(&dir.path().join("s"))).unwrap();
    state.create().unwrap();
    std::fs::create_dir(dir.path().join("w")).unwrap();
    let script = Script::default().rule(
        Match::Contains("work".into()),
        [Step::call("choir.fs.read", json!({"path": "f.txt"})), Step::text("done")],
    );
    std::fs::write(dir.path().join("w/f.txt"), "hello\n").unwrap();
    let model = ScriptedModel::start(script.rule(Match::Any, [Step::text("yes")]), JournalSink::Memory)
        .await
        .unwrap();
    let text = template(&Template {
        agent: "assistant",
        workspace: &dir.path().join("w"),
        model: "scripted",
        endpoint: &model.endpoint(),
        secret: Some("model-key"),
    });
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let fields = config.as_object_mut().unwrap();
    fields.insert("sandbox".into(), json!("process"));
    // Every turn sends the transcript again, so hundreds of turns would use up an ordinary session's budget.
    fields.insert("budgets".into(), json!({ "total_session_tokens": 1_000_000_000 }));
    std::fs::write(state.config(), config.to_string()).unwrap();
    Secrets::set(&state.secrets(), "model-key", &model.key().to_owned().into()).unwrap();

    println!("| what | budget | measured |\n|---|---|---|");
    // The first start makes the cluster; the second finds a running one, so that choird alone is measured.
    let first = start(&bin, &state);
    kill(first.id());
    wait(first);
    let from = Instant::now();
    let mut choird = start(&bin, &state);
    row("choird: ready, database already running", "< 50 ms", &format!("{} ms", from.elapsed().as_millis()));
    let client = Client::connect(&state.control_socket(), WITHIN).await.unwrap();
    row("choird: resident memory, no agent", "< 30 MB", &memory(choird.id()));

    let agent: AgentId = "assistant".parse().unwrap();
    let from = Instant::now();
    let start_op = Op::AgentStart { agent: agent.clone(), fresh: false, workspace: None, llm: None };
    let _: Value = client.call(start_op, WITHIN).await.unwrap();
    row("agent: start to up", "", &format!("{} ms", from.elapsed().as_millis()));
    let view: AgentView = client.call(Op::AgentStatus { agent: agent.clone() }, WITHIN).await.unwrap();
    let pid = view.agent_pid.or(view.pid).unwrap();
    let mut chat = client.stream(Op::Chat { agent: agent.clone(), redeliver: true }).await.unwrap();

    turn(&client, &mut chat, &agent, "hello").await;
    let bytes = model.journal().entries().first().map_or(0, |entry| entry.request_bytes);
    row("first model request", "< 8 kB", &format!("{bytes} bytes"));
    row("choir-agent: resident memory after one turn", "< 15 MB", &memory(pid));

    for (what, text) in [("turn without tools", "hello"), ("turn with one read (two model calls)", "work")] {
        let mut took = Vec::with_capacity(TURNS);
        for n in 0..TURNS {
            took.push(turn(&client, &mut chat, &agent, &format!("{text} {n}")).await);
        }
        took.sort_unstable();
        let at =
            |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)].as_secs_f64() * 1000.0;
        row(what, "< 10 ms p50", &format!("p50 {:.1} ms, p99 {:.1} ms", at(50), at(99)));
    }

    let mut recovered = Vec::new();
    for n in 0..5 {
        recovered.push(recovery(&client, &mut chat, &model, &agent, n).await.as_millis());
    }
    row("kill -9 of choir-agent to the resumed model call", "< 1 s", &format!("{recovered:?} ms"));

    let quiet = model.journal().requests();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let calls = model.journal().requests() - quiet;
    row("model calls of an idle agent in 5 s", "0", &calls.to_string());
    let _ = client.call::<Value>(Op::Shutdown, WITHIN).await;
    let _ = choird.wait();
}

/// One turn: how long it took from the user's sending to the answer's arrival, both durable by then. That the chat
/// confirms the delivery afterwards is not part of it.
async fn turn(
    client: &Client,
    chat: &mut choir_host::control::Stream,
    agent: &AgentId,
    text: &str,
) -> Duration {
    let from = Instant::now();
    let message = MessageId::fresh();
    let send = Op::Send { agent: agent.clone(), message, text: text.to_owned() };
    let _: SentView = client.call(send, WITHIN).await.unwrap();
    loop {
        let item = tokio::time::timeout(WITHIN, chat.item()).await.unwrap().unwrap().unwrap();
        let took = from.elapsed();
        let said: SaidView = serde_json::from_value(item).unwrap();
        let delivered = Op::Delivered { agent: agent.clone(), outbound: said.outbound };
        let _: Value = client.call(delivered, WITHIN).await.unwrap();
        if said.message == message && said.kind == "answer" {
            return took;
        }
    }
}

async fn recovery(
    client: &Client,
    chat: &mut choir_host::control::Stream,
    model: &Handle,
    agent: &AgentId,
    n: usize,
) -> Duration {
    let text = format!("work on recovery {n}");
    model.add_fault(FaultRule::once(When::Message { contains: text.clone(), step: Some(1) }, Fault::Hold));
    let message = MessageId::fresh();
    let send = Op::Send { agent: agent.clone(), message, text: text.clone() };
    let _: SentView = client.call(send, WITHIN).await.unwrap();
    model.until_held(WITHIN).await.unwrap();
    let before = model.journal().requests();
    let view: AgentView = client.call(Op::AgentStatus { agent: agent.clone() }, WITHIN).await.unwrap();
    let from = Instant::now();
    kill(view.agent_pid.or(view.pid).unwrap());
    let journal = model.journal();
    journal.until(WITHIN, |entries| (entries.last()?.number > before).then_some(())).await.unwrap();
    let took = from.elapsed();
    loop {
        let said: SaidView = serde_json::from_value(chat.item().await.unwrap().unwrap()).unwrap();
        let delivered = Op::Delivered { agent: agent.clone(), outbound: said.outbound };
        let _: Value = client.call(delivered, WITHIN).await.unwrap();
        if said.message == message {
            return took;
        }
    }
}

/// The folder of the release binaries: this bench is in its `deps`.
fn bin_dir() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let dir = own.parent().and_then(Path::parent).unwrap().to_path_buf();
    assert!(dir.join("choird").is_file(), "build first: cargo build --release -p choir-host -p choir-agent");
    dir
}

/// Starts choird and returns once it says that it accepts commands.
fn start(bin: &Path, state: &StateDir) -> std::process::Child {
    use std::io::BufRead as _;
    let mut child = Command::new(bin.join("choird"))
        .arg("--state-dir")
        .arg(state.root())
        .arg("--quiet")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("\"ready\":true"), "choird did not start: {line}");
    child
}

/// `kill -9` of a process this bench started.
fn kill(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
}

fn wait(mut child: std::process::Child) {
    let _ = child.wait();
}

fn memory(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kb = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("?").trim().to_owned();
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("?").trim().to_owned();
    format!("{kb} resident, of which {own} its own")
}
