//! What people read instead of JSON.

use std::fmt::Write as _;

use choir_messages::event::EventBody;

use super::print::plain;
use crate::config::{Change, Effect};
use crate::control::views::{
    AgentView, AppliedView, EventLine, MessageLine, SentView, SessionLine, StatusView, VerifyView,
};

/// Columns, padded to their widest cell.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain(header.get(at).map(|h| h.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let mut built = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(built, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", built.trim_end());
    };
    line(&header.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>());
    for row in rows {
        line(row);
    }
    text
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |v| v.to_string())
}

fn seconds(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..=119 => format!("{s} s"),
        s @ 120..=7199 => format!("{} min", s / 60),
        s => format!("{} h", s / 3600),
    }
}

pub(super) fn agents(list: &[AgentView]) -> String {
    if list.is_empty() {
        return "no agents; config.json defines them\n".into();
    }
    let row = |view: &AgentView| {
        vec![
            view.agent.to_string(),
            view.state.clone(),
            or_dash(view.session),
            view.revision.to_string(),
            view.restarts.to_string(),
            plain(view.trouble.as_deref().unwrap_or("")),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["AGENT", "STATE", "SESSION", "REVISION", "RESTARTS", "TROUBLE"], &rows)
}

pub(super) fn agent(view: &AgentView) -> String {
    let mut text = format!("{}: {}\n", view.agent, view.state);
    let mut field = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<12} {value}");
    };
    if let Some(trouble) = &view.trouble {
        field("trouble", plain(trouble));
    }
    if let Some(session) = view.session {
        field("session", format!("{session} (sandbox no. {})", view.generation.unwrap_or(0)));
    }
    if let Some(pid) = view.pid {
        field("process", format!("{pid} ({})", view.sandbox.as_deref().unwrap_or("?")));
    }
    field("revision", format!("{} durable, {} committed", view.revision, view.newest.max(view.revision)));
    if let Some(silent) = view.silent_ms {
        field("last word", format!("{silent} ms ago"));
    }
    field("restarts", view.restarts.to_string());
    field("waiting", format!("{} messages", view.waiting));
    for (kind, name) in &view.bindings {
        field(kind, name.clone());
    }
    for (lane, status) in &view.lanes {
        let spent = status.spent;
        field(
            lane,
            format!(
                "{}; {} messages, {} model calls, {} tool calls, {} tokens",
                plain(&status.state),
                spent.messages,
                spent.model_calls,
                spent.tool_calls,
                spent.tokens
            ),
        );
    }
    text
}

pub(super) fn status(view: &StatusView) -> String {
    let mut text = format!(
        "choird {} (pid {}), up {}, configuration {}\n",
        view.choird.version,
        view.choird.pid,
        seconds(view.choird.uptime_ms),
        view.config_version
    );
    let database = match (&view.database.up, &view.database.trouble) {
        (true, _) => "answers".to_owned(),
        (false, Some(trouble)) => format!("DOES NOT ANSWER: {trouble}"),
        (false, None) => "DOES NOT ANSWER".into(),
    };
    let _ = writeln!(text, "database {}: {database}", view.database.kind);
    let isolates = if view.isolates { "isolates" } else { "does NOT isolate" };
    let _ = writeln!(text, "sandbox  {}: {isolates}", view.sandbox);
    for warning in &view.warnings {
        let _ = writeln!(text, "note: {warning}");
    }
    text.push('\n');
    text.push_str(&agents(&view.agents));
    text
}

