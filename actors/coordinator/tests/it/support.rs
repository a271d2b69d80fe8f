//! A running Coordinator and a client of it.

use std::sync::Arc;
use std::time::Duration;

use choir_coordinator::{Clock, Hooks, Settings, spec};
use choir_messages::chap::{Entry, EntryQuery};
use choir_messages::mail::{Caller, CoordinatorMsg, NoticePage, Unanswered};
use choir_messages::time::Timestamp;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Address, CallError, Tree, TreeNode};
use serde_json::{Value, json};

/// Longest wait for something that is about to happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// What became of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    /// A JSON-RPC result.
    Result(Value),
    /// A JSON-RPC error.
    Refused(i64, String),
    /// None, and nothing was done.
    Nothing(Unanswered),
    /// None, and nobody knows.
    Unknown,
}

impl Said {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        match self {
            Self::Result(value) => value,
            other => panic!("{other:?}"),
        }
    }
}

/// A Coordinator in a tree of its own.
pub(crate) struct Running {
    pub(crate) tree: Tree,
    pub(crate) client: Client,
}

/// Who calls it.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) address: Address<CoordinatorMsg>,
    pub(crate) caller: Caller,
}

pub(crate) async fn run(store: &ChapStore, settings: Settings, hooks: Hooks) -> Running {
    let (tree, address) = spec(store.clone(), settings, hooks);
    let tree = Tree::start(tree).await.unwrap();
    Running { tree, client: Client { address, caller: Caller::anyone() } }
}

pub(crate) async fn run_plain(store: &ChapStore) -> Running {
    run(store, Settings::default(), Hooks::default()).await
}

impl Running {
    /// Names of the live workspace actors.
    pub(crate) fn live(&self) -> Vec<String> {
        find(&self.tree.handle().snapshot(), "workspaces")
            .map(|node| node.children.iter().map(|child| child.name.clone()).collect())
            .unwrap_or_default()
    }

    /// Waits until the live workspace actors are as wanted.
    pub(crate) async fn until_live(&self, wanted: impl Fn(&[String]) -> bool) {
        let mut changes = self.tree.handle().changes();
        let waits = async {
            while !wanted(&self.live()) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(SOON, waits).await.unwrap();
    }

    pub(crate) async fn end(self) {
        let report = self.tree.shutdown().await;
        assert_eq!((report.overran.len(), report.left), (0, 0), "{report:?}");
    }
}

fn find<'a>(node: &'a TreeNode, name: &str) -> Option<&'a TreeNode> {
    if node.name == name { Some(node) } else { node.children.iter().find_map(|child| find(child, name)) }
}

impl Client {
    pub(crate) async fn bytes(&self, bytes: Vec<u8>) -> Said {
        let caller = self.caller.clone();
        let answer = self
            .address
            .call(SOON, |reply| CoordinatorMsg::Call { bytes: bytes.into(), caller, reply })
            .await;
        match answer {
            Ok(Ok(bytes)) => {
                let mut answer: Value = serde_json::from_slice(&bytes).unwrap();
                assert_eq!(answer["jsonrpc"], "2.0");
                match answer.get("error") {
                    Some(error) => Said::Refused(
                        error["code"].as_i64().unwrap(),
                        error["message"].as_str().unwrap().into(),
                    ),
                    None => Said::Result(answer["result"].take()),
                }
            }
            Ok(Err(Unanswered::Unknown(_))) | Err(CallError::Unanswered) => Said::Unknown,
            Ok(Err(why)) => Said::Nothing(why),
            Err(CallError::Send(_)) => Said::Nothing(Unanswered::Busy),
            Err(CallError::Deadline) => panic!("no answer within {SOON:?}"),
        }
    }

    pub(crate) async fn call(&self, method: &str, params: Value) -> Said {
        let call = json!({"jsonrpc": "2.0", "id": "1", "method": method, "params": params});
        self.bytes(call.to_string().into_bytes()).await
    }

    /// A workspace with these members.
    pub(crate) async fn workspace(&self, workspace: &str, profiles: &[&str], members: &[&str]) {
        self.call("workspace.create", json!({"workspace": workspace, "profiles": profiles})).await.ok();
        for member in members {
            let kind = member.split(':').next();
            self.call("participant.join", json!({"workspace": workspace, "from": member, "type": kind}))
                .await
                .ok();
        }
    }

    pub(crate) async fn task(&self, workspace: &str, from: &str, n: u64) -> Said {
        let params = json!({"workspace": workspace, "from": from, "kind": "draft", "input": {"n": n}, "assignee": from});
        self.call("task.create", params).await
    }

    pub(crate) async fn inbox(
        &self,
        workspace: &str,
        participant: &str,
        after: u64,
        wait: bool,
    ) -> Result<Result<NoticePage, Value>, Unanswered> {
        let (workspace, participant, caller) =
            (workspace.to_owned(), participant.to_owned(), self.caller.clone());
        self.address
            .call(Duration::from_secs(1_000_000), |reply| CoordinatorMsg::Inbox {
                workspace,
                participant,
                after,
                limit: 100,
                wait,
                caller,
                reply,
            })
            .await
            .unwrap()
    }
}

/// The whole log of a workspace.
pub(crate) async fn log(store: &ChapStore, workspace: &str) -> Vec<Entry> {
    let (mut all, mut query) = (Vec::new(), EntryQuery { limit: 1000, ..EntryQuery::default() });
    loop {
        let page = store.entries(workspace, &query).await.unwrap();
        if page.entries.is_empty() {
            return all;
        }
        query.from_seq = page.next_seq;
        all.extend(page.entries);
    }
}

/// A clock that goes with tokio's, so that paused time moves it.
pub(crate) fn tokio_clock() -> Clock {
    let born = tokio::time::Instant::now();
    Arc::new(move || {
        let since = u64::try_from(born.elapsed().as_millis()).unwrap();
        Timestamp::from_millis(1_790_000_000_000 + since)
    })
}
