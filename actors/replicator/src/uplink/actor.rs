//! The uplink's actor: one attempt at a time, one link at a time.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::event::Head;
use choir_messages::mail::{
    ArbiterMsg, EdgeMsg, Greeted, JournalMsg, LinkState, ModelsMsg, ReplicatorMsg, Restored, UplinkEnd,
    UplinkMsg,
};
use choir_messages::reply::ReplyTo;
use choir_messages::secret::Secret;
use choir_messages::wire::{AgentSettings, BoxFuture, ControlPlane, LinkError, Reply, Request, Verdict};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, Slot, TaskHandle};
use tokio::sync::watch;
use tokio::time::Instant;

use super::greet::{greet, key};
use crate::identity::LinkIdentity;
use crate::limits::{HELLO_ANSWER, NEIGHBOUR, RESTORE_WAITERS, RETRY_FIRST, RETRY_MAX, UNREACHABLE};

/// Makes a link; a carrier of the wire implements it.
pub trait Connector: Send + Sync {
    /// One attempt, with a deadline of its own.
    fn connect(&self) -> BoxFuture<'static, Result<Arc<dyn ControlPlane>, LinkError>>;
}

/// What an uplink needs to start.
#[derive(Clone)]
pub struct UplinkDeps {
    /// How to connect.
    pub connector: Arc<dyn Connector>,
    /// Who speaks.
    pub identity: Arc<LinkIdentity>,
    /// Whose head a reconnect says.
    pub journal: Address<JournalMsg>,
    /// Who speaks over the link.
    pub replicator: Address<ReplicatorMsg>,
    /// Who gets budgets.
    pub arbiter: Address<ArbiterMsg>,
    /// Who gets budgets too.
    pub edge: Address<EdgeMsg>,
    /// Who gets the model and its key.
    pub models: Address<ModelsMsg>,
    /// Where the replicator reads how often to say that the agent lives.
    pub interval: watch::Sender<Duration>,
    /// Told when the process must end.
    pub ended: Arc<dyn Fn(UplinkEnd) + Send + Sync>,
}

/// Where the link stands.
enum State {
    /// No link; an attempt runs or a pause does.
    Down,
    /// Connected, hello on its way.
    Greeting(Arc<dyn ControlPlane>),
    /// In use.
    Up { control: Arc<dyn ControlPlane>, durable: Head },
}

/// The agent's link to its host.
pub struct UplinkActor {
    deps: UplinkDeps,
    state: State,
    /// Waits for the link's end and holds the link meanwhile: one that is given up must be let go here too, or the host
    /// sees it live and refuses the next.
    watch: Option<TaskHandle>,
    attempt: u64,
    retry: Duration,
    down_since: Instant,
    restores: Vec<ReplyTo<Restored>>,
    current: Option<(Box<AgentSettings>, Option<Secret>)>,
    fetching: bool,
}

/// The uplink's place in the tree.
#[must_use]
pub fn child_spec(slot: Slot<UplinkMsg>, deps: UplinkDeps) -> ChildSpec {
    ChildSpec::worker(slot, move |cx| {
        let restarted = cx.previous().is_some();
        let actor = UplinkActor {
            deps: deps.clone(),
            state: State::Down,
            watch: None,
            attempt: 0,
            retry: RETRY_FIRST,
            down_since: Instant::now(),
            restores: Vec::new(),
            current: None,
            fetching: false,
        };
        async move {
            if restarted {
                // It still has the link of the incarnation before. Until that is let go, the host refuses another.
                actor.deps.replicator.send(ReplicatorMsg::Link(LinkState::Down)).await?;
            }
            Ok::<_, Failure>(actor)
        }
    })
}

impl Actor for UplinkActor {
    type Msg = UplinkMsg;

    async fn started(&mut self, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        self.connect(cx)
    }

