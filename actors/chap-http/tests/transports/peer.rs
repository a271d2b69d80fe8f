//! A Coordinator in the tree that keeps its promises to callers in small: it answers calls by what they ask for, keeps
//! notices, and lets waiting askers know when there are new ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_chap_http::{Config, Listen, Serving, mcp::ToolSpec, serve};
use choir_messages::chap::Notice;
use choir_messages::mail::{CallAnswer, Caller, CoordinatorMsg, NoticePage, Unanswered, WorkspaceLine};
use choir_messages::reply::ReplyTo;
use choir_supervisors::{
    Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Strategy, SupervisorSpec, Tree, WhenFull,
    mailbox,
};
use serde_json::{Value, json};
use tokio::sync::watch;

/// How long anything in these tests may take.
pub(crate) const SOON: Duration = Duration::from_secs(30);

type NoticeReply = ReplyTo<Result<Result<NoticePage, Value>, Unanswered>>;

#[derive(Default)]
struct World {
    notices: HashMap<String, Vec<Notice>>,
    waiting: Vec<(String, String, u64, usize, NoticeReply)>,
    held: Vec<ReplyTo<Result<CallAnswer, Unanswered>>>,
    /// Params of `task.note`, in the order they came.
    noted: Vec<Value>,
}

/// The test's side of the Coordinator.
#[derive(Clone)]
pub(crate) struct Peer {
    world: Arc<Mutex<World>>,
    /// Calls held, for whoever waits for a change.
    held: Arc<watch::Sender<usize>>,
    /// Askers for notices that have had to wait, ever.
    waited: Arc<watch::Sender<usize>>,
    pub(crate) address: Address<CoordinatorMsg>,
}

struct PeerActor(Peer);

impl Actor for PeerActor {
    type Msg = CoordinatorMsg;

    async fn handle(
        &mut self,
        msg: CoordinatorMsg,
        _cx: &mut Context<CoordinatorMsg>,
    ) -> Result<(), Failure> {
        let peer = &self.0;
        match msg {
            CoordinatorMsg::Call { bytes, caller, reply } => peer.call(&bytes, &caller, reply),
            CoordinatorMsg::Ask { method, params, caller, reply } => {
                reply.send(done(&method, &params, &caller));
            }
            CoordinatorMsg::Inbox { workspace, participant, after, limit, wait, caller, reply } => {
                let known = caller.participants.is_none_or(|known| known.contains(&participant));
                if !known || workspace == "nowhere" {
                    let (code, message) =
                        if known { (-32602, "Unknown workspace") } else { (-32011, "not yours") };
                    reply.send(Ok(Err(json!({"code": code, "message": message}))));
                    return Ok(());
                }
                let mut world = peer.world.lock().unwrap();
                let page = world.page(&workspace, &participant, after, limit);
                if wait && page.notices.is_empty() {
                    world.waiting.retain(|(.., reply)| !reply.is_abandoned());
                    world.waiting.push((workspace, participant, after, limit, reply));
                    peer.waited.send_modify(|waited| *waited += 1);
                } else {
                    reply.send(Ok(Ok(page)));
                }
            }
            CoordinatorMsg::Workspaces { after, limit, reply } => {
                let world = peer.world.lock().unwrap();
                let mut all: Vec<&String> = world.notices.keys().collect();
                all.sort();
                let lines = all
                    .into_iter()
                    .filter(|name| after.as_ref().is_none_or(|after| *name > after))
                    .take(limit)
                    .map(|name| WorkspaceLine { workspace: name.clone(), entries: 0 });
                reply.send(Ok(lines.collect()));
            }
        }
        Ok(())
    }
}

impl World {
    fn page(&self, workspace: &str, participant: &str, after: u64, limit: usize) -> NoticePage {
        let all = self.notices.get(workspace).map(Vec::as_slice).unwrap_or_default();
        let mine = all.iter().filter(|notice| notice.to == participant && notice.number > after);
        let notices: Vec<Notice> = mine.take(limit).cloned().collect();
        let next = notices.last().map_or(after, |last| last.number);
        NoticePage { notices, next }
    }
}

impl Peer {
    /// A new notice, with the next number of its workspace.
    pub(crate) fn post(&self, workspace: &str, to: &str, body: &Value) -> u64 {
        let mut world = self.world.lock().unwrap();
        let all = world.notices.entry(workspace.to_owned()).or_default();
        let number = all.len() as u64 + 1;
        all.push(Notice { number, to: to.to_owned(), body: body.to_string() });
        for (workspace, participant, after, limit, reply) in std::mem::take(&mut world.waiting) {
            let page = world.page(&workspace, &participant, after, limit);
            if page.notices.is_empty() {
                world.waiting.push((workspace, participant, after, limit, reply));
            } else {
                reply.send(Ok(Ok(page)));
            }
        }
        number
    }

    /// Waits until so many calls of `test.hold` are held.
    pub(crate) async fn until_held(&self, calls: usize) {
        let mut held = self.held.subscribe();
        tokio::time::timeout(SOON, held.wait_for(|held| *held >= calls)).await.unwrap().unwrap();
    }

