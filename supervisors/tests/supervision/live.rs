//! What operators see: the live tree, reports, spans.

use crate::kit::*;
use choir_supervisors::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

#[tokio::test(start_paused = true)]
async fn the_live_tree_tells_depth_age_and_what_is_in_hand() {
    let kit = Kit::default();
    let (address, worker) = kit.probe("worker");
    let inner = SupervisorSpec::new("inner", Strategy::RestForOne).child(worker);
    let (_pool, pool_spec) = DynamicSpec::new("pool");
    let spec =
        SupervisorSpec::new("top", Strategy::OneForOne).child(ChildSpec::supervisor(inner)).child(pool_spec);
    let tree = Tree::start(spec).await.unwrap();
    let (open, gate) = oneshot::channel();
    address.send(Msg::Gate(gate)).await.unwrap();
    while tree.handle().snapshot().find("top/inner/worker").unwrap().current.is_none() {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_millis(1500)).await;
    address.send(Msg::Note(1)).await.unwrap();
    tokio::time::advance(Duration::from_millis(500)).await;
    address.send(Msg::Note(2)).await.unwrap();

    let root = tree.handle().snapshot();
    assert_eq!(
        root.walk().map(|node| (node.path.as_str(), node.kind)).collect::<Vec<_>>(),
        [
            ("top", NodeKind::Supervisor),
            ("top/inner", NodeKind::Supervisor),
            ("top/inner/worker", NodeKind::Worker),
            ("top/pool", NodeKind::Dynamic),
        ]
    );
    let worker = root.find("top/inner/worker").unwrap();
    assert_eq!(worker.state, NodeState::Running);
    assert_eq!((worker.generation, worker.restarts, worker.restart), (1, 0, Restart::Permanent));
    assert_eq!(
        worker.mailbox,
        Some(MailboxView { depth: 2, capacity: 64, waiting_senders: 0, oldest_ms: Some(500) })
    );
    assert_eq!(worker.current, Some(Current { message: "gate".into(), for_ms: 2000 }));
    assert_eq!(root.find("top/inner").unwrap().intensity.as_ref().unwrap().strategy, Strategy::RestForOne);
    drop(open);
    ask(&address).await;
    tokio::task::yield_now().await;
    let worker = tree.handle().snapshot().find("top/inner/worker").unwrap().clone();
    assert_eq!(worker.current, None);
    assert_eq!(worker.mailbox.unwrap().oldest_ms, None);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn the_live_tree_is_json_that_reads_back() {
    let kit = Kit::default();
    let (_, worker) = kit.probe("worker");
    let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
    tree.handle().crash("top/worker");
    running(&tree.handle(), "top/worker", 2).await;
    let root = tree.handle().snapshot();
    let json = serde_json::to_value(&root).unwrap();
    assert_eq!(json["children"][0]["state"], "running");
    assert_eq!(json["children"][0]["restarts"], 1);
    assert_eq!(json["children"][0]["last_exit"]["kind"], "panicked");
    assert_eq!(json["children"][0]["mailbox"]["capacity"], 64);
    assert_eq!(json["intensity"]["recent"], 1);
    assert_eq!(serde_json::from_value::<TreeNode>(json).unwrap(), root);
    end(tree).await;
}

#[tokio::test(start_paused = true)]
async fn two_trees_with_the_same_names_do_not_see_each_other() {
    let kits = [Kit::default(), Kit::default()];
    let mut trees = Vec::new();
    for kit in &kits {
        let (address, worker) = kit.probe("worker");
        let spec = SupervisorSpec::new("top", Strategy::OneForOne).child(worker);
        trees.push((Tree::start(spec).await.unwrap(), address));
    }
    trees[0].0.handle().kill("top/worker");
    assert_eq!(ask(&trees[0].1).await, 2);
    assert_eq!(ask(&trees[1].1).await, 1);
    for (tree, _) in trees {
        end(tree).await;
    }
}

/// What a test subscriber saw of one span: its target, its fields, its parent's name.
type Seen = Arc<Mutex<Vec<(&'static str, String, Option<String>)>>>;

struct Recorder(Seen);

#[derive(Default)]
struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write as _;
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: LayerContext<'_, S>) {
        let span = cx.span(id).unwrap();
        let target = span.metadata().target();
        if !["choir::actor", BACKGROUND_TARGET, "test"].contains(&target) {
            return;
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = span.parent().map(|parent| parent.name().to_owned());
        self.0.lock().unwrap().push((target, fields.0.trim().to_owned(), parent));
    }
}

/// Runs a scene on one thread, so that the thread's own subscriber sees all of it.
fn seen_in(scene: impl Future<Output = ()>) -> Vec<(&'static str, String, Option<String>)> {
    let seen = Seen::default();
    let subscriber = tracing_subscriber::registry().with(Recorder(Arc::clone(&seen)));
    let _guard = tracing::subscriber::set_default(subscriber);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(scene);
    std::mem::take(&mut *seen.lock().unwrap())
}

fn message(label: &str) -> String {
    format!("actor=\"top/worker\" message=\"{label}\" generation=1")
}

#[test]
fn every_message_of_a_trace_has_a_span_of_its_own_below_its_senders() {
    let seen = seen_in(async {
        let kit = Kit::default();
        let (address, worker) = kit.probe("worker");
        let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
        let span = tracing::info_span!(target: "test", "turn");
        {
            let _inside = span.enter();
            address.try_send(Msg::Note(1)).unwrap();
            address.try_send(Msg::Pipe(2)).unwrap();
        }
        ask(&address).await;
        ask(&address).await;
        end(tree).await;
    });
    let below = |parent: &str| Some(parent.to_owned());
    assert_eq!(
        seen,
        [
            ("test", String::new(), None),
            ("choir::actor", message("note"), below("turn")),
            ("choir::actor", message("pipe"), below("turn")),
            (BACKGROUND_TARGET, message("ask"), None),
            ("choir::actor", message("note"), below("message")),
            (BACKGROUND_TARGET, message("ask"), None),
        ],
        "the pipe's message belongs to the message that started the pipe"
    );
}

#[test]
fn what_no_trace_leads_to_stays_in_the_background_and_holds_no_span_open() {
    let seen = seen_in(async {
        let kit = Kit::default();
        let (address, worker) = kit.probe("worker");
        let tree = Tree::start(SupervisorSpec::new("top", Strategy::OneForOne).child(worker)).await.unwrap();
        address.try_send(Msg::Pipe(1)).unwrap();
        ask(&address).await;
        ask(&address).await;
        end(tree).await;
    });
    let labels = ["pipe", "ask", "note", "ask"];
    assert_eq!(seen, labels.map(|label| (BACKGROUND_TARGET, message(label), None)));
}
