//! The actor under its supervisor, against the scripted endpoint.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_messages::id::{ModelCallId, SessionId};
use choir_messages::mail::ModelsMsg;
use choir_messages::model::{ModelAnswer, ModelFailure};
use choir_messages::reply::{Answer, reply_port};
use choir_messages::secret::Secret;
use choir_messages::tool::Lane;
use choir_models::{actor::MAILBOX, child_spec, child_spec_in, limits};
use choir_scripted_model::{
    Entry, Fault, FaultRule, Handle, JournalSink, Match, Outcome, Script, ScriptedModel, Step, When,
};
use choir_supervisors::{Address, ChildSpec, Slot, Strategy, SupervisorSpec, Tree, mailbox};
use common::{CANARY, WITHIN, config, request};

type Result<T> = std::result::Result<T, ModelFailure>;

struct Universe {
    model: Handle,
    models: Address<ModelsMsg>,
    tree: Tree,
}

impl Universe {
    async fn start(script: Script) -> Self {
        let model = ScriptedModel::start(script, JournalSink::Memory).await.expect("loopback is there");
        let initial = (config(&model.endpoint()), Some(Secret::new(model.key().into())));
        Self::with(model, |slot| child_spec(slot, Some(initial))).await
    }

    async fn with(model: Handle, child: impl FnOnce(Slot<ModelsMsg>) -> ChildSpec) -> Self {
        let (models, slot) = mailbox("models", MAILBOX);
        let root = SupervisorSpec::new("root", Strategy::OneForOne).child(child(slot));
        let tree = Tree::start(root).await.expect("the tree starts");
        Self { model, models, tree }
    }

    async fn call(&self, text: &str) -> Call {
        self.call_as(ModelCallId::fresh(), text).await
    }

    async fn call_as(&self, id: ModelCallId, text: &str) -> Call {
        let (limited, limits) = reply_port();
        let (reply, answer) = reply_port();
        let mail = ModelsMsg::Complete { call: id, lane: Lane::Edge, request: request(text), limited, reply };
        self.models.send(mail).await.expect("the mailbox takes it");
        Call { id, limits, answer }
    }

    async fn seen<T>(&self, seen: impl FnMut(&[Entry]) -> Option<T>) -> T {
        self.model.journal().until(WITHIN, seen).await.expect("the endpoint sees it")
    }

    /// Waits until that many calls are held at the endpoint.
    async fn held(&self, count: usize) -> Vec<u64> {
        self.seen(|entries| {
            let held = entries.iter().filter(|entry| entry.outcome == Outcome::Held);
            let held: Vec<u64> = held.map(|entry| entry.number).collect();
            (held.len() == count).then_some(held)
        })
        .await
    }

    async fn end(self) {
        let handle = self.tree.handle();
        self.tree.shutdown().await;
        tokio::time::timeout(WITHIN, handle.deserted()).await.expect("no actor is left");
        self.model.shutdown().await;
    }
}

struct Call {
    id: ModelCallId,
    limits: Answer<u64>,
    answer: Answer<Result<ModelAnswer>>,
}

impl Call {
    /// The answer, or `None` if the port was dropped.
    async fn end(self) -> Option<Result<ModelAnswer>> {
        tokio::time::timeout(WITHIN, self.answer).await.expect("the call ends").ok()
    }

    async fn text(self) -> String {
        self.end().await.expect("an answer").expect("no failure").text.expect("a text")
    }
}

fn hello() -> Script {
    Script::interactive().rule(Match::Any, [Step::text("hello to {{user}}")])
}

fn holding() -> Script {
    hello().fault(FaultRule::always(When::Always, Fault::Hold))
}

#[tokio::test]
async fn a_call_is_answered() {
    let universe = Universe::start(hello()).await;
    assert_eq!(universe.call("a").await.text().await, "hello to a");
    universe.end().await;
}

#[tokio::test]
async fn a_rate_limit_is_told_to_the_asker_before_the_second_try() {
    let limited = Fault::RateLimited { retry_after: Some("0".into()) };
    let universe = Universe::start(hello().fault(FaultRule::once(When::Always, limited))).await;
    let mut call = universe.call("a").await;
    assert_eq!(tokio::time::timeout(WITHIN, &mut call.limits).await.expect("in time"), Ok(0));
    assert_eq!(call.text().await, "hello to a");
    let call = universe.call("b").await;
    assert!(call.limits.await.is_err(), "a call that meets no limit tells of none");
    universe.end().await;
}

