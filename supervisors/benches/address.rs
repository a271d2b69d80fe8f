//! An [`Address`] and a [`Tree`] against raw ractor: casts, calls, and a panic to the first message its replacement
//! handles. Prints the ratios (goals: cast at most 1.5, panic to replacement at most 3).

#![allow(missing_docs, reason = "criterion's macros make public items")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench")]

use choir_supervisors::{
    Actor, Address, Backoff, ChildSpec, Context, Failure, Intensity, Mail, MailboxSpec, ReplyTo, Strategy,
    SupervisorSpec, Tree, WhenFull, mailbox,
};
use criterion::{Criterion, Throughput};
use ractor::concurrency::JoinHandle;
use ractor::{ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

const CASTS: u64 = 100_000;
const LONG: Duration = Duration::from_secs(60);

// ---- raw ractor ----

enum RawMsg {
    Count(u64),
    Last(oneshot::Sender<u64>),
    Call(RpcReplyPort<u64>),
    Panic,
}

impl ractor::Message for RawMsg {}

struct Raw;

impl ractor::Actor for Raw {
    type Msg = RawMsg;
    type State = u64;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<RawMsg>, (): ()) -> Result<u64, ActorProcessingErr> {
        Ok(0)
    }

    async fn handle(
        &self,
        _: ActorRef<RawMsg>,
        msg: RawMsg,
        sum: &mut u64,
    ) -> Result<(), ActorProcessingErr> {
        match msg {
            RawMsg::Count(n) => *sum += n,
            RawMsg::Last(done) => drop(done.send(*sum)),
            RawMsg::Call(reply) => drop(reply.send(*sum)),
            RawMsg::Panic => panic!("bench"),
        }
        Ok(())
    }
}

/// The least a supervisor can be: starts a replacement straight from the event.
struct RawSupervisor;

struct NoMsg;

impl ractor::Message for NoMsg {}

impl ractor::Actor for RawSupervisor {
    type Msg = NoMsg;
    type State = mpsc::UnboundedSender<ActorRef<RawMsg>>;
    type Arguments = mpsc::UnboundedSender<ActorRef<RawMsg>>;

    async fn pre_start(
        &self,
        myself: ActorRef<NoMsg>,
        out: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let (child, _) = <Raw as ractor::Actor>::spawn_linked(None, Raw, (), myself.get_cell()).await?;
        let _ = out.send(child);
        Ok(out)
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<NoMsg>,
        event: SupervisionEvent,
        out: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(..) = event {
            let (child, _): (ActorRef<RawMsg>, JoinHandle<()>) =
                <Raw as ractor::Actor>::spawn_linked(None, Raw, (), ActorCell::from(myself)).await?;
            let _ = out.send(child);
        }
        Ok(())
    }
}

async fn raw_casts() -> Duration {
    let (actor, task) = <Raw as ractor::Actor>::spawn(None, Raw, ()).await.unwrap();
    let (done, when_done) = oneshot::channel();
    let start = Instant::now();
    for n in 0..CASTS {
        actor.cast(RawMsg::Count(n)).unwrap();
    }
    actor.cast(RawMsg::Last(done)).unwrap();
    when_done.await.unwrap();
    let took = start.elapsed();
    actor.stop(None);
    task.await.unwrap();
    took
}

async fn raw_calls(rounds: u64) -> Duration {
    let (actor, task) = <Raw as ractor::Actor>::spawn(None, Raw, ()).await.unwrap();
    let start = Instant::now();
    for _ in 0..rounds {
        actor.call(RawMsg::Call, Some(LONG)).await.unwrap().unwrap();
    }
    let took = start.elapsed();
    actor.stop(None);
    task.await.unwrap();
    took
}

async fn raw_restarts(rounds: u64) -> Vec<Duration> {
    let (out, mut children) = mpsc::unbounded_channel();
    let (supervisor, task) = <RawSupervisor as ractor::Actor>::spawn(None, RawSupervisor, out).await.unwrap();
    let mut child = children.recv().await.unwrap();
    let mut took = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        child.cast(RawMsg::Panic).unwrap();
        child = children.recv().await.unwrap();
        let (done, when_done) = oneshot::channel();
        child.cast(RawMsg::Last(done)).unwrap();
        when_done.await.unwrap();
        took.push(start.elapsed());
    }
    supervisor.stop(None);
    task.await.unwrap();
    took
}

// ---- ours ----

enum Msg {
    Count(u64),
    Last(oneshot::Sender<u64>),
    Call(ReplyTo<u64>),
    Panic,
}

impl Mail for Msg {
    fn label(&self) -> &'static str {
        match self {
            Self::Count(_) => "count",
            Self::Last(_) => "last",
            Self::Call(_) => "call",
            Self::Panic => "panic",
        }
    }
}

struct Ours(u64);

impl Actor for Ours {
    type Msg = Msg;

    async fn handle(&mut self, msg: Msg, _: &mut Context<Msg>) -> Result<(), Failure> {
        match msg {
            Msg::Count(n) => self.0 += n,
            Msg::Last(done) => drop(done.send(self.0)),
            Msg::Call(reply) => reply.send(self.0),
            Msg::Panic => panic!("bench"),
        }
        Ok(())
    }
}

async fn tree(capacity: usize, when_full: WhenFull) -> (Tree, Address<Msg>) {
    let (address, slot) = mailbox("worker", MailboxSpec { capacity, when_full });
    let worker = ChildSpec::worker(slot, |_| async { Ok(Ours(0)) }).backoff(Backoff::NONE);
    let spec = SupervisorSpec::new("top", Strategy::OneForOne)
        .intensity(Intensity::new(u32::MAX, Duration::from_millis(1)))
        .child(worker);
    (Tree::start(spec).await.unwrap(), address)
}

