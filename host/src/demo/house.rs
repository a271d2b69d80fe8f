//! Everything the demo starts, and its end.

use std::path::{Path, PathBuf};

use choir_persistence::postgres::Source;
use choir_scripted_model::{Handle, JournalSink, ScriptedModel};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::control::views::{AgentView, MessageLine, StatusView};
use crate::control::{ControlError, ErrorCode, Op};
use crate::daemon::find_agent_binary;

use super::choird::{self, Choird};
use super::folder::Folder;
use super::model::{self, Access};
use super::processes::{self, Process, Waited};
use super::talk::ask;
use super::words::Words;
use super::{AGENT, conversation, limits};

/// What the demo runs on.
pub(super) struct House {
    pub(super) folder: Folder,
    pub(super) choird: Choird,
    /// Where the tables are.
    pub(super) database: Source,
    /// The scripted model, if that is what answers.
    pub(super) model: Option<Handle>,
    /// What the result calls the model.
    pub(super) model_name: String,
    words: Words,
    reaper: JoinHandle<()>,
}

/// How the end was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cleared {
    /// Everything ended by itself when asked to.
    Orderly,
    /// These did not and were killed.
    Forced(Vec<String>),
}

impl House {
    /// Makes sure of everything that is needed, and makes the folder. Starts nothing.
    pub(super) async fn new(
        named: Option<&Path>,
        keep: bool,
        script: bool,
        words: Words,
    ) -> Result<Self, ControlError> {
        let binary = choird::find()?;
        find_agent_binary().map_err(|what| ControlError::new(ErrorCode::Runtime, what))?;
        for left in Folder::sweep() {
            words.say(&format!("removed {}, left by a demo that was killed", left.display()));
        }
        let folder = Folder::make(named, keep, script)?;
        let found = Source::find(None, None, folder.state.root()).await;
        let adopted = found.map_err(|error| {
            let what = format!("there is no PostgreSQL for the demo: {error}");
            ControlError::new(ErrorCode::Runtime, what)
                .next("`make fetch-postgres` fetches it; or set DATABASE_URL to a server with pgvector")
        });
        // Nothing may be started behind the reaper's back from here on: it would take the ends of such children away.
        let waited = Waited::default();
        let adopted = adopted.and_then(|source| {
            let reaper = processes::adopt(&waited).map_err(|e| {
                ControlError::new(
                    ErrorCode::Runtime,
                    format!("the demo cannot take charge of its processes: {e}"),
                )
            })?;
            Ok((source, reaper))
        });
        let (database, reaper) = match adopted {
            Ok(adopted) => adopted,
            Err(error) => {
                if folder.goes() {
                    folder.remove()?;
                }
                return Err(error);
            }
        };
        let choird = Choird::new(binary, folder.state.clone(), folder.words_of_choird(), waited);
        Ok(Self { folder, choird, database, model: None, model_name: String::new(), words, reaper })
    }

