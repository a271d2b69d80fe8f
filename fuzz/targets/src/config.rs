//! `config.json` and `secrets.json` (`choir §6.3`).

use std::path::Path;

use choir_host::config::{Config, Problem};
use choir_host::secrets::Secrets;
use serde_json::Value;

use crate::{CANARY, Input, assert_one_line};

/// The input is one byte that says which file, then its text. What is accepted keeps what the rest of choird relies on.
/// What is refused is refused with problems that are one line each and name the field, unless the file as a whole is
/// wrong; no problem and no `Debug` holds a secret's value.
pub fn config(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let secrets = input.byte().unwrap_or_default() % 2 == 1;
    let bytes = input.rest();
    if secrets {
        match Secrets::from_json(bytes) {
            Ok(secrets) => {
                if !secrets.names().any(|name| name.contains(CANARY)) {
                    assert!(!format!("{secrets:?}").contains(CANARY));
                }
                for name in secrets.names() {
                    assert!(secrets.get(name).is_some_and(|value| !value.expose().is_empty()));
                }
                true
            }
            Err(problems) => {
                assert_problems_help(bytes, &problems);
                let keys_only = !keys(bytes).iter().any(|key| key.contains(CANARY));
                for problem in problems {
                    assert!(!keys_only || !problem.to_string().contains(CANARY), "{problem}");
                }
                false
            }
        }
    } else {
        match Config::from_json(bytes, Path::new("/state")) {
            Ok(config) => {
                assert_holds_together(&config);
                true
            }
            Err(problems) => {
                assert_problems_help(bytes, &problems);
                false
            }
        }
    }
}

fn assert_problems_help(bytes: &[u8], problems: &[Problem]) {
    assert!(!problems.is_empty(), "refused without a reason");
    let object = serde_json::from_slice::<Value>(bytes).is_ok_and(|value| value.is_object());
    for problem in problems {
        assert!(!problem.what.is_empty());
        assert_one_line(&problem.to_string());
        let whole = problem.what.starts_with("nested deeper than");
        assert!(!object || whole || !problem.path.is_empty(), "it names no field: {problem}");
    }
}

fn keys(bytes: &[u8]) -> Vec<String> {
    let value = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    value.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
}

fn assert_holds_together(config: &Config) {
    for agent in config.agents.values() {
        assert!(config.workspaces.contains_key(&agent.workspace));
        assert!(config.model_config(&agent.llm).is_some());
        assert!(agent.choir_dir.iter().all(|path| path.is_absolute()));
    }
    for model in config.models.values() {
        assert!(model.secret.iter().all(|name| config.secret_names.contains(name)));
        assert!(model.temperature.is_none_or(f64::is_finite));
        assert!(model.extra.is_object() && model.timeout_ms > 0);
    }
    for (name, workspace) in &config.workspaces {
        assert!(workspace.path.is_absolute() && workspace.path.parent().is_some());
        for (other, outer) in &config.workspaces {
            assert!(name == other || !workspace.path.starts_with(&outer.path), "{name} lies in {other}");
        }
    }
    assert!(config.crash_detection_threshold_ms >= 2 * config.heartbeat_interval_ms);
    assert!(config.needs_restart(config).is_empty());
    serde_json::to_string(config).expect("a configuration can be shown");
}
