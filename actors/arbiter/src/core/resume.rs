//! What becomes of a turn that an earlier life left open (`choir §13.2`): it is resumed, or it is set aside because its
//! step has had its tries.

use choir_messages::event::{EventBody, MessageOutcome, Revision};
use choir_messages::id::MessageId;
use choir_messages::json::Json;
use choir_messages::limits;
use choir_messages::session::{CallStage, CallView, TurnEnd, TurnView};
use choir_messages::tool::{Lane, Replay, SideEffect};

use super::{Again, Arbiter, Decision, Effect, Pending, Phase, result, stopped, unknown};
use crate::tools::ToolRules;

impl Arbiter {
    /// A lane found this turn open. If it was interrupted, it is resumed: what was lost is settled, the rest is taken up
    /// once the resumption is committed ([`Arbiter::take_up`]). The resumption comes first, so that whatever the turn
    /// gets done from here on counts as coming further.
    pub(super) fn resume(
        &self,
        message: MessageId,
        asked: bool,
        lane: &Lane,
        rules: &dyn ToolRules,
        decision: &mut Decision,
    ) {
        let Some(turn) = self.view.turn.as_ref().filter(|turn| turn.message == message) else { return };
        let lost: Vec<&CallView> =
            turn.open_calls().filter(|call| !self.pending.contains_key(&call.invocation)).collect();
        if lost.is_empty() {
            // What runs goes on without its lane, and what is over needs only its closing. A turn whose message came
            // while the lane was starting was never worked on.
            let worked_on = turn.has_begun() || asked || self.left_open == Some(message);
            if turn.open_calls().next().is_some() || turn.end != TurnEnd::Open || !worked_on {
                return;
            }
        }
        let goes_on = turn.end == TurnEnd::Open && !turn.is_out_of_tries();
        if goes_on {
            decision.commit.push(EventBody::TurnResumed { message });
        }
        for open in &lost {
            let invocation = open.invocation;
            let valid = |input: &Json| rules.validate(lane, &open.call.tool, &input.0.to_string());
            match &open.stage {
                // Whether it took effect is not known, and a repeat could not tell.
                CallStage::Committed { side_effect, replay, .. }
                    if *side_effect != SideEffect::Read && (!goes_on || *replay == Replay::Unrepeatable) =>
                {
                    decision.commit.push(result(invocation, unknown()));
                }
                _ if !goes_on => decision.commit.push(result(invocation, stopped())),
                CallStage::Proposed => self.take_on(invocation, lane, &open.call, rules, decision),
                CallStage::Requested { input } => {
                    if let Err(refused) = valid(input) {
                        decision.commit.push(result(invocation, refused));
                    }
                }
                // It was valid when it was committed; a changed tool set cannot say what it did.
                CallStage::Committed { input, .. } if valid(input).is_err() => {
                    decision.commit.push(result(invocation, unknown()));
                }
                CallStage::Committed { .. } | CallStage::Done { .. } => {}
            }
        }
        if turn.end == TurnEnd::Open && !goes_on {
            let text = set_aside(turn.resumes, turn.stalled);
            decision.commit.push(EventBody::MessageClosed { message, outcome: MessageOutcome::Failed, text });
        }
    }

    /// The open calls of a resumed turn go back to the queue for their locks.
    pub(super) fn take_up(&mut self, resumed: Revision, rules: &dyn ToolRules, effects: &mut Vec<Effect>) {
        for open in self.view.turn.iter().flat_map(TurnView::open_calls) {
            let (input, again) = match &open.stage {
                CallStage::Requested { input } => (input, None),
                CallStage::Committed { input, replay, .. } => {
                    (input, Some(Again { replay: replay.clone(), resumed }))
                }
                CallStage::Proposed | CallStage::Done { .. } => continue,
            };
            let (invocation, tool) = (open.invocation, &open.call.tool);
            if self.pending.contains_key(&invocation) {
                continue;
            }
            let owner = Lane::Edge;
            if let Ok(call) = rules.validate(&owner, tool, &input.0.to_string()) {
                let locks = call.locks.clone();
                effects.push(Effect::Acquire { invocation, owner: owner.clone(), locks });
                let (lane, tool, phase) = (owner, tool.clone(), Phase::Locking);
                self.pending.insert(invocation, Pending { lane, tool, call, phase, again });
            }
        }
    }
}

/// What the user of a turn is told that is not tried again.
fn set_aside(resumes: u32, stalled: u32) -> String {
    let times = if resumes >= limits::RESUMES_PER_MESSAGE {
        format!("{} times", resumes.saturating_add(1))
    } else {
        format!("{} times at the same step", stalled.saturating_add(1))
    };
    format!("Answering this message was interrupted {times}, so it is set aside. Send it again to retry.")
}
