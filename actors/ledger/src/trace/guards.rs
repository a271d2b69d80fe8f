//! Whether an event may be appended: the guards, one function a type of event.

use choir_messages::chain::Digest;
use std::collections::BTreeSet;

use super::phase::Phase;
use super::refused::Refused;
use super::state::{ExecutionState, Intent, IntentState};
use super::step::{Act, Judgement, Step, Subject};
use super::{PolicyProfile, Trace};
use crate::event::{EventType, Role};
use crate::id::{ClaimId, EventId};

pub(super) fn admit(trace: &Trace, step: &Step) -> Result<(), Refused> {
    let (standing, event) = (&trace.standing, step.act.event_type());
    if standing.phase.is_terminal() {
        return Err(Refused::Ended { phase: standing.phase });
    }
    if step.role != event.role() {
        return Err(Refused::Role { role: step.role, event, owner: event.role() });
    }
    match (standing.phase, event) {
        (Phase::Initialized, EventType::SessionInitialized) => {}
        (Phase::Initialized, _) => return Err(Refused::NoSession),
        (_, EventType::SessionInitialized) => return Err(Refused::SecondSession),
        (Phase::Auditing, _) if step.role != Role::Auditor => return Err(Refused::AfterFinal),
        _ => {}
    }
    if step.at_ms < standing.last_ms {
        return Err(Refused::ClockBack { by_ms: standing.last_ms - step.at_ms });
    }
    if trace.seen.contains(&step.event_id) {
        return Err(Refused::RepeatedEvent);
    }
    match &step.act {
        Act::Session { .. } => Ok(()),
        Act::Proposal { revises, fallback_of, .. } => {
            proposal(trace, *revises, fallback_of.as_deref(), step.at_ms)
        }
        Act::Review { subject, .. } => review(trace, *subject),
        Act::Intent { tool, class, proposal } => {
            approved(trace, event)?;
            may_call_tools(trace, step.at_ms)?;
            if trace.policy.refuses(*class) {
                return Err(Refused::TooRisky { class: *class });
            }
            let id = proposal_of(trace, *proposal)?;
            let proposal = trace.proposals.get(&id).ok_or_else(|| unknown("proposal", id))?;
            let approval = proposal.judgement.filter(|judgement| judgement.approves() && !proposal.revised);
            if approval.is_none() {
                return Err(Refused::ProposalNotApproved { status: proposal.status() });
            }
            if trace.policy.planned_tools_only && !proposal.tools.contains(tool) {
                return Err(Refused::UnplannedTool { tool: tool.clone() });
            }
            Ok(())
        }
        Act::Started { tool, execution, intent } => {
            if trace.executions.contains_key(execution) {
                return Err(Refused::ExecutionRepeated { id: execution.clone() });
            }
            approved(trace, event)?;
            intent_for(trace, tool, *intent, step.at_ms).map(|_| ())
        }
        Act::Ended { execution, outputs, .. } => ended(trace, execution, outputs, step),
        Act::Recorded if step.carried.is_empty() => Err(Refused::NothingRecorded),
        Act::Recorded => Ok(()),
        Act::Claim { claim, text, evidence, resolved } => {
            claimed(trace, step.at_ms)?;
            let old = trace.claims.get(claim);
            if old.is_some_and(|old| old.text != *text && !resolved) {
                return Err(Refused::Contradiction);
            }
            evident(trace, evidence, &step.carried)
        }
        Act::Challenge { claim } => {
            limit(trace.policy.challenges, trace.standing.challenges, "challenges")?;
            match trace.claims.get(claim) {
                Some(_) => Ok(()),
                None => Err(Refused::Unknown { what: "claim", id: claim.to_string() }),
            }
        }
        Act::Final { claims } => finalised(trace, claims),
        Act::VerificationStarted { profile } => {
            let own = trace.policy.profile;
            if standing.finals == 0 {
                Err(Refused::NoFinal)
            } else if profile.is_some_and(|profile| profile != own) {
                Err(Refused::OtherProfile { profile: own.as_str() })
            } else {
                Ok(())
            }
        }
        Act::VerificationCompleted { .. } if standing.verifications == 0 => Err(Refused::NoVerification),
        Act::VerificationCompleted { .. } => Ok(()),
    }
}

fn unknown(what: &'static str, id: EventId) -> Refused {
    Refused::Unknown { what, id: id.to_string() }
}

