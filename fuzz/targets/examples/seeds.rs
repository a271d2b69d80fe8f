//! Writes the seeds that are made by code into `fuzz/seeds`: `cargo run -p choir-fuzz-targets --example seeds`. Run it
//! again after a change of a format; seeds written by hand (all that is text) stay as they are.

use std::error::Error;
use std::fs;
use std::path::Path;

use choir_fuzz_targets::Input;
use choir_ledger::scale::{MIN_EVENTS, Recipe, blob};
use choir_link::wire::{Call, Frame, GATE, METHOD, Reply as Answered};
use choir_messages::chain::Digest;
use choir_messages::codec;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{ApprovalId, InvocationId, LeaseId, MessageId, ModelCallId, RequestId, SessionId};
use choir_messages::json::Json;
use choir_messages::model::{ModelConfig, ModelFailure, Usage};
use choir_messages::secret::Secret;
use choir_messages::session::{SessionView, Spent};
use choir_messages::time::Timestamp;
use choir_messages::tool::{
    Lane, LockMode, LockSpec, Replay, ResourceKey, SideEffect, ToolCall, ToolOutcome, ToolStatus,
};
use choir_messages::wire::{
    AgentSettings, ApprovalStatus, Budgets, Envelope, Heartbeat, HeartbeatAck, Hello, HelloAnswer,
    LaneStatus, Reply, Request, Signal, SignalAck, SignalRefused, SignalRequest, TraceContext, Verdict,
    WIRE_VERSION,
};
use serde::Serialize;
use serde_json::json;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SESSION: SessionId = SessionId::from_bits(1);
const LEASE: LeaseId = LeaseId::from_bits(2);

fn main() -> Outcome<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../seeds");
    let write = |target: &str, name: &str, bytes: &[u8]| -> Outcome<()> {
        fs::create_dir_all(folder.join(target))?;
        Ok(fs::write(folder.join(target).join(format!("good-{name}")), bytes)?)
    };
    let log = log()?;
    let lines = log.iter().map(Event::canonical).collect::<Result<Vec<_>, _>>()?;
    write("event_log", "session", lines.join("\n").as_bytes())?;
    for (name, bytes) in guard() {
        write("guard", name, &bytes)?;
    }
    let mut recipe = Recipe::new(MIN_EVENTS);
    let events: Vec<String> = recipe.by_ref().map(|event| event.line().to_owned()).collect();
    let registry = serde_json::to_vec(&recipe.registry())?;
    for (name, index) in [("session", 0), ("started", 4), ("claim", 7)] {
        let line: &String = events.get(index).ok_or("the recipe has eleven events")?;
        write("ledger_line", name, line.as_bytes())?;
    }
    write("ledger_registry", "four-keys", &registry)?;
    let ledger = events.get(..5).unwrap_or_default().join("\n") + "\n";
    let meta = serde_json::to_vec(&recipe.meta())?;
    let mut parts = Vec::new();
    let blobs = [blob(0), blob(16)];
    let files: [&[u8]; 6] = [&[], &meta, ledger.as_bytes(), &[], &blobs[0], &blobs[1]];
    files.iter().for_each(|part| Input::put_piece(&mut parts, part));
    write("ledger_home", "begun", &parts)?;
    for (name, bytes) in link(&log)? {
        write("link_codec", &name, &bytes)?;
    }
    for (name, bytes) in scrubber() {
        write("scrubber", name, &bytes)?;
    }
    for (name, bytes) in answers() {
        write("model_answer", name, &bytes)?;
    }
    Ok(())
}

fn call(n: u128, tool: &str, arguments: &str) -> (InvocationId, ToolCall) {
    let call =
        ToolCall { provider_id: format!("p{n}"), tool: tool.to_owned(), arguments: arguments.to_owned() };
    (InvocationId::from_bits(n), call)
}

