//! Telemetry from outside (DESIGN §7, `choir §22.1`): the real choird and choir-agent export to a real OTLP receiver, and
//! one trace leads from a user's message through both of them and back.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use choir_host::control::Op;
use choir_messages::id::MessageId;
use choir_scripted_model::{Fault, FaultRule, Match, Script, Step, When};
use mock_collector::{MockServer, Protocol, ServerHandle};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::{SOON, User, World, signal, work};

/// A Choir whose two programs export to the receiver.
async fn observed(script: Script, receiver: &ServerHandle) -> World {
    let endpoint = format!("http://{}", receiver.addr());
    World::new(script, move |config| {
        config["telemetry"] = json!({ "otlp_endpoint": endpoint });
        config["heartbeat_interval_ms"] = json!(500);
    })
    .await
}

async fn receiver() -> ServerHandle {
    MockServer::builder().protocol(Protocol::HttpBinary).start().await.unwrap()
}

/// One exported span. Attributes are text, whatever their type.
#[derive(Debug, Clone)]
struct Span {
    service: String,
    name: String,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    from: u64,
    to: u64,
    attributes: BTreeMap<String, String>,
}

impl Span {
    fn of(&self, attribute: &str) -> &str {
        self.attributes.get(attribute).map_or("", String::as_str)
    }

    /// A message's span, by the actor and the message.
    fn handles(&self, actor: &str, message: &str) -> bool {
        self.name == "message" && self.of("actor") == actor && self.of("message") == message
    }
}

/// The value inside `Some(AnyValue { value: Some(StringValue("x")) })`, as it is debugged.
fn plain(value: &impl std::fmt::Debug) -> String {
    let debugged = format!("{value:?}");
    let inner = debugged.split_once("Value(").map_or("", |(_, rest)| rest);
    inner.split("))").next().unwrap_or("").trim_matches('"').to_owned()
}

async fn spans(receiver: &ServerHandle) -> Vec<Span> {
    let read = |found: &mock_collector::TestSpan| {
        let span = found.span();
        let service = found.resource_attrs().iter().find(|pair| pair.key == "service.name").unwrap();
        Span {
            service: plain(&service.value),
            name: span.name.clone(),
            trace: span.trace_id.clone(),
            id: span.span_id.clone(),
            parent: span.parent_span_id.clone(),
            from: span.start_time_unix_nano,
            to: span.end_time_unix_nano,
            attributes: span.attributes.iter().map(|pair| (pair.key.clone(), plain(&pair.value))).collect(),
        }
    };
    receiver.with_collector(|collector| collector.spans().iter().map(read).collect()).await
}

/// Everything under a message's trace id, which is the message's own.
fn trace_of(all: &[Span], message: MessageId) -> Vec<Span> {
    all.iter().filter(|span| span.trace == message.bits().to_be_bytes()).cloned().collect()
}

/// The accepted request, which is the root of its message's trace.
fn root_of(trace: &[Span], message: MessageId) -> &Span {
    let id = message.to_string();
    one(trace, "accepted request", |span| {
        span.name == "user_message" && span.of("message") == id && span.parent.is_empty()
    })
}

/// The spans of one message's trace after a process was killed at `killed` and its work taken up by `recovered`. They
/// are one tree but for what the killed process took along: a parent may only be missing of a span from before.
fn remains_of(all: &[Span], message: MessageId, killed: u64, recovered: u64) -> Vec<Span> {
    let trace = trace_of(all, message);
    let root = root_of(&trace, message);
    let ids: BTreeSet<&[u8]> = trace.iter().map(|span| span.id.as_slice()).collect();
    assert_eq!(ids.len(), trace.len(), "every span is exported once");
    let lost = |span: &&Span| span.id != root.id && !ids.contains(span.parent.as_slice());
    for orphan in trace.iter().filter(lost) {
        // What the killed one had said may still be on its way to the other.
        let last = if orphan.name == "verb" { recovered } else { killed };
        assert!(orphan.from < last, "its parent was not lost in the kill: {orphan:?}");
    }
    // One message was sent, so there is no work for another trace.
    for span in all {
        let of_the_turn = ["user_message", "store_message", "push_message", "deliver"].contains(&&*span.name)
            || ["invoke_agent ", "chat ", "execute_tool "].iter().any(|begin| span.name.starts_with(begin));
        assert!(!of_the_turn || span.trace == root.trace, "it left the message's trace: {span:?}");
    }
    trace
}

/// Now, as spans tell the time.
fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_nanos()).unwrap()
}

