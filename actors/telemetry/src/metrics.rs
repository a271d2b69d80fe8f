//! Every instrument, named in one place. Durations are seconds; counts have no unit.
//!
//! A component that does not hold a [`Metrics`] emits an event instead, with target [`crate::METRIC_TARGET`]:
//! `tracing::event!(target: "choir::metric", Level::INFO, monotonic_counter.choir.link.closed = 1_u64, reason = "io")`, or a field
//! that begins with `histogram.` or `gauge.`. It becomes the same kind of measurement, after the conventions of
//! `tracing-opentelemetry`'s `MetricsLayer`, with unit, description and buckets as the table here says, and no log line.

use std::sync::Arc;
use std::time::Duration;

use choir_supervisors::{NodeKind, TreeNode};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::{Aggregation, Instrument, InstrumentKind, Stream};

/// Messages waiting in an actor's mailbox.
pub const MAILBOX_DEPTH: &str = "choir.actor.mailbox.depth";
/// Age of the oldest waiting message.
pub const MAILBOX_OLDEST_AGE: &str = "choir.actor.mailbox.oldest_age";
/// Restarts of an actor.
pub const ACTOR_RESTARTS: &str = "choir.actor.restarts";
/// How long a call waited for its locks.
pub const LOCK_WAIT: &str = "choir.lock.wait";
/// Events that are not durable on the host yet.
pub const REPLICATION_LAG: &str = "choir.replication.lag";
/// Tokens of model calls, by direction.
pub const MODEL_TOKENS: &str = "choir.model.tokens";
/// Duration of a model call.
pub const MODEL_DURATION: &str = "choir.model.duration";
/// Duration of a tool's execution.
pub const TOOL_DURATION: &str = "choir.tool.duration";
/// From a message's turn to its end.
pub const TURN_DURATION: &str = "choir.turn.duration";
/// Links that were closed, by reason.
pub const LINK_CLOSED: &str = "choir.link.closed";
/// From an agent's crash to its being up again.
pub const RECOVERY_DURATION: &str = "choir.recovery.duration";
/// Log lines dropped because the queue was full, since the last report in the log.
pub const LOG_DROPPED: &str = "choir.log.dropped";
/// Duration of a CHAP call, by method and outcome: its count is the number of calls.
pub const CHAP_CALL: &str = "choir.chap.call";
/// Workspaces that have a live actor.
pub const CHAP_LIVE: &str = "choir.chap.live";
/// Requests that a CHAP transport refused before the Coordinator saw them, by route and status.
pub const CHAP_REFUSED: &str = "choir.chap.refused";
/// Readers of a CHAP transport that were cut off because they did not take what they were sent.
pub const CHAP_SLOW_READERS: &str = "choir.chap.slow_readers";

/// Bounds of the histograms in seconds: from a lock's microseconds to a slow model's minutes.
const SECONDS: [f64; 16] =
    [0.000_01, 0.000_1, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What each instrument measures, for whoever reads it.
const DESCRIPTIONS: [(&str, &str); 16] = [
    (MAILBOX_DEPTH, "Messages waiting in an actor's mailbox"),
    (MAILBOX_OLDEST_AGE, "Age of the oldest waiting message"),
    (ACTOR_RESTARTS, "Restarts of an actor"),
    (LOCK_WAIT, "How long a call waited for its locks"),
    (REPLICATION_LAG, "Events that are not durable on the host yet"),
    (MODEL_TOKENS, "Tokens of model calls"),
    (MODEL_DURATION, "Duration of a model call"),
    (TOOL_DURATION, "Duration of a tool's execution"),
    (TURN_DURATION, "From a message's turn to its end"),
    (LINK_CLOSED, "Links that were closed"),
    (RECOVERY_DURATION, "From an agent's crash to its being up again"),
    (CHAP_CALL, "Duration of a CHAP call"),
    (CHAP_LIVE, "Workspaces that have a live actor"),
    (CHAP_REFUSED, "Requests that a CHAP transport refused"),
    (CHAP_SLOW_READERS, "Readers of a CHAP transport that were cut off"),
    (LOG_DROPPED, "Log lines dropped and not yet reported in the log"),
];

/// Gives an instrument its description, and a histogram its unit and buckets, whoever made it: those that events make
/// have neither.
pub(crate) fn shape(instrument: &Instrument) -> Option<Stream> {
    let (_, description) = DESCRIPTIONS.iter().find(|(name, _)| *name == instrument.name())?;
    let stream = Stream::builder().with_description(*description);
    let stream = if instrument.kind() == InstrumentKind::Histogram {
        stream.with_unit("s").with_aggregation(Aggregation::ExplicitBucketHistogram {
            boundaries: SECONDS.to_vec(),
            record_min_max: true,
        })
    } else {
        stream
    };
    stream.build().ok()
}

/// One actor at one moment, for the gauges of the live tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActorSample {
    /// Its place in the tree.
    pub path: String,
    /// Messages waiting.
    pub depth: u64,
    /// Age of the oldest one.
    pub oldest_age: Duration,
    /// Restarts so far.
    pub restarts: u64,
}

