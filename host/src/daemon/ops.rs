//! What each request of the control socket does.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::id::{AgentId, MessageId};
use choir_messages::limits::USER_MESSAGE_BYTES;
use choir_messages::wire::{Signal, SignalAck, SignalRefused};
use choir_persistence::store::inbox::{Accepted, InboxRow};
use choir_persistence::{Store, StoreError};
use choir_supervisors::CallError;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::front::Out;
use super::settings::SettingsMsg;
use super::shared::Host;
use super::{doctor, ledger, streams};
use crate::control::views::{
    AgentView, DatabaseView, MessageLine, PingView, SentView, SessionLine, StatusView, TreeView, VerifyView,
};
use crate::control::{ControlError, ErrorCode, Op};
use crate::limits;
use crate::session::core::Phase;
use crate::session::{AgentHandle, GateMsg, InboxMsg, OutboxMsg, Overrides, ReplicaMsg, SessionMsg};

/// Longest wait for an actor that only looks something up.
const LOOK: Duration = Duration::from_secs(3);

/// Characters of a message's text in a listing.
const EXCERPT: usize = 120;

/// Rows of a listing.
const ROWS: u32 = 1000;

type Answer = Result<Value, ControlError>;

pub(super) async fn run(host: &Arc<Host>, op: Op, out: &Out) -> Answer {
    match op {
        Op::Ping => value(&ping(host)),
        Op::Status => value(&status(host).await),
        Op::AgentStart { agent, fresh, workspace, llm } => {
            let handle = find(host, &agent)?;
            let overrides = Overrides { workspace, llm };
            let start = |reply| SessionMsg::Start { fresh, overrides, reply: Some(reply) };
            operate(&handle, "start", start).await?;
            value(&view(&handle).await?)
        }
        Op::AgentStop { agent } => {
            let handle = find(host, &agent)?;
            operate(&handle, "stop", |reply| SessionMsg::Stop { reply: Some(reply) }).await?;
            value(&view(&handle).await?)
        }
        Op::AgentRestart { agent, fresh } => {
            let handle = find(host, &agent)?;
            operate(&handle, "restart", |reply| SessionMsg::Restart { fresh, reply: Some(reply) }).await?;
            value(&view(&handle).await?)
        }
        Op::AgentList => value(&agents(host).await),
        Op::AgentStatus { agent } => value(&view(&find(host, &agent)?).await?),
        Op::SessionList { agent } => {
            let rows = store(host)?.sessions(agent.as_ref(), ROWS).await.map_err(stored)?;
            let line = |row: choir_persistence::store::sessions::SessionRow| SessionLine {
                session: row.session,
                agent: row.agent,
                status: named(&row.status),
                generation: row.generation,
                revision: row.head.rev,
                started_at: row.started_at,
                ended_at: row.ended_at,
            };
            value(&rows.into_iter().map(line).collect::<Vec<_>>())
        }
        Op::SessionEvents { session, after, follow } => {
            streams::events(host, session, after, follow, out).await
        }
        Op::SessionVerify { session } => {
            let report = store(host)?.verify(session).await.map_err(stored)?;
            value(&VerifyView {
                session,
                verified: report.is_verified(),
                events: report.events,
                head: report.head.hash.to_string(),
                fault: report.fault.map(|fault| format!("revision {}: {}", fault.rev, fault.what)),
            })
        }
        Op::Messages { agent, unanswered } => messages(host, agent.as_ref(), unanswered).await,
        Op::Send { agent, message, text } => send(host, &agent, message, &text).await,
        Op::Chat { agent, redeliver } => streams::chat(&find(host, &agent)?, redeliver, out).await,
        Op::Delivered { agent, outbound } => {
            let handle = find(host, &agent)?;
            let acked = |reply| OutboxMsg::Acked { id: outbound, reply };
            handle.outbox.call(limits::CONTROL_OPERATION, acked).await.map_err(|e| busy(&e))?;
            Ok(Value::Null)
        }
        Op::Tree => value(&tree(host).await),
        Op::Logs { source, lines, follow } => streams::logs(host, &source, lines, follow, out).await,
        Op::Doctor => value(&doctor::checks(host).await),
        Op::SecretApply => change_settings(host, |reply| SettingsMsg::ApplySecrets { reply }).await,
        Op::ConfigReload => {
            change_settings(host, |reply| SettingsMsg::Reload { dry_run: false, reply }).await
        }
        Op::ConfigDiff => change_settings(host, |reply| SettingsMsg::Reload { dry_run: true, reply }).await,
        Op::ActorKill { path } => kill(host, &path).await,
        Op::LedgerRun { task, agent } => ledger::run(host, task, agent, out).await,
        Op::LedgerFollow { trace, after } => ledger::follow(host, &trace, after, out).await,
        Op::LedgerAbort { trace, reason } => ledger::abort(host, trace, reason).await,
        Op::LedgerRuns => ledger::list(host).await,
        Op::Shutdown => {
            host.shutdown.send_replace(Some("asked to by choirctl".into()));
            Ok(Value::Null)
        }
    }
}

