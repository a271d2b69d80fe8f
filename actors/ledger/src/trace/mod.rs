//! The life of one trace: nine states, eight transitions, and the guards that decide whether an event may be appended
//! (agent protocol, "Session Lifecycle" to "Protocol Invariants"; rules R10 to R15 of the strict reading). The store's writer
//! asks it before it signs anything, and every role reads from it what may come next. It promises that what it admits passes
//! the strict reading of R10 to R15, that a refusal changes nothing and says what is missing and what to do, and that the
//! numbered [`invariants`] hold after every event; one that does not marks the trace failed.
//!
//! A trace is a fold of its events: the same events always give the same trace, so a crash loses nothing that is in the
//! ledger. It keeps about 100 bytes for each event id, claim, intent and execution, and 32 for each artefact carried.

mod guards;
pub mod invariants;
mod phase;
mod policy;
mod read;
mod refused;
mod state;
mod step;

pub use crate::verify::Profile as PolicyProfile;
pub use phase::{Phase, Transition};
pub use policy::{
    CHALLENGE_LIMIT, FAILURE_LIMIT, PROPOSAL_LIMIT, Policy, RiskClass, Sensitivity, TOOL_CALL_LIMIT,
};
pub use refused::{Guard, Refused};
pub use state::{Claim, Execution, ExecutionState, Intent, IntentState, Proposal, Standing};
pub use step::{Act, Judgement, MAX_LIST, MAX_NAME_BYTES, Step, Subject, VerificationStatus};

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::chain::Digest;
use choir_messages::invariant::Broken;

use crate::id::{ClaimId, EventId};

/// The life of one trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trace {
    policy: Policy,
    standing: Standing,
    seen: BTreeSet<EventId>,
    carried: BTreeSet<Digest>,
    proposals: BTreeMap<EventId, Proposal>,
    /// Proposals without a review, by place.
    unreviewed: BTreeMap<u64, EventId>,
    newest_proposal: Option<EventId>,
    intents: BTreeMap<EventId, Intent>,
    /// Intents that may still be used, by place.
    waiting: BTreeMap<u64, EventId>,
    executions: BTreeMap<String, Execution>,
    claims: BTreeMap<ClaimId, Claim>,
    broken: Option<Broken>,
}

