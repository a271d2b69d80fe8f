//! Traces and metrics against a real OTLP receiver, and without one.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::time::Duration;

use choir_messages::id::MessageId;
use choir_messages::secret::Secret;
use choir_messages::wire::TraceContext;
use choir_telemetry::metrics::{
    ACTOR_RESTARTS, LINK_CLOSED, LOCK_WAIT, LOG_DROPPED, MAILBOX_DEPTH, MAILBOX_OLDEST_AGE, MODEL_DURATION,
    MODEL_TOKENS, RECOVERY_DURATION, REPLICATION_LAG, TOOL_DURATION, TURN_DURATION,
};
use choir_telemetry::{
    ActorSample, METRIC_TARGET, Telemetry, TelemetryConfig, TelemetryError, build, trace_context,
};
use mock_collector::{MockServer, Protocol, ServerHandle};
use tracing::Dispatch;

const DEADLINE: Duration = Duration::from_secs(30);

async fn receiver() -> ServerHandle {
    MockServer::builder().protocol(Protocol::HttpBinary).start().await.unwrap()
}

fn config(endpoint: &str, name: &str) -> TelemetryConfig {
    TelemetryConfig { otlp_endpoint: Some(endpoint.to_owned()), ..TelemetryConfig::new(name, "instance-1") }
}

fn telemetry(receiver: &ServerHandle, name: &str) -> (Telemetry, Dispatch) {
    build(config(&format!("http://{}", receiver.addr()), name)).unwrap()
}

#[tokio::test]
async fn one_trace_leads_from_the_host_through_a_message_into_the_agent() {
    let receiver = receiver().await;
    let (host, host_dispatch) = telemetry(&receiver, "choird");
    let (agent, agent_dispatch) = telemetry(&receiver, "choir-agent");
    let carried = tracing::dispatcher::with_default(&host_dispatch, || {
        tracing::info_span!("user_message").in_scope(|| {
            tracing::info_span!("signal", session = "01S", lane = "edge").in_scope(trace_context::current)
        })
    });
    assert!(carried.0.starts_with("00-") && carried.0.ends_with("-01"), "{carried:?}");
    tracing::dispatcher::with_default(&agent_dispatch, || {
        let span = tracing::info_span!("turn");
        trace_context::set_parent(&span, &carried);
        span.in_scope(|| tracing::info_span!("tool").in_scope(|| tracing::info!("ran")));
        let lone = tracing::info_span!("lone");
        trace_context::set_parent(&lone, &TraceContext("garbage".into()));
        lone.in_scope(|| ());
    });
    host.shutdown(DEADLINE).await.unwrap();
    agent.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let of = |name: &str| {
                let found: Vec<_> = c.spans().iter().filter(|s| s.span().name == name).collect();
                assert_eq!(found.len(), 1, "{name}: {:?}", c.spans());
                found[0].span().clone()
            };
            let (user, signal, turn, tool, lone) =
                (of("user_message"), of("signal"), of("turn"), of("tool"), of("lone"));
            for (child, parent) in [(&signal, &user), (&turn, &signal), (&tool, &turn)] {
                assert_eq!(child.trace_id, user.trace_id);
                assert_eq!(child.parent_span_id, parent.span_id, "{} of {}", child.name, parent.name);
            }
            assert!(user.parent_span_id.is_empty() && lone.parent_span_id.is_empty());
            assert_ne!(lone.trace_id, user.trace_id);
            assert_eq!(tool.events.len(), 1);
            c.expect_span_with_name("signal")
                .with_attributes([("session", "01S"), ("lane", "edge")])
                .with_resource_attributes([("service.name", "choird"), ("service.instance.id", "instance-1")])
                .assert_count(1);
            c.expect_span_with_name("turn")
                .with_resource_attributes([("service.name", "choir-agent")])
                .assert_count(1);
        })
        .await;
}

#[tokio::test]
async fn whoever_knows_a_message_continues_its_trace_even_before_its_root_is_begun() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choird");
    let message = MessageId::from_bits(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
    tracing::dispatcher::with_default(&dispatch, || {
        let root = tracing::info_span!("root");
        let child = tracing::info_span!("child");
        trace_context::set_parent(&child, &TraceContext::of_message(message));
        child.in_scope(|| tracing::info_span!("grandchild").in_scope(|| ()));
        trace_context::begin(&root, message);
        let other = tracing::info_span!("other");
        assert!(!trace_context::of(&other).0.is_empty());
        // Too late for a span that has its ids.
        trace_context::begin(&other, message);
    });
    telemetry.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let of = |name: &str| c.spans().iter().find(|s| s.span().name == name).unwrap().span().clone();
            let (root, child, grandchild, other) = (of("root"), of("child"), of("grandchild"), of("other"));
            assert_eq!(root.trace_id, message.bits().to_be_bytes());
            assert_eq!(root.span_id, message.bits().to_be_bytes()[8..]);
            assert!(root.parent_span_id.is_empty());
            assert!(root.start_time_unix_nano <= child.start_time_unix_nano, "it began when it was made");
            assert_eq!((&child.trace_id, &child.parent_span_id), (&root.trace_id, &root.span_id));
            assert_eq!((&grandchild.trace_id, &grandchild.parent_span_id), (&root.trace_id, &child.span_id));
            assert_ne!(child.span_id, root.span_id);
            assert_ne!(other.trace_id, root.trace_id);
        })
        .await;
}

