//! What the host pushes, handed to whoever acts on it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use choir_messages::id::{LeaseId, MessageId};
use choir_messages::mail::{ArbiterMsg, UplinkMsg};
use choir_messages::wire::{
    BoxFuture, Signal, SignalAck, SignalHandler, SignalRefused, SignalRequest, TraceContext, WIRE_VERSION,
};
use choir_supervisors::{Address, TreeHandle};
use choir_telemetry::trace_context;
use tokio::sync::mpsc;
use tracing::{Instrument as _, Span};

use crate::reporter::TreeCell;

/// Messages whose origin is remembered: a session's queue, many times over.
const REMEMBERED: usize = 1024;

/// The spans in which messages arrived, by name only: a span that is held is not exported. Lost with the process, as
/// traces may be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<VecDeque<(MessageId, TraceContext)>>>);

impl Arrivals {
    fn known(&self) -> MutexGuard<'_, VecDeque<(MessageId, TraceContext)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first arrival counts: a repeat is answered from the log.
    fn remember(&self, message: MessageId, span: &Span) {
        let trace = trace_context::of(span);
        let mut known = self.known();
        if trace.0.is_empty() || known.iter().any(|(id, _)| *id == message) {
            return;
        }
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back((message, trace));
    }

    /// Makes a span the child of the one in which this message arrived.
    pub(crate) fn adopt(&self, span: &Span, message: MessageId) {
        let found = self.known().iter().find(|(id, _)| *id == message).map(|(_, trace)| trace.clone());
        if let Some(trace) = found {
            trace_context::set_parent(span, &trace);
        }
    }
}

/// Longest wait for the arbiter's word.
const RECORD: Duration = Duration::from_secs(5);

/// The agent's end of the signals.
pub(crate) struct Signals {
    pub(crate) lease: LeaseId,
    pub(crate) generation: u64,
    pub(crate) arbiter: Address<ArbiterMsg>,
    pub(crate) uplink: Address<UplinkMsg>,
    pub(crate) tree: TreeCell,
    /// Where each message came from, for its turn.
    pub(crate) arrivals: Arrivals,
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
        };
        let message = message.map(tracing::field::display);
        let span = tracing::info_span!("signal", otel.kind = "server", signal, message);
        trace_context::set_parent(&span, &request.trace);
        if let Signal::UserMessage { message, .. } = &request.signal {
            self.arrivals.remember(*message, &span);
        }
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
            Signal::UserMessage { .. } | Signal::Inject { .. } | Signal::Cancel { .. } => {
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
                Some(tree) if kill(tree, path).await => SignalAck::Noted,
                Some(_) => SignalAck::Refused(SignalRefused::NoSuchActor),
                None => SignalAck::Refused(SignalRefused::NotReady),
            },
        }
    }
}

async fn kill(tree: &TreeHandle, path: &str) -> bool {
    tracing::warn!(path, "an actor is killed on request");
    tree.kill(path)
}

/// An empty cell for the tree's handle.
pub(crate) fn tree_cell() -> TreeCell {
    Arc::new(OnceLock::new())
}
