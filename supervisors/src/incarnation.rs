//! One run of one child: the orders given to it, why it ends, and the census of what it has left alive.

use crate::exit::Exit;
use crate::lock;
use crate::panics;
use crate::shell::Wake;
use crate::supervisor::SupMsg;
use futures_util::task::AtomicWaker;
use ractor::ActorRef;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use tokio::sync::Notify;

/// Ordered: finish the message in hand, then stop.
const STOP: u8 = 1;
/// Killed: handle nothing more.
const DOOMED: u8 = 2;
/// Panic at the next step.
const CRASH: u8 = 4;
/// The stop is for good: nothing in the mailbox will be read.
const LAST: u8 = 8;
/// It stops itself once its handler returns.
const SELF: u8 = 16;

pub(crate) struct Incarnation {
    pub(crate) path: Arc<str>,
    pub(crate) generation: u64,
    pub(crate) census: Arc<Census>,
    orders: AtomicU8,
    cause: Mutex<Option<Exit>>,
    body: Mutex<Option<Body>>,
    /// Wakes the keeper, which carries out stops and deadlines.
    pub(crate) keeper: Notify,
    /// Wakes the handler in hand, so that a crash does not wait for what the handler awaits.
    handler: AtomicWaker,
}

/// The ractor actor that runs it.
#[derive(Clone)]
pub(crate) enum Body {
    Worker(ActorRef<Wake>),
    Supervisor(ActorRef<SupMsg>),
}

impl Incarnation {
    pub(crate) fn new(path: Arc<str>, generation: u64, parent: &Arc<Census>) -> Arc<Self> {
        Arc::new(Self {
            path,
            generation,
            census: Census::below(parent),
            orders: AtomicU8::new(0),
            cause: Mutex::new(None),
            body: Mutex::new(None),
            keeper: Notify::new(),
            handler: AtomicWaker::new(),
        })
    }

    /// The ractor actor exists from now on. A kill that came before strikes it now.
    pub(crate) fn embody(&self, body: Body) {
        *lock(&self.body) = Some(body.clone());
        if self.is_doomed() {
            body.kill();
        }
    }

    /// Notes why it ends; the first reason stands.
    pub(crate) fn blame(&self, exit: Exit) {
        lock(&self.cause).get_or_insert(exit);
    }

    /// Notes why it ends, where that makes an orderly end a bad one.
    pub(crate) fn convict(&self, exit: Exit) {
        let mut cause = lock(&self.cause);
        if cause.as_ref().is_none_or(Exit::is_normal) {
            *cause = Some(exit);
        }
    }

    /// Why it ended. Without a reason someone outside ended it, which counts as a kill.
    pub(crate) fn exit(&self) -> Exit {
        lock(&self.cause).clone().unwrap_or(Exit::Killed)
    }

    /// Orders a stop; the keeper carries it out.
    pub(crate) fn order_stop(&self, last: bool) {
        self.orders.fetch_or(STOP | if last { LAST } else { 0 }, Ordering::AcqRel);
        self.keeper.notify_one();
    }

    /// It stops itself. The keeper hears of it, since that takes no longer than any other stop.
    pub(crate) fn stop_self(&self) {
        self.blame(Exit::Normal);
        self.orders.fetch_or(SELF, Ordering::AcqRel);
        self.keeper.notify_one();
    }

    /// Kills it for this reason, at its next await.
    pub(crate) fn kill(&self, exit: Exit) {
        self.convict(exit);
        self.orders.fetch_or(DOOMED, Ordering::AcqRel);
        let body = lock(&self.body).clone();
        if let Some(body) = body {
            body.kill();
        }
        // Not embodied yet: the keeper drops the start.
        self.keeper.notify_one();
    }

    /// Makes it panic, in the middle of a handler or between messages.
    pub(crate) fn crash(&self) {
        self.orders.fetch_or(CRASH, Ordering::AcqRel);
        self.handler.wake();
        match lock(&self.body).clone() {
            Some(Body::Worker(actor)) => {
                let _ = actor.cast(Wake);
            }
            Some(Body::Supervisor(actor)) => {
                let _ = actor.cast(SupMsg::Crash);
            }
            None => {}
        }
    }

    /// Asks the ractor actor to stop as ordered.
    pub(crate) fn ask_to_stop(&self) {
        self.blame(Exit::Shutdown);
        match lock(&self.body).clone() {
            Some(Body::Worker(actor)) => actor.stop(None),
            Some(Body::Supervisor(actor)) => {
                let _ = actor.cast(SupMsg::Shutdown { last: self.is_last() });
            }
            None => {}
        }
    }

    /// Whether no further message is to be handled.
    pub(crate) fn is_stopping(&self) -> bool {
        self.orders.load(Ordering::Acquire) & (STOP | SELF | DOOMED) != 0
    }

