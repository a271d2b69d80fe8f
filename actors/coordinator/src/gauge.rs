//! Counts what is under way. A [`Held`] travels with the work and counts it until it is dropped, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many are under way.
#[derive(Debug, Clone)]
pub(crate) struct Gauge(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    count: AtomicUsize,
    nothing: Notify,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Gauge {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Counter { count: AtomicUsize::new(0), nothing: Notify::new() }))
    }

    /// Counts one more.
    pub(crate) fn hold(&self) -> Held {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        Held(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.count.load(Ordering::Acquire)
    }

    /// Waits until nothing is under way.
    pub(crate) async fn empty(&self) {
        loop {
            let mut nothing = std::pin::pin!(self.0.nothing.notified());
            // From here on no word is missed.
            nothing.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            nothing.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let counter = &self.0.0;
        if counter.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            counter.nothing.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_for_nothing_is_told_when_the_last_is_gone() {
        let gauge = Gauge::new();
        let (one, two) = (gauge.hold(), gauge.hold());
        let waiting = tokio::spawn({
            let gauge = gauge.clone();
            async move { gauge.empty().await }
        });
        tokio::task::yield_now().await;
        drop(one);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && gauge.count() == 1);
        drop(two);
        waiting.await.unwrap();
        gauge.empty().await;
    }
}
