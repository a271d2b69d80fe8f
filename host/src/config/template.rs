//! The `config.json` that `choirctl init` and the demo write.

use std::path::Path;

use serde_json::json;

/// What a new configuration is made of.
#[derive(Debug, Clone)]
pub struct Template<'a> {
    /// Name of the one agent.
    pub agent: &'a str,
    /// Its workspace's directory.
    pub workspace: &'a Path,
    /// The provider's model id.
    pub model: &'a str,
    /// The provider's base URL.
    pub endpoint: &'a str,
    /// The name of the secret with the key; absent where none is needed.
    pub secret: Option<&'a str>,
}

/// A complete `config.json` with one agent, one workspace and one model.
#[must_use]
pub fn template(t: &Template<'_>) -> String {
    let mut model = json!({
        "provider": "openai-compatible",
        "model": t.model,
        "endpoint": t.endpoint,
        "temperature": null,
    });
    if let (Some(fields), Some(secret)) = (model.as_object_mut(), t.secret) {
        fields.insert("secret".into(), json!(secret));
    }
    let config = json!({
        "version": super::FORMAT,
        "workspaces": { "main": { "path": t.workspace } },
        "models": { "default": model },
        "agents": { t.agent: { "defaults": { "workspace": "main", "llm": "default" } } },
        "sandbox": "auto",
        "heartbeat_interval_ms": 5000,
        "crash_detection_threshold_ms": 10000,
        "rate_limit_retry_ms": 1000,
        "log_archive_threshold_lines": 100_000,
    });
    let mut text = serde_json::to_string_pretty(&config).unwrap_or_else(|_| "{}".into());
    text.push('\n');
    text
}