#[tokio::test]
async fn a_cancelled_call_drops_its_connection_and_its_port() {
    let universe = Universe::start(holding()).await;
    let call = universe.call("a").await;
    universe.held(1).await;
    universe.models.send(ModelsMsg::Cancel { call: call.id }).await.expect("taken");
    assert_eq!(call.end().await, None);
    universe.seen(|entries| (entries[0].outcome == Outcome::Disconnected).then_some(())).await;
    universe.end().await;
}

#[tokio::test]
async fn cancelling_a_call_that_is_over_or_unknown_changes_nothing() {
    let universe = Universe::start(hello()).await;
    let call = universe.call("a").await;
    let id = call.id;
    call.text().await;
    for id in [id, ModelCallId::fresh()] {
        universe.models.send(ModelsMsg::Cancel { call: id }).await.expect("taken");
    }
    assert_eq!(universe.call("b").await.text().await, "hello to b");
    universe.end().await;
}

#[tokio::test]
async fn only_so_many_calls_run_at_once_and_only_so_many_wait() {
    let universe = Universe::start(holding()).await;
    let mut calls = Vec::new();
    for _ in 0..limits::CALLS_IN_FLIGHT + limits::CALLS_WAITING {
        calls.push(universe.call("a").await);
    }
    let held = universe.held(limits::CALLS_IN_FLIGHT).await;
    let refused = universe.call("one too many").await.end().await;
    assert!(matches!(refused, Some(Err(ModelFailure::Unreachable { .. }))), "{refused:?}");
    assert_eq!(universe.model.journal().requests(), limits::CALLS_IN_FLIGHT as u64);

    // One that waits can be cancelled; one that ends makes room for the next.
    let waiting = calls.pop().expect("there are some");
    universe.models.send(ModelsMsg::Cancel { call: waiting.id }).await.expect("taken");
    assert_eq!(waiting.end().await, None);
    assert!(universe.model.release(held[0]));
    universe.seen(|entries| (entries.len() == limits::CALLS_IN_FLIGHT + 1).then_some(())).await;

    universe.model.clear_faults();
    while universe.model.journal().open_calls().iter().any(|entry| entry.outcome == Outcome::Held) {
        universe.model.release_all();
        tokio::task::yield_now().await;
    }
    for call in calls {
        assert_eq!(call.text().await, "hello to a");
    }
    let most = limits::CALLS_IN_FLIGHT + limits::CALLS_WAITING - 1;
    assert_eq!(universe.model.journal().requests(), most as u64);
    universe.end().await;
}

#[tokio::test]
async fn new_settings_are_taken_whole_and_a_running_call_keeps_its_own() {
    let universe = Universe::start(holding()).await;
    let other = Universe::start(hello()).await;
    let old = universe.call("old").await;
    let held = universe.held(1).await;
    let mut new = config(&other.model.endpoint());
    new.model = "vendor/new".into();
    let key = Some(Secret::new(other.model.key().into()));
    universe.models.send(ModelsMsg::Configure { config: new, key }).await.expect("taken");
    let answer = universe.call("new").await.end().await.expect("answered").expect("no failure");
    assert_eq!(answer.model, "vendor/new");
    universe.model.release(held[0]);
    let answer = old.end().await.expect("answered").expect("no failure");
    assert_eq!((answer.model.as_str(), answer.text.as_deref()), ("vendor/model", Some("hello to old")));
    assert_eq!((universe.model.journal().requests(), other.model.journal().requests()), (1, 1));
    universe.end().await;
    other.end().await;
}

#[tokio::test]
async fn settings_that_cannot_be_used_fail_each_call_with_the_reason() {
    let universe = Universe::start(hello()).await;
    let mut bad = config("http://models.example/v1");
    bad.name = "remote".into();
    let key = Some(Secret::new(CANARY.into()));
    universe.models.send(ModelsMsg::Configure { config: bad, key }).await.expect("taken");
    let failure = universe.call("a").await.end().await.expect("answered").expect_err("refused");
    assert!(failure.to_string().contains("`remote`") && failure.to_string().contains("https"), "{failure}");
    universe.end().await;
}

#[tokio::test]
async fn without_settings_a_call_says_so() {
    let model = ScriptedModel::start(hello(), JournalSink::Memory).await.expect("loopback is there");
    let universe = Universe::with(model, |slot| child_spec(slot, None)).await;
    let failure = universe.call("a").await.end().await.expect("answered").expect_err("refused");
    assert!(failure.to_string().contains("no model is configured"), "{failure}");
    universe.end().await;
}

