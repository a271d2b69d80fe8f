//! Bounded mailboxes. The queue lives in a slot that outlives every incarnation of its actor; ractor's own (unbounded)
//! queue carries nothing but wake tokens, at most one at a time.

use crate::limits::PARKED_SENDERS;
use crate::lock;
use crate::shell::Wake;
use choir_messages::mail::Mail;
use choir_messages::reply::{ReplyTo, reply_port};
use ractor::ActorRef;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Span;
use tracing::level_filters::LevelFilter;

/// What a full mailbox does with one more message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The sender waits its turn, at most this long; senders are served in the order they came.
    Wait(Duration),
    /// The sender is told at once.
    Refuse,
    /// The oldest waiting message makes room. Its reply port, if it had one, is dropped.
    DropOldest,
}

/// A mailbox's size and policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailboxSpec {
    /// The most messages that wait; at least one.
    pub capacity: usize,
    /// What happens to the next.
    pub when_full: WhenFull,
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The mailbox is full; try again later.
    #[error("the mailbox is full; try again later")]
    Full,
    /// The mailbox stayed full for as long as the sender may wait.
    #[error("the mailbox stayed full for as long as a sender may wait")]
    Deadline,
    /// The actor has ended for good.
    #[error("the actor has ended for good")]
    Closed,
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request was not taken.
    #[error(transparent)]
    Send(#[from] SendError),
    /// No answer in time. The request may still be handled.
    #[error("no answer within the deadline; the request may still be handled")]
    Deadline,
    /// The actor dropped the request: it crashed while handling it, or ended for good with the request waiting.
    #[error("the actor dropped the request unanswered: it crashed or was stopped")]
    Unanswered,
}

/// Makes a mailbox: the address to give away, and the slot for the child spec of the actor that will read it. Both
/// exist before any actor does, so actors may know each other in circles; what is sent early waits.
#[must_use]
pub fn mailbox<M: Mail>(name: &str, spec: MailboxSpec) -> (Address<M>, Slot<M>) {
    let shared = Arc::new(Shared {
        name: name.into(),
        path: OnceLock::new(),
        capacity: spec.capacity.max(1),
        when_full: spec.when_full,
        generation: AtomicU64::new(0),
        inner: Mutex::new(Inner {
            queue: VecDeque::new(),
            parked: VecDeque::new(),
            open: true,
            target: None,
            starting: 0,
            awake: false,
            busy: None,
            tickets: 0,
        }),
    });
    (Address { shared: Arc::clone(&shared) }, Slot { shared })
}

/// Where messages for one actor go. Cheap to clone, never invalid: it names the place in the tree, not the incarnation.
pub struct Address<M> {
    shared: Arc<Shared<M>>,
}

/// The reading end of a mailbox; belongs to exactly one child spec. When it is dropped the mailbox closes.
pub struct Slot<M> {
    pub(crate) shared: Arc<Shared<M>>,
}

pub(crate) struct Shared<M> {
    name: Box<str>,
    path: OnceLock<Arc<str>>,
    capacity: usize,
    when_full: WhenFull,
    generation: AtomicU64,
    inner: Mutex<Inner<M>>,
}

struct Inner<M> {
    queue: VecDeque<Envelope<M>>,
    /// Messages of senders that wait for room, in order. Only with [`WhenFull::Wait`].
    parked: VecDeque<Parked<M>>,
    open: bool,
    target: Option<ActorRef<Wake>>,
    /// The generation that is starting; 0 for none. Its pipes may end before it reads.
    starting: u64,
    /// Whether a wake token is under way or the actor is draining: then no other is needed.
    awake: bool,
    busy: Option<Busy>,
    tickets: u64,
}

pub(crate) struct Envelope<M> {
    pub(crate) mail: M,
    /// The sender's span, so that the handler's becomes its child.
    pub(crate) span: Span,
    since: Instant,
    /// The generation this message is for, where it came from that incarnation's own pipe or timer; 0 for any.
    only: u64,
}

