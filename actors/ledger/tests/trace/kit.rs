//! Events by hand: a short way to say what happens in a trace.

use choir_ledger::event::{EventType, Role};
use choir_ledger::id::{ClaimId, EventId, ReportId};
use choir_ledger::json::Owned;
use choir_ledger::payload::{self, ProposalStatus};
use choir_ledger::trace::{Act, Policy, Refused, Step, Trace};
use choir_messages::chain::Digest;

pub(crate) const TOOL: &str = "text.count";

/// What happens, in a few words. Numbers name proposals, intents, executions and claims in the order of their making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Say {
    Session,
    Propose,
    Revise(u32),
    Fallback(u32),
    Approve(u32),
    Condition(u32),
    Reject(u32),
    ApproveIntent(u32),
    Block(u32),
    /// A judgement without a link.
    Judge(bool),
    Intent(&'static str),
    Start(u32),
    Complete(u32),
    Fail(u32),
    Record,
    Claim(u32),
    /// The same claim with another text.
    Reclaim(u32),
    Resolve(u32),
    Challenge(u32),
    Final(u32),
    Verify,
    Verdict(&'static str),
}

impl Say {
    pub(crate) const fn event_type(self) -> EventType {
        match self {
            Self::Session => EventType::SessionInitialized,
            Self::Propose | Self::Revise(_) | Self::Fallback(_) => EventType::ProposalCreated,
            Self::Approve(_)
            | Self::Condition(_)
            | Self::Reject(_)
            | Self::ApproveIntent(_)
            | Self::Block(_)
            | Self::Judge(_) => EventType::ProposalReviewed,
            Self::Intent(_) => EventType::ToolIntentSigned,
            Self::Start(_) => EventType::ToolExecutionStarted,
            Self::Complete(_) => EventType::ToolExecutionCompleted,
            Self::Fail(_) => EventType::ToolExecutionFailed,
            Self::Record => EventType::ArtifactRecorded,
            Self::Claim(_) | Self::Reclaim(_) | Self::Resolve(_) => EventType::ClaimIssued,
            Self::Challenge(_) => EventType::ClaimChallenged,
            Self::Final(_) => EventType::FinalStatementSigned,
            Self::Verify => EventType::VerificationRunStarted,
            Self::Verdict(_) => EventType::VerificationRunCompleted,
        }
    }
}

/// Ids of events by what they made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    pub(crate) proposals: Vec<EventId>,
    pub(crate) intents: Vec<EventId>,
    pub(crate) next: u128,
}

fn of(ids: &[EventId], number: u32) -> String {
    // A number that names nothing yet is an id that the trace does not know.
    let id = ids.get(number as usize).copied().unwrap_or(EventId::from_bits(u128::from(number) + 9_000_000));
    id.to_string()
}

pub(crate) fn input() -> Digest {
    Digest::of(b"input")
}

pub(crate) fn output(number: u32) -> Digest {
    Digest::of(format!("output {number}").as_bytes())
}

pub(crate) fn claim(number: u32) -> ClaimId {
    ClaimId::from_bits(u128::from(number) + 500)
}

