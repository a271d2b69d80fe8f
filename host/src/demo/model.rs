//! Which model the demo talks to: a real endpoint where a key is in the environment, else the scripted one.

use choir_scripted_model::Handle;
use zeroize::Zeroizing;

use crate::control::{ControlError, ErrorCode};

/// The variables that may hold a key, each with that of its base URL, the usual base URL and a model for it.
const PROVIDERS: [Provider; 2] = [
    Provider {
        key: "OPENROUTER_API_KEY",
        base_url: "OPENROUTER_BASE_URL",
        endpoint: "https://openrouter.ai/api/v1",
        model: "anthropic/claude-sonnet-4",
    },
    Provider {
        key: "OPENAI_API_KEY",
        base_url: "OPENAI_BASE_URL",
        endpoint: "https://api.openai.com/v1",
        model: "gpt-4.1-mini",
    },
];

/// The variable with the model's name.
const MODEL: &str = "CHOIR_MODEL";

struct Provider {
    key: &'static str,
    base_url: &'static str,
    endpoint: &'static str,
    model: &'static str,
}

/// Variables that choird must not inherit: a key is handed over in `secrets.json` and nowhere else.
pub(super) const KEY_VARIABLES: [&str; 2] = [PROVIDERS[0].key, PROVIDERS[1].key];

/// How the model is reached.
pub(super) struct Access {
    /// What the result calls it.
    pub(super) name: String,
    /// The provider's model id.
    pub(super) model: String,
    /// Base URL.
    pub(super) endpoint: String,
    /// The key.
    pub(super) key: Zeroizing<String>,
    /// One sentence for a person.
    pub(super) said: String,
}

impl Access {
    /// The real endpoint that the environment names, if it does.
    pub(super) fn real(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| variable(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let (provider, key) = PROVIDERS.iter().find_map(|p| Some((p, Zeroizing::new(set(p.key)?))))?;
        let endpoint = set(provider.base_url).unwrap_or_else(|| provider.endpoint.to_owned());
        let model = set(MODEL).unwrap_or_else(|| provider.model.to_owned());
        let said = format!("the model is {model} at {endpoint} (key from {})", provider.key);
        Some(Self { name: model.clone(), model, endpoint, key, said })
    }

    /// A scripted endpoint.
    pub(super) fn scripted(handle: &Handle) -> Self {
        Self {
            name: "scripted".into(),
            model: "scripted".into(),
            endpoint: handle.endpoint(),
            key: Zeroizing::new(handle.key().to_owned()),
            said: "no OPENROUTER_API_KEY or OPENAI_API_KEY is set, so a built-in scripted model answers; it is no language model"
                .into(),
        }
    }
}

/// A variable of this process.
pub(super) fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Why the scripted endpoint is not there.
pub(super) fn not_started(error: &choir_scripted_model::StartError) -> ControlError {
    ControlError::new(ErrorCode::Runtime, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Option<Access> {
        Access::real(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn a_key_in_the_environment_selects_its_provider() {
        assert!(of(&[]).is_none() && of(&[("OPENAI_API_KEY", " ")]).is_none());
        let access = of(&[("OPENAI_API_KEY", "canary\n")]).unwrap();
        assert_eq!((access.endpoint.as_str(), access.key.as_str()), ("https://api.openai.com/v1", "canary"));
        assert!(!access.said.contains("canary"));
        let both = of(&[
            ("OPENAI_API_KEY", "a"),
            ("OPENROUTER_API_KEY", "b"),
            ("OPENROUTER_BASE_URL", "http://127.0.0.1:9/v1"),
            ("CHOIR_MODEL", "x/y"),
        ])
        .unwrap();
        assert_eq!(
            (both.endpoint.as_str(), both.name.as_str(), both.key.as_str()),
            ("http://127.0.0.1:9/v1", "x/y", "b")
        );
    }
}
