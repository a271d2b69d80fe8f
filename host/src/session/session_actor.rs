//! The session as an actor: feeds the rules of [`super::core`] and carries their actions out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use choir_messages::reply::ReplyTo;
use choir_messages::wire::Signal;
use choir_persistence::store::agents::Desired;
use choir_persistence::store::sessions::{Binding, SessionRow};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};

use super::Grant;
use super::alarm::Alarm;
use super::core::{Action, Attempt, Input, Phase, SessionCore};
use super::gate::GateMsg;
use super::launch::{self, Prepared};
use super::parts::Shared;
use super::sandbox::{SandboxMsg, Started};
use super::session_mail::{Overrides, SessionMsg, SessionView, Waiter};
use crate::config::Agent;
use crate::control::{ControlError, ErrorCode};
use crate::daemon::{LeaseError, LeasesMsg};

/// Longest wait for the leases actor: a store's own deadlines, with room.
const LEASES: Duration = Duration::from_secs(20);

/// Longest wait for a neighbour.
const NEIGHBOUR: Duration = Duration::from_secs(30);

struct SessionActor {
    shared: Arc<Shared>,
    core: SessionCore,
    overrides: Overrides,
    row: Option<SessionRow>,
    grant: Option<Arc<Grant>>,
    started: Option<Started>,
    /// When it was seen to have crashed, until it is up again.
    crashed_at: Option<super::Now>,
    to_start: Vec<Waiter>,
    to_stop: Vec<Waiter>,
    to_quit: Vec<ReplyTo<()>>,
    /// A wish being written down, and the one after it: they must reach the store in order.
    remembering: bool,
    remember_next: Option<bool>,
    /// Whether the last opening was refused by a rule, rather than failed.
    refused: bool,
    alarm: Alarm,
}

pub(super) fn child_spec(slot: Slot<SessionMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let shared = Arc::clone(&shared);
        async move {
            // Whatever an incarnation before left: its sandbox ends, its link closes, its lease is taken back. Only
            // then may anything start.
            shared.gate.call(NEIGHBOUR, |reply| GateMsg::CloseAll { reply }).await?;
            shared.sandbox.call(NEIGHBOUR, |reply| SandboxMsg::KillAll { reply }).await?;
            let agent = shared.agent.clone();
            let reclaimed = shared.leases.call(LEASES, |reply| LeasesMsg::Reclaim { agent, reply }).await?;
            reclaimed?;
            let core = SessionCore::after(shared.attempts.load(Ordering::Acquire));
            Ok(SessionActor {
                shared,
                core,
                overrides: Overrides::default(),
                row: None,
                grant: None,
                started: None,
                crashed_at: None,
                to_start: Vec::new(),
                to_stop: Vec::new(),
                to_quit: Vec::new(),
                remembering: false,
                remember_next: None,
                refused: false,
                alarm: Alarm::default(),
            })
        }
    })
}

impl Actor for SessionActor {
    type Msg = SessionMsg;

    async fn started(&mut self, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        if self.wanted().await? {
            self.step(Input::Start { fresh: false }, cx).await?;
        }
        Ok(())
    }

