//! Counts what is under way. A [`Held`] travels with the work and counts it until it is dropped, however it ends.

use std::sync::Arc;

use tokio::sync::watch;

/// How many are under way.
#[derive(Debug, Clone)]
pub(crate) struct Gauge(Arc<watch::Sender<usize>>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Gauge {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts one more.
    pub(crate) fn hold(&self) -> Held {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        Held(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until nothing is under way.
    pub(crate) async fn empty(&self) {
        // The sender lives as long as this gauge.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
