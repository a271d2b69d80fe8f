//! What callers and participants have going on, and where it is too much: calls, large bodies, streams, sockets.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::limits::SMALL_BODY_BYTES;
use crate::refusal::{NOT_DONE, Refusal};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No critical section here calls out, so a panic elsewhere leaves the counters right.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls in flight and calls a second, by account. Account 0, of callers without a token, has no rate.
pub(crate) struct Accounts {
    accounts: Vec<Arc<Mutex<Account>>>,
    in_flight: usize,
    per_second: u32,
}

struct Account {
    in_flight: usize,
    /// Calls that may begin now: a bucket that holds one second's worth.
    allowance: f64,
    filled: Option<Instant>,
}

/// Leave for one call; given back when dropped.
pub(crate) struct CallPermit(Arc<Mutex<Account>>);

impl Drop for CallPermit {
    fn drop(&mut self) {
        let mut account = lock(&self.0);
        account.in_flight = account.in_flight.saturating_sub(1);
    }
}

impl Accounts {
    pub(crate) fn new(accounts: usize, in_flight: usize, per_second: u32) -> Self {
        let fresh = || Account { in_flight: 0, allowance: f64::from(per_second), filled: None };
        let accounts = (0..accounts).map(|_| Arc::new(Mutex::new(fresh()))).collect();
        Self { accounts, in_flight, per_second }
    }

    /// Leave for one call of this account.
    pub(crate) fn begin(&self, account: usize) -> Result<CallPermit, Refusal> {
        let Some(shared) = self.accounts.get(account) else {
            return Err(Refusal::too_many("The caller has no account here."));
        };
        let mut mine = lock(shared);
        if mine.in_flight >= self.in_flight {
            return Err(Refusal::too_many(
                "Too many calls of this caller are in flight. Nothing was done; try again.",
            ));
        }
        if account > 0 {
            let now = Instant::now();
            let rate = f64::from(self.per_second);
            let passed = mine.filled.map_or(0.0, |then| now.saturating_duration_since(then).as_secs_f64());
            mine.allowance = passed.mul_add(rate, mine.allowance).min(rate);
            mine.filled = Some(now);
            if mine.allowance < 1.0 {
                return Err(Refusal::too_many("Too many calls a second. Nothing was done; try again."));
            }
            mine.allowance -= 1.0;
        }
        mine.in_flight += 1;
        drop(mine);
        Ok(CallPermit(Arc::clone(shared)))
    }
}

/// Bytes of large bodies held at once.
#[derive(Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

/// Bytes taken from the budget; given back when dropped.
#[derive(Default)]
pub(crate) struct Reserved {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

/// The budget counts in pieces of this many bytes.
const PIECE_BYTES: usize = 1024;

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / PIECE_BYTES).min(Semaphore::MAX_PERMITS))))
    }

    /// Room for a body that has grown to this length, or a refusal. Nobody waits for room: bodies half read would wait
    /// for one another.
    pub(crate) fn grow(&self, reserved: &mut Reserved, length: usize) -> Result<(), Refusal> {
        let wanted = length.saturating_sub(SMALL_BODY_BYTES);
        let more = wanted.saturating_sub(reserved.bytes).div_ceil(PIECE_BYTES);
        if more == 0 {
            return Ok(());
        }
        let pieces = u32::try_from(more).unwrap_or(u32::MAX);
        let Ok(permit) = Arc::clone(&self.0).try_acquire_many_owned(pieces) else {
            let message = "Too many large calls are under way. Nothing was done; try again.";
            return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, message).code(NOT_DONE));
        };
        reserved.bytes += more * PIECE_BYTES;
        match &mut reserved.permit {
            Some(held) => held.merge(permit),
            None => reserved.permit = Some(permit),
        }
        Ok(())
    }
}

/// Places for what lasts, in all and by whoever has them.
pub(crate) struct Places<K: Eq + Hash> {
    most: usize,
    each: usize,
    /// What is said when all are taken, and when all of one are.
    said: [&'static str; 2],
    taken: Mutex<Taken<K>>,
}

struct Taken<K> {
    all: usize,
    by: HashMap<K, usize>,
}

/// One place; given back when dropped.
pub(crate) struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    key: K,
}

/// Streams of notices, by workspace and participant.
pub(crate) type Streams = Places<(String, String)>;

/// WebSockets, by account.
pub(crate) type Sockets = Places<usize>;