/// A log in which every kind of event stands where it may.
fn log() -> Outcome<Vec<Event>> {
    let (one, two, three) = (MessageId::from_bits(1), MessageId::from_bits(2), MessageId::from_bits(3));
    let usage = Usage { prompt_tokens: 10, completion_tokens: 2 };
    let file = ResourceKey::File("a/b".into());
    let outcome = |status, output| ToolOutcome { status, output: Json(output), cut_bytes: 0 };
    let output = |message, text: Option<&str>, calls| EventBody::ModelOutput {
        call: ModelCallId::from_bits(5),
        message,
        text: text.map(str::to_owned),
        calls,
        usage,
        model: "m".into(),
    };
    let requested = |n, tool: &str, input| EventBody::ToolCallRequested {
        invocation: InvocationId::from_bits(n),
        tool: tool.into(),
        input: Json(input),
    };
    let committed =
        |n, tool: &str, lock: &ResourceKey, mode, side_effect, replay| EventBody::ToolCallCommitted {
            invocation: InvocationId::from_bits(n),
            tool: tool.into(),
            locks: vec![LockSpec { resource: lock.clone(), mode }],
            side_effect,
            replay,
        };
    let closed =
        |message, outcome, text: &str| EventBody::MessageClosed { message, outcome, text: text.into() };
    let change = Replay::FileChange { path: "a/b".into(), before: None, after: Some(Digest::of(b"x")) };
    let bodies = vec![
        EventBody::SessionOpened { agent: "assistant".parse()?, tool_manifest: Digest::ZERO },
        EventBody::UserMsg { message: one, text: "é \"quoted\"\n\u{1}".into() },
        EventBody::ConfigApplied { version: 2 },
        output(one, Some("let me see"), vec![call(1, "choir.fs.read", "{}"), call(2, "choir.fs.write", "{")]),
        requested(1, "choir.fs.read", json!({ "path": "a/b", "offset": 1 })),
        EventBody::UserMsg { message: two, text: "and?".into() },
        committed(1, "choir.fs.read", &file, LockMode::S, SideEffect::Read, Replay::Idempotent),
        EventBody::InjectedInstruction { message: three, text: "be brief".into() },
        EventBody::ToolResultCommitted {
            invocation: InvocationId::from_bits(1),
            outcome: outcome(ToolStatus::Success, json!({ "lines": ["x", 1.5, null] })),
        },
        EventBody::ToolResultCommitted {
            invocation: InvocationId::from_bits(2),
            outcome: outcome(ToolStatus::Refused, json!({ "error": "no" })),
        },
        EventBody::TurnResumed { message: one },
        output(one, None, vec![call(3, "choir.exec", "{\"command\":\"ls\"}")]),
        requested(3, "choir.exec", json!({ "command": "ls" })),
        committed(3, "choir.exec", &ResourceKey::Workspace, LockMode::X, SideEffect::Write, change),
        EventBody::ToolResultCommitted {
            invocation: InvocationId::from_bits(3),
            outcome: outcome(ToolStatus::OutcomeUnknown, json!("?")),
        },
        EventBody::CoreStarted { job: Json(json!({ "task": "t" })) },
        EventBody::CoreStopped { result: Json(json!([1e300, -0.5])) },
        EventBody::MemoryWriteCommitted { key: "k".into(), content: Digest::of(b"c") },
        output(one, Some("done"), Vec::new()),
        closed(one, MessageOutcome::Answered, "done"),
        EventBody::Notice { message: two, text: "the provider limits the rate".into() },
        EventBody::ModelFailed {
            call: ModelCallId::from_bits(6),
            message: two,
            failure: ModelFailure::RateLimited { waited_ms: 1000 },
        },
        EventBody::Cancelled { message: Some(two), request: MessageId::from_bits(4) },
        closed(two, MessageOutcome::Failed, "cancelled"),
    ];
    let (mut head, mut events, mut view) = (Head::START, Vec::new(), SessionView::new(SESSION));
    for (at, body) in (1_800_000_000_000..).zip(bodies) {
        let (event, _) = Event::append(SESSION, head, Timestamp::from_millis(at), Lane::Edge, body)?;
        view.apply(&event)?;
        head = event.head();
        events.push(event);
    }
    Ok(events)
}

