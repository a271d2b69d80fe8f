//! `choirctl ledger list`, `show`, `export`, `import` and `key`: what is on disk.

use std::fmt::Write as _;
use std::path::Path;

use choir_ledger::event::{Event, Role};
use choir_ledger::id::TraceId;
use choir_ledger::identity::Identity;
use choir_ledger::verify::Profile;
use choir_ledger_store::{Home, ImportOptions, StoreError};
use serde::Serialize;
use serde_json::{Value, json};

use super::args::{HomeAt, KeyCommand};
use super::story;
use crate::control::{ControlError, ErrorCode};
use crate::ctl::print::plain;
use crate::ctl::{Outcome, Printer};
use crate::state_dir::StateDir;

/// What a failure of the store is to whoever typed the command.
pub(super) fn stored(error: StoreError) -> ControlError {
    let code = match &error {
        StoreError::NoTrace(_) | StoreError::NoHome(_) => ErrorCode::Negative,
        StoreError::Exists(_) | StoreError::Name { .. } | StoreError::Key { .. } => ErrorCode::Usage,
        StoreError::Unverified { .. }
        | StoreError::Conflict(_)
        | StoreError::KeyInUse { .. }
        | StoreError::KeyExposed(_)
        | StoreError::Locked(_) => ErrorCode::Refused,
        StoreError::Damaged { .. } | StoreError::RolledBack { .. } | StoreError::Registry(_) => {
            ErrorCode::Negative
        }
        _ => ErrorCode::Runtime,
    };
    ControlError::new(code, error.to_string())
}

fn place(at: &HomeAt, state: &StateDir) -> std::path::PathBuf {
    at.home.clone().unwrap_or_else(|| state.ledger())
}

fn open(at: &HomeAt, state: &StateDir) -> Result<Home, ControlError> {
    Home::open(&place(at, state)).map_err(stored)
}

