//! What the rules need of an event: its type's facts. The links `*_event_id` in payloads are this implementation's own and may
//! be absent; then they mean the oldest thing that fits.

use choir_messages::chain::Digest;

use super::policy::{Policy, RiskClass};
use super::refused::Refused;
use crate::event::{Event, EventType, Role};
use crate::id::{ClaimId, EventId};
use crate::verify::Profile as PolicyProfile;

/// Longest tool name or execution id that the rules keep, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// Most entries in one list of a payload that the rules keep.
pub const MAX_LIST: usize = 4096;

/// One event, as the rules see it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// Its id.
    pub event_id: EventId,
    /// Its time, in milliseconds since 1970.
    pub at_ms: u64,
    /// The role of its actor.
    pub role: Role,
    /// The artefacts that its descriptors carry.
    pub carried: Vec<Digest>,
    /// What it says.
    pub act: Act,
}

impl Step {
    /// What the rules see of a signed event.
    pub fn of(event: &Event) -> Result<Self, Refused> {
        Ok(Self {
            event_id: event.event_id(),
            at_ms: event.created_at().millis(),
            role: event.actor().role,
            carried: event.artifacts().iter().map(|item| item.artifact_hash).collect(),
            act: Act::read(event.event_type(), event.payload())?,
        })
    }
}

/// A critic's judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Judgement {
    /// `approved`.
    Approved,
    /// `conditionally_approved`: each intent then needs an approval of its own.
    Conditional,
    /// `rejected`, or any other word: what is not an approval stops.
    Rejected,
}

impl Judgement {
    /// The judgement that a `proposal_status` means.
    #[must_use]
    pub fn of(word: &str) -> Self {
        match word {
            "approved" => Self::Approved,
            "conditionally_approved" => Self::Conditional,
            _ => Self::Rejected,
        }
    }

    /// Its word in the payload.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Conditional => "conditionally_approved",
            Self::Rejected => "rejected",
        }
    }

    /// Whether tools may run after it.
    #[must_use]
    pub const fn approves(self) -> bool {
        matches!(self, Self::Approved | Self::Conditional)
    }
}

/// What a review is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// The oldest proposal without a review, or the newest if all have one.
    Next,
    /// This proposal (`proposal_event_id`).
    Proposal(EventId),
    /// This intent (`intent_event_id`): an approval lets a risky one start, a rejection blocks it for good.
    Intent(EventId),
}

/// How a verification came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerificationStatus {
    /// `pass`.
    Pass,
    /// `pass-with-warnings`.
    PassWithWarnings,
    /// `fail`.
    Fail,
}

impl VerificationStatus {
    /// Its word in the payload.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::PassWithWarnings => "pass-with-warnings",
            Self::Fail => "fail",
        }
    }
}

/// What an event says, by its type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Act {
    /// `session_initialized`.
    Session {
        /// The policy it states, if any.
        policy: Option<Box<Policy>>,
    },
    /// `proposal_created`.
    Proposal {
        /// The tools it needs.
        tools: Vec<String>,
        /// The proposal it replaces (`revises_event_id`).
        revises: Option<EventId>,
        /// The failed execution it answers (`fallback_of_execution_id`).
        fallback_of: Option<String>,
    },
    /// `proposal_reviewed`.
    Review {
        /// The judgement.
        judgement: Judgement,
        /// Of what.
        subject: Subject,
    },
    /// `tool_intent_signed`.
    Intent {
        /// The tool.
        tool: String,
        /// Its risk.
        class: RiskClass,
        /// The proposal it belongs to (`proposal_event_id`).
        proposal: Option<EventId>,
    },
    /// `tool_execution_started`.
    Started {
        /// The tool.
        tool: String,
        /// The execution's id.
        execution: String,
        /// The intent it uses (`intent_event_id`).
        intent: Option<EventId>,
    },
    /// `tool_execution_completed`, or `_failed`.
    Ended {
        /// The execution's id.
        execution: String,
        /// The outputs it names.
        outputs: Vec<Digest>,
        /// Whether it failed.
        failed: bool,
    },
    /// `artifact_recorded`.
    Recorded,
    /// `claim_issued`.
    Claim {
        /// The claim's id.
        claim: ClaimId,
        /// The digest of its text.
        text: Digest,
        /// Its evidence.
        evidence: Vec<Digest>,
        /// Whether it answers the challenges so far.
        resolved: bool,
    },
    /// `claim_challenged`.
    Challenge {
        /// The claim's id.
        claim: ClaimId,
    },
    /// `final_statement_signed`.
    Final {
        /// The claims it consolidates.
        claims: Vec<ClaimId>,
    },
    /// `verification_run_started`.
    VerificationStarted {
        /// The profile it judges by.
        profile: Option<PolicyProfile>,
    },
    /// `verification_run_completed`.
    VerificationCompleted {
        /// How it came out.
        status: VerificationStatus,
    },
}

impl Act {
    /// The event type that says this.
    #[must_use]
    pub const fn event_type(&self) -> EventType {
        match self {
            Self::Session { .. } => EventType::SessionInitialized,
            Self::Proposal { .. } => EventType::ProposalCreated,
            Self::Review { .. } => EventType::ProposalReviewed,
            Self::Intent { .. } => EventType::ToolIntentSigned,
            Self::Started { .. } => EventType::ToolExecutionStarted,
            Self::Ended { failed: false, .. } => EventType::ToolExecutionCompleted,
            Self::Ended { failed: true, .. } => EventType::ToolExecutionFailed,
            Self::Recorded => EventType::ArtifactRecorded,
            Self::Claim { .. } => EventType::ClaimIssued,
            Self::Challenge { .. } => EventType::ClaimChallenged,
            Self::Final { .. } => EventType::FinalStatementSigned,
            Self::VerificationStarted { .. } => EventType::VerificationRunStarted,
            Self::VerificationCompleted { .. } => EventType::VerificationRunCompleted,
        }
    }
}
