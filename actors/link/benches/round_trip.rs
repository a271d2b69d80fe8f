//! What the guard costs: one verb's round trip over a Unix socket, 200 B and 64 KiB up, side by side with a stock
//! node on both ends that encodes and decodes the same messages. Prints; asserts nothing.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use choir_link::{LinkLimits, LinkSecret, LinkSpec, Links, ListenAt, Target, connect};
use choir_messages::codec;
use choir_messages::id::{LeaseId, RequestId, SessionId};
use choir_messages::limits::FRAME_BYTES;
use choir_messages::wire::{
    BoxFuture, ControlPlane, Envelope, Reply, Request, SignalAck, SignalHandler, SignalRequest, TraceContext,
    VerbHandler, Verdict, WIRE_VERSION,
};
use futures_util::future::join_all;
use ractor::message::{BoxedDowncastErr, SerializedMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use ractor_cluster::node::NodeServerSessionInformation;
use ractor_cluster::{
    BoxRead, BoxWrite, ClusterBidiStream, NodeEventSubscription, NodeServer, NodeServerMessage,
    client_connect_external,
};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

struct Done;

impl VerbHandler for Done {
    fn handle(&self, _: Envelope) -> BoxFuture<'_, Result<Reply, Verdict>> {
        Box::pin(async { Ok(Reply::Done) })
    }
}

impl SignalHandler for Done {
    fn handle(&self, _: SignalRequest) -> BoxFuture<'_, SignalAck> {
        Box::pin(async { SignalAck::Noted })
    }
}

fn envelope(session: SessionId, size: usize) -> Envelope {
    Envelope {
        version: WIRE_VERSION,
        request: RequestId::fresh(),
        session,
        lease: LeaseId::fresh(),
        generation: 1,
        trace: TraceContext::default(),
        body: Request::TerminateSelf { reason: "x".repeat(size) },
    }
}

/// Round trips, one after another and 32 at once.
async fn measure<F, Fut>(name: &str, size: usize, call: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = ()>,
{
    for _ in 0..500 {
        call().await;
    }
    let mut times = Vec::new();
    for _ in 0..5000 {
        let start = Instant::now();
        call().await;
        times.push(start.elapsed());
    }
    times.sort();
    let start = Instant::now();
    let mut done = 0u32;
    while start.elapsed() < Duration::from_secs(1) {
        join_all((0..32).map(|_| call())).await;
        done += 32;
    }
    let rate = f64::from(done) / start.elapsed().as_secs_f64();
    println!(
        "{name:>14} {size:>6} B: p50 {:>5} us, p99 {:>5} us, 32 at once {rate:>7.0}/s",
        times[2500].as_micros(),
        times[4950].as_micros()
    );
}

async fn guarded(sizes: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/link.sock");
    let (session, secret) = (SessionId::fresh(), LinkSecret::fresh().unwrap());
    let links = Links::start().await.unwrap();
    let (events, _events) = mpsc::channel(16);
    let spec = LinkSpec {
        session,
        secret: secret.clone(),
        at: ListenAt::Unix(path.clone()),
        limits: LinkLimits::default(),
    };
    let _listener = links.listen(spec, Arc::new(Done), events).await.unwrap();
    let patience = Duration::from_secs(10);
    let uplink = connect(&Target::Unix(path), &secret, session, Arc::new(Done), patience).await.unwrap();
    for &size in sizes {
        let uplink = &uplink;
        measure("guarded", size, || async move {
            uplink.call(envelope(session, size), patience).await.unwrap();
        })
        .await;
    }
}

enum Bytes {
    Call(Vec<u8>, RpcReplyPort<Vec<u8>>),
    Other,
}

impl ractor::Message for Bytes {
    fn serializable() -> bool {
        true
    }
    fn serialize(self) -> Result<SerializedMessage, BoxedDowncastErr> {
        match self {
            Self::Call(args, reply) => {
                Ok(SerializedMessage::Call { variant: "c".to_owned(), args, reply, metadata: None })
            }
            Self::Other => Err(BoxedDowncastErr),
        }
    }
    fn deserialize(message: SerializedMessage) -> Result<Self, BoxedDowncastErr> {
        Ok(match message {
            SerializedMessage::Call { args, reply, .. } => Self::Call(args, reply),
            _ => Self::Other,
        })
    }
}

struct StockGate;

impl Actor for StockGate {
    type Msg = Bytes;
    type State = ();
    type Arguments = ();
    async fn pre_start(&self, _: ActorRef<Bytes>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
    async fn handle(
        &self,
        _: ActorRef<Bytes>,
        message: Bytes,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        if let Bytes::Call(bytes, port) = message {
            let _: Envelope = codec::decode(&bytes, FRAME_BYTES).unwrap();
            let answer: Result<Reply, Verdict> = Ok(Reply::Done);
            let _ = port.send(codec::encode(&answer, FRAME_BYTES).unwrap());
        }
        Ok(())
    }
}

struct Stream(UnixStream);

impl ClusterBidiStream for Stream {
    fn split(self: Box<Self>) -> (BoxRead, BoxWrite) {
        let (reader, writer) = self.0.into_split();
        (Box::new(reader), Box::new(writer))
    }
}

struct Ready(mpsc::UnboundedSender<NodeServerSessionInformation>);

impl NodeEventSubscription for Ready {
    fn node_session_opened(&self, _: NodeServerSessionInformation) {}
    fn node_session_disconnected(&self, _: NodeServerSessionInformation) {}
    fn node_session_authenticated(&self, _: NodeServerSessionInformation) {}
    fn node_session_ready(&self, session: NodeServerSessionInformation) {
        let _ = self.0.send(session);
    }
}

async fn stock(sizes: &[usize]) {
    let (gate, _) = Actor::spawn(None, StockGate, ()).await.unwrap();
    let node = async |name: &str| {
        let server = NodeServer::new(0, "cookie".into(), name.into(), name.into(), None, None)
            .with_listen_addr([127, 0, 0, 1].into());
        Actor::spawn(None, server, ()).await.unwrap().0
    };
    let (host, agent) = (node("host").await, node("agent").await);
    let (sender, mut ready) = mpsc::unbounded_channel();
    let subscription = Box::new(Ready(sender));
    agent.cast(NodeServerMessage::SubscribeToEvents { id: "b".into(), subscription }).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    host.cast(NodeServerMessage::ConnectionOpenedExternal {
        stream: Box::new(Stream(near)),
        is_server: true,
    })
    .unwrap();
    client_connect_external(&agent, Box::new(Stream(far))).await.unwrap();
    let session = ready.recv().await.unwrap();
    let stand_in: ActorRef<Bytes> = session
        .actor
        .get_cell()
        .get_children()
        .into_iter()
        .find(|child| !child.get_id().is_local() && child.get_id().pid() == gate.get_id().pid())
        .map(Into::into)
        .unwrap();
    let id = SessionId::fresh();
    for &size in sizes {
        let stand_in = &stand_in;
        measure("stock node", size, || async move {
            let bytes = codec::encode(&envelope(id, size), FRAME_BYTES).unwrap();
            let answer = stand_in.call(|port| Bytes::Call(bytes, port), Some(Duration::from_secs(10))).await;
            let answer = answer.unwrap().expect("an answer");
            let _: Result<Reply, Verdict> = codec::decode(&answer, FRAME_BYTES).unwrap();
        })
        .await;
    }
    host.kill();
    agent.kill();
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sizes = [200, 64 * 1024];
        stock(&sizes).await;
        guarded(&sizes).await;
    });
}