/// Frames as steps of the guard's target: whose, length, bytes without their length on the wire.
fn guard() -> Vec<(&'static str, Vec<u8>)> {
    let call = |to, tag, what: &'static [u8]| {
        let timeout_ms = Some(1000);
        Frame::Call(Call { to, tag, timeout_ms, method: METHOD, has_metadata: false, what })
    };
    let reply = |to, tag, what: &'static [u8]| Frame::Reply(Answered { to, tag, what });
    let steps = |side: u8, steps: &[(u8, Option<Frame<'_>>)]| {
        let mut out = vec![side];
        for (whose, frame) in steps {
            out.push(*whose);
            let bytes = frame.map(|frame| frame.bytes()).unwrap_or_default();
            Input::put_piece(&mut out, bytes.get(8..).unwrap_or_default());
        }
        out
    };
    let (peer, node, write) = (0, 1, 2);
    vec![
        (
            "verb",
            steps(
                0,
                &[
                    (peer, Some(call(GATE, 5, b"what"))),
                    (peer, Some(Frame::Ping(None))),
                    (node, Some(Frame::Pong(None))),
                    (node, Some(reply(77, 5, b"answer"))),
                    (write, None),
                    (write, None),
                    (peer, Some(call(GATE, 5, b"again"))),
                ],
            ),
        ),
        (
            "signal",
            steps(
                1,
                &[
                    (node, Some(call(GATE, 9, b"signal"))),
                    (node, Some(Frame::Ping(None))),
                    (write, None),
                    (peer, Some(reply(GATE, 9, b"ack"))),
                    (peer, Some(Frame::Pong(None))),
                ],
            ),
        ),
    ]
}

fn coded(kind: u8, value: &impl Serialize) -> Outcome<Vec<u8>> {
    let mut out = vec![kind];
    out.extend(codec::encode(value, u64::MAX)?);
    Ok(out)
}

fn settings() -> Outcome<AgentSettings> {
    let model = ModelConfig {
        name: "default".into(),
        model: "m".into(),
        endpoint: "https://example.org/v1".into(),
        temperature: Some(0.7),
        reasoning_effort: None,
        secret: Some("model-key".into()),
        timeout_ms: 1000,
        rate_limit_retry_ms: 1000,
        extra: Json(json!({ "top_p": 1 })),
    };
    Ok(AgentSettings { version: 1, model, budgets: Budgets::default(), heartbeat_interval_ms: 5000 })
}

fn link(log: &[Event]) -> Outcome<Vec<(String, Vec<u8>)>> {
    let mut view = SessionView::new(SESSION);
    for event in log.iter().take(8) {
        view.apply(event)?;
    }
    let last = log.last().map_or(Head::START, Event::head);
    let requests = vec![
        Request::InitHello(Hello {
            agent: "assistant".parse()?,
            image_version: "0.1.0".into(),
            tool_manifest: Digest::ZERO,
            skill_manifest: Digest::ZERO,
            head: last,
        }),
        Request::GetSecrets { names: vec!["model-key".into()] },
        Request::Heartbeat(Heartbeat {
            base: 0,
            newest: last.rev,
            events: log.iter().take(5).cloned().collect(),
            config_version: 1,
            at: Timestamp::from_millis(1),
        }),
        Request::RequestApproval { kind: "exec".into(), payload: Json(json!({ "command": "ls" })) },
        Request::ReportStatus(LaneStatus {
            lane: Lane::Core("job".parse()?),
            state: "EDGE_IDLE".into(),
            spent: Spent::default(),
            tree: Json(json!({ "name": "choir-agent", "children": [] })),
        }),
        Request::TerminateSelf { reason: "done".into() },
        Request::FetchDynamicConfig { current: 1 },
        Request::ExecuteHostTool {
            invocation: InvocationId::from_bits(1),
            tool: "host.tool".into(),
            input: Json(json!({})),
        },
    ];
    let mut seeds = Vec::new();
    for body in requests {
        let name = format!("{:?}", body.verb());
        let envelope = Envelope {
            version: WIRE_VERSION,
            request: RequestId::from_bits(1),
            session: SESSION,
            lease: LEASE,
            generation: 1,
            trace: TraceContext::default(),
            body,
        };
        seeds.push((name, coded(0, &envelope)?));
    }
    let secret = [("model-key".to_owned(), Secret::new("not-a-real-value".into()))];
    let answers: Vec<Result<Reply, Verdict>> = vec![
        Ok(Reply::Hello(Box::new(HelloAnswer {
            durable: last,
            snapshot: Some(Box::new(view.clone())),
            tail: log.iter().skip(8).take(2).cloned().collect(),
            bindings: [("workspace".to_owned(), "main".to_owned())].into(),
            settings: settings()?,
        }))),
        Ok(Reply::Secrets { values: secret.into() }),
        Ok(Reply::Heartbeat(HeartbeatAck { durable: last, config_version: 1 })),
        Ok(Reply::Approval { approval: ApprovalId::from_bits(1), status: ApprovalStatus::Pending }),
        Ok(Reply::Config { version: 1, settings: Some(Box::new(settings()?)) }),
        Ok(Reply::HostTool(ToolOutcome::says(ToolStatus::Error, "no"))),
        Ok(Reply::Done),
        Err(Verdict::Diverged { durable: last }),
        Err(Verdict::Rejected("no".into())),
    ];
    for (at, answer) in answers.iter().enumerate() {
        seeds.push((format!("answer-{at}"), coded(1, answer)?));
    }
    let message = MessageId::from_bits(1);
    let signals = vec![
        Signal::UserMessage { message, text: "hello".into() },
        Signal::Inject { message, text: "be brief".into() },
        Signal::Cancel { request: message },
        Signal::ConfigChanged { version: 2 },
        Signal::ShutDown { within_ms: 1000 },
        Signal::KillActor { path: "choir-agent/session/arbiter".into() },
    ];
    for (at, signal) in signals.into_iter().enumerate() {
        let trace = TraceContext("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01".into());
        let request = SignalRequest { version: WIRE_VERSION, lease: LEASE, generation: 1, trace, signal };
        seeds.push((format!("signal-{at}"), coded(2, &request)?));
    }
    let acks = [SignalAck::Recorded { rev: 5 }, SignalAck::Refused(SignalRefused::QueueFull { waiting: 64 })];
    for (at, ack) in acks.iter().enumerate() {
        seeds.push((format!("ack-{at}"), coded(3, ack)?));
    }
    seeds.push(("view".into(), coded(4, &view)?));
    Ok(seeds)
}

