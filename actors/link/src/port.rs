//! The gate: the one actor of this process that a peer can call, one per link. It takes bytes and a reply port, has
//! them answered by the link's owner in a task of its own, and answers every call exactly once: also when the bytes
//! mean nothing, when the handler is too slow, and when it panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use choir_messages::codec;
use choir_messages::id::SessionId;
use choir_messages::limits::FRAME_BYTES;
use choir_messages::wire::{
    BoxFuture, Envelope, Reply, SignalAck, SignalHandler, SignalRefused, SignalRequest, VerbHandler, Verdict,
    WIRE_VERSION,
};
use futures_util::FutureExt;
use ractor::message::{BoxedDowncastErr, SerializedMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limits::{ACK_BYTES, CALL_DEADLINE, REPLY_GRACE, SIGNAL_BYTES};
use crate::shared::Shared;
use crate::wire::METHOD;

/// The gate's mailbox. Reading it from the wire is total: what is not a call becomes [`GateMessage::Unknown`].
pub(crate) enum GateMessage {
    /// A call: its bytes, and where the answer goes.
    Call(Vec<u8>, RpcReplyPort<Vec<u8>>),
    /// Something else. The guard lets nothing else through.
    Unknown,
}

impl ractor::Message for GateMessage {
    fn serializable() -> bool {
        true
    }

    fn serialize(self) -> Result<SerializedMessage, BoxedDowncastErr> {
        match self {
            Self::Call(args, reply) => {
                Ok(SerializedMessage::Call { variant: METHOD.to_owned(), args, reply, metadata: None })
            }
            Self::Unknown => Err(BoxedDowncastErr),
        }
    }

    fn deserialize(message: SerializedMessage) -> Result<Self, BoxedDowncastErr> {
        Ok(match message {
            SerializedMessage::Call { args, reply, .. } => Self::Call(args, reply),
            SerializedMessage::Cast { .. } | SerializedMessage::CallReply(..) => Self::Unknown,
        })
    }
}

/// How one side answers bytes with bytes.
pub(crate) trait Answer: Send + Sync + 'static {
    /// The answer. Dropped when it takes too long or the link ends.
    fn answer<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Vec<u8>>;
    /// The answer when there was none in time.
    fn too_late(&self) -> Vec<u8>;
    /// The answer when the handler panicked.
    fn broken(&self) -> Vec<u8>;
}

/// The gate actor.
pub(crate) struct Gate;

/// What a gate starts with.
pub(crate) struct GateArgs {
    pub(crate) answer: Arc<dyn Answer>,
    /// Set once the link stands; calls come only after that.
    pub(crate) shared: Arc<std::sync::OnceLock<Arc<Shared>>>,
    /// A copy lives in every running handler, so that the end of the last one can be awaited.
    pub(crate) alive: mpsc::Sender<()>,
}

pub(crate) struct GateState {
    args: GateArgs,
    running: JoinSet<()>,
}

impl Actor for Gate {
    type Msg = GateMessage;
    type State = GateState;
    type Arguments = GateArgs;

    async fn pre_start(
        &self,
        _: ActorRef<GateMessage>,
        args: GateArgs,
    ) -> Result<GateState, ActorProcessingErr> {
        Ok(GateState { args, running: JoinSet::new() })
    }

    async fn handle(
        &self,
        _: ActorRef<GateMessage>,
        message: GateMessage,
        state: &mut GateState,
    ) -> Result<(), ActorProcessingErr> {
        while state.running.try_join_next().is_some() {}
        if let (GateMessage::Call(bytes, port), Some(shared)) = (message, state.args.shared.get()) {
            let (answer, shared, alive) =
                (state.args.answer.clone(), shared.clone(), state.args.alive.clone());
            state.running.spawn(async move {
                serve(&*answer, &shared, bytes, port).await;
                drop(alive);
            });
        }
        Ok(())
    }
}

async fn serve(answer: &dyn Answer, shared: &Shared, bytes: Vec<u8>, port: RpcReplyPort<Vec<u8>>) {
    // The guard has set the timeout: the caller's own, clamped, and the grace.
    let deadline = port.get_timeout().map_or(CALL_DEADLINE, |t| t.saturating_sub(REPLY_GRACE));
    let reply = match timeout(deadline, AssertUnwindSafe(answer.answer(&bytes)).catch_unwind()).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(_)) => {
            tracing::error!("a handler of the link panicked; its caller was told");
            answer.broken()
        }
        Err(_) => answer.too_late(),
    };
    drop(bytes);
    // A peer that does not read makes this wait; the write deadline ends the link and with it this task.
    if let Some(place) = shared.reserve(reply.len()).await
        && port.send(reply).is_ok()
    {
        place.forget();
    }
}