    /// Waits until so many askers for notices have had to wait.
    pub(crate) async fn until_waited(&self, askers: usize) {
        let mut waited = self.waited.subscribe();
        tokio::time::timeout(SOON, waited.wait_for(|waited| *waited >= askers)).await.unwrap().unwrap();
    }

    /// Answers the held calls.
    pub(crate) fn release(&self) {
        for held in self.world.lock().unwrap().held.drain(..) {
            held.send(Ok(br#"{"jsonrpc":"2.0","id":"held","result":"released"}"#.as_slice().into()));
        }
    }

    pub(crate) fn noted(&self) -> Vec<Value> {
        self.world.lock().unwrap().noted.clone()
    }

    fn call(&self, bytes: &[u8], caller: &Caller, reply: ReplyTo<Result<CallAnswer, Unanswered>>) {
        let answer = |value: Value| -> CallAnswer { value.to_string().into_bytes().into() };
        let Ok(call) = serde_json::from_slice::<Value>(bytes) else {
            let error = json!({"code": -32700, "message": "Parse error"});
            return reply.send(Ok(answer(json!({"jsonrpc": "2.0", "id": null, "error": error}))));
        };
        let id = call.get("id").cloned().unwrap_or_default();
        let method = call.get("method").and_then(Value::as_str).unwrap_or_default();
        match method {
            "test.hold" => {
                self.world.lock().unwrap().held.push(reply);
                self.held.send_modify(|held| *held += 1);
                return;
            }
            // A crash drops what it was asked.
            "test.crash" => return drop(reply),
            "task.note" => self.world.lock().unwrap().noted.push(call["params"].clone()),
            _ => {}
        }
        reply.send(done(method, &call["params"], caller).map(|done| {
            answer(match done {
                Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
            })
        }));
    }
}

/// What comes of a method.
fn done(method: &str, params: &Value, caller: &Caller) -> Result<Result<Value, Value>, Unanswered> {
    if let (Some(known), Some(from)) = (&caller.participants, params.get("from").and_then(Value::as_str))
        && !known.iter().any(|uri| uri == from)
    {
        return Ok(Err(json!({"code": -32011, "message": "not this participant"})));
    }
    match method {
        "task.note" => Ok(Ok(json!({"noted": true}))),
        "test.echo" => Ok(Ok(params.clone())),
        "test.large" => {
            Ok(Ok("x".repeat(usize::try_from(params["bytes"].as_u64().unwrap()).unwrap()).into()))
        }
        "test.busy" => Err(Unanswered::Busy),
        "test.not_stored" => Err(Unanswered::NotStored("password=hunter2".to_owned())),
        "test.unknown" => Err(Unanswered::Unknown("relation chap_entries".to_owned())),
        "test.ending" => Err(Unanswered::Ending),
        "test.refuse" => Ok(Err(json!({"code": -32602, "message": "Missing field: x", "data": {"x": 1}}))),
        _ => Ok(Err(json!({"code": -32601, "message": format!("Unknown method: {method}")}))),
    }
}

/// A tree with the Coordinator in it, and a server in front.
pub(crate) struct Stage {
    pub(crate) peer: Peer,
    pub(crate) serving: Serving,
    tree: Tree,
}

/// The Coordinator alone.
pub(crate) async fn coordinator() -> (Peer, Tree) {
    let spec = MailboxSpec { capacity: 256, when_full: WhenFull::Refuse };
    let (address, slot) = mailbox("coordinator", spec);
    let peer = Peer { world: Arc::default(), held: Arc::default(), waited: Arc::default(), address };
    let actor = peer.clone();
    let child = ChildSpec::worker(slot, move |_| {
        let actor = actor.clone();
        async move { Ok(PeerActor(actor)) }
    });
    let tree = Tree::start(SupervisorSpec::new("test", Strategy::OneForOne).child(child)).await.unwrap();
    (peer, tree)
}

/// The tools of the Coordinator above.
pub(crate) fn tools() -> Vec<ToolSpec> {
    let tool = |method: &str| ToolSpec {
        method: method.to_owned(),
        title: method.to_owned(),
        description: format!("CHAP method {method}."),
        input_schema: json!({"type": "object", "properties": {"output": {}}}),
        read_only: true,
        destructive: false,
        idempotent: true,
    };
    vec![tool("test.echo"), tool("test.refuse")]
}

impl Stage {
    /// A server with this configuration.
    pub(crate) async fn set(config: Config) -> Self {
        let (peer, tree) = coordinator().await;
        let serving = serve(config, peer.address.clone(), &tools()).await.unwrap();
        Self { peer, serving, tree }
    }

    /// A server on a free loopback port, for everyone.
    pub(crate) async fn open() -> Self {
        Self::set(Config::loopback(0)).await
    }

    pub(crate) fn port(&self) -> u16 {
        match self.serving.local() {
            Listen::Tcp(address) => address.port(),
            Listen::Unix(path) => panic!("listens on {}", path.display()),
        }
    }

    /// Ends everything; nothing may be left.
    pub(crate) async fn strike(self) {
        let connections = self.serving.connections();
        tokio::time::timeout(SOON, self.serving.shutdown()).await.unwrap();
        assert_eq!(*connections.borrow(), 0, "connections are left");
        let report = self.tree.shutdown().await;
        assert_eq!((report.left, report.overran), (0, Vec::new()));
    }
}