impl Streams {
    pub(crate) fn streams(most: usize, each: usize) -> Arc<Self> {
        let said = [
            "All streams of this server are taken; poll /chap/inbox instead.",
            "This participant has all its streams open already; close one, or poll /chap/inbox.",
        ];
        Self::new(most, each, said)
    }
}

impl Sockets {
    pub(crate) fn sockets(most: usize, each: usize) -> Arc<Self> {
        let said = [
            "All WebSockets of this server are taken; use POST /chap instead.",
            "This caller has all its WebSockets open already; close one, or use POST /chap.",
        ];
        Self::new(most, each, said)
    }
}

impl<K: Eq + Hash + Clone> Places<K> {
    fn new(most: usize, each: usize, said: [&'static str; 2]) -> Arc<Self> {
        Arc::new(Self { most, each, said, taken: Mutex::new(Taken { all: 0, by: HashMap::new() }) })
    }

    /// Places taken now.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.taken).all
    }

    pub(crate) fn begin(self: &Arc<Self>, key: K) -> Result<Place<K>, Refusal> {
        let [all_taken, yours_taken] = self.said;
        let mut taken = lock(&self.taken);
        if taken.all >= self.most {
            return Err(Refusal::too_many(all_taken));
        }
        let yours = taken.by.get(&key).copied().unwrap_or(0);
        if yours >= self.each {
            return Err(Refusal::too_many(yours_taken));
        }
        taken.all += 1;
        taken.by.insert(key.clone(), yours + 1);
        drop(taken);
        Ok(Place { places: Arc::clone(self), key })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.all = taken.all.saturating_sub(1);
        if let Some(yours) = taken.by.get_mut(&self.key) {
            *yours = yours.saturating_sub(1);
            if *yours == 0 {
                taken.by.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_caller_has_so_many_calls_in_flight_and_a_second() {
        let accounts = Accounts::new(3, 2, 4);
        let first = accounts.begin(1).map_err(|refusal| refusal.message).unwrap();
        let _second = accounts.begin(1).map_err(|refusal| refusal.message).unwrap();
        assert!(accounts.begin(1).is_err(), "a third in flight");
        drop(first);
        for _ in 0..2 {
            assert!(accounts.begin(1).is_ok());
        }
        assert!(accounts.begin(1).is_err(), "a fifth in the second");
        assert!(accounts.begin(2).is_ok(), "another's");
        tokio::time::advance(Duration::from_millis(250)).await;
        assert!(accounts.begin(1).is_ok(), "a quarter of a second later");
        assert!(accounts.begin(1).is_err());
        for _ in 0..100 {
            assert!(accounts.begin(0).is_ok(), "callers without a token have no rate");
        }
        assert!(accounts.begin(3).is_err(), "no such account");
    }

    #[test]
    fn large_bodies_share_a_budget_and_small_ones_need_none() {
        let budget = Budget::new(10 * PIECE_BYTES);
        let large = |kib: usize| SMALL_BODY_BYTES + kib * PIECE_BYTES;
        let (mut one, mut two, mut small) = (Reserved::default(), Reserved::default(), Reserved::default());
        for kib in [1, 2, 6] {
            assert_eq!(budget.grow(&mut one, large(kib)), Ok(()));
        }
        assert_eq!(budget.grow(&mut two, large(4)), Ok(()));
        assert!(budget.grow(&mut two, large(5)).is_err(), "all ten are taken");
        assert_eq!(budget.grow(&mut small, SMALL_BODY_BYTES), Ok(()));
        drop(one);
        assert_eq!(budget.grow(&mut two, large(10)), Ok(()));
        drop(two);
        assert_eq!(budget.0.available_permits(), 10);
    }

    #[test]
    fn streams_are_counted_in_all_and_by_participant_and_forgotten() {
        let streams = Streams::streams(3, 2);
        let begin = |workspace: &str, uri: &str| streams.begin((workspace.to_owned(), uri.to_owned()));
        let one = begin("w", "human:a");
        let _two = begin("w", "human:a");
        assert!(begin("w", "human:a").is_err());
        let three = begin("w", "human:b");
        assert!(begin("v", "human:c").is_err(), "all are taken");
        drop(one);
        assert!(begin("v", "human:c").is_ok());
        drop(three);
        assert_eq!(streams.taken(), 1);
        assert_eq!(lock(&streams.taken).by.len(), 1);
    }
}