struct Parked<M> {
    ticket: u64,
    envelope: Envelope<M>,
    taken: oneshot::Sender<()>,
}

#[derive(Clone, Copy)]
struct Busy {
    label: &'static str,
    since: Instant,
    progress: Instant,
}

/// What an operator sees of a mailbox and its reader.
pub(crate) struct Gauge {
    pub(crate) depth: usize,
    pub(crate) capacity: usize,
    pub(crate) waiting_senders: usize,
    pub(crate) oldest: Option<Duration>,
    pub(crate) busy: Option<(&'static str, Duration)>,
}

enum Offer<M> {
    Taken,
    Refused(SendError),
    Parked(ParkedTicket<M>),
}

/// The place in line of one waiting sender; leaves the line when dropped.
struct ParkedTicket<M> {
    shared: Arc<Shared<M>>,
    ticket: u64,
    taken: oneshot::Receiver<()>,
}

impl<M> ParkedTicket<M> {
    /// Leaves the line. `false` if the message had been taken already.
    fn withdraw(&self) -> bool {
        let mut inner = lock(&self.shared.inner);
        let place = inner.parked.iter().position(|parked| parked.ticket == self.ticket);
        let mine = place.and_then(|at| inner.parked.remove(at));
        drop(inner);
        mine.is_some()
    }
}

impl<M> Drop for ParkedTicket<M> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl<M> Shared<M> {
    /// No incarnation will read again: whoever waits for an answer or for room learns it now.
    pub(crate) fn close(&self) {
        let mut inner = lock(&self.inner);
        inner.open = false;
        let queue = std::mem::take(&mut inner.queue);
        let parked = std::mem::take(&mut inner.parked);
        drop(inner);
        drop(queue);
        drop(parked);
    }

    pub(crate) fn path(&self) -> &str {
        self.path.get().map_or(&*self.name, |path| path)
    }
}

impl<M: Mail> Shared<M> {
    fn envelope(mail: M, only: u64) -> Envelope<M> {
        // Without a subscriber this is one load; the span itself costs an allocation only where someone looks at it.
        let span = if LevelFilter::current() == LevelFilter::OFF { Span::none() } else { Span::current() };
        Envelope { mail, span, since: Instant::now(), only }
    }

    /// Offers a message under the mailbox's policy; `wait` says whether the sender can wait.
    fn offer(self: &Arc<Self>, envelope: Envelope<M>, wait: bool) -> Offer<M> {
        let mut inner = lock(&self.inner);
        if !inner.open {
            drop(inner);
            return Offer::Refused(SendError::Closed);
        }
        let mut evicted = None;
        if inner.queue.len() >= self.capacity || !inner.parked.is_empty() {
            match self.when_full {
                // What the actor's own pipes and timers sent is not up for eviction.
                WhenFull::DropOldest => {
                    let oldest = inner.queue.iter().position(|waiting| waiting.only == 0);
                    evicted = oldest.and_then(|at| inner.queue.remove(at));
                }
                WhenFull::Wait(_) if wait && inner.parked.len() < PARKED_SENDERS => {
                    let (taken, rx) = oneshot::channel();
                    inner.tickets += 1;
                    let ticket = inner.tickets;
                    inner.parked.push_back(Parked { ticket, envelope, taken });
                    drop(inner);
                    return Offer::Parked(ParkedTicket { shared: Arc::clone(self), ticket, taken: rx });
                }
                WhenFull::Wait(_) | WhenFull::Refuse => {
                    drop(inner);
                    return Offer::Refused(SendError::Full);
                }
            }
        }
        inner.queue.push_back(envelope);
        let wake = inner.wake();
        // Message destructors and the wake run outside the lock: they may come back here.
        drop(inner);
        drop(evicted);
        nudge(wake);
        Offer::Taken
    }