    async fn handle(&mut self, msg: UplinkMsg, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        match msg {
            UplinkMsg::Restore { reply } => {
                // A port over the bound is dropped, which tells its asker.
                if self.restores.len() < RESTORE_WAITERS {
                    self.restores.push(reply);
                }
                if let State::Up { control, .. } = &self.state {
                    let control = Arc::clone(control);
                    self.state = State::Greeting(Arc::clone(&control));
                    self.greet(control, cx)?;
                }
            }
            UplinkMsg::Call { request, deadline_ms, reply } => {
                let State::Up { control, .. } = &self.state else {
                    reply.send(Err(LinkError::Down));
                    return Ok(());
                };
                let (control, envelope) = (Arc::clone(control), self.deps.identity.envelope(request));
                let deadline = Duration::from_millis(deadline_ms);
                let carry = async move { reply.send(control.call(envelope, deadline).await) };
                Self::carry(carry, cx);
            }
            UplinkMsg::Connected { attempt, result } if attempt == self.attempt => match result {
                Ok(control) => {
                    let closed = Arc::clone(&control);
                    let watch = cx.pipe_to_self(async move { closed.closed().await }, move |()| {
                        UplinkMsg::Lost { attempt }
                    })?;
                    self.watch = Some(watch);
                    self.state = State::Greeting(Arc::clone(&control));
                    self.greet(control, cx)?;
                }
                Err(error) => self.failed(&error, cx)?,
            },
            UplinkMsg::Greeted { attempt, result } if attempt == self.attempt => match result {
                Ok(greeted) => self.up(*greeted, cx).await?,
                Err(error) => self.failed(&error, cx)?,
            },
            UplinkMsg::Lost { attempt } if attempt == self.attempt || attempt == 0 => {
                if !matches!(self.state, State::Down) {
                    self.failed(&LinkError::Down, cx)?;
                }
            }
            UplinkMsg::Connected { .. } | UplinkMsg::Greeted { .. } | UplinkMsg::Lost { .. } => {}
            UplinkMsg::Retry => self.connect(cx)?,
            UplinkMsg::Carried => {}
            UplinkMsg::ConfigChanged { version } => self.fetch(version, cx)?,
            UplinkMsg::Fetched { result } => {
                self.fetching = false;
                match result {
                    Ok(Some((settings, key))) => self.distribute(settings, key).await?,
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the configuration could not be fetched; the next heartbeat tries again")
                    }
                }
            }
            UplinkMsg::Secrets { names, reply } => {
                let State::Up { control, .. } = &self.state else {
                    reply.send(Err(LinkError::Down));
                    return Ok(());
                };
                let (control, envelope) =
                    (Arc::clone(control), self.deps.identity.envelope(Request::GetSecrets { names }));
                let carry = async move {
                    reply.send(match control.call(envelope, HELLO_ANSWER).await {
                        Ok(Reply::Secrets { values }) => Ok(values),
                        Ok(_) => Err(LinkError::Malformed),
                        Err(error) => Err(error),
                    });
                };
                Self::carry(carry, cx);
            }
            UplinkMsg::End(end) => self.end(end),
            UplinkMsg::Attach => self.tell_replicator().await?,
            UplinkMsg::Current { reply } => reply.send(self.current.clone()),
        }
        Ok(())
    }
}

impl UplinkActor {
    /// Carries somebody's call. It belongs to this incarnation, so that nothing holds the link of one that ended; its
    /// asker's port is dropped then, which tells.
    fn carry(call: impl Future<Output = ()> + Send + 'static, cx: &mut Context<UplinkMsg>) {
        if let Err(error) = cx.pipe_to_self(call, |()| UplinkMsg::Carried) {
            tracing::warn!(%error, "a call is not carried over the link");
        }
    }

    fn connect(&mut self, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        self.attempt += 1;
        let attempt = self.attempt;
        let connecting = self.deps.connector.connect();
        cx.pipe_to_self(connecting, move |result| UplinkMsg::Connected { attempt, result })?;
        Ok(())
    }

    /// Says hello over a fresh link, or again over a link whose journal starts anew.
    fn greet(&self, control: Arc<dyn ControlPlane>, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        let (identity, journal, attempt) =
            (Arc::clone(&self.deps.identity), self.deps.journal.clone(), self.attempt);
        let starting = !self.restores.is_empty();
        cx.pipe_to_self(
            async move {
                let from = if starting {
                    Head::START
                } else {
                    // No journal yet: it will ask for its restore, and that is a hello of its own.
                    match journal.call(NEIGHBOUR, |reply| JournalMsg::Status { reply }).await {
                        Ok(status) => status.head,
                        Err(_) => Head::START,
                    }
                };
                let (restored, durable) = greet(control.as_ref(), &identity, from).await?;
                Ok(Box::new(Greeted { from, durable, restored }))
            },
            move |result| UplinkMsg::Greeted { attempt, result },
        )?;
        Ok(())
    }

