//! A host in the test's own process: real links, a log in memory, a real scripted model; and the real `choir-agent`.

#![allow(clippy::unwrap_used, dead_code, reason = "shared by tests that fail by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use choir_link::{LinkEvent, LinkLimits, LinkSecret, LinkSpec, Links, ListenAt, Listener};
use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::{LeaseId, MessageId, SessionId};
use choir_messages::json::Json;
use choir_messages::model::ModelConfig;
use choir_messages::secret::Secret;
use choir_messages::session::SessionView;
use choir_messages::wire::{
    AgentSettings, Bootstrap, BoxFuture, Budgets, Envelope, HeartbeatAck, HelloAnswer, LaneStatus,
    LinkAddress, Reply, Request, Signal, SignalAck, SignalRequest, SignalSender, TraceContext, VerbHandler,
    Verdict, WIRE_VERSION,
};
use choir_scripted_model::{Handle, JournalSink, Script, ScriptedModel};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};

/// Longest wait for anything in a test.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The host's memory of one session.
pub(crate) struct Memory {
    pub view: SessionView,
    pub events: Vec<Event>,
    pub status: Option<LaneStatus>,
    pub goodbye: bool,
}

/// The verbs, answered from memory.
pub(crate) struct Verbs {
    pub memory: Mutex<Memory>,
    pub grew: watch::Sender<u64>,
    settings: AgentSettings,
    key: String,
}

impl VerbHandler for Verbs {
    fn handle(&self, envelope: Envelope) -> BoxFuture<'_, Result<Reply, Verdict>> {
        Box::pin(async move { self.answer(envelope.body) })
    }
}

impl Verbs {
    fn answer(&self, request: Request) -> Result<Reply, Verdict> {
        let mut memory = self.memory.lock().unwrap();
        match request {
            Request::InitHello(hello) => {
                let known = hello.head == Head::START
                    || memory.events.iter().any(|event| event.head() == hello.head)
                    || hello.head.rev > memory.view.head.rev;
                if !known {
                    return Err(Verdict::Diverged { durable: memory.view.head });
                }
                let after = usize::try_from(hello.head.rev).unwrap();
                // Small pages, so that paging is always exercised.
                let tail = memory.events.iter().skip(after).take(7).cloned().collect();
                Ok(Reply::Hello(Box::new(HelloAnswer {
                    durable: memory.view.head,
                    snapshot: None,
                    tail,
                    bindings: BTreeMap::new(),
                    settings: self.settings.clone(),
                })))
            }
            Request::GetSecrets { names } => {
                let values = names.into_iter().map(|name| (name, Secret::new(self.key.clone()))).collect();
                Ok(Reply::Secrets { values })
            }
            Request::Heartbeat(heartbeat) => {
                for event in heartbeat.events {
                    if event.rev <= memory.view.head.rev {
                        continue;
                    }
                    event.check(memory.view.session, memory.view.head).expect("a good chain");
                    memory.view.apply(&event).expect("a legal log");
                    memory.events.push(event);
                }
                let durable = memory.view.head;
                self.grew.send_replace(durable.rev);
                Ok(Reply::Heartbeat(HeartbeatAck { durable, config_version: self.settings.version }))
            }
            Request::ReportStatus(status) => {
                memory.status = Some(status);
                self.grew.send_modify(|_| ());
                Ok(Reply::Done)
            }
            Request::TerminateSelf { .. } => {
                memory.goodbye = true;
                Ok(Reply::Done)
            }
            Request::FetchDynamicConfig { .. } => {
                Ok(Reply::Config { version: self.settings.version, settings: None })
            }
            Request::RequestApproval { .. } | Request::ExecuteHostTool { .. } => {
                Err(Verdict::Rejected("not here".to_owned()))
            }
        }
    }
}

/// A host with one session.
pub(crate) struct TestHost {
    pub verbs: Arc<Verbs>,
    pub model: Handle,
    pub dir: tempfile::TempDir,
    links: Links,
    session: SessionId,
    generation: u64,
    lease: LeaseId,
    listener: Option<Listener>,
    signals: watch::Sender<Option<Arc<dyn SignalSender>>>,
}

/// A running choir-agent; killed when dropped.
pub(crate) struct Process {
    pub child: Child,
    /// The lifeline.
    pub stdin: Option<ChildStdin>,
}

impl TestHost {
    pub(crate) async fn new(script: Script) -> Self {
        let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
        let session = SessionId::fresh();
        let settings = AgentSettings {
            version: 1,
            model: ModelConfig {
                name: "scripted".to_owned(),
                model: "scripted-1".to_owned(),
                endpoint: model.endpoint(),
                temperature: Some(0.7),
                reasoning_effort: None,
                secret: Some("model-key".to_owned()),
                timeout_ms: 15_000,
                rate_limit_retry_ms: 50,
                extra: Json(serde_json::json!({})),
            },
            budgets: Budgets::default(),
            heartbeat_interval_ms: 500,
        };
        let memory =
            Memory { view: SessionView::new(session), events: Vec::new(), status: None, goodbye: false };
        let verbs = Arc::new(Verbs {
            memory: Mutex::new(memory),
            grew: watch::Sender::new(0),
            settings,
            key: model.key().to_owned(),
        });
        let dir = tempfile::Builder::new().prefix("choir").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        Self {
            verbs,
            model,
            dir,
            links: Links::start().await.unwrap(),
            session,
            generation: 0,
            lease: LeaseId::fresh(),
            listener: None,
            signals: watch::Sender::new(None),
        }
    }

