//! The supervisor as a ractor actor: feeds [`Core`] with what its children's keepers tell and carries its actions out.
//! Nothing it does waits, so it always hears the next thing: every start, stop and delay runs in a task of its own.

use crate::core::{Action, Core, Event, Key, Reaction, Rules};
use crate::dynamic::{ChildRef, Door, DynamicError};
use crate::exit::Exit;
use crate::incarnation::{Body, Incarnation, Token};
use crate::keeper::{Keeper, Word};
use crate::node::{Launched, Node, NodeState};
use crate::panics;
use crate::spec::ChildSpec;
use crate::tree::{SupervisorReport, Universe};
use futures_util::future::BoxFuture;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a supervisor hears. Not serialisable: no peer of a cluster can send it.
pub(crate) enum SupMsg {
    Begin,
    Heard { key: Key, generation: u64, word: Word },
    Due(Key),
    Shutdown { last: bool },
    Crash,
    StartChild { spec: Box<ChildSpec>, reply: oneshot::Sender<Result<ChildRef, DynamicError>> },
    TerminateChild { name: String, reply: oneshot::Sender<Result<(), DynamicError>> },
}

impl ractor::Message for SupMsg {}

/// Starts a supervisor; its children start when it runs.
pub(crate) fn launch(
    node: Arc<Node>,
    rules: Rules,
    door: Option<Arc<Door>>,
    incarnation: Arc<Incarnation>,
    token: Token,
    above: Option<ActorCell>,
    universe: Arc<Universe>,
) -> BoxFuture<'static, Result<Launched, ()>> {
    Box::pin(async move {
        let (ready, when_ready) = oneshot::channel();
        let state = State::new(node, rules, door, incarnation, universe, ready, token);
        let spawned = match above {
            Some(above) => Supervisor::spawn_linked(None, Supervisor, state, above).await,
            None => Supervisor::spawn(None, Supervisor, state).await,
        };
        let (_, task) = spawned.map_err(|_| ())?;
        Ok(Launched { task, ready: Some(when_ready) })
    })
}

struct Supervisor;

struct State {
    node: Arc<Node>,
    incarnation: Arc<Incarnation>,
    universe: Arc<Universe>,
    door: Option<Arc<Door>>,
    core: Core,
    /// The most restarts worth remembering for the live tree.
    limit: usize,
    max_children: usize,
    children: BTreeMap<Key, Child>,
    ready: Option<oneshot::Sender<()>>,
    /// The stop under way is for good.
    last: bool,
    done: Option<Exit>,
    /// Goes last, when all above is dropped.
    _token: Token,
}

struct Child {
    node: Arc<Node>,
    incarnation: Option<Arc<Incarnation>>,
    keeper: Option<Task>,
    timer: Option<(Duration, Task)>,
    starting: Option<oneshot::Sender<Result<ChildRef, DynamicError>>>,
    removing: Vec<oneshot::Sender<Result<(), DynamicError>>>,
    ended: Option<watch::Sender<Option<Exit>>>,
    last_exit: Option<Exit>,
}