impl Trace {
    /// A trace without events, under this policy.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            standing: Standing::new(),
            seen: BTreeSet::new(),
            carried: BTreeSet::new(),
            proposals: BTreeMap::new(),
            unreviewed: BTreeMap::new(),
            newest_proposal: None,
            intents: BTreeMap::new(),
            waiting: BTreeMap::new(),
            executions: BTreeMap::new(),
            claims: BTreeMap::new(),
            broken: None,
        }
    }

    /// The trace of these events; the first one that the rules refuse ends it with its place, from 0. A policy stated by the
    /// session's event takes the place of the one given.
    pub fn replay(policy: Policy, steps: impl IntoIterator<Item = Step>) -> Result<Self, (u64, Refused)> {
        let mut trace = Self::new(policy);
        for step in steps {
            let place = trace.standing.events;
            trace.apply(&step).map_err(|refused| (place, refused))?;
        }
        Ok(trace)
    }

    /// Whether the event may be appended now. Changes nothing.
    pub fn admit(&self, step: &Step) -> Result<(), Refused> {
        if let Some(broken) = self.broken {
            return Err(Refused::Broken { id: broken.id, says: broken.says });
        }
        guards::admit(self, step)
    }

    /// Admits the event and folds it in. A refusal changes nothing, but for a broken invariant, after which the trace is
    /// failed.
    pub fn apply(&mut self, step: &Step) -> Result<(), Refused> {
        self.admit(step)?;
        let before = self.standing;
        self.fold(step);
        self.check(&before, Some(step))
    }

    /// Ends the trace on the operator's word (transition 8).
    pub fn abort(&mut self) -> Result<(), Refused> {
        self.end(Phase::Aborted)
    }

    /// Ends the trace because its integrity is violated (transition 7).
    pub fn fail(&mut self) -> Result<(), Refused> {
        self.end(Phase::Failed)
    }

    fn end(&mut self, phase: Phase) -> Result<(), Refused> {
        if self.standing.phase.is_terminal() {
            return Err(Refused::Ended { phase: self.standing.phase });
        }
        let before = self.standing;
        self.standing.phase = phase;
        self.check(&before, None)
    }

    fn check(&mut self, before: &Standing, step: Option<&Step>) -> Result<(), Refused> {
        let change = invariants::Change { before, step, after: &self.standing, policy: &self.policy };
        let Some(broken) = invariants::broken_by(&change) else { return Ok(()) };
        self.broken = Some(broken);
        self.standing.phase = Phase::Failed;
        Err(Refused::Broken { id: broken.id, says: broken.says })
    }

    /// The state.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.standing.phase
    }

    /// The counts.
    #[must_use]
    pub const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The proposals, by the id of the event that created them.
    #[must_use]
    pub const fn proposals(&self) -> &BTreeMap<EventId, Proposal> {
        &self.proposals
    }

    /// The intents, by the id of the event that signed them.
    #[must_use]
    pub const fn intents(&self) -> &BTreeMap<EventId, Intent> {
        &self.intents
    }

    /// The executions, by their own id.
    #[must_use]
    pub const fn executions(&self) -> &BTreeMap<String, Execution> {
        &self.executions
    }

    /// The claims, by their id.
    #[must_use]
    pub const fn claims(&self) -> &BTreeMap<ClaimId, Claim> {
        &self.claims
    }

    /// The artefacts carried by events so far.
    #[must_use]
    pub const fn carried(&self) -> &BTreeSet<Digest> {
        &self.carried
    }

    /// The proposal that a review without a link is about.
    #[must_use]
    pub fn next_to_review(&self) -> Option<EventId> {
        self.unreviewed.values().next().copied().or(self.newest_proposal)
    }

    /// Whether this intent may start an execution at that time, in milliseconds since 1970, or what stands against it.
    pub fn may_start(&self, intent: EventId, at_ms: u64) -> Result<(), Refused> {
        guards::may_start(self, intent, at_ms)
    }

    /// Whether another tool call may be asked for at that time, whichever it is: the limits of calls, failures and time.
    pub fn may_call_tools(&self, at_ms: u64) -> Result<(), Refused> {
        guards::may_call_tools(self, at_ms)
    }

    fn fold(&mut self, step: &Step) {
        let place = self.standing.events;
        self.standing.events += 1;
        self.standing.last_ms = step.at_ms;
        self.seen.insert(step.event_id);
        self.carried.extend(step.carried.iter().copied());
        match &step.act {
            Act::Session { policy } => {
                if let Some(policy) = policy {
                    self.policy = (**policy).clone();
                }
                self.standing.sessions += 1;
                self.standing.started_ms = step.at_ms;
                self.standing.phase = Phase::Planning;
            }
            Act::Proposal { tools, revises, fallback_of: _ } => {
                if let Some(old) = revises.and_then(|old| self.proposals.get_mut(&old)) {
                    old.revised = true;
                    self.unreviewed.remove(&old.place);
                }
                let proposal = Proposal { place, tools: tools.clone(), judgement: None, revised: false };
                self.proposals.insert(step.event_id, proposal);
                self.unreviewed.insert(place, step.event_id);
                self.newest_proposal = Some(step.event_id);
                self.standing.proposals += 1;
                if self.standing.phase == Phase::Planning {
                    self.standing.phase = Phase::Reviewing;
                }
            }
            Act::Review { judgement, subject } => self.review(*judgement, *subject),
            Act::Intent { tool, class, proposal } => {
                let Ok(proposal) = guards::proposal_of(self, *proposal) else { return };
                let intent = Intent {
                    place,
                    tool: tool.clone(),
                    class: *class,
                    proposal,
                    state: IntentState::Open,
                    approved: false,
                };
                self.intents.insert(step.event_id, intent);
                self.waiting.insert(place, step.event_id);
                self.standing.intents += 1;
            }
            Act::Started { tool, execution, intent } => {
                let Ok(used) = guards::intent_for(self, tool, *intent, step.at_ms) else { return };
                if let Some(intent) = self.intents.get_mut(&used) {
                    intent.state = IntentState::Used;
                    self.waiting.remove(&intent.place);
                }
                let state = ExecutionState::Running;
                let has_artefact = !step.carried.is_empty();
                let started = Execution { place, intent: used, state, has_artefact };
                self.executions.insert(execution.clone(), started);
                self.standing.started += 1;
            }
            Act::Ended { execution, failed, .. } => self.execution_ended(execution, *failed, step),
            Act::Recorded => {}
            Act::Claim { claim, text, resolved, .. } => {
                let new = Claim { place, text: *text, open_challenges: 0, challenges: 0 };
                let claim = self.claims.entry(*claim).or_insert(new);
                claim.text = *text;
                if *resolved {
                    self.standing.open_challenges -= u64::from(claim.open_challenges);
                    claim.open_challenges = 0;
                }
                self.standing.claims += 1;
                if self.standing.phase == Phase::Executing {
                    self.standing.phase = Phase::Claiming;
                }
            }
            Act::Challenge { claim } => {
                if let Some(claim) = self.claims.get_mut(claim) {
                    claim.open_challenges += 1;
                    claim.challenges += 1;
                    self.standing.open_challenges += 1;
                }
                self.standing.challenges += 1;
            }
            Act::Final { .. } => {
                self.standing.finals += 1;
                self.standing.phase = Phase::Auditing;
            }
            Act::VerificationStarted { .. } => self.standing.verifications += 1,
            Act::VerificationCompleted { status } => {
                self.standing.verified = Some(*status);
                self.standing.phase = match status {
                    VerificationStatus::Fail => Phase::Failed,
                    VerificationStatus::Pass | VerificationStatus::PassWithWarnings => Phase::Completed,
                };
            }
        }
    }

    fn review(&mut self, judgement: Judgement, subject: Subject) {
        self.standing.reviews += 1;
        self.standing.latest = Some(judgement);
        let about = match subject {
            Subject::Intent(id) => {
                let Some(intent) = self.intents.get_mut(&id) else { return };
                if judgement.approves() {
                    intent.state = IntentState::Approved;
                    intent.approved = true;
                } else {
                    intent.state = IntentState::Blocked;
                    self.standing.blocked += 1;
                    self.waiting.remove(&intent.place);
                }
                return;
            }
            Subject::Proposal(id) => Some(id),
            Subject::Next => self.next_to_review(),
        };
        if let Some(proposal) = about.and_then(|id| self.proposals.get_mut(&id)) {
            proposal.judgement = Some(judgement);
            self.unreviewed.remove(&proposal.place);
        }
        if judgement.approves() && self.standing.phase == Phase::Reviewing {
            self.standing.phase = Phase::Executing;
        }
    }

    fn execution_ended(&mut self, id: &str, failed: bool, step: &Step) {
        let Some(execution) = self.executions.get_mut(id) else { return };
        execution.has_artefact |= !step.carried.is_empty();
        if failed {
            execution.state = ExecutionState::Failed;
            self.standing.failed += 1;
        } else {
            execution.state = ExecutionState::Completed;
            self.standing.completed += 1;
        }
        let handled = !failed || guards::failures_are_bounded(self, step.at_ms);
        if handled && self.standing.phase == Phase::Executing {
            self.standing.phase = Phase::Claiming;
        }
    }
}

#[cfg(test)]
mod tests;
