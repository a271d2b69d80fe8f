//! What is recorded: the operator's filter, and below it what no setting may let through.

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;

use crate::TelemetryError;
use choir_supervisors::BACKGROUND_TARGET;

/// Events with this target are measurements (see [`crate::metrics`]), not log lines.
pub const METRIC_TARGET: &str = "choir::metric";

/// The most a library may say, whatever the operator asks for. `ractor_cluster` logs payloads and authentication
/// digests below INFO; HTTP and SQL libraries log headers and statements; the exporter's own complaints are told once
/// by this crate instead.
const CAPS: [(&str, Option<Level>); 14] = [
    ("ractor_cluster", Some(Level::INFO)),
    ("ractor", Some(Level::INFO)),
    ("sqlx::query", None),
    ("sqlx", Some(Level::WARN)),
    ("h2", Some(Level::WARN)),
    ("hyper", Some(Level::WARN)),
    ("hyper_util", Some(Level::WARN)),
    ("reqwest", Some(Level::WARN)),
    ("rustls", Some(Level::WARN)),
    ("tower", Some(Level::WARN)),
    ("tonic", Some(Level::WARN)),
    ("opentelemetry", None),
    ("opentelemetry_sdk", None),
    ("opentelemetry_otlp", None),
];

/// Libraries whose spans are never exported: an actor's whole life is one span of `ractor`, and a request's every frame
/// one of `h2`.
const NO_SPANS: [&str; 10] =
    ["ractor", "ractor_cluster", "h2", "hyper", "hyper_util", "reqwest", "tower", "tonic", "sqlx", "rustls"];

fn is_of(target: &str, library: &str) -> bool {
    target.strip_prefix(library).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Whether the caps let this through; `opentelemetry` also stands for `opentelemetry-otlp`, as it names its targets.
pub(crate) fn capped(meta: &Metadata<'_>) -> bool {
    let target = meta.target();
    CAPS.iter()
        .find(|(library, _)| {
            is_of(target, library) || (target.starts_with("opentelemetry-") && *library == "opentelemetry")
        })
        .is_none_or(|(_, most)| most.is_some_and(|most| *meta.level() <= most))
}

/// Names of fields by which a span says whose the lines inside it are.
pub(crate) const SESSION_FIELDS: [&str; 2] = ["session", "choir.session"];

/// See [`SESSION_FIELDS`].
pub(crate) const LANE_FIELDS: [&str; 2] = ["lane", "choir.lane"];

/// Whether a span of this kind says whose the lines inside it are.
pub(crate) fn tells(meta: &Metadata<'_>) -> bool {
    SESSION_FIELDS.iter().chain(&LANE_FIELDS).any(|name| meta.fields().field(name).is_some())
}

/// Log lines: capped, and no measurements. Where spans are exported a line names the one it is in; where they are not,
/// only those that tell the lines inside them something are made at all.
pub(crate) fn for_logs(meta: &Metadata<'_>, exporting: bool) -> bool {
    said(meta) && (exporting || !meta.is_span() || tells(meta))
}

fn said(meta: &Metadata<'_>) -> bool {
    capped(meta) && meta.target() != METRIC_TARGET
}

/// Exported spans and their events: likewise, and no library's spans, and none that belongs to no trace (timers' ticks,
/// dozens a second); metrics tell of those.
pub(crate) fn for_traces(meta: &Metadata<'_>) -> bool {
    let unwanted =
        |target| target == BACKGROUND_TARGET || NO_SPANS.iter().any(|library| is_of(target, library));
    said(meta) && !(meta.is_span() && unwanted(meta.target()))
}

/// Reads the operator's filter, such as `info,choir_link=debug`.
pub(crate) fn parse(directives: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(directives)
        .map_err(|error| TelemetryError::Filter { text: directives.to_owned(), reason: error.to_string() })
}