    /// Adds a message of the actor's own pipe or timer: beyond the capacity if need be, since each of them adds at most
    /// one and their number is bounded. Dropped when the incarnation is no more.
    pub(crate) fn push_own(&self, mail: M, generation: u64) {
        let envelope = Self::envelope(mail, generation);
        let mut inner = lock(&self.inner);
        let living = inner.open && self.generation.load(Ordering::Relaxed) == generation;
        if !living && inner.starting != generation {
            drop(inner);
            return;
        }
        inner.queue.push_back(envelope);
        let wake = inner.wake();
        drop(inner);
        nudge(wake);
    }

    /// The same for a tick that may be left out: not added when the mailbox is full.
    pub(crate) fn push_tick(&self, mail: M, generation: u64) {
        if lock(&self.inner).queue.len() < self.capacity {
            self.push_own(mail, generation);
        }
    }

    /// The next message for this incarnation. `None` puts the actor to rest: the next send wakes it.
    pub(crate) fn take(&self, generation: u64) -> Option<Envelope<M>> {
        let now = Instant::now();
        let mut stale = Vec::new();
        let mut inner = lock(&self.inner);
        let found = loop {
            let Some(envelope) = inner.queue.pop_front() else { break None };
            if envelope.only != 0 && envelope.only != generation {
                stale.push(envelope);
                continue;
            }
            break Some(envelope);
        };
        match &found {
            Some(envelope) => {
                inner.busy = Some(Busy { label: envelope.mail.label(), since: now, progress: now });
            }
            None => {
                inner.busy = None;
                inner.awake = false;
            }
        }
        let admitted = inner.admit(self.capacity);
        // An empty queue may just have been refilled from the line of waiting senders.
        let wake = if found.is_none() { inner.wake() } else { None };
        drop(inner);
        if let Some(taken) = admitted {
            let _ = taken.send(());
        }
        nudge(wake);
        drop(stale);
        found
    }

    /// The batch is over; the actor is between messages.
    pub(crate) fn pause(&self) {
        lock(&self.inner).busy = None;
    }

    /// The handler got on.
    pub(crate) fn progress(&self) {
        if let Some(busy) = &mut lock(&self.inner).busy {
            busy.progress = Instant::now();
        }
    }

    /// The message in hand and when its handler last got on.
    pub(crate) fn busy_since(&self) -> Option<(&'static str, Instant)> {
        lock(&self.inner).busy.map(|busy| (busy.label, busy.progress))
    }

    /// A new incarnation is about to run its first code, and will read once its start has succeeded.
    pub(crate) fn expect(&self, generation: u64) {
        lock(&self.inner).starting = generation;
    }

    /// A new incarnation reads from here on.
    pub(crate) fn attach(&self, target: ActorRef<Wake>, generation: u64) {
        let mut inner = lock(&self.inner);
        self.generation.store(generation, Ordering::Relaxed);
        inner.open = true;
        inner.starting = 0;
        inner.target = Some(target);
        inner.busy = None;
        inner.awake = false;
        let wake = if inner.queue.is_empty() { None } else { inner.wake() };
        drop(inner);
        nudge(wake);
    }

    /// The incarnation reads no more. What waits stays.
    pub(crate) fn detach(&self, generation: u64) {
        let mut inner = lock(&self.inner);
        if self.generation.load(Ordering::Relaxed) == generation {
            inner.target = None;
            inner.busy = None;
        }
    }

    pub(crate) fn place(&self, path: &Arc<str>) {
        let _ = self.path.set(Arc::clone(path));
    }

    pub(crate) fn gauge(&self) -> Gauge {
        let now = Instant::now();
        let inner = lock(&self.inner);
        Gauge {
            depth: inner.queue.len(),
            capacity: self.capacity,
            waiting_senders: inner.parked.len(),
            oldest: inner.queue.front().map(|envelope| now.saturating_duration_since(envelope.since)),
            busy: inner.busy.map(|busy| (busy.label, now.saturating_duration_since(busy.since))),
        }
    }
}

impl<M> Inner<M> {
    /// Whom to wake, if that is not under way already.
    fn wake(&mut self) -> Option<ActorRef<Wake>> {
        if self.awake || self.queue.is_empty() {
            return None;
        }
        let target = self.target.clone()?;
        self.awake = true;
        Some(target)
    }

