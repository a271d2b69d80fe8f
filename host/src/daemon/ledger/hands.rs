//! Tools of a run: asked for over the agent's own link, run in its sandbox under its locks, and answered by its
//! replicated log. choird itself never runs one.

use std::sync::Arc;
use std::time::Duration;

use choir_ledger_roles::hands::{Hands, HandsCall};
use choir_messages::event::{EventBody, Revision};
use choir_messages::id::{AgentId, InvocationId, JobName, SessionId};
use choir_messages::tool::{ToolOutcome, ToolStatus};
use choir_messages::wire::{BoxFuture, Signal, SignalAck, SignalRefused};
use choir_persistence::store::changes::{ChangeKind, Changes};
use tokio::time::Instant;

use crate::control::{ControlError, ErrorCode};
use crate::daemon::Host;
use crate::limits;
use crate::session::core::Phase;
use crate::session::{AgentHandle, GateMsg, Overrides, ReplicaMsg, SessionMsg};

/// How often the agent is asked again for a call without a result: a repeat is harmless, and it is what takes up a call
/// that a crash of the agent left open.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Longest wait for an actor that only looks something up.
const LOOK: Duration = Duration::from_secs(3);

/// Pause after something could not be asked.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an agent may be away before a call is given up: several restarts with their back-off.
const AWAY: Duration = Duration::from_secs(180);

/// Events read at a time.
const PAGE: u32 = 200;

/// The hands of all runs.
pub(super) struct AgentHands {
    pub(super) host: Arc<Host>,
    pub(super) job: JobName,
}

impl Hands for AgentHands {
    fn place(&self, agent: AgentId) -> BoxFuture<'static, Result<(String, u64), String>> {
        let host = Arc::clone(&self.host);
        Box::pin(async move {
            let (session, revision) = place(&host, &agent).await.map_err(|error| error.what)?;
            Ok((session.to_string(), revision))
        })
    }

    fn run(&self, call: HandsCall) -> BoxFuture<'static, ToolOutcome> {
        let (host, job) = (Arc::clone(&self.host), self.job.clone());
        Box::pin(async move {
            match run(&host, job, &call).await {
                Ok(outcome) => outcome,
                Err(unknown) => ToolOutcome::says(ToolStatus::OutcomeUnknown, &unknown),
            }
        })
    }

    fn stop(&self, agent: AgentId, invocation: InvocationId) -> BoxFuture<'static, ()> {
        let host = Arc::clone(&self.host);
        Box::pin(async move {
            if let Some(handle) = host.roster.get(&agent) {
                let signal = Signal::StopTool { invocation };
                let _ =
                    handle.gate.call(limits::CONTROL_OPERATION, |reply| GateMsg::Ask { signal, reply }).await;
            }
        })
    }
}

fn find(host: &Host, agent: &AgentId) -> Result<AgentHandle, ControlError> {
    host.roster.get(agent).ok_or_else(|| {
        ControlError::new(ErrorCode::Usage, format!("there is no agent \"{agent}\" in config.json any more"))
    })
}

fn busy(error: impl ToString) -> ControlError {
    ControlError::new(ErrorCode::Runtime, error.to_string())
}

/// Starts the agent if it is not up; its session, and how far its log is durable.
async fn place(host: &Host, agent: &AgentId) -> Result<(SessionId, Revision), ControlError> {
    let handle = find(host, agent)?;
    if current(&handle).await?.is_none() {
        let overrides = Overrides::default();
        let start = |reply| SessionMsg::Start { fresh: false, overrides, reply: Some(reply) };
        handle.session.call(limits::CONTROL_OPERATION, start).await.map_err(busy)??;
    }
    let session = current(&handle).await?;
    let session = session.ok_or_else(|| busy(format!("agent \"{agent}\" went down again")))?;
    let replica = handle.replica.call(LOOK, |reply| ReplicaMsg::View { reply }).await.map_err(busy)?;
    Ok((session, replica.durable))
}

/// The agent's session, if it is up.
async fn current(handle: &AgentHandle) -> Result<Option<SessionId>, ControlError> {
    let view = handle.session.call(LOOK, |reply| SessionMsg::View { reply }).await.map_err(busy)?;
    Ok(view.session.filter(|_| view.phase == Phase::Up))
}

