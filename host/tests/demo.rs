//! The demo as its user runs it: the real programs, played to the end, interrupted, killed, with a model of one's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use choir_messages::chain::Digest;
use choir_persistence::testing::binaries;
use choir_sandbox::find_orphans;
use choir_scripted_model::{JournalSink, Match, Script, ScriptedModel, Step};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for anything: the whole play on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(240);

/// A place for a demo's state folder, which does not exist yet.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("choir-dt-").tempdir().unwrap() }
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("demo")
    }

    async fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = self.temporary(arguments).await;
        command.arg("--state-dir").arg(self.state());
        command
    }

    /// One that makes its own folder, here.
    async fn temporary(&self, arguments: &[&str]) -> Command {
        let agent = Path::new(env!("CARGO_BIN_EXE_choirctl")).with_file_name("choir-agent");
        assert!(
            agent.is_file(),
            "this test needs choir-agent beside choirctl: run `cargo build --workspace` first"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_choirctl"));
        command.arg("demo").args(arguments);
        command.env("CHOIR_POSTGRES_BIN", binaries().await.dir()).env("TMPDIR", self.dir.path());
        for name in ["CHOIR_STATE_DIR", "DATABASE_URL", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "CHOIR_MODEL"]
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Every process that names the folder on its command line, or carries the mark of its sandboxes.
    fn processes(&self) -> Vec<String> {
        Self::processes_of(&self.state())
    }

    fn processes_of(state: &Path) -> Vec<String> {
        let label: String =
            Digest::of(state.as_os_str().as_encoded_bytes()).to_string().chars().take(16).collect();
        let mut found: Vec<String> =
            find_orphans(&label).iter().map(|orphan| format!("{orphan:?}")).collect();
        let state = state.display().to_string();
        for entry in std::fs::read_dir("/proc").unwrap() {
            let Ok(line) = std::fs::read(entry.unwrap().path().join("cmdline")) else { continue };
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&state) {
                found.push(line);
            }
        }
        found
    }

    /// The folders that demos made here.
    fn folders(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    fn is_clear(&self) {
        assert_eq!(self.processes(), Vec::<String>::new());
    }
}

async fn to_the_end(command: &mut Command) -> (Output, String) {
    let output = timeout(PATIENCE, command.output()).await.expect("the demo ends").unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

/// Starts a demo and waits until it says something.
async fn until_said(command: &mut Command, word: &str) -> Child {
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said = Vec::new();
    let seen = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            let seen = line.contains(word);
            said.push(line);
            if seen {
                return true;
            }
        }
        false
    };
    assert!(timeout(PATIENCE, seen).await.unwrap(), "it never said \"{word}\":\n{}", said.join("\n"));
    // Read on, so that it is not held up by a full pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    child
}

fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).unwrap();
    kill_process(pid, signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_play_survives_its_three_kills_loses_nothing_and_leaves_nothing_behind() {
    let place = Place::new();
    let (output, said) = to_the_end(&mut place.demo(&["--script", "--json"]).await).await;
    assert!(output.status.success(), "{said}");
    let line = last_line(&output);
    let result: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(result["model"], "scripted", "{line}");
    assert_eq!(result["turns"], 7, "{line}");
    assert_eq!(result["kills"], json!(["choir-agent", "arbiter", "choird"]), "{line}");
    assert_eq!(result["recovered_ms"].as_array().unwrap().len(), 3, "{line}");
    assert!(
        result["tool_calls"].as_u64().unwrap() >= 10 && result["events"].as_u64().unwrap() > 40,
        "{line}"
    );
    assert_eq!((&result["lost"], &result["duplicated"]), (&json!(0), &json!(0)), "{said}");
    assert_eq!(result["chain"], "verified", "{said}");
    let fields =
        ["model", "turns", "tool_calls", "kills", "recovered_ms", "events", "lost", "duplicated", "chain"];
    let places: Vec<usize> =
        fields.iter().map(|field| line.find(&format!("\"{field}\":")).unwrap()).collect();
    assert!(places.is_sorted() && result.as_object().unwrap().len() == fields.len(), "{line}");
    place.is_clear();
    assert!(!place.state().exists(), "what the demo made it removes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_play_in_the_folder_of_an_earlier_one_counts_only_itself() {
    let place = Place::new();
    for _ in 0..2 {
        let (output, said) = to_the_end(&mut place.demo(&["--script", "--json", "--keep"]).await).await;
        assert!(output.status.success(), "{said}");
        let result: Value = serde_json::from_str(&last_line(&output)).unwrap();
        assert_eq!((&result["turns"], &result["duplicated"]), (&json!(7), &json!(0)), "{said}");
        place.is_clear();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_in_the_middle_of_the_play_ends_everything_that_was_started() {
    let place = Place::new();
    let child = until_said(&mut place.demo(&["--script", "--json"]).await, "a model call open").await;
    send(&child, Signal::INT);
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "an interrupted play has no result");
    place.is_clear();
    assert!(!place.state().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_while_the_database_is_made_ends_the_demo_without_waiting_for_it() {
    let place = Place::new();
    let child = until_said(&mut place.demo(&["--script"]).await, "starting choird in").await;
    let made = || {
        let entries = std::fs::read_dir(place.state().join("postgres")).into_iter().flatten().flatten();
        entries.map(|e| e.path()).any(|p| p.join("PG_VERSION").exists())
    };
    let until = Instant::now() + PATIENCE;
    while !made() {
        assert!(Instant::now() < until, "initdb never began");
        sleep(Duration::from_millis(2)).await;
    }
    send(&child, Signal::INT);
    let output = timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    place.is_clear();
    assert!(!place.state().exists());
}

/// Waits until nothing runs on a folder any more.
async fn until_clear(state: &Path) {
    let until = Instant::now() + PATIENCE;
    while !Place::processes_of(state).is_empty() {
        assert!(Instant::now() < until, "{:?}", Place::processes_of(state));
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_killed_together_with_its_choird_still_leaves_no_process_behind() {
    let place = Place::new();
    let mut child = until_said(&mut place.demo(&["--script"]).await, "is up").await;
    let choird = std::fs::read_to_string(place.state().join("run/choird.pid")).unwrap();
    let choird = Pid::from_raw(choird.trim().parse().unwrap()).unwrap();
    // The demo first: it would see choird's end and clear up.
    send(&child, Signal::KILL);
    kill_process(choird, Signal::KILL).unwrap();
    child.wait().await.unwrap();
    until_clear(&place.state()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_folder_of_a_demo_that_was_killed_goes_with_the_next_demo_whose_own_stays_until_its_end() {
    let place = Place::new();
    let mut first = until_said(&mut place.temporary(&["--script"]).await, "is up").await;
    let folders = place.folders();
    let [left] = &folders[..] else { panic!("{folders:?}") };
    assert!(left.join("secrets.json").exists());
    send(&first, Signal::KILL);
    first.wait().await.unwrap();
    until_clear(left).await;
    assert!(left.join("secrets.json").exists(), "nobody was there to remove it");

    let second = until_said(&mut place.temporary(&["--script"]).await, "is up").await;
    let folders = place.folders();
    let [own] = &folders[..] else { panic!("{folders:?}") };
    assert_ne!(own, left);
    // A third one leaves the folder of the living second alone.
    let third = until_said(&mut place.temporary(&["--script"]).await, "starting choird in").await;
    assert!(own.join("secrets.json").exists());
    for child in [third, second] {
        send(&child, Signal::INT);
        timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
    }
    assert_eq!(place.folders(), [] as [PathBuf; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_killed_itself_still_leaves_no_process_behind() {
    let place = Place::new();
    let mut child = until_said(&mut place.demo(&["--script"]).await, "is up").await;
    send(&child, Signal::KILL);
    child.wait().await.unwrap();
    until_clear(&place.state()).await;
}

/// A model that runs what it is told, with no care for what was interrupted.
fn careless() -> Script {
    let exec = |command: &str| Step::call("choir.exec", json!({ "command": command }));
    let tag = |tag: &str| Match::Tag(tag.to_owned());
    Script { thinking_ms: 150, ..Script::default() }
        .rule(
            tag("turn-3"),
            [
                exec("echo 'turn-3 first' >> ran.log"),
                exec("echo 'turn-3 second' >> ran.log"),
                Step::text("three"),
            ],
        )
        .rule(tag("turn-5"), [exec("echo 'turn-5 done' >> ran.log"), Step::text("five")])
        .rule(
            tag("turn-6"),
            [
                exec("echo 'turn-6 first' >> ran.log"),
                exec("echo 'turn-6 second' >> ran.log"),
                Step::text("six"),
            ],
        )
        .rule(Match::Any, [Step::text("as you say")])
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_key_it_talks_to_that_endpoint_and_the_key_stays_in_secrets_json() {
    let place = Place::new();
    let model = ScriptedModel::start(careless(), JournalSink::Memory).await.unwrap();
    let mut command = place.demo(&["--script", "--json", "--keep"]).await;
    command
        .env("OPENAI_API_KEY", model.key())
        .env("OPENAI_BASE_URL", model.endpoint())
        .env("CHOIR_MODEL", "own/model");
    let (output, said) = to_the_end(&mut command).await;
    assert!(output.status.success(), "{said}");
    let result: Value = serde_json::from_str(&last_line(&output)).unwrap();
    assert_eq!((&result["model"], &result["turns"]), (&json!("own/model"), &json!(7)), "{said}");
    assert_eq!(result["kills"], json!(["choir-agent", "arbiter", "choird"]));
    assert_eq!(model.journal().messages().len(), 7);
    place.is_clear();

    let mut holding = Vec::new();
    let mut folders = vec![place.state()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path)
                .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(model.key()))
            {
                holding.push(path);
            }
        }
    }
    assert_eq!(holding, [place.state().join("secrets.json")]);
    assert!(!said.contains(model.key()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_somebodys_installation_is_refused_and_left_as_it_is() {
    let place = Place::new();
    std::fs::create_dir(place.state()).unwrap();
    std::fs::write(place.state().join("config.json"), "mine").unwrap();
    let (output, said) = to_the_end(&mut place.demo(&["--script"]).await).await;
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("in use by something else than a demo"), "{said}");
    assert_eq!(std::fs::read_to_string(place.state().join("config.json")).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(place.state()).unwrap().count(), 1);
}
