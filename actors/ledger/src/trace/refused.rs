//! Why an event is not admitted: what is missing, and the next step.

use std::fmt;

use super::phase::Phase;
use super::policy::RiskClass;
use crate::event::{EventType, Role};

/// Which guard refused (agent protocol, "Policy Guards").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Guard {
    /// The event's form: a payload member is missing or wrong.
    Form,
    /// Role guard: only designated roles can emit each type.
    Role,
    /// The order of events.
    Order,
    /// Action guard: risky tools need the critic's approval; limits are kept.
    Action,
    /// Evidence guard: claims need artefacts.
    Evidence,
    /// Finalization guard.
    Finalization,
    /// A numbered invariant does not hold: the trace has failed.
    Integrity,
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "form",
            Self::Role => "role",
            Self::Order => "order",
            Self::Action => "action",
            Self::Evidence => "evidence",
            Self::Finalization => "finalization",
            Self::Integrity => "integrity",
        })
    }
}

/// Why an event is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A payload member is missing or has the wrong form (R11).
    #[error("the payload of {event} needs {member} ({form}); write the payload again with it")]
    Payload {
        /// The event's type.
        event: EventType,
        /// The member.
        member: &'static str,
        /// What it should be.
        form: &'static str,
    },
    /// The policy in a session's payload cannot be read.
    #[error(
        "the policy's member {member} is missing or not of its form; write the policy as this version does"
    )]
    Policy {
        /// The member.
        member: &'static str,
    },
    /// The role may not emit this type.
    #[error("the {role} may not emit {event}; only the {owner} may")]
    Role {
        /// Who tried.
        role: Role,
        /// What.
        event: EventType,
        /// Who may.
        owner: Role,
    },
    /// The trace has ended.
    #[error("the trace is {phase}, nothing can follow; start a new trace")]
    Ended {
        /// How it ended.
        phase: Phase,
    },
    /// Nothing came before (R10 a).
    #[error("a trace begins with session_initialized; let the planner open the session first")]
    NoSession,
    /// A second session (R10 a).
    #[error("the session is open already; a second task needs a trace of its own")]
    SecondSession,
    /// The event's time lies before the last one's (R09).
    #[error(
        "the event's time lies {by_ms} ms before the last event's; write it with the later of both times"
    )]
    ClockBack {
        /// By how much.
        by_ms: u64,
    },
    /// An event id was used before (R08).
    #[error("the event id was used before in this trace; write the event under a new id")]
    RepeatedEvent,
    /// An id that nothing in the trace has.
    #[error("there is no {what} {id} in this trace; name one of its own")]
    Unknown {
        /// What kind of thing.
        what: &'static str,
        /// The id given.
        id: String,
    },
    /// Nothing was proposed (R10 b).
    #[error("there is nothing to review; let the planner create a proposal first")]
    NoProposal,
    /// The latest review is no approval, or there is none (R10 c, d).
    #[error(
        "{event} needs the critic's approval, and the latest review is {latest}; revise the proposal and have it reviewed"
    )]
    NotApproved {
        /// What was tried.
        event: EventType,
        /// The latest review.
        latest: &'static str,
    },
    /// The proposal that the intent belongs to is not approved.
    #[error("the proposal of this intent is {status}; revise it and have the revision approved")]
    ProposalNotApproved {
        /// Its state.
        status: &'static str,
    },
    /// The proposal does not name this tool.
    #[error("the approved proposal does not name the tool {tool}; propose it and have it approved")]
    UnplannedTool {
        /// The tool.
        tool: String,
    },
    /// No unused intent fits (R10 d).
    #[error("there is no unused intent for the tool {tool}; sign a new intent, for a retry as well")]
    NoIntent {
        /// The tool.
        tool: String,
    },
    /// The intent named is used, blocked or for another tool.
    #[error("the intent is {state}; sign a new intent")]
    IntentClosed {
        /// Its state.
        state: &'static str,
    },
    /// The intent needs the critic's own approval.
    #[error("an intent of class {class} needs the critic's own approval; let the critic review the intent")]
    IntentUnreviewed {
        /// Its class.
        class: RiskClass,
    },
    /// The class is never allowed here.
    #[error(
        "the policy allows no tool call of class {class} at this sensitivity; choose a tool of a lower class"
    )]
    TooRisky {
        /// Its class.
        class: RiskClass,
    },
    /// A limit is reached.
    #[error(
        "the run's limit of {limit} {what} is reached; go on to claims with what there is, or abort the run"
    )]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// The time budget is used up.
    #[error(
        "the time budget of {budget_ms} ms is used up; go on to claims with what there is, or abort the run"
    )]
    TimeBudget {
        /// The budget.
        budget_ms: u64,
    },
    /// A fallback where none may be.
    #[error("a fallback proposal {why}; propose without it")]
    NoFallback {
        /// What stands against it.
        why: &'static str,
    },
    /// An execution id that was used before.
    #[error("the execution {id} exists already; give each attempt an id of its own")]
    ExecutionRepeated {
        /// The id.
        id: String,
    },
    /// No such execution is running (R10 e).
    #[error("no execution {id} is running; start it under an intent first")]
    NotRunning {
        /// The id.
        id: String,
    },
    /// The execution carries no artefact (R12).
    #[error(
        "the execution {id} stored neither input nor output; store one of them and let this event carry it"
    )]
    NoArtefact {
        /// The id.
        id: String,
    },
    /// An output that the event does not carry (R12).
    #[error("the output {hash} is not among the event's artefacts; let the event carry its descriptor")]
    OutputNotCarried {
        /// The hash.
        hash: String,
    },
    /// A recording without an artefact.
    #[error("artifact_recorded carries no artefact; let it carry the descriptor")]
    NothingRecorded,
    /// Nothing has finished (R10 f).
    #[error("no execution has finished, so there is nothing to claim; run a tool first")]
    NothingExecuted,
    /// An execution failed, and may be tried again.
    #[error(
        "{failures} of {limit} failures are used; retry under a new intent or propose a fallback before claiming"
    )]
    RetryFirst {
        /// Failures so far.
        failures: u32,
        /// The limit.
        limit: u32,
    },
    /// Too little evidence.
    #[error("a claim needs {needed} artefacts as evidence and has {given}; add evidence_artifacts")]
    ThinEvidence {
        /// How many it needs.
        needed: u32,
        /// How many distinct ones it has.
        given: u32,
    },
    /// Evidence that no event carried (R13).
    #[error("the evidence {hash} was carried by no event so far; record the artefact first")]
    EvidenceNotCarried {
        /// The hash.
        hash: String,
    },
    /// A claim contradicts itself (R14).
    #[error(
        "the claim was issued with another text; issue it under a new id, or with resolved: true to answer a challenge"
    )]
    Contradiction,
    /// Nothing was claimed (R10 h).
    #[error("nothing was claimed; issue a claim before the final statement")]
    NoClaim,
    /// Something is still running.
    #[error("{running} executions are still running; record how they ended before the final statement")]
    StillRunning {
        /// How many.
        running: u64,
    },
    /// A challenge is open under the strict profile (R14).
    #[error(
        "{open} challenges are open, which the strict profile does not allow; answer each with the claim again, resolved: true"
    )]
    OpenChallenges {
        /// How many.
        open: u64,
    },
    /// Only the auditor speaks after the final statement (R10 i).
    #[error("the final statement stands, only the auditor may go on; let it verify")]
    AfterFinal,
    /// The final statement is missing.
    #[error("there is no final statement to verify; let the executor sign it first")]
    NoFinal,
    /// The verification was not started (R10 j).
    #[error("no verification is under way; emit verification_run_started first")]
    NoVerification,
    /// Another profile than the trace's (R07).
    #[error("the verification's profile is not the trace's, {profile}; verify under that one")]
    OtherProfile {
        /// The trace's.
        profile: &'static str,
    },
    /// An invariant does not hold.
    #[error("invariant {id} is broken ({says}); the trace is failed, keep its folder and report the fault")]
    Broken {
        /// Its number.
        id: &'static str,
        /// What it says.
        says: &'static str,
    },
}