#[derive(Serialize)]
struct Line {
    trace_id: String,
    task_id: String,
    status: String,
    events: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    started_at: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn list(at: &HomeAt, state: &StateDir, printer: &Printer) -> Outcome {
    let place = place(at, state);
    let traces = if place.exists() {
        Home::open(&place).and_then(|home| home.list()).map_err(stored)?
    } else {
        Vec::new()
    };
    let lines: Vec<Line> = traces
        .into_iter()
        .map(|trace| Line {
            trace_id: trace.trace_id.to_string(),
            task_id: trace.meta.as_ref().map(|meta| meta.task_id.clone()).unwrap_or_default(),
            status: trace.meta.as_ref().map_or_else(|| "unreadable".to_owned(), |meta| word(&meta.status)),
            events: trace.meta.as_ref().map_or(0, |meta| meta.event_count),
            verdict: trace.verdict,
            started_at: trace.meta.as_ref().map(|meta| meta.started_at.clone()).unwrap_or_default(),
            path: trace.path.display().to_string(),
            problem: trace.problem,
        })
        .collect();
    printer.show(&lines, || {
        let mut text = String::new();
        for line in &lines {
            let verdict = line.verdict.as_deref().unwrap_or("-");
            let _ = writeln!(
                text,
                "{}  {:<9}  {:<18}  {:>5} events  {}  {}",
                line.trace_id,
                line.status,
                plain(verdict),
                line.events,
                plain(&line.started_at),
                plain(&line.task_id)
            );
        }
        if lines.is_empty() {
            text.push_str("no traces; `choirctl ledger run` makes one\n");
        }
        text
    });
    Ok(true)
}

fn event_view(place: usize, event: &Event) -> Value {
    let payload: Value = serde_json::from_str(&event.payload().to_json()).unwrap_or_default();
    json!({
        "place": place,
        "event_id": event.event_id().to_string(),
        "at": event.created_at().to_string(),
        "kind": event.event_type().as_str(),
        "role": event.actor().role.as_str(),
        "agent_id": event.actor().agent_id,
        "key_id": event.actor().key_id,
        "event_hash": event.event_hash().to_string(),
        "claims": event.claims().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "artifacts": event.artifacts().iter().map(|a| a.artifact_hash.to_string()).collect::<Vec<_>>(),
        "payload": payload,
    })
}

pub(super) fn show(trace: TraceId, at: &HomeAt, state: &StateDir, printer: &Printer) -> Outcome {
    let home = open(at, state)?;
    let meta = home.meta(trace).map_err(stored)?;
    let events = home.events(trace).map_err(stored)?;
    let views: Vec<Value> = events.iter().enumerate().map(|(at, event)| event_view(at + 1, event)).collect();
    let view = json!({ "meta": meta, "verdict": home.summary(trace).verdict, "events": views });
    printer.show(&view, || {
        let mut text = format!(
            "trace {trace}  task {}  {}  profile {}\n",
            plain(&meta.task_id),
            word(&meta.status),
            plain(&meta.policy_profile)
        );
        for participant in &meta.participants {
            let _ = writeln!(
                text,
                "  {:<9} {}  signs with {}",
                participant.role.as_str(),
                plain(&participant.agent_id),
                plain(&participant.key_id)
            );
        }
        text.push('\n');
        timeline(&events, &mut text);
        if let Some(reason) = meta.other.get(choir_ledger_store::STATUS_REASON).and_then(Value::as_str) {
            let _ = writeln!(text, "\n{}: {}", word(&meta.status), plain(reason));
        }
        text
    });
    Ok(true)
}

/// A column for each role: who spoke when, and with which key.
fn timeline(events: &[Event], text: &mut String) {
    let _ = writeln!(text, "   #  time      P  C  E  A  signed with           what");
    for (at, event) in events.iter().enumerate() {
        let column = match event.actor().role {
            Role::Planner => 0,
            Role::Critic => 1,
            Role::Executor => 2,
            Role::Auditor => 3,
        };
        let marks: String = (0..4).map(|c| if c == column { "●  " } else { "│  " }).collect();
        let payload: Value = serde_json::from_str(&event.payload().to_json()).unwrap_or_default();
        let kind = event.event_type().as_str();
        let at_time = event.created_at().to_string();
        let clock = at_time.get(11..19).unwrap_or_default();
        let _ = writeln!(
            text,
            "{:>4}  {clock}  {marks}{:<20}  {kind}: {}",
            at + 1,
            plain(&event.actor().key_id),
            story::said(kind, &payload)
        );
    }
}

pub(super) fn export(trace: TraceId, to: &Path, at: &HomeAt, state: &StateDir, printer: &Printer) -> Outcome {
    let exported = open(at, state)?.export(trace, to).map_err(stored)?;
    let missing: Vec<String> = exported.missing.iter().map(ToString::to_string).collect();
    let view = json!({ "trace_id": trace.to_string(), "path": exported.path, "events": exported.events,
        "artifacts": exported.artifacts, "missing": missing });
    printer.show(&view, || {
        let mut text = format!(
            "{}: {} events, {} artefacts\n",
            exported.path.display(),
            exported.events,
            exported.artifacts
        );
        for hash in &missing {
            let _ = writeln!(text, "missing here, and so there: {hash}");
        }
        text
    });
    Ok(true)
}

pub(super) fn import(
    from: &Path,
    options: ImportOptions,
    at: &HomeAt,
    state: &StateDir,
    printer: &Printer,
) -> Outcome {
    let home = Home::create(&place(at, state)).map_err(stored)?;
    let imported = home.import(from, &options).map_err(stored)?;
    let view = json!({ "trace_id": imported.trace.to_string(), "artifacts": imported.artifacts, "keys": imported.keys,
        "verification_status": imported.report.verification_status });
    printer.show(&view, || {
        format!(
            "{} is here: {} new artefacts, {} new keys; verification: {}\n",
            imported.trace,
            imported.artifacts,
            imported.keys,
            imported.report.verification_status.as_str()
        )
    });
    Ok(true)
}

/// The options of an import.
pub(super) const fn options(
    trace: Option<TraceId>,
    profile: Option<Profile>,
    accept_failing: bool,
) -> ImportOptions {
    ImportOptions { trace, profile, accept_failing }
}

fn key_line(identity: &Identity) -> String {
    let roles: Vec<&str> = identity.role_capabilities.iter().map(|role| role.as_str()).collect();
    let until = match (&identity.revoked_at, word(&identity.status).as_str()) {
        (Some(at), _) => format!("  revoked {at}"),
        (None, "rotated") => format!("  replaced {}", identity.updated_at),
        _ => String::new(),
    };
    format!(
        "{}  {:<8}  {}  [{}]  since {}{until}\n",
        plain(&identity.key_id),
        word(&identity.status),
        plain(&identity.agent_id),
        roles.join(", "),
        plain(&identity.created_at),
    )
}

pub(super) fn key(command: KeyCommand, state: &StateDir, printer: &Printer) -> Outcome {
    match command {
        KeyCommand::New { agent, roles, name, home } => {
            let home = Home::create(&place(&home, state)).map_err(stored)?;
            let known = home.registry().map_err(stored)?;
            if known.identities.iter().any(|i| i.agent_id == agent && word(&i.status) == "active") {
                return Err(ControlError::new(
                    ErrorCode::Refused,
                    format!("{} has a key already", plain(&agent)),
                )
                .next("`choirctl ledger key rotate` replaces it"));
            }
            let signer =
                home.ensure_agent(&agent, name.as_deref().unwrap_or(&agent), &roles).map_err(stored)?;
            printer.show(signer.identity(), || key_line(signer.identity()));
        }
        KeyCommand::Rotate { key, home } => {
            let signer = open(&home, state)?.rotate_key(&key).map_err(stored)?;
            printer.show(signer.identity(), || key_line(signer.identity()));
        }
        KeyCommand::Revoke { key, reason, home } => {
            let identity = open(&home, state)?.revoke_key(&key, &reason).map_err(stored)?;
            printer.show(&identity, || key_line(&identity));
        }
        KeyCommand::List { home } => {
            let home = open(&home, state)?;
            let registry = home.registry().map_err(stored)?;
            let log_key = home.log_key().to_string();
            let view = json!({ "log_key": log_key, "identities": registry.identities });
            printer.show(&view, || {
                let mut text: String = registry.identities.iter().map(key_line).collect();
                let _ = writeln!(text, "log key: {log_key}");
                text
            });
        }
    }
    Ok(true)
}