    pub(crate) fn workspace(&self) -> std::path::PathBuf {
        self.dir.path().join("workspace")
    }

    /// Starts a new generation of the agent and waits for its link.
    pub(crate) async fn start(&mut self) -> Process {
        self.generation += 1;
        self.lease = LeaseId::fresh();
        if let Some(listener) = self.listener.take() {
            listener.close().await;
        }
        let secret = LinkSecret::fresh().unwrap();
        let socket = self.dir.path().join(format!("s{}", self.generation)).join("link.sock");
        let (events_tx, mut events) = mpsc::channel(64);
        let signals = self.signals.clone();
        signals.send_replace(None);
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                match event {
                    LinkEvent::Up { signals: up, .. } => drop(signals.send_replace(Some(up))),
                    LinkEvent::Down { .. } => drop(signals.send_replace(None)),
                    LinkEvent::Refused { .. } => {}
                }
            }
        });
        let spec = LinkSpec {
            session: self.session,
            secret: secret.clone(),
            at: ListenAt::Unix(socket.clone()),
            limits: LinkLimits::default(),
        };
        let handler: Arc<dyn VerbHandler> = self.verbs.clone();
        self.listener = Some(self.links.listen(spec, handler, events_tx).await.unwrap());
        let bootstrap = Bootstrap {
            version: WIRE_VERSION,
            agent: "assistant".parse().unwrap(),
            session: self.session,
            lease: self.lease,
            generation: self.generation,
            link: LinkAddress::Unix { socket },
            link_secret: secret.to_hex().to_string(),
            workspace: self.workspace(),
            choir_dir: None,
            otlp_endpoint: None,
        };
        let log =
            std::fs::File::create(self.dir.path().join(format!("agent{}.log", self.generation))).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_choir-agent"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut line = serde_json::to_vec(&bootstrap).unwrap();
        line.push(b'\n');
        stdin.write_all(&line).await.unwrap();
        self.up().await;
        Process { child, stdin: Some(stdin) }
    }

    async fn up(&self) -> Arc<dyn SignalSender> {
        let mut signals = self.signals.subscribe();
        let up = signals.wait_for(Option::is_some);
        let up = tokio::time::timeout(SOON, up).await.unwrap_or_else(|_| panic!("no link; {}", self.log()));
        up.unwrap().clone().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("agent{}.log", self.generation)))
            .unwrap_or_default()
    }

    /// Pushes a signal until it is taken.
    pub(crate) async fn push(&self, signal: Signal) -> SignalAck {
        let sending = async {
            loop {
                let request = SignalRequest {
                    version: WIRE_VERSION,
                    lease: self.lease,
                    generation: self.generation,
                    trace: TraceContext::default(),
                    signal: signal.clone(),
                };
                let sender = self.up().await;
                match sender.signal(request, Duration::from_secs(5)).await {
                    Ok(SignalAck::Refused(choir_messages::wire::SignalRefused::NotReady)) | Err(_) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    Ok(ack) => break ack,
                }
            }
        };
        tokio::time::timeout(SOON, sending)
            .await
            .unwrap_or_else(|_| panic!("signal not taken; {}", self.log()))
    }

    /// Sends a user's message.
    pub(crate) async fn say(&self, text: &str) -> MessageId {
        let message = MessageId::fresh();
        let ack = self.push(Signal::UserMessage { message, text: text.to_owned() }).await;
        assert!(matches!(ack, SignalAck::Recorded { .. }), "{ack:?}");
        message
    }

    /// Waits until the host's memory satisfies `look`.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Memory) -> Option<T>) -> T {
        let mut grew = self.verbs.grew.subscribe();
        let waiting = async {
            loop {
                if let Some(found) = look(&self.verbs.memory.lock().unwrap()) {
                    break found;
                }
                grew.changed().await.expect("the host lives");
            }
        };
        tokio::time::timeout(SOON, waiting).await.unwrap_or_else(|_| {
            let memory = self.verbs.memory.lock().unwrap();
            let kinds: Vec<_> = memory.events.iter().map(|event| event.body.kind()).collect();
            panic!("no {what}; events {kinds:?}; log {}", self.log())
        })
    }

    /// Waits for the end of a message and returns its text.
    pub(crate) async fn answer(&self, wanted: MessageId) -> String {
        self.until("answer", |memory| {
            memory.events.iter().find_map(|event| match &event.body {
                EventBody::MessageClosed { message, text, .. } if *message == wanted => Some(text.clone()),
                _ => None,
            })
        })
        .await
    }

    /// Asserts that every message was closed exactly once.
    pub(crate) fn closings(&self) -> usize {
        let memory = self.verbs.memory.lock().unwrap();
        let mut closed: Vec<_> = memory
            .events
            .iter()
            .filter_map(|event| match &event.body {
                EventBody::MessageClosed { message, .. } => Some(*message),
                _ => None,
            })
            .collect();
        let count = closed.len();
        closed.sort_unstable();
        closed.dedup();
        assert_eq!(closed.len(), count, "a message was closed twice");
        count
    }
}

/// The lines of a file of the workspace.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}