fn limit(limit: Option<u32>, used: u64, what: &'static str) -> Result<(), Refused> {
    match limit {
        Some(limit) if used >= u64::from(limit) => Err(Refused::Limit { what, limit: limit.into() }),
        _ => Ok(()),
    }
}

fn time_left(trace: &Trace, at_ms: u64) -> Result<(), Refused> {
    match trace.policy.time_budget_ms {
        Some(budget_ms) if at_ms.saturating_sub(trace.standing.started_ms) >= budget_ms => {
            Err(Refused::TimeBudget { budget_ms })
        }
        _ => Ok(()),
    }
}

/// The limits of time, calls and failures.
pub(super) fn may_call_tools(trace: &Trace, at_ms: u64) -> Result<(), Refused> {
    let (policy, standing) = (&trace.policy, &trace.standing);
    if standing.phase.is_terminal() {
        return Err(Refused::Ended { phase: standing.phase });
    }
    if standing.finals > 0 {
        return Err(Refused::AfterFinal);
    }
    time_left(trace, at_ms)?;
    limit(policy.tool_calls, standing.intents, "tool calls")?;
    limit(policy.failures, standing.failed, "failed tool calls")
}

/// Whether failures are no longer answered by a retry: nothing limits retries, or nothing more can be tried.
pub(super) fn failures_are_bounded(trace: &Trace, at_ms: u64) -> bool {
    trace.policy.failures.is_none() || may_call_tools(trace, at_ms).is_err()
}

fn proposal(
    trace: &Trace,
    revises: Option<EventId>,
    fallback_of: Option<&str>,
    at_ms: u64,
) -> Result<(), Refused> {
    limit(trace.policy.proposals, trace.standing.proposals, "proposals")?;
    time_left(trace, at_ms)?;
    if let Some(old) = revises
        && !trace.proposals.contains_key(&old)
    {
        return Err(unknown("proposal", old));
    }
    let Some(execution) = fallback_of else { return Ok(()) };
    if !trace.policy.fallback {
        return Err(Refused::NoFallback { why: "is not allowed by this run's policy" });
    }
    match trace.executions.get(execution).map(|execution| execution.state) {
        Some(ExecutionState::Failed) => Ok(()),
        Some(_) => {
            Err(Refused::NoFallback { why: "answers a failed execution, and this one has not failed" })
        }
        None => Err(Refused::Unknown { what: "execution", id: execution.to_owned() }),
    }
}

fn review(trace: &Trace, subject: Subject) -> Result<(), Refused> {
    if trace.standing.proposals == 0 {
        return Err(Refused::NoProposal);
    }
    match subject {
        Subject::Next => Ok(()),
        Subject::Proposal(id) if trace.proposals.contains_key(&id) => Ok(()),
        Subject::Proposal(id) => Err(unknown("proposal", id)),
        Subject::Intent(id) => {
            let intent = trace.intents.get(&id).ok_or_else(|| unknown("intent", id))?;
            still_open(intent)
        }
    }
}

fn approved(trace: &Trace, event: EventType) -> Result<(), Refused> {
    match trace.standing.latest {
        Some(judgement) if judgement.approves() => Ok(()),
        latest => {
            let latest = latest.map_or("missing", Judgement::as_str);
            Err(Refused::NotApproved { event, latest })
        }
    }
}

/// The proposal an intent belongs to: the one it names, else the newest that is approved.
pub(super) fn proposal_of(trace: &Trace, named: Option<EventId>) -> Result<EventId, Refused> {
    if let Some(id) = named {
        return if trace.proposals.contains_key(&id) { Ok(id) } else { Err(unknown("proposal", id)) };
    }
    let approved = trace
        .proposals
        .iter()
        .filter(|(_, proposal)| !proposal.revised && proposal.judgement.is_some_and(Judgement::approves));
    let newest = approved.max_by_key(|(_, proposal)| proposal.place).map(|(id, _)| *id);
    newest.ok_or(Refused::ProposalNotApproved { status: "not approved" })
}

fn still_open(intent: &Intent) -> Result<(), Refused> {
    match intent.state {
        IntentState::Open | IntentState::Approved => Ok(()),
        IntentState::Blocked => Err(Refused::IntentClosed { state: "blocked" }),
        IntentState::Used => Err(Refused::IntentClosed { state: "used" }),
    }
}

pub(super) fn may_start(trace: &Trace, id: EventId, at_ms: u64) -> Result<(), Refused> {
    if trace.standing.phase.is_terminal() {
        return Err(Refused::Ended { phase: trace.standing.phase });
    }
    if trace.standing.finals > 0 {
        return Err(Refused::AfterFinal);
    }
    approved(trace, EventType::ToolExecutionStarted)?;
    startable(trace, id, at_ms)
}

