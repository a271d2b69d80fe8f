//! What the two pumps, the callers and the owner of one link share: the guard, the accounts of outgoing bytes, and the
//! reason for which the link ended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};

use crate::guard::{Guard, Written};
use crate::limits::{FRAME_OVERHEAD, OUTBOUND_BYTES};
use crate::reason::CloseReason;

/// One link's shared state.
pub(crate) struct Shared {
    guard: Mutex<Guard>,
    /// Told whenever a written reply may have made room for a waiting call.
    pub(crate) room: Notify,
    /// Bytes that may still be handed to the node on their way out.
    outbound: Semaphore,
    closed: watch::Sender<Option<CloseReason>>,
}

/// What a payload costs of the outgoing budget: never nothing, so that the number of waiting frames is bounded too.
const fn charge(payload: usize) -> u32 {
    (payload + FRAME_OVERHEAD) as u32
}

impl Shared {
    pub(crate) fn new(guard: Guard) -> Self {
        Self {
            guard: Mutex::new(guard),
            room: Notify::new(),
            outbound: Semaphore::new(OUTBOUND_BYTES),
            closed: watch::Sender::new(None),
        }
    }

    /// The guard. Never held across an await; a panic while it was held (there is none) would not make it unusable.
    pub(crate) fn guard(&self) -> MutexGuard<'_, Guard> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A frame of the node's has been written to the socket.
    pub(crate) fn written(&self, written: Written) {
        if let Some(payload) = written.outbound {
            self.outbound.add_permits(charge(payload) as usize);
        }
        self.guard().written(written);
        self.room.notify_one();
    }

    /// Waits for a place among the outgoing bytes; `None` when the link is closed. The place is given back by
    /// [`Shared::written`] once the caller has forgotten the permit, or by dropping it.
    pub(crate) async fn reserve(&self, payload: usize) -> Option<SemaphorePermit<'_>> {
        self.outbound.acquire_many(charge(payload)).await.ok()
    }

    /// Ends the link; the first reason stands.
    pub(crate) fn close(&self, reason: CloseReason) {
        self.closed.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason);
            }
            first
        });
        self.outbound.close();
    }

    /// Why the link ended, if it has.
    pub(crate) fn reason(&self) -> Option<CloseReason> {
        *self.closed.borrow()
    }

    /// Waits for the end.
    pub(crate) async fn closed(&self) -> CloseReason {
        let mut watch = self.closed.subscribe();
        match watch.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(CloseReason::Disconnected),
            // The sender lives in self.
            Err(_) => CloseReason::Disconnected,
        }
    }
}