/// The error is why the outcome is not known.
async fn run(host: &Host, job: JobName, call: &HandsCall) -> Result<ToolOutcome, String> {
    let Some((session, after)) = &call.place else {
        return Err("where the call was to run is not in the trace".to_owned());
    };
    let session: SessionId =
        session.parse().map_err(|_| "the trace names no session of this Choir".to_owned())?;
    let mut search = Search { host, session, at: *after, invocation: call.invocation };
    let mut changes: Option<Changes> = None;
    let mut reached = Instant::now();
    let mut ask_at = Instant::now();
    loop {
        // The subscription comes before the look, so that nothing falls between them.
        if changes.is_none() {
            changes = host.store().map(|store| store.changes());
        }
        if let Some(outcome) = search.look().await {
            return Ok(outcome);
        }
        if Instant::now() < ask_at {
            wait_for_news(&mut changes, session, ask_at).await;
            continue;
        }
        match ask(host, &job, call, session).await {
            Asked::Recorded => {
                reached = Instant::now();
                ask_at = reached + ASK_AGAIN;
            }
            Asked::OtherSession => {
                // What the session left is in its log, all of it: nothing of it can follow.
                return match search.look().await {
                    Some(outcome) => Ok(outcome),
                    None => Err("the agent's session was ended before the call had a result".to_owned()),
                };
            }
            Asked::Refused(why) => return Ok(ToolOutcome::says(ToolStatus::Refused, &why)),
            Asked::NotNow(why) if reached.elapsed() > AWAY => {
                return Err(format!("the agent could not be reached for {AWAY:?}: {why}"));
            }
            Asked::NotNow(why) => {
                tracing::debug!(agent = %call.agent, why, "a call could not be asked for yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Waits for events of the session to become durable, or for the time to ask again.
async fn wait_for_news(changes: &mut Option<Changes>, session: SessionId, until: Instant) {
    let Some(stream) = changes else { return tokio::time::sleep_until(until).await };
    let news = async {
        loop {
            match stream.next().await {
                Ok(change) if matches!(change.kind, ChangeKind::Journal { session: s, .. } if s == session) =>
                {
                    return true;
                }
                Ok(_) => {}
                // Missed some, or the store was closed: look, and subscribe anew.
                Err(_) => return false,
            }
        }
    };
    if tokio::time::timeout_at(until, news).await == Ok(false) {
        *changes = None;
    }
}

/// What the agent said to the request.
enum Asked {
    /// It is in its log.
    Recorded,
    /// Another session has begun.
    OtherSession,
    /// It will not run.
    Refused(String),
    /// Not now.
    NotNow(String),
}

async fn ask(host: &Host, job: &JobName, call: &HandsCall, session: SessionId) -> Asked {
    let Some(handle) = host.roster.get(&call.agent) else { return Asked::NotNow("it is gone".to_owned()) };
    // An agent that crashed is started again by its own session; one that was stopped stays so.
    match current(&handle).await {
        Ok(Some(now)) if now == session => {}
        Ok(Some(_)) => return Asked::OtherSession,
        Ok(None) => return Asked::NotNow("it is not up".to_owned()),
        Err(error) => return Asked::NotNow(error.what),
    }
    let signal = Signal::RunTool {
        invocation: call.invocation,
        job: job.clone(),
        tool: call.tool.clone(),
        arguments: call.input.clone(),
    };
    let asked = handle.gate.call(limits::CONTROL_OPERATION, |reply| GateMsg::Ask { signal, reply }).await;
    match asked {
        Ok(Ok(SignalAck::Recorded { .. } | SignalAck::Noted)) => Asked::Recorded,
        Ok(Ok(SignalAck::Refused(
            refused @ (SignalRefused::Budget { .. } | SignalRefused::TooLarge { .. }),
        ))) => Asked::Refused(refused.to_string()),
        Ok(Ok(SignalAck::Refused(refused))) => Asked::NotNow(refused.to_string()),
        Ok(Err(error)) => Asked::NotNow(error.to_string()),
        Err(error) => Asked::NotNow(error.to_string()),
    }
}

/// Reads a session's log on until a call's result is there.
struct Search<'a> {
    host: &'a Host,
    session: SessionId,
    at: Revision,
    invocation: InvocationId,
}

impl Search<'_> {
    async fn look(&mut self) -> Option<ToolOutcome> {
        let store = self.host.store()?;
        loop {
            let page = store.events(self.session, self.at, PAGE).await.ok()?;
            let last = page.last()?.event.rev;
            for stored in page {
                if let EventBody::ToolResultCommitted { invocation, outcome } = stored.event.body
                    && invocation == self.invocation
                {
                    return Some(outcome);
                }
            }
            self.at = last;
        }
    }
}
