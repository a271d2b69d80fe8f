//! What a component implements, and what its handlers can ask of their surroundings.

use crate::exit::{Exit, Failure};
use crate::incarnation::{Guarded, Incarnation, Token};
use crate::limits::TASKS_PER_ACTOR;
use crate::mailbox::{Address, Shared};
use choir_messages::mail::Mail;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

/// A component: usually a thin shell that feeds messages to a sans-IO core and carries its actions out.
///
/// One value is one incarnation. The factory of the child spec makes it; a restart drops it and makes another.
pub trait Actor: Sized + Send + 'static {
    /// Its mailbox.
    type Msg: Mail;

    /// Runs once, after the factory and before the first message; the child counts as started when it is over. An
    /// error is a failed start.
    fn started(&mut self, cx: &mut Context<Self::Msg>) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = cx;
        async { Ok(()) }
    }

    /// Handles one message. An error ends the incarnation as [`Exit::Failed`]: its supervisor decides what follows.
    fn handle(
        &mut self,
        msg: Self::Msg,
        cx: &mut Context<Self::Msg>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Runs last, on a shutdown and after [`Context::stop`]; not after a kill, a panic or a failure. Its time is part
    /// of the shutdown deadline. Pipes and timers still run, but nothing they deliver is handled any more.
    fn stopping(&mut self, cx: &mut Context<Self::Msg>) -> impl Future<Output = ()> + Send {
        let _ = cx;
        async {}
    }
}

/// What the factory is told.
pub struct StartContext<M> {
    pub(crate) address: Address<M>,
    pub(crate) generation: u64,
    pub(crate) previous: Option<Exit>,
}

impl<M: Mail> StartContext<M> {
    /// The address the new incarnation will read.
    #[must_use]
    pub fn address(&self) -> Address<M> {
        self.address.clone()
    }

    /// Which incarnation this is; the first is 1.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// How the incarnation before ended; `None` for the first.
    #[must_use]
    pub const fn previous(&self) -> Option<&Exit> {
        self.previous.as_ref()
    }

    /// The path in the live tree.
    #[must_use]
    pub fn path(&self) -> String {
        self.address.path()
    }
}

/// An actor's surroundings, for as long as this incarnation lives.
pub struct Context<M> {
    incarnation: Arc<Incarnation>,
    slot: Arc<Shared<M>>,
    address: Address<M>,
    tasks: JoinSet<()>,
}

/// The incarnation has [`TASKS_PER_ACTOR`] pipes and timers already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the actor has {TASKS_PER_ACTOR} pipes and timers running already")]
pub struct TooManyTasks;

/// A running pipe. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct TaskHandle(AbortHandle);

impl TaskHandle {
    /// Ends the future at its next await; its message is not sent, unless it was already.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Where an actor waits for one answer, without waiting: see [`Context::reply_to_self`]. Dropping it unanswered tells the
/// actor so at once.
pub struct ReplyToSelf<T>(Option<Box<dyn FnOnce(Option<T>) + Send>>);

impl<T> ReplyToSelf<T> {
    /// Answers.
    pub fn send(mut self, answer: T) {
        if let Some(deliver) = self.0.take() {
            deliver(Some(answer));
        }
    }

    /// Gives the port back: the actor hears nothing.
    pub fn withdraw(mut self) {
        self.0 = None;
    }
}

impl<T> Drop for ReplyToSelf<T> {
    fn drop(&mut self) {
        if let Some(deliver) = self.0.take() {
            deliver(None);
        }
    }
}

impl<T> std::fmt::Debug for ReplyToSelf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplyToSelf(..)")
    }
}

/// A running timer. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct TimerHandle(AbortHandle);

impl TimerHandle {
    /// Stops the timer. A message it sent already stays in the mailbox.
    pub fn cancel(&self) {
        self.0.abort();
    }
}

impl<M: Mail> Context<M> {
    pub(crate) fn new(incarnation: Arc<Incarnation>, slot: Arc<Shared<M>>, address: Address<M>) -> Self {
        Self { incarnation, slot, address, tasks: JoinSet::new() }
    }

    /// The actor's own address.
    #[must_use]
    pub fn address(&self) -> Address<M> {
        self.address.clone()
    }

