//! What the host pushes, handed to whoever acts on it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use choir_messages::id::LeaseId;
use choir_messages::mail::{ArbiterMsg, UplinkMsg};
use choir_messages::wire::{
    BoxFuture, Signal, SignalAck, SignalHandler, SignalRefused, SignalRequest, WIRE_VERSION,
};
use choir_supervisors::{Address, TreeHandle};
use choir_telemetry::trace_context;
use tokio::sync::mpsc;
use tracing::Instrument as _;

use crate::reporter::TreeCell;

/// Actors whose end is the link's, and so of the acknowledgement of the very signal that kills them.
const CARRY_THE_LINK: [&str; 2] = ["choir-agent", "choir-agent/uplink"];

/// How long that acknowledgement has to leave first.
const LEAVE: Duration = Duration::from_millis(20);

/// Longest wait for the arbiter's word.
const RECORD: Duration = Duration::from_secs(5);

/// The agent's end of the signals.
pub(crate) struct Signals {
    pub(crate) lease: LeaseId,
    pub(crate) generation: u64,
    pub(crate) arbiter: Address<ArbiterMsg>,
    pub(crate) uplink: Address<UplinkMsg>,
    pub(crate) tree: TreeCell,
    /// Told how long a shutdown may take.
    pub(crate) shut_down: mpsc::Sender<Duration>,
}

impl SignalHandler for Signals {
    fn handle(&self, request: SignalRequest) -> BoxFuture<'_, SignalAck> {
        let (signal, message) = match &request.signal {
            Signal::UserMessage { message, .. } => ("user_message", Some(message)),
            Signal::Inject { .. } => ("inject", None),
            Signal::Cancel { .. } => ("cancel", None),
            Signal::ConfigChanged { .. } => ("config_changed", None),
            Signal::ShutDown { .. } => ("shut_down", None),
            Signal::KillActor { .. } => ("kill_actor", None),
            Signal::RunTool { .. } => ("run_tool", None),
            Signal::StopTool { .. } => ("stop_tool", None),
        };
        let message = message.map(tracing::field::display);
        let span = tracing::info_span!("signal", otel.kind = "server", signal, message);
        trace_context::set_parent(&span, &request.trace);
        Box::pin(self.act(request).instrument(span))
    }
}

impl Signals {
    async fn act(&self, request: SignalRequest) -> SignalAck {
        if request.version != WIRE_VERSION
            || request.lease != self.lease
            || request.generation != self.generation
        {
            return SignalAck::Refused(SignalRefused::WrongLease);
        }
        match &request.signal {
            Signal::UserMessage { .. }
            | Signal::Inject { .. }
            | Signal::Cancel { .. }
            | Signal::RunTool { .. }
            | Signal::StopTool { .. } => {
                let told = self.arbiter.call(RECORD, |reply| ArbiterMsg::Signal { request, reply });
                // The arbiter may be between two lives; the host sends the signal again.
                told.await.unwrap_or(SignalAck::Refused(SignalRefused::NotReady))
            }
            Signal::ConfigChanged { version } => {
                match self.uplink.send(UplinkMsg::ConfigChanged { version: *version }).await {
                    Ok(()) => SignalAck::Noted,
                    Err(_) => SignalAck::Refused(SignalRefused::NotReady),
                }
            }
            Signal::ShutDown { within_ms } => {
                // A second request finds the first under way.
                let _ = self.shut_down.try_send(Duration::from_millis(*within_ms));
                SignalAck::Noted
            }
            Signal::KillActor { path } => match self.tree.get() {
                Some(tree) if CARRY_THE_LINK.contains(&path.as_str()) => {
                    let (tree, path) = (tree.clone(), path.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(LEAVE).await;
                        kill(&tree, &path)
                    });
                    SignalAck::Noted
                }
                Some(tree) if kill(tree, path) => SignalAck::Noted,
                Some(_) => SignalAck::Refused(SignalRefused::NoSuchActor),
                None => SignalAck::Refused(SignalRefused::NotReady),
            },
        }
    }
}

fn kill(tree: &TreeHandle, path: &str) -> bool {
    tracing::warn!(path, "an actor is killed on request");
    tree.kill(path)
}

/// An empty cell for the tree's handle.
pub(crate) fn tree_cell() -> TreeCell {
    Arc::new(OnceLock::new())
}