/// The live tree as samples: one for each actor, but one for all workers of a dynamic supervisor together
/// (`.../executors/*`), for their names come and go and each would be a series of its own for ever.
#[must_use]
pub fn samples(tree: &TreeNode) -> Vec<ActorSample> {
    let mut found = Vec::new();
    collect(tree, &mut found);
    found
}

fn collect(node: &TreeNode, found: &mut Vec<ActorSample>) {
    found.extend(sample(node));
    if node.kind != NodeKind::Dynamic {
        node.children.iter().for_each(|child| collect(child, found));
        return;
    }
    let mut all =
        ActorSample { path: format!("{}/*", node.path), depth: 0, oldest_age: Duration::ZERO, restarts: 0 };
    for child in &node.children {
        match sample(child) {
            Some(one) => {
                all.depth += one.depth;
                all.oldest_age = all.oldest_age.max(one.oldest_age);
                all.restarts += one.restarts;
            }
            // A supervisor under a name that lasts, such as an agent's.
            None => collect(child, found),
        }
    }
    found.push(all);
}

fn sample(node: &TreeNode) -> Option<ActorSample> {
    let mailbox = node.mailbox.as_ref()?;
    Some(ActorSample {
        path: node.path.clone(),
        depth: mailbox.depth as u64,
        oldest_age: Duration::from_millis(mailbox.oldest_ms.unwrap_or(0)),
        restarts: node.restarts,
    })
}

/// The instruments. Clones share them; without an exporter they cost next to nothing.
#[derive(Debug, Clone)]
pub struct Metrics {
    meter: Meter,
    lock_wait: Histogram<f64>,
    replication_lag: Gauge<u64>,
    model_tokens: Counter<u64>,
    model_duration: Histogram<f64>,
    tool_duration: Histogram<f64>,
    turn_duration: Histogram<f64>,
    link_closed: Counter<u64>,
    recovery_duration: Histogram<f64>,
}

impl Metrics {
    /// The instruments of this meter.
    #[must_use]
    pub fn new(meter: Meter) -> Self {
        let seconds = |name: &'static str| meter.f64_histogram(name).build();
        Self {
            lock_wait: seconds(LOCK_WAIT),
            replication_lag: meter.u64_gauge(REPLICATION_LAG).build(),
            model_tokens: meter.u64_counter(MODEL_TOKENS).build(),
            model_duration: seconds(MODEL_DURATION),
            tool_duration: seconds(TOOL_DURATION),
            turn_duration: seconds(TURN_DURATION),
            link_closed: meter.u64_counter(LINK_CLOSED).build(),
            recovery_duration: seconds(RECOVERY_DURATION),
            meter,
        }
    }

