//! Carrying out one call: its wait, its thread, its limits. Everything here ends the call when it is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use choir_messages::event::Revision;
use choir_messages::json::Json;
use choir_messages::limits::TOOL_OUTPUT_BYTES;
use choir_messages::mail::{Execution, JournalMsg};
use choir_messages::tool::{Replay, SideEffect, ToolOutcome, ToolStatus};
use choir_supervisors::Address;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tracing::{Level, field};

use super::core::{Action, CallCore, Event};
use crate::limits::{DURABLE_DEADLINE, OUTPUT_BULK_BYTES, OVERTIME, PREPARE_DEADLINE};
use crate::registry::ToolRegistry;
use crate::stop::{CancelOnDrop, Stop};
use crate::text::cut;
use crate::tool::{Call, Tool, failed, refused};

/// Runs one committed call: waits until its commit is durable, runs the tool on a thread of its own, and gives an
/// outcome that fits the log. `cancel` turning true ends it early. Dropping the future ends the call too: when the drop
/// returns, the call changes nothing any more (the drop waits for a rename or a fork that has begun, no longer).
pub async fn execute(
    registry: Arc<ToolRegistry>,
    execution: Execution,
    journal: Address<JournalMsg>,
    mut cancel: watch::Receiver<bool>,
) -> ToolOutcome {
    let Some(tool) = registry.get(&execution.tool) else {
        return refused(format!("there is no tool \"{}\"", execution.tool));
    };
    let mut core = CallCore::new(execution.durable_first);
    let mut running = None;
    // A call that was cancelled before it was told to run does not begin.
    let mut actions = if *cancel.borrow_and_update() { core.step(Event::Cancel) } else { Vec::new() };
    actions.extend(core.step(Event::Run));
    loop {
        let event = match (actions.pop(), &mut running) {
            (Some(Action::AwaitDurable(revision)), _) => tokio::select! {
                biased;
                () = asked(&mut cancel) => Event::Cancel,
                event = durable(&journal, revision) => event,
            },
            (Some(Action::Start), running) => {
                let call = running.insert(Running::start(Arc::clone(&tool), execution.clone()));
                tokio::select! {
                    outcome = call.finished() => Event::Finished(outcome),
                    () = asked(&mut cancel) => Event::Cancel,
                }
            }
            (Some(Action::Interrupt), Some(call)) => {
                call.interrupt();
                Event::Finished(call.finished().await)
            }
            (Some(Action::Answer(outcome)), _) => return bounded(outcome),
            // The core has always one thing to wait for until it answers.
            (Some(Action::Interrupt), None) | (None, _) => {
                return failed("the call was lost by its executor");
            }
        };
        actions = core.step(event);
    }
}

/// Works out how a repeat of a call would be recognised. Call it under the call's locks and before it is committed. The
/// outcome of a failure is the call's: it cannot run after all.
pub async fn prepare(registry: Arc<ToolRegistry>, tool: String, input: Json) -> Result<Replay, ToolOutcome> {
    let Some(tool) = registry.get(&tool) else {
        return Err(refused(format!("there is no tool \"{tool}\"")));
    };
    let stop = Arc::new(Stop::within(PREPARE_DEADLINE));
    let _guard = CancelOnDrop(Arc::clone(&stop));
    let work = spawn_blocking(move || tool.prepare(input.value(), &stop));
    match tokio::time::timeout(PREPARE_DEADLINE + OVERTIME, work).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(failed("the call could not be prepared: the tool broke down; nothing was changed")),
        Err(_) => Err(failed("the call could not be prepared in time; nothing was changed")),
    }
}

/// Resolves once cancelling was asked for; never if whoever could ask is gone.
async fn asked(cancel: &mut watch::Receiver<bool>) {
    if cancel.wait_for(|asked| *asked).await.is_err() {
        std::future::pending().await
    }
}

async fn durable(journal: &Address<JournalMsg>, rev: Revision) -> Event {
    match journal.call(DURABLE_DEADLINE, |reply| JournalMsg::WaitDurable { rev, reply }).await {
        Ok(()) => Event::Durable,
        Err(error) => {
            tracing::warn!(target: "choir::tools", rev, %error, "a call's commit did not become durable");
            Event::NotDurable
        }
    }
}

