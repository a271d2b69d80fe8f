//! The outbox as an actor: between the store and the attached channel.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::id::{AgentId, OutboundId};
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_persistence::limits::LIST_ROWS;
use choir_persistence::store::outbox::{OutboundKind, OutboxRow, OutboxState, OutboxStep};
use choir_persistence::{Store, StoreError};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};
use tokio::sync::mpsc;

use super::alarm::Alarm;
use super::outbox::{Action, ChannelNo, Input, Outbox};
use super::parts::Shared;
use crate::control::views::SaidView;

/// The channel's name in the inbox and the outbox.
pub(crate) const SOURCE: &str = "chat";

/// Times a step of an outbound message is tried again while the database is away, and the pause between.
const TRIES: u32 = 30;
const PAUSE: Duration = Duration::from_secs(1);

/// What the outbox is told.
pub(crate) enum OutboxMsg {
    /// A channel wants the messages from now on; it is told its number. Dropping the receiver is noticed at the next
    /// message; `Detach` says it at once.
    Attach { redeliver: bool, to: mpsc::Sender<SaidView>, reply: ReplyTo<ChannelNo> },
    /// A channel is gone.
    Detach { channel: ChannelNo },
    /// A channel showed a message; answered once that is recorded.
    Acked { id: OutboundId, reply: ReplyTo<()> },
    /// The store may hold something new.
    Changed,
    /// What the store answered.
    Came(Input<Box<OutboxRow>>),
    /// Whether someone is attached.
    Attached { reply: ReplyTo<bool> },
    /// Look at the clock.
    Tick,
    /// A step was recorded.
    Marked,
}

impl Mail for OutboxMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Attach { .. } => "attach",
            Self::Detach { .. } => "detach",
            Self::Acked { .. } => "acked",
            Self::Changed => "changed",
            Self::Came(_) => "came",
            Self::Attached { .. } => "attached",
            Self::Tick => "tick",
            Self::Marked => "marked",
        }
    }
}

struct OutboxActor {
    shared: Arc<Shared>,
    outbox: Outbox<Box<OutboxRow>>,
    channels: ChannelNo,
    to: Option<(ChannelNo, mpsc::Sender<SaidView>)>,
    alarm: Alarm,
    /// Whether rows that an earlier incarnation was sending may have been left: this actor is the only sender, so what is
    /// being sent when it begins was lost. Looked at again with each channel, since a killed one's claim may commit late.
    sweep: bool,
    /// Confirmations whose record is not written yet.
    acks: Vec<(OutboundId, ReplyTo<()>)>,
}

pub(super) fn child_spec(slot: Slot<OutboxMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |cx| {
        let shared = Arc::clone(&shared);
        // Numbers of an earlier incarnation must not be taken for this one's.
        let channels = cx.generation() << 32;
        async move {
            Ok(OutboxActor {
                shared,
                outbox: Outbox::default(),
                channels,
                to: None,
                alarm: Alarm::default(),
                sweep: true,
                acks: Vec::new(),
            })
        }
    })
}

impl Actor for OutboxActor {
    type Msg = OutboxMsg;

    async fn handle(&mut self, msg: OutboxMsg, cx: &mut Context<OutboxMsg>) -> Result<(), Failure> {
        let input = match msg {
            OutboxMsg::Attach { redeliver, to, reply } => {
                self.channels += 1;
                self.sweep = true;
                let channel = self.channels;
                // The old channel ends by its sender being dropped.
                self.to = Some((channel, to));
                reply.send(channel);
                Input::Attach { channel, redeliver }
            }
            OutboxMsg::Detach { channel } => {
                self.to.take_if(|(no, _)| *no == channel);
                Input::Detach { channel }
            }
            OutboxMsg::Acked { id, reply } => {
                self.acks.push((id, reply));
                Input::Acked { channel: self.to.as_ref().map_or(0, |(channel, _)| *channel), id }
            }
            OutboxMsg::Changed => Input::Changed,
            OutboxMsg::Came(Input::StoreFailed) => {
                self.sweep = true;
                Input::StoreFailed
            }
            OutboxMsg::Came(input) => input,
            OutboxMsg::Attached { reply } => {
                reply.send(self.outbox.attached());
                return Ok(());
            }
            OutboxMsg::Tick => {
                self.alarm.rang();
                Input::Tick
            }
            OutboxMsg::Marked => return Ok(()),
        };
        self.step(input, cx)
    }
}