    /// Lets the first waiting sender's message in, if there is room.
    fn admit(&mut self, capacity: usize) -> Option<oneshot::Sender<()>> {
        if self.queue.len() >= capacity {
            return None;
        }
        let parked = self.parked.pop_front()?;
        self.queue.push_back(parked.envelope);
        Some(parked.taken)
    }
}

/// A failed wake means that the incarnation is ending; the next one looks at the queue first.
fn nudge(target: Option<ActorRef<Wake>>) {
    if let Some(target) = target {
        let _ = target.cast(Wake);
    }
}

impl<M: Mail> Address<M> {
    /// Sends. When the mailbox is full its policy decides; with [`WhenFull::Wait`] this waits for room. Dropping the
    /// future withdraws a message that still waits.
    pub async fn send(&self, mail: M) -> Result<(), SendError> {
        self.send_within(mail, Duration::MAX).await
    }

    async fn send_within(&self, mail: M, limit: Duration) -> Result<(), SendError> {
        match self.shared.offer(Shared::envelope(mail, 0), true) {
            Offer::Taken => Ok(()),
            Offer::Refused(error) => Err(error),
            Offer::Parked(mut ticket) => {
                let policy = match self.shared.when_full {
                    WhenFull::Wait(policy) => policy,
                    WhenFull::Refuse | WhenFull::DropOldest => Duration::ZERO,
                };
                match tokio::time::timeout(policy.min(limit), &mut ticket.taken).await {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err(SendError::Closed),
                    Err(_) if ticket.withdraw() => Err(SendError::Deadline),
                    // Taken, or closed, in the same moment.
                    Err(_) => ticket.taken.try_recv().map_err(|_| SendError::Closed),
                }
            }
        }
    }

    /// Sends without waiting; [`WhenFull::Wait`] then behaves as [`WhenFull::Refuse`]. Works outside a runtime too.
    pub fn try_send(&self, mail: M) -> Result<(), SendError> {
        match self.shared.offer(Shared::envelope(mail, 0), false) {
            Offer::Taken => Ok(()),
            Offer::Refused(error) => Err(error),
            // Not offered to a sender that does not wait.
            Offer::Parked(_) => Err(SendError::Full),
        }
    }

    /// Sends a request and waits for its answer; `deadline` covers both.
    pub async fn call<R>(
        &self,
        deadline: Duration,
        make: impl FnOnce(ReplyTo<R>) -> M,
    ) -> Result<R, CallError> {
        let started = Instant::now();
        let (reply, answer) = reply_port();
        self.send_within(make(reply), deadline).await?;
        match tokio::time::timeout(deadline.saturating_sub(started.elapsed()), answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(CallError::Unanswered),
            Err(_) => Err(CallError::Deadline),
        }
    }

    /// The path in the live tree; before the actor has a place there, the mailbox's name.
    #[must_use]
    pub fn path(&self) -> String {
        self.shared.path().to_owned()
    }

    /// How many incarnations have read this mailbox; 0 before the first.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Relaxed)
    }

    /// Messages waiting now.
    #[must_use]
    pub fn depth(&self) -> usize {
        lock(&self.shared.inner).queue.len()
    }

    /// The most that may wait.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Whether the actor has ended for good, so that every send fails.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !lock(&self.shared.inner).open
    }
}

impl<M> Clone for Address<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M> std::fmt::Debug for Address<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Address({})", self.shared.path())
    }
}

impl<M: Mail> Slot<M> {
    /// The mailbox's name, which is the child's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The address that goes with it.
    #[must_use]
    pub fn address(&self) -> Address<M> {
        Address { shared: Arc::clone(&self.shared) }
    }
}

impl<M> Drop for Slot<M> {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<M> std::fmt::Debug for Slot<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot({})", self.shared.name)
    }
}
