//! Traces and metrics over OTLP (HTTP, protobuf). Exporting has bounds and deadlines of its own and disturbs nobody: its
//! failure is one line in the log.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::TelemetryError;
use crate::ids::Ids;
use crate::limits::{EXPORT_DEADLINE, RESPONSE_BYTES, SPAN_ATTRIBUTES, SPAN_BATCH, SPAN_DELAY, SPAN_QUEUE};
use crate::metrics;
use crate::scrub::Scrubber;
use crate::writer::LogWriter;

/// The two providers.
pub(crate) struct Export {
    pub(crate) tracer: SdkTracerProvider,
    pub(crate) meter: SdkMeterProvider,
}

pub(crate) struct ExportConfig<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) service_name: &'a str,
    pub(crate) instance: &'a str,
    pub(crate) session: Option<&'a str>,
    pub(crate) metrics_interval: Duration,
    pub(crate) scrubber: Scrubber,
    pub(crate) writer: LogWriter,
}

impl Export {
    /// Builds the pipeline. Connects to nothing yet. Needs a tokio runtime with I/O and time.
    pub(crate) fn new(config: ExportConfig<'_>) -> Result<Self, TelemetryError> {
        let ExportConfig { endpoint, service_name, instance, session, metrics_interval, scrubber, writer } =
            config;
        let runtime = Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
        let bad = |reason: String| TelemetryError::Endpoint { reason };
        let url = reqwest::Url::parse(endpoint).map_err(|error| bad(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(bad("it must begin with http:// or https:// and name a host".into()));
        }
        // Fails if the process has chosen a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(EXPORT_DEADLINE)
            .timeout(EXPORT_DEADLINE)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let transport: Arc<dyn HttpClient> = Arc::new(Transport {
            client,
            runtime,
            scrubber,
            health: Arc::new(Health { writer, failing: AtomicBool::new(false) }),
        });
        let base = endpoint.trim_end_matches('/');
        let spans = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{base}/v1/traces"))
            .with_timeout(EXPORT_DEADLINE)
            .with_shared_http_client(Arc::clone(&transport))
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let measurements = MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{base}/v1/metrics"))
            .with_timeout(EXPORT_DEADLINE)
            .with_shared_http_client(transport)
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .map_err(|error| bad(error.to_string()))?;
        let resource = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", service_name.to_owned()),
                KeyValue::new("service.instance.id", instance.to_owned()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .with_attributes(session.map(|session| KeyValue::new("choir.session", session.to_owned())))
            .build();
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(SPAN_QUEUE)
            .with_max_export_batch_size(SPAN_BATCH)
            .with_scheduled_delay(SPAN_DELAY)
            .build();
        let tracer = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(spans).with_batch_config(batch).build())
            .with_id_generator(Ids::default())
            .with_max_attributes_per_span(SPAN_ATTRIBUTES)
            .with_max_events_per_span(SPAN_ATTRIBUTES)
            .with_resource(resource.clone())
            .build();
        let reader = PeriodicReader::builder(measurements).with_interval(metrics_interval).build();
        let meter = SdkMeterProvider::builder()
            .with_reader(reader)
            .with_resource(resource)
            .with_view(metrics::shape)
            .build();
        Ok(Self { tracer, meter })
    }
}

/// Whether exports arrive. Says so once when they stop, and once when they start again.
#[derive(Debug)]
struct Health {
    writer: LogWriter,
    failing: AtomicBool,
}

impl Health {
    fn failed(&self, reason: &str) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            let text = format!(
                "telemetry cannot be exported ({reason}); spans and metrics are lost until it can. This is said once: \
                 check the OTLP endpoint of the configuration"
            );
            self.writer.say("WARN", &text);
        }
    }

    fn worked(&self) {
        if self.failing.swap(false, Ordering::Relaxed) {
            self.writer.say("INFO", "telemetry is exported again");
        }
    }
}

/// Sends export requests on the application's runtime: the exporters' own threads have none. Everything that leaves
/// passes the scrubber here, encoded: there is no attribute, name or event beside it.
#[derive(Debug)]
struct Transport {
    client: reqwest::Client,
    runtime: Handle,
    scrubber: Scrubber,
    health: Arc<Health>,
}

impl HttpClient for Transport {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let (client, health) = (self.client.clone(), Arc::clone(&self.health));
        let (parts, body) = request.into_parts();
        let mut body = Vec::from(body);
        self.scrubber.bytes(&mut body);
        let task = self.runtime.spawn(async move {
            let request =
                client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
            let outcome = tokio::time::timeout(EXPORT_DEADLINE, send(request)).await;
            match &outcome {
                Ok(Ok(response)) if response.status().is_success() => health.worked(),
                Ok(Ok(response)) => health.failed(&format!("the receiver answers {}", response.status())),
                // Without the URL, which may carry credentials.
                Ok(Err(error)) => health.failed(&describe(error)),
                Err(_) => health.failed(&format!("no answer within {EXPORT_DEADLINE:?}")),
            }
            outcome
        });
        Box::pin(async move {
            match task.await {
                Ok(Ok(Ok(response))) => Ok(response),
                Ok(Ok(Err(error))) => Err(error.without_url().into()),
                Ok(Err(elapsed)) => Err(elapsed.into()),
                Err(gone) => Err(gone.into()),
            }
        })
    }
}

async fn send(request: reqwest::RequestBuilder) -> Result<Response<Bytes>, reqwest::Error> {
    let mut answer = request.send().await?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > RESPONSE_BYTES {
            break;
        }
        body.extend_from_slice(&chunk);
    }
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

fn describe(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        format!("no answer within {EXPORT_DEADLINE:?}")
    } else if error.is_connect() {
        "no connection".to_owned()
    } else {
        "the connection broke".to_owned()
    }
}