fn encoded<T: Serialize>(value: &T, limit: u64) -> Option<Vec<u8>> {
    codec::encode(value, limit).ok()
}

/// Answers verbs: the host's side.
pub(crate) struct Verbs {
    pub(crate) session: SessionId,
    pub(crate) handler: Arc<dyn VerbHandler>,
}

/// What crosses the wire upwards.
pub(crate) type VerbAnswer = Result<Reply, Verdict>;

fn verdict(verdict: Verdict) -> Vec<u8> {
    encoded::<VerbAnswer>(&Err(verdict), FRAME_BYTES).unwrap_or_default()
}

impl Answer for Verbs {
    fn answer<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            let Ok(envelope) = codec::decode::<Envelope>(bytes, FRAME_BYTES) else {
                return verdict(Verdict::Rejected("it is not a request of this version".to_owned()));
            };
            if envelope.version != WIRE_VERSION {
                return verdict(Verdict::Version(WIRE_VERSION));
            }
            if envelope.session != self.session {
                return verdict(Verdict::Rejected("it names another session than its link's".to_owned()));
            }
            let answer = self.handler.handle(envelope).await;
            encoded(&answer, FRAME_BYTES).unwrap_or_else(|| {
                verdict(Verdict::Unavailable("the answer is larger than a frame of the link".to_owned()))
            })
        })
    }

    fn too_late(&self) -> Vec<u8> {
        verdict(Verdict::Unavailable("it took longer than the caller waits".to_owned()))
    }

    fn broken(&self) -> Vec<u8> {
        verdict(Verdict::Unavailable("an internal error".to_owned()))
    }
}

/// Answers signals: the agent's side.
pub(crate) struct Signals {
    pub(crate) handler: Arc<dyn SignalHandler>,
}

fn not_ready() -> Vec<u8> {
    encoded(&SignalAck::Refused(SignalRefused::NotReady), ACK_BYTES as u64).unwrap_or_default()
}

impl Answer for Signals {
    fn answer<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, Vec<u8>> {
        Box::pin(async move {
            match codec::decode::<SignalRequest>(bytes, SIGNAL_BYTES as u64) {
                Ok(request) if request.version == WIRE_VERSION => {
                    let ack = self.handler.handle(request).await;
                    encoded(&ack, ACK_BYTES as u64).unwrap_or_else(not_ready)
                }
                _ => not_ready(),
            }
        })
    }

    fn too_late(&self) -> Vec<u8> {
        not_ready()
    }

    fn broken(&self) -> Vec<u8> {
        not_ready()
    }
}

/// A started gate. Dropping it ends the actor and every handler it runs.
pub(crate) struct RunningGate {
    actor: ActorRef<GateMessage>,
    task: ractor::concurrency::JoinHandle<()>,
    shared: Arc<std::sync::OnceLock<Arc<Shared>>>,
    handlers: mpsc::Receiver<()>,
}

impl RunningGate {
    /// Starts a gate. It has no name: names are global to the process.
    pub(crate) async fn start(answer: Arc<dyn Answer>) -> Option<Self> {
        let shared = Arc::new(std::sync::OnceLock::new());
        let (alive, handlers) = mpsc::channel(1);
        let args = GateArgs { answer, shared: shared.clone(), alive };
        let (actor, task) = Actor::spawn(None, Gate, args).await.ok()?;
        Some(Self { actor, task, shared, handlers })
    }

    /// Its process id in this process.
    pub(crate) fn pid(&self) -> u64 {
        self.actor.get_id().pid()
    }

    /// Gives it the accounts of its link.
    pub(crate) fn open(&self, shared: Arc<Shared>) {
        let _ = self.shared.set(shared);
    }

    /// Waits until the actor has ended.
    pub(crate) async fn ended(&mut self) {
        let _ = (&mut self.task).await;
    }

    /// Ends it and waits at most `deadline` until its handlers are gone.
    pub(crate) async fn end(mut self, deadline: Duration) {
        self.actor.kill();
        // Nothing is ever sent: the channel ends with the actor's state and its last handler.
        let _ = timeout(deadline, self.handlers.recv()).await;
    }
}

impl Drop for RunningGate {
    fn drop(&mut self) {
        self.actor.kill();
    }
}
