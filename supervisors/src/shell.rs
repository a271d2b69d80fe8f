//! The ractor actor around every component. It is woken by tokens and drains the slot; ractor gives the task, the kill
//! at any await, and the cascade from a dead supervisor to its children.

use crate::BACKGROUND_TARGET;
use crate::actor::{Actor, Context, StartContext};
use crate::exit::{Exit, Failure};
use crate::incarnation::{Body, Guarded, Incarnation, Token};
use crate::limits::BATCH;
use crate::mailbox::{Gauge, Shared, Slot};
use crate::panics;
use choir_messages::mail::Mail as _;
use futures_util::future::BoxFuture;
use ractor::{Actor as _, ActorCell, ActorProcessingErr, ActorRef};
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

/// The only message that goes through ractor's queue: "look at the slot". Declared by hand and not serialisable, so no
/// peer of a cluster can see or send one.
pub(crate) struct Wake;

impl ractor::Message for Wake {}

type Factory<A> =
    Box<dyn Fn(StartContext<<A as Actor>::Msg>) -> BoxFuture<'static, Result<A, Failure>> + Send + Sync>;

/// What a keeper and the live tree need of a worker, whatever its message type.
pub(crate) trait Launch: Send + Sync + 'static {
    /// Starts an incarnation below `supervisor`. An error has been noted in the incarnation.
    fn launch(
        &self,
        incarnation: Arc<Incarnation>,
        token: Token,
        supervisor: ActorCell,
        previous: Option<Exit>,
    ) -> BoxFuture<'static, Result<JoinHandle<()>, ()>>;
    fn place(&self, path: &Arc<str>);
    fn detach(&self, generation: u64);
    fn close(&self);
    fn gauge(&self) -> Gauge;
    /// The label of the message in hand and when its handler last got on.
    fn busy_since(&self) -> Option<(&'static str, Instant)>;
}

pub(crate) struct Worker<A: Actor> {
    slot: Slot<A::Msg>,
    factory: Arc<Factory<A>>,
}

impl<A: Actor> Worker<A> {
    pub(crate) fn new(slot: Slot<A::Msg>, factory: Factory<A>) -> Self {
        Self { slot, factory: Arc::new(factory) }
    }
}

impl<A: Actor> Launch for Worker<A> {
    fn launch(
        &self,
        incarnation: Arc<Incarnation>,
        token: Token,
        supervisor: ActorCell,
        previous: Option<Exit>,
    ) -> BoxFuture<'static, Result<JoinHandle<()>, ()>> {
        let start = Start::<A> {
            cx: StartContext { address: self.slot.address(), generation: incarnation.generation, previous },
            slot: Arc::clone(&self.slot.shared),
            factory: Arc::clone(&self.factory),
            token,
            incarnation,
        };
        Box::pin(async move {
            let (_, task) = Shell::<A>::spawn_linked(None, Shell(PhantomData), start, supervisor)
                .await
                .map_err(|_| ())?;
            Ok(task)
        })
    }

    fn place(&self, path: &Arc<str>) {
        self.slot.shared.place(path);
    }

    fn detach(&self, generation: u64) {
        self.slot.shared.detach(generation);
    }

    fn close(&self) {
        self.slot.shared.close();
    }

    fn gauge(&self) -> Gauge {
        self.slot.shared.gauge()
    }

    fn busy_since(&self) -> Option<(&'static str, Instant)> {
        self.slot.shared.busy_since()
    }
}

/// `fn() -> A`: the shell itself holds no actor, so it is shareable whatever the actor is.
struct Shell<A>(PhantomData<fn() -> A>);

struct Start<A: Actor> {
    incarnation: Arc<Incarnation>,
    cx: StartContext<A::Msg>,
    slot: Arc<Shared<A::Msg>>,
    factory: Arc<Factory<A>>,
    token: Token,
}

/// One incarnation. Wherever ractor drops it, the actor goes before its entry in the census.
struct Live<A: Actor> {
    actor: Option<A>,
    cx: Context<A::Msg>,
    slot: Arc<Shared<A::Msg>>,
    incarnation: Arc<Incarnation>,
    _token: Token,
}

/// How a batch ended.
enum Batch {
    /// The slot is empty; the next send wakes the actor.
    Empty,
    /// There may be more.
    More,
    /// It was told to stop, or told itself.
    Stop,
    Failed(Failure),
}

impl<A: Actor> ractor::Actor for Shell<A> {
    type Msg = Wake;
    type State = Live<A>;
    type Arguments = Start<A>;

