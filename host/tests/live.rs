//! The promises of DESIGN §5 with the real processes: whatever is killed, every message is answered exactly once and
//! every effect happens exactly once.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::time::{Duration, Instant};

use choir_host::control::views::{SaidView, TreeView};
use choir_host::control::{ClientError, ErrorCode, Op};
use choir_messages::id::MessageId;
use choir_scripted_model::Script;
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{SOON, User, World, held, is_whole, signal, work};

fn plain(_: &mut Value) {}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_of_a_turn_answers_once_and_repeats_no_effect() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let message = held(&world, &user, "work-1").await;
    let before = world.view().await;
    signal(before.agent_pid.unwrap(), Signal::KILL);
    let after =
        world.until("a new sandbox", |view| view.state == "up" && view.generation > before.generation).await;
    assert_eq!(after.session, before.session);
    world.model.release_all();
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_choird_comes_back_with_its_agent_and_loses_nothing() {
    let mut world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let first = held(&world, &user, "work-1").await;
    // Stored, and not yet with the agent.
    let second = user.send("work-2").await;
    world.kill_choird().await;
    world.start().await;
    world.until("the agent is back by itself", |view| view.state == "up").await;
    world.model.release_all();
    is_whole(&world, &mut user, &[(first, "work-1"), (second, "work-2")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_agent_is_noticed_by_its_silence_and_replaced() {
    // The shortest threshold that an agent's beat of five seconds keeps.
    let soon = |config: &mut Value| {
        config["heartbeat_interval_ms"] = json!(3000);
        config["crash_detection_threshold_ms"] = json!(7000);
    };
    let world = World::new(work(), soon).await;
    let mut user = User::of(&world);
    let message = held(&world, &user, "work-1").await;
    let before = world.view().await;
    signal(before.agent_pid.unwrap(), Signal::STOP);
    world.until("a new sandbox", |view| view.state == "up" && view.generation > before.generation).await;
    world.model.release_all();
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_postgres_is_restarted_under_a_running_conversation() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let first = held(&world, &user, "work-1").await;
    let pid = std::fs::read_to_string(world.state.root().join("postgres/data/postmaster.pid")).unwrap();
    signal(pid.lines().next().unwrap().parse().unwrap(), Signal::KILL);
    world.model.release_all();
    let second = user.send("work-2").await;
    is_whole(&world, &mut user, &[(first, "work-1"), (second, "work-2")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_actor_of_the_host_can_be_killed_in_the_middle_of_a_turn() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let client = world.client().await;
    let tree: TreeView = client.call(Op::Tree, SOON).await.unwrap();
    let mut paths = Vec::new();
    leaves(&tree.choird, &mut paths);
    assert!(paths.len() >= 14, "{paths:?}");
    // The database's own death is another test's subject; here it would only be slow.
    paths.retain(|path| !path.ends_with("/postgres") && !path.ends_with("/recovery"));
    let mut messages = Vec::new();
    let texts: Vec<String> = (0..paths.len()).map(|n| format!("work-{n:02}")).collect();
    for (path, text) in paths.iter().zip(&texts) {
        let message = held(&world, &user, text).await;
        let killed = world.client().await.call::<Value>(Op::ActorKill { path: path.clone() }, SOON).await;
        // Killing the front cuts the very connection that asked for it.
        assert!(killed.is_ok() || path.ends_with("/front"), "{path}: {killed:?}");
        world.model.release_all();
        user.answer_to(message).await;
        world.model.release_all();
        messages.push((message, text.as_str()));
    }
    is_whole(&world, &mut user, &messages).await;
}

fn leaves(node: &Value, paths: &mut Vec<String>) {
    match node.get("children").and_then(Value::as_array) {
        Some(children) if !children.is_empty() => children.iter().for_each(|child| leaves(child, paths)),
        _ => paths.extend(node.get("path").and_then(Value::as_str).map(str::to_owned)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_stops_in_order_and_leaves_no_process_and_no_socket() {
    let mut world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let message = user.send("work-1").await;
    user.answer_to(message).await;
    let agent = world.view().await.agent_pid.unwrap();
    assert!(!world.processes().is_empty());
    assert_eq!(world.stop_choird().await, Some(0));
    assert_eq!(world.processes(), []);
    assert!(!alive(agent), "the agent is gone");
    assert!(!world.state.control_socket().exists());
    // And nothing was forgotten: the agent was wanted.
    world.start().await;
    world.until("the agent is back", |view| view.state == "up").await;
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

/// Whether a process runs; a zombie does not.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X']))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_choird_is_refused_and_says_whom_it_met() {
    let world = World::new(Script::default(), plain).await;
    let second = world.command(env!("CARGO_BIN_EXE_choird")).output().await.unwrap();
    assert_eq!(second.status.code(), Some(5));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains(&format!("another choird (pid {})", world.choird_pid())), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_agent_stays_stopped_and_its_message_waits() {
    let mut world = World::new(work(), plain).await;
    let agent = world.agent.clone();
    let client = world.client().await;
    let view: choir_host::control::views::AgentView =
        client.call(Op::AgentStop { agent: agent.clone() }, SOON).await.unwrap();
    assert_eq!((view.state.as_str(), view.pid), ("stopped", None));
    let mut user = User::of(&world);
    let message = user.send("work-1").await;
    world.kill_choird().await;
    world.start().await;
    assert_eq!(world.view().await.state, "stopped");
    world.agent_start().await;
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_megabyte_is_refused_with_a_reason_and_a_repeat_is_recognised() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let refused = user.try_send(MessageId::fresh(), &"x".repeat(1024 * 1024)).await.unwrap_err();
    let ClientError::Refused(error) = refused else { panic!("{refused}") };
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.what.contains("1048576 bytes"), "{}", error.what);
    let message = user.send("work-1").await;
    user.answer_to(message).await;
    let again = user.try_send(message, "work-1").await.unwrap();
    assert!(again.repeat && again.outcome.is_some(), "{again:?}");
    is_whole(&world, &mut user, &[(message, "work-1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_agents_never_share_a_workspace() {
    let second = |config: &mut Value| {
        config["agents"]["second"] = json!({ "defaults": { "workspace": "main", "llm": "default" } });
    };
    let world = World::new(Script::default(), second).await;
    let op = Op::AgentStart { agent: "second".parse().unwrap(), fresh: false, workspace: None, llm: None };
    let refused = world.client().await.call::<Value>(op, SOON).await.unwrap_err();
    let ClientError::Refused(error) = refused else { panic!("{refused}") };
    assert_eq!(error.code, ErrorCode::Refused);
    assert!(error.what.contains("workspace \"main\" is in use by agent \"assistant\""), "{}", error.what);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_settings_reach_a_running_agent_and_a_broken_file_changes_nothing() {
    let world = World::new(Script::default(), plain).await;
    let client = world.client().await;
    let good = std::fs::read_to_string(world.state.config()).unwrap();
    std::fs::write(world.state.config(), good.replace("\"llm\":\"default\"", "\"llm\":\"none\"")).unwrap();
    let refused = client.call::<Value>(Op::ConfigReload, SOON).await.unwrap_err().to_string();
    assert!(
        refused.contains("nothing was changed") && refused.contains("no model named \"none\""),
        "{refused}"
    );
    std::fs::write(
        world.state.config(),
        good.replace("\"heartbeat_interval_ms\":5000", "\"heartbeat_interval_ms\":4000"),
    )
    .unwrap();
    let applied: choir_host::control::views::AppliedView = client.call(Op::ConfigReload, SOON).await.unwrap();
    assert_eq!(applied.told, ["assistant".parse().unwrap()]);
    world
        .until("the new version at the agent", |view| view.config_version == Some(applied.config_version))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_recovered_from_and_the_time_is_printed() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let mut took = Vec::new();
    for n in 0..5 {
        let text = format!("work-{n}");
        let message = held(&world, &user, &text).await;
        let before = world.view().await;
        let requests = world.model.journal().requests();
        let start = Instant::now();
        signal(before.agent_pid.unwrap(), Signal::KILL);
        let asked_again =
            |entries: &[choir_scripted_model::Entry]| (entries.len() as u64 > requests).then_some(());
        world.model.journal().until(SOON, asked_again).await.unwrap();
        took.push(start.elapsed());
        world.model.release_all();
        user.answer_to(message).await;
    }
    println!("kill -9 to the resumed turn's model call: {took:?}");
    assert!(took.iter().all(|t| *t < Duration::from_secs(60)));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_any_log_or_on_any_command_line() {
    let world = World::new(work(), plain).await;
    let mut user = User::of(&world);
    let message = user.send("work-1").await;
    user.answer_to(message).await;
    let key = world.model.key().to_owned();
    for entry in std::fs::read_dir(world.state.logs()).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(&key), "{}", entry.path().display());
    }
    let view = world.view().await;
    for pid in [world.choird_pid(), view.pid.unwrap(), view.agent_pid.unwrap()] {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(&key), "{file} of {pid}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_on_its_way_when_the_outbox_was_killed_comes_again_under_its_id() {
    let world = World::new(work(), plain).await;
    let user = User::of(&world);
    let client = world.client().await;
    let chat = || Op::Chat { agent: world.agent.clone(), redeliver: true };
    let mut stream = client.stream(chat()).await.unwrap();
    let message = user.send("work-1").await;
    // Read, and not acknowledged.
    let first: SaidView = serde_json::from_value(stream.item().await.unwrap().unwrap()).unwrap();
    assert_eq!((first.message, first.repeat), (message, false));
    let path = "choird/agents/assistant/outbox".to_owned();
    client.call::<Value>(Op::ActorKill { path }, SOON).await.unwrap();
    assert!(stream.item().await.is_err(), "the stream ends with its outbox");
    let mut stream = client.stream(chat()).await.unwrap();
    let again: SaidView = serde_json::from_value(stream.item().await.unwrap().unwrap()).unwrap();
    assert_eq!((again.outbound, again.repeat), (first.outbound, true));
    drop(stream);
    drop(client);
    // A confirmation that comes late, when nobody is attached, counts.
    world.until("detached", |view| !view.attached).await;
    let delivered = Op::Delivered { agent: world.agent.clone(), outbound: first.outbound };
    world.client().await.call::<Value>(delivered, SOON).await.unwrap();
    let client = world.client().await;
    let mut stream = client.stream(chat()).await.unwrap();
    let next = user.send("work-2").await;
    let said: SaidView = serde_json::from_value(stream.item().await.unwrap().unwrap()).unwrap();
    assert_eq!(said.message, next, "the delivered one is not sent again");
}
