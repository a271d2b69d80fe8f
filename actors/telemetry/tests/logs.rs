//! What a log line is, and what never gets into one.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::path::PathBuf;
use std::time::Duration;

use choir_messages::secret::Secret;
use choir_telemetry::{FIELD_BYTES, METRIC_TARGET, Telemetry, TelemetryConfig, TelemetryError, build};
use serde_json::Value;
use tracing::dispatcher::DefaultGuard;

struct Log {
    dir: tempfile::TempDir,
    telemetry: Telemetry,
    _default: DefaultGuard,
}

fn log(filter: &str) -> Log {
    let dir = tempfile::tempdir().unwrap();
    let config = TelemetryConfig {
        log_file: Some(path(&dir)),
        filter: filter.to_owned(),
        ..TelemetryConfig::new("choird", "choird")
    };
    let (telemetry, dispatch) = build(config).unwrap();
    let default = tracing::dispatcher::set_default(&dispatch);
    Log { dir, telemetry, _default: default }
}

fn path(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("logs/choird.log")
}

impl Log {
    async fn lines(self) -> Vec<Value> {
        self.telemetry.shutdown(Duration::from_secs(20)).await.unwrap();
        let text = std::fs::read_to_string(path(&self.dir)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn a_process_of_one_session_names_it_on_every_line_unless_the_line_knows_better() {
    let dir = tempfile::tempdir().unwrap();
    let config = TelemetryConfig {
        log_file: Some(path(&dir)),
        session: Some("01S".into()),
        ..TelemetryConfig::new("choir-agent", "assistant")
    };
    let (telemetry, dispatch) = build(config).unwrap();
    let log = Log { dir, telemetry, _default: tracing::dispatcher::set_default(&dispatch) };
    tracing::info!("plain");
    tracing::info_span!("chat", choir.session = "02S", choir.lane = "edge")
        .in_scope(|| tracing::info!("inside"));
    let lines = log.lines().await;
    assert_eq!((&lines[0]["session"], &lines[0]["lane"]), (&Value::from("01S"), &Value::Null));
    assert_eq!((&lines[1]["session"], &lines[1]["lane"]), (&Value::from("02S"), &Value::from("edge")));
}

#[tokio::test]
async fn a_line_carries_its_time_level_source_session_lane_message_and_fields() {
    let log = log("info");
    tracing::info_span!("outer", session = "01S", lane = "edge").in_scope(|| {
        tracing::info_span!("inner", lane = %"core:x").in_scope(|| {
            tracing::warn!(count = 3, ok = true, ratio = 0.5, what = "a\nb", "it {}", "happened");
        });
        tracing::info!(session = "02S", "mine");
    });
    tracing::info!("outside");
    let lines = log.lines().await;
    let first = &lines[0];
    assert!(first["timestamp"].as_str().unwrap().ends_with('Z'));
    for (key, expected) in [
        ("level", "WARN"),
        ("source", "choird"),
        ("session", "01S"),
        ("lane", "core:x"),
        ("message", "it happened"),
    ] {
        assert_eq!(first[key], expected, "{key}");
    }
    assert_eq!(first["fields"], serde_json::json!({"count": 3, "ok": true, "ratio": 0.5, "what": "a\nb"}));
    assert_eq!((&lines[1]["session"], &lines[1]["lane"]), (&Value::from("02S"), &Value::from("edge")));
    assert_eq!((lines[2].get("session"), lines[2].get("lane")), (None, None));
}

#[tokio::test]
async fn a_session_that_is_recorded_later_is_on_the_lines_after() {
    let log = log("info");
    let span = tracing::info_span!("link", session = tracing::field::Empty);
    span.in_scope(|| tracing::info!("before"));
    span.record("session", "01S");
    span.in_scope(|| tracing::info!("after"));
    let lines = log.lines().await;
    assert_eq!(lines[0].get("session"), None);
    assert_eq!(lines[1]["session"], "01S");
}

#[tokio::test]
async fn where_nothing_is_exported_only_spans_that_tell_their_lines_something_are_made() {
    let log = log("info");
    let of_session = tracing::info_span!("turn", choir.session = "01S");
    of_session.in_scope(|| {
        let of_none = tracing::info_span!("message", actor = "arbiter");
        assert!(of_none.is_disabled());
        of_none.in_scope(|| tracing::info!("inside"));
    });
    assert!(!of_session.is_disabled());
    assert!(!tracing::event_enabled!(target: "choir::metric", tracing::Level::INFO));
    let lines = log.lines().await;
    assert_eq!(lines[0]["session"], "01S");
}

#[tokio::test]
async fn a_known_secret_is_masked_in_messages_fields_and_spans() {
    let log = log("info");
    let canary = "sk-canary \"quoted\" 42";
    assert!(log.telemetry.scrubber().add(&Secret::new(canary.to_owned())));
    #[derive(Debug)]
    #[allow(dead_code, reason = "read through Debug")]
    struct Request {
        header: String,
    }
    let request = Request { header: format!("Bearer {canary}") };
    tracing::info_span!("call", session = canary).in_scope(|| {
        tracing::info!(plain = canary, debug = ?request, display = %canary, "sent {request:?} with {canary}");
    });
    // A secret across the place where a long text is cut must not leave its first half.
    tracing::info!("{}{canary}{}", "x".repeat(FIELD_BYTES - 10), "y".repeat(100));
    let lines = log.lines().await;
    assert_eq!(lines.len(), 2);
    for line in lines {
        let text = line.to_string();
        assert!(!text.contains("sk-canary") && !text.contains("quoted"), "{text}");
    }
}

#[tokio::test]
async fn a_long_text_is_cut_and_says_so() {
    let log = log("info");
    tracing::info!(big = "é".repeat(FIELD_BYTES), "short");
    let lines = log.lines().await;
    let big = lines[0]["fields"]["big"].as_str().unwrap();
    assert!(big.len() < FIELD_BYTES + 40 && big.ends_with("bytes cut]"));
}

#[tokio::test]
async fn payload_logs_of_libraries_cannot_be_switched_on() {
    let log = log("trace");
    tracing::debug!(target: "ractor_cluster::net::session", "payload");
    tracing::info!(target: "ractor_cluster::net::session", "fine");
    tracing::debug!(target: "hyper_util::client", "header");
    tracing::warn!(target: "sqlx::query", "statement");
    tracing::error!(target: "opentelemetry-otlp", "flood");
    tracing::error!(target: "opentelemetry_sdk", "flood");
    tracing::event!(target: METRIC_TARGET, tracing::Level::INFO, monotonic_counter.choir.x = 1_u64);
    tracing::trace!(target: "hypertext", "ours");
    let said: Vec<Value> = log.lines().await.iter().map(|line| line["message"].clone()).collect();
    assert_eq!(said, ["fine", "ours"]);
}

#[tokio::test]
async fn the_operators_filter_holds() {
    let log = log("warn,choir_link=debug");
    tracing::info!(target: "choir_arbiter", "no");
    tracing::debug!(target: "choir_link::guard", "yes");
    assert_eq!(log.lines().await.len(), 1);
    let bad = TelemetryConfig { filter: "info,=,!!".into(), ..TelemetryConfig::new("x", "x") };
    let error = build(bad).unwrap_err();
    assert!(matches!(error, TelemetryError::Filter { .. }), "{error}");
}
