//! The ledger's requests of the control socket.

use choir_messages::id::AgentId;
use choir_messages::json::Json;
use choir_messages::mail::{LedgerEnd, LedgerMsg, LedgerPage, LedgerRefused, LedgerRun};
use choir_supervisors::CallError;
use serde_json::Value;

use crate::control::ledger::{EndView, EventView, RunView};
use crate::control::{ControlError, ErrorCode};
use crate::daemon::Host;
use crate::daemon::front::Out;
use crate::limits;

type Answer = Result<Value, ControlError>;

fn view(run: LedgerRun) -> RunView {
    let LedgerRun { trace, task_id, agent, events, path } = run;
    RunView { trace, task_id, agent, events, path }
}

fn end_view(end: LedgerEnd) -> EndView {
    let LedgerEnd { status, reason, refused, verdict } = end;
    EndView { status, reason, refused, verdict }
}

fn told(refused: LedgerRefused) -> ControlError {
    let code = match &refused {
        LedgerRefused::Task(_) | LedgerRefused::Agent(_) => ErrorCode::Usage,
        LedgerRefused::Full(_) => ErrorCode::Refused,
        LedgerRefused::NoRun(_) => ErrorCode::Negative,
        LedgerRefused::Unavailable(_) => ErrorCode::Runtime,
    };
    ControlError::new(code, refused.to_string())
}

fn busy(error: &CallError) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("the ledger cannot take this now: {error}"))
        .next("`choirctl tree` shows how its actors are")
}

/// Begins a run and tells what happens until it has ended. The run does not depend on who listens.
pub(in crate::daemon) async fn run(host: &Host, task: Value, agent: Option<AgentId>, out: &Out) -> Answer {
    let start = |reply| LedgerMsg::Start { task: Json(task), agent, reply };
    let run =
        host.ledger.call(limits::CONTROL_OPERATION, start).await.map_err(|e| busy(&e))?.map_err(told)?;
    let trace = run.trace.clone();
    if out.item(&view(run)).await.is_err() {
        return Ok(Value::Null);
    }
    follow(host, &trace, 0, out).await
}

/// Tells what a run's trace says after so many events, until it has ended.
pub(in crate::daemon) async fn follow(host: &Host, trace: &str, mut after: u64, out: &Out) -> Answer {
    loop {
        let ask = |reply| LedgerMsg::Follow { trace: trace.to_owned(), after, reply };
        let page = tokio::select! {
            () = out.closed() => return Ok(Value::Null),
            page = host.ledger.call(limits::LEDGER_FOLLOW, ask) => page,
        };
        let LedgerPage { events, end } = match page {
            Ok(page) => page.map_err(told)?,
            // Nothing happened for long, or the desk was restarted: whoever follows asks again.
            Err(CallError::Deadline | CallError::Unanswered) => continue,
            Err(error) => return Err(busy(&error)),
        };
        for event in events {
            after = event.place;
            let line = EventView {
                place: event.place,
                event_id: event.event_id,
                at: event.at,
                role: event.role,
                kind: event.kind,
                payload: event.payload.0,
            };
            if out.item(&line).await.is_err() {
                return Ok(Value::Null);
            }
        }
        if let Some(end) = end {
            return crate::daemon::ops::value(&end_view(end));
        }
    }
}

/// Ends a run.
pub(in crate::daemon) async fn abort(host: &Host, trace: String, reason: String) -> Answer {
    let abort = |reply| LedgerMsg::Abort { trace, reason, reply };
    let end =
        host.ledger.call(limits::CONTROL_OPERATION, abort).await.map_err(|e| busy(&e))?.map_err(told)?;
    crate::daemon::ops::value(&end_view(end))
}

/// The runs under way.
pub(in crate::daemon) async fn list(host: &Host) -> Answer {
    let runs = host.ledger.call(limits::CONTROL_OPERATION, |reply| LedgerMsg::List { reply }).await;
    let runs: Vec<RunView> = runs.map_err(|e| busy(&e))?.into_iter().map(view).collect();
    crate::daemon::ops::value(&runs)
}
