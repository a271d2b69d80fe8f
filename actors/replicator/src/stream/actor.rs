//! The replicator's actor: feeds the stream's rules and makes the calls they ask for.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::codec;
use choir_messages::event::{self, Head, Revision};
use choir_messages::limits::{BATCH_BYTES, BATCH_EVENTS};
use choir_messages::mail::{JournalMsg, LinkState, ReplicatorMsg, UplinkEnd, UplinkMsg};
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_messages::wire::{ControlPlane, Heartbeat, HeartbeatAck, LinkError, Reply, Request, Verdict};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, Slot};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Level, Span};

use super::core::{Action, Event, Outcome, Stream};
use crate::identity::LinkIdentity;
use crate::limits::{HEARTBEAT_ANSWER, NEIGHBOUR};

/// What a replicator needs to start.
#[derive(Clone)]
pub struct ReplicatorDeps {
    /// Whose events it streams.
    pub journal: Address<JournalMsg>,
    /// Who owns the link.
    pub uplink: Address<UplinkMsg>,
    /// Who speaks.
    pub identity: Arc<LinkIdentity>,
    /// The heartbeat interval in force; the uplink writes what the settings say.
    pub interval: watch::Receiver<Duration>,
}

/// Streams commits, carries acknowledgements.
pub struct ReplicatorActor {
    deps: ReplicatorDeps,
    stream: Stream,
    control: Option<Arc<dyn ControlPlane>>,
    /// Where the host last said that its log stands.
    claimed: Head,
    config_version: u64,
    flushes: Vec<ReplyTo<Revision>>,
    /// Where the news of the newest revision came from; the heartbeat that carries it belongs to that trace, even if an
    /// earlier one has to be answered first.
    cause: Option<Span>,
    origin: Instant,
}

/// How often the replicator looks at the clock and the journal of its own accord.
const TICK: Duration = Duration::from_millis(250);

/// The replicator's place in the tree.
#[must_use]
pub fn child_spec(slot: Slot<ReplicatorMsg>, deps: ReplicatorDeps) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = deps.clone();
        async move {
            let status = deps.journal.call(NEIGHBOUR, |reply| JournalMsg::Status { reply }).await?;
            let interval_ms = millis(*deps.interval.borrow());
            Ok::<_, Failure>(ReplicatorActor {
                stream: Stream::new(status.head.rev, status.durable, interval_ms),
                deps,
                control: None,
                claimed: Head::START,
                config_version: 0,
                flushes: Vec::new(),
                cause: None,
                origin: Instant::now(),
            })
        }
    })
}

impl Actor for ReplicatorActor {
    type Msg = ReplicatorMsg;

    async fn started(&mut self, cx: &mut Context<ReplicatorMsg>) -> Result<(), Failure> {
        cx.send_interval(TICK, || ReplicatorMsg::Tick)?;
        self.deps.uplink.send(UplinkMsg::Attach).await?;
        Ok(())
    }