#[tokio::test]
async fn a_log_line_names_the_trace_it_belongs_to() {
    let receiver = receiver().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.log");
    let config = TelemetryConfig {
        log_file: Some(file.clone()),
        ..config(&format!("http://{}", receiver.addr()), "choird")
    };
    let (telemetry, dispatch) = build(config).unwrap();
    let carried = tracing::dispatcher::with_default(&dispatch, || {
        tracing::info_span!("work").in_scope(|| {
            tracing::info!("inside");
            trace_context::current()
        })
    });
    telemetry.shutdown(DEADLINE).await.unwrap();
    let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let expected = format!("00-{}-{}-01", line["trace"].as_str().unwrap(), line["span"].as_str().unwrap());
    assert_eq!(carried.0, expected);
}

#[tokio::test]
async fn every_instrument_arrives_under_its_name() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choird");
    let metrics = telemetry.metrics().clone();
    let second = Duration::from_secs(1);
    metrics.lock_waited("edge", second);
    metrics.replication_lag("agent", 3);
    metrics.model_called("scripted", "ok", second, 100, 20);
    metrics.tool_ran("choir.fs.read", "success", second);
    metrics.turn_ended("answered", second);
    metrics.link_closed("peer");
    metrics.recovered(second);
    metrics.observe_tree(|| {
        vec![ActorSample {
            path: "choird/link".into(),
            depth: 4,
            oldest_age: Duration::from_millis(1500),
            restarts: 2,
        }]
    });
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::event!(target: METRIC_TARGET, tracing::Level::INFO, monotonic_counter.choir.custom = 5_u64);
    });
    telemetry.flush(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            for name in [
                ACTOR_RESTARTS,
                LINK_CLOSED,
                LOCK_WAIT,
                LOG_DROPPED,
                MAILBOX_DEPTH,
                MAILBOX_OLDEST_AGE,
                MODEL_DURATION,
                MODEL_TOKENS,
                RECOVERY_DURATION,
                REPLICATION_LAG,
                TOOL_DURATION,
                TURN_DURATION,
                "choir.custom",
            ] {
                c.expect_metric_with_name(name)
                    .with_resource_attributes([("service.name", "choird")])
                    .assert_at_least(1);
                let described =
                    c.metrics().iter().any(|m| m.metric().name == name && !m.metric().description.is_empty());
                assert!(described || name == "choir.custom", "{name}");
            }
            let depth =
                format!("{:?}", c.metrics().iter().find(|m| m.metric().name == MAILBOX_DEPTH).unwrap());
            assert!(depth.contains("choird/link") && depth.contains("AsInt(4)"), "{depth}");
        })
        .await;
    telemetry.shutdown(DEADLINE).await.unwrap();
}

#[tokio::test]
async fn what_an_event_measures_has_the_units_and_buckets_of_the_instrument_of_that_name() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choir-agent");
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::event!(
            target: METRIC_TARGET, tracing::Level::INFO, histogram.choir.tool.duration = 0.5_f64, tool = "choir.exec"
        );
    });
    telemetry.shutdown(DEADLINE).await.unwrap();
    let metric = receiver
        .with_collector(|c| {
            let found = c.metrics().iter().find(|m| m.metric().name == TOOL_DURATION).unwrap();
            format!("{:?}", found.metric())
        })
        .await;
    for part in ["unit: \"s\"", "Duration of a tool", "explicit_bounds: [1e-5, 0.0001, 0.001,", "choir.exec"]
    {
        assert!(metric.contains(part), "{part}: {metric}");
    }
}

#[tokio::test]
async fn what_belongs_to_no_trace_is_not_exported_and_what_it_begins_is_a_root() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choird");
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info_span!(target: choir_supervisors::BACKGROUND_TARGET, parent: None, "message").in_scope(
            || {
                assert_eq!(trace_context::current(), TraceContext::default(), "it hands no trace on");
                tracing::info_span!("verb").in_scope(|| ());
            },
        );
    });
    telemetry.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let [only] = c.spans() else { panic!("{:?}", c.spans()) };
            assert_eq!(only.span().name, "verb");
            assert!(only.span().parent_span_id.is_empty());
        })
        .await;
}

