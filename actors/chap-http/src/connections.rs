//! Which connections there are, and which one goes when there are too many: a thousand that say nothing must not keep
//! out one that does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// All connections.
pub(crate) struct Connections {
    most: usize,
    table: Mutex<Table>,
    /// How many there are, for whoever waits for a change.
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
}

struct Entry {
    requests: usize,
    served: bool,
    idle_since: Instant,
    evict: Arc<Notify>,
}

/// One connection's place, kept by everything that belongs to it: its task, its answers, its WebSocket.
pub(crate) struct Held {
    connections: Arc<Connections>,
    number: u64,
    evict: Arc<Notify>,
}

/// One request under way on a connection.
pub(crate) struct InUse(Arc<Held>);

impl Connections {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, table: Mutex::default(), count: watch::Sender::new(0) })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are, now and later.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    /// A place for one more. When all are taken, the idle connection that has been silent longest loses its own, those
    /// first that never asked for anything. `None` when every one is in use.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Arc<Held>> {
        let mut table = self.lock();
        if table.open.len() >= self.most {
            let idle = table.open.iter().filter(|(_, entry)| entry.requests == 0);
            let victim = idle.min_by_key(|(number, entry)| (entry.served, entry.idle_since, **number));
            let number = victim.map(|(number, _)| *number)?;
            if let Some(entry) = table.open.remove(&number) {
                entry.evict.notify_one();
            }
        }
        let number = table.next;
        table.next += 1;
        let evict = Arc::new(Notify::new());
        let entry =
            Entry { requests: 0, served: false, idle_since: Instant::now(), evict: Arc::clone(&evict) };
        table.open.insert(number, entry);
        self.count.send_replace(table.open.len());
        drop(table);
        Some(Arc::new(Held { connections: Arc::clone(self), number, evict }))
    }
}

impl Held {
    /// Resolves when this connection has lost its place.
    pub(crate) async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Whether it ever asked for anything.
    pub(crate) fn served(&self) -> bool {
        self.connections.lock().open.get(&self.number).is_some_and(|entry| entry.served)
    }

    /// A request has come.
    pub(crate) fn begin(self: &Arc<Self>) -> InUse {
        if let Some(entry) = self.connections.lock().open.get_mut(&self.number) {
            entry.requests += 1;
            entry.served = true;
        }
        InUse(Arc::clone(self))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(entry) = self.0.connections.lock().open.get_mut(&self.0.number) {
            entry.requests = entry.requests.saturating_sub(1);
            entry.idle_since = Instant::now();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        table.open.remove(&self.number);
        self.connections.count.send_replace(table.open.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn gone(held: &Arc<Held>) -> bool {
        !held.connections.lock().open.contains_key(&held.number)
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_never_asked_go_first_and_the_oldest_of_them() {
        let connections = Connections::new(3);
        let useful = connections.admit().unwrap();
        drop(useful.begin());
        tokio::time::advance(Duration::from_secs(1)).await;
        let silent = connections.admit().unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let younger = connections.admit().unwrap();
        let _fourth = connections.admit().unwrap();
        assert!(gone(&silent) && !gone(&useful) && !gone(&younger));
        silent.evicted().await;
        let _fifth = connections.admit().unwrap();
        assert!(gone(&younger) && !gone(&useful));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_in_use_is_never_taken_away() {
        let connections = Connections::new(2);
        let (one, two) = (connections.admit().unwrap(), connections.admit().unwrap());
        let busy = (one.begin(), two.begin());
        assert!(connections.admit().is_none());
        drop(busy);
        assert!(connections.admit().is_some());
    }

    #[tokio::test]
    async fn the_count_follows_whatever_still_holds_a_place() {
        let connections = Connections::new(2);
        let mut count = connections.count();
        let held = connections.admit().unwrap();
        let request = held.begin();
        drop(held);
        assert_eq!(*count.borrow_and_update(), 1, "an answer still belongs to it");
        drop(request);
        assert_eq!(*count.borrow_and_update(), 0);
    }
}