impl Refused {
    /// Which guard refused.
    #[must_use]
    pub const fn guard(&self) -> Guard {
        match self {
            Self::Payload { .. } | Self::Policy { .. } => Guard::Form,
            Self::Role { .. } => Guard::Role,
            Self::Ended { .. }
            | Self::NoSession
            | Self::SecondSession
            | Self::ClockBack { .. }
            | Self::RepeatedEvent
            | Self::Unknown { .. }
            | Self::NoProposal
            | Self::NoIntent { .. }
            | Self::IntentClosed { .. }
            | Self::ExecutionRepeated { .. }
            | Self::NotRunning { .. }
            | Self::NothingExecuted
            | Self::RetryFirst { .. }
            | Self::AfterFinal => Guard::Order,
            Self::NotApproved { .. }
            | Self::ProposalNotApproved { .. }
            | Self::UnplannedTool { .. }
            | Self::IntentUnreviewed { .. }
            | Self::TooRisky { .. }
            | Self::Limit { .. }
            | Self::TimeBudget { .. }
            | Self::NoFallback { .. } => Guard::Action,
            Self::NoArtefact { .. }
            | Self::OutputNotCarried { .. }
            | Self::NothingRecorded
            | Self::ThinEvidence { .. }
            | Self::EvidenceNotCarried { .. }
            | Self::Contradiction => Guard::Evidence,
            Self::NoClaim
            | Self::StillRunning { .. }
            | Self::OpenChallenges { .. }
            | Self::NoFinal
            | Self::NoVerification
            | Self::OtherProfile { .. } => Guard::Finalization,
            Self::Broken { .. } => Guard::Integrity,
        }
    }
}