/// Waits until a span of this name has arrived at the receiver.
async fn until_exported(receiver: &ServerHandle, name: &str) {
    let arrived = |collector: &mock_collector::MockCollector| {
        collector.spans().iter().any(|found| found.span().name == name)
    };
    receiver.wait_until(arrived, SOON).await.unwrap();
}

/// The spans of one message's trace, which must be one tree with the accepted request at its root.
fn tree_of(all: &[Span], message: MessageId) -> Vec<Span> {
    let trace = trace_of(all, message);
    let root = root_of(&trace, message);
    let ids: BTreeSet<&[u8]> = trace.iter().map(|span| span.id.as_slice()).collect();
    assert_eq!(ids.len(), trace.len(), "every span is exported once");
    for span in &trace {
        if span.id == root.id {
            assert!(span.parent.is_empty(), "{span:?}");
        } else {
            assert!(ids.contains(span.parent.as_slice()), "its parent is in the trace: {span:?}");
        }
    }
    trace
}

/// The one span that fits.
fn one<'a>(trace: &'a [Span], what: &str, fits: impl Fn(&Span) -> bool) -> &'a Span {
    let found: Vec<&Span> = trace.iter().filter(|span| fits(span)).collect();
    let [span] = found[..] else { panic!("one {what} was expected: {found:#?}") };
    span
}

/// The span and all above it, nearest first.
fn ancestors<'a>(trace: &'a [Span], span: &'a Span) -> Vec<&'a Span> {
    let mut line = vec![span];
    while let Some(above) = line.last().and_then(|last| trace.iter().find(|span| span.id == last.parent)) {
        line.push(above);
    }
    line
}

