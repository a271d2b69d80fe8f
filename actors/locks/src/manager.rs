//! The lock table itself: plain data, no clock of its own, no IO (`choir §9`).

use choir_messages::id::InvocationId;
use choir_messages::mail::{HeldLock, LockRefused, LockTable};
use choir_messages::tool::{Lane, LockSpec};

use crate::bounds::{MAX_LOCKS_PER_SET, MAX_REQUESTS, MAX_WAIT_MS, MAX_WAITING};
use crate::invariants;
use crate::lockset::LockSet;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEvent {
    /// A call asks for its lockset.
    Acquire(Request),
    /// A call lets go of everything it holds, or of its place in the queue. Unknown calls are ignored: release happens
    /// on every exit, also on those that never held anything.
    Release {
        /// The call.
        invocation: InvocationId,
    },
    /// A new arbiter has begun: everything held or awaited is void.
    NewEpoch,
    /// Time has passed.
    Tick,
}

/// A request for a lockset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The lane that will hold it.
    pub owner: Lane,
    /// The call it is for.
    pub invocation: InvocationId,
    /// The locks, in any order, with repeats if need be; at most [`MAX_LOCKS_PER_SET`].
    pub locks: Vec<LockSpec>,
    /// Longest wait in milliseconds, cut to [`MAX_WAIT_MS`]; 0 asks for now or never.
    pub wait_ms: u64,
}

/// Where a request stood when it was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It is the request of this very event and never waited.
    Door,
    /// It waited in the queue.
    Queue,
}

/// What must be done now, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell the call that it holds its whole set.
    Grant {
        /// The call.
        invocation: InvocationId,
        /// Where it stood.
        from: Origin,
        /// How long it waited.
        waited_ms: u64,
    },
    /// Tell the call that it gets nothing.
    Refuse {
        /// The call.
        invocation: InvocationId,
        /// Where it stood.
        from: Origin,
        /// Why.
        why: LockRefused,
    },
    /// A granted set was let go of; for logs and metrics only.
    Released {
        /// The call.
        invocation: InvocationId,
        /// How long it was held.
        held_ms: u64,
    },
}

/// A granted set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) owner: Lane,
    pub(crate) invocation: InvocationId,
    pub(crate) set: LockSet,
    pub(crate) since_ms: u64,
}

/// A request in the queue. It holds nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub(crate) owner: Lane,
    pub(crate) invocation: InvocationId,
    pub(crate) set: LockSet,
    pub(crate) since_ms: u64,
    pub(crate) deadline_ms: u64,
    /// One of those in its way, held or further ahead in the queue. As long as that one stays, this one cannot be
    /// granted, so a release looks again only at the waiters whose blocker it removed.
    pub(crate) blocker: InvocationId,
}

/// The lock manager: who holds what, and who waits, in order.
///
/// A request is granted when its whole set is compatible with every held set **and** with every set that waits ahead
/// of it. So a later request overtakes an earlier one only where both could be held together, which cannot delay the
/// earlier one; nobody starves, and a waiting X keeps out every new S that would get in its way (writer preference).
/// Readers who waited before the writer came still go first: a stream of writers cannot starve them.
///
/// The one exception is the dirty read (`choir §9.4`): while a core job holds `workspace:X`, the edge lane's
/// `file:<path>:S` is compatible with everything, held or waiting. It ends with that core job's hold; writers then
/// wait for the dirty reads still open but for no new ones. It is about core jobs only: edge's own `workspace:X` keeps
/// edge's reads out like anybody's. Two calls of one lane exclude each other as calls of different lanes do.
///
/// All-or-nothing grants mean that nobody holds anything while waiting, so there is no deadlock, and no lock is ever
/// upgraded: a call that holds or awaits a set and asks again is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LockManager {
    /// In the order of their grants.
    pub(crate) held: Vec<Held>,
    /// In the order of their arrival.
    pub(crate) waiting: Vec<Waiter>,
}

impl LockManager {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one event at `now_ms`, milliseconds of any clock that does not run backwards. Deadlines that have passed
    /// are dealt with first, whatever the event is.
    ///
    /// # Panics
    ///
    /// In debug builds, when one of the [`invariants`] does not hold after the step: that is an error in this crate,
    /// never in the input.
    pub fn step(&mut self, event: LockEvent, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        if event != LockEvent::Tick && self.next_deadline_ms().is_some_and(|deadline| deadline <= now_ms) {
            actions = self.checked(LockEvent::Tick, now_ms);
        }
        actions.append(&mut self.checked(event, now_ms));
        actions
    }

