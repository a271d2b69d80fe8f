//! One JSON-RPC call over HTTP, with a deadline and a bound on the answer.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use choir_messages::mail::WorkspaceLine;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::signer::{Signer, SignerError};

/// Largest answer read: a page of a thousand entries of a mebibyte is not something to hold in memory.
pub const ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// Where a Coordinator listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `http://…` on loopback, or `https://…`: the address without a path.
    Url(String),
    /// The Unix socket of its HTTP front.
    Socket(PathBuf),
}

/// Why a text names no Coordinator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No address.
    #[error(
        "{0} is no address of a Coordinator: give http://127.0.0.1:PORT, https://HOST, or unix:/path/to/socket"
    )]
    NotOne(String),
    /// Clear text over a network.
    #[error("{0} would carry calls in clear text over a network: use https://, or a loopback address")]
    ClearText(String),
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Socket(path))
            } else {
                Err(EndpointError::NotOne(text.into()))
            };
        }
        let url = reqwest::Url::parse(text).map_err(|_| EndpointError::NotOne(text.into()))?;
        let host = url.host_str().ok_or_else(|| EndpointError::NotOne(text.into()))?;
        let plain = host.trim_start_matches('[').trim_end_matches(']');
        let loopback = plain == "localhost"
            || plain.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        match url.scheme() {
            "https" => {}
            "http" if loopback => {}
            "http" => return Err(EndpointError::ClearText(text.into())),
            _ => return Err(EndpointError::NotOne(text.into())),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointError::NotOne("an address with a password in it".into()));
        }
        let base = text.trim_end_matches('/');
        Ok(Self::Url(base.strip_suffix("/chap").unwrap_or(base).to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} ({code})")]
pub struct RpcError {
    /// The code.
    pub code: i64,
    /// What it says.
    pub message: String,
    /// Details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The Coordinator refused it.
    #[error(transparent)]
    Refused(#[from] RpcError),
    /// Nobody answers there.
    #[error("no Coordinator answers at {at}: {why}; is it running?")]
    Unreachable {
        /// Where.
        at: String,
        /// Why.
        why: String,
    },
    /// The deadline passed: the call may have been carried out.
    #[error(
        "no answer within {0:?}; whether the call was carried out is unknown, read the log before you repeat it"
    )]
    Late(Duration),
    /// Something answers that is no Coordinator, or not well.
    #[error("the answer is not a Coordinator's: {0}")]
    Malformed(String),
    /// The call cannot be signed.
    #[error(transparent)]
    Unsigned(#[from] SignerError),
    /// TLS cannot be used here.
    #[error("TLS cannot be used: {0}")]
    Tls(String),
}

/// A client of one Coordinator. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    at: Endpoint,
    token: Option<Arc<Zeroizing<String>>>,
    signer: Option<(Arc<str>, Signer)>,
    within: Duration,
    calls: Arc<AtomicU64>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("at", &self.at).field("within", &self.within).finish_non_exhaustive()
    }
}

impl Client {
    /// A client; nothing is connected yet. `within` is each call's deadline.
    pub fn new(at: Endpoint, token: Option<Zeroizing<String>>, within: Duration) -> Result<Self, CallError> {
        let https = matches!(&at, Endpoint::Url(url) if url.starts_with("https:"));
        let mut builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(within)
            .tls_backend_preconfigured(tls(https)?);
        let base = match &at {
            Endpoint::Url(url) => url.clone(),
            Endpoint::Socket(path) => {
                builder = builder.unix_socket(path.clone());
                "http://localhost".into()
            }
        };
        let http = builder.build().map_err(|error| CallError::Tls(error.to_string()))?;
        Ok(Self { http, base, at, token: token.map(Arc::new), signer: None, within, calls: Arc::default() })
    }

    /// The same client, calling as this participant and signing every call.
    #[must_use]
    pub fn signing_as(mut self, participant: &str, signer: Signer) -> Self {
        self.signer = Some((participant.into(), signer));
        self
    }

    /// Where it calls.
    #[must_use]
    pub fn at(&self) -> &Endpoint {
        &self.at
    }

    /// Sends one envelope as it is and returns the JSON-RPC answer, whatever it says.
    pub async fn send(&self, envelope: &Value) -> Result<Value, CallError> {
        let body = serde_json::to_vec(envelope).map_err(|error| CallError::Malformed(error.to_string()))?;
        let request = self.http.post(format!("{}/chap", self.base)).body(body);
        let text = self.fetch(request.header("content-type", "application/chap+json")).await?;
        serde_json::from_slice(&text).map_err(|_| self.strange(&text))
    }