fn is_below(trace: &[Span], span: &Span, above: &Span) -> bool {
    ancestors(trace, span).iter().any(|ancestor| ancestor.id == above.id)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_leads_from_a_users_message_through_model_and_tools_to_its_delivery() {
    let receiver = receiver().await;
    let mut world = observed(work(), &receiver).await;
    let mut user = User::of(&world);
    // The second message waits while the first is worked on; its turn begins when the other's ends.
    let when = When::Message { contains: "work-1".into(), step: Some(1) };
    world.model.add_fault(FaultRule::once(when, Fault::Hold));
    let first = user.send("work-1").await;
    world.model.until_held(SOON).await.unwrap();
    let second = user.send("work-2").await;
    world.model.release_all();
    user.answer_to(first).await;
    user.answer_to(second).await;
    let session = world.view().await.session.unwrap().to_string();
    let key = world.model.key().to_owned();
    assert_eq!(world.stop_choird().await, Some(0));

    let all = spans(&receiver).await;
    let services: BTreeSet<&str> = all.iter().map(|span| span.service.as_str()).collect();
    assert_eq!(services, BTreeSet::from(["choir-agent", "choird"]));
    let traces = [first, second].map(|message| tree_of(&all, message));
    assert_ne!(traces[0][0].trace, traces[1][0].trace);
    for (trace, message) in traces.iter().zip([first, second]) {
        let named = |name: &str| one(trace, name, |span| span.name == name);
        let (accepted, push, signal) = (named("user_message"), named("push_message"), named("signal"));
        assert_eq!((accepted.service.as_str(), push.service.as_str()), ("choird", "choird"));
        assert_eq!(push.parent, accepted.id);
        assert_eq!((signal.service.as_str(), &signal.parent), ("choir-agent", &push.id));
        assert!(is_below(trace, named("store_message"), accepted));

        let recorded = one(trace, "recording", |span| span.handles("choir-agent/session/arbiter", "signal"));
        assert_eq!(recorded.parent, signal.id);
        let turn = named("invoke_agent assistant");
        assert_eq!(turn.parent, accepted.id);
        assert_eq!(turn.of("choir.resumed"), "", "nothing was interrupted");
        assert_eq!(turn.of("message"), message.to_string());
        assert_eq!(
            (turn.of("session"), turn.of("lane"), turn.of("outcome")),
            (&*session, "edge", "answered")
        );

        // Three answers of the model, two of which ask for a tool.
        let calls: Vec<&Span> = trace.iter().filter(|span| span.name == "chat scripted-1").collect();
        assert_eq!(calls.len(), 3, "{calls:#?}");
        for call in calls {
            assert!(is_below(trace, call, turn));
            assert!(turn.from <= call.from && call.to <= turn.to, "{call:?} {turn:?}");
            assert_eq!(call.of("gen_ai.operation.name"), "chat");
            assert_eq!(call.of("gen_ai.request.model"), "scripted-1");
            assert!(call.of("gen_ai.usage.input_tokens").parse::<u64>().unwrap() > 0);
            assert!(call.of("gen_ai.usage.output_tokens").parse::<u64>().unwrap() > 0);
            assert_eq!((call.of("choir.session"), call.of("choir.lane")), (&*session, "edge"));
        }
        for tool in ["choir.exec", "choir.fs.read"] {
            let ran = one(trace, tool, |span| span.name == format!("execute_tool {tool}"));
            assert!(is_below(trace, ran, turn));
            assert_eq!((ran.of("gen_ai.tool.name"), ran.of("lane")), (tool, "edge"));
            let line = ancestors(trace, ran);
            let through = |actor: &str, message: &str| line.iter().any(|span| span.handles(actor, message));
            assert!(through("choir-agent/session/arbiter", "propose"), "{line:#?}");
            assert!(through("choir-agent/session/arbiter", "locked"), "{line:#?}");
        }

        // The record of it comes back to the host, and the answer leaves from there.
        let stored: Vec<&Span> =
            trace.iter().filter(|span| span.handles("choird/agents/assistant/replica", "append")).collect();
        assert!(!stored.is_empty());
        assert!(trace.iter().any(|span| span.name == "store.commit" && is_below(trace, span, turn)));
        for append in stored {
            let line = ancestors(trace, append);
            assert!(line.iter().any(|span| span.name == "verb" && span.service == "choird"), "{line:#?}");
            assert!(line.iter().any(|span| span.handles("choir-agent/session/replicator", "committed")
                || span.handles("choir-agent/session/journal", "append")));
        }
        // A chat that ends in that moment is handed it again, as a repeat.
        let fresh = |span: &Span| span.name == "deliver" && span.of("repeat") == "false";
        let delivered = one(trace, "delivery", fresh);
        assert_eq!((delivered.of("kind"), delivered.service.as_str()), ("answer", "choird"));
        assert!(is_below(trace, delivered, accepted));
    }

    // Nothing of the libraries' spans, of timers, of secrets and of what was said.
    for span in &all {
        assert!(!span.handles(span.of("actor"), "tick"), "{span:?}");
        assert!(
            ["message", "user_message", "store_message", "push_message", "signal", "verb", "deliver"]
                .contains(&span.name.as_str())
                || ["invoke_agent ", "chat ", "execute_tool ", "store."]
                    .iter()
                    .any(|begin| span.name.starts_with(begin)),
            "{span:?}"
        );
    }
    let exported =
        receiver.with_collector(|c| format!("{:?} {:?} {:?}", c.spans(), c.metrics(), c.logs())).await;
    let mut everything = exported.clone();
    for entry in std::fs::read_dir(world.state.logs()).unwrap().flatten() {
        everything.push_str(&std::fs::read_to_string(entry.path()).unwrap_or_default());
    }
    let log = std::fs::read_to_string(world.state.logs().join("assistant.log")).unwrap();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line["session"] == session), "{log}");
    assert!(!everything.contains(&key), "the model's key is in no span, no metric and no log");
    for said in ["answer to", "done.txt", "work-1"] {
        assert!(!exported.contains(said), "what is said is not exported: {said}");
    }
    receiver.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_resumed_after_kill_9_of_the_agent_stays_in_its_messages_trace() {
    let receiver = receiver().await;
    let mut world = observed(work(), &receiver).await;
    let mut user = User::of(&world);
    let when = When::Message { contains: "work-1".into(), step: Some(1) };
    world.model.add_fault(FaultRule::once(when, Fault::Hold));
    let message = user.send("work-1").await;
    world.model.until_held(SOON).await.unwrap();
    until_exported(&receiver, "execute_tool choir.exec").await;
    let before = world.view().await;
    signal(before.agent_pid.unwrap(), Signal::KILL);
    let killed = now();
    world.until("a new sandbox", |view| view.state == "up" && view.generation > before.generation).await;
    let recovered = now();
    world.model.release_all();
    user.answer_to(message).await;
    assert_eq!(world.stop_choird().await, Some(0));

    let all = spans(&receiver).await;
    let trace = remains_of(&all, message, killed, recovered);
    let root = root_of(&trace, message);
    let ran = one(&trace, "command", |span| span.name == "execute_tool choir.exec");
    assert!(ran.to < killed, "{ran:?}");
    // The killed process took its turn's span along; this is the one of the process that went on.
    let turn = one(&trace, "turn", |span| span.name == "invoke_agent assistant");
    assert_eq!((&turn.parent, turn.of("choir.resumed")), (&root.id, "true"));
    assert_eq!(turn.of("outcome"), "answered");
    assert!(turn.from > killed, "{turn:?}");
    let read = one(&trace, "read", |span| span.name == "execute_tool choir.fs.read");
    let chats: Vec<&Span> = trace.iter().filter(|span| span.name == "chat scripted-1").collect();
    let after: Vec<&&Span> = chats.iter().filter(|span| span.from > killed).collect();
    assert_eq!((chats.len(), after.len()), (3, 2), "the call that was open is made again: {chats:#?}");
    for span in after.into_iter().copied().chain([read]) {
        assert!(is_below(&trace, span, turn), "{span:?}");
    }
    let delivered = |span: &Span| span.name == "deliver" && span.of("repeat") == "false";
    assert!(is_below(&trace, one(&trace, "delivery", delivered), root));
    receiver.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_resumed_after_kill_9_of_choird_stays_in_its_messages_trace() {
    let receiver = receiver().await;
    let mut world = observed(work(), &receiver).await;
    let mut user = User::of(&world);
    let when = When::Message { contains: "work-1".into(), step: Some(1) };
    world.model.add_fault(FaultRule::once(when, Fault::Hold));
    let message = user.send("work-1").await;
    world.model.until_held(SOON).await.unwrap();
    until_exported(&receiver, "user_message").await;
    until_exported(&receiver, "execute_tool choir.exec").await;
    world.kill_choird().await;
    let killed = now();
    world.start().await;
    world.until("the agent", |view| view.state == "up").await;
    let recovered = now();
    world.model.release_all();
    user.answer_to(message).await;
    assert_eq!(world.stop_choird().await, Some(0));

    let all = spans(&receiver).await;
    let trace = remains_of(&all, message, killed, recovered);
    let root = root_of(&trace, message);
    // The first agent ended in order when its host was gone, so its turn's span may have been exported, unfinished.
    let went_on = |span: &Span| span.name == "invoke_agent assistant" && span.of("choir.resumed") == "true";
    let turn = one(&trace, "resumed turn", went_on);
    assert_eq!((&turn.parent, turn.of("outcome")), (&root.id, "answered"));
    let delivered = |span: &Span| span.name == "deliver" && span.of("repeat") == "false";
    let delivered = one(&trace, "delivery", delivered);
    assert!(is_below(&trace, delivered, root) && delivered.from > killed);
    receiver.shutdown().await.unwrap();
}

/// A point of a metric: which service, and the whole metric, debugged.
async fn metrics(receiver: &ServerHandle) -> Vec<(String, String, String)> {
    let read = |found: &mock_collector::TestMetric| {
        let service = found.resource_attrs().iter().find(|pair| pair.key == "service.name").unwrap();
        (plain(&service.value), found.metric().name.clone(), format!("{:?}", found.metric()))
    };
    receiver.with_collector(|collector| collector.metrics().iter().map(read).collect()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_programs_tell_what_they_measure_and_a_crash_is_among_it() {
    let receiver = receiver().await;
    let mut world = observed(work(), &receiver).await;
    let mut user = User::of(&world);
    let when = When::Message { contains: "work-1".into(), step: Some(1) };
    world.model.add_fault(FaultRule::once(when, Fault::Hold));
    let message = user.send("work-1").await;
    world.model.until_held(SOON).await.unwrap();
    let before = world.view().await;
    signal(before.agent_pid.unwrap(), Signal::KILL);
    world.until("a new sandbox", |view| view.state == "up" && view.generation > before.generation).await;
    world.model.release_all();
    user.answer_to(message).await;
    // A restart inside the agent, for the tree's gauges.
    let op = Op::ActorKill { path: "assistant/choir-agent/session/models".into() };
    world.client().await.call::<Value>(op, SOON).await.unwrap();
    let second = user.send("work-2").await;
    user.answer_to(second).await;
    assert_eq!(world.stop_choird().await, Some(0));

    let all = metrics(&receiver).await;
    for (service, names) in [
        (
            "choird",
            &[
                "choir.actor.mailbox.depth",
                "choir.actor.mailbox.oldest_age",
                "choir.actor.restarts",
                "choir.link.closed",
                "choir.recovery.duration",
                "choir.replication.lag",
            ][..],
        ),
        (
            "choir-agent",
            &[
                "choir.actor.mailbox.depth",
                "choir.actor.mailbox.oldest_age",
                "choir.actor.restarts",
                "choir.lock.wait",
                "choir.model.duration",
                "choir.model.tokens",
                "choir.replication.lag",
                "choir.tool.duration",
                "choir.turn.duration",
            ],
        ),
    ] {
        for name in names {
            let points: Vec<_> = all.iter().filter(|(s, n, _)| s == service && n == name).collect();
            assert!(!points.is_empty(), "{service} tells {name}");
            let metric = &points[0].2;
            if name.ends_with("duration") || name.ends_with("wait") {
                assert!(
                    metric.contains("unit: \"s\"")
                        && metric.contains("explicit_bounds: [1e-5, 0.0001, 0.001"),
                    "{metric}"
                );
            }
            assert!(!metric.contains("description: \"\""), "{metric}");
        }
    }
    let says = |service: &str, name: &str, what: &[&str]| {
        let points: Vec<_> = all.iter().filter(|(s, n, _)| s == service && n == name).collect();
        let found = points.iter().any(|(_, _, metric)| what.iter().all(|part| metric.contains(part)));
        assert!(found, "{service} {name} {what:?}: {points:#?}");
    };
    says("choir-agent", "choir.tool.duration", &["choir.exec", "success"]);
    says("choir-agent", "choir.turn.duration", &["answered"]);
    says("choir-agent", "choir.model.tokens", &["scripted-1", "prompt", "completion"]);
    says("choir-agent", "choir.lock.wait", &["edge", "granted"]);
    says("choir-agent", "choir.actor.restarts", &["choir-agent/session/models", "AsInt(1)"]);
    says("choird", "choir.actor.mailbox.depth", &["choird/store/pool"]);
    says("choird", "choir.link.closed", &["peer_closed"]);
    let calls = |(_, _, metric): &(String, String, String)| metric.contains("executors/call-");
    assert!(!all.iter().any(calls), "a call is no series of its own");
    receiver.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_carries_the_mark_by_which_its_sandbox_is_found() {
    let script = Script::default().rule(
        Match::Contains("mark".into()),
        [Step::call("choir.exec", json!({"command": "echo $CHOIR_SANDBOX > mark.txt"})), Step::text("done")],
    );
    let world = World::new(script, |_| {}).await;
    let mut user = User::of(&world);
    let message = user.send("mark").await;
    user.answer_to(message).await;
    let mark = std::fs::read_to_string(world.workspace().join("mark.txt")).unwrap();
    let agent = world.view().await.agent_pid.unwrap();
    let environment = std::fs::read(format!("/proc/{agent}/environ")).unwrap();
    let own = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"CHOIR_SANDBOX="));
    assert_eq!(Some(mark.trim()), own.map(|mark| std::str::from_utf8(mark).unwrap()));
    assert!(!mark.trim().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_the_signed_ledger_is_one_trace_through_its_roles_models_and_tools() {
    let receiver = receiver().await;
    let mut world = observed(Script::default(), &receiver).await;
    std::fs::write(world.workspace().join("notes.txt"), "the answer is 42\n").unwrap();
    let task = json!({ "task_id": "t", "objective": "read notes.txt", "input_artifacts": [], "constraints": [],
        "policy_profile": "default", "requested_roles": ["planner", "executor", "critic", "auditor"] });
    let client = world.client().await;
    let mut stream = client.stream(Op::LedgerRun { task, agent: None }).await.unwrap();
    let run = stream.item().await.unwrap().unwrap();
    while stream.item().await.unwrap().is_some() {}
    let end: Value = stream.result().unwrap();
    assert_eq!(end["status"], "completed", "{end}");
    // The run's own id is the trace's.
    let id: MessageId = run["trace"].as_str().unwrap().parse().unwrap();
    drop((stream, client));
    world.stop_choird().await;
    let all = spans(&receiver).await;
    let trace = trace_of(&all, id);
    for name in
        ["planner asks", "critic asks", "executor runs a tool", "auditor verifies", "executor submits"]
    {
        assert!(trace.iter().any(|span| span.name == name), "{name}: {:?}", names(&trace));
    }
    let asks = trace.iter().filter(|span| span.name == "chat scripted-1").count();
    assert!(asks >= 6, "plan, review, step, claim, review of claims, conclusion, note: {asks}");
    let signal = one(&trace, "the agent's end of the signal", |span| {
        span.name == "signal" && span.of("signal") == "run_tool" && span.service == "choir-agent"
    });
    let runs = one(&trace, "the executor's run", |span| span.name == "executor runs a tool");
    assert!(is_below(&trace, signal, runs), "the agent's part hangs below the role's");
}

fn names(trace: &[Span]) -> Vec<&str> {
    trace.iter().map(|span| span.name.as_str()).collect()
}
