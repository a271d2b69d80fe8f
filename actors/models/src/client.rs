//! Sends requests over HTTP. What a response means is decided in [`crate::exchange`].
//!
//! Proxies: an https endpoint is reached through the proxy that `HTTPS_PROXY` or `ALL_PROXY` names, if any, as every
//! tool does; TLS ends at the provider, so the proxy learns its host name and nothing else. A loopback endpoint is never
//! reached through a proxy. Redirects are never followed: the key belongs to one address.

use std::future::Future;
use std::sync::Arc;

use choir_messages::id::ModelCallId;
use choir_messages::model::{ModelAnswer, ModelConfig, ModelFailure, ModelRequest};
use choir_messages::secret::Secret;
use choir_messages::time::Timestamp;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::exchange::{Action, Event, Exchange, Response};
use crate::limits;
use crate::settings::{Settings, SettingsError};
use crate::wire::{ToolNames, body};

/// A model's endpoint with its key. Cheap to clone; clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    http: reqwest::Client,
}

impl Client {
    /// A client for this configuration. Connects to nothing yet.
    pub fn new(config: ModelConfig, key: Option<Secret>) -> Result<Self, SettingsError> {
        let settings = Settings::new(config, key)?;
        let http = http_client(&settings)?;
        Ok(Self { inner: Arc::new(Inner { settings, http }) })
    }

    /// The configuration in use.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.inner.settings.config
    }

    /// Scheme, host and port of the endpoint: all of the address that may be shown.
    #[must_use]
    pub fn shown(&self) -> String {
        self.inner.settings.shown()
    }

    /// The endpoint's host.
    #[must_use]
    pub fn host(&self) -> &str {
        self.inner.settings.url.host_str().unwrap_or_default()
    }

    /// Makes one call, with one more try if the provider limits the rate; `limited` is then told the wait in
    /// milliseconds, before it. Ends within twice the configured deadline and [`limits::RETRY_AFTER_MAX`]. Dropping the
    /// future drops the connection.
    pub async fn complete(
        &self,
        call: ModelCallId,
        request: &ModelRequest,
        limited: impl FnOnce(u64),
    ) -> Result<ModelAnswer, ModelFailure> {
        let settings = &self.inner.settings;
        let names = ToolNames::new(&request.tools);
        let http_request = self.http_request(body(&settings.config, request, &names))?;
        let mut exchange = Exchange::new(
            &names,
            &settings.config.model,
            call,
            &settings.scrubber,
            settings.config.rate_limit_retry_ms,
        );
        let mut limited = Some(limited);
        let mut event = Event::Begun;
        loop {
            match exchange.step(event, Timestamp::now()) {
                Action::Send => {
                    // The body is shared, not copied, between the two tries.
                    let again = http_request.try_clone().expect("a body of bytes can always be sent again");
                    event = match self.attempt(again).await {
                        Ok(response) => Event::Responded(response),
                        Err(failure) => Event::Failed(failure),
                    };
                }
                Action::Wait { millis } => {
                    if let Some(limited) = limited.take() {
                        limited(millis);
                    }
                    sleep(std::time::Duration::from_millis(millis)).await;
                    event = Event::Waited;
                }
                Action::Done(result) => return result,
            }
        }
    }

    fn http_request(&self, body: Vec<u8>) -> Result<reqwest::Request, ModelFailure> {
        let settings = &self.inner.settings;
        let mut request = self
            .inner
            .http
            .post(settings.url.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(body);
        if let Some(authorization) = settings.authorization() {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.build().map_err(|error| ModelFailure::Unreachable { reason: reason(&error) })
    }

    async fn attempt(&self, request: reqwest::Request) -> Result<Response, ModelFailure> {
        let within = self.inner.settings.within();
        let deadline = Instant::now() + within;
        let mut response = in_time(deadline, within, self.inner.http.execute(request))
            .await?
            .map_err(|error| ModelFailure::Unreachable { reason: reason(&error) })?;
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = if response.status().is_success() {
            in_time(deadline, within, whole_body(&mut response)).await??
        } else {
            // Its words are wanted, not needed.
            let mut read = Vec::new();
            let _ = timeout(
                limits::ERROR_BODY_WAIT,
                timeout_at(deadline, read_body(&mut response, limits::ERROR_BODY_BYTES, &mut read)),
            )
            .await;
            read
        };
        Ok(Response { status, retry_after, body })
    }
}

async fn in_time<T>(
    deadline: Instant,
    within: std::time::Duration,
    work: impl Future<Output = T>,
) -> Result<T, ModelFailure> {
    timeout_at(deadline, work).await.map_err(|_| ModelFailure::Timeout {
        after_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
    })
}

async fn whole_body(response: &mut reqwest::Response) -> Result<Vec<u8>, ModelFailure> {
    let limit = limits::ANSWER_BODY_BYTES;
    let too_large = ModelFailure::TooLarge { limit: limit as u64 };
    // What is announced is not waited for, but what is not announced is counted all the same.
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Err(too_large);
    }
    let mut body = Vec::new();
    match read_body(response, limit, &mut body).await {
        Ok(true) => Ok(body),
        Ok(false) => Err(too_large),
        Err(error) => Err(ModelFailure::Unreachable { reason: reason(&error) }),
    }
}

/// Reads up to `limit` bytes; `false` if there were more.
async fn read_body(
    response: &mut reqwest::Response,
    limit: usize,
    body: &mut Vec<u8>,
) -> Result<bool, reqwest::Error> {
    while let Some(chunk) = response.chunk().await? {
        let room = limit - body.len();
        body.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
        if chunk.len() > room {
            return Ok(false);
        }
    }
    Ok(true)
}

fn http_client(settings: &Settings) -> Result<reqwest::Client, SettingsError> {
    let tls = |reason: String| SettingsError::Tls { model: settings.config.name.clone(), reason };
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(limits::CONNECT_WITHIN)
        .pool_idle_timeout(limits::IDLE_CONNECTION)
        .pool_max_idle_per_host(limits::IDLE_CONNECTIONS)
        .user_agent(concat!("choir/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls_config(settings.url.scheme() == "https").map_err(tls)?);
    if settings.loopback {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| tls(reason(&error)))
}

/// TLS 1.2 and 1.3 with the system's root certificates. Without https none are loaded: reading them is most of what a
/// client's start costs.
fn tls_config(https: bool) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    if !https {
        let none = rustls::RootCertStore::empty();
        return Ok(builder.with_root_certificates(none).with_no_client_auth());
    }
    let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| error.to_string())?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

/// What went wrong underneath, from the error's innermost cause. The outer texts are left out: they hold the address
/// with its query.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() && error.is_connect() {
        return format!("no connection within {} s", limits::CONNECT_WITHIN.as_secs());
    }
    let mut innermost: &dyn std::error::Error = error;
    let mut said = None;
    while let Some(source) = innermost.source() {
        innermost = source;
        said = Some(source.to_string());
    }
    said.unwrap_or_else(|| {
        if error.is_connect() { "no connection" } else { "the connection broke" }.to_owned()
    })
}
