//! Telemetry: JSON-lines logs, and traces and metrics over OTLP (`choir §22`, DESIGN §7). choird and choir-agent call
//! [`init`] first and [`Telemetry::shutdown`] last; everything else logs through `tracing`, carries its span in messages
//! through [`trace_context`], and measures through [`Metrics`].
//!
//! Promises: nobody who logs or measures ever waits for a disk or a network; every queue is bounded and what it drops is
//! counted and said; a secret that the [`Scrubber`] knows leaves in no line and no export; a receiver that is down costs
//! one warning and nothing else; payload logs of libraries cannot be switched on.

mod export;
mod filter;
mod ids;
mod json_lines;
mod limits;
pub mod metrics;
mod scrub;
pub mod trace_context;
mod writer;

pub use filter::METRIC_TARGET;
pub use limits::{
    ARCHIVE_LINES, EXPORT_DEADLINE, FIELD_BYTES, LINE_FIELDS, METRICS_INTERVAL, QUEUE_LINES, SECRET_BYTES,
    SECRETS, SPAN_ATTRIBUTES, SPAN_BATCH, SPAN_DELAY, SPAN_QUEUE,
};
pub use metrics::{ActorSample, Metrics, samples};
pub use scrub::{MASK, Scrubber};
pub use writer::move_to_archive;

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use tracing::Dispatch;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::export::{Export, ExportConfig};
use crate::json_lines::JsonLines;
use crate::writer::{LogWriter, Target};

/// What to record and where to send it.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// `service.name` of everything exported: `choird`, `choir-agent`.
    pub service_name: String,
    /// `source` of every log line and `service.instance.id`: `choird`, or the agent's name.
    pub instance: String,
    /// The session this process serves, if it serves just one: on every line (`choir §22.1`), and `choir.session` of
    /// everything exported.
    pub session: Option<String>,
    /// Base URL of an OTLP receiver (`http://127.0.0.1:4318`); none: nothing is exported.
    pub otlp_endpoint: Option<String>,
    /// The log file; its folders are made.
    pub log_file: Option<PathBuf>,
    /// Folder for full log files; none: the file is never archived.
    pub log_archive: Option<PathBuf>,
    /// Lines of a log file before it is archived.
    pub log_archive_lines: u64,
    /// Whether lines also go to standard error.
    pub log_to_stderr: bool,
    /// What is recorded, such as `info` or `info,choir_link=debug`.
    pub filter: String,
    /// How often metrics are exported.
    pub metrics_interval: Duration,
    /// The secrets to keep out; share it with whoever receives secrets.
    pub scrubber: Scrubber,
}

impl TelemetryConfig {
    /// Everything at its default: nothing is exported or logged, filter `info`.
    #[must_use]
    pub fn new(service_name: &str, instance: &str) -> Self {
        Self {
            service_name: service_name.to_owned(),
            instance: instance.to_owned(),
            session: None,
            otlp_endpoint: None,
            log_file: None,
            log_archive: None,
            log_archive_lines: ARCHIVE_LINES,
            log_to_stderr: false,
            filter: "info".to_owned(),
            metrics_interval: METRICS_INTERVAL,
            scrubber: Scrubber::new(),
        }
    }
}

/// Why telemetry could not be set up or ended.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The log file cannot be opened.
    #[error("the log file {} cannot be opened: {source}", .path.display())]
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The filter is not understood.
    #[error(
        "the log filter \"{text}\" is not understood ({reason}); write it like \"info,choir_link=debug\""
    )]
    Filter {
        /// The filter.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The OTLP endpoint is not usable.
    #[error("the OTLP endpoint is not usable: {reason}; write it like \"http://127.0.0.1:4318\"")]
    Endpoint {
        /// What is wrong with it.
        reason: String,
    },
    /// Export needs a runtime.
    #[error("telemetry with an OTLP endpoint must be set up inside a tokio runtime")]
    NoRuntime,
    /// The writer's thread could not be made.
    #[error("the log's thread could not be created: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// There is telemetry already.
    #[error("telemetry is already set up in this process")]
    Already,
    /// The last lines or spans did not leave in time.
    #[error("the last telemetry did not leave within {0:?}; it is lost")]
    Deadline(Duration),
}

/// Running telemetry. Keep it until the end of the process and then call [`Telemetry::shutdown`].
pub struct Telemetry {
    scrubber: Scrubber,
    metrics: Metrics,
    writer: LogWriter,
    export: Option<Export>,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Telemetry").field("exports", &self.export.is_some()).finish_non_exhaustive()
    }
}

