//! `choirctl ledger run`, `follow` and `abort`: what choird does.

use std::io::Read as _;
use std::time::Duration;

use choir_ledger_roles::limits::TASK_BYTES;
use choir_ledger_roles::task::Task;
use choir_messages::id::{AgentId, MessageId};
use serde_json::Value;

use super::story::{Summary, line};
use crate::control::ledger::{EndView, EventView, RunView};
use crate::control::{Client, ClientError, ControlError, ErrorCode, Op, Stream};
use crate::ctl::{Outcome, Printer, told};
use crate::state_dir::StateDir;

/// The task of the command line: a file, standard input, or a sentence. Read here, so that what is wrong with it is said
/// before anything is asked of choird.
fn task(text: &str) -> Result<Value, ControlError> {
    let wrong = |error: choir_ledger_roles::task::TaskError| {
        ControlError::new(ErrorCode::Usage, error.to_string())
            .next("`choirctl ledger run --help` shows examples")
    };
    let path = std::path::Path::new(text);
    let looks_like_a_file = path.is_file() || path.extension().is_some_and(|extension| extension == "json");
    let task = if text == "-" || looks_like_a_file {
        Task::read(&read(text)?).map_err(wrong)?
    } else {
        let id = format!("task-{}", MessageId::fresh()).to_ascii_lowercase();
        Task::of_sentence(text, &id).map_err(wrong)?
    };
    serde_json::to_value(&task).map_err(|error| ControlError::new(ErrorCode::Internal, error.to_string()))
}

fn read(place: &str) -> Result<String, ControlError> {
    let failed = |error: std::io::Error| {
        ControlError::new(ErrorCode::Usage, format!("the task {place} cannot be read: {error}"))
    };
    let mut text = String::new();
    // One byte more than is taken, so that too much shows.
    if place == "-" {
        std::io::stdin().lock().take(TASK_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    } else {
        std::fs::File::open(place)
            .map_err(failed)?
            .take(TASK_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(failed)?;
    }
    Ok(text)
}

async fn connect(state: &StateDir, within: Duration) -> Result<Client, ControlError> {
    state.check()?;
    Client::connect(&state.control_socket(), within).await.map_err(told)
}

pub(super) async fn run(
    asked: &str,
    agent: Option<AgentId>,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    let task = task(asked)?;
    let client = connect(state, within).await?;
    let mut stream = client.stream(Op::LedgerRun { task, agent }).await.map_err(told)?;
    let Some(first) = stream.item().await.map_err(told)? else { return Err(told(ClientError::Lost)) };
    let run: RunView =
        serde_json::from_value(first).map_err(|error| told(ClientError::Malformed(error.to_string())))?;
    printer.line(&run, || format!("trace {} with the tools of \"{}\"\n", run.trace, run.agent));
    tell(&mut stream, &run.trace, &run.path, printer).await
}

pub(super) async fn follow(trace: &str, state: &StateDir, within: Duration, printer: &Printer) -> Outcome {
    let client = connect(state, within).await?;
    let op = Op::LedgerFollow { trace: trace.to_owned(), after: 0 };
    let mut stream = client.stream(op).await.map_err(told)?;
    let path = state.ledger().join("traces").join(trace);
    tell(&mut stream, trace, &path.display().to_string(), printer).await
}

/// Tells a run line by line, and what there is at its end.
async fn tell(stream: &mut Stream, trace: &str, path: &str, printer: &Printer) -> Outcome {
    let mut events: Vec<EventView> = Vec::new();
    let lost = |error: ClientError| {
        let error = told(error);
        let next =
            format!("`choirctl ledger follow {trace}` goes on; the run does not depend on this command");
        if error.next.is_some() && error.code != ErrorCode::Runtime { error } else { error.next(next) }
    };
    while let Some(item) = stream.item().await.map_err(lost)? {
        let event: EventView =
            serde_json::from_value(item).map_err(|error| told(ClientError::Malformed(error.to_string())))?;
        let at = event.at.to_string();
        printer.line(&event, || line(event.place, &at, &event.role, &event.kind, &event.payload));
        events.push(event);
    }
    let end: EndView = stream.result().map_err(lost)?;
    let summary = Summary::of(trace, path, &events, &end);
    printer.line(&summary, || summary.text());
    ended(&end, trace)
}

/// The exit code's meaning.
fn ended(end: &EndView, trace: &str) -> Outcome {
    match (end.status.as_str(), end.refused, end.verdict.as_deref()) {
        ("completed", _, _) => Ok(true),
        ("aborted", _, _) | (_, false, Some(_)) => Ok(false),
        (_, true, _) => {
            Err(ControlError::new(ErrorCode::Refused, format!("the run was turned down: {}", end.reason))
                .next(format!("`choirctl ledger show {trace}` shows what was proposed and why not")))
        }
        _ => Err(ControlError::new(
            ErrorCode::Runtime,
            format!("the run could not be completed: {}", end.reason),
        )
        .next(format!("`choirctl ledger show {trace}` shows how far it came"))),
    }
}

pub(super) async fn abort(
    trace: &str,
    reason: String,
    state: &StateDir,
    within: Duration,
    printer: &Printer,
) -> Outcome {
    let client = connect(state, within).await?;
    let op = Op::LedgerAbort { trace: trace.to_owned(), reason };
    let end: EndView = client.call(op, within).await.map_err(told)?;
    printer.show(&end, || format!("{trace} is {}: {}\n", end.status, end.reason));
    Ok(end.status == "aborted")
}
