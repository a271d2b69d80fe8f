//! Calls of the host, which stand beside the turn (rule 7).

use super::{CallStage, CallView, HostCallView, REMEMBERED_HOST_CALLS, Rule, SessionView, TurnView};
use crate::id::{InvocationId, JobName};
use crate::limits;
use crate::tool::ToolCall;

impl SessionView {
    /// An open call of the host.
    #[must_use]
    pub fn host_call(&self, invocation: InvocationId) -> Option<&HostCallView> {
        self.host_calls.iter().find(|open| open.call.invocation == invocation)
    }

    pub(super) fn ask_host_call(
        &mut self,
        invocation: InvocationId,
        job: &JobName,
        tool: &str,
        arguments: &str,
    ) -> Result<(), Rule> {
        let of_turn = |turn: &TurnView| turn.calls.iter().any(|call| call.invocation == invocation);
        if self.host_calls_done.contains(&invocation) || self.turn.as_ref().is_some_and(of_turn) {
            return Err(Rule::CallOrder);
        }
        if let Some(open) = self.host_calls.iter_mut().find(|open| open.call.invocation == invocation) {
            let asked = &open.call.call;
            if open.job != *job || asked.tool != tool || asked.arguments != arguments {
                return Err(Rule::CallOrder);
            }
            if open.asked >= limits::HOST_CALL_TRIES {
                return Err(Rule::Bound);
            }
            open.asked += 1;
            return Ok(());
        }
        if self.host_calls.len() >= limits::HOST_CALLS
            || tool.len() > limits::MODEL_NAME_BYTES
            || arguments.len() > limits::TOOL_INPUT_BYTES
        {
            return Err(Rule::Bound);
        }
        let call =
            ToolCall { provider_id: String::new(), tool: tool.to_owned(), arguments: arguments.to_owned() };
        self.host_calls.push(HostCallView {
            job: job.clone(),
            call: CallView { invocation, call, stage: CallStage::Proposed },
            asked: 1,
        });
        Ok(())
    }

    pub(super) fn end_host_call(&mut self, invocation: InvocationId) {
        self.host_calls.retain(|open| open.call.invocation != invocation);
        if self.host_calls_done.len() >= REMEMBERED_HOST_CALLS {
            self.host_calls_done.pop_front();
        }
        self.host_calls_done.push_back(invocation);
    }
}
