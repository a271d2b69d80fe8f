//! What a trace remembers of the events so far: a fold, nothing else.

use choir_messages::chain::Digest;

use super::phase::Phase;
use super::policy::RiskClass;
use super::step::{Judgement, VerificationStatus};
use crate::id::EventId;

/// The counts of a trace. Small enough to be compared before and after each event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Standing {
    /// The state.
    pub phase: Phase,
    /// Events so far.
    pub events: u64,
    /// The last event's time, in milliseconds since 1970.
    pub last_ms: u64,
    /// The session's time.
    pub started_ms: u64,
    /// Sessions opened: 0 or 1.
    pub sessions: u64,
    /// Proposals.
    pub proposals: u64,
    /// Reviews.
    pub reviews: u64,
    /// The latest review's judgement.
    pub latest: Option<Judgement>,
    /// Intents.
    pub intents: u64,
    /// Intents that the critic blocked.
    pub blocked: u64,
    /// Executions started.
    pub started: u64,
    /// Executions completed.
    pub completed: u64,
    /// Executions failed.
    pub failed: u64,
    /// Claims issued, one issued again included.
    pub claims: u64,
    /// Challenges.
    pub challenges: u64,
    /// Challenges without an answer.
    pub open_challenges: u64,
    /// Final statements: 0 or 1.
    pub finals: u64,
    /// Verifications started.
    pub verifications: u64,
    /// How the verification came out.
    pub verified: Option<VerificationStatus>,
}

impl Standing {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Initialized,
            events: 0,
            last_ms: 0,
            started_ms: 0,
            sessions: 0,
            proposals: 0,
            reviews: 0,
            latest: None,
            intents: 0,
            blocked: 0,
            started: 0,
            completed: 0,
            failed: 0,
            claims: 0,
            challenges: 0,
            open_challenges: 0,
            finals: 0,
            verifications: 0,
            verified: None,
        }
    }

    /// Executions that have not ended.
    #[must_use]
    pub const fn running(&self) -> u64 {
        self.started.saturating_sub(self.completed).saturating_sub(self.failed)
    }

    /// Whether the critic's latest word forbids to run anything.
    #[must_use]
    pub const fn is_blocked(&self) -> bool {
        matches!(self.latest, Some(Judgement::Rejected))
    }
}

/// One proposal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Its place among the events, from 0.
    pub place: u64,
    /// The tools it needs.
    pub tools: Vec<String>,
    /// The latest judgement of it.
    pub judgement: Option<Judgement>,
    /// Whether a later proposal replaces it.
    pub revised: bool,
}

impl Proposal {
    /// Its state in a word.
    #[must_use]
    pub const fn status(&self) -> &'static str {
        match (self.revised, self.judgement) {
            (true, _) => "replaced by a revision",
            (false, None) => "not reviewed",
            (false, Some(Judgement::Approved)) => "approved",
            (false, Some(Judgement::Conditional)) => "conditionally approved",
            (false, Some(Judgement::Rejected)) => "rejected",
        }
    }
}

/// What became of an intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntentState {
    /// Nothing yet.
    Open,
    /// The critic approved it.
    Approved,
    /// The critic blocked it: it can never run.
    Blocked,
    /// An execution used it.
    Used,
}

/// One tool intent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Intent {
    /// Its place among the events, from 0.
    pub place: u64,
    /// The tool.
    pub tool: String,
    /// Its risk.
    pub class: RiskClass,
    /// The proposal it belongs to.
    pub proposal: EventId,
    /// What became of it.
    pub state: IntentState,
    /// Whether the critic approved this very intent before it was used.
    pub approved: bool,
}

/// How an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutionState {
    /// It has not ended.
    Running,
    /// It ended well.
    Completed,
    /// It failed.
    Failed,
}

/// One tool execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Execution {
    /// Its place among the events, from 0.
    pub place: u64,
    /// The intent it uses.
    pub intent: EventId,
    /// How it stands.
    pub state: ExecutionState,
    /// Whether one of its events carried an artefact.
    pub has_artefact: bool,
}

/// One claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The place of its first event, from 0.
    pub place: u64,
    /// The digest of its latest text.
    pub text: Digest,
    /// Challenges without an answer.
    pub open_challenges: u32,
    /// Challenges in all.
    pub challenges: u32,
}
