//! Prints what the journal costs on this disk: commit latency of one and of eight sessions, and the verification of
//! 10,000 events. Run with `cargo bench -p choir-persistence`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a bench prints and may fail")]

use std::time::{Duration, Instant};

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::{AgentId, MessageId, ModelCallId};
use choir_messages::model::Usage;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use choir_persistence::Store;
use choir_persistence::store::sessions::SessionRow;
use choir_persistence::testing::TestCluster;

/// Appends of one session in the latency runs.
const APPENDS: usize = 300;

/// Events of the verified log.
const EVENTS: u64 = 10_000;

struct Log {
    row: SessionRow,
    head: Head,
}

impl Log {
    async fn new(store: &Store, name: &str) -> Self {
        let agent: AgentId = name.parse().unwrap();
        store.register_agent(&agent).await.unwrap();
        let row = store.open_or_resume_session(&agent, &[], false).await.unwrap();
        let mut log = Self { row, head: Head::START };
        let opened = log.event(EventBody::SessionOpened { agent, tool_manifest: Digest::ZERO });
        log.append(store, vec![opened]).await;
        log
    }

    fn event(&mut self, body: EventBody) -> Event {
        let (event, _) =
            Event::append(self.row.session, self.head, Timestamp::now(), Lane::Edge, body).unwrap();
        self.head = event.head();
        event
    }

    /// The three events of a turn without tools, with texts of ordinary length.
    fn turn(&mut self) -> Vec<Event> {
        let message = MessageId::fresh();
        let text = "an ordinary sentence of a conversation, neither long nor short. ".repeat(6);
        vec![
            self.event(EventBody::UserMsg { message, text: text.clone() }),
            self.event(EventBody::ModelOutput {
                call: ModelCallId::fresh(),
                message,
                text: Some(text.clone()),
                calls: Vec::new(),
                usage: Usage::default(),
                model: "bench".to_owned(),
            }),
            self.event(EventBody::MessageClosed {
                message,
                outcome: choir_messages::event::MessageOutcome::Answered,
                text,
            }),
        ]
    }

    async fn append(&self, store: &Store, events: Vec<Event>) {
        store.append(self.row.session, self.row.lease, self.row.generation, events).await.unwrap();
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
}

async fn latency(store: &Store, sessions: usize) {
    let started = Instant::now();
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..sessions {
        let mut log = Log::new(store, &format!("s{sessions}-{n}")).await;
        let store = store.clone();
        writers.spawn(async move {
            let mut times = Vec::with_capacity(APPENDS);
            for _ in 0..APPENDS {
                let events = log.turn();
                let sent = Instant::now();
                log.append(&store, events).await;
                times.push(sent.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = writers.join_all().await.into_iter().flatten().collect();
    let total = started.elapsed();
    times.sort_unstable();
    println!(
        "append of 3 events, {sessions} session(s): p50 {:.2?}  p99 {:.2?}  {:.0} appends/s",
        percentile(&times, 50),
        percentile(&times, 99),
        times.len() as f64 / total.as_secs_f64()
    );
}

async fn verify(store: &Store) {
    let mut log = Log::new(store, "verified").await;
    while log.head.rev < EVENTS {
        let mut batch = Vec::new();
        while batch.len() < 240 && log.head.rev < EVENTS {
            batch.extend(log.turn());
        }
        log.append(store, batch).await;
    }
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let report = store.verify(log.row.session).await.unwrap();
        best = best.min(started.elapsed());
        assert!(report.is_verified());
    }
    println!("verify {} events: {best:.2?} (best of 5)", log.head.rev);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = TestCluster::start().await;
        let store = cluster.store().await;
        latency(&store, 1).await;
        latency(&store, 8).await;
        verify(&store).await;
        store.close().await;
    });
}