    /// Calls a method and returns its result.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, CallError> {
        let id = format!("c{}", self.calls.fetch_add(1, Ordering::Relaxed));
        let mut envelope = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if let Some((participant, signer)) = &self.signer {
            envelope["params"]["from"] = json!(&**participant);
            envelope["params"]["ts"] = json!(Timestamp::now().to_string());
            signer.sign(&mut envelope)?;
        }
        result_of(self.send(&envelope).await?)
    }

    /// The notices of a participant after a number: the page as the Coordinator gives it.
    pub async fn inbox(&self, workspace: &str, participant: &str, since: u64) -> Result<Value, CallError> {
        let url = reqwest::Url::parse_with_params(
            &format!("{}/chap/inbox", self.base),
            [("workspace", workspace), ("participant", participant), ("since", &since.to_string())],
        )
        .map_err(|error| CallError::Malformed(error.to_string()))?;
        let text = self.fetch(self.http.get(url)).await?;
        serde_json::from_slice(&text).map_err(|_| self.strange(&text))
    }

    /// The workspaces after this one, a page at a time; empty at the end. For operators: a Coordinator lists them on its
    /// own socket, and where everybody who reaches it may read.
    pub async fn workspaces(&self, after: Option<&str>) -> Result<Vec<WorkspaceLine>, CallError> {
        let mut url = reqwest::Url::parse(&format!("{}/chap/workspaces", self.base))
            .map_err(|error| CallError::Malformed(error.to_string()))?;
        if let Some(after) = after {
            url.query_pairs_mut().append_pair("after", after);
        }
        let text = self.fetch(self.http.get(url)).await?;
        let mut answer: Value = serde_json::from_slice(&text).map_err(|_| self.strange(&text))?;
        if answer.get("error").is_some() {
            return result_of(answer).and(Ok(Vec::new()));
        }
        let lines = answer.get_mut("workspaces").map(Value::take).unwrap_or_default();
        serde_json::from_value(lines).map_err(|_| self.strange(&text))
    }

    async fn fetch(&self, mut request: reqwest::RequestBuilder) -> Result<Vec<u8>, CallError> {
        if let Some(token) = &self.token {
            let mut value = reqwest::header::HeaderValue::from_str(&format!("Bearer {}", token.as_str()))
                .map_err(|_| {
                    CallError::Malformed("the token holds characters that no header can carry".into())
                })?;
            value.set_sensitive(true);
            request = request.header("authorization", value);
        }
        match tokio::time::timeout(self.within, self.read(request)).await {
            Ok(read) => read,
            Err(_) => Err(CallError::Late(self.within)),
        }
    }

    async fn read(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, CallError> {
        let unreachable = |error: reqwest::Error| CallError::Unreachable {
            at: self.at.to_string(),
            why: innermost(&error),
        };
        let mut answer = request.send().await.map_err(unreachable)?;
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > ANSWER_BYTES {
                return Err(CallError::Malformed(format!("it is larger than {ANSWER_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        let status = answer.status();
        // A refusal on the HTTP level still carries a JSON-RPC error where a Coordinator speaks.
        if !status.is_success() && serde_json::from_slice::<Value>(&body).is_err() {
            return Err(CallError::Malformed(format!("HTTP {status}: {}", first_words(&body))));
        }
        Ok(body)
    }

    fn strange(&self, body: &[u8]) -> CallError {
        CallError::Malformed(first_words(body))
    }
}

/// The result in a JSON-RPC answer, or its error.
pub(crate) fn result_of(mut answer: Value) -> Result<Value, CallError> {
    if let Some(error) = answer.get_mut("error").map(Value::take) {
        let error: RpcError =
            serde_json::from_value(error).map_err(|error| CallError::Malformed(error.to_string()))?;
        return Err(CallError::Refused(error));
    }
    answer
        .get_mut("result")
        .map(Value::take)
        .ok_or_else(|| CallError::Malformed("it has neither result nor error".into()))
}

fn first_words(body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn innermost(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(next) = source.source() {
        source = next;
    }
    source.to_string()
}

/// The system's roots for `https`; none at all where nothing is encrypted, since reading them takes a while.
fn tls(https: bool) -> Result<rustls::ClientConfig, CallError> {
    let told = |error: &dyn fmt::Display| CallError::Tls(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| told(&error))?;
    if !https {
        return Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth());
    }
    let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| told(&error))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clear_text_is_for_loopback_only() {
        assert!("http://127.0.0.1:7000".parse::<Endpoint>().is_ok());
        assert!("http://[::1]:7000/".parse::<Endpoint>().is_ok());
        assert!("https://chap.example".parse::<Endpoint>().is_ok());
        assert!(matches!("http://chap.example".parse::<Endpoint>(), Err(EndpointError::ClearText(_))));
        assert!(matches!("http://user:pass@127.0.0.1".parse::<Endpoint>(), Err(EndpointError::NotOne(_))));
        assert!(matches!("unix:relative".parse::<Endpoint>(), Err(EndpointError::NotOne(_))));
        assert!(matches!("ftp://127.0.0.1".parse::<Endpoint>(), Err(EndpointError::NotOne(_))));
    }

    #[test]
    fn an_address_may_end_in_the_endpoint_itself() {
        let plain: Endpoint = "http://127.0.0.1:7000".parse().unwrap();
        assert_eq!("http://127.0.0.1:7000/chap".parse::<Endpoint>().unwrap(), plain);
    }

    #[test]
    fn an_answer_without_result_or_error_is_malformed() {
        assert!(matches!(result_of(json!({ "jsonrpc": "2.0" })), Err(CallError::Malformed(_))));
        assert!(matches!(result_of(json!([])), Err(CallError::Malformed(_))));
        assert!(matches!(result_of(json!({ "error": 7 })), Err(CallError::Malformed(_))));
    }

    #[test]
    fn debug_output_shows_no_token() {
        let token = Zeroizing::new("very-secret".to_owned());
        let at = "http://127.0.0.1:1".parse().unwrap();
        let client = Client::new(at, Some(token), Duration::from_secs(1)).unwrap();
        assert!(!format!("{client:?}").contains("very-secret"));
    }
}