#[tokio::test]
async fn when_the_actor_is_killed_askers_learn_it_and_the_newest_settings_survive() {
    let universe = Universe::start(hello().fault(FaultRule::once(When::Always, Fault::Hold))).await;
    let mut new = config(&universe.model.endpoint());
    new.model = "vendor/new".into();
    let key = Some(Secret::new(universe.model.key().into()));
    universe.models.send(ModelsMsg::Configure { config: new, key }).await.expect("taken");
    let call = universe.call("a").await;
    universe.held(1).await;
    assert!(universe.tree.handle().kill("root/models"));
    assert_eq!(call.end().await, None);
    universe.seen(|entries| (entries[0].outcome == Outcome::Disconnected).then_some(())).await;
    let answer = universe.call("b").await.end().await.expect("answered").expect("no failure");
    assert_eq!((answer.model.as_str(), universe.models.generation()), ("vendor/new", 2));
    universe.end().await;
}

#[tokio::test]
async fn a_call_whose_asker_is_gone_is_dropped() {
    let universe = Universe::start(holding()).await;
    let call = universe.call("a").await;
    universe.held(1).await;
    drop(call);
    universe.seen(|entries| (entries[0].outcome == Outcome::Disconnected).then_some(())).await;
    universe.end().await;
}

#[tokio::test]
async fn asking_again_under_the_same_id_replaces_the_first_call() {
    let universe = Universe::start(holding()).await;
    let first = universe.call("a").await;
    universe.held(1).await;
    let second = universe.call_as(first.id, "b").await;
    assert_eq!(first.end().await, None);
    universe.seen(|entries| (entries.get(1)?.outcome == Outcome::Held).then_some(())).await;
    universe.model.release_all();
    assert_eq!(second.text().await, "hello to b");
    universe.end().await;
}

/// Everything a subscriber is shown, as text.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no holder panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Captured {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no holder panics")).into_owned()
    }
}

// One runtime thread, and the subscriber on it: what other crates log is captured with the rest.
#[tokio::test]
async fn a_call_leaves_one_span_with_its_figures_and_neither_key_nor_content() {
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let script = hello().fault(FaultRule::once(When::Request(2), Fault::Status { status: 500 }));
    let model = ScriptedModel::start(script, JournalSink::Memory).await.expect("loopback is there");
    let (session, key) = (SessionId::fresh(), model.key().to_owned());
    let initial = (config(&model.endpoint()), Some(Secret::new(key.clone())));
    let universe = Universe::with(model, |slot| child_spec_in(session, slot, Some(initial))).await;
    let call = universe.call("payload-canary").await;
    let id = call.id;
    call.text().await;
    universe.call("payload-canary").await.end().await;
    universe.end().await;

    let text = captured.text();
    let spans: Vec<&str> =
        text.lines().filter(|line| line.contains("choir::models") && line.contains("close")).collect();
    assert_eq!(spans.len(), 2, "{text}");
    for field in [
        "gen_ai.operation.name=\"chat\"",
        "gen_ai.request.model=\"vendor/model\"",
        "gen_ai.response.model=\"vendor/model\"",
        "gen_ai.usage.input_tokens=",
        "gen_ai.usage.output_tokens=",
        "choir.lane=edge",
        &format!("choir.session={session}"),
        &format!("choir.model_call={id}"),
    ] {
        assert!(spans[0].contains(field), "{field} is not in {}", spans[0]);
    }
    assert!(spans[1].contains("error.type=\"server_error\""), "{}", spans[1]);
    assert!(!text.contains(&key), "the key is in the log");
    assert!(!text.contains("payload-canary"), "content is in the log");
}

#[tokio::test]
async fn a_long_wait_is_over_when_its_time_is() {
    let limited = Fault::RateLimited { retry_after: Some("90".into()) };
    let universe = Universe::start(hello().fault(FaultRule::once(When::Always, limited))).await;
    let mut call = universe.call("a").await;
    assert_eq!(tokio::time::timeout(WITHIN, &mut call.limits).await.expect("in time"), Ok(90_000));
    // Moved on by hand, and only here: with sockets in play a clock that runs by itself would skip their waits.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(90)).await;
    tokio::time::resume();
    assert_eq!(call.text().await, "hello to a");
    assert_eq!(universe.model.journal().requests(), 2);
    universe.end().await;
}