    async fn handle(&mut self, msg: SessionMsg, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        let input = match msg {
            SessionMsg::Start { fresh, overrides, reply } => {
                if let Err(error) = self.check(&overrides) {
                    if let Some(reply) = reply {
                        reply.send(Err(error));
                    }
                    return Ok(());
                }
                if !matches!(self.core.phase(), Phase::Up) {
                    self.overrides = overrides;
                }
                if self.core.phase() == Phase::Stopped {
                    self.archive_log();
                }
                self.to_start.extend(reply);
                Input::Start { fresh }
            }
            SessionMsg::Stop { reply } => {
                self.to_stop.extend(reply);
                Input::Stop
            }
            SessionMsg::Restart { fresh, reply } => {
                self.to_start.extend(reply);
                // The agent is up until it is down: without this the waiter would be answered at once.
                let actions = self.core.step(Input::Restart { fresh }, self.shared.host.now());
                self.carry_out(actions, cx).await?;
                return self.arm(cx);
            }
            SessionMsg::Quit { reply } => {
                self.to_quit.push(reply);
                Input::Quit
            }
            SessionMsg::Opened(Ok(row)) => {
                self.refused = false;
                self.row = Some(*row);
                Input::Opened
            }
            SessionMsg::Opened(Err(LeaseError::Refused(reason))) => {
                self.refused = true;
                Input::OpenRefused { reason }
            }
            SessionMsg::Opened(Err(LeaseError::Unavailable(reason))) => Input::OpenFailed { reason },
            SessionMsg::Closed(Ok(())) => {
                self.grant = None;
                Input::Closed
            }
            SessionMsg::Closed(Err(error)) => Input::CloseFailed { reason: error.to_string() },
            SessionMsg::Launched { attempt, result: Ok(started) } => {
                let pid = started.pid;
                if attempt == self.core.attempt() {
                    self.started = Some(started);
                }
                Input::Launched { attempt, pid }
            }
            SessionMsg::Launched { attempt, result: Err(reason) } => Input::LaunchFailed { attempt, reason },
            SessionMsg::Gone { attempt, how } => {
                if attempt == self.core.attempt() {
                    self.started = None;
                }
                Input::Gone { attempt, how }
            }
            SessionMsg::LinkUp { attempt } => Input::LinkUp { attempt },
            SessionMsg::LinkDown { attempt, reason, for_good } => {
                Input::LinkDown { attempt, reason, for_good }
            }
            SessionMsg::Ready { attempt } => Input::Ready { attempt },
            SessionMsg::Leaving { attempt, reason } => Input::Leaving { attempt, reason },
            SessionMsg::Progress { attempt } => Input::Progress { attempt },
            SessionMsg::Silent { attempt, silent } => Input::Silent { attempt, silent },
            SessionMsg::Remembered(result) => {
                if let Err(why) = result {
                    tracing::error!(agent = %self.shared.agent, why, "the agent's desired state could not be written down");
                }
                self.remembering = false;
                if let Some(wanted) = self.remember_next.take() {
                    self.remember(wanted, cx)?;
                }
                return Ok(());
            }
            SessionMsg::View { reply } => {
                reply.send(self.view().await);
                return Ok(());
            }
            SessionMsg::Tick => {
                self.alarm.rang();
                Input::Tick
            }
        };
        self.step(input, cx).await
    }
}

impl SessionActor {
    async fn step(&mut self, input: Input, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        let actions = self.core.step(input, self.shared.host.now());
        self.carry_out(actions, cx).await?;
        self.measure_recovery();
        self.answer_waiters();
        self.arm(cx)
    }

    fn arm(&mut self, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        let now = self.shared.host.now();
        self.alarm.set(self.core.deadline(), now, cx, || SessionMsg::Tick)?;
        Ok(())
    }

    /// Whether the agent should run: an operator's wish, or the configuration's where there never was one.
    async fn wanted(&self) -> Result<bool, Failure> {
        let store = self.shared.host.store().ok_or_else(|| Failure::new("the database is not open"))?;
        let known = store.agents().await?.into_iter().find(|row| row.agent == self.shared.agent);
        let autostart = self.configured().is_some_and(|agent| agent.autostart);
        Ok(known.map_or(autostart, |row| row.desired == Desired::Running))
    }

    fn configured(&self) -> Option<Agent> {
        self.shared.host.settings().config.agents.get(&self.shared.agent).cloned()
    }

    fn check(&self, overrides: &Overrides) -> Result<(), ControlError> {
        let settings = self.shared.host.settings();
        let config = &settings.config;
        if let Some(name) = &overrides.workspace
            && !config.workspaces.contains_key(name)
        {
            let known = crate::config::known_list(config.workspaces.keys().map(String::as_str));
            return Err(ControlError::new(
                ErrorCode::Usage,
                format!("no workspace named \"{name}\"; {known}"),
            ));
        }
        if let Some(name) = &overrides.llm
            && !config.models.contains_key(name)
        {
            let known = crate::config::known_list(config.models.keys().map(String::as_str));
            return Err(ControlError::new(ErrorCode::Usage, format!("no model named \"{name}\"; {known}")));
        }
        Ok(())
    }

