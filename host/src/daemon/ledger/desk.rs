//! The ledger's desk: begins runs, takes up those that a crash left open, tells their followers what happens, ends them.
//! It keeps nothing that the traces do not say, apart from who is waiting.

mod launch;
mod tell;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use choir_ledger::id::TraceId;
use choir_ledger_roles::book::Ending;
use choir_ledger_roles::duty::ToolInfo;
use choir_ledger_roles::hands::Hands as _;
use choir_ledger_roles::run::{RunEnd, RunHandle};
use choir_ledger_roles::scribe::ScribeMsg;
use choir_ledger_store::Home;
use choir_messages::id::{AgentId, InvocationId, JobName};
use choir_messages::mail::{LedgerEnd, LedgerMsg, LedgerPage, LedgerRefused, LedgerRun};
use choir_messages::reply::ReplyTo;
use choir_supervisors::{
    Actor, ChildRef, ChildSpec, Context, DynamicHandle, Failure, MailboxSpec, Slot, WhenFull,
};

use super::book;
use super::hands::AgentHands;
use super::tries;
use crate::daemon::Host;
use crate::limits;
use tell::view;

/// Commands, and a hint for each event of each run.
pub(super) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: 256, when_full: WhenFull::Wait(limits::SIGNAL_DEADLINE) };

/// Runs that have ended and whose end followers may still ask for.
const REMEMBERED: usize = 64;

/// Longest wait for a run that was told to end.
const ENDS: Duration = Duration::from_secs(30);

struct Run {
    handle: RunHandle,
    agent: AgentId,
    task_id: String,
    child: ChildRef,
    followers: Vec<(u64, ReplyTo<Result<LedgerPage, LedgerRefused>>)>,
    aborters: Vec<ReplyTo<Result<LedgerEnd, LedgerRefused>>>,
}

pub(super) struct Desk {
    host: Arc<Host>,
    /// Opened when it is first needed: whoever has no runs pays nothing for them.
    home: Option<Home>,
    /// Likewise.
    tools: Option<Arc<[ToolInfo]>>,
    job: JobName,
    children: DynamicHandle,
    runs: BTreeMap<TraceId, Run>,
    /// How the latest runs ended. What they said is in the ledger.
    ended: VecDeque<(TraceId, LedgerEnd)>,
}

pub(super) fn child_spec(slot: Slot<LedgerMsg>, host: Arc<Host>, children: DynamicHandle) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (host, children) = (Arc::clone(&host), children.clone());
        async move {
            let job = super::JOB.parse().map_err(|_| Failure::new("the ledger's lane has no name"))?;
            Ok(Desk {
                host,
                home: None,
                tools: None,
                job,
                children,
                runs: BTreeMap::new(),
                ended: VecDeque::new(),
            })
        }
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::new(error.to_string()))
}

impl Actor for Desk {
    type Msg = LedgerMsg;

    async fn started(&mut self, cx: &mut Context<LedgerMsg>) -> Result<(), Failure> {
        // Runs of a desk before this one: their followers ask again.
        for node in self.children.which_children() {
            let name = node.path.rsplit('/').next().unwrap_or_default().to_owned();
            let _ = self.children.terminate_child(&name).await;
        }
        if !self.host.state.ledger().exists() {
            return Ok(());
        }
        // A ledger that cannot be read must not keep choird from its agents; whoever asks for a run is told.
        let open = match self.home().await {
            Ok(home) => blocking(move || home.open_traces()).await?.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let open = open.unwrap_or_else(|error| {
            tracing::error!(error, "the ledger cannot be read; runs that a crash left open are not taken up");
            Vec::new()
        });
        for trace in open {
            if let Err(error) = self.take_up(trace, cx).await {
                tracing::error!(%trace, error, "a run could not be taken up");
            }
        }
        Ok(())
    }

    async fn handle(&mut self, msg: LedgerMsg, cx: &mut Context<LedgerMsg>) -> Result<(), Failure> {
        match msg {
            LedgerMsg::Start { task, agent, reply } => reply.send(self.start(task, agent, cx).await?),
            LedgerMsg::Follow { trace, after, reply } => self.follow(&trace, after, reply).await?,
            LedgerMsg::Abort { trace, reason, reply } => self.abort(&trace, reason, reply).await,
            LedgerMsg::List { reply } => {
                reply.send(self.runs.iter().map(|(id, run)| self.line(*id, run)).collect())
            }
            LedgerMsg::Moved { trace } => {
                if let Ok(trace) = trace.parse() {
                    self.moved(trace, cx).await?;
                }
            }
        }
        Ok(())
    }
}

impl Desk {
    async fn home(&mut self) -> Result<Home, String> {
        if let Some(home) = &self.home {
            return Ok(home.clone());
        }
        let place = self.host.state.ledger();
        let home = tokio::task::spawn_blocking(move || Home::create(&place)).await;
        let home = home.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.home = Some(home.clone());
        Ok(home)
    }