    /// The path in the live tree.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.incarnation.path
    }

    /// Which incarnation this is; the first is 1.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.incarnation.generation
    }

    /// Ends this incarnation as [`Exit::Normal`] once the handler returns: no further message is handled, then
    /// [`Actor::stopping`] runs. What waits in the mailbox stays for a replacement, if there is one.
    pub fn stop(&mut self) {
        self.incarnation.stop_self();
    }

    /// Whether this incarnation is about to stop, so that a long handler may end early.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.incarnation.is_stopping()
    }

    /// Says that a long handler gets on: the deadline of [`stuck_after`](crate::ChildSpec::stuck_after) starts anew.
    pub fn progress(&self) {
        self.slot.progress();
    }

    /// Runs a future beside the actor and sends what `map` makes of its output to the actor itself, even if the mailbox
    /// is full. The future belongs to this incarnation: it is aborted when the incarnation ends, a replacement never
    /// gets its message, and if it panics the actor has panicked.
    pub fn pipe_to_self<F, T>(
        &mut self,
        future: F,
        map: impl FnOnce(F::Output) -> M + Send + 'static,
    ) -> Result<TaskHandle, TooManyTasks>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        let (incarnation, slot) = (Arc::clone(&self.incarnation), Arc::clone(&self.slot));
        let work = async move {
            let mail = map(future.await);
            slot.push_own(mail, incarnation.generation);
        };
        self.spawn(work).map(TaskHandle)
    }

    /// Runs a future beside the actor, which hears nothing of it. In all else it is as with
    /// [`Context::pipe_to_self`].
    ///
    /// # Errors
    /// [`TooManyTasks`]; the future is dropped.
    pub fn run_beside(
        &mut self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<TaskHandle, TooManyTasks> {
        self.spawn(future).map(TaskHandle)
    }

    /// A reply port whose answer comes to the actor as a message, even if the mailbox is full: `map` is given the answer,
    /// or nothing if the port was dropped without one. The message is for this incarnation; a replacement never gets it.
    /// Whoever makes ports bounds their number.
    pub fn reply_to_self<T>(&self, map: impl FnOnce(Option<T>) -> M + Send + 'static) -> ReplyToSelf<T> {
        let (generation, slot) = (self.incarnation.generation, Arc::clone(&self.slot));
        ReplyToSelf(Some(Box::new(move |answer| slot.push_own(map(answer), generation))))
    }

    /// Sends a message to the actor itself after this time, even if the mailbox is full, unless the incarnation has
    /// ended by then.
    pub fn send_after(&mut self, delay: Duration, mail: M) -> Result<TimerHandle, TooManyTasks> {
        let due = Instant::now().checked_add(delay);
        let (incarnation, slot) = (Arc::clone(&self.incarnation), Arc::clone(&self.slot));
        let work = async move {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                // Later than the clock can say.
                None => std::future::pending().await,
            }
            slot.push_own(mail, incarnation.generation);
        };
        self.spawn(work).map(TimerHandle)
    }

    /// Sends a message to the actor itself every `period`, first after one period. A tick that finds the mailbox full
    /// is left out, and ticks missed by a busy machine are not made up for. A period of zero is one millisecond.
    pub fn send_interval(
        &mut self,
        period: Duration,
        mut make: impl FnMut() -> M + Send + 'static,
    ) -> Result<TimerHandle, TooManyTasks> {
        let (incarnation, slot) = (Arc::clone(&self.incarnation), Arc::clone(&self.slot));
        let period = period.max(Duration::from_millis(1));
        let work = async move {
            let mut ticks = tokio::time::interval(period);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            ticks.tick().await;
            loop {
                ticks.tick().await;
                slot.push_tick(make(), incarnation.generation);
            }
        };
        // Ticks outlive whatever the actor was doing when it asked for them.
        self.spawn_in(Span::none(), work).map(TimerHandle)
    }

    /// Pipes and timers running now.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    fn spawn(
        &mut self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<AbortHandle, TooManyTasks> {
        self.spawn_in(Span::current(), work)
    }

    fn spawn_in(
        &mut self,
        span: Span,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<AbortHandle, TooManyTasks> {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= TASKS_PER_ACTOR {
            return Err(TooManyTasks);
        }
        let incarnation = Arc::clone(&self.incarnation);
        let task = Task { work: Box::pin(work), _token: incarnation.census.token() };
        let guarded = async move {
            let mut task = task;
            // The panic is the actor's, so it counts as one and the incarnation ends.
            if let Err(exit) = Guarded::alone(task.work.as_mut()).await {
                incarnation.kill(exit);
            }
        };
        Ok(self.tasks.spawn(guarded.instrument(span)))
    }
}

/// A pipe or timer with its entry in the census, which goes last.
struct Task<F> {
    work: std::pin::Pin<Box<F>>,
    _token: Token,
}

impl<M> std::fmt::Debug for Context<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} #{})", self.incarnation.path, self.incarnation.generation)
    }
}