pub(super) fn value<T: Serialize>(view: &T) -> Answer {
    serde_json::to_value(view).map_err(|e| ControlError::new(ErrorCode::Internal, e.to_string()))
}

fn named<T: Serialize>(word: &T) -> String {
    serde_json::to_value(word).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn store(host: &Host) -> Result<Store, ControlError> {
    host.store().ok_or_else(|| {
        let why = host.health.borrow().trouble.clone().unwrap_or_else(|| "it is not open".into());
        ControlError::new(ErrorCode::Runtime, format!("the database is not there: {why}"))
            .next("`choirctl doctor`")
    })
}

pub(super) fn stored(error: StoreError) -> ControlError {
    match &error {
        StoreError::UnknownAgent(_) | StoreError::UnknownSession(_) => {
            ControlError::new(ErrorCode::Negative, error.to_string())
                .next("`choirctl session list` shows what there is")
        }
        StoreError::TooLarge { .. } | StoreError::MessageIdReused(_) | StoreError::InboxFull { .. } => {
            ControlError::new(ErrorCode::Refused, error.to_string())
        }
        StoreError::Invalid(_) => ControlError::new(ErrorCode::Usage, error.to_string()),
        StoreError::Corrupt(_) | StoreError::Sql(_) => {
            ControlError::new(ErrorCode::Internal, error.to_string())
        }
        _ => ControlError::new(ErrorCode::Runtime, error.to_string()).next("`choirctl doctor` looks closer"),
    }
}

fn find(host: &Host, agent: &AgentId) -> Result<AgentHandle, ControlError> {
    host.roster.get(agent).ok_or_else(|| {
        let all = host.roster.all();
        let names: Vec<&str> = all.iter().map(|handle| handle.agent.as_str()).collect();
        let near = crate::config::nearest(agent.as_str(), names.iter().copied());
        let hint = near.map(|n| format!("did you mean \"{n}\"? ")).unwrap_or_default();
        let what = format!("there is no agent \"{agent}\"; {hint}{}", crate::config::known_list(names));
        ControlError::new(ErrorCode::Usage, what)
            .next("agents are defined in config.json; `choirctl config reload` reads it again")
    })
}

fn busy(error: &impl ToString) -> ControlError {
    ControlError::new(
        ErrorCode::Runtime,
        format!("the agent's session cannot take this now: {}", error.to_string()),
    )
}

/// Asks the session for something that takes until the agent is up, stopped or given up.
async fn operate(
    handle: &AgentHandle,
    what: &str,
    make: impl FnOnce(choir_supervisors::ReplyTo<Result<(), ControlError>>) -> SessionMsg,
) -> Result<(), ControlError> {
    match handle.session.call(limits::CONTROL_OPERATION, make).await {
        Ok(result) => result,
        Err(CallError::Deadline) => {
            let agent = &handle.agent;
            let now = view(handle).await.ok();
            let state = now.as_ref().map_or("unknown", |view| view.state.as_str()).to_owned();
            let trouble = now.and_then(|view| view.trouble).map(|t| format!(": {t}")).unwrap_or_default();
            let seconds = limits::CONTROL_OPERATION.as_secs();
            let text =
                format!("the {what} of \"{agent}\" is not done after {seconds} s; it is {state}{trouble}");
            Err(ControlError::new(ErrorCode::Runtime, text)
                .next(format!("`choirctl agent status {agent}` shows how it goes on")))
        }
        Err(error) => Err(busy(&error)),
    }
}

fn ping(host: &Host) -> PingView {
    PingView {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        uptime_ms: u64::try_from(host.now().as_millis()).unwrap_or(u64::MAX),
    }
}

async fn status(host: &Arc<Host>) -> StatusView {
    let health = host.health.borrow().clone();
    let sandbox = host.sandbox.borrow().clone();
    let settings = host.settings();
    let mut warnings = host.warnings.clone();
    warnings.extend(sandbox.warning.clone());
    warnings.extend(settings.secrets.missing(&settings.config).iter().map(ToString::to_string));
    let disks = super::disk::disks(&host.state, Some(&settings.config));
    warnings.extend(disks.iter().filter_map(super::disk::Disk::warning));
    StatusView {
        choird: ping(host),
        config_version: settings.version,
        database: DatabaseView {
            kind: if host.cluster.is_some() { "embedded".into() } else { "external".into() },
            up: health.up,
            trouble: health.trouble,
        },
        sandbox: sandbox.sandbox.name().into(),
        isolates: sandbox.sandbox.isolates(),
        warnings,
        agents: agents(host).await,
    }
}

async fn agents(host: &Host) -> Vec<AgentView> {
    let mut views = Vec::new();
    for handle in host.roster.all() {
        if let Ok(view) = view(&handle).await {
            views.push(view);
        }
    }
    views
}

pub(super) async fn view(handle: &AgentHandle) -> Result<AgentView, ControlError> {
    let session =
        handle.session.call(LOOK, |reply| SessionMsg::View { reply }).await.map_err(|e| busy(&e))?;
    let replica = handle.replica.call(LOOK, |reply| ReplicaMsg::View { reply }).await.unwrap_or_default();
    let waiting = handle.inbox.call(LOOK, |reply| InboxMsg::Waiting { reply }).await.unwrap_or_default();
    let attached = handle.outbox.call(LOOK, |reply| OutboxMsg::Attached { reply }).await.unwrap_or_default();
    let running = session.pid.is_some();
    let state = match &session.phase {
        Phase::Stopped => "stopped",
        Phase::Opening => "opening",
        Phase::Starting => "starting",
        Phase::Up => "up",
        Phase::Stopping => "stopping",
        Phase::Killing => "killing",
        Phase::Closing => "closing",
        Phase::BackingOff => "backing_off",
        Phase::Failed { .. } => "failed",
    };
    Ok(AgentView {
        agent: handle.agent.clone(),
        state: state.into(),
        trouble: session.trouble,
        session: session.session,
        generation: session.generation,
        pid: session.pid,
        agent_pid: session.agent_pid,
        sandbox: session.sandbox.map(str::to_owned),
        restarts: session.restarts,
        revision: replica.durable,
        newest: replica.newest,
        config_version: replica.config_version,
        silent_ms: replica
            .silent
            .filter(|_| running)
            .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
        waiting,
        attached,
        lanes: replica.lanes,
        bindings: session.bindings,
    })
}

async fn messages(host: &Host, agent: Option<&AgentId>, unanswered: bool) -> Answer {
    let store = store(host)?;
    let mut rows: Vec<InboxRow> = Vec::new();
    if unanswered {
        let agents = match agent {
            Some(agent) => vec![agent.clone()],
            None => store.agents().await.map_err(stored)?.into_iter().map(|row| row.agent).collect(),
        };
        for agent in &agents {
            rows.extend(store.unanswered(agent).await.map_err(stored)?);
        }
    } else {
        rows = store.inbox(agent, ROWS).await.map_err(stored)?;
    }
    let line = |row: InboxRow| MessageLine {
        message: row.message,
        agent: row.agent,
        received_at: row.received_at,
        state: match (row.outcome, row.recorded) {
            (Some(outcome), _) => named(&outcome),
            (None, Some(_)) => "taken".into(),
            (None, None) => "waiting".into(),
        },
        text: row.text.chars().take(EXCERPT).collect(),
    };
    value(&rows.into_iter().map(line).collect::<Vec<_>>())
}

async fn send(host: &Host, agent: &AgentId, message: MessageId, text: &str) -> Answer {
    let handle = find(host, agent)?;
    if text.len() > USER_MESSAGE_BYTES {
        let what =
            format!("the message has {} bytes; an agent takes at most {USER_MESSAGE_BYTES}", text.len());
        return Err(ControlError::new(ErrorCode::Refused, what)
            .next("put the text into a file of the agent's workspace and name the file"));
    }
    if text.trim().is_empty() {
        return Err(ControlError::new(ErrorCode::Usage, "the message is empty"));
    }
    // Whether it is the root of the message's trace, or a repeat, shows only once the message is stored; what is done
    // meanwhile is a child of the root either way.
    let span = tracing::info_span!(parent: None, "user_message", %message, %agent, otel.kind = "producer");
    let storing = tracing::info_span!(parent: None, "store_message", %message, %agent);
    crate::telemetry::continue_trace(&storing, message);
    let accepted = async {
        let store = store(host)?;
        store.register_agent(agent).await.map_err(stored)?;
        store.accept_message(agent, message, crate::session::SOURCE, text).await.map_err(stored)
    }
    .instrument(storing)
    .await;
    match &accepted {
        Ok(Accepted::New) => crate::telemetry::begin_trace(&span, message),
        Ok(Accepted::Repeat { .. }) | Err(_) => crate::telemetry::continue_trace(&span, message),
    }
    let (repeat, outcome) = match accepted? {
        Accepted::New => (false, None),
        Accepted::Repeat { outcome } => (true, outcome),
    };
    let _ = handle.inbox.try_send(InboxMsg::Changed);
    value(&SentView { message, repeat, outcome })
}

async fn tree(host: &Host) -> TreeView {
    let own = host.tree.get().and_then(|tree| serde_json::to_value(tree.snapshot()).ok());
    let mut agents = std::collections::BTreeMap::new();
    for handle in host.roster.all() {
        if let Ok(view) = handle.replica.call(LOOK, |reply| ReplicaMsg::View { reply }).await
            && let Some(tree) = view.tree
        {
            agents.insert(handle.agent.to_string(), tree);
        }
    }
    TreeView { choird: own.unwrap_or_default(), agents }
}

async fn change_settings(
    host: &Host,
    make: impl FnOnce(
        choir_supervisors::ReplyTo<Result<crate::control::views::AppliedView, ControlError>>,
    ) -> SettingsMsg,
) -> Answer {
    let asked = host.settings_actor.call(limits::CONTROL_OPERATION, make).await;
    value(&asked.map_err(|e| ControlError::new(ErrorCode::Runtime, e.to_string()))??)
}

async fn kill(host: &Host, path: &str) -> Answer {
    let none = || {
        ControlError::new(ErrorCode::Negative, format!("there is no running actor at \"{path}\""))
            .next("`choirctl tree` shows the paths")
    };
    if path == "choird" || path.starts_with("choird/") {
        let killed = host.tree.get().is_some_and(|tree| tree.kill(path));
        return if killed { Ok(json!({ "killed": path })) } else { Err(none()) };
    }
    let (first, rest) = path.split_once('/').ok_or_else(none)?;
    let agent = first.parse::<AgentId>().ok().and_then(|agent| host.roster.get(&agent)).ok_or_else(none)?;
    let signal = Signal::KillActor { path: rest.to_owned() };
    let asked = agent.gate.call(limits::CONTROL_OPERATION, |reply| GateMsg::Ask { signal, reply }).await;
    match asked.map_err(|e| busy(&e))? {
        Ok(SignalAck::Noted | SignalAck::Recorded { .. }) => Ok(json!({ "killed": path })),
        Ok(SignalAck::Refused(SignalRefused::NoSuchActor)) => Err(none()),
        Ok(SignalAck::Refused(refused)) => Err(ControlError::new(ErrorCode::Runtime, refused.to_string())),
        Err(error) => {
            let what = format!("agent \"{}\" cannot be reached: {error}", agent.agent);
            Err(ControlError::new(ErrorCode::Runtime, what))
        }
    }
}
