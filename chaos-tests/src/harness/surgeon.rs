//! Deals wounds. Each is checked in `/proc` or by choird's answer before and after, and told.

use std::time::Duration;

use choir_host::control::{ClientError, ErrorCode, Op};
use choir_messages::id::InvocationId;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use super::house::House;
use super::limits;
use super::procfs::Process;
use super::stage::Stage;
use crate::plan::{Target, Wound};

/// Deals a wound; whether it was dealt. `last_call` is the call that was committed last, if any.
pub(super) async fn deal(
    house: &House,
    stage: &Stage,
    wound: &Wound,
    last_call: Option<InvocationId>,
) -> bool {
    match wound {
        Wound::AgentActor(path) => {
            let path = match (path.strip_suffix('*'), last_call) {
                (Some(_), None) => return false,
                (Some(parent), Some(call)) => format!("{parent}call-{call}"),
                (None, _) => (*path).to_owned(),
            };
            kill_actor(house, stage, format!("{}/{path}", house.agent())).await
        }
        Wound::HostActor { draw } => {
            let Some(paths) = host_paths(house).await else { return false };
            let at = usize::try_from(draw % (paths.len().max(1) as u64)).unwrap_or(0);
            match paths.into_iter().nth(at) {
                Some(path) => kill_actor(house, stage, path).await,
                None => false,
            }
        }
        Wound::Kill(target) => {
            let found = processes(house, *target).await;
            for process in &found {
                process.signal(Signal::KILL);
            }
            tell(stage, "kill -9", *target, &found)
        }
        Wound::Freeze { target, millis } => {
            let found = processes(house, *target).await;
            freeze(&found, Duration::from_millis(*millis)).await;
            tell(stage, "froze", *target, &found)
        }
        Wound::Stun => {
            let found = processes(house, Target::Agent).await;
            freeze(&found, house.setup().crash + limits::STUN).await;
            tell(stage, "stunned", Target::Agent, &found)
        }
    }
}

fn tell(stage: &Stage, what: &str, target: Target, found: &[Process]) -> bool {
    let pids: Vec<u32> = found.iter().map(|process| process.pid).collect();
    stage.tell(format!("  {what} {target:?} {pids:?}"));
    !found.is_empty()
}

/// The living processes of a target; waits a little for one that is between two lives.
async fn processes(house: &House, target: Target) -> Vec<Process> {
    let looking = async {
        loop {
            let found = match target {
                Target::Agent => house.agent_process().await.into_iter().collect(),
                Target::Choird => house.choird().into_iter().collect(),
                Target::Postgres => house.postgres(),
            };
            if !found.is_empty() {
                return found;
            }
            sleep(limits::AGAIN).await;
        }
    };
    timeout(limits::DEALT, looking).await.unwrap_or_default()
}

/// Stops processes for some time, or until they are killed.
async fn freeze(processes: &[Process], lasts: Duration) {
    for process in processes {
        process.signal(Signal::STOP);
    }
    let until = Instant::now() + lasts;
    while Instant::now() < until && processes.iter().any(|process| process.lives()) {
        sleep(limits::AGAIN).await;
    }
    for process in processes {
        process.signal(Signal::CONT);
    }
}

/// Kills an actor through choird. The agent's is asked over its link, which may die of it: then it counts as dealt,
/// since asking again might kill the next one too.
async fn kill_actor(house: &House, stage: &Stage, path: String) -> bool {
    let of_agent = !path.starts_with("choird/");
    let killing = async {
        loop {
            if of_agent && !house.view().await.is_ok_and(|view| view.state == "up") {
                sleep(limits::AGAIN).await;
                continue;
            }
            match house.ask::<Value>(Op::ActorKill { path: path.clone() }).await {
                Ok(_) | Err(ClientError::Lost) => return true,
                // A call that has ended cannot be killed any more; any other place is between two lives.
                Err(ClientError::Refused(error)) if error.code == ErrorCode::Negative => {
                    if path.contains("/call-") {
                        return false;
                    }
                }
                Err(ClientError::Refused(_)) if of_agent => return true,
                Err(_) => {}
            }
            sleep(limits::AGAIN).await;
        }
    };
    let dealt = timeout(limits::DEALT, killing).await.unwrap_or(false);
    stage.tell(format!("  {} {path}", if dealt { "killed" } else { "could not kill" }));
    dealt
}

/// The paths of choird's living tree, without its root: killing that is killing choird.
async fn host_paths(house: &House) -> Option<Vec<String>> {
    let tree: Value = house.ask(Op::Tree).await.ok()?;
    let mut paths = Vec::new();
    running(tree.get("choird")?, &mut paths);
    paths.retain(|path| path != "choird");
    paths.sort_unstable();
    Some(paths)
}

/// The paths of what runs in a tree as choird tells it.
pub(super) fn running(node: &Value, paths: &mut Vec<String>) {
    if node.get("state").and_then(Value::as_str) == Some("running") {
        paths.extend(node.get("path").and_then(Value::as_str).map(str::to_owned));
    }
    for child in node.get("children").and_then(Value::as_array).into_iter().flatten() {
        running(child, paths);
    }
}