    fn line(&self, trace: TraceId, run: &Run) -> LedgerRun {
        LedgerRun {
            trace: trace.to_string(),
            task_id: run.task_id.clone(),
            agent: run.agent.clone(),
            events: run.handle.board.borrow().count as u64,
            path: self.host.state.ledger().join(choir_ledger::layout::trace_dir(trace)).display().to_string(),
        }
    }

    /// Has the desk look at a run when its trace moves, when it ends, or when its actors are gone.
    fn watch(&self, trace: TraceId, cx: &mut Context<LedgerMsg>) -> Result<(), Failure> {
        let Some(run) = self.runs.get(&trace) else { return Ok(()) };
        let (mut board, mut end, child) =
            (run.handle.board.clone(), run.handle.end.clone(), run.child.clone());
        let seen = board.borrow_and_update().count;
        let news = async move {
            tokio::select! {
                _ = board.wait_for(|board| board.count != seen) => {}
                _ = end.wait_for(Option::is_some) => {}
                _ = child.ended() => {}
            }
        };
        cx.pipe_to_self(news, move |()| LedgerMsg::Moved { trace: trace.to_string() })?;
        Ok(())
    }

    async fn moved(&mut self, trace: TraceId, cx: &mut Context<LedgerMsg>) -> Result<(), Failure> {
        let Some(run) = self.runs.get(&trace) else { return Ok(()) };
        let ended = run.handle.end.borrow().clone();
        if let Some(end) = ended {
            return self.close(trace, end).await;
        }
        self.serve(trace, None);
        let path = format!("/{trace}");
        let living = self.children.which_children().iter().any(|node| node.path.ends_with(&path));
        if living {
            return self.watch(trace, cx);
        }
        // Its supervisor gave up. The trace is as it was.
        if let Err(why) = self.take_up(trace, cx).await {
            tracing::error!(%trace, why, "a run could not be taken up again");
        }
        let is_up = self.children.which_children().iter().any(|node| node.path.ends_with(&path));
        if is_up {
            return Ok(());
        }
        let home = self.home().await.map_err(Failure::new)?;
        let end = blocking(move || book::ended(&home, trace)).await?;
        let end = end.unwrap_or_else(|| RunEnd {
            ending: Ending::Failed,
            reason: "it was interrupted again and again; see choird's log".to_owned(),
            refused: false,
            verdict: None,
        });
        self.close(trace, end).await
    }

    /// A run has ended: its actors go, what it left running is stopped, its trace's head goes into the log.
    async fn close(&mut self, trace: TraceId, end: RunEnd) -> Result<(), Failure> {
        let _ = self.children.terminate_child(&trace.to_string()).await;
        let Some(run) = self.runs.get(&trace) else { return Ok(()) };
        let board = Arc::clone(&run.handle.board.borrow());
        let hands = AgentHands { host: Arc::clone(&self.host), job: self.job.clone() };
        for open in board.executions.iter().filter(|execution| execution.ended.is_none()) {
            let id = open.id.strip_prefix("exec_").and_then(|id| id.parse::<InvocationId>().ok());
            if let Some(id) = id {
                tokio::spawn(hands.stop(run.agent.clone(), id));
            }
        }
        let home = self.home().await.map_err(Failure::new)?;
        let published = blocking(move || {
            tries::forget(&home, trace);
            home.publish(trace).map(|_| ())
        });
        if let Err(error) = published.await? {
            tracing::warn!(%trace, %error, "the trace's head could not be put into the log");
        }
        let end = view(&end);
        self.serve(trace, Some(&end));
        if let Some(run) = self.runs.remove(&trace) {
            run.aborters.into_iter().for_each(|reply| reply.send(Ok(end.clone())));
        }
        if self.ended.len() >= REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((trace, end));
        Ok(())
    }

    async fn abort(&mut self, trace: &str, reason: String, reply: ReplyTo<Result<LedgerEnd, LedgerRefused>>) {
        let id = trace.parse::<TraceId>().ok();
        if let Some((_, end)) = self.ended.iter().find(|(ended, _)| Some(*ended) == id) {
            return reply.send(Ok(end.clone()));
        }
        let Some(run) = id.and_then(|id| self.runs.get_mut(&id)) else {
            return reply.send(Err(LedgerRefused::NoRun(trace.chars().take(40).collect())));
        };
        let end = ScribeMsg::End { ending: Ending::Aborted, reason, refused: false };
        match tokio::time::timeout(ENDS, run.handle.scribe.send(end)).await {
            Ok(Ok(())) => run.aborters.push(reply),
            _ => reply.send(Err(LedgerRefused::Unavailable("its scribe takes no word".to_owned()))),
        }
    }
}