/// A task that ends with whoever started it.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Actor for Supervisor {
    type Msg = SupMsg;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, myself: ActorRef<SupMsg>, state: State) -> Result<State, ActorProcessingErr> {
        state.incarnation.embody(Body::Supervisor(myself.clone()));
        let _ = myself.cast(SupMsg::Begin);
        if let Some(door) = &state.door {
            door.open(myself);
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<SupMsg>,
        message: SupMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let Err(exit) = panics::catch(|| state.hear(&myself, message)) {
            state.incarnation.convict(exit);
            return Err("the supervisor panicked".into());
        }
        if let Some(exit) = state.done.take() {
            if exit.is_normal() {
                state.incarnation.blame(exit);
            } else {
                state.incarnation.convict(exit);
            }
            myself.stop(None);
        }
        Ok(())
    }

    /// ractor tells of an end before it is complete; the keepers tell of it afterwards.
    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<SupMsg>,
        _: SupervisionEvent,
        _: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

impl State {
    fn new(
        node: Arc<Node>,
        rules: Rules,
        door: Option<Arc<Door>>,
        incarnation: Arc<Incarnation>,
        universe: Arc<Universe>,
        ready: oneshot::Sender<()>,
        token: Token,
    ) -> Self {
        let limit = rules.intensity.restarts as usize;
        let max_children = rules.max_children;
        let mut core = Core::new(rules);
        let mut children = BTreeMap::new();
        for child in node.children() {
            if let Some(key) = core.add(child.rules.clone()) {
                children.insert(key, Child::of(child));
            }
        }
        node.forget_recent();
        Self {
            node,
            incarnation,
            universe,
            door,
            core,
            limit,
            max_children,
            children,
            ready: Some(ready),
            last: false,
            done: None,
            _token: token,
        }
    }

    fn hear(&mut self, myself: &ActorRef<SupMsg>, message: SupMsg) {
        let event = match message {
            SupMsg::Begin => Event::Begin,
            SupMsg::Due(key) => Event::Due(key),
            SupMsg::Crash => {
                self.incarnation.crash_if_ordered();
                return;
            }
            SupMsg::Shutdown { last } => {
                self.last |= last;
                if let Some(door) = &self.door {
                    door.shut();
                }
                Event::Stop
            }
            SupMsg::Heard { key, generation, word } => match self.heard(key, generation, word) {
                Some(event) => event,
                None => return,
            },
            SupMsg::StartChild { spec, reply } => match self.admit(*spec, reply) {
                Some(key) => Event::Added(key),
                None => return,
            },
            SupMsg::TerminateChild { name, reply } => {
                match self.children.iter_mut().find(|(_, child)| child.node.name == name) {
                    Some((key, child)) => {
                        child.removing.push(reply);
                        Event::Remove(*key)
                    }
                    None => {
                        let _ = reply.send(Err(DynamicError::NotFound(name)));
                        return;
                    }
                }
            }
        };
        let mut actions = Vec::new();
        self.core.step(event, self.universe.now(), &mut actions);
        for action in actions {
            self.carry_out(myself, action);
        }
        self.universe.changed();
    }

    fn heard(&mut self, key: Key, generation: u64, word: Word) -> Option<Event> {
        let child = self.children.get_mut(&key)?;
        if child.incarnation.as_ref()?.generation != generation {
            return None;
        }
        match word {
            Word::Started => {
                child.node.set_state(NodeState::Running);
                if let Some(reply) = child.starting.take() {
                    let (ended, receiver) = watch::channel(None);
                    child.ended = Some(ended);
                    let _ = reply.send(Ok(ChildRef::new(&child.node, receiver)));
                }
                Some(Event::Started(key))
            }
            Word::NotStarted(exit) => {
                child.gone(exit.clone());
                Some(Event::NotStarted(key, exit))
            }
            Word::Ended(exit) => {
                child.gone(exit.clone());
                Some(Event::Ended(key, exit))
            }
            Word::Immovable => {
                tracing::error!(
                    target: "choir::supervisor",
                    actor = &*child.node.path,
                    generation,
                    "the actor was killed and is still there: its thread is blocked",
                );
                child.gone(Exit::Killed);
                Some(Event::Immovable(key))
            }
        }
    }

    /// Takes in a dynamic child.
    fn admit(
        &mut self,
        spec: ChildSpec,
        reply: oneshot::Sender<Result<ChildRef, DynamicError>>,
    ) -> Option<Key> {
        let supervisor = || self.node.path.to_string();
        if self.children.values().any(|child| child.node.name == spec.name) {
            let name = spec.name.clone();
            let _ = reply.send(Err(DynamicError::AlreadyPresent { supervisor: supervisor(), name }));
            return None;
        }
        let node = Node::plant(spec, Some(&self.node.path));
        let Some(key) = self.core.add(node.rules.clone()) else {
            node.close_all();
            let error = if self.core.is_ending() {
                DynamicError::Unavailable
            } else {
                DynamicError::Full { supervisor: supervisor(), limit: self.max_children }
            };
            let _ = reply.send(Err(error));
            return None;
        };
        self.node.add_child(Arc::clone(&node));
        let mut child = Child::of(node);
        child.starting = Some(reply);
        self.children.insert(key, child);
        Some(key)
    }

    fn carry_out(&mut self, myself: &ActorRef<SupMsg>, action: Action) {
        match action {
            Action::Start(key) => self.start(myself, key),
            Action::Stop(key) => {
                if let Some(child) = self.children.get(&key)
                    && let Some(incarnation) = &child.incarnation
                {
                    child.node.set_state(NodeState::Stopping);
                    incarnation.order_stop(self.last || self.door.is_some() || !child.removing.is_empty());
                }
            }
            Action::Wake { key, at } => self.wake(myself, key, at),
            Action::Forget(key) => self.forget(key),
            Action::Ready => {
                if let Some(ready) = self.ready.take() {
                    let _ = ready.send(());
                }
            }
            Action::Done(exit) => self.done = Some(exit),
            Action::Report { key, exit, reaction } => self.report(key, exit, reaction),
        }
    }

    fn start(&mut self, myself: &ActorRef<SupMsg>, key: Key) {
        let Some(child) = self.children.get_mut(&key) else { return };
        let (incarnation, previous) = child.node.conceive(&self.incarnation.census);
        let generation = incarnation.generation;
        let supervisor = myself.clone();
        let keeper = Keeper {
            node: Arc::clone(&child.node),
            // Counted from here on, while this supervisor is: a restart of it waits for a start that is under way.
            token: incarnation.census.token(),
            incarnation: Arc::clone(&incarnation),
            supervisor: Some(myself.get_cell()),
            previous,
            universe: Arc::clone(&self.universe),
            tell: Box::new(move |word| {
                let _ = supervisor.cast(SupMsg::Heard { key, generation, word });
            }),
        };
        child.incarnation = Some(incarnation);
        child.timer = None;
        child.keeper = Some(Task(tokio::spawn(keeper.run())));
    }

    fn wake(&mut self, myself: &ActorRef<SupMsg>, key: Key, at: Duration) {
        let Some(child) = self.children.get_mut(&key) else { return };
        child.node.set_state(NodeState::BackingOff);
        if child.timer.as_ref().is_some_and(|(due, _)| *due == at) {
            return;
        }
        let due = self.universe.instant(at);
        let supervisor = myself.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(due).await;
            let _ = supervisor.cast(SupMsg::Due(key));
        });
        child.timer = Some((at, Task(timer)));
    }

    fn forget(&mut self, key: Key) {
        let Some(child) = self.children.get_mut(&key) else { return };
        child.node.set_state(NodeState::Ended);
        child.node.close_all();
        child.timer = None;
        let exit = child.last_exit.clone().unwrap_or(Exit::Shutdown);
        if let Some(reply) = child.starting.take() {
            let _ = reply.send(Err(DynamicError::NotStarted(exit.clone())));
        }
        if let Some(ended) = child.ended.take() {
            ended.send_replace(Some(exit));
        }
        for reply in child.removing.drain(..) {
            let _ = reply.send(Ok(()));
        }
        if self.door.is_some()
            && let Some(child) = self.children.remove(&key)
        {
            self.node.remove_child(&child.node);
        }
    }

    fn report(&mut self, key: Key, exit: Exit, reaction: Reaction) {
        let Some(child) = self.children.get(&key) else { return };
        let path = &*child.node.path;
        let generation = child.node.generation();
        match &reaction {
            Reaction::Restarting { after } => {
                child.node.count_restart();
                self.node.note_recent(self.limit);
                tracing::warn!(
                    target: "choir::supervisor", actor = path, generation, %exit, after = ?after, "restarting",
                );
            }
            Reaction::Escalated => {
                tracing::error!(
                    target: "choir::supervisor", actor = path, generation, %exit, "too many restarts, giving up",
                );
            }
            Reaction::NotStarted => {
                tracing::error!(target: "choir::supervisor", actor = path, generation, %exit, "did not start");
            }
            Reaction::Left | Reaction::Stopped => {
                tracing::debug!(target: "choir::supervisor", actor = path, generation, %exit, "ended");
            }
        }
        self.universe.report(SupervisorReport { path: path.to_owned(), generation, exit, action: reaction });
    }
}

impl Drop for State {
    /// However this incarnation ended, its children are ending too; the live tree says so.
    fn drop(&mut self) {
        if let Some(door) = &self.door {
            door.shut();
        }
        for child in self.children.values() {
            if child.incarnation.is_some() {
                child.node.bury(Exit::Killed);
            } else if child.node.state() != NodeState::Ended {
                child.node.set_state(NodeState::Down);
            }
        }
        if self.door.is_some() {
            for child in self.node.take_children() {
                child.close_all();
            }
        }
        self.universe.changed();
    }
}

impl Child {
    fn of(node: Arc<Node>) -> Self {
        Self {
            node,
            incarnation: None,
            keeper: None,
            timer: None,
            starting: None,
            removing: Vec::new(),
            ended: None,
            last_exit: None,
        }
    }

    fn gone(&mut self, exit: Exit) {
        self.incarnation = None;
        self.keeper = None;
        self.node.bury(exit.clone());
        self.last_exit = Some(exit);
    }
}

impl Universe {
    /// Time as the core counts it.
    pub(crate) fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn instant(&self, at: Duration) -> Instant {
        // A back-off is at most its `max`; what the clock cannot say is never due.
        self.epoch.checked_add(at).unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }
}
