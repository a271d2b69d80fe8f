//! The arbiter's rules and hands: the tool registry, and executors under their supervisor.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_arbiter::{ToolHost, ToolRules, ValidCall};
use choir_messages::chain::Digest;
use choir_messages::id::InvocationId;
use choir_messages::mail::{Execution, ExecutorMsg, JournalMsg};
use choir_messages::tool::{Lane, Replay, SideEffect, ToolOutcome, ToolStatus};
use choir_messages::wire::BoxFuture;
use choir_supervisors::{Address, DynamicHandle};
use choir_tools::ToolRegistry;

/// Longest life of one call, whatever its tool says: beyond it the executor is given up and the outcome is unknown.
const CALL: Duration = Duration::from_secs(24 * 3600);

/// The running calls, for cancelling.
type Running = Arc<Mutex<BTreeMap<InvocationId, Address<ExecutorMsg>>>>;

/// The tools of one agent.
pub(crate) struct Tools {
    registry: Arc<ToolRegistry>,
    executors: DynamicHandle,
    journal: Address<JournalMsg>,
    running: Running,
}

impl Tools {
    pub(crate) fn new(
        registry: Arc<ToolRegistry>,
        executors: DynamicHandle,
        journal: Address<JournalMsg>,
    ) -> Self {
        Self { registry, executors, journal, running: Running::default() }
    }
}

impl ToolRules for Tools {
    fn validate(&self, lane: &Lane, tool: &str, arguments: &str) -> Result<ValidCall, ToolOutcome> {
        let valid = self.registry.validate(lane, tool, arguments)?;
        // Reads are harmless to repeat; whether a write can be recognised is worked out under its locks.
        let replay = (valid.side_effect == SideEffect::Read).then_some(Replay::Idempotent);
        Ok(ValidCall { input: valid.input, locks: valid.locks, side_effect: valid.side_effect, replay })
    }

    fn manifest(&self) -> Digest {
        self.registry.manifest_hash()
    }
}

impl ToolHost for Tools {
    fn prepare(&self, execution: Execution) -> BoxFuture<'static, Result<Replay, ToolOutcome>> {
        Box::pin(choir_tools::prepare(Arc::clone(&self.registry), execution.tool, execution.input))
    }

    fn run(&self, execution: Execution) -> BoxFuture<'static, Option<ToolOutcome>> {
        let invocation = execution.invocation;
        let (address, spec) =
            choir_tools::executor_child(execution, Arc::clone(&self.registry), self.journal.clone());
        let (executors, running) = (self.executors.clone(), Arc::clone(&self.running));
        let entry = Entry { running, invocation };
        Box::pin(async move {
            entry.lock().insert(invocation, address.clone());
            if let Err(error) = executors.start_child(spec).await {
                // It never ran: that much is known.
                return Some(ToolOutcome::says(
                    ToolStatus::Error,
                    &format!("the call could not be started: {error}"),
                ));
            }
            address.call(CALL, |reply| ExecutorMsg::Run { reply }).await.ok()
        })
    }

    fn cancel(&self, invocation: InvocationId) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(address) = running.get(&invocation) {
            // An executor that takes nothing any more is ending by itself.
            let _ = address.try_send(ExecutorMsg::Cancel);
        }
    }
}

/// Takes a call off the list when its future ends, however it ends.
struct Entry {
    running: Running,
    invocation: InvocationId,
}

impl Entry {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<InvocationId, Address<ExecutorMsg>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let invocation = self.invocation;
        self.lock().remove(&invocation);
    }
}
