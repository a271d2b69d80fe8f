//! A start that nobody waits for any more. Whoever starts the cluster may be told to end at any moment, and must then
//! leave nothing behind: no half-made folder, no server that comes up a second later. So a start runs in a task of its own
//! that cleans up after itself, and can be waited for.

use tokio::sync::watch;

use super::error::ClusterError;

/// Starts under way on one cluster, given up or not. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Starts(watch::Sender<usize>);

/// One of them, until it is dropped.
pub(super) struct Entry(watch::Sender<usize>);

impl Starts {
    /// One more.
    pub(super) fn enter(&self) -> Entry {
        self.0.send_modify(|count| *count += 1);
        Entry(self.0.clone())
    }

    /// Waits until there is none.
    pub(super) async fn settled(&self) {
        // The sender is here, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Dropped by whoever gives a start up.
pub(super) struct Wanted {
    _alive: watch::Sender<()>,
}

/// Tells the start that it was given up.
#[derive(Clone)]
pub(super) struct GivenUp(watch::Receiver<()>);

/// A start's two ends.
pub(super) fn wanted() -> (Wanted, GivenUp) {
    let (alive, given_up) = watch::channel(());
    (Wanted { _alive: alive }, GivenUp(given_up))
}

impl GivenUp {
    /// Resolves when it was.
    pub(super) async fn wait(&mut self) {
        // Nothing is ever sent: what ends the wait is the sender's end.
        while self.0.changed().await.is_ok() {}
    }

    /// The work, unless it is given up first; then it is dropped.
    pub(super) async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, ClusterError> {
        tokio::select! {
            biased;
            () = self.wait() => Err(ClusterError::GivenUp),
            result = work => Ok(result),
        }
    }
}