async fn our_casts() -> Duration {
    let (tree, address) = tree(CASTS as usize + 1, WhenFull::Refuse).await;
    let (done, when_done) = oneshot::channel();
    let start = Instant::now();
    for n in 0..CASTS {
        address.try_send(Msg::Count(n)).unwrap();
    }
    address.try_send(Msg::Last(done)).unwrap();
    when_done.await.unwrap();
    let took = start.elapsed();
    tree.shutdown().await;
    took
}

/// With back-pressure: 1024 wait at most, the sender waits for room.
async fn our_bounded_casts() -> Duration {
    let (tree, address) = tree(1024, WhenFull::Wait(LONG)).await;
    let (done, when_done) = oneshot::channel();
    let start = Instant::now();
    for n in 0..CASTS {
        address.send(Msg::Count(n)).await.unwrap();
    }
    address.send(Msg::Last(done)).await.unwrap();
    when_done.await.unwrap();
    let took = start.elapsed();
    tree.shutdown().await;
    took
}

async fn our_calls(rounds: u64) -> Duration {
    let (tree, address) = tree(64, WhenFull::Refuse).await;
    let start = Instant::now();
    for _ in 0..rounds {
        address.call(LONG, Msg::Call).await.unwrap();
    }
    let took = start.elapsed();
    tree.shutdown().await;
    took
}

async fn our_restarts(rounds: u64) -> Vec<Duration> {
    let (tree, address) = tree(64, WhenFull::Refuse).await;
    let mut took = Vec::new();
    for _ in 0..rounds {
        let (done, when_done) = oneshot::channel();
        let start = Instant::now();
        address.try_send(Msg::Panic).unwrap();
        // Waits in the mailbox for the replacement.
        address.try_send(Msg::Last(done)).unwrap();
        when_done.await.unwrap();
        took.push(start.elapsed());
    }
    tree.shutdown().await;
    took
}

// ---- measuring ----

/// Runs on a worker, like any caller inside the runtime.
fn on_worker<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> T {
    runtime.block_on(async { tokio::spawn(work).await.unwrap() })
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn line(what: &str, raw: Duration, ours: Duration, goal: &str) {
    let ratio = ours.as_secs_f64() / raw.as_secs_f64();
    println!("{what:<44} raw {raw:>12.2?}   ours {ours:>12.2?}   ratio {ratio:>5.2}   {goal}");
}

fn ratios(runtime: &Runtime) {
    const RUNS: usize = 15;
    const ROUNDS: u64 = 2_000;
    let each = |n: u64, all: Vec<Duration>| median(all) / u32::try_from(n).unwrap();
    // Taken in turns, so that a busy moment of the machine hits all.
    let mut casts = [const { Vec::new() }; 3];
    let mut calls = [const { Vec::new() }; 2];
    let mut restarts = [const { Vec::new() }; 2];
    for _ in 0..RUNS {
        casts[0].push(on_worker(runtime, raw_casts()));
        casts[1].push(on_worker(runtime, our_casts()));
        casts[2].push(on_worker(runtime, our_bounded_casts()));
        calls[0].push(on_worker(runtime, raw_calls(ROUNDS)));
        calls[1].push(on_worker(runtime, our_calls(ROUNDS)));
        restarts[0].extend(on_worker(runtime, raw_restarts(ROUNDS / 4)));
        restarts[1].extend(on_worker(runtime, our_restarts(ROUNDS / 4)));
    }
    let [raw, ours, bounded] = casts.map(|all| each(CASTS, all));
    line("a cast, of 100,000 until all are handled", raw, ours, "goal 1.5");
    line("the same into a mailbox of 1,024", raw, bounded, "");
    let [raw, ours] = calls.map(|all| each(ROUNDS, all));
    line("a call with a deadline", raw, ours, "");
    let [raw, ours] = restarts.map(median);
    line("panic to first message of the replacement", raw, ours, "goal 3");
}

fn groups(criterion: &mut Criterion, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("cast");
    group.throughput(Throughput::Elements(CASTS)).sample_size(20);
    group.bench_function("ractor", |b| {
        b.iter_custom(|n| (0..n).map(|_| on_worker(runtime, raw_casts())).sum());
    });
    group.bench_function("address", |b| {
        b.iter_custom(|n| (0..n).map(|_| on_worker(runtime, our_casts())).sum());
    });
    group.finish();
    let mut group = criterion.benchmark_group("call");
    group.bench_function("ractor", |b| b.iter_custom(|n| on_worker(runtime, raw_calls(n))));
    group.bench_function("address", |b| b.iter_custom(|n| on_worker(runtime, our_calls(n))));
    group.finish();
    let mut group = criterion.benchmark_group("panic to replacement");
    group.bench_function("ractor", |b| {
        b.iter_custom(|n| on_worker(runtime, raw_restarts(n)).iter().sum());
    });
    group.bench_function("tree", |b| {
        b.iter_custom(|n| on_worker(runtime, our_restarts(n)).iter().sum());
    });
    group.finish();
}

fn main() {
    // The raw actors panic in public; their hook's output is not what is measured.
    std::panic::set_hook(Box::new(|_| {}));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Not when a test runner only lists or tries the benches.
    if std::env::args().any(|argument| argument == "--bench") {
        ratios(&runtime);
    }
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    groups(&mut criterion, &runtime);
    criterion.final_summary();
}