    async fn carry_out(&mut self, actions: Vec<Action>, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        for action in actions {
            match action {
                Action::Remember { wanted } => self.remember(wanted, cx)?,
                Action::Open { fresh } => self.open(fresh, cx)?,
                Action::Launch { attempt } => self.launch(attempt, cx)?,
                Action::AskToLeave { attempt, within } => {
                    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
                    let signal = Signal::ShutDown { within_ms };
                    self.shared.gate.send(GateMsg::Signal { attempt, signal }).await?;
                }
                Action::Kill { attempt, why } => {
                    tracing::info!(agent = %self.shared.agent, attempt, why, "ending the sandbox");
                    self.shared.gate.send(GateMsg::Close { attempt }).await?;
                    self.shared.sandbox.send(SandboxMsg::Kill { attempt }).await?;
                }
                Action::Close { crashed } => {
                    if crashed.is_some() {
                        self.crashed_at.get_or_insert(self.shared.host.now());
                    }
                    self.close(crashed.is_some(), cx)?;
                }
                Action::Report { bad: true, text } => tracing::warn!(agent = %self.shared.agent, "{text}"),
                Action::Report { bad: false, text } => tracing::info!(agent = %self.shared.agent, "{text}"),
            }
        }
        Ok(())
    }

    fn remember(&mut self, wanted: bool, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        if self.remembering {
            self.remember_next = Some(wanted);
            return Ok(());
        }
        self.remembering = true;
        let (store, agent) = (self.shared.host.store(), self.shared.agent.clone());
        let desired = if wanted { Desired::Running } else { Desired::Stopped };
        let write = async move {
            let Some(store) = store else { return Err("the database is not open".to_owned()) };
            store.register_agent(&agent).await.map_err(|e| e.to_string())?;
            store.set_desired(&agent, desired).await.map_err(|e| e.to_string())
        };
        cx.pipe_to_self(write, SessionMsg::Remembered)?;
        Ok(())
    }

    fn open(&self, fresh: bool, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        let Some(agent) = self.configured() else {
            let why = format!("config.json has no agent \"{}\" any more", self.shared.agent);
            cx.pipe_to_self(std::future::ready(why), |why| {
                SessionMsg::Opened(Err(LeaseError::Refused(why)))
            })?;
            return Ok(());
        };
        let mut bindings = vec![
            Binding {
                kind: "workspace".into(),
                name: self.overrides.workspace.clone().unwrap_or(agent.workspace),
                exclusive: true,
            },
            Binding {
                kind: "llm".into(),
                name: self.overrides.llm.clone().unwrap_or(agent.llm),
                exclusive: false,
            },
        ];
        let others = agent.other_exclusive.into_iter();
        bindings.extend(others.map(|(kind, name)| Binding { kind, name, exclusive: true }));
        let (leases, agent) = (self.shared.leases.clone(), self.shared.agent.clone());
        let open = async move {
            let asked = leases.call(LEASES, |reply| LeasesMsg::Open { agent, bindings, fresh, reply }).await;
            asked.unwrap_or_else(|error| Err(LeaseError::Unavailable(error.to_string())))
        };
        cx.pipe_to_self(open, |opened| SessionMsg::Opened(opened.map(Box::new)))?;
        Ok(())
    }

    fn close(&self, crashed: bool, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        let Some((session, generation)) = self.row.as_ref().map(|row| (row.session, row.generation)) else {
            cx.pipe_to_self(std::future::ready(()), |()| SessionMsg::Closed(Ok(())))?;
            return Ok(());
        };
        let leases = self.shared.leases.clone();
        let close = async move {
            let message = |reply| LeasesMsg::Close { session, generation, crashed, reply };
            let asked = leases.call(LEASES, message).await;
            asked.unwrap_or_else(|error| Err(LeaseError::Unavailable(error.to_string())))
        };
        cx.pipe_to_self(close, SessionMsg::Closed)?;
        Ok(())
    }

