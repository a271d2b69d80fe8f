//! `choirctl doctor`: what can be checked from outside, and what choird says of itself.

use std::time::Duration;

use choir_messages::time::Timestamp;
use choir_persistence::postgres::{Binaries, DATABASE_URL_VAR};
use choir_sandbox::{Preference, detect};

use super::{Outcome, Printer};
use crate::config::{Config, Postgres};
use crate::control::views::{Check, CheckStatus};
use crate::control::{Client, Op};
use crate::daemon::disk::{Disk, disks};
use crate::secrets::Secrets;
use crate::state_dir::StateDir;

pub(super) async fn run(state: &StateDir, timeout: Duration, printer: &Printer) -> Outcome {
    let mut checks = vec![state_dir(state)];
    let config = Config::load(&state.config());
    checks.push(match &config {
        Ok(config) => {
            Check::ok("config", format!("{} agents, {} models", config.agents.len(), config.models.len()))
        }
        Err(error) => {
            Check::fail("config", error.to_string(), "correct the file, then `choirctl config check`")
        }
    });
    checks.push(secrets(state, config.as_ref().ok()));
    if let Ok(config) = &config {
        checks.push(database(config, state).await);
    }
    checks.push(sandbox().await);
    checks.push(match crate::daemon::find_agent_binary() {
        Ok(path) => Check::ok("agent-binary", path.display().to_string()),
        Err(error) => Check::fail("agent-binary", error, "build it with `cargo build --release`"),
    });
    match daemon(state, timeout).await {
        Ok(inside) => {
            checks.push(Check::ok("choird", "answers"));
            checks.extend(inside);
        }
        Err(check) => {
            checks.push(check);
            // What choird would have said of these.
            checks.push(crate::daemon::doctor::clock(Timestamp::now(), None));
            checks.extend(disks(state, config.as_ref().ok()).iter().map(Disk::check));
        }
    }
    let failed = checks.iter().any(|check| check.status == CheckStatus::Fail);
    printer.show(&checks, || {
        let mut text = String::new();
        for check in &checks {
            let word = match check.status {
                CheckStatus::Ok => "ok  ",
                CheckStatus::Warn => "warn",
                CheckStatus::Fail => "FAIL",
            };
            text.push_str(&format!(
                "{word}  {:<18} {}\n",
                check.id,
                check.evidence.replace('\n', "\n        ")
            ));
            if let Some(fix) = &check.fix {
                text.push_str(&format!("        fix: {fix}\n"));
            }
        }
        text
    });
    Ok(!failed)
}

fn state_dir(state: &StateDir) -> Check {
    match state.check() {
        Ok(()) => Check::ok("state-dir", format!("{}, private", state.root().display())),
        Err(error) => {
            Check::fail("state-dir", error.to_string(), "see the text; `choirctl init` makes a new one")
        }
    }
}

fn secrets(state: &StateDir, config: Option<&Config>) -> Check {
    match Secrets::load(&state.secrets()) {
        Err(error) => Check::fail("secrets", error.to_string(), "see the text"),
        Ok(secrets) => {
            let missing = config.map(|config| secrets.missing(config)).unwrap_or_default();
            match missing.first() {
                None => Check::ok("secrets", format!("{} set, file is private", secrets.names().count())),
                Some(first) => Check::warn(
                    "secrets",
                    first.to_string(),
                    "set it; without it the model's provider refuses calls",
                ),
            }
        }
    }
}

async fn database(config: &Config, state: &StateDir) -> Check {
    if std::env::var_os(DATABASE_URL_VAR).is_some_and(|v| !v.is_empty()) {
        return Check::ok("database-source", format!("{DATABASE_URL_VAR} is set"));
    }
    match &config.postgres {
        Postgres::External { host, port, database, .. } => {
            Check::ok("database-source", format!("external: {host}:{port}/{database}"))
        }
        Postgres::Embedded { binaries } => match Binaries::find(binaries.as_deref(), state.root()).await {
            Ok(found) => Check::ok("database-source", format!("embedded: {}", found.dir().display())),
            Err(error) => Check::fail("database-source", error.to_string(), "run scripts/fetch-postgres"),
        },
    }
}

async fn sandbox() -> Check {
    match detect(Preference::Auto).await {
        Err(error) => Check::fail("sandbox-available", error.to_string(), "see the text"),
        Ok(detected) => match detected.warning {
            Some(warning) => Check::warn("sandbox-available", warning, "`apt-get install bubblewrap`"),
            None => Check::ok("sandbox-available", detected.sandbox.name()),
        },
    }
}

/// What choird says of itself, or that there is none to ask.
async fn daemon(state: &StateDir, timeout: Duration) -> Result<Vec<Check>, Check> {
    let client = Client::connect(&state.control_socket(), timeout).await.map_err(|error| {
        let fix = match state.holder() {
            Some(pid) => {
                format!("choird (pid {pid}) holds the directory and does not answer; see logs/choird.log")
            }
            None => "start it with `choird`".into(),
        };
        Check::warn("choird", error.to_string(), fix)
    })?;
    client.call::<Vec<Check>>(Op::Doctor, timeout).await.map_err(|error| {
        Check::fail("choird", error.to_string(), "see logs/choird.log in the state directory")
    })
}