    fn checked(&mut self, event: LockEvent, now_ms: u64) -> Vec<Action> {
        if !cfg!(debug_assertions) {
            return self.step_unchecked(event, now_ms);
        }
        let (before, told) = (self.clone(), event.clone());
        let actions = self.step_unchecked(event, now_ms);
        let step = invariants::Step { before: &before, event: &told, now_ms, actions: &actions, after: self };
        let broken = invariants::broken_by(&step);
        assert!(broken.is_empty(), "lock invariants broken: {broken:?}\nby {step:#?}");
        actions
    }

    /// This one event and nothing else: deadlines are looked at by [`LockEvent::Tick`] only, and nothing is checked.
    /// For model checkers, which order the ticks and check the invariants themselves.
    pub fn step_unchecked(&mut self, event: LockEvent, now_ms: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            LockEvent::Acquire(request) => actions.extend(self.acquire(request, now_ms)),
            LockEvent::Release { invocation } => self.release(invocation, now_ms, &mut actions),
            LockEvent::NewEpoch => self.void(now_ms, &mut actions),
            LockEvent::Tick => self.expire(now_ms, &mut actions),
        }
        actions
    }

    /// When the next waiter runs out of time, if anybody waits.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.waiting.iter().map(|waiter| waiter.deadline_ms).min()
    }

    /// The table for operators: held sets oldest first, waiting ones in order.
    #[must_use]
    pub fn table(&self, now_ms: u64) -> LockTable {
        LockTable {
            held: self
                .held
                .iter()
                .map(|held| HeldLock {
                    owner: held.owner.clone(),
                    invocation: held.invocation,
                    locks: held.set.locks().to_vec(),
                    age_ms: now_ms.saturating_sub(held.since_ms),
                })
                .collect(),
            waiting: self
                .waiting
                .iter()
                .map(|waiter| HeldLock {
                    owner: waiter.owner.clone(),
                    invocation: waiter.invocation,
                    locks: waiter.set.locks().to_vec(),
                    age_ms: now_ms.saturating_sub(waiter.since_ms),
                })
                .collect(),
        }
    }

    /// How many sets are held and how many requests wait.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.held.len(), self.waiting.len())
    }

    /// The verdict on a new request, or nothing when it waits.
    fn acquire(&mut self, request: Request, now_ms: u64) -> Option<Action> {
        let Request { owner, invocation, locks, wait_ms } = request;
        let refuse = |why| Some(Action::Refuse { invocation, from: Origin::Door, why });
        if locks.len() > MAX_LOCKS_PER_SET {
            return refuse(LockRefused::TooMany { limit: MAX_LOCKS_PER_SET as u32 });
        }
        if self.knows(invocation) {
            return refuse(LockRefused::Duplicate);
        }
        let granted = Some(Action::Grant { invocation, from: Origin::Door, waited_ms: 0 });
        let set = LockSet::canonical(locks);
        if set.locks().is_empty() {
            // A tool without locks never blocks (`choir §9.5`), and there is nothing to remember.
            return granted;
        }
        if self.held.len() + self.waiting.len() >= MAX_REQUESTS {
            return refuse(LockRefused::QueueFull { waiting: self.waiting.len() as u32 });
        }
        let Some(blocker) = self.in_the_way(&owner, &set, self.waiting.len()) else {
            self.held.push(Held { owner, invocation, set, since_ms: now_ms });
            return granted;
        };
        let deadline_ms = now_ms.saturating_add(wait_ms.min(MAX_WAIT_MS));
        let waiter = Waiter { owner, invocation, set, since_ms: now_ms, deadline_ms, blocker };
        if wait_ms == 0 {
            return refuse(self.too_late(&waiter, now_ms));
        }
        if self.waiting.len() >= MAX_WAITING {
            return refuse(LockRefused::QueueFull { waiting: self.waiting.len() as u32 });
        }
        self.waiting.push(waiter);
        None
    }

    fn knows(&self, invocation: InvocationId) -> bool {
        self.held.iter().any(|held| held.invocation == invocation)
            || self.waiting.iter().any(|waiter| waiter.invocation == invocation)
    }

    fn release(&mut self, invocation: InvocationId, now_ms: u64, actions: &mut Vec<Action>) {
        if let Some(at) = self.held.iter().position(|held| held.invocation == invocation) {
            let held = self.held.remove(at);
            actions.push(Action::Released { invocation, held_ms: now_ms.saturating_sub(held.since_ms) });
        } else if let Some(at) = self.waiting.iter().position(|waiter| waiter.invocation == invocation) {
            self.waiting.remove(at);
            actions.push(Action::Refuse { invocation, from: Origin::Queue, why: LockRefused::Void });
        } else {
            return;
        }
        self.settle(&[invocation], now_ms, actions);
    }

    fn void(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        actions.extend(self.waiting.drain(..).map(|waiter| Action::Refuse {
            invocation: waiter.invocation,
            from: Origin::Queue,
            why: LockRefused::Void,
        }));
        actions.extend(self.held.drain(..).map(|held| Action::Released {
            invocation: held.invocation,
            held_ms: now_ms.saturating_sub(held.since_ms),
        }));
    }

    fn expire(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        // The reasons first: they are found by following blockers through the queue as it is now.
        let (gone, refusals): (Vec<_>, Vec<_>) = self
            .waiting
            .iter()
            .filter(|waiter| waiter.deadline_ms <= now_ms)
            .map(|waiter| {
                let why = self.too_late(waiter, now_ms);
                (
                    waiter.invocation,
                    Action::Refuse { invocation: waiter.invocation, from: Origin::Queue, why },
                )
            })
            .unzip();
        actions.extend(refusals);
        self.waiting.retain(|waiter| waiter.deadline_ms > now_ms);
        self.settle(&gone, now_ms, actions);
    }

    /// Grants what can be granted now that the sets of `gone` are no longer in anybody's way.
    ///
    /// One pass from the front is enough. A grant removes nobody's blocker: the granted set stays in the way of the
    /// same requests, now as a holder. All it can do is open the dirty-read exception, and then only for requests
    /// behind it, for a file read ahead of a `workspace:X` would have kept that from being granted.
    fn settle(&mut self, gone: &[InvocationId], now_ms: u64, actions: &mut Vec<Action>) {
        let mut dirty_reads_opened = false;
        let mut place = 0;
        while let Some(waiter) = self.waiting.get(place) {
            let look_again =
                gone.contains(&waiter.blocker) || (dirty_reads_opened && waiter.owner == Lane::Edge);
            if look_again {
                match self.in_the_way(&waiter.owner, &waiter.set, place) {
                    Some(blocker) => {
                        if let Some(waiter) = self.waiting.get_mut(place) {
                            waiter.blocker = blocker;
                        }
                    }
                    None => {
                        let Waiter { owner, invocation, set, since_ms, .. } = self.waiting.remove(place);
                        dirty_reads_opened |= set.opens_dirty_reads(&owner);
                        self.held.push(Held { owner, invocation, set, since_ms: now_ms });
                        let waited_ms = now_ms.saturating_sub(since_ms);
                        actions.push(Action::Grant { invocation, from: Origin::Queue, waited_ms });
                        continue;
                    }
                }
            }
            place += 1;
        }
    }

    /// Somebody who keeps `owner` from taking `set`: a holder, else one of the first `ahead` waiters.
    fn in_the_way(&self, owner: &Lane, set: &LockSet, ahead: usize) -> Option<InvocationId> {
        let dirty = self.may_read_dirtily(owner);
        let holder = self.held.iter().find(|held| set.excluded_by(&held.set, dirty).is_some());
        holder.map(|held| held.invocation).or_else(|| {
            let mut queue = self.waiting.iter().take(ahead);
            queue.find(|waiter| set.excluded_by(&waiter.set, dirty).is_some()).map(|waiter| waiter.invocation)
        })
    }

    /// Whether `owner`'s file reads are under the dirty-read exception now (`choir §9.4`).
    pub(crate) fn may_read_dirtily(&self, owner: &Lane) -> bool {
        *owner == Lane::Edge && self.held.iter().any(|held| held.set.opens_dirty_reads(&held.owner))
    }

    /// The refusal of a waiter that has run out of time. Names the holder at the root of its wait: when the one in its
    /// way waits itself, whoever that one waits for, and so on. Blockers are always further ahead, so this ends.
    fn too_late(&self, waiter: &Waiter, now_ms: u64) -> LockRefused {
        let waited_ms = now_ms.saturating_sub(waiter.since_ms);
        let mut last = waiter;
        while let Some(next) = self.waiting.iter().find(|other| other.invocation == last.blocker) {
            last = next;
        }
        let holder = self.held.iter().find(|held| held.invocation == last.blocker);
        let held = holder.and_then(|held| Some((held, last.set.excluded_by(&held.set, false)?)));
        match held {
            Some((held, lock)) => LockRefused::Deadline {
                waited_ms,
                blocked_by: held.owner.to_string(),
                resource: lock.resource.to_string(),
            },
            // Not reached while the invariants hold; the refusal is then still true, only less helpful.
            None => LockRefused::Deadline {
                waited_ms,
                blocked_by: "another call".to_owned(),
                resource: waiter
                    .set
                    .locks()
                    .first()
                    .map_or_else(String::new, |lock| lock.resource.to_string()),
            },
        }
    }
}
