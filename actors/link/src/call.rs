//! Calling the peer: bytes to bytes, with a deadline, a place among the calls under way, and a place among the bytes
//! on their way out. A frozen peer costs its caller the deadline and nothing more.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::codec;
use choir_messages::limits::FRAME_BYTES;
use choir_messages::wire::{
    BoxFuture, ControlPlane, Envelope, LinkError, Reply, Request, SignalAck, SignalRequest, SignalSender,
};
use ractor::{ActorRef, RpcReplyPort};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::limits::{ACK_BYTES, CALLS_IN_FLIGHT, SIGNAL_BYTES, SIGNALS_IN_FLIGHT, SLOW_CALLS};
use crate::port::{GateMessage, VerbAnswer};
use crate::reason::CloseReason;
use crate::shared::Shared;

/// Calls one peer's gate.
pub(crate) struct Caller {
    /// The node's stand-in for the peer's gate.
    stand_in: ActorRef<GateMessage>,
    shared: Arc<Shared>,
    slots: Semaphore,
    slow: Semaphore,
}

impl Caller {
    pub(crate) fn new(
        stand_in: ActorRef<GateMessage>,
        shared: Arc<Shared>,
        slots: usize,
        slow: usize,
    ) -> Self {
        Self { stand_in, shared, slots: Semaphore::new(slots), slow: Semaphore::new(slow) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// One call. The deadline includes every wait for a place.
    async fn call(&self, bytes: Vec<u8>, slow: bool, deadline: Duration) -> Result<Vec<u8>, LinkError> {
        let end = Instant::now() + deadline;
        tokio::select! {
            biased;
            _ = self.shared.closed() => Err(LinkError::Down),
            done = timeout_at(end, self.placed(bytes, slow, end)) => {
                done.unwrap_or(Err(LinkError::Deadline(deadline)))
            }
        }
    }

    async fn placed(&self, bytes: Vec<u8>, slow: bool, end: Instant) -> Result<Vec<u8>, LinkError> {
        let _slow = match slow {
            true => Some(self.slow.acquire().await.map_err(|_| LinkError::Down)?),
            false => None,
        };
        let _slot = self.slots.acquire().await.map_err(|_| LinkError::Down)?;
        let place = self.shared.reserve(bytes.len()).await.ok_or(LinkError::Down)?;
        let (answer, waiting) = ractor::concurrency::oneshot();
        let left = end.saturating_duration_since(Instant::now());
        let port = RpcReplyPort::from((answer, left));
        self.stand_in.cast(GateMessage::Call(bytes, port)).map_err(|_| LinkError::Down)?;
        place.forget();
        waiting.await.map_err(|_| LinkError::Down)
    }
}

/// The agent's end of a link: says verbs. Clones share the link; when the last is dropped, the link ends.
#[derive(Clone)]
pub struct Uplink(Arc<Owned>);

/// Ends the link with its last owner.
pub(crate) struct Owned(Caller);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.shared().close(CloseReason::Disconnected);
    }
}

impl Uplink {
    pub(crate) fn new(caller: Caller) -> Self {
        Self(Arc::new(Owned(caller)))
    }

    /// Ends the link.
    pub fn close(&self) {
        self.0.0.shared().close(CloseReason::Disconnected);
    }

    /// Why the link ended, once it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.0.0.shared().reason()
    }
}

impl std::fmt::Debug for Uplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uplink").field("closed", &self.close_reason()).finish_non_exhaustive()
    }
}

impl ControlPlane for Uplink {
    fn call(&self, envelope: Envelope, deadline: Duration) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move {
            let slow =
                matches!(envelope.body, Request::ExecuteHostTool { .. } | Request::RequestApproval { .. });
            let bytes = codec::encode(&envelope, FRAME_BYTES).map_err(|_| LinkError::TooLarge)?;
            drop(envelope);
            let answer = self.0.0.call(bytes, slow, deadline).await?;
            let answer: VerbAnswer = codec::decode(&answer, FRAME_BYTES).map_err(|_| LinkError::Malformed)?;
            Ok(answer?)
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.0.shared().closed().await;
        })
    }
}

/// The host's end for signals.
pub(crate) struct Downlink(pub(crate) Caller);

impl SignalSender for Downlink {
    fn signal(
        &self,
        request: SignalRequest,
        deadline: Duration,
    ) -> BoxFuture<'_, Result<SignalAck, LinkError>> {
        Box::pin(async move {
            let bytes = codec::encode(&request, SIGNAL_BYTES as u64).map_err(|_| LinkError::TooLarge)?;
            let answer = self.0.call(bytes, false, deadline).await?;
            codec::decode(&answer, ACK_BYTES as u64).map_err(|_| LinkError::Malformed)
        })
    }
}

/// Places an agent has for its calls: what the host answers at once.
pub(crate) const AGENT_PLACES: (usize, usize) = (CALLS_IN_FLIGHT, SLOW_CALLS);

/// Places a host has for its signals; none is slow.
pub(crate) const HOST_PLACES: (usize, usize) = (SIGNALS_IN_FLIGHT, 0);