/// An outcome's kind, for spans and metrics.
const fn status_name(status: ToolStatus) -> &'static str {
    match status {
        ToolStatus::Success => "success",
        ToolStatus::Error => "error",
        ToolStatus::Refused => "refused",
        ToolStatus::Cancelled => "cancelled",
        ToolStatus::OutcomeUnknown => "outcome_unknown",
    }
}

/// A tool on its thread.
struct Running {
    thread: JoinHandle<ToolOutcome>,
    guard: CancelOnDrop,
    side_effect: SideEffect,
    limit: Duration,
}

impl Running {
    fn start(tool: Arc<dyn Tool>, execution: Execution) -> Self {
        let limit = tool.timeout(execution.input.value());
        let side_effect = tool.runtime().side_effect;
        let stop = Arc::new(Stop::within(limit));
        let guard = CancelOnDrop(Arc::clone(&stop));
        // The tool's name is a registered one; what the model wrote beside it is content and stays out.
        let span = tracing::info_span!(
            target: "choir::tools", "execute_tool",
            otel.name = format!("execute_tool {}", execution.tool),
            otel.status_code = field::Empty,
            gen_ai.operation.name = "execute_tool",
            gen_ai.tool.name = %execution.tool,
            gen_ai.tool.call.id = %execution.invocation,
            error.type = field::Empty,
            lane = %execution.lane,
        );
        let thread = spawn_blocking(move || {
            let span = span.entered();
            let (name, started) = (execution.tool, Instant::now());
            let outcome = tool.run(&Call {
                invocation: execution.invocation,
                input: execution.input.value(),
                replay: &execution.replay,
                again: execution.again,
                stop: &stop,
            });
            let status = status_name(outcome.status);
            if outcome.status != ToolStatus::Success {
                span.record("otel.status_code", "ERROR");
                span.record("error.type", status);
            }
            let seconds = started.elapsed().as_secs_f64();
            tracing::event!(target: "choir::metric", Level::INFO, histogram.choir.tool.duration = seconds, tool = name, outcome = status);
            outcome
        });
        Self { thread, guard, side_effect, limit }
    }

    fn interrupt(&self) {
        self.guard.0.cancel();
    }

    /// The tool's outcome. A tool that breaks down, or does not end although it should, leaves its effect open.
    async fn finished(&mut self) -> ToolOutcome {
        let what = match tokio::time::timeout(self.limit + OVERTIME, &mut self.thread).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(_)) => "the tool broke down",
            Err(_) => "the tool did not end in time",
        };
        let status = match self.side_effect {
            SideEffect::Read => ToolStatus::Error,
            SideEffect::Write | SideEffect::External => ToolStatus::OutcomeUnknown,
        };
        ToolOutcome::says(status, &format!("{what}; check what it was to do before you go on"))
    }
}

/// The outcome as the log takes it. The built-in tools keep to the bound themselves; of any other output that is too
/// large, the beginning of its JSON text is kept.
#[must_use]
pub fn bounded(outcome: ToolOutcome) -> ToolOutcome {
    let text = outcome.output.value().to_string();
    if text.len() <= TOOL_OUTPUT_BYTES {
        return outcome;
    }
    let kept = cut(&text, OUTPUT_BULK_BYTES);
    let missing = (text.len() - kept.len()) as u64;
    ToolOutcome {
        status: outcome.status,
        output: Json(json!({
            "output_json": kept,
            "note": format!("the output was too large: {missing} bytes of its JSON text were cut"),
        })),
        cut_bytes: outcome.cut_bytes + missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_too_large_is_cut_and_says_so() {
        let small = ToolOutcome::says(ToolStatus::Success, "x");
        assert_eq!(bounded(small.clone()), small);
        let large = ToolOutcome {
            status: ToolStatus::Success,
            output: Json(json!({ "x": "\u{1}\"é".repeat(100_000) })),
            cut_bytes: 0,
        };
        let cut = bounded(large);
        assert!(cut.output.value().to_string().len() <= TOOL_OUTPUT_BYTES);
        assert!(cut.cut_bytes > 0);
    }
}
