//! One task beside each incarnation that starts it under a deadline, carries out stops (ask, then kill, then abort),
//! watches for a stuck handler, and tells the supervisor of the end only when nothing of the incarnation is left:
//! ractor itself reports an exit before the old state is dropped and before grandchildren are gone.

use crate::exit::Exit;
use crate::incarnation::{Incarnation, Token};
use crate::limits::{GONE_WITHIN, SHUTDOWN_WITHIN};
use crate::node::{Launched, Node};
use crate::spec::Shutdown;
use crate::tree::Universe;
use futures_util::future::BoxFuture;
use ractor::ActorCell;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// What a keeper tells its supervisor.
#[derive(Debug)]
pub(crate) enum Word {
    Started,
    NotStarted(Exit),
    Ended(Exit),
    /// Killed and aborted, and still there.
    Immovable,
}

pub(crate) struct Keeper {
    pub(crate) node: Arc<Node>,
    pub(crate) incarnation: Arc<Incarnation>,
    /// The incarnation's entry in the census; handed to it at its start.
    pub(crate) token: Token,
    /// `None` for the root.
    pub(crate) supervisor: Option<ActorCell>,
    pub(crate) previous: Option<Exit>,
    pub(crate) universe: Arc<Universe>,
    pub(crate) tell: Box<dyn Fn(Word) + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    Asked,
    Killed,
    Aborted,
}

impl Keeper {
    /// Boxed by hand: a keeper starts supervisors, whose keepers start supervisors.
    pub(crate) fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let Self { node, incarnation, token, supervisor, previous, universe, tell } = self;
            let start =
                node.launch(Arc::clone(&incarnation), token, supervisor, previous, Arc::clone(&universe));
            let watch = Watch { node, incarnation, universe, tell };
            let word = watch.keep(start).await;
            (watch.tell)(word);
        })
    }
}

/// What a keeper needs once the start is under way.
struct Watch {
    node: Arc<Node>,
    incarnation: Arc<Incarnation>,
    universe: Arc<Universe>,
    tell: Box<dyn Fn(Word) + Send + Sync>,
}

impl Watch {
    async fn keep(&self, start: BoxFuture<'static, Result<Launched, ()>>) -> Word {
        let (mut task, ready) = match self.start(start).await {
            Some(Launched { task, ready }) => (task, ready),
            None => {
                self.node.detach(self.incarnation.generation);
                return self.last_word(Word::NotStarted).await;
            }
        };
        let mut ready = match ready {
            Some(ready) => Ready::Waiting(ready),
            None => {
                (self.tell)(Word::Started);
                Ready::Said
            }
        };
        if !self.watch(&mut task, &mut ready).await {
            return Word::Immovable;
        }
        self.node.detach(self.incarnation.generation);
        match ready {
            Ready::Said => self.last_word(Word::Ended).await,
            Ready::Waiting(_) | Ready::Never => self.last_word(Word::NotStarted).await,
        }
    }

    async fn start(&self, start: BoxFuture<'static, Result<Launched, ()>>) -> Option<Launched> {
        let incarnation = &self.incarnation;
        let within = self.node.start_within();
        tokio::select! {
            biased;
            started = start => started.ok(),
            () = sleep_until_some(within.and_then(|within| Instant::now().checked_add(within))) => {
                let within = within.unwrap_or_default();
                incarnation.convict(Exit::Failed(format!("it had not started within {within:?}")));
                None
            }
            () = self.ordered() => {
                incarnation.blame(Exit::Shutdown);
                None
            }
        }
    }

    /// Waits for an order to stop or die.
    async fn ordered(&self) {
        while !self.incarnation.is_ordered_to_end() {
            self.incarnation.keeper.notified().await;
        }
    }