    /// The control socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.state.control_socket()
    }

    /// Starts the model, choird and the agent.
    pub(super) async fn open(&mut self, script: bool) -> Result<(), ControlError> {
        let words = self.words;
        let access = match Access::real(model::from_environment) {
            Some(access) => access,
            None => {
                let play =
                    if script { conversation::script() } else { choir_scripted_model::Script::interactive() };
                let handle = ScriptedModel::start(play, JournalSink::Memory).await;
                let handle = self.model.insert(handle.map_err(|e| model::not_started(&e))?);
                Access::scripted(handle)
            }
        };
        words.say(&access.said);
        self.model_name.clone_from(&access.name);
        self.folder.configure(&access)?;
        words.say(&format!("starting choird in {}", self.folder.state.root().display()));
        self.choird.start(&words).await?;
        let status: StatusView = ask(&self.socket(), &Op::Status).await?;
        words.say(&format!(
            "choird is ready: pid {}, {} database, sandbox {}",
            status.choird.pid, status.database.kind, status.sandbox
        ));
        for warning in &status.warnings {
            words.say(&format!("note: {warning}"));
        }
        if script {
            self.no_earlier_conversation().await?;
        }
        let start = Op::AgentStart { agent: agent()?, fresh: script, workspace: None, llm: None };
        let agent: AgentView = ask(&self.socket(), &start).await?;
        let pid = agent.agent_pid.or(agent.pid).map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
        words.say(&format!(
            "agent \"{AGENT}\" is up: pid {pid}, workspace {}",
            self.folder.workspace().display()
        ));
        Ok(())
    }

    /// Makes sure that a play has the agent for itself: with a database that was used before, choird has started it to
    /// go on with what was asked then.
    async fn no_earlier_conversation(&self) -> Result<(), ControlError> {
        let agent = agent()?;
        let now: AgentView = ask(&self.socket(), &Op::AgentStatus { agent: agent.clone() }).await?;
        if now.state != "stopped" {
            let _: AgentView = ask(&self.socket(), &Op::AgentStop { agent: agent.clone() }).await?;
        }
        let open: Vec<MessageLine> =
            ask(&self.socket(), &Op::Messages { agent: Some(agent), unanswered: true }).await?;
        if open.is_empty() {
            return Ok(());
        }
        let what = format!(
            "the database holds {} messages of an earlier conversation that are not answered; the play would be mixed with them",
            open.len()
        );
        Err(ControlError::new(ErrorCode::Refused, what)
            .next("use another database or folder, or answer them: choirctl demo without --script"))
    }

    /// Ends everything and looks whether it is gone. `now` resolving means not to wait for an orderly end. The folder
    /// stays if it is to be kept, or if it is needed to see what went wrong.
    pub(super) async fn clear(mut self, damaged: bool, now: impl Future<Output = ()>) -> Cleared {
        if let Some(model) = &self.model {
            model.clear_faults();
            model.release_all();
        }
        self.words.say("ending choird, the agent and the database");
        let mut forced = Vec::new();
        let orderly = tokio::select! {
            orderly = self.choird.stop() => orderly,
            () = now => {
                self.words.say("not waiting any longer");
                let _ = self.choird.kill().await;
                false
            }
        };
        if !orderly {
            forced.push("choird".to_owned());
        }
        self.choird.dismiss().await;
        forced.extend(end_the_rest(orderly).await);
        if let Some(model) = self.model.take() {
            model.shutdown().await;
        }
        self.reaper.abort();
        // What was still in use at the start may have ended by now.
        Folder::sweep();
        let root = self.folder.state.root().display();
        if self.folder.goes() && !damaged {
            match self.folder.remove() {
                Ok(()) => self.words.say("nothing is left: no process, no folder"),
                Err(error) => self.words.say(&format!("no process is left, but the folder is: {error}")),
            }
        } else {
            self.folder.stays(damaged);
            self.words.say(&format!("no process is left; the state folder is kept: {root}"));
        }
        if forced.is_empty() { Cleared::Orderly } else { Cleared::Forced(forced) }
    }
}

/// The agent's name.
pub(super) fn agent() -> Result<choir_messages::id::AgentId, ControlError> {
    AGENT.parse().map_err(|e| ControlError::new(ErrorCode::Internal, format!("{e}")))
}

/// Whatever still runs below this process is given a moment, asked to end, and killed; returns what it came to that with.
async fn end_the_rest(orderly: bool) -> Vec<String> {
    if orderly && gone(limits::LEFT_WITHIN).await.is_ok() {
        return Vec::new();
    }
    let named =
        |left: &[Process]| left.iter().map(|p| format!("{} (pid {})", p.name, p.pid)).collect::<Vec<_>>();
    let Err(left) = gone(std::time::Duration::ZERO).await else { return Vec::new() };
    let names = named(&left);
    // An interrupt is what makes a database end at once and in order; agents end with choird or by this.
    for process in &left {
        processes::send(process.pid, Signal::INT);
    }
    if gone(limits::LEFT_WITHIN).await.is_err() {
        let _ = timeout(limits::LEFT_WITHIN, async {
            while let Err(left) = gone(limits::LOOK_EVERY).await {
                for process in left {
                    processes::send(process.pid, Signal::KILL);
                }
            }
        })
        .await;
    }
    names
}

/// Waits until there are no descendants; else says which there are.
async fn gone(within: std::time::Duration) -> Result<(), Vec<Process>> {
    let until = Instant::now() + within;
    loop {
        let left = processes::descendants();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(left);
        }
        sleep(limits::LOOK_EVERY).await;
    }
}
