//! Disks that are really full, under the real choird, choir-agent and Postgres: each is said to whoever must act, nothing
//! is lost or answered twice, nothing is restarted in vain, and with room everything goes on by itself.
//!
//! The small disks are tmpfs, mounted in a user namespace of the test's own: each test runs itself again inside one.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use choir_host::control::views::{Check, CheckStatus, EventLine, StatusView, TreeView, VerifyView};
use choir_host::control::{ClientError, ErrorCode, Op};
use choir_messages::id::MessageId;
use choir_scripted_model::{Match, Script, Step};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{SOON, User, World, signal, work};
use tokio::process::Command;

/// Set for the run inside the namespace: a folder of the test's own.
const INSIDE: &str = "CHOIR_TEST_FULL_DISK";

/// Longest wait for a database that comes back: the longest pause between two tries to start it, and the start.
const BACK: Duration = Duration::from_secs(90);

/// Runs the test of this name again in a namespace where it may mount. Returns the folder to work in, if this is the
/// inner run; the outer one has nothing to do but to see that the inner one passed.
async fn inside(test: &str) -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(INSIDE) {
        return Some(folder.into());
    }
    let folder = tempfile::Builder::new().prefix("choir-fd-").tempdir_in("/tmp").unwrap();
    let output = Command::new("unshare")
        .args(["-U", "-r", "-m"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, folder.path())
        .output()
        .await
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    None
}

/// A small disk.
struct Disk(PathBuf);

impl Disk {
    async fn mount(at: &Path, kib: u64) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={kib}k,mode=0700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "choir-test"]).arg(at).output().await;
        let mounted = mounted.unwrap();
        let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(mounted.status.success(), "this test needs user namespaces in which to mount: {why}");
        Self(at.to_owned())
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Leaves so many bytes free.
    fn fill(&self, leave: u64) {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        let bytes = (stat.f_bavail * stat.f_frsize).saturating_sub(leave);
        std::fs::write(self.ballast(), vec![0u8; usize::try_from(bytes).unwrap()]).unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

async fn status(world: &World) -> StatusView {
    world.client().await.call(Op::Status, SOON).await.unwrap()
}

async fn doctor(world: &World) -> Vec<Check> {
    world.client().await.call(Op::Doctor, SOON).await.unwrap()
}

fn check<'a>(checks: &'a [Check], id: &str) -> &'a Check {
    checks.iter().find(|check| check.id == id).unwrap_or_else(|| panic!("no check {id}: {checks:?}"))
}

/// The generation of every place of choird's tree.
async fn restarts(world: &World) -> BTreeMap<String, u64> {
    fn gather(node: &Value, found: &mut BTreeMap<String, u64>) {
        let path = node["path"].as_str().unwrap_or_default().to_owned();
        found.insert(path, node["generation"].as_u64().unwrap_or(0));
        node["children"].as_array().into_iter().flatten().for_each(|child| gather(child, found));
    }
    let tree: TreeView = world.client().await.call(Op::Tree, SOON).await.unwrap();
    let mut found = BTreeMap::new();
    gather(&tree.choird, &mut found);
    found
}

