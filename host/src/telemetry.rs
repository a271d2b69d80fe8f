//! choird's telemetry: what is set up once at the start, and the two words every other file needs.

use std::sync::Mutex;
use std::sync::PoisonError;

use choir_messages::id::MessageId;
use choir_messages::wire::TraceContext;
use choir_supervisors::TreeHandle;
use choir_telemetry::{ActorSample, Scrubber, Telemetry, TelemetryConfig, TelemetryError, trace_context};
use std::collections::VecDeque;

use crate::daemon::Settings;
use crate::secrets::Secrets;
use crate::state_dir::StateDir;

/// The environment variable that changes what is logged, such as `info,choir_link=debug`.
pub(crate) const LOG_ENV: &str = "CHOIR_LOG";

/// Messages whose trace is remembered between their arrival and their handing over.
const REMEMBERED: usize = 1024;

/// The trace context of the current span, for a message about to be sent.
pub(crate) fn current_trace() -> TraceContext {
    trace_context::current()
}

/// Makes a span the child of the one a message came from.
pub(crate) fn set_parent(span: &tracing::Span, parent: &TraceContext) {
    trace_context::set_parent(span, parent);
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

/// The traces that messages arrived in, so that handing one over continues its trace. Lost with the process, as traces
/// may be.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<VecDeque<(MessageId, TraceContext)>>);

impl Arrivals {
    pub(crate) fn remember(&self, message: MessageId, trace: TraceContext) {
        if trace.0.is_empty() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back((message, trace));
    }

    pub(crate) fn of(&self, message: MessageId) -> TraceContext {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().rev().find(|(id, _)| *id == message).map(|(_, trace)| trace.clone()).unwrap_or_default()
    }
}
