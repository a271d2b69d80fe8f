//! The ledger's desk: begins runs, takes up those that a crash left open, tells their followers what happens, ends them.
//! It keeps nothing that the traces do not say, apart from who is waiting.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use choir_ledger::event::EventType;
use choir_ledger::id::TraceId;
use choir_ledger_roles::board::Entry;
use choir_ledger_roles::book::{Book, Ending};
use choir_ledger_roles::duty::ToolInfo;
use choir_ledger_roles::hands::Hands as _;
use choir_ledger_roles::limits::RUNS;
use choir_ledger_roles::run::{Opened, RunEnd, RunHandle, RunParts, run_spec};
use choir_ledger_roles::scribe::ScribeMsg;
use choir_ledger_roles::task::Task;
use choir_ledger_store::Home;
use choir_messages::id::{AgentId, InvocationId, JobName, MessageId};
use choir_messages::json::Json;
use choir_messages::mail::{
    LedgerEnd, LedgerEvent, LedgerMsg, LedgerPage, LedgerRefused, LedgerRun, ModelsMsg,
};
use choir_messages::reply::ReplyTo;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use choir_supervisors::{
    Actor, ChildRef, ChildSpec, Context, DynamicHandle, Failure, MailboxSpec, Slot, WhenFull, mailbox,
};

use super::archive::TraceArchive;
use super::book::{self, StoreBook};
use super::hands::AgentHands;
use super::tries;
use crate::daemon::Host;
use crate::limits;

/// Commands, and a hint for each event of each run.
pub(super) const MAILBOX: MailboxSpec =
    MailboxSpec { capacity: 256, when_full: WhenFull::Wait(limits::SIGNAL_DEADLINE) };

/// Runs that have ended and whose end followers may still ask for.
const REMEMBERED: usize = 64;

