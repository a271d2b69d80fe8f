//! The thirteen types of events and the four roles, and who may emit what.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A name that is no type of event or no role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no such {0}")]
pub struct UnknownName(&'static str);

macro_rules! names {
    ($(#[$doc:meta])* $name:ident, $what:literal, $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// All of them, in the order of the protocol.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name as it stands in events.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownName;
            fn from_str(text: &str) -> Result<Self, UnknownName> {
                match text { $($text => Ok(Self::$variant),)+ _ => Err(UnknownName($what)) }
            }
        }
    };
}

names! {
    /// The role an agent acts in.
    Role, "role",
    /// Turns the task into proposals.
    Planner = "planner",
    /// Runs tools and makes claims.
    Executor = "executor",
    /// Reviews proposals and challenges claims.
    Critic = "critic",
    /// Runs the verification.
    Auditor = "auditor",
}

names! {
    /// What an event reports.
    EventType, "type of event",
    /// A session begins; always first.
    SessionInitialized = "session_initialized",
    /// A plan is proposed.
    ProposalCreated = "proposal_created",
    /// A proposal is approved, approved under conditions, or rejected.
    ProposalReviewed = "proposal_reviewed",
    /// A tool call is announced.
    ToolIntentSigned = "tool_intent_signed",
    /// A tool call begins.
    ToolExecutionStarted = "tool_execution_started",
    /// A tool call ended well.
    ToolExecutionCompleted = "tool_execution_completed",
    /// A tool call ended badly.
    ToolExecutionFailed = "tool_execution_failed",
    /// An artefact is on record.
    ArtifactRecorded = "artifact_recorded",
    /// Something is claimed on evidence.
    ClaimIssued = "claim_issued",
    /// A claim is disputed.
    ClaimChallenged = "claim_challenged",
    /// The executor's last word.
    FinalStatementSigned = "final_statement_signed",
    /// The auditor begins to verify.
    VerificationRunStarted = "verification_run_started",
    /// The auditor's result; always last.
    VerificationRunCompleted = "verification_run_completed",
}

impl EventType {
    /// The one role that may emit it (R10's role guard, check 9).
    #[must_use]
    pub const fn role(self) -> Role {
        match self {
            Self::SessionInitialized | Self::ProposalCreated => Role::Planner,
            Self::ToolIntentSigned
            | Self::ToolExecutionStarted
            | Self::ToolExecutionCompleted
            | Self::ToolExecutionFailed
            | Self::ArtifactRecorded
            | Self::ClaimIssued
            | Self::FinalStatementSigned => Role::Executor,
            Self::ProposalReviewed | Self::ClaimChallenged => Role::Critic,
            Self::VerificationRunStarted | Self::VerificationRunCompleted => Role::Auditor,
        }
    }

    /// Whether the original demands a valid signature on it. We sign, and the strict reading checks, all of them.
    #[must_use]
    pub const fn signature_is_mandatory(self) -> bool {
        matches!(
            self,
            Self::ProposalCreated
                | Self::ToolIntentSigned
                | Self::ClaimIssued
                | Self::ClaimChallenged
                | Self::FinalStatementSigned
                | Self::VerificationRunCompleted
        )
    }
}
