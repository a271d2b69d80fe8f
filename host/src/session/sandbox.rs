//! The sandbox as an actor: starts one agent process, waits for its end, kills it. Whatever happens to this actor, no
//! process is lost sight of: its successor makes sure that it is gone before anything else.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_sandbox::{KILL_DEADLINE, ProcessIdentity, Running, SandboxError, SandboxSpec, kill_orphan};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};

use super::core::Attempt;
use super::parts::Shared;
use super::session_mail::SessionMsg;

/// Longest handling of one message: a start under its own deadline, with room.
const STUCK: Duration = Duration::from_secs(60);

/// What is told of a started sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Started {
    pub(crate) pid: u32,
    pub(crate) sandbox: &'static str,
}

/// What the sandbox actor is told.
pub(crate) enum SandboxMsg {
    /// Start an agent.
    Start { attempt: Attempt, spec: Box<SandboxSpec>, reply: ReplyTo<Result<Started, String>> },
    /// Kill it. Its end is told to the session as always.
    Kill { attempt: Attempt },
    /// Kill whatever runs; answered once nothing does.
    KillAll { reply: ReplyTo<()> },
    /// It ended.
    Ended { attempt: Attempt, how: String },
    /// Which process is the agent's own.
    AgentPid { reply: ReplyTo<Option<u32>> },
}

impl Mail for SandboxMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Kill { .. } => "kill",
            Self::KillAll { .. } => "kill_all",
            Self::Ended { .. } => "ended",
            Self::AgentPid { .. } => "agent_pid",
        }
    }
}

struct SandboxActor {
    shared: Arc<Shared>,
    running: Option<(Attempt, Arc<dyn Running>)>,
    waiters: Vec<ReplyTo<()>>,
}

/// The process that runs now, if any.
pub(super) fn running(shared: &Shared) -> Option<(Attempt, ProcessIdentity)> {
    shared.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn note(shared: &Shared, process: Option<(Attempt, ProcessIdentity)>) {
    *shared.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
}

pub(super) fn child_spec(slot: Slot<SandboxMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let shared = Arc::clone(&shared);
        async move {
            if let Some((attempt, identity)) = running(&shared) {
                match kill_orphan(&identity, KILL_DEADLINE).await {
                    Ok(()) | Err(SandboxError::Gone | SandboxError::NotTheSame { .. }) => {}
                    Err(error) => return Err(Failure::from(error)),
                }
                note(&shared, None);
                let how = "killed, because its keeper was restarted".to_owned();
                shared.session.send(SessionMsg::Gone { attempt, how }).await?;
            }
            Ok(SandboxActor { shared, running: None, waiters: Vec::new() })
        }
    })
    .stuck_after(STUCK)
}

impl Actor for SandboxActor {
    type Msg = SandboxMsg;

    async fn handle(&mut self, msg: SandboxMsg, cx: &mut Context<SandboxMsg>) -> Result<(), Failure> {
        match msg {
            SandboxMsg::Start { attempt, spec, reply } => {
                if self.running.is_some() || reply.is_abandoned() {
                    reply.send(Err("another sandbox of this agent still runs".into()));
                    return Ok(());
                }
                reply.send(self.start(attempt, *spec, cx).await);
            }
            SandboxMsg::Kill { attempt } => match &self.running {
                Some((current, running)) if *current == attempt => {
                    let running = Arc::clone(running);
                    // The end itself is told by the pipe that waits for it.
                    tokio::spawn(async move {
                        if let Err(error) = running.kill().await {
                            tracing::error!(%error, "a sandbox could not be killed");
                        }
                    });
                }
                _ => self.tell_gone(attempt, "it was not running".into()).await?,
            },
            SandboxMsg::KillAll { reply } => match &self.running {
                None => reply.send(()),
                Some((_, running)) => {
                    let running = Arc::clone(running);
                    self.waiters.push(reply);
                    tokio::spawn(async move { running.kill().await.map(|_| ()).ok() });
                }
            },
            SandboxMsg::Ended { attempt, how } => {
                if self.running.as_ref().is_some_and(|(current, _)| *current == attempt) {
                    self.running = None;
                    note(&self.shared, None);
                    for waiter in self.waiters.drain(..) {
                        waiter.send(());
                    }
                    self.tell_gone(attempt, how).await?;
                }
            }
            SandboxMsg::AgentPid { reply } => {
                reply.send(self.running.as_ref().and_then(|(_, running)| running.agent_pid()));
            }
        }
        Ok(())
    }

    async fn stopping(&mut self, _cx: &mut Context<SandboxMsg>) {
        if let Some((_, running)) = self.running.take() {
            if let Err(error) = running.kill().await {
                tracing::error!(%error, "a sandbox could not be killed");
            }
            note(&self.shared, None);
        }
    }
}

impl SandboxActor {
    async fn start(
        &mut self,
        attempt: Attempt,
        spec: SandboxSpec,
        cx: &mut Context<SandboxMsg>,
    ) -> Result<Started, String> {
        let sandbox = Arc::clone(&self.shared.host.sandbox.borrow().sandbox);
        let running: Arc<dyn Running> = match sandbox.start(spec).await {
            Ok(running) => Arc::from(running),
            Err(error) => return Err(error.to_string()),
        };
        let pid = running.pid();
        note(&self.shared, Some((attempt, running.identity().clone())));
        let waited = Arc::clone(&running);
        let wait = async move { waited.wait().await };
        let piped = cx.pipe_to_self(wait, move |info| {
            let last = info.last_words.trim();
            let words = last.lines().last().unwrap_or_default().trim();
            let how =
                if words.is_empty() { info.to_string() } else { format!("{info}; its last words: {words}") };
            SandboxMsg::Ended { attempt, how }
        });
        if let Err(error) = piped {
            // Unwatched is as good as lost: dropping the handle kills it.
            return Err(error.to_string());
        }
        self.running = Some((attempt, running));
        Ok(Started { pid, sandbox: sandbox.name() })
    }

    async fn tell_gone(&self, attempt: Attempt, how: String) -> Result<(), Failure> {
        self.shared.session.send(SessionMsg::Gone { attempt, how }).await?;
        Ok(())
    }
}