impl OutboxActor {
    fn step(&mut self, input: Input<Box<OutboxRow>>, cx: &mut Context<OutboxMsg>) -> Result<(), Failure> {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for action in self.outbox.step(input, self.shared.host.now()) {
                if let Some(next) = self.carry_out(action, cx)? {
                    inputs.push(next);
                }
            }
        }
        let now = self.shared.host.now();
        self.alarm.set(self.outbox.deadline(), now, cx, || OutboxMsg::Tick)?;
        Ok(())
    }

    fn carry_out(
        &mut self,
        action: Action<Box<OutboxRow>>,
        cx: &mut Context<OutboxMsg>,
    ) -> Result<Option<Input<Box<OutboxRow>>>, Failure> {
        let (store, agent) = (self.shared.host.store(), self.shared.agent.clone());
        match action {
            Action::Claim => {
                let sweep = std::mem::take(&mut self.sweep);
                let claim = async move {
                    let store = store.ok_or(StoreError::Closed)?;
                    if sweep {
                        lose_orphans(&store, &agent).await?;
                    }
                    let claimed = store.claim_next(&agent, Some(SOURCE)).await?;
                    Ok(Input::Claimed(claimed.map(with_id)))
                };
                cx.pipe_to_self(claim, came)?;
            }
            Action::Again => {
                let sweep = std::mem::take(&mut self.sweep);
                let again = async move {
                    let store = store.ok_or(StoreError::Closed)?;
                    if sweep {
                        lose_orphans(&store, &agent).await?;
                    }
                    for row in store.redeliverable(&agent, Some(SOURCE)).await? {
                        if let Some(row) = store.outbound_step(row.outbound, OutboxStep::Redeliver).await? {
                            return Ok(Input::Again(Some(with_id(row))));
                        }
                    }
                    Ok(Input::Again(None))
                };
                cx.pipe_to_self(again, came)?;
            }
            Action::Write { channel, id, message, repeat } => {
                let said = SaidView {
                    outbound: id,
                    message: message.message,
                    kind: match message.kind {
                        OutboundKind::Answer => "answer".into(),
                        OutboundKind::Notice => "notice".into(),
                    },
                    text: message.text,
                    repeat,
                };
                let span = tracing::info_span!(
                    "deliver", message = %said.message, %agent, kind = said.kind, repeat, otel.kind = "producer"
                );
                // The end of the trace that the user's message began.
                crate::telemetry::continue_trace(&span, said.message);
                let taken = span.in_scope(|| {
                    self.to.as_ref().is_some_and(|(no, to)| *no == channel && to.try_send(said).is_ok())
                });
                if !taken {
                    self.to.take_if(|(no, _)| *no == channel);
                    return Ok(Some(Input::Detach { channel }));
                }
            }
            Action::Delivered(id) => {
                let replies =
                    self.acks.extract_if(.., |(acked, _)| *acked == id).map(|(_, reply)| reply).collect();
                mark(store, id, OutboxStep::Delivered, replies, cx)?;
            }
            Action::MarkAmbiguous(id) => mark(store, id, OutboxStep::Lost, Vec::new(), cx)?,
            Action::End { channel } => {
                self.to.take_if(|(no, _)| *no == channel);
            }
        }
        Ok(None)
    }
}

/// Calls ambiguous what is marked as being sent although nobody sends it.
async fn lose_orphans(store: &Store, agent: &AgentId) -> Result<(), StoreError> {
    for row in store.outbox(Some(agent), LIST_ROWS).await? {
        if row.state == OutboxState::Sending && row.source == SOURCE {
            store.outbound_step(row.outbound, OutboxStep::Lost).await?;
            tracing::warn!(%agent, outbound = %row.outbound, "a message may or may not have been shown");
        }
    }
    Ok(())
}

fn with_id(row: OutboxRow) -> (OutboundId, Box<OutboxRow>) {
    (row.outbound, Box::new(row))
}

fn came(result: Result<Input<Box<OutboxRow>>, StoreError>) -> OutboxMsg {
    OutboxMsg::Came(result.unwrap_or(Input::StoreFailed))
}

/// Records a step, patiently: a message that was delivered must not look ambiguous because the database was away.
fn mark(
    store: Option<Store>,
    id: OutboundId,
    step: OutboxStep,
    replies: Vec<ReplyTo<()>>,
    cx: &mut Context<OutboxMsg>,
) -> Result<(), Failure> {
    let write = async move {
        let Some(store) = store else { return };
        for _ in 0..TRIES {
            match store.outbound_step(id, step).await {
                Ok(_) => return replies.into_iter().for_each(|reply| reply.send(())),
                Err(error) if error.is_transient() => tokio::time::sleep(PAUSE).await,
                Err(error) => {
                    return tracing::error!(%id, ?step, %error, "an outbound message's step was not recorded");
                }
            }
        }
        tracing::error!(%id, ?step, "an outbound message's step was not recorded: the database stayed away");
    };
    cx.pipe_to_self(write, |()| OutboxMsg::Marked)?;
    Ok(())
}