    async fn handle(&mut self, msg: ReplicatorMsg, cx: &mut Context<ReplicatorMsg>) -> Result<(), Failure> {
        let event = match msg {
            ReplicatorMsg::Committed { rev } => {
                // The first to tell of it is the commit's own nudge; looks at the journal come later.
                if rev > self.stream.status().committed {
                    self.cause = Some(Span::current());
                }
                Event::Committed(rev)
            }
            ReplicatorMsg::Link(LinkState::Up { control, durable }) => {
                self.control = Some(control);
                self.claimed = durable;
                Event::Up(durable.rev)
            }
            ReplicatorMsg::Link(LinkState::Down) => {
                self.control = None;
                Event::Down
            }
            ReplicatorMsg::Answered { attempt, result } => {
                if let Ok(ack) = &result {
                    self.claimed = ack.durable;
                }
                Event::Answered { attempt, outcome: outcome(&result) }
            }
            ReplicatorMsg::Tick => {
                self.look_at_journal(cx)?;
                Event::Tick
            }
            ReplicatorMsg::Flush { reply } => {
                self.flushes.push(reply);
                self.look_at_journal(cx)?;
                Event::Tick
            }
            ReplicatorMsg::Status { reply } => {
                reply.send(self.stream.status());
                return Ok(());
            }
        };
        self.stream.set_interval(millis(*self.deps.interval.borrow()));
        let now = millis(self.origin.elapsed());
        for action in self.stream.step(event, now) {
            self.act(action, cx).await?;
        }
        let status = self.stream.status();
        let lag = status.committed.saturating_sub(status.acked);
        tracing::event!(target: "choir::metric", Level::INFO, gauge.choir.replication.lag = lag);
        if self.stream.is_flushed() {
            let acked = self.stream.status().acked;
            self.flushes.drain(..).for_each(|reply| reply.send(acked));
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl ReplicatorActor {
    /// Asks the journal where it stands, in case a nudge was lost.
    fn look_at_journal(&self, cx: &mut Context<ReplicatorMsg>) -> Result<(), Failure> {
        let journal = self.deps.journal.clone();
        cx.pipe_to_self(
            async move { journal.call(NEIGHBOUR, |reply| JournalMsg::Status { reply }).await },
            |status| ReplicatorMsg::Committed { rev: status.map_or(0, |status| status.head.rev) },
        )?;
        Ok(())
    }

    async fn act(&mut self, action: Action, cx: &mut Context<ReplicatorMsg>) -> Result<(), Failure> {
        match action {
            Action::Send { attempt, base, newest } => {
                let Some(control) = self.control.clone() else { return Ok(()) };
                let (deps, config_version) = (self.deps.clone(), self.config_version);
                let cause = self.cause.take().unwrap_or_else(Span::current);
                // Entered, so that what the answer leads to belongs to the same trace.
                let _cause = cause.entered();
                cx.pipe_to_self(
                    async move { heartbeat(&deps, control.as_ref(), base, newest, config_version).await },
                    move |result| ReplicatorMsg::Answered { attempt, result },
                )?;
            }
            // The journal looks whether that log is its own.
            Action::Durable(_) => {
                self.deps.journal.send(JournalMsg::Acknowledged { head: self.claimed }).await?;
            }
            Action::Config(version) if version > self.config_version => {
                self.config_version = version;
                self.deps.uplink.send(UplinkMsg::ConfigChanged { version }).await?;
            }
            Action::Config(_) => {}
            Action::DropLink => {
                self.control = None;
                self.deps.uplink.send(UplinkMsg::Lost { attempt: 0 }).await?;
            }
            Action::Diverged => self.deps.uplink.send(UplinkMsg::End(UplinkEnd::Diverged)).await?,
            Action::Revoked => self.deps.uplink.send(UplinkMsg::End(UplinkEnd::LeaseRevoked)).await?,
        }
        Ok(())
    }
}

/// One heartbeat with as many events as fit.
async fn heartbeat(
    deps: &ReplicatorDeps,
    control: &dyn ControlPlane,
    base: Revision,
    newest: Revision,
    config_version: u64,
) -> Result<HeartbeatAck, LinkError> {
    let read =
        deps.journal.call(NEIGHBOUR, |reply| JournalMsg::Read { after: base, limit: BATCH_EVENTS, reply });
    let Ok(events) = read.await else { return Err(LinkError::Down) };
    let mut batch: Vec<event::Event> = Vec::with_capacity(events.len());
    let mut bytes = 0;
    for event in events {
        bytes += codec::encoded_len(event.as_ref()).unwrap_or(u64::MAX);
        if !batch.is_empty() && bytes > BATCH_BYTES as u64 {
            break;
        }
        batch.push(event::Event::clone(&event));
    }
    let request =
        Request::Heartbeat(Heartbeat { base, newest, events: batch, config_version, at: Timestamp::now() });
    match control.call(deps.identity.envelope(request), HEARTBEAT_ANSWER).await? {
        Reply::Heartbeat(ack) => Ok(ack),
        _ => Err(LinkError::Malformed),
    }
}

/// What an answer means for the stream.
fn outcome(result: &Result<HeartbeatAck, LinkError>) -> Outcome {
    match result {
        Ok(ack) => Outcome::Acked { rev: ack.durable.rev, config_version: ack.config_version },
        Err(LinkError::Refused(Verdict::LeaseRevoked)) => Outcome::Revoked,
        Err(LinkError::Refused(Verdict::Diverged { .. } | Verdict::Rejected(_))) => Outcome::Diverged,
        Err(LinkError::Refused(Verdict::Unavailable(_))) => Outcome::Later,
        Err(
            LinkError::Refused(Verdict::Version(_))
            | LinkError::Down
            | LinkError::Deadline(_)
            | LinkError::TooLarge
            | LinkError::Malformed,
        ) => Outcome::Doubt,
    }
}
