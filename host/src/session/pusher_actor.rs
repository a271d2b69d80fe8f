//! The inbox's pusher as an actor.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_messages::wire::Signal;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};
use tracing::Instrument as _;

use super::alarm::Alarm;
use super::gate::SignalPort;
use super::inbox::{Action, Input, Pending, Pusher};
use super::parts::Shared;
use crate::limits;

/// What the pusher is told.
pub(crate) enum InboxMsg {
    /// The agent is ready for signals, which go here.
    Up(SignalPort),
    /// It is not any more.
    Down,
    /// Something changed in the inbox.
    Changed,
    /// Anything the pusher waited for.
    Came(Input),
    /// How many messages wait.
    Waiting { reply: ReplyTo<usize> },
    /// Look at the clock.
    Tick,
    /// A message was closed here, or could not be.
    Closed,
}

impl Mail for InboxMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Up(_) => "up",
            Self::Down => "down",
            Self::Changed => "changed",
            Self::Came(_) => "came",
            Self::Waiting { .. } => "waiting",
            Self::Tick => "tick",
            Self::Closed => "closed",
        }
    }
}

struct PusherActor {
    shared: Arc<Shared>,
    pusher: Pusher,
    port: Option<SignalPort>,
    alarm: Alarm,
}

pub(super) fn child_spec(slot: Slot<InboxMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |cx| {
        let shared = Arc::clone(&shared);
        let restarted = cx.previous().is_some();
        async move {
            if restarted && let Some((attempt, _)) = super::sandbox::running(&shared) {
                // The gate knows where signals go.
                let _ = shared.gate.send(super::gate::GateMsg::Greeted { attempt }).await;
            }
            Ok(PusherActor {
                shared,
                pusher: Pusher::new(limits::MESSAGE_MAX_AGE),
                port: None,
                alarm: Alarm::default(),
            })
        }
    })
}

impl Actor for PusherActor {
    type Msg = InboxMsg;

    async fn started(&mut self, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        // The list is read at once: messages may have waited for this agent.
        self.step(Input::Tick, cx)
    }

    async fn handle(&mut self, msg: InboxMsg, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        let input = match msg {
            InboxMsg::Up(port) => {
                self.port = Some(port);
                Input::Up
            }
            InboxMsg::Down => {
                self.port = None;
                Input::Down
            }
            InboxMsg::Changed | InboxMsg::Closed => Input::Changed,
            InboxMsg::Came(input) => input,
            InboxMsg::Waiting { reply } => {
                reply.send(self.pusher.waiting());
                return Ok(());
            }
            InboxMsg::Tick => {
                self.alarm.rang();
                let settings = self.shared.host.settings();
                self.pusher.set_max_age(Duration::from_millis(settings.config.message_max_age_ms));
                Input::Tick
            }
        };
        self.step(input, cx)
    }
}

impl PusherActor {
    fn step(&mut self, input: Input, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        let now = self.shared.host.now();
        for action in self.pusher.step(input, now) {
            self.carry_out(action, cx)?;
        }
        self.alarm.set(Some(self.pusher.deadline()), now, cx, || InboxMsg::Tick)?;
        Ok(())
    }

    fn carry_out(&self, action: Action, cx: &mut Context<InboxMsg>) -> Result<(), Failure> {
        let (store, agent) = (self.shared.host.store(), self.shared.agent.clone());
        match action {
            Action::Load => {
                let load = async move { store?.unrecorded(&agent).await.ok() };
                cx.pipe_to_self(load, |rows| {
                    let now = Timestamp::now();
                    let pending = |row: choir_persistence::store::inbox::InboxRow| Pending {
                        message: row.message,
                        text: row.text,
                        age: now.since(row.received_at),
                    };
                    InboxMsg::Came(match rows {
                        Some(rows) => Input::Loaded(rows.into_iter().map(pending).collect()),
                        None => Input::LoadFailed,
                    })
                })?;
            }
            Action::Push { message, text } => {
                let port = self.port.clone();
                let span = tracing::info_span!("push_message", %message, %agent, otel.kind = "client");
                crate::telemetry::continue_trace(&span, message);
                let push = async move {
                    let Some(port) = port else { return Err(choir_messages::wire::LinkError::Down) };
                    port.send(Signal::UserMessage { message, text }, limits::SIGNAL_DEADLINE).await
                }
                .instrument(span);
                cx.pipe_to_self(push, move |result| InboxMsg::Came(Input::Pushed { message, result }))?;
            }
            Action::Close { message, outcome, text } => {
                let close = async move {
                    let Some(store) = store else { return };
                    match store.close_message(message, outcome, &text).await {
                        Ok(closing) => {
                            tracing::info!(%agent, %message, ?outcome, ?closing, "a message was closed")
                        }
                        Err(error) => {
                            tracing::error!(%agent, %message, %error, "a message could not be closed")
                        }
                    }
                };
                cx.pipe_to_self(close, |()| InboxMsg::Closed)?;
            }
        }
        Ok(())
    }
}
