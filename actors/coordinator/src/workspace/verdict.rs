//! Whether a write was stored: told by the pen, and looked at by the workspace's actor whenever it is awake. It is woken
//! for it only if it waits for it, since most often the next call wakes it anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use choir_supervisors::ReplyToSelf;

const OPEN: u8 = 0;
/// Open, and the actor waits for it.
const WANTED: u8 = 1;
const STORED: u8 = 2;
const LOST: u8 = 3;

/// The pen's end. Dropped, it says that the write was not stored, or that nobody knows.
#[derive(Debug)]
pub(crate) struct Verdict {
    state: Arc<AtomicU8>,
    wake: Option<ReplyToSelf<()>>,
}

/// The actor's end.
#[derive(Debug)]
pub(super) struct Pending(Arc<AtomicU8>);

/// Both ends; `wake` is used if the actor waits, as it may do from the beginning.
pub(super) fn verdict(wake: ReplyToSelf<()>, wanted: bool) -> (Verdict, Pending) {
    let state = Arc::new(AtomicU8::new(if wanted { WANTED } else { OPEN }));
    (Verdict { state: Arc::clone(&state), wake: Some(wake) }, Pending(state))
}

impl Verdict {
    /// Tells.
    pub(crate) fn tell(mut self, stored: bool) {
        self.settle(stored);
    }

    fn settle(&mut self, stored: bool) {
        let Some(wake) = self.wake.take() else { return };
        if self.state.swap(if stored { STORED } else { LOST }, Ordering::AcqRel) == WANTED {
            wake.send(());
        } else {
            wake.withdraw();
        }
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.settle(false);
    }
}

impl Pending {
    /// Whether the write was stored, if that is known.
    pub(super) fn look(&self) -> Option<bool> {
        match self.0.load(Ordering::Acquire) {
            STORED => Some(true),
            LOST => Some(false),
            _ => None,
        }
    }

    /// The same; if it is not known yet, the actor is woken when it is.
    pub(super) fn want(&self) -> Option<bool> {
        let _ = self.0.compare_exchange(OPEN, WANTED, Ordering::AcqRel, Ordering::Acquire);
        self.look()
    }
}