    /// Instruments that measure nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::new(opentelemetry::metrics::NoopMeterProvider::new().meter("choir"))
    }

    /// A call got its locks, or gave up.
    pub fn lock_waited(&self, lane: &str, waited: Duration) {
        self.lock_wait.record(waited.as_secs_f64(), &[KeyValue::new("lane", lane.to_owned())]);
    }

    /// How far the host's log is behind the agent's.
    pub fn replication_lag(&self, agent: &str, events: u64) {
        self.replication_lag.record(events, &[KeyValue::new("agent", agent.to_owned())]);
    }

    /// A model call ended. `outcome` is `ok` or the failure's name.
    pub fn model_called(
        &self,
        model: &str,
        outcome: &'static str,
        took: Duration,
        prompt: u64,
        completion: u64,
    ) {
        let model = KeyValue::new("model", model.to_owned());
        self.model_tokens.add(prompt, &[model.clone(), KeyValue::new("direction", "prompt")]);
        self.model_tokens.add(completion, &[model.clone(), KeyValue::new("direction", "completion")]);
        self.model_duration.record(took.as_secs_f64(), &[model, KeyValue::new("outcome", outcome)]);
    }

    /// A tool ended. Pass registered tools only: an unknown name is the model's invention and would be a new series.
    pub fn tool_ran(&self, tool: &str, outcome: &'static str, took: Duration) {
        let attributes = [KeyValue::new("tool", tool.to_owned()), KeyValue::new("outcome", outcome)];
        self.tool_duration.record(took.as_secs_f64(), &attributes);
    }

    /// A user's message has its end.
    pub fn turn_ended(&self, outcome: &'static str, took: Duration) {
        self.turn_duration.record(took.as_secs_f64(), &[KeyValue::new("outcome", outcome)]);
    }

    /// A link was closed.
    pub fn link_closed(&self, reason: &'static str) {
        self.link_closed.add(1, &[KeyValue::new("reason", reason)]);
    }

    /// A crashed agent works again.
    pub fn recovered(&self, took: Duration) {
        self.recovery_duration.record(took.as_secs_f64(), &[]);
    }

    /// Reads the live tree whenever metrics are collected: depth, age and restarts of every actor. `read` runs on the
    /// exporter's thread and must not wait for an actor. Call it once.
    pub fn observe_tree(&self, read: impl Fn() -> Vec<ActorSample> + Send + Sync + 'static) {
        let read = Arc::new(read);
        let path = |sample: &ActorSample| [KeyValue::new("actor", sample.path.clone())];
        let tree = Arc::clone(&read);
        self.meter
            .u64_observable_gauge(MAILBOX_DEPTH)
            .with_callback(move |out| tree().iter().for_each(|s| out.observe(s.depth, &path(s))))
            .build();
        let tree = Arc::clone(&read);
        self.meter
            .f64_observable_gauge(MAILBOX_OLDEST_AGE)
            .with_unit("s")
            .with_callback(move |out| {
                tree().iter().for_each(|s| out.observe(s.oldest_age.as_secs_f64(), &path(s)));
            })
            .build();
        self.meter
            .u64_observable_counter(ACTOR_RESTARTS)
            .with_callback(move |out| read().iter().for_each(|s| out.observe(s.restarts, &path(s))))
            .build();
    }

    pub(crate) fn observe_dropped(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.meter
            .u64_observable_gauge(LOG_DROPPED)
            .with_callback(move |out| out.observe(read(), &[]))
            .build();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A node as the live tree's JSON has it.
    fn node(path: &str, kind: &str, waiting: Option<(u64, u64)>, children: Vec<Value>) -> Value {
        let mut node = json!({
            "path": path, "name": path, "kind": kind, "state": "running", "generation": 2, "restart": "permanent",
            "restarts": 1, "state_ms": 0, "children": children,
        });
        if let Some((depth, oldest_ms)) = waiting {
            node["mailbox"] =
                json!({ "depth": depth, "capacity": 8, "waiting_senders": 0, "oldest_ms": oldest_ms });
        }
        node
    }

    #[test]
    fn children_that_come_and_go_are_one_sample_together_and_the_rest_one_each() {
        let calls = vec![
            node("a/calls/1", "worker", Some((2, 70)), vec![]),
            node("a/calls/2", "worker", Some((3, 40)), vec![]),
            node(
                "a/calls/core",
                "supervisor",
                None,
                vec![node("a/calls/core/lane", "worker", Some((1, 5)), vec![])],
            ),
        ];
        let root = node(
            "a",
            "supervisor",
            None,
            vec![node("a/journal", "worker", Some((4, 9)), vec![]), node("a/calls", "dynamic", None, calls)],
        );
        let tree: TreeNode = serde_json::from_value(root).unwrap();
        let sample = |path: &str, depth, age_ms, restarts| ActorSample {
            path: path.into(),
            depth,
            oldest_age: Duration::from_millis(age_ms),
            restarts,
        };
        assert_eq!(
            samples(&tree),
            [
                sample("a/journal", 4, 9, 1),
                sample("a/calls/core/lane", 1, 5, 1),
                sample("a/calls/*", 5, 70, 2),
            ]
        );
    }
}
