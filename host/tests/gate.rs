//! The gate against an agent that says what it likes: the test itself, over a real link, with the secret that choird
//! gave to a program which only writes it down.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use choir_host::control::Op;
use choir_host::control::views::{AgentView, MessageLine};
use choir_link::{LinkSecret, Target, Uplink, connect};
use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{LeaseId, MessageId, RequestId};
use choir_messages::json::Json;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use choir_messages::wire::{
    Bootstrap, BoxFuture, ControlPlane, Envelope, Heartbeat, Hello, LaneStatus, LinkError, Reply, Request,
    Signal, SignalAck, SignalHandler, SignalRefused, SignalRequest, TraceContext, Verdict, WIRE_VERSION,
};
use choir_scripted_model::Script;
use serde_json::{Value, json};
use support::{SOON, User, World};
use tokio::sync::mpsc;

/// The most an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// Answers every signal with the next of a list, then with `Recorded`; tells the test what came.
struct Signals {
    answers: Mutex<Vec<SignalAck>>,
    seen: mpsc::UnboundedSender<Signal>,
}

impl SignalHandler for Signals {
    fn handle(&self, request: SignalRequest) -> BoxFuture<'_, SignalAck> {
        let _ = self.seen.send(request.signal);
        let answer = self.answers.lock().unwrap().pop().unwrap_or(SignalAck::Recorded { rev: 1 });
        Box::pin(std::future::ready(answer))
    }
}

/// The test as an agent.
struct Impostor {
    bootstrap: Bootstrap,
    uplink: Uplink,
    seen: mpsc::UnboundedReceiver<Signal>,
}

impl Impostor {
    /// A world whose agent is a program that writes its bootstrap line to a file and waits; and the line.
    async fn world(tweak: impl FnOnce(&mut Value)) -> World {
        let plain = |config: &mut Value| {
            config["sandbox"] = json!("process");
            tweak(config);
        };
        let mut world = World::stopped(Script::default(), plain).await;
        let program = world.folder().join("agent.sh");
        let script = "#!/bin/sh\nread -r line\nprintf '%s\\n' \"$line\" > \"$0.new\"\nmv \"$0.new\" \"$0.line\"\nexec cat > /dev/null\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        world.agent_program = Some(program);
        world.start().await;
        world
    }