/// Events of one page.
const PAGE: usize = 256;

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

    async fn tools(&mut self) -> Result<Arc<[ToolInfo]>, String> {
        if let Some(tools) = &self.tools {
            return Ok(Arc::clone(tools));
        }
        let host = Arc::clone(&self.host);
        let known = tokio::task::spawn_blocking(move || super::tools::known(&host.state)).await;
        let known = known.map_err(|error| error.to_string())??;
        self.tools = Some(Arc::clone(&known));
        Ok(known)
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

    /// Which agent's tools a run uses.
    fn agent(&self, asked: Option<AgentId>) -> Result<AgentId, LedgerRefused> {
        let settings = self.host.settings();
        let agents = &settings.config.agents;
        let names = || agents.keys().map(AgentId::as_str).collect::<Vec<_>>().join(", ");
        match asked {
            Some(agent) if agents.contains_key(&agent) => Ok(agent),
            Some(agent) => Err(LedgerRefused::Agent(format!(
                "there is no agent \"{agent}\"; config.json has {}",
                names()
            ))),
            None => match agents.keys().next() {
                Some(only) if agents.len() == 1 => Ok(only.clone()),
                Some(_) => Err(LedgerRefused::Agent(format!("name the agent with --agent: {}", names()))),
                None => {
                    Err(LedgerRefused::Agent("config.json has no agent whose tools could be used".to_owned()))
                }
            },
        }
    }

    async fn start(
        &mut self,
        task: Json,
        agent: Option<AgentId>,
        cx: &mut Context<LedgerMsg>,
    ) -> Result<Result<LedgerRun, LedgerRefused>, Failure> {
        let task = match Task::read(&task.0.to_string()) {
            Ok(task) => task,
            Err(error) => return Ok(Err(LedgerRefused::Task(error.to_string()))),
        };
        let agent = match self.agent(agent) {
            Ok(agent) => agent,
            Err(refused) => return Ok(Err(refused)),
        };
        if self.runs.len() >= RUNS {
            return Ok(Err(LedgerRefused::Full(RUNS)));
        }
        let home = match self.home().await {
            Ok(home) => home,
            Err(why) => return Ok(Err(LedgerRefused::Unavailable(why))),
        };
        let new = task.clone();
        let begun = blocking(move || StoreBook::begin(&home, &new)).await?;
        let begun = match begun {
            Ok(book) => book,
            Err(error) => return Ok(Err(LedgerRefused::Unavailable(error.to_string()))),
        };
        let trace = begun.trace();
        Ok(match self.launch(trace, task, agent, Some(Box::new(begun)), cx).await {
            Ok(()) => match self.runs.get(&trace) {
                Some(run) => Ok(self.line(trace, run)),
                None => Err(LedgerRefused::NoRun(trace.to_string())),
            },
            Err(why) => {
                if let Err(error) = self.give_up(trace, &why).await {
                    tracing::warn!(%trace, error, "a run that did not begin could not be ended");
                }
                Err(LedgerRefused::Unavailable(why))
            }
        })
    }

    /// Takes up a run that an earlier life left open.
    async fn take_up(&mut self, trace: TraceId, cx: &mut Context<LedgerMsg>) -> Result<(), String> {
        let home = self.home().await?;
        let read = move || {
            let events = home.events(trace).map_err(|error| error.to_string())?;
            let first = events.first().filter(|event| event.event_type() == EventType::SessionInitialized);
            let task = first.map(|event| Task::of_payload(&choir_ledger_roles::book::entry(event).payload));
            Ok::<_, String>((task, tries::another(&home, trace, events.len() as u64)))
        };
        let (task, again) = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())??;
        let (task, agent) = match task {
            Some(Ok((task, agent))) => (task, agent.parse::<AgentId>().map_err(|error| error.to_string())),
            Some(Err(error)) => return self.give_up(trace, &error.to_string()).await,
            None => return self.give_up(trace, "its session was never initialised").await,
        };
        if !again {
            return self.give_up(trace, "it was interrupted again and again at the same step").await;
        }
        let known = agent.and_then(|agent| self.agent(Some(agent)).map_err(|refused| refused.to_string()));
        match known {
            Ok(agent) => {
                tracing::info!(%trace, "a run that was interrupted is taken up");
                self.launch(trace, task, agent, None, cx).await
            }
            Err(why) => self.give_up(trace, &why).await,
        }
    }

    async fn give_up(&mut self, trace: TraceId, why: &str) -> Result<(), String> {
        tracing::warn!(%trace, why, "a run is given up");
        let (home, reason) = (self.home().await?, why.to_owned());
        let end = move || match StoreBook::resume(&home, trace).map_err(|error| error.to_string())? {
            Opened::Book(book) => book.finish(Ending::Failed, &reason).map_err(|error| error.to_string()),
            Opened::Ended(_) => Ok(()),
        };
        tokio::task::spawn_blocking(end).await.map_err(|error| error.to_string())?
    }

    async fn launch(
        &mut self,
        trace: TraceId,
        task: Task,
        agent: AgentId,
        begun: Option<Box<StoreBook>>,
        cx: &mut Context<LedgerMsg>,
    ) -> Result<(), String> {
        let (models, models_slot) = mailbox::<ModelsMsg>("models", choir_models::actor::MAILBOX);
        let settings = self.host.settings();
        let llm = settings.config.agents.get(&agent).map(|agent| agent.llm.clone()).unwrap_or_default();
        let model = settings.config.model_config(&llm);
        let model = model.ok_or_else(|| format!("config.json has no model \"{llm}\" any more"))?;
        let key = model.secret.as_ref().and_then(|name| settings.secrets.get(name)).cloned();
        let models_spec = choir_models::child_spec(models_slot, Some((model, key)));

        let (home, tools) = (self.home().await?, self.tools().await?);
        let begun = Arc::new(Mutex::new(begun));
        let beside = home.clone();
        let open = move || -> choir_ledger_roles::run::Boxed<Result<Opened, String>> {
            let first = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
            let home = home.clone();
            Box::pin(async move {
                if let Some(book) = first {
                    return Ok(Opened::Book(book));
                }
                let resume = move || StoreBook::resume(&home, trace).map_err(|error| error.to_string());
                tokio::task::spawn_blocking(resume).await.map_err(|error| error.to_string())?
            })
        };
        let root = MessageId::from_bits(trace.bits());
        let parts = RunParts {
            trace,
            task: Some(task.clone()),
            agent: agent.clone(),
            lane: Lane::Core(self.job.clone()),
            tools,
            open: Arc::new(open),
            hands: Arc::new(AgentHands { host: Arc::clone(&self.host), job: self.job.clone() }),
            archive: Arc::new(TraceArchive { home: beside, trace, profile: task.policy_profile }),
            models,
            adopt: Arc::new(move |span| crate::telemetry::continue_trace(span, root)),
        };
        let (handle, spec) = run_spec(parts, models_spec);
        let span = tracing::info_span!(parent: None, "ledger_run", %trace, %agent, otel.kind = "producer");
        crate::telemetry::begin_trace(&span, root);
        let child = self.children.start_child(spec).await.map_err(|error| error.to_string())?;
        drop(span);
        let run =
            Run { handle, agent, task_id: task.task_id, child, followers: Vec::new(), aborters: Vec::new() };
        let run = match self.runs.remove(&trace) {
            // Taken up again: whoever followed goes on following.
            Some(before) => Run { followers: before.followers, aborters: before.aborters, ..run },
            None => run,
        };
        self.runs.insert(trace, run);
        self.watch(trace, cx).map_err(|error| error.to_string())
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

    /// Answers those who wait for more, if there is more.
    fn serve(&mut self, trace: TraceId, end: Option<&LedgerEnd>) {
        let Some(run) = self.runs.get_mut(&trace) else { return };
        let board = Arc::clone(&run.handle.board.borrow());
        for (after, reply) in std::mem::take(&mut run.followers) {
            match page(&board.entries, after, end) {
                Some(page) => reply.send(Ok(page)),
                None if reply.is_abandoned() => {}
                None => run.followers.push((after, reply)),
            }
        }
    }

    async fn follow(
        &mut self,
        trace: &str,
        after: u64,
        reply: ReplyTo<Result<LedgerPage, LedgerRefused>>,
    ) -> Result<(), Failure> {
        let Ok(id) = trace.parse::<TraceId>() else {
            reply.send(Err(LedgerRefused::NoRun(trace.chars().take(40).collect())));
            return Ok(());
        };
        if let Some(run) = self.runs.get_mut(&id) {
            run.followers.push((after, reply));
            self.serve(id, None);
            return Ok(());
        }
        // One that has ended is in the ledger.
        if !self.host.state.ledger().exists() {
            reply.send(Err(LedgerRefused::NoRun(id.to_string())));
            return Ok(());
        }
        let home = self.home().await.map_err(Failure::new)?;
        let remembered = self.ended.iter().find(|(ended, _)| *ended == id).map(|(_, end)| end.clone());
        let found = blocking(move || {
            let end = remembered.or_else(|| book::ended(&home, id).as_ref().map(view))?;
            let events = home.events(id).ok()?;
            Some((end, events))
        });
        let page = found.await?.and_then(|(end, events)| {
            let entries: Vec<Arc<Entry>> =
                events.iter().map(|event| Arc::new(choir_ledger_roles::book::entry(event))).collect();
            page(&entries, after, Some(&end))
        });
        reply.send(page.ok_or_else(|| LedgerRefused::NoRun(id.to_string())));
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

fn view(end: &RunEnd) -> LedgerEnd {
    let status = match end.ending {
        Ending::Completed => "completed",
        Ending::Failed => "failed",
        Ending::Aborted => "aborted",
    };
    LedgerEnd {
        status: status.to_owned(),
        reason: end.reason.clone(),
        refused: end.refused,
        verdict: end.verdict.clone(),
    }
}

/// What is told after so many events; nothing if there is nothing more yet.
fn page(entries: &[Arc<Entry>], after: u64, end: Option<&LedgerEnd>) -> Option<LedgerPage> {
    let from = usize::try_from(after).unwrap_or(usize::MAX).min(entries.len());
    let rest = entries.get(from..).unwrap_or_default();
    if rest.is_empty() && end.is_none() {
        return None;
    }
    let last = rest.len() <= PAGE;
    let events = rest
        .iter()
        .take(PAGE)
        .enumerate()
        .map(|(at, entry)| LedgerEvent {
            place: (from + at + 1) as u64,
            event_id: entry.event_id.clone(),
            at: Timestamp::from_millis(entry.at),
            role: entry.role.as_str().to_owned(),
            kind: entry.kind.as_str().to_owned(),
            payload: Json(entry.payload.clone()),
        })
        .collect();
    Some(LedgerPage { events, end: end.filter(|_| last).cloned() })
}