fn startable(trace: &Trace, id: EventId, at_ms: u64) -> Result<(), Refused> {
    let intent = trace.intents.get(&id).ok_or_else(|| unknown("intent", id))?;
    still_open(intent)?;
    time_left(trace, at_ms)?;
    let proposal =
        trace.proposals.get(&intent.proposal).ok_or_else(|| unknown("proposal", intent.proposal))?;
    let judgement = proposal.judgement.filter(|judgement| judgement.approves() && !proposal.revised);
    let Some(judgement) = judgement else {
        return Err(Refused::ProposalNotApproved { status: proposal.status() });
    };
    let needs_own = trace.policy.reviews(intent.class)
        || (judgement == Judgement::Conditional && trace.policy.review_from.is_some());
    if needs_own && !intent.approved {
        return Err(Refused::IntentUnreviewed { class: intent.class });
    }
    Ok(())
}

/// The intent that a start uses: the one it names, else the oldest unused one for the tool that may start.
pub(super) fn intent_for(
    trace: &Trace,
    tool: &str,
    named: Option<EventId>,
    at_ms: u64,
) -> Result<EventId, Refused> {
    if let Some(id) = named {
        let intent = trace.intents.get(&id).ok_or_else(|| unknown("intent", id))?;
        if intent.tool != tool {
            return Err(Refused::IntentClosed { state: "for another tool" });
        }
        return startable(trace, id, at_ms).map(|()| id);
    }
    let fits = |id: &EventId| trace.intents.get(id).is_some_and(|intent| intent.tool == tool);
    let mut why = Refused::NoIntent { tool: tool.to_owned() };
    for id in trace.waiting.values().filter(|id| fits(id)) {
        match startable(trace, *id, at_ms) {
            Ok(()) => return Ok(*id),
            Err(refused) => why = refused,
        }
    }
    Err(why)
}

fn ended(trace: &Trace, id: &str, outputs: &[Digest], step: &Step) -> Result<(), Refused> {
    let running = trace.executions.get(id).filter(|execution| execution.state == ExecutionState::Running);
    let Some(execution) = running else { return Err(Refused::NotRunning { id: id.to_owned() }) };
    if !execution.has_artefact && step.carried.is_empty() {
        return Err(Refused::NoArtefact { id: id.to_owned() });
    }
    match outputs.iter().find(|hash| !step.carried.contains(hash)) {
        Some(hash) => Err(Refused::OutputNotCarried { hash: hash.to_string() }),
        None => Ok(()),
    }
}

fn claimed(trace: &Trace, at_ms: u64) -> Result<(), Refused> {
    let standing = &trace.standing;
    if standing.completed + standing.failed == 0 {
        return Err(Refused::NothingExecuted);
    }
    match trace.policy.failures {
        Some(limit) if standing.completed == 0 && !failures_are_bounded(trace, at_ms) => {
            Err(Refused::RetryFirst { failures: u32::try_from(standing.failed).unwrap_or(u32::MAX), limit })
        }
        _ => Ok(()),
    }
}

fn evident(trace: &Trace, evidence: &[Digest], own: &[Digest]) -> Result<(), Refused> {
    let distinct: BTreeSet<_> = evidence.iter().collect();
    let given = u32::try_from(distinct.len()).unwrap_or(u32::MAX);
    let needed = trace.policy.minimum_evidence.max(1);
    if given < needed {
        return Err(Refused::ThinEvidence { needed, given });
    }
    match evidence.iter().find(|hash| !own.contains(hash) && !trace.carried.contains(hash)) {
        Some(hash) => Err(Refused::EvidenceNotCarried { hash: hash.to_string() }),
        None => Ok(()),
    }
}

fn finalised(trace: &Trace, claims: &[ClaimId]) -> Result<(), Refused> {
    let standing = &trace.standing;
    if standing.claims == 0 || claims.is_empty() {
        return Err(Refused::NoClaim);
    }
    if let Some(id) = claims.iter().find(|id| !trace.claims.contains_key(id)) {
        return Err(Refused::Unknown { what: "claim", id: id.to_string() });
    }
    if standing.running() > 0 {
        return Err(Refused::StillRunning { running: standing.running() });
    }
    if trace.policy.profile == PolicyProfile::Strict && standing.open_challenges > 0 {
        return Err(Refused::OpenChallenges { open: standing.open_challenges });
    }
    Ok(())
}