    /// Asks choird to start the agent, and takes its place.
    async fn take_over(world: &World, mut answers: Vec<SignalAck>) -> Self {
        let line = world.folder().join("agent.sh.line");
        let _ = std::fs::remove_file(&line);
        let client = world.client().await;
        let op = Op::AgentStart { agent: world.agent.clone(), fresh: false, workspace: None, llm: None };
        // Its answer comes once the agent is up, which is this function's doing.
        let _stream = client.stream(op).await.unwrap();
        let until = Instant::now() + SOON;
        let text = loop {
            if let Ok(text) = std::fs::read_to_string(&line) {
                break text;
            }
            assert!(Instant::now() < until, "the agent was not started in time");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let bootstrap: Bootstrap = serde_json::from_str(&text).unwrap();
        let (seen, signals) = mpsc::unbounded_channel();
        answers.reverse();
        let handler = Arc::new(Signals { answers: Mutex::new(answers), seen });
        let secret = LinkSecret::from_hex(&bootstrap.link_secret).unwrap();
        let target = Target::from(bootstrap.link.clone());
        let uplink = connect(&target, &secret, bootstrap.session, handler, ANSWER).await.unwrap();
        Self { bootstrap, uplink, seen: signals }
    }

    fn envelope(&self, body: Request) -> Envelope {
        Envelope {
            version: WIRE_VERSION,
            request: RequestId::fresh(),
            session: self.bootstrap.session,
            lease: self.bootstrap.lease,
            generation: self.bootstrap.generation,
            trace: TraceContext("not a trace\u{1b}".into()),
            body,
        }
    }

    async fn say(&self, body: Request) -> Result<Reply, LinkError> {
        self.uplink.call(self.envelope(body), ANSWER).await
    }

    fn hello(&self, head: Head) -> Request {
        Request::InitHello(Hello {
            agent: self.bootstrap.agent.clone(),
            image_version: "test".into(),
            tool_manifest: Digest::ZERO,
            skill_manifest: Digest::ZERO,
            head,
        })
    }

    /// Says hello and opens the log. Returns its head.
    async fn open(&self) -> Head {
        let Ok(Reply::Hello(answer)) = self.say(self.hello(Head::START)).await else { panic!("no hello") };
        if answer.durable.rev > 0 {
            return answer.durable;
        }
        let body =
            EventBody::SessionOpened { agent: self.bootstrap.agent.clone(), tool_manifest: Digest::ZERO };
        self.append(Head::START, body).await.unwrap()
    }

    async fn append(&self, head: Head, body: EventBody) -> Result<Head, LinkError> {
        let (event, _) =
            Event::append(self.bootstrap.session, head, Timestamp::now(), Lane::Edge, body).unwrap();
        let next = event.head();
        self.say(beat(head.rev, vec![event])).await.map(|_| next)
    }

    async fn next_message(&mut self) -> (MessageId, String) {
        loop {
            let signal =
                tokio::time::timeout(SOON, self.seen.recv()).await.expect("a signal in time").unwrap();
            if let Signal::UserMessage { message, text } = signal {
                return (message, text);
            }
        }
    }
}

fn beat(base: u64, events: Vec<Event>) -> Request {
    let newest = events.last().map_or(base, |event| event.rev);
    Request::Heartbeat(Heartbeat { base, newest, events, config_version: 0, at: Timestamp::now() })
}

fn refused(result: Result<Reply, LinkError>) -> Verdict {
    match result {
        Err(LinkError::Refused(verdict)) => verdict,
        other => panic!("not refused: {other:?}"),
    }
}

fn rejected(result: Result<Reply, LinkError>) -> String {
    match refused(result) {
        Verdict::Rejected(why) => why,
        other => panic!("not rejected: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_lease_it_was_started_under_is_served() {
    let world = Impostor::world(|_| ()).await;
    let agent = Impostor::take_over(&world, Vec::new()).await;
    for change in
        [(|e| e.lease = LeaseId::fresh()) as fn(&mut Envelope), |e| e.generation += 1, |e| e.generation = 0]
    {
        let mut envelope = agent.envelope(beat(0, Vec::new()));
        change(&mut envelope);
        assert_eq!(refused(agent.uplink.call(envelope, ANSWER).await), Verdict::LeaseRevoked);
    }
    agent.open().await;
    world.until("the agent is up", |view| view.state == "up").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_the_protocol_is_rejected_and_nothing_is_done() {
    let world = Impostor::world(|_| ()).await;
    let agent = Impostor::take_over(&world, Vec::new()).await;
    let mut hello = agent.hello(Head::START);
    if let Request::InitHello(hello) = &mut hello {
        hello.agent = "somebody-else".parse().unwrap();
    }
    assert!(rejected(agent.say(hello).await).contains("another agent"));
    let head = agent.open().await;

    // A broken hash, a gap, a fork, an illegal event.
    let said = |text: &str| EventBody::UserMsg { message: MessageId::fresh(), text: text.into() };
    let (mut event, _) =
        Event::append(agent.bootstrap.session, head, Timestamp::now(), Lane::Edge, said("x")).unwrap();
    event.hash = Digest::ZERO;
    rejected(agent.say(beat(head.rev, vec![event])).await);
    let ahead = Head { rev: head.rev + 5, hash: head.hash };
    let gap = agent.append(ahead, said("x")).await.unwrap_err();
    assert!(matches!(gap, LinkError::Refused(Verdict::Diverged { durable }) if durable == head), "{gap:?}");
    let answer = EventBody::MessageClosed {
        message: MessageId::fresh(),
        outcome: MessageOutcome::Answered,
        text: "to nobody".into(),
    };
    assert!(matches!(agent.append(head, answer).await, Err(LinkError::Refused(Verdict::Rejected(_)))));

    // Secrets: the bound one, and no other.
    let names =
        |names: &[&str]| Request::GetSecrets { names: names.iter().map(|n| (*n).to_owned()).collect() };
    assert!(rejected(agent.say(names(&["model-key", "admin-key"])).await).contains("admin-key"));
    rejected(agent.say(Request::GetSecrets { names: vec!["model-key".into(); 65] }).await);
    let Ok(Reply::Secrets { values }) = agent.say(names(&["model-key"])).await else { panic!("no secret") };
    assert_eq!(values["model-key"].expose(), world.model.key());

    // Bounds.
    let status = |tree: Value| {
        let spent = Default::default();
        Request::ReportStatus(LaneStatus {
            lane: Lane::Edge,
            state: "EDGE_IDLE".into(),
            spent,
            tree: Json(tree),
        })
    };
    rejected(agent.say(status(json!("x".repeat(70_000)))).await);
    agent.say(status(json!({ "name": "choir-agent" }))).await.unwrap();
    let big = Request::RequestApproval { kind: "tool".into(), payload: Json(json!("x".repeat(300_000))) };
    rejected(agent.say(big).await);
    let tool = Request::ExecuteHostTool {
        invocation: choir_messages::id::InvocationId::fresh(),
        tool: "choir.host.rm".into(),
        input: Json(json!({})),
    };
    assert!(rejected(agent.say(tool).await).contains("choir.host.rm"));

    // After all that the log goes on where it was.
    agent.append(head, said("still here")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_asked_once_and_waits_for_a_person() {
    let world = Impostor::world(|_| ()).await;
    let agent = Impostor::take_over(&world, Vec::new()).await;
    agent.open().await;
    let ask = || Request::RequestApproval { kind: "tool".into(), payload: Json(json!({ "b": 1, "a": 2 })) };
    let mut ids = Vec::new();
    for _ in 0..2 {
        let Ok(Reply::Approval { approval, status }) = agent.say(ask()).await else { panic!("no approval") };
        assert_eq!(status, choir_messages::wire::ApprovalStatus::Pending);
        ids.push(approval);
    }
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_not_taken_is_offered_again_and_one_beyond_the_budget_is_refused_with_the_reason() {
    let world = Impostor::world(|_| ()).await;
    let mut user = User::of(&world);
    let first = user.send("one").await;
    let answers = vec![
        SignalAck::Refused(SignalRefused::NotReady),
        SignalAck::Refused(SignalRefused::QueueFull { waiting: 64 }),
        SignalAck::Recorded { rev: 2 },
        SignalAck::Refused(SignalRefused::Budget { which: "total_session_tokens".into() }),
    ];
    let mut agent = Impostor::take_over(&world, answers).await;
    let head = agent.open().await;
    for _ in 0..3 {
        assert_eq!(agent.next_message().await, (first, "one".into()));
    }
    agent.append(head, EventBody::UserMsg { message: first, text: "one".into() }).await.unwrap();
    let second = user.send("two").await;
    assert_eq!(agent.next_message().await.0, second);
    let said = user.answer_to(second).await;
    assert!(said.text.contains("total_session_tokens"), "{}", said.text);
    let list: Vec<MessageLine> =
        world.client().await.call(Op::Messages { agent: None, unanswered: false }, SOON).await.unwrap();
    let state = |id| list.iter().find(|line| line.message == id).unwrap().state.clone();
    assert_eq!((state(first).as_str(), state(second).as_str()), ("taken", "refused"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_agents_link_is_gone_and_its_lease_is_worth_nothing() {
    let world = Impostor::world(|_| ()).await;
    let mut agent = Impostor::take_over(&world, Vec::new()).await;
    agent.open().await;
    world.until("the agent is up", |view| view.state == "up").await;
    let op = Op::AgentStop { agent: world.agent.clone() };
    let stopping = async { world.client().await.call::<AgentView>(op, SOON).await.unwrap() };
    let leaving = async {
        // Asked to leave, it does: the program ends when its input does, which the kill after the deadline sees to.
        loop {
            match agent.seen.recv().await {
                Some(Signal::ShutDown { .. }) | None => break,
                Some(_) => {}
            }
        }
        let goodbye = Request::TerminateSelf { reason: "asked to\u{7}".into() };
        let _ = agent.say(goodbye).await;
    };
    let (view, ()) = tokio::join!(stopping, leaving);
    assert_eq!(view.state, "stopped");
    let late = agent.say(beat(1, Vec::new())).await;
    assert!(matches!(late, Err(LinkError::Down | LinkError::Refused(Verdict::LeaseRevoked))), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_start_is_given_up_and_its_last_words_are_told() {
    let world = Impostor::world(|_| ()).await;
    std::fs::write(
        world.folder().join("agent.sh"),
        "#!/bin/sh\nread -r line\necho no such luck >&2\nexit 7\n",
    )
    .unwrap();
    let op = Op::AgentStart { agent: world.agent.clone(), fresh: false, workspace: None, llm: None };
    let answer = world.client().await.call::<AgentView>(op, SOON).await.unwrap_err().to_string();
    assert!(answer.contains("8 times in a row") && answer.contains("exited with code 7"), "{answer}");
    assert!(answer.contains("no such luck"), "{answer}");
    assert!(answer.contains("choirctl logs assistant"), "{answer}");
}
