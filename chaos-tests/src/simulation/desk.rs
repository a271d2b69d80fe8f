//! The ledger's desk in a simulation: it has tools run beside any turn, repeats itself until the replicated log has the
//! result, and sometimes stops a call instead. What became of each call is judged by the log and the workspace alone.

use choir_messages::event::{Event, EventBody};
use choir_messages::id::{InvocationId, JobName};
use choir_messages::tool::{ToolOutcome, ToolStatus};
use choir_messages::wire::Signal;
use serde_json::json;

use super::world::Workspace;
use crate::seed::Seed;

/// Calls of one simulation at most: fewer than an agent takes at once, for a stop that is lost leaves its call open.
const CALLS: u64 = 6;

/// One call.
#[derive(Debug)]
struct Call {
    invocation: InvocationId,
    tool: &'static str,
    arguments: String,
    /// The desk has said that it wants it no more, and asks no more for it.
    stopped: bool,
}

/// What the calls of a simulation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Runs {
    /// Calls with a result.
    pub ended: u32,
    /// Calls that ran.
    pub ran: u32,
    /// Results that say nobody knows.
    pub unknown: u32,
    /// Results that say it was interrupted each time, before it could have an effect.
    pub given_up: u32,
    /// Calls that the desk gave up before they had a result.
    pub stopped: u32,
}

/// The desk.
#[derive(Debug)]
pub struct Desk {
    job: JobName,
    planned: u64,
    calls: Vec<Call>,
}

impl Desk {
    /// A desk that will have some calls run, or none.
    #[must_use]
    pub fn new(draw: &mut Seed) -> Self {
        Self { job: "ledger".parse().expect("a name"), planned: draw.below(CALLS + 1), calls: Vec::new() }
    }

    /// What it says to the agent now.
    pub fn speak(&mut self, draw: &mut Seed, log: &[Event]) -> Vec<Signal> {
        if (self.calls.len() as u64) < self.planned && draw.once_in(3) {
            let number = self.calls.len() as u64;
            let tool = ["read", "write", "exec", "unknown"][usize::try_from(draw.below(4)).expect("below 4")];
            let content = json!({ "content": format!("run {number}") }).to_string();
            let arguments = if draw.once_in(12) { "{".to_owned() } else { content };
            // Ids that no turn's calls have.
            let invocation = InvocationId::from_bits((1 << 100) + u128::from(number));
            self.calls.push(Call { invocation, tool, arguments, stopped: false });
        }
        let mut signals = Vec::new();
        for call in &mut self.calls {
            if call.stopped || result(log, call.invocation).is_some() {
                continue;
            }
            call.stopped = draw.once_in(40);
            signals.push(if call.stopped {
                Signal::StopTool { invocation: call.invocation }
            } else {
                Signal::RunTool {
                    invocation: call.invocation,
                    job: self.job.clone(),
                    tool: call.tool.to_owned(),
                    arguments: call.arguments.clone(),
                }
            });
        }
        signals
    }

    /// Whether nothing more is to be waited for.
    #[must_use]
    pub fn is_done(&self, log: &[Event]) -> bool {
        self.calls.len() as u64 == self.planned
            && self.calls.iter().all(|call| call.stopped || result(log, call.invocation).is_some())
    }

    /// Holds what the log says of each call against what happened in the workspace. Panics if they differ.
    #[must_use]
    pub fn judge(&self, log: &[Event], workspace: &Workspace) -> Runs {
        let mut runs = Runs::default();
        for call in &self.calls {
            let results = log.iter().filter(|event| is_result_of(event, call.invocation)).count();
            assert!(results <= 1, "{call:?} has {results} results");
            let effects = workspace.effects.get(&call.invocation).copied().unwrap_or_default();
            assert!(effects <= 1, "{call:?} took effect {effects} times");
            runs.stopped += u32::from(call.stopped);
            let Some(outcome) = result(log, call.invocation) else {
                assert!(call.stopped, "{call:?} has no result");
                continue;
            };
            runs.ended += 1;
            match outcome.status {
                ToolStatus::Success => {
                    let expected = u32::from(call.tool != "read");
                    assert_eq!(effects, expected, "{call:?} is said to have succeeded");
                    runs.ran += 1;
                }
                // The one status that leaves it open.
                ToolStatus::OutcomeUnknown => runs.unknown += 1,
                status => {
                    assert_eq!(effects, 0, "{call:?} is said to have had no effect: {outcome:?}");
                    runs.given_up += u32::from(status == ToolStatus::Error);
                }
            }
        }
        runs
    }
}

fn is_result_of(event: &Event, wanted: InvocationId) -> bool {
    matches!(&event.body, EventBody::ToolResultCommitted { invocation, .. } if *invocation == wanted)
}

fn result(log: &[Event], wanted: InvocationId) -> Option<&ToolOutcome> {
    log.iter().find_map(|event| match &event.body {
        EventBody::ToolResultCommitted { invocation, outcome } if *invocation == wanted => Some(outcome),
        _ => None,
    })
}
