//! The nine states of a trace and the eight transitions between them.

use std::fmt;

/// Where a trace stands (agent protocol, "Session Lifecycle"). It never goes back: a blocked proposal or a challenge is
/// answered within the state the trace has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// No event yet.
    Initialized,
    /// The session is open, nothing is proposed.
    Planning,
    /// Something is proposed, nothing was ever approved.
    Reviewing,
    /// Something was approved; tools may run.
    Executing,
    /// A tool has finished, or failed as often as it may; claims may be made.
    Claiming,
    /// The final statement stands; only the auditor speaks.
    Auditing,
    /// Verified, with or without warnings.
    Completed,
    /// Verification failed, or the trace's integrity was violated.
    Failed,
    /// The operator ended it.
    Aborted,
}

impl Phase {
    /// Every state, in the order of the protocol.
    pub const ALL: [Self; 9] = [
        Self::Initialized,
        Self::Planning,
        Self::Reviewing,
        Self::Executing,
        Self::Claiming,
        Self::Auditing,
        Self::Completed,
        Self::Failed,
        Self::Aborted,
    ];

    /// Its name in the protocol.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Initialized => "initialized",
            Self::Planning => "planning",
            Self::Reviewing => "reviewing",
            Self::Executing => "executing",
            Self::Claiming => "claiming",
            Self::Auditing => "auditing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Whether nothing can follow.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Aborted)
    }

    /// The transition from here to there, if the protocol has one.
    #[must_use]
    pub fn to(self, next: Self) -> Option<Transition> {
        match (self, next) {
            (Self::Initialized, Self::Planning) => Some(Transition::Opened),
            (Self::Planning, Self::Reviewing) => Some(Transition::Proposed),
            (Self::Reviewing, Self::Executing) => Some(Transition::Approved),
            (Self::Executing, Self::Claiming) => Some(Transition::Executed),
            (Self::Claiming, Self::Auditing) => Some(Transition::Claimed),
            (Self::Auditing, Self::Completed) => Some(Transition::Verified),
            (from, Self::Failed) if !from.is_terminal() => Some(Transition::Failed),
            (from, Self::Aborted) if !from.is_terminal() => Some(Transition::Aborted),
            _ => None,
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The eight transitions, numbered as in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transition {
    /// 1. `initialized` to `planning`, by `session_initialized`.
    Opened = 1,
    /// 2. `planning` to `reviewing`, by the first `proposal_created`.
    Proposed = 2,
    /// 3. `reviewing` to `executing`, by the first approving `proposal_reviewed`.
    Approved = 3,
    /// 4. `executing` to `claiming`, by a success or by the failure that is the last one allowed.
    Executed = 4,
    /// 5. `claiming` to `auditing`, by `final_statement_signed` over at least one claim.
    Claimed = 5,
    /// 6. `auditing` to `completed`, when the verifier says pass or pass-with-warnings.
    Verified = 6,
    /// 7. Any state to `failed`.
    Failed = 7,
    /// 8. Any state to `aborted`.
    Aborted = 8,
}