    async fn pre_start(
        &self,
        myself: ActorRef<Wake>,
        start: Start<A>,
    ) -> Result<Live<A>, ActorProcessingErr> {
        let Start { incarnation, cx: start_cx, slot, factory, token } = start;
        // Dropped in reverse order of declaration: the token outlives everything the factory made.
        let token = token;
        incarnation.embody(Body::Worker(myself.clone()));
        slot.expect(incarnation.generation);
        let mut cx = Context::new(Arc::clone(&incarnation), Arc::clone(&slot), start_cx.address());
        let born = {
            let birth = pin!(async {
                let mut actor = factory(start_cx).await?;
                actor.started(&mut cx).await?;
                Ok::<A, Failure>(actor)
            });
            Guarded::new(&incarnation, birth).await
        };
        let actor = match born {
            Ok(Ok(actor)) => actor,
            Ok(Err(failure)) => {
                incarnation.convict(failure.into_exit());
                return Err("the start failed".into());
            }
            Err(exit) => {
                incarnation.convict(exit);
                return Err("the start panicked".into());
            }
        };
        slot.attach(myself.clone(), incarnation.generation);
        if incarnation.is_stopping() {
            // It stopped itself in `started`; no message need come for that to take effect.
            myself.stop(None);
        }
        Ok(Live { actor: Some(actor), cx, slot, incarnation, _token: token })
    }

    async fn handle(
        &self,
        myself: ActorRef<Wake>,
        _: Wake,
        live: &mut Live<A>,
    ) -> Result<(), ActorProcessingErr> {
        let incarnation = Arc::clone(&live.incarnation);
        let batch = {
            let drain = pin!(live.drain());
            Guarded::new(&incarnation, drain).await
        };
        live.slot.pause();
        let exit = match batch {
            Ok(Batch::Empty) => return Ok(()),
            Ok(Batch::More) => {
                let _ = myself.cast(Wake);
                return Ok(());
            }
            Ok(Batch::Stop) => {
                myself.stop(None);
                return Ok(());
            }
            Ok(Batch::Failed(failure)) => failure.into_exit(),
            Err(exit) => exit,
        };
        incarnation.convict(exit);
        live.slot.detach(incarnation.generation);
        live.bury();
        Err("the incarnation failed".into())
    }

    async fn post_stop(&self, _: ActorRef<Wake>, live: &mut Live<A>) -> Result<(), ActorProcessingErr> {
        let incarnation = Arc::clone(&live.incarnation);
        live.slot.detach(incarnation.generation);
        if let Some(actor) = &mut live.actor {
            let last = pin!(actor.stopping(&mut live.cx));
            if let Err(exit) = Guarded::new(&incarnation, last).await {
                incarnation.convict(exit);
            }
        }
        live.bury();
        Ok(())
    }
}

/// The span in which one message is handled. A message that belongs to a trace goes on with it. One that nobody's trace
/// leads to (a timer's tick, and whatever follows from it) begins none: its span only names the actor in log lines. It
/// has no parent either, or an actor that lives from tick to tick would hold all its past spans open.
fn message_span(sender: &Span, label: &'static str, incarnation: &Incarnation) -> Span {
    let traced =
        !sender.is_disabled() && sender.metadata().is_some_and(|sender| sender.target() != BACKGROUND_TARGET);
    let (actor, generation) = (&*incarnation.path, incarnation.generation);
    if traced {
        let span = tracing::info_span!(target: "choir::actor", parent: sender, "message", actor, message = label, generation);
        // Where spans are not exported the sender's own still says whose the lines are that are written here.
        if span.is_disabled() { sender.clone() } else { span }
    } else {
        tracing::info_span!(target: BACKGROUND_TARGET, parent: None, "message", actor, message = label, generation)
    }
}

impl<A: Actor> Live<A> {
    /// Handles up to a batch of messages, each in its own span below its sender's.
    async fn drain(&mut self) -> Batch {
        let Some(actor) = &mut self.actor else { return Batch::Stop };
        for _ in 0..BATCH {
            if self.incarnation.is_stopping() {
                return Batch::Stop;
            }
            let Some(envelope) = self.slot.take(self.incarnation.generation) else { return Batch::Empty };
            let span = message_span(&envelope.span, envelope.mail.label(), &self.incarnation);
            // The sender's span may close from here on; ours is its child already.
            drop(envelope.span);
            if let Err(failure) = actor.handle(envelope.mail, &mut self.cx).instrument(span).await {
                return Batch::Failed(failure);
            }
            tokio::task::coop::consume_budget().await;
        }
        if self.incarnation.is_stopping() { Batch::Stop } else { Batch::More }
    }

    /// Drops the actor here, in its own task, with a panic of its destructor caught.
    fn bury(&mut self) {
        let actor = self.actor.take();
        if let Err(exit) = panics::catch(move || drop(actor)) {
            self.incarnation.convict(exit);
        }
    }
}
