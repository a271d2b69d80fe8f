//! Tickets: what an append hands out, and what comes true when the event is on the disk.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use futures_channel::oneshot;

use crate::bounds::TICKET_WAIT;
use crate::error::StoreError;

/// Comes true when everything up to it is synced. A future for actors; [`Ticket::wait`] for threads. Dropping it gives up
/// the knowledge, not the event.
#[derive(Debug)]
#[must_use = "an event is only there when its ticket has come true"]
pub struct Ticket(oneshot::Receiver<Result<(), StoreError>>);

/// The writer's half.
#[derive(Debug)]
pub(crate) struct Promise(oneshot::Sender<Result<(), StoreError>>);

pub(crate) fn ticket() -> (Promise, Ticket) {
    let (sender, receiver) = oneshot::channel();
    (Promise(sender), Ticket(receiver))
}

impl Promise {
    pub(crate) fn keep(self, result: Result<(), StoreError>) {
        // Nobody needs to be waiting.
        let _ = self.0.send(result);
    }
}

impl Future for Ticket {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|result| match result {
            Ok(result) => result,
            Err(_) => Err(StoreError::Stopped(Arc::new(StoreError::Slow))),
        })
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Ticket {
    /// Waits, for two minutes at most.
    pub fn wait(self) -> Result<(), StoreError> {
        self.wait_for(TICKET_WAIT)
    }

    /// Waits for at most that long.
    pub fn wait_for(self, limit: Duration) -> Result<(), StoreError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let (mut this, until) = (pin!(self), Instant::now() + limit);
        loop {
            if let Poll::Ready(result) = this.as_mut().poll(&mut context) {
                return result;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Slow);
            }
            std::thread::park_timeout(left);
        }
    }
}
