//! Getting runs going: new ones, and those that an earlier life left open.

use std::sync::{Arc, Mutex, PoisonError};

use choir_ledger::event::EventType;
use choir_ledger::id::TraceId;
use choir_ledger_roles::book::{Book, Ending};
use choir_ledger_roles::duty::ToolInfo;
use choir_ledger_roles::limits::RUNS;
use choir_ledger_roles::run::{Opened, RunParts, run_spec};
use choir_ledger_roles::task::Task;
use choir_messages::id::{AgentId, MessageId};
use choir_messages::json::Json;
use choir_messages::mail::{LedgerMsg, LedgerRefused, LedgerRun, ModelsMsg};
use choir_messages::tool::Lane;
use choir_supervisors::{Context, Failure, mailbox};

use super::{Desk, Run, blocking};
use crate::daemon::ledger::archive::TraceArchive;
use crate::daemon::ledger::book::StoreBook;
use crate::daemon::ledger::hands::AgentHands;
use crate::daemon::ledger::{tools, tries};

impl Desk {
    async fn tools(&mut self) -> Result<Arc<[ToolInfo]>, String> {
        if let Some(tools) = &self.tools {
            return Ok(Arc::clone(tools));
        }
        let host = Arc::clone(&self.host);
        let known = tokio::task::spawn_blocking(move || tools::known(&host.state)).await;
        let known = known.map_err(|error| error.to_string())??;
        self.tools = Some(Arc::clone(&known));
        Ok(known)
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

    pub(super) async fn start(
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
    pub(super) async fn take_up(
        &mut self,
        trace: TraceId,
        cx: &mut Context<LedgerMsg>,
    ) -> Result<(), String> {
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
}