    fn launch(&mut self, attempt: Attempt, cx: &mut Context<SessionMsg>) -> Result<(), Failure> {
        self.shared.attempts.store(attempt, Ordering::Release);
        let row = self.row.as_ref().ok_or_else(|| "the session is not open".to_owned());
        let prepared = row.and_then(|row| launch::prepare(&self.shared, row, attempt));
        if let Ok(prepared) = &prepared {
            self.grant = Some(Arc::clone(&prepared.grant));
        }
        let shared = Arc::clone(&self.shared);
        let launch = async move {
            let Prepared { grant, secret, specify } = prepared?;
            let open = |reply| GateMsg::Open { grant, secret, reply };
            let listening = shared.gate.call(NEIGHBOUR, open).await.map_err(|e| e.to_string())??;
            let spec = specify(listening)?;
            let start = |reply| SandboxMsg::Start { attempt, spec: Box::new(spec), reply };
            shared.sandbox.call(NEIGHBOUR, start).await.map_err(|e| e.to_string())?
        };
        cx.pipe_to_self(launch, move |result| SessionMsg::Launched { attempt, result })?;
        Ok(())
    }

    fn measure_recovery(&mut self) {
        match self.core.phase() {
            Phase::Up => {
                if let Some(crashed_at) = self.crashed_at.take() {
                    let host = &self.shared.host;
                    host.metrics.recovered(host.now().saturating_sub(crashed_at));
                }
            }
            Phase::Stopped | Phase::Failed { .. } => self.crashed_at = None,
            _ => {}
        }
    }

    /// Puts the log of a life that ended in order aside (`choir §22.2`). Not at its end, so that it can be read until
    /// the next begins.
    fn archive_log(&self) {
        let agent = self.shared.agent.as_str();
        let (log, archive) = (
            self.shared.host.state.log_file(agent),
            self.shared.host.state.logs().join("archive").join(agent),
        );
        if log.exists()
            && let Err(error) = choir_telemetry::move_to_archive(&log, &archive)
        {
            tracing::warn!(agent, %error, "the agent's log could not be archived");
        }
    }

    fn answer_waiters(&mut self) {
        let agent = &self.shared.agent;
        match self.core.phase() {
            Phase::Up => self.to_start.drain(..).for_each(|waiter| waiter.send(Ok(()))),
            Phase::Failed { why } => {
                let code = if self.refused { ErrorCode::Refused } else { ErrorCode::Runtime };
                let error =
                    ControlError::new(code, format!("agent \"{agent}\" did not start: {why}")).next(format!(
                        "`choirctl logs {agent}` shows what it said; then `choirctl agent start {agent}`"
                    ));
                self.to_start.drain(..).for_each(|waiter| waiter.send(Err(error.clone())));
                self.to_stop.drain(..).for_each(|waiter| waiter.send(Ok(())));
                self.to_quit.drain(..).for_each(|waiter| waiter.send(()));
            }
            Phase::Stopped => {
                let error = ControlError::new(
                    ErrorCode::Negative,
                    format!("agent \"{agent}\" was stopped meanwhile"),
                );
                self.to_start.drain(..).for_each(|waiter| waiter.send(Err(error.clone())));
                self.to_stop.drain(..).for_each(|waiter| waiter.send(Ok(())));
                self.to_quit.drain(..).for_each(|waiter| waiter.send(()));
            }
            _ => {}
        }
    }

    async fn view(&self) -> SessionView {
        let agent_pid = match &self.started {
            None => None,
            Some(_) => {
                let asked =
                    self.shared.sandbox.call(Duration::from_secs(1), |reply| SandboxMsg::AgentPid { reply });
                asked.await.ok().flatten()
            }
        };
        SessionView {
            phase: self.core.phase(),
            trouble: self.core.trouble().map(str::to_owned),
            restarts: self.core.restarts(),
            session: self.row.as_ref().map(|row| row.session),
            generation: self.row.as_ref().map(|row| row.generation),
            pid: self.started.as_ref().map(|s| s.pid),
            agent_pid,
            sandbox: self.started.as_ref().map(|s| s.sandbox),
            bindings: self.grant.as_ref().map(|grant| grant.bindings.clone()).unwrap_or_default(),
        }
    }
}