    /// Watches the incarnation to its end. `false` if it cannot be ended.
    async fn watch(&self, task: &mut JoinHandle<()>, ready: &mut Ready) -> bool {
        let incarnation = &self.incarnation;
        let mut stage = Stage::Running;
        // When the present stage is to be left for a harsher one.
        let mut deadline: Option<Instant> = None;
        loop {
            if stage < Stage::Killed && incarnation.is_doomed() {
                stage = Stage::Killed;
                deadline = Some(Instant::now() + GONE_WITHIN);
            } else if stage == Stage::Running && incarnation.is_stopping() {
                (stage, deadline) = self.ask();
            }
            let look_again = match stage {
                Stage::Running => self.stuck_check(Instant::now()),
                Stage::Asked | Stage::Killed | Stage::Aborted => deadline,
            };
            tokio::select! {
                biased;
                _ = &mut *task => return true,
                said = ready.wait() => {
                    if said {
                        (self.tell)(Word::Started);
                    }
                }
                () = incarnation.keeper.notified() => {}
                () = sleep_until_some(look_again) => match stage {
                    Stage::Running => self.kill_if_stuck(Instant::now()),
                    Stage::Asked => {
                        self.universe.overran(&incarnation.path);
                        incarnation.kill(Exit::Killed);
                    }
                    Stage::Killed => {
                        task.abort();
                        stage = Stage::Aborted;
                        deadline = Some(Instant::now() + GONE_WITHIN);
                    }
                    Stage::Aborted => return false,
                },
            }
        }
    }

    /// Carries out a stop, as the child spec says. One that stops itself is not killed for it, but bounded too.
    fn ask(&self) -> (Stage, Option<Instant>) {
        let incarnation = &self.incarnation;
        if incarnation.is_last() {
            // What is sent or waits from here on will never be read; the senders learn it now.
            self.node.close_mailbox();
        }
        match self.node.shutdown() {
            Shutdown::Brutal if incarnation.is_ordered_to_end() => {
                incarnation.kill(Exit::Killed);
                (Stage::Killed, Some(Instant::now() + GONE_WITHIN))
            }
            Shutdown::Brutal => (Stage::Asked, Some(Instant::now() + SHUTDOWN_WITHIN)),
            Shutdown::Within(limit) => {
                incarnation.ask_to_stop();
                (Stage::Asked, Instant::now().checked_add(limit))
            }
            Shutdown::Infinity => {
                incarnation.ask_to_stop();
                (Stage::Asked, None)
            }
        }
    }

    /// When to look whether the handler is stuck: the moment the present message would be, or the next could be.
    fn stuck_check(&self, now: Instant) -> Option<Instant> {
        let limit = self.node.stuck_after()?;
        let since = self.node.busy_since().map_or(now, |(_, since)| since);
        since.checked_add(limit)
    }

    fn kill_if_stuck(&self, now: Instant) {
        let (Some(limit), Some((label, since))) = (self.node.stuck_after(), self.node.busy_since()) else {
            return;
        };
        let busy = now.saturating_duration_since(since);
        if busy >= limit {
            let for_ms = u64::try_from(busy.as_millis()).unwrap_or(u64::MAX);
            self.incarnation.kill(Exit::Stuck { message: label.to_owned(), for_ms });
        }
    }

    /// The end is told when all descendants, pipes and timers are gone too.
    async fn last_word(&self, word: fn(Exit) -> Word) -> Word {
        match timeout(GONE_WITHIN, self.incarnation.census.deserted()).await {
            Ok(()) => word(self.incarnation.exit()),
            Err(_) => Word::Immovable,
        }
    }
}

/// Whether a supervisor's children are all up.
enum Ready {
    Waiting(oneshot::Receiver<()>),
    Said,
    /// It ended before they were.
    Never,
}

impl Ready {
    /// Resolves once, when it is decided.
    async fn wait(&mut self) -> bool {
        match self {
            Self::Waiting(ready) => {
                let said = ready.await.is_ok();
                *self = if said { Self::Said } else { Self::Never };
                said
            }
            Self::Said | Self::Never => std::future::pending().await,
        }
    }
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
