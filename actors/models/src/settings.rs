//! One configuration, checked: where requests go, with which key, under which deadline. A call holds on to the settings
//! it began with; new ones are taken whole (`choir §16.3`).

use std::net::IpAddr;
use std::time::Duration;

use choir_messages::model::ModelConfig;
use choir_messages::secret::Secret;
use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::limits;
use crate::scrub::Scrubber;

/// Why a configuration cannot be used. Names the field; never holds the key or the endpoint's query.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Not an absolute http or https address.
    #[error(
        "model `{model}`: `endpoint` is not an http or https address, such as https://openrouter.ai/api/v1"
    )]
    Endpoint {
        /// The model's name in the configuration.
        model: String,
    },
    /// Credentials in the address.
    #[error(
        "model `{model}`: `endpoint` holds a user name or password; put the key into a secret and name it in `secret`"
    )]
    Credentials {
        /// The model's name in the configuration.
        model: String,
    },
    /// Plain http to another machine: the key and the whole conversation would be readable on the way.
    #[error(
        "model `{model}`: plain http is accepted for this machine only (127.0.0.1, ::1, localhost); use https"
    )]
    Plain {
        /// The model's name in the configuration.
        model: String,
    },
    /// A key that no header can carry.
    #[error(
        "model `{model}`: the key holds characters that no HTTP header may carry; set it again with `choirctl secret set`"
    )]
    Key {
        /// The model's name in the configuration.
        model: String,
    },
    /// A request template that is no object.
    #[error("model `{model}`: the request template (`extra`) is not a JSON object")]
    Template {
        /// The model's name in the configuration.
        model: String,
    },
    /// TLS cannot be set up.
    #[error(
        "model `{model}`: no TLS for https ({reason}); is the system's package of root certificates (ca-certificates) installed?"
    )]
    Tls {
        /// The model's name in the configuration.
        model: String,
        /// What the TLS library said.
        reason: String,
    },
}

/// A checked configuration.
pub struct Settings {
    pub(crate) config: ModelConfig,
    pub(crate) url: Url,
    pub(crate) loopback: bool,
    pub(crate) scrubber: Scrubber,
    key: Option<Secret>,
}

impl Settings {
    /// Checks a configuration and its key. White space around the key (a line end from a file) is no part of it.
    pub fn new(config: ModelConfig, key: Option<Secret>) -> Result<Self, SettingsError> {
        let model = || config.name.clone();
        let mut url = Url::parse(&config.endpoint).map_err(|_| SettingsError::Endpoint { model: model() })?;
        let host = url.host_str().unwrap_or_default().to_owned();
        if !matches!(url.scheme(), "http" | "https") || host.is_empty() {
            return Err(SettingsError::Endpoint { model: model() });
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(SettingsError::Credentials { model: model() });
        }
        let loopback = is_loopback(&host);
        if url.scheme() == "http" && !loopback {
            return Err(SettingsError::Plain { model: model() });
        }
        if !config.extra.value().is_null() && !config.extra.value().is_object() {
            return Err(SettingsError::Template { model: model() });
        }
        url.set_fragment(None);
        url.path_segments_mut()
            .map_err(|()| SettingsError::Endpoint { model: model() })?
            .pop_if_empty()
            .extend(["chat", "completions"]);
        let key =
            key.map(|key| Secret::new(key.expose().trim().to_owned())).filter(|k| !k.expose().is_empty());
        if key.as_ref().is_some_and(|key| authorization(key).is_none()) {
            return Err(SettingsError::Key { model: model() });
        }
        let in_query = url.query_pairs().map(|(_, value)| Secret::new(value.into_owned()));
        let raw_query = url.query().map(|query| Secret::new(query.to_owned()));
        let scrubber = Scrubber::new(key.clone().into_iter().chain(in_query).chain(raw_query));
        Ok(Self { config, url, loopback, scrubber, key })
    }

    /// The value of the Authorization header, marked so that nothing prints it.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        self.key.as_ref().and_then(authorization)
    }

    /// The deadline of one try.
    pub(crate) fn within(&self) -> Duration {
        Duration::from_millis(self.config.timeout_ms.max(1)).min(limits::CALL_WITHIN_MAX)
    }

    /// Scheme and host, which is all of the address that is ever shown.
    pub(crate) fn shown(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("name", &self.config.name)
            .field("model", &self.config.model)
            .field("endpoint", &self.shown())
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

fn authorization(key: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Whether a host is this machine by its very name. Names that a resolver could point elsewhere do not count, but for
/// `localhost`, which is reserved for this (RFC 6761).
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::json::Json;
    use serde_json::{Value, json};

    fn settings(endpoint: &str, key: Option<&str>, extra: Value) -> Result<Settings, SettingsError> {
        let config = ModelConfig {
            name: "main".into(),
            model: "vendor/model".into(),
            endpoint: endpoint.into(),
            temperature: None,
            reasoning_effort: None,
            secret: None,
            timeout_ms: 1000,
            rate_limit_retry_ms: 1,
            extra: Json(extra),
        };
        Settings::new(config, key.map(|key| Secret::new(key.into())))
    }

    #[test]
    fn the_path_is_appended_to_the_base_address_before_its_query() {
        for (endpoint, url) in [
            ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
            ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api/v1/chat/completions"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/chat/completions"),
            ("http://[::1]:8080/v1#x", "http://[::1]:8080/v1/chat/completions"),
            ("https://a.example/d?api-version=1", "https://a.example/d/chat/completions?api-version=1"),
        ] {
            assert_eq!(settings(endpoint, None, Value::Null).unwrap().url.as_str(), url);
        }
    }

    #[test]
    fn addresses_that_would_leak_are_refused() {
        let refused = |endpoint: &str| settings(endpoint, None, Value::Null).unwrap_err();
        for plain in ["http://openrouter.ai/v1", "http://10.0.0.1/v1", "http://localhost.evil.example/v1"] {
            assert!(matches!(refused(plain), SettingsError::Plain { .. }), "{plain}");
        }
        let error = refused("https://user:hunter2@a.example/v1");
        assert!(matches!(error, SettingsError::Credentials { .. }));
        assert!(!error.to_string().contains("hunter2"));
        for bad in ["", "openrouter.ai", "ftp://a/v1", "file:///etc/passwd", "https://", "mailto:a@b"] {
            assert!(matches!(refused(bad), SettingsError::Endpoint { .. }), "{bad}");
        }
    }

    #[test]
    fn a_key_from_a_file_loses_its_line_end_and_a_broken_one_is_refused() {
        let value = |key| settings("https://a.example", Some(key), Value::Null).map(|s| s.authorization());
        assert_eq!(value("sk-1\n").unwrap().unwrap().to_str().unwrap(), "Bearer sk-1");
        assert_eq!(value(" \n").unwrap(), None);
        assert!(matches!(value("sk\n1"), Err(SettingsError::Key { .. })));
    }

    #[test]
    fn a_template_must_be_an_object() {
        assert!(settings("https://a.example", None, json!({})).is_ok());
        assert!(matches!(
            settings("https://a.example", None, json!([])),
            Err(SettingsError::Template { .. })
        ));
    }

    #[test]
    fn printing_settings_shows_neither_key_nor_query() {
        let settings = settings("https://a.example/v1?key=q-canary", Some("sk-canary"), Value::Null).unwrap();
        let shown = format!("{settings:?} {:?}", settings.authorization());
        assert!(!shown.contains("canary"), "{shown}");
        assert!(!settings.scrubber.reason("q-canary sk-canary").contains("canary"));
    }
}