impl Names {
    /// The payload of what is said, and the artefacts it carries.
    pub(crate) fn payload(&self, say: Say) -> (Owned, Vec<Digest>) {
        let tools = [TOOL.to_owned()];
        let proposal = || payload::proposal("count", &[], &tools, &["count".to_owned()]);
        let review = |status| payload::review(status, "low", "because");
        let about =
            |status, number| review(status).with("proposal_event_id", of(&self.proposals, number).into());
        let intent =
            |status, number| review(status).with("intent_event_id", of(&self.intents, number).into());
        let claimed = |number: u32, text: &str| payload::claim(claim(number), text, 0.9, &[output(0)]);
        let exec = |number: u32| format!("exec_{number}");
        match say {
            Say::Session => (payload::session("task", "count", &[]), vec![]),
            Say::Propose => (proposal(), vec![]),
            Say::Revise(n) => (proposal().with("revises_event_id", of(&self.proposals, n).into()), vec![]),
            Say::Fallback(n) => (proposal().with("fallback_of_execution_id", exec(n).into()), vec![]),
            Say::Approve(n) => (about(ProposalStatus::Approved, n), vec![]),
            Say::Condition(n) => (about(ProposalStatus::ConditionallyApproved, n), vec![]),
            Say::Reject(n) => (about(ProposalStatus::Rejected, n), vec![]),
            Say::ApproveIntent(n) => (intent(ProposalStatus::Approved, n), vec![]),
            Say::Block(n) => (intent(ProposalStatus::Rejected, n), vec![]),
            Say::Judge(true) => (review(ProposalStatus::Approved), vec![]),
            Say::Judge(false) => (review(ProposalStatus::Rejected), vec![]),
            Say::Intent(class) => (payload::intent(TOOL, &input(), class, "needed"), vec![]),
            Say::Start(n) => {
                let started = payload::started(TOOL, &exec(n));
                (started.with("intent_event_id", of(&self.intents, n).into()), vec![input()])
            }
            Say::Complete(n) => (payload::completed(TOOL, &exec(n), 0, &[output(0)]), vec![output(0)]),
            Say::Fail(n) => (payload::failed(TOOL, &exec(n), 1, "broke", &[output(0)]), vec![output(0)]),
            Say::Record => (payload::recorded(&output(0), "text/plain"), vec![output(0)]),
            Say::Claim(n) => (claimed(n, "three words"), vec![]),
            Say::Reclaim(n) => (claimed(n, "four words"), vec![]),
            Say::Resolve(n) => (claimed(n, "counted twice").with("resolved", true.into()), vec![]),
            Say::Challenge(n) => (payload::challenge(claim(n), "thin"), vec![]),
            Say::Final(n) => (payload::final_statement(&[claim(n)], "done"), vec![]),
            Say::Verify => (payload::verification_started("default"), vec![]),
            Say::Verdict(word) => (payload::verification_completed(word, ReportId::from_bits(1)), vec![]),
        }
    }

    pub(crate) fn next_id(&self) -> EventId {
        EventId::from_bits(self.next + 1)
    }

    /// The event, as the rules see it.
    pub(crate) fn step(&self, say: Say, role: Role, at_ms: u64) -> Step {
        let (payload, carried) = self.payload(say);
        let act = Act::read(say.event_type(), &payload).unwrap();
        Step { event_id: self.next_id(), at_ms, role, carried, act }
    }

    /// Remembers that it was taken.
    pub(crate) fn took(&mut self, say: Say) {
        let id = self.next_id();
        match say.event_type() {
            EventType::ProposalCreated => self.proposals.push(id),
            EventType::ToolIntentSigned => self.intents.push(id),
            _ => {}
        }
        self.next += 1;
    }
}

/// A trace that is told what happens.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) trace: Trace,
    pub(crate) names: Names,
    pub(crate) now: u64,
}

impl Told {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { trace: Trace::new(policy), names: Names::default(), now: 1_000 }
    }

    /// A trace to which all of this happened.
    pub(crate) fn after(policy: Policy, said: &[Say]) -> Self {
        let mut told = Self::new(policy);
        for say in said {
            told.say(*say).unwrap_or_else(|why| panic!("{say:?} in {said:?}: {why}"));
        }
        told
    }

    pub(crate) fn say(&mut self, say: Say) -> Result<(), Refused> {
        let step = self.names.step(say, say.event_type().role(), self.now);
        let before = self.trace.clone();
        let admitted = self.trace.admit(&step);
        let applied = self.trace.apply(&step);
        assert_eq!(admitted, applied, "admit and apply agree");
        if applied.is_err() {
            assert_eq!(self.trace, before, "a refusal changes nothing");
        } else {
            self.names.took(say);
        }
        applied
    }
}
