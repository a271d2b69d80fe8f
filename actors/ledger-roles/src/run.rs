//! One run: a supervisor with a scribe and the four roles, each on its own (one_for_one), for each finds its neighbours
//! restarted.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use choir_ledger::event::Role;
use choir_ledger::id::TraceId;
use choir_messages::id::AgentId;
use choir_messages::mail::ModelsMsg;
use choir_messages::tool::Lane;
use choir_supervisors::{Address, ChildSpec, Intensity, Strategy, SupervisorSpec, mailbox};
use tokio::sync::watch;

use crate::board::Board;
use crate::book::{Book, Ending};
use crate::driver::Report;
use crate::duty::ToolInfo;
use crate::hands::Hands;
use crate::role::RoleMsg;
use crate::scribe::ScribeMsg;
use crate::task::Task;
use crate::{role, scribe};

/// Restarts a run needs under a storm of kills before it is given up for this time.
const INTENSITY: Intensity = Intensity { restarts: 40, within: Duration::from_secs(10) };

/// A future without a name.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    /// Whether it was completed.
    pub ending: Ending,
    /// Why, for a person.
    pub reason: String,
    /// Whether a rule of policy is why it was not.
    pub refused: bool,
    /// The verdict, if it was verified.
    pub verdict: Option<String>,
}

/// A trace as it was found.
pub enum Opened {
    /// Open for writing.
    Book(Box<dyn Book>),
    /// It has ended.
    Ended(RunEnd),
}

/// Opens the run's trace, for every incarnation of the scribe; waits for the one before to let go of it.
pub type Open = Arc<dyn Fn() -> Boxed<Result<Opened, String>> + Send + Sync>;

/// What lies beside the trace: the verifier and its reports.
pub trait Archive: Send + Sync {
    /// Verifies the trace strictly, as it will be once the verification is recorded.
    fn verify(&self) -> Boxed<Result<Report, String>>;

    /// Keeps a report beside the trace.
    fn keep(&self, report: Report) -> Boxed<()>;
}

/// What a run is made of.
pub struct RunParts {
    /// Its trace.
    pub trace: TraceId,
    /// Its task, for a new run; a resumed one has it in its first event.
    pub task: Option<Task>,
    /// The agent whose tools are used.
    pub agent: AgentId,
    /// Who thinks and locks in that agent.
    pub lane: Lane,
    /// The tools there are.
    pub tools: Arc<[ToolInfo]>,
    /// Opens the trace.
    pub open: Open,
    /// Where tools run.
    pub hands: Arc<dyn Hands>,
    /// The verifier.
    pub archive: Arc<dyn Archive>,
    /// Where models are asked.
    pub models: Address<ModelsMsg>,
    /// Makes a span part of the run's trace.
    pub adopt: Arc<dyn Fn(&tracing::Span) + Send + Sync>,
}

/// What the actors of a run share.
pub(crate) struct RunDeps {
    pub(crate) trace: TraceId,
    pub(crate) task: Option<Task>,
    pub(crate) agent: AgentId,
    pub(crate) lane: Lane,
    pub(crate) tools: Arc<[ToolInfo]>,
    pub(crate) open: Open,
    pub(crate) hands: Arc<dyn Hands>,
    pub(crate) archive: Arc<dyn Archive>,
    pub(crate) models: Address<ModelsMsg>,
    pub(crate) adopt: Arc<dyn Fn(&tracing::Span) + Send + Sync>,
    pub(crate) scribe: Address<ScribeMsg>,
    pub(crate) roles: Vec<Address<RoleMsg>>,
    pub(crate) board: watch::Sender<Arc<Board>>,
    pub(crate) end: watch::Sender<Option<RunEnd>>,
}

/// How others follow and end a run.
#[derive(Clone)]
pub struct RunHandle {
    /// Its trace.
    pub trace: TraceId,
    /// The scribe, who can end it.
    pub scribe: Address<ScribeMsg>,
    /// The board as it stands.
    pub board: watch::Receiver<Arc<Board>>,
    /// How it ended, once it has.
    pub end: watch::Receiver<Option<RunEnd>>,
}

/// A run's supervisor, named by its trace; `models` is started first. The handle outlives the run.
#[must_use]
pub fn run_spec(parts: RunParts, models: ChildSpec) -> (RunHandle, ChildSpec) {
    let (scribe, scribe_slot) = mailbox("scribe", scribe::MAILBOX);
    let (planner, planner_slot) = mailbox("planner", role::MAILBOX);
    let (critic, critic_slot) = mailbox("critic", role::MAILBOX);
    let (executor, executor_slot) = mailbox("executor", role::MAILBOX);
    let (auditor, auditor_slot) = mailbox("auditor", role::MAILBOX);
    let (board, board_seen) = watch::channel(Arc::new(Board::default()));
    let (end, end_seen) = watch::channel(None);
    let RunParts { trace, task, agent, lane, tools, open, hands, archive, models: asked, adopt } = parts;
    let deps = Arc::new(RunDeps {
        trace,
        task,
        agent,
        lane,
        tools,
        open,
        hands,
        archive,
        models: asked,
        adopt,
        scribe: scribe.clone(),
        roles: vec![planner, critic, executor, auditor],
        board,
        end,
    });
    let spec = SupervisorSpec::new(trace.to_string(), Strategy::OneForOne)
        .intensity(INTENSITY)
        .child(models)
        .child(scribe::child(scribe_slot, Arc::clone(&deps)))
        .child(role::child(planner_slot, Role::Planner, Arc::clone(&deps)))
        .child(role::child(critic_slot, Role::Critic, Arc::clone(&deps)))
        .child(role::child(executor_slot, Role::Executor, Arc::clone(&deps)))
        .child(role::child(auditor_slot, Role::Auditor, deps));
    let handle = RunHandle { trace, scribe, board: board_seen, end: end_seen };
    (handle, ChildSpec::supervisor(spec))
}