/// Text that no compression makes small.
fn noise(seed: u64, bytes: usize) -> String {
    let digit = |n: u64| (n.wrapping_add(seed << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).to_string();
    let mut text: String = (1u64..).take(bytes / 17).map(digit).collect();
    text.truncate(bytes);
    text
}

/// Most messages that are sent to fill a disk.
const MESSAGES: u64 = 400;

/// Each message's work is a line with its name, whatever else it says.
fn named_work() -> Script {
    let names = (0..MESSAGES).map(|n| format!("<work-{n}>"));
    names.fold(Script::default(), |script, name| {
        let line = json!({ "command": format!("echo '{name}' >> done.txt") });
        let look = Step::call("choir.fs.read", json!({ "path": "done.txt" }));
        let work = Step::call("choir.exec", line).on_outcome_unknown([look]);
        let answer = Step::text(format!("answer to {name}"));
        script.rule(Match::Contains(name), [work, answer])
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_state_refuses_messages_clearly_loses_none_and_ends_by_itself() {
    let test = "a_full_disk_under_the_state_refuses_messages_clearly_loses_none_and_ends_by_itself";
    let Some(folder) = inside(test).await else { return };
    let disk = Disk::mount(&folder.join("d"), 224 * 1024).await;
    let workspace = folder.join("w");
    let elsewhere = workspace.clone();
    let mut world = World::stopped_in(&disk.0, named_work(), move |config| {
        config["workspaces"]["main"]["path"] = json!(elsewhere);
        config["budgets"] = json!({ "total_session_tokens": 1_000_000_000u64 });
    })
    .await;
    world.start().await;
    world.agent_start().await;
    let mut user = User::of(&world);
    let first = user.send("<work-0>").await;
    user.answer_to(first).await;

    // Messages until one is refused. Each is work, so that the agent writes too.
    disk.fill(3 * 1024 * 1024);
    let mut sent: Vec<(MessageId, String)> = vec![(first, "<work-0>".into())];
    let mut refused = None;
    let mut last_text = String::new();
    for n in 1.. {
        assert!(n < MESSAGES - 1, "the disk never became full");
        let (message, name) = (MessageId::fresh(), format!("<work-{n}>"));
        last_text = format!("{name} {}", noise(n, 60_000));
        let result = user.try_send(message, &last_text).await;
        sent.push((message, name));
        match result {
            Ok(_) => {}
            Err(ClientError::Refused(error)) => {
                refused = Some(error);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let refused = refused.unwrap();
    assert_eq!(refused.code, ErrorCode::Runtime, "{refused}");
    assert!(refused.next.as_ref().is_some_and(|next| next.contains("doctor")), "{refused}");

    // It is said, to whoever looks.
    let until = Instant::now() + SOON;
    loop {
        let status = status(&world).await;
        let noted = status.warnings.iter().any(|w| w.contains("is full") && w.contains("free some space"));
        let checks = doctor(&world).await;
        let room = check(&checks, "disk");
        assert!(noted, "{status:?}");
        assert!(room.status == CheckStatus::Fail && room.fix.is_some(), "{room:?}");
        // The server itself stops sooner or later, when it cannot write its log.
        let error = user.try_send(sent.last().unwrap().0, &last_text).await;
        if let Err(ClientError::Refused(error)) = error
            && error.what.contains("full")
        {
            break;
        }
        assert!(Instant::now() < until, "nobody was told why: {refused}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // It stays like that: whoever asks again is refused again, and nothing is restarted over and over meanwhile.
    let pid = world.choird_pid();
    let before = restarts(&world).await;
    for _ in 0..3 {
        let again = user.try_send(sent.last().unwrap().0, &last_text).await;
        let Err(ClientError::Refused(error)) = again else { panic!("{again:?}") };
        assert_eq!(error.code, ErrorCode::Runtime, "{error}");
    }
    let after = restarts(&world).await;
    assert_eq!(world.choird_pid(), pid);
    for (path, was) in &before {
        let more = after.get(path).map_or(0, |is| is - was);
        assert!(more < 12, "{path} was restarted {more} times");
    }
    let running = world.view().await;
    assert_ne!(running.state, "failed", "{running:?}");

    // A server that dies then is not started in vain, and that is said too.
    let pid = std::fs::read_to_string(world.state.root().join("postgres/data/postmaster.pid")).unwrap();
    signal(pid.lines().next().unwrap().parse().unwrap(), Signal::KILL);
    let until = Instant::now() + SOON;
    loop {
        let database = status(&world).await.database;
        if database.trouble.as_ref().is_some_and(|trouble| trouble.contains("full or nearly so")) {
            assert!(!database.up);
            break;
        }
        assert!(Instant::now() < until, "nobody says why the database is away: {database:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let checks = doctor(&world).await;
    let database = check(&checks, "database");
    assert!(database.status == CheckStatus::Fail && database.evidence.contains("full"), "{database:?}");

    // It can be stopped in order, and does not start again but says why.
    assert_eq!(world.stop_choird().await, Some(0));
    let refused = world.command(env!("CARGO_BIN_EXE_choird")).arg("--quiet").output().await.unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{why}");
    assert!(why.contains("full or nearly so") && why.contains("free some space"), "{why}");

    // With room everything goes on.
    disk.free();
    world.start().await;
    let (last, _) = sent.last().unwrap().clone();
    let until = Instant::now() + BACK;
    while let Err(error) = user.try_send(last, &last_text).await {
        assert!(Instant::now() < until, "still refused with room: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let name = format!("<work-{}>", MESSAGES - 1);
    let more = user.send(&name).await;
    sent.push((more, name));
    for (message, name) in &sent {
        let said = user.answer_to(*message).await;
        assert_eq!(said.text, format!("answer to {name}"));
    }
    let mut expected: Vec<_> = sent.iter().map(|(message, _)| (message.to_string(), 1)).collect();
    expected.sort();
    let mut answers = world.answers().await;
    answers.sort();
    assert_eq!(answers, expected, "each once");
    let done = std::fs::read_to_string(workspace.join("done.txt")).unwrap();
    let ran: Vec<&str> = done.lines().collect();
    let names: Vec<&str> = sent.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(ran, names, "each effect once, in order");
    let session = world.view().await.session.unwrap();
    let verified: VerifyView = world.client().await.call(Op::SessionVerify { session }, SOON).await.unwrap();
    assert!(verified.verified, "{verified:?}");
    let status = status(&world).await;
    assert!(status.database.up && !status.warnings.iter().any(|w| w.contains("is full")), "{status:?}");
    assert_eq!(world.stop_choird().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_logs_costs_log_lines_and_nothing_else() {
    let test = "a_full_disk_under_the_logs_costs_log_lines_and_nothing_else";
    let Some(folder) = inside(test).await else { return };
    let mut world = World::stopped_in(&folder, work(), |_| ()).await;
    let disk = Disk::mount(&world.state.logs(), 2048).await;
    world.start().await;
    world.agent_start().await;
    disk.fill(0);
    let mut user = User::of(&world);
    let message = user.send("work-1").await;
    user.answer_to(message).await;
    let warned = status(&world).await.warnings;
    assert!(warned.iter().any(|w| w.contains("the disk of the logs is full")), "{warned:?}");
    let checks = doctor(&world).await;
    assert_eq!(check(&checks, "disk-logs").status, CheckStatus::Warn);
    assert_eq!(check(&checks, "disk").status, CheckStatus::Ok);
    // Also a choird and an agent that start then.
    assert_eq!(world.stop_choird().await, Some(0));
    world.start().await;
    world.until("the agent is back", |view| view.state == "up").await;
    let second = user.send("work-2").await;
    support::is_whole(&world, &mut user, &[(message, "work-1"), (second, "work-2")]).await;

    disk.free();
    let client = world.client().await;
    let log = world.state.log_file("choird");
    let until = Instant::now() + SOON;
    loop {
        // Something that choird logs.
        let _: Value = client.call(Op::SecretApply, SOON).await.unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        if text.contains("log lines were lost because the log file could not be written") {
            break;
        }
        assert!(Instant::now() < until, "the log never says that lines were lost: {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.stop_choird().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_the_workspace_is_told_to_the_model_and_the_agent_goes_on() {
    let test = "a_full_disk_under_the_workspace_is_told_to_the_model_and_the_agent_goes_on";
    let Some(folder) = inside(test).await else { return };
    let content = "x".repeat(300_000);
    let write =
        Step::call("choir.fs.write", json!({ "path": "large.txt", "mode": "overwrite", "content": content }));
    let echo = Step::call("choir.exec", json!({ "command": "cat large.txt large.txt > copy.txt" }));
    let script = Script::default().rule(Match::Contains("write".into()), [write, echo, Step::text("tried")]);
    let mut world = World::stopped_in(&folder, script, |_| ()).await;
    let disk = Disk::mount(&world.workspace(), 700).await;
    world.start().await;
    world.agent_start().await;
    disk.fill(100 * 1024);
    let mut user = User::of(&world);
    let results = async |world: &World| {
        let session = world.view().await.session.unwrap();
        let op = Op::SessionEvents { session, after: 0, follow: false };
        let client = world.client().await;
        let mut stream = client.stream(op).await.unwrap();
        let mut results = Vec::new();
        while let Some(item) = stream.item().await.unwrap() {
            let line: EventLine = serde_json::from_value(item).unwrap();
            if line.kind == "ToolResultCommitted" {
                results.push(serde_json::to_string(&line.body).unwrap());
            }
        }
        results
    };
    let message = user.send("write-1").await;
    assert_eq!(user.answer_to(message).await.text, "tried");
    let told = results(&world).await;
    assert!(told[0].contains("No space left") || told[0].contains("disk is full"), "{}", told[0]);
    assert!(!world.workspace().join("large.txt").exists(), "no half of a file is left");
    let warned = status(&world).await.warnings;
    assert!(warned.iter().any(|w| w.contains("the disk of workspace \"main\" is full")), "{warned:?}");
    assert_eq!(check(&doctor(&world).await, "disk-workspace-main").status, CheckStatus::Warn);

    disk.free();
    let message = user.send("write-2").await;
    assert_eq!(user.answer_to(message).await.text, "tried");
    let told = results(&world).await;
    assert!(!told[2].contains("No space left"), "{}", told[2]);
    assert_eq!(std::fs::read_to_string(world.workspace().join("large.txt")).unwrap(), content);
    let session = world.view().await.session.unwrap();
    let verified: VerifyView = world.client().await.call(Op::SessionVerify { session }, SOON).await.unwrap();
    assert!(verified.verified, "{verified:?}");
    assert_eq!(world.stop_choird().await, Some(0));
}
