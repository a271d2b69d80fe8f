//! The harness itself, and what needs no wound to be seen.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use choir_chaos_tests::harness::{House, Setup};
use choir_chaos_tests::plan::AGENT_PATHS;
use choir_host::control::Op;
use choir_host::control::views::{AgentView, PingView, TreeView};
use choir_messages::id::AgentId;
use serde_json::Value;
use tokio::time::{sleep, timeout};

/// Longest wait for anything here.
const SOON: Duration = Duration::from_secs(60);

/// Pause between two looks at what cannot be awaited.
const LOOK: Duration = Duration::from_millis(50);

async fn started(setup: Setup<'static>) -> (House, AgentId) {
    let house = House::open(setup).await.unwrap();
    let agent = house.agent().clone();
    let start = Op::AgentStart { agent: agent.clone(), fresh: true, workspace: None, llm: None };
    let view: AgentView = house.ask(start).await.unwrap();
    assert_eq!(view.state, "up");
    (house, agent)
}

fn paths(node: &Value, found: &mut BTreeSet<String>) {
    found.extend(node["path"].as_str().map(str::to_owned));
    for child in node["children"].as_array().into_iter().flatten() {
        paths(child, found);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_actor_of_an_agent_is_among_those_that_are_killed() {
    let (house, agent) = started(Setup::default()).await;
    let reported = async {
        loop {
            let tree: TreeView = house.ask(Op::Tree).await.unwrap();
            match tree.agents.get(agent.as_str()) {
                Some(tree) => return tree.clone(),
                None => sleep(LOOK).await,
            }
        }
    };
    let tree = timeout(SOON, reported).await.unwrap();
    let mut found = BTreeSet::new();
    paths(&tree, &mut found);
    let known = AGENT_PATHS.iter().filter(|path| !path.ends_with('*')).map(|path| (*path).to_owned());
    assert_eq!(found, known.collect());
    house.close(false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_is_left_in_peace() {
    let (house, _) = started(Setup::default()).await;
    let began: PingView = house.ask(Op::Ping).await.unwrap();
    // Three thresholds by choird's own clock.
    let enough = began.uptime_ms + 3 * u64::try_from(house.setup().crash.as_millis()).unwrap();
    let idle = async {
        while house.ask::<PingView>(Op::Ping).await.unwrap().uptime_ms < enough {
            sleep(LOOK).await;
        }
    };
    timeout(SOON, idle).await.unwrap();
    let view = house.view().await.unwrap();
    assert_eq!((view.state.as_str(), view.restarts, view.generation), ("up", 0, Some(1)), "{view:?}");
    house.close(false).await.unwrap();
}
