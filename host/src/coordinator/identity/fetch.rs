//! Documents of identity providers, fetched over https, or over http from loopback. No redirect is followed: the operator
//! named one address. Every fetch has a deadline and a largest size.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CACHE_CONTROL};
use url::{Host, Url};

/// Longest fetch, connecting included: a caller who waits for its token to be verified is still answered in time.
pub(super) const FETCH_WITHIN: Duration = Duration::from_secs(8);

/// Time for the connection alone.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);

/// A client for such documents. Cheap to clone.
#[derive(Clone)]
pub(super) struct Web {
    near: reqwest::Client,
    far: Option<reqwest::Client>,
}

/// A document, and how long its server says it may be kept.
pub(super) struct Document {
    pub(super) bytes: Vec<u8>,
    pub(super) max_age: Option<Duration>,
}

/// Whether a document may be fetched from there: https, or http on this machine.
pub(crate) fn may_fetch(url: &Url) -> bool {
    url.username().is_empty()
        && url.password().is_none()
        && match url.scheme() {
            "https" => url.host().is_some(),
            "http" => is_loopback(url),
            _ => false,
        }
}

pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

impl Web {
    /// A client; the system's root certificates are read only if something is reached over https.
    pub(super) fn new(https: bool) -> Result<Self, String> {
        let far = https.then(|| client(true)).transpose()?;
        Ok(Self { near: client(false)?, far })
    }

    /// The document at that address, or why it cannot be had, in words without the address.
    pub(super) async fn get(&self, url: &Url, largest: usize) -> Result<Document, String> {
        if !may_fetch(url) {
            return Err("only https is fetched, or http from loopback".to_owned());
        }
        let client = match (url.scheme(), &self.far) {
            ("http", _) => &self.near,
            (_, Some(far)) => far,
            (_, None) => return Err("nothing is fetched over https here".to_owned()),
        };
        match tokio::time::timeout(FETCH_WITHIN, read(client, url, largest)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {} s", FETCH_WITHIN.as_secs())),
        }
    }
}

async fn read(client: &reqwest::Client, url: &Url, largest: usize) -> Result<Document, String> {
    let said = |error: reqwest::Error| error.without_url().to_string();
    let request = client.get(url.clone()).header(ACCEPT, "application/json");
    let mut response = request.send().await.map_err(said)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(format!("it was answered with status {}", response.status().as_u16()));
    }
    let max_age =
        response.headers().get(CACHE_CONTROL).and_then(|value| value.to_str().ok()).and_then(max_age);
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(said)? {
        if bytes.len().saturating_add(chunk.len()) > largest {
            return Err(format!("it is larger than {largest} bytes"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Document { bytes, max_age })
}

/// What `Cache-Control` says (RFC 9111 §5.2.2).
fn max_age(header: &str) -> Option<Duration> {
    let mut directives = header.split(',').map(str::trim);
    if directives.clone().any(|directive| matches!(directive, "no-store" | "no-cache")) {
        return Some(Duration::ZERO);
    }
    let seconds = directives.find_map(|directive| directive.strip_prefix("max-age="))?;
    seconds.trim_matches('"').parse().ok().map(Duration::from_secs)
}

fn client(https: bool) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(CONNECT_WITHIN)
        .user_agent(concat!("choir/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls(https)?);
    if !https {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| error.to_string())
}

fn tls(https: bool) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    if !https {
        return Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth());
    }
    let verifier = rustls_platform_verifier::Verifier::new(provider).map_err(|error| error.to_string())?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_and_this_machine_are_fetched_from() {
        for (url, may) in [
            ("https://id.example/jwks", true),
            ("http://127.0.0.1:80/jwks", true),
            ("http://[::1]:80/jwks", true),
            ("http://localhost/jwks", true),
            ("http://id.example/jwks", false),
            ("http://127.0.0.1.id.example/", false),
            ("http://10.0.0.1/jwks", false),
            ("file:///etc/passwd", false),
            ("https://user:word@id.example/", false),
        ] {
            assert_eq!(may_fetch(&Url::parse(url).unwrap()), may, "{url}");
        }
    }

    #[test]
    fn the_time_a_document_may_be_kept_is_read_from_its_header() {
        assert_eq!(max_age("public, max-age=300"), Some(Duration::from_secs(300)));
        assert_eq!(max_age("no-store, max-age=300"), Some(Duration::ZERO));
        assert_eq!(max_age("public"), None);
    }
}
