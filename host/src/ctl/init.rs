//! `choirctl init` (`choir §6.2`): everything a first choird needs, without asking anything.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::json;

use super::{InitArgs, Outcome, Printer};
use crate::config::{Config, Template, template};
use crate::control::{ControlError, ErrorCode};
use crate::state_dir::{StateDir, make_private};

/// Environment variables in which a key may be waiting. They are only pointed at: `init` copies no secrets.
pub(crate) const KEY_VARIABLES: [&str; 2] = ["OPENROUTER_API_KEY", "OPENAI_API_KEY"];

pub(super) fn run(init: &InitArgs, state: &StateDir, printer: &Printer) -> Outcome {
    if state.config().exists() {
        let what = format!("{} is there already; nothing was changed", state.config().display());
        return Err(ControlError::new(ErrorCode::Refused, what)
            .next("`choirctl config check` checks it; edit it, or use another --state-dir"));
    }
    let default_workspace = state.root().join("workspaces/main");
    let workspace = init.workspace.clone().unwrap_or(default_workspace);
    let workspace = std::path::absolute(&workspace)
        .map_err(|e| ControlError::new(ErrorCode::Usage, format!("{}: {e}", workspace.display())))?;
    let text = template(&Template {
        agent: init.agent.as_str(),
        workspace: &workspace,
        model: &init.model,
        endpoint: &init.endpoint,
        secret: (!init.no_key).then_some(init.secret.as_str()),
    });
    // Checked before anything is made, so that wrong flags leave nothing behind.
    if let Err(problems) = Config::from_json(text.as_bytes(), state.root()) {
        let list: Vec<_> = problems.iter().map(ToString::to_string).collect();
        return Err(ControlError::new(
            ErrorCode::Usage,
            format!("these flags make no good configuration: {}", list.join("; ")),
        ));
    }
    state.create()?;
    make_private(&state.root().join("workspaces"))?;
    fs::create_dir_all(&workspace).map_err(|e| cannot(&workspace, &e))?;
    write_new(&state.config(), &text)?;
    if !state.secrets().exists() {
        write_new(&state.secrets(), "{}\n")?;
    }
    let found: Vec<&str> = KEY_VARIABLES
        .into_iter()
        .filter(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty()))
        .collect();
    let view = json!({ "state_dir": state.root(), "config": state.config(), "agent": init.agent, "workspace": workspace });
    printer.show(&view, || {
        let mut text = format!(
            "{} is ready: agent \"{}\", workspace {}\n",
            state.root().display(),
            init.agent,
            workspace.display()
        );
        text.push_str("next:\n");
        if !init.no_key {
            match found.first() {
                Some(name) => {
                    text.push_str(&format!("  printf %s \"${name}\" | choirctl secret set {}\n", init.secret))
                }
                None => text.push_str(&format!(
                    "  choirctl secret set {}        # asks for the key, hidden\n",
                    init.secret
                )),
            }
        }
        text.push_str("  choird &\n");
        text.push_str(&format!("  choirctl agent start {0} && choirctl chat {0}\n", init.agent));
        text
    });
    Ok(true)
}

fn cannot(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("cannot write {}: {error}", path.display()))
}

/// Writes a private file that must not be there yet.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<(), ControlError> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| cannot(path, &e))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|e| cannot(path, &e))
}
