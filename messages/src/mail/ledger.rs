//! Runs of the signed ledger: four roles work on one task over one signed trace. Whoever has a task sends it here, a
//! person's command as well as, one day, a core job.

use super::Mail;
use crate::id::AgentId;
use crate::json::Json;
use crate::reply::ReplyTo;
use crate::time::Timestamp;

/// What the ledger's desk is told.
#[derive(Debug)]
pub enum LedgerMsg {
    /// Begin a run.
    Start {
        /// The task, in the form of a task file.
        task: Json,
        /// The agent whose tools are used; without it the only one there is.
        agent: Option<AgentId>,
        /// Answered once its first event is durable.
        reply: ReplyTo<Result<LedgerRun, LedgerRefused>>,
    },
    /// What a run's trace says after its first `after` events: answered when there is more, or when the run has ended.
    Follow {
        /// The trace's id.
        trace: String,
        /// Events the asker has.
        after: u64,
        /// The page.
        reply: ReplyTo<Result<LedgerPage, LedgerRefused>>,
    },
    /// End a run on an operator's word.
    Abort {
        /// The trace's id.
        trace: String,
        /// Why, for whoever reads the trace.
        reason: String,
        /// Answered once it has ended.
        reply: ReplyTo<Result<LedgerEnd, LedgerRefused>>,
    },
    /// The runs that are under way.
    List {
        /// The runs.
        reply: ReplyTo<Vec<LedgerRun>>,
    },
    /// A run's trace moved, or its actors ended.
    Moved {
        /// The trace's id.
        trace: String,
    },
}

impl Mail for LedgerMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::Follow { .. } => "follow",
            Self::Abort { .. } => "abort",
            Self::List { .. } => "list",
            Self::Moved { .. } => "moved",
        }
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRun {
    /// The trace's id.
    pub trace: String,
    /// The task's name.
    pub task_id: String,
    /// The agent whose tools are used.
    pub agent: AgentId,
    /// Events so far.
    pub events: u64,
    /// The trace's folder.
    pub path: String,
}

/// One event, for whoever follows.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerEvent {
    /// Its place, from 1.
    pub place: u64,
    /// Its id.
    pub event_id: String,
    /// Its time.
    pub at: Timestamp,
    /// Who signed it.
    pub role: String,
    /// Its type.
    pub kind: String,
    /// What it says.
    pub payload: Json,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerEnd {
    /// `completed`, `failed` or `aborted`.
    pub status: String,
    /// Why, for a person.
    pub reason: String,
    /// Whether a rule of policy is why it was not completed.
    pub refused: bool,
    /// The verdict, if it was verified.
    pub verdict: Option<String>,
}

/// What a follower is told.
#[derive(Debug, Clone, PartialEq)]
pub struct LedgerPage {
    /// Events, in order.
    pub events: Vec<LedgerEvent>,
    /// How the run ended, if it has and these are its last events.
    pub end: Option<LedgerEnd>,
}

/// Why the ledger does not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerRefused {
    /// The task cannot be taken.
    #[error("{0}")]
    Task(String),
    /// No agent, or which one is not clear.
    #[error("{0}")]
    Agent(String),
    /// As many runs as there may be.
    #[error("{0} runs are under way, the most there may be; try again when one has ended")]
    Full(usize),
    /// No such run is under way.
    #[error("no run {0} is under way; `choirctl ledger list` shows all traces")]
    NoRun(String),
    /// The ledger cannot be written now.
    #[error("the ledger cannot be written: {0}")]
    Unavailable(String),
}
