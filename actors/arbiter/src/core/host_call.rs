//! Calls that the host asks for beside any turn ([`Signal::RunTool`](choir_messages::wire::Signal::RunTool)). The host
//! repeats the signal until it has the result, and the repeat is also what takes up a call that an earlier life left
//! open: nothing of it is done before the host asks again, and each time counts.

use choir_messages::event::{EventBody, Revision};
use choir_messages::id::{InvocationId, JobName};
use choir_messages::limits;
use choir_messages::session::{CallStage, HostCallView};
use choir_messages::tool::{Lane, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use choir_messages::wire::{SignalAck, SignalRefused};

use super::{Again, Answer, Arbiter, Decision, Effect, Pending, Phase, result, unknown};
use crate::tools::ToolRules;

impl Arbiter {
    /// The host wants this call run, or has no word of it yet.
    pub(super) fn run_tool(
        &self,
        invocation: InvocationId,
        job: JobName,
        tool: String,
        arguments: String,
        rules: &dyn ToolRules,
    ) -> Decision {
        let now = |ack| Decision { answer: Some(Answer::Now(ack)), ..Decision::default() };
        let recorded = SignalAck::Recorded { rev: self.view.head.rev };
        if self.view.host_calls_done.contains(&invocation) || self.pending.contains_key(&invocation) {
            return now(recorded);
        }
        let open = self.view.host_call(invocation);
        if open.is_none() {
            if let Some(which) = self.budget_used_up() {
                return now(SignalAck::Refused(SignalRefused::Budget { which }));
            }
            if arguments.len() > limits::TOOL_INPUT_BYTES {
                let limit = limits::TOOL_INPUT_BYTES as u64;
                return now(SignalAck::Refused(SignalRefused::TooLarge { limit }));
            }
        }
        let lane = Lane::Core(job.clone());
        let mut decision = Decision { answer: Some(Answer::Recorded), ..Decision::default() };
        let asked =
            EventBody::HostCallAsked { invocation, job, tool: tool.clone(), arguments: arguments.clone() };
        let Some(open) = open else {
            if self.view.permits(&asked).is_err() {
                let waiting = u32::try_from(self.view.host_calls.len()).unwrap_or(u32::MAX);
                return now(SignalAck::Refused(SignalRefused::QueueFull { waiting }));
            }
            decision.commit.push(asked);
            let call = ToolCall { provider_id: String::new(), tool, arguments };
            self.take_on(invocation, &lane, &call, rules, &mut decision);
            return decision;
        };
        if open.call.call.tool != tool || open.call.call.arguments != arguments {
            // Another call under an id that is taken: none of it is run.
            return now(SignalAck::Refused(SignalRefused::NotReady));
        }
        let goes_on = open.asked < limits::HOST_CALL_TRIES;
        if goes_on {
            decision.commit.push(asked);
        }
        self.settle_lost(open, goes_on, &lane, rules, &mut decision);
        decision
    }

    /// What a call's loss means by the stage it was at; the rest is taken up once this is committed.
    fn settle_lost(
        &self,
        open: &HostCallView,
        goes_on: bool,
        lane: &Lane,
        rules: &dyn ToolRules,
        decision: &mut Decision,
    ) {
        let invocation = open.call.invocation;
        let valid = |input: &choir_messages::json::Json| {
            rules.validate(lane, &open.call.call.tool, &input.0.to_string())
        };
        match &open.call.stage {
            CallStage::Committed { side_effect, replay, .. }
                if *side_effect != SideEffect::Read && (!goes_on || *replay == Replay::Unrepeatable) =>
            {
                decision.commit.push(result(invocation, unknown()));
            }
            _ if !goes_on => decision.commit.push(result(invocation, given_up())),
            CallStage::Proposed => self.take_on(invocation, lane, &open.call.call, rules, decision),
            CallStage::Requested { input } => {
                if let Err(refused) = valid(input) {
                    decision.commit.push(result(invocation, refused));
                }
            }
            CallStage::Committed { input, .. } if valid(input).is_err() => {
                decision.commit.push(result(invocation, unknown()));
            }
            CallStage::Committed { .. } | CallStage::Done { .. } => {}
        }
    }

    /// A call that was asked for again goes back to the queue for its locks, if it is still open.
    pub(super) fn take_up_host_call(
        &mut self,
        invocation: InvocationId,
        asked_again: Revision,
        rules: &dyn ToolRules,
        effects: &mut Vec<Effect>,
    ) {
        if self.pending.contains_key(&invocation) {
            return;
        }
        let Some(open) = self.view.host_call(invocation) else { return };
        let (input, again) = match &open.call.stage {
            CallStage::Requested { input } => (input, None),
            CallStage::Committed { input, replay, .. } => {
                (input, Some(Again { replay: replay.clone(), resumed: asked_again }))
            }
            CallStage::Proposed | CallStage::Done { .. } => return,
        };
        let lane = Lane::Core(open.job.clone());
        let tool = open.call.call.tool.clone();
        if let Ok(call) = rules.validate(&lane, &tool, &input.0.to_string()) {
            effects.push(Effect::Acquire { invocation, owner: lane.clone(), locks: call.locks.clone() });
            self.pending.insert(invocation, Pending { lane, tool, call, phase: Phase::Locking, again });
        }
    }

    /// The host gives a call up.
    pub(super) fn stop_tool(&self, invocation: InvocationId) -> Decision {
        let mut decision = Decision { answer: Some(Answer::Now(SignalAck::Noted)), ..Decision::default() };
        let Some(open) = self.view.host_call(invocation) else { return decision };
        let running = self.pending.get(&invocation).is_some_and(|pending| pending.phase == Phase::Running);
        if running {
            // It ends with its own outcome.
            decision.effects.push(Effect::Cancel(invocation));
            return decision;
        }
        let lost_effect = matches!(
            &open.call.stage,
            CallStage::Committed { side_effect, .. } if *side_effect != SideEffect::Read
        );
        decision.commit.push(result(invocation, if lost_effect { unknown() } else { stopped() }));
        decision
    }
}

fn stopped() -> ToolOutcome {
    ToolOutcome::says(ToolStatus::Cancelled, "the call was stopped before it ran")
}

fn given_up() -> ToolOutcome {
    ToolOutcome::says(
        ToolStatus::Error,
        "the call was interrupted each time it was tried, and is not tried again; it had no effect",
    )
}