    /// The host answered the hello: the link is in use.
    async fn up(&mut self, greeted: Greeted, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        let State::Greeting(control) = &self.state else { return Ok(()) };
        let control = Arc::clone(control);
        let Greeted { from, durable, restored } = greeted;
        if !self.restores.is_empty() && from != Head::START {
            // The journal asked for its restore while a reconnect's hello was on its way.
            return self.greet(control, cx);
        }
        self.retry = RETRY_FIRST;
        tracing::info!(rev = durable.rev, "link up");
        self.state = State::Up { control, durable };
        self.distribute(Box::new(restored.settings.clone()), restored.key.clone()).await?;
        for waiter in self.restores.drain(..) {
            waiter.send(restored.clone());
        }
        self.tell_replicator().await
    }

    async fn tell_replicator(&self) -> Result<(), Failure> {
        let state = match &self.state {
            State::Up { control, durable } => {
                LinkState::Up { control: Arc::clone(control), durable: *durable }
            }
            State::Down | State::Greeting(_) => LinkState::Down,
        };
        self.deps.replicator.send(ReplicatorMsg::Link(state)).await?;
        Ok(())
    }

    async fn distribute(&mut self, settings: Box<AgentSettings>, key: Option<Secret>) -> Result<(), Failure> {
        self.current = Some((settings.clone(), key.clone()));
        self.deps.interval.send_replace(Duration::from_millis(settings.heartbeat_interval_ms));
        let model = settings.model.clone();
        // Each neighbour asks for the current settings when it starts, so one that is down misses nothing.
        let _ = self.deps.models.send(ModelsMsg::Configure { config: model, key }).await;
        let _ = self.deps.arbiter.send(ArbiterMsg::Settings(settings.clone())).await;
        let _ = self.deps.edge.send(EdgeMsg::Settings(settings)).await;
        Ok(())
    }

    fn fetch(&mut self, version: u64, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        let current = self.current.as_ref().map_or(0, |(settings, _)| settings.version);
        let State::Up { control, .. } = &self.state else { return Ok(()) };
        if version <= current || self.fetching {
            return Ok(());
        }
        self.fetching = true;
        let (control, identity) = (Arc::clone(control), Arc::clone(&self.deps.identity));
        cx.pipe_to_self(
            async move {
                let request = identity.envelope(Request::FetchDynamicConfig { current });
                match control.call(request, HELLO_ANSWER).await? {
                    Reply::Config { settings: None, .. } => Ok(None),
                    Reply::Config { settings: Some(settings), .. } => {
                        let key = key(control.as_ref(), &identity, &settings).await?;
                        Ok(Some((settings, key)))
                    }
                    _ => Err(LinkError::Malformed),
                }
            },
            |result| UplinkMsg::Fetched { result },
        )?;
        Ok(())
    }

    /// An attempt or a link failed: tell the replicator, then pause and try again, or end.
    fn failed(&mut self, error: &LinkError, cx: &mut Context<UplinkMsg>) -> Result<(), Failure> {
        let end = match error {
            LinkError::Refused(Verdict::LeaseRevoked) => Some(UplinkEnd::LeaseRevoked),
            LinkError::Refused(Verdict::Diverged { .. }) => Some(UplinkEnd::Diverged),
            LinkError::Refused(Verdict::Version(_)) => Some(UplinkEnd::Version),
            _ => None,
        };
        if let Some(end) = end {
            self.end(end);
            return Ok(());
        }
        if !matches!(self.state, State::Down) {
            if matches!(self.state, State::Up { .. }) {
                self.down_since = Instant::now();
            }
            self.state = State::Down;
            tracing::warn!(%error, "link down");
            let _ = self.deps.replicator.try_send(ReplicatorMsg::Link(LinkState::Down));
        }
        if self.down_since.elapsed() >= UNREACHABLE {
            self.end(UplinkEnd::Unreachable(u64::try_from(UNREACHABLE.as_millis()).unwrap_or(u64::MAX)));
            return Ok(());
        }
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        // Answers of the failed attempt mean nothing any more.
        self.attempt += 1;
        cx.send_after(self.retry, UplinkMsg::Retry)?;
        self.retry = (self.retry * 2).min(RETRY_MAX);
        Ok(())
    }

    fn end(&self, end: UplinkEnd) {
        tracing::error!(%end, "the agent must end");
        (self.deps.ended)(end);
    }
}