fn scrubber() -> Vec<(&'static str, Vec<u8>)> {
    let input = |secrets: &[&str], template: &[u8]| {
        let mut out = Vec::new();
        for secret in secrets {
            Input::put_piece(&mut out, secret.as_bytes());
        }
        Input::put_piece(&mut out, b"");
        out.extend_from_slice(template);
        out
    };
    vec![
        ("plain", input(&["canary-1", "canary-1-and-more"], b"key \x01, longer \x05\x01")),
        ("escaped", input(&["can\"ary\\ /é"], b"{\"k\":\"\x02\"} \x03 ?k=\x04 \xff\x01")),
    ]
}

fn answers() -> Vec<(&'static str, Vec<u8>)> {
    let input = |status: u16, header: &str, body: &str| {
        let mut out = status.to_be_bytes().to_vec();
        Input::put_piece(&mut out, header.as_bytes());
        out.extend_from_slice(body.as_bytes());
        out
    };
    let tool = r#"{"id":"x","object":"chat.completion","model":"m-1","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"choir_fs_read","arguments":"{\"path\":\"a\"}"}},{"id":"c1","type":"function","function":{"name":"nope","arguments":{"k":1}}}]}}],"usage":{"prompt_tokens":9,"completion_tokens":12.0}}"#;
    vec![
        ("text", input(200, "", r#"{"choices":[{"message":{"content":"hello"},"finish_reason":"stop"}]}"#)),
        (
            "parts",
            input(
                200,
                "",
                r#"{"choices":[{"finish_reason":"length","message":{"content":[{"type":"text","text":"a sk-canary-0123456789"},"b",{"type":"image"}]}}],"usage":null}"#,
            ),
        ),
        ("tools", input(200, "", tool)),
        ("refusal", input(200, "", r#"{"choices":[{"message":{"refusal":"I cannot"}}]}"#)),
        ("limited", input(429, "1.5", r#"{"error":{"message":"slow down","code":429}}"#)),
        ("date", input(429, "Fri, 15 Jan 2027 08:00:05 GMT", "")),
        ("inner", input(200, "3", r#"{"error":{"message":"upstream","code":429}}"#)),
        ("rejected", input(400, "", r#"{"error":{"message":"bad sk-canary-0123456789\nkey","type":"x"}}"#)),
        ("filtered", input(400, "", r#"{"error":{"code":"content_filter","message":"no"}}"#)),
        ("page", input(404, "", "<html>not here</html>")),
        ("failed", input(503, "10", r#"[{"error":{"message":"busy"}}]"#)),
    ]
}