#[tokio::test]
async fn everything_a_process_of_one_session_exports_names_it() {
    let receiver = receiver().await;
    let endpoint = format!("http://{}", receiver.addr());
    let config = TelemetryConfig { session: Some("01S".into()), ..config(&endpoint, "choir-agent") };
    let (telemetry, dispatch) = build(config).unwrap();
    tracing::dispatcher::with_default(&dispatch, || tracing::info_span!("work").in_scope(|| ()));
    telemetry.metrics().recovered(Duration::from_secs(1));
    telemetry.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let session = [("choir.session", "01S")];
            c.expect_span_with_name("work").with_resource_attributes(session).assert_count(1);
            c.expect_metric_with_name(RECOVERY_DURATION).with_resource_attributes(session).assert_at_least(1);
        })
        .await;
}

#[tokio::test]
async fn a_known_secret_leaves_in_no_span_and_no_metric() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choird");
    let canary = "sk-canary-0123456789";
    assert!(telemetry.scrubber().add(&Secret::new(canary.into())));
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info_span!("call", key = canary, url = %format!("https://x/?k={canary}"), otel.name = canary)
            .in_scope(|| tracing::error!(error = canary, "failed with {canary}"));
        tracing::info_span!("kept", other = "value").in_scope(|| ());
    });
    telemetry.metrics().model_called(canary, "ok", Duration::ZERO, 1, 1);
    telemetry.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let all = format!("{:?} {:?}", c.spans(), c.metrics());
            assert!(!all.contains("canary"), "{all}");
            assert_eq!(c.span_count(), 2, "masked, not lost");
            c.expect_metric_with_name(MODEL_TOKENS).assert_at_least(1);
            c.expect_span_with_name("kept").with_attributes([("other", "value")]).assert_count(1);
        })
        .await;
}

#[tokio::test]
async fn spans_of_actors_lives_and_of_http_are_not_exported() {
    let receiver = receiver().await;
    let (telemetry, dispatch) = telemetry(&receiver, "choird");
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info_span!("ours").in_scope(|| {
            tracing::info_span!(target: "ractor::actor", "Actor").in_scope(|| {
                tracing::info_span!(target: "h2::codec", "frame").in_scope(|| {
                    tracing::info_span!("handled").in_scope(|| ());
                });
            });
        });
    });
    telemetry.shutdown(DEADLINE).await.unwrap();
    receiver
        .with_collector(|c| {
            let mut names: Vec<&str> = c.spans().iter().map(|s| s.span().name.as_str()).collect();
            names.sort_unstable();
            assert_eq!(names, ["handled", "ours"]);
            let of = |name: &str| c.spans().iter().find(|s| s.span().name == name).unwrap().span().clone();
            assert_eq!(of("handled").parent_span_id, of("ours").span_id, "the spans between are skipped");
        })
        .await;
}

#[tokio::test]
async fn an_absent_receiver_costs_one_warning_and_its_return_one_line() {
    let first = receiver().await;
    let addr = first.addr();
    first.shutdown().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.log");
    let config =
        TelemetryConfig { log_file: Some(file.clone()), ..config(&format!("http://{addr}"), "choird") };
    let (telemetry, dispatch) = build(config).unwrap();
    for _ in 0..3 {
        tracing::dispatcher::with_default(&dispatch, || tracing::info_span!("lost").in_scope(|| ()));
        telemetry.flush(DEADLINE).await.unwrap();
    }
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("telemetry cannot be exported (no connection)"), "{text}");

    let second =
        MockServer::builder().protocol(Protocol::HttpBinary).port(addr.port()).start().await.unwrap();
    tracing::dispatcher::with_default(&dispatch, || tracing::info_span!("found").in_scope(|| ()));
    telemetry.shutdown(DEADLINE).await.unwrap();
    second.with_collector(|c| c.expect_span_with_name("found").assert_count(1)).await;
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("exported again"), "{text}");
}

#[tokio::test]
async fn a_receiver_that_never_answers_does_not_hold_up_the_end() {
    // Accepts and stays silent.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    let (telemetry, dispatch) = build(config(&endpoint, "choird")).unwrap();
    tracing::dispatcher::with_default(&dispatch, || tracing::info_span!("lost").in_scope(|| ()));
    let deadline = Duration::from_millis(200);
    let outcome = tokio::time::timeout(DEADLINE, telemetry.shutdown(deadline)).await.unwrap();
    assert!(matches!(outcome, Err(TelemetryError::Deadline(d)) if d == deadline));
    silent.abort();
}

#[test]
fn an_unusable_endpoint_is_refused_with_an_example() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for bad in ["", "collector:4318", "ftp://x", "http://"] {
        let _inside = runtime.enter();
        let error = build(config(bad, "choird")).unwrap_err();
        assert!(error.to_string().contains("http://127.0.0.1:4318"), "{bad}: {error}");
    }
    assert!(matches!(
        build(config("http://x", "choird")),
        Err(TelemetryError::Endpoint { .. } | TelemetryError::NoRuntime)
    ));
}
