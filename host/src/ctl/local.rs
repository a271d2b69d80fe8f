//! Commands that need no choird: secrets and the configuration's files.

use std::io::Read;
use std::time::Duration;

use choir_messages::limits::USER_MESSAGE_BYTES;
use serde_json::json;

use super::{Outcome, Printer, SecretCommand};
use crate::config::{Config, ConfigError};
use crate::control::{ControlError, ErrorCode};
use crate::secrets::{SecretError, Secrets, read_value};
use crate::state_dir::StateDir;

/// How often the end of choird is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl From<ConfigError> for ControlError {
    fn from(error: ConfigError) -> Self {
        let code = match &error {
            ConfigError::Exposed { .. } => ErrorCode::Refused,
            ConfigError::Invalid { .. } | ConfigError::TooLarge { .. } => ErrorCode::Negative,
            ConfigError::Unreadable { .. } => ErrorCode::Runtime,
        };
        Self::new(code, error.to_string())
    }
}

impl From<SecretError> for ControlError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::File(error) => error.into(),
            SecretError::NotAName(_) | SecretError::NotAValue(_) => {
                Self::new(ErrorCode::Usage, error.to_string())
            }
            SecretError::Unknown { .. } => Self::new(ErrorCode::Negative, error.to_string()),
            SecretError::Write { .. } | SecretError::Input(_) => {
                Self::new(ErrorCode::Runtime, error.to_string())
            }
        }
    }
}

pub(super) fn secret(command: SecretCommand, state: &StateDir, printer: &Printer) -> Outcome {
    state.check()?;
    let path = state.secrets();
    match command {
        SecretCommand::Set { name } => {
            let value = read_value(&format!("value of {name} (not shown)"))?;
            Secrets::set(&path, &name, &value)?;
            printer.show(&json!({ "set": name }), || format!("{name} is set\n"));
            if state.holder().is_some() {
                printer.say("`choirctl secret apply` puts it into force at the running choird");
            }
        }
        SecretCommand::List => {
            let secrets = Secrets::load(&path)?;
            let names: Vec<&str> = secrets.names().collect();
            printer.show(&names, || names.iter().map(|name| format!("{name}\n")).collect());
        }
        SecretCommand::Delete { name } => {
            Secrets::delete(&path, &name)?;
            printer.show(&json!({ "deleted": name }), || format!("{name} is deleted\n"));
        }
        SecretCommand::Apply => {}
    }
    Ok(true)
}

pub(super) fn config_check(state: &StateDir, printer: &Printer) -> Outcome {
    let config = Config::load(&state.config())?;
    let secrets = Secrets::load(&state.secrets())?;
    let missing = secrets.missing(&config);
    let lines: Vec<String> = missing.iter().map(ToString::to_string).collect();
    printer.show(&json!({ "valid": true, "missing": lines }), || {
        let mut text = format!("{} is good\n", state.config().display());
        for line in &lines {
            text.push_str(&format!("note: {line}\n"));
        }
        text
    });
    Ok(true)
}

pub(super) fn config_show(state: &StateDir, printer: &Printer) -> Outcome {
    let config = Config::load(&state.config())?;
    printer.show(&config, || {
        let mut text = serde_json::to_string_pretty(&config).unwrap_or_default();
        text.push('\n');
        text
    });
    Ok(true)
}

/// A message's text from standard input.
pub(super) fn read_stdin() -> Result<String, ControlError> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(USER_MESSAGE_BYTES as u64 + 1);
    input.read_to_string(&mut text).map_err(|e| {
        ControlError::new(ErrorCode::Usage, format!("standard input cannot be read as text: {e}"))
    })?;
    Ok(text)
}

/// Waits until no choird holds the state directory.
pub(super) async fn wait_for_end(state: &StateDir, within: Duration) -> Result<(), ControlError> {
    let until = tokio::time::Instant::now() + within;
    while let Some(pid) = state.holder() {
        if tokio::time::Instant::now() >= until {
            let what = format!("choird (pid {pid}) is still shutting down after {within:?}");
            return Err(ControlError::new(ErrorCode::Runtime, what)
                .next("`choirctl logs choird` shows what it waits for"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