/// Sets telemetry up for the whole process.
pub fn init(config: TelemetryConfig) -> Result<Telemetry, TelemetryError> {
    let (telemetry, dispatch) = build(config)?;
    tracing::dispatcher::set_global_default(dispatch).map_err(|_| TelemetryError::Already)?;
    Ok(telemetry)
}

/// Sets telemetry up without making it the process's: for tests that have one each, with
/// `tracing::dispatcher::set_default`.
pub fn build(config: TelemetryConfig) -> Result<(Telemetry, Dispatch), TelemetryError> {
    let logs = filter::parse(&config.filter)?;
    let traces = filter::parse(&config.filter)?;
    let writer = LogWriter::start(Target {
        file: config.log_file,
        archive: config.log_archive,
        archive_lines: config.log_archive_lines,
        stderr: config.log_to_stderr,
        source: config.instance.clone(),
    })?;
    let export = config
        .otlp_endpoint
        .as_deref()
        .map(|endpoint| {
            Export::new(ExportConfig {
                endpoint,
                service_name: &config.service_name,
                instance: &config.instance,
                session: config.session.as_deref(),
                metrics_interval: config.metrics_interval,
                scrubber: config.scrubber.clone(),
                writer: writer.clone(),
            })
        })
        .transpose()?;
    let exporting = export.is_some();
    let lines = JsonLines {
        source: config.instance,
        session: config.session,
        scrubber: config.scrubber.clone(),
        writer: writer.clone(),
        whole: std::sync::OnceLock::new(),
    }
    .with_filter(logs.and(filter_fn(move |meta| filter::for_logs(meta, exporting))));
    let metrics = export.as_ref().map_or_else(Metrics::off, |export| {
        let metrics = Metrics::new(export.meter.meter("choir"));
        let writer = writer.clone();
        metrics.observe_dropped(move || writer.dropped());
        metrics
    });
    let logged = Registry::default().with(lines);
    // A layer that is absent counts as one that wants everything: then every span of a process that exports none is made.
    let dispatch = match &export {
        None => Dispatch::new(logged),
        Some(export) => {
            let spans = tracing_opentelemetry::layer()
                .with_tracer(export.tracer.tracer("choir"))
                .with_context_activation(false)
                .with_threads(false)
                .with_location(false)
                .with_tracked_inactivity(false)
                .with_filter(traces.and(filter_fn(filter::for_traces)));
            let measurements = tracing_opentelemetry::MetricsLayer::new(export.meter.clone())
                .with_filter(filter_fn(|meta| meta.target() == METRIC_TARGET));
            Dispatch::new(logged.with(spans).with(measurements))
        }
    };
    Ok((Telemetry { scrubber: config.scrubber, metrics, writer, export }, dispatch))
}

impl Telemetry {
    /// The secrets to keep out; add to it whatever is received.
    #[must_use]
    pub const fn scrubber(&self) -> &Scrubber {
        &self.scrubber
    }

    /// The instruments.
    #[must_use]
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Log lines dropped since the log last said so.
    #[must_use]
    pub fn dropped_lines(&self) -> u64 {
        self.writer.dropped()
    }

    /// Sends out everything recorded so far, waiting at most `deadline`.
    pub async fn flush(&self, deadline: Duration) -> Result<(), TelemetryError> {
        let providers = self.export.as_ref().map(|e| (e.tracer.clone(), e.meter.clone()));
        let writer = self.writer.clone();
        off_the_runtime(deadline, move || {
            if let Some((tracer, meter)) = providers {
                // Failures are reported by the transport.
                let _ = tracer.force_flush();
                let _ = meter.force_flush();
            }
            writer.flush();
        })
        .await
    }

    /// Sends out everything and ends the exporters, waiting at most `deadline`; what has not left by then is lost.
    pub async fn shutdown(self, deadline: Duration) -> Result<(), TelemetryError> {
        let Self { writer, export, .. } = self;
        off_the_runtime(deadline, move || {
            if let Some(Export { tracer, meter }) = export {
                let _ = tracer.shutdown_with_timeout(deadline);
                let _ = meter.shutdown_with_timeout(deadline);
            }
            writer.flush();
        })
        .await
    }
}

/// Runs blocking work on a thread of its own. Not on the runtime's pool: the runtime's end would wait for it, past any
/// deadline.
async fn off_the_runtime(
    deadline: Duration,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), TelemetryError> {
    let (done, wait) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("telemetry-flush".into())
        .spawn(move || {
            work();
            let _ = done.send(());
        })
        .map_err(|source| TelemetryError::Thread { source })?;
    match tokio::time::timeout(deadline, wait).await {
        Ok(_) => Ok(()),
        Err(_) => Err(TelemetryError::Deadline(deadline)),
    }
}
