//! choird's telemetry: what is set up once at the start, and the two words every other file needs.

use choir_messages::id::MessageId;
use choir_messages::wire::TraceContext;
use choir_supervisors::TreeHandle;
use choir_telemetry::{ActorSample, Scrubber, Telemetry, TelemetryConfig, TelemetryError, trace_context};

use crate::daemon::Settings;
use crate::secrets::Secrets;
use crate::state_dir::StateDir;

/// The environment variable that changes what is logged, such as `info,choir_link=debug`.
pub(crate) const LOG_ENV: &str = "CHOIR_LOG";

/// The trace context of the current span, for a message about to be sent.
pub(crate) fn current_trace() -> TraceContext {
    trace_context::current()
}

/// Makes a span the root of a user message's trace: for the one that takes it in.
pub(crate) fn begin_trace(span: &tracing::Span, message: MessageId) {
    trace_context::begin(span, message);
}

/// Makes a span a child of the root of a user message's trace.
pub(crate) fn continue_trace(span: &tracing::Span, message: MessageId) {
    trace_context::set_parent(span, &TraceContext::of_message(message));
}

/// Makes a span the child of the one a message came from.
pub(crate) fn set_parent(span: &tracing::Span, parent: &TraceContext) {
    trace_context::set_parent(span, parent);
}

/// Makes a span the child of the one that a caller's `traceparent` header names.
pub(crate) fn remote_parent(span: &tracing::Span, traceparent: &str) {
    trace_context::set_parent(span, &TraceContext(traceparent.to_owned()));
}

/// Teaches the scrubber all secrets in force.
pub(crate) fn learn_secrets(scrubber: &Scrubber, secrets: &Secrets) {
    let unknown = scrubber.replace(secrets.values());
    if unknown > 0 {
        tracing::warn!(unknown, "some secrets are too short to be looked for in logs; use longer ones");
    }
}

/// Sets telemetry up for choird.
pub(crate) fn start(state: &StateDir, settings: &Settings, quiet: bool) -> Result<Telemetry, TelemetryError> {
    let scrubber = Scrubber::new();
    learn_secrets(&scrubber, &settings.secrets);
    let mut config = TelemetryConfig::new("choird", "choird");
    config.otlp_endpoint.clone_from(&settings.config.telemetry.otlp_endpoint);
    config.log_file = Some(state.log_file("choird"));
    config.log_archive = Some(state.logs().join("archive/choird"));
    config.log_archive_lines = settings.config.log_archive_threshold_lines;
    config.log_to_stderr = !quiet;
    if let Ok(filter) = std::env::var(LOG_ENV) {
        config.filter = filter;
    }
    config.scrubber = scrubber;
    choir_telemetry::init(config)
}

/// The tree as metrics see it.
pub(crate) fn samples(tree: &TreeHandle) -> Vec<ActorSample> {
    choir_telemetry::samples(&tree.snapshot())
}