pub(super) fn sessions(list: &[SessionLine]) -> String {
    if list.is_empty() {
        return "no sessions yet; `choirctl agent start NAME` opens one\n".into();
    }
    let row = |view: &SessionLine| {
        vec![
            view.session.to_string(),
            view.agent.to_string(),
            view.status.clone(),
            view.generation.to_string(),
            view.revision.to_string(),
            view.started_at.to_string(),
            or_dash(view.ended_at),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["SESSION", "AGENT", "STATUS", "SANDBOXES", "REVISION", "STARTED", "ENDED"], &rows)
}

pub(super) fn event(line: &EventLine) -> String {
    format!(
        "{:>6}  {}  {:<6} {:<20} {}",
        line.rev,
        line.at,
        line.lane,
        line.kind,
        plain(&excerpt(&line.body))
    )
}

/// The part of an event that a person looks for, on one line.
fn excerpt(body: &EventBody) -> String {
    let text = match body {
        EventBody::SessionOpened { agent, .. } => format!("agent {agent}"),
        EventBody::UserMsg { message, text } => format!("{message}: {text}"),
        EventBody::TurnResumed { message } => message.to_string(),
        EventBody::ModelOutput { text, calls, .. } => {
            let calls: Vec<_> = calls.iter().map(|(_, call)| call.tool.as_str()).collect();
            format!("{} [{}]", text.as_deref().unwrap_or(""), calls.join(", "))
        }
        EventBody::ModelFailed { failure, .. } => failure.to_string(),
        EventBody::ToolCallRequested { tool, input, .. } => format!("{tool} {}", input.0),
        EventBody::ToolCallCommitted { invocation, tool, .. } => format!("{tool} {invocation}"),
        EventBody::ToolResultCommitted { outcome, .. } => {
            format!("{:?} {}", outcome.status, outcome.output.0)
        }
        EventBody::Notice { text, .. } | EventBody::InjectedInstruction { text, .. } => text.clone(),
        EventBody::MessageClosed { outcome, text, .. } => format!("{outcome:?}: {text}"),
        EventBody::ConfigApplied { version } => version.to_string(),
        EventBody::HostCallAsked { invocation, job, tool, .. } => format!("{tool} {invocation} for {job}"),
        EventBody::MemoryWriteCommitted { key, .. } => key.clone(),
        EventBody::CoreStarted { .. } | EventBody::CoreStopped { .. } | EventBody::Cancelled { .. } => {
            String::new()
        }
        #[allow(unreachable_patterns, reason = "kinds of events that later versions add")]
        _ => String::new(),
    };
    let one_line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if one_line.chars().count() > 100 { one_line.chars().take(99).chain(['…']).collect() } else { one_line }
}

pub(super) fn verify(view: &VerifyView) -> String {
    match &view.fault {
        None => format!("{}: {} events, the chain holds (head {})\n", view.session, view.events, view.head),
        Some(fault) => {
            format!("{}: the chain is BROKEN after {} good events: {fault}\n", view.session, view.events)
        }
    }
}

pub(super) fn messages(list: &[MessageLine]) -> String {
    if list.is_empty() {
        return "no messages\n".into();
    }
    let row = |view: &MessageLine| {
        let text: String = plain(&view.text).split_whitespace().collect::<Vec<_>>().join(" ");
        vec![
            view.message.to_string(),
            view.agent.to_string(),
            view.state.clone(),
            view.received_at.to_string(),
            text.chars().take(60).collect(),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["MESSAGE", "AGENT", "STATE", "RECEIVED", "TEXT"], &rows)
}

pub(super) fn sent(view: &SentView) -> String {
    match (view.repeat, view.outcome) {
        (false, _) => format!("{} is stored\n", view.message),
        (true, None) => format!("{} was stored before and is not answered yet\n", view.message),
        (true, Some(outcome)) => {
            format!("{} was stored before; it was {outcome:?}\n", view.message).to_lowercase()
        }
    }
}

pub(super) fn applied(view: &AppliedView) -> String {
    let mut text = String::new();
    for change in &view.changes {
        let _ = writeln!(text, "{}", plain(&changed(change)));
    }
    if view.applied {
        let told: Vec<_> = view.told.iter().map(ToString::to_string).collect();
        let told = if told.is_empty() { "nobody runs".into() } else { told.join(", ") };
        let _ = writeln!(text, "configuration {} is in force; told: {told}", view.config_version);
    } else if view.changes.is_empty() {
        let _ = writeln!(text, "nothing is different from configuration {}", view.config_version);
    } else {
        let _ = writeln!(text, "nothing was changed; `choirctl config reload` puts this into force");
    }
    for line in &view.needs_restart {
        let _ = writeln!(text, "needs a restart: {line}");
    }
    for line in &view.warnings {
        let _ = writeln!(text, "note: {line}");
    }
    text
}

fn changed(change: &Change) -> String {
    let shown = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
    let what = match (shown(&change.from), shown(&change.to)) {
        (Some(from), Some(to)) => format!("{from} -> {to}"),
        (None, Some(to)) => format!("new: {to}"),
        (Some(from), None) => format!("gone, was {from}"),
        (None, None) => String::new(),
    };
    let agents: Vec<_> = change.agents.iter().map(ToString::to_string).collect();
    let when = match change.effect {
        Effect::Now => "at once".to_owned(),
        Effect::AgentRestart => format!("with a restart of {}", agents.join(", ")),
        Effect::AgentStop => format!("when {} is stopped", agents.join(", ")),
        Effect::ChoirdRestart => "with a restart of choird".to_owned(),
        Effect::Unused => "not used by this version".to_owned(),
    };
    format!("{}: {what} ({when})", change.path)
}