    /// Whether its supervisor or someone outside wants it to end.
    pub(crate) fn is_ordered_to_end(&self) -> bool {
        self.orders.load(Ordering::Acquire) & (STOP | DOOMED) != 0
    }

    pub(crate) fn is_doomed(&self) -> bool {
        self.orders.load(Ordering::Acquire) & DOOMED != 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.orders.load(Ordering::Acquire) & LAST != 0
    }

    pub(crate) fn crash_if_ordered(&self) {
        assert!(self.orders.load(Ordering::Relaxed) & CRASH == 0, "crashed on request");
    }
}

impl Body {
    fn kill(&self) {
        match self {
            Self::Worker(actor) => actor.kill(),
            Self::Supervisor(actor) => actor.kill(),
        }
    }
}

/// Polls an actor's code so that a panic in it becomes an [`Exit`], and so that an ordered crash strikes at once.
pub(crate) struct Guarded<'a, F> {
    /// Whose crash orders it obeys.
    incarnation: Option<&'a Incarnation>,
    future: Pin<&'a mut F>,
}

impl<'a, F: Future> Guarded<'a, F> {
    pub(crate) fn new(incarnation: &'a Incarnation, future: Pin<&'a mut F>) -> Self {
        Self { incarnation: Some(incarnation), future }
    }

    /// Without crash orders: for an actor's pipes and timers, where a crash goes to the actor.
    pub(crate) fn alone(future: Pin<&'a mut F>) -> Self {
        Self { incarnation: None, future }
    }
}

impl<F: Future> Future for Guarded<'_, F> {
    type Output = Result<F::Output, Exit>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let incarnation = self.incarnation;
        if let Some(incarnation) = incarnation {
            incarnation.handler.register(cx.waker());
        }
        let future = self.future.as_mut();
        match panics::catch(|| {
            if let Some(incarnation) = incarnation {
                incarnation.crash_if_ordered();
            }
            future.poll(cx)
        }) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(exit) => Poll::Ready(Err(exit)),
        }
    }
}

/// Counts what lives below a place in the tree: actor states, pipes, timers, and those of all descendants.
pub(crate) struct Census {
    parent: Option<Arc<Census>>,
    living: AtomicUsize,
    nobody: Notify,
}

/// One living thing. Held next to what it stands for and dropped after it.
pub(crate) struct Token(Arc<Census>);

impl Census {
    pub(crate) fn root() -> Arc<Self> {
        Arc::new(Self { parent: None, living: AtomicUsize::new(0), nobody: Notify::new() })
    }

    pub(crate) fn below(parent: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            parent: Some(Arc::clone(parent)),
            living: AtomicUsize::new(0),
            nobody: Notify::new(),
        })
    }

    pub(crate) fn token(self: &Arc<Self>) -> Token {
        self.enter();
        Token(Arc::clone(self))
    }

    pub(crate) fn living(&self) -> usize {
        self.living.load(Ordering::Acquire)
    }

    /// Waits until nothing lives here.
    pub(crate) async fn deserted(&self) {
        loop {
            let mut nobody = std::pin::pin!(self.nobody.notified());
            nobody.as_mut().enable();
            if self.living() == 0 {
                return;
            }
            nobody.await;
        }
    }

    fn enter(&self) {
        self.living.fetch_add(1, Ordering::AcqRel);
        if let Some(parent) = &self.parent {
            parent.enter();
        }
    }

    /// From the root down, so that whoever sees a place deserted sees all above it without it too.
    fn leave(&self) {
        if let Some(parent) = &self.parent {
            parent.leave();
        }
        if self.living.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.nobody.notify_waiters();
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_is_deserted_when_its_last_descendant_is_gone() {
        let root = Census::root();
        let child = Census::below(&root);
        let grandchild = Census::below(&child);
        let (one, two) = (child.token(), grandchild.token());
        assert_eq!((root.living(), child.living(), grandchild.living()), (2, 2, 1));
        drop(one);
        let waiting = tokio::spawn({
            let root = Arc::clone(&root);
            async move { root.deserted().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(two);
        waiting.await.unwrap();
        assert_eq!(root.living(), 0);
    }

    #[test]
    fn a_bad_end_overrides_an_orderly_one_and_the_first_bad_one_stands() {
        let incarnation = Incarnation::new("a".into(), 1, &Census::root());
        assert_eq!(incarnation.exit(), Exit::Killed);
        incarnation.blame(Exit::Shutdown);
        incarnation.blame(Exit::Normal);
        assert_eq!(incarnation.exit(), Exit::Shutdown);
        incarnation.convict(Exit::Failed("first".into()));
        incarnation.convict(Exit::Killed);
        assert_eq!(incarnation.exit(), Exit::Failed("first".into()));
    }
}
