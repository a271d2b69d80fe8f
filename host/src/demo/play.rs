//! The play: the conversation with its kills, then the counting.

use std::collections::HashSet;
use std::time::Duration;

use choir_messages::id::{AgentId, MessageId, OutboundId};
use choir_scripted_model::{Fault, FaultRule, When};
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::control::views::{AgentView, SaidView, SentView};
use crate::control::{ControlError, ErrorCode, Op};

use super::check::{Findings, Received, Sent, check};
use super::conversation::{OPEN_STEP, TURNS, Turn, Victim};
use super::evidence::{Standing, Tables};
use super::house::{House, agent};
use super::talk::{Listening, ask, ask_once};
use super::words::Words;
use super::{AGENT, limits, processes};

/// The arbiter's place in the agent's tree.
const ARBITER: &str = "choir-agent/session/arbiter";

/// What came of the play.
pub(super) struct Verdict {
    /// What answered.
    pub(super) model: String,
    /// What was killed, and the milliseconds from each kill to the first sign of recovery.
    pub(super) kills: Vec<(Victim, u64)>,
    /// What was counted.
    pub(super) findings: Findings,
    /// Why the play broke off, if it did.
    pub(super) broke_off: Option<String>,
}

impl Verdict {
    /// Whether the whole conversation was played and everything is as promised.
    pub(super) fn holds(&self) -> bool {
        self.broke_off.is_none() && self.findings.holds()
    }
}

/// Plays the conversation and counts.
pub(super) async fn play(house: &mut House, words: Words) -> Result<Verdict, ControlError> {
    let agent = agent()?;
    let tables = Tables::open(&house.database)?;
    let listening = Listening::start(house.socket(), agent.clone());
    let mut stage = Stage {
        house,
        words,
        agent,
        tables,
        listening,
        shown: HashSet::new(),
        sent: Vec::new(),
        received: Vec::new(),
        kills: Vec::new(),
    };
    let mut broke_off = None;
    for turn in &TURNS {
        if let Err(error) = stage.turn(turn).await {
            words.say(&format!("the play breaks off at {}: {}", turn.tag, error.what));
            broke_off = Some(format!("{}: {}", turn.tag, error.what));
            break;
        }
    }
    words.say("counting: the model's journal, the workspace, the tables, the chat");
    stage.settle().await?;
    let Stage { house, tables, sent, received, kills, .. } = stage;
    let journal = house.model.as_ref().map(choir_scripted_model::Handle::journal);
    let evidence = tables.gather(sent, received, house.folder.workspace(), journal.as_deref()).await;
    tables.close().await;
    Ok(Verdict { model: house.model_name.clone(), kills, findings: check(&evidence?), broke_off })
}

struct Stage<'a> {
    house: &'a mut House,
    words: Words,
    agent: AgentId,
    tables: Tables,
    listening: Listening,
    shown: HashSet<OutboundId>,
    sent: Vec<Sent>,
    received: Vec<Received>,
    kills: Vec<(Victim, u64)>,
}

fn late(what: impl Into<String>) -> ControlError {
    ControlError::new(ErrorCode::Runtime, what)
}

impl Stage<'_> {
    async fn turn(&mut self, turn: &Turn) -> Result<(), ControlError> {
        let message = MessageId::fresh();
        self.words.line("user", turn.text);
        if let (Some(model), Some(_)) = (&self.house.model, turn.victim) {
            let at = When::Message { contains: format!("[{}]", turn.tag), step: Some(OPEN_STEP) };
            model.add_fault(FaultRule::once(at, Fault::Hold));
        }
        self.sent.push(Sent { message, tag: turn.tag, text: turn.text.to_owned(), forgotten: false });
        self.send(message, turn.text).await?;
        if let Some(victim) = turn.victim {
            self.moment(turn, message).await?;
            let after = self.kill(victim, turn, message).await?;
            let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            self.words.say(&format!("   the turn goes on where it was, {millis} ms after the kill"));
            self.kills.push((victim, millis));
        }
        self.answer(message).await
    }

    async fn send(&self, message: MessageId, text: &str) -> Result<SentView, ControlError> {
        let op = Op::Send { agent: self.agent.clone(), message, text: text.to_owned() };
        ask(&self.house.socket(), &op).await
    }

    /// Waits until a tool call of the turn is committed and, where the model is scripted, a model call is held open.
    async fn moment(&self, turn: &Turn, message: MessageId) -> Result<(), ControlError> {
        if let Some(model) = &self.house.model {
            model.until_held(limits::MOMENT_WITHIN).await.map_err(|e| late(e.to_string()))?;
        }
        let within = if self.house.model.is_some() { limits::MOMENT_WITHIN } else { limits::REAL_ANSWER };
        let standing = self.until(message, within, |s| s.committed > 0 || s.closed).await?;
        let calls = standing.committed;
        if self.house.model.is_some() {
            self.words.say(&format!("   {}: tool calls committed: {calls}; a model call open", turn.tag));
        } else {
            let spread =
                u64::try_from(MessageId::fresh().bits() % u128::from(limits::KILL_SPREAD_MS)).unwrap_or(0);
            sleep(Duration::from_millis(spread)).await;
            self.words.say(&format!("   {}: tool calls committed: {calls}", turn.tag));
        }
        Ok(())
    }

    /// Looks at the tables until they show what is waited for.
    async fn until(
        &self,
        message: MessageId,
        within: Duration,
        seen: impl Fn(Standing) -> bool,
    ) -> Result<Standing, ControlError> {
        let until = Instant::now() + within;
        loop {
            let standing = self.tables.standing(message).await?;
            if seen(standing) {
                return Ok(standing);
            }
            if Instant::now() >= until {
                return Err(late(format!(
                    "the tables did not show it within {} s: {standing:?}",
                    within.as_secs()
                )));
            }
            sleep(limits::LOOK_EVERY).await;
        }
    }

    /// Kills, and returns the time from the kill to the first sign that the turn goes on: the model is asked again, or,
    /// where no journal of the model is kept, the log says that the turn was taken up again.
    async fn kill(
        &mut self,
        victim: Victim,
        turn: &Turn,
        message: MessageId,
    ) -> Result<Duration, ControlError> {
        let before = self.tables.standing(message).await?;
        let asked_again = self.house.model.as_ref().map(|model| {
            let journal = model.journal();
            let (before, text) = (journal.requests(), turn.text);
            tokio::spawn(async move {
                let again = journal.until(limits::RECOVERED_WITHIN, |entries| {
                    entries
                        .iter()
                        .rev()
                        .find(|e| e.number > before && e.message == text)
                        .map(|_| Instant::now())
                });
                again.await.map_err(|e| late(e.to_string()))
            })
        });
        let killed = match victim {
            Victim::Agent => self.kill_agent().await?,
            Victim::Arbiter => {
                let path = format!("{AGENT}/{ARBITER}");
                self.words.say(&format!("   killing the actor {path}"));
                let killed = Instant::now();
                let _: Value = ask_once(&self.house.socket(), Op::ActorKill { path }).await?;
                killed
            }
            Victim::Choird => self.kill_choird(message, turn).await?,
        };
        let again = match asked_again {
            Some(task) => task.await.map_err(|e| late(e.to_string()))??,
            // A real model may have been faster than the kill: then the agent's return is all there is to see.
            None if before.closed => self.until_up().await?,
            None => {
                self.until(message, limits::RECOVERED_WITHIN, |s| s.resumed > before.resumed || s.closed)
                    .await?;
                Instant::now()
            }
        };
        Ok(again.saturating_duration_since(killed))
    }

    async fn until_up(&self) -> Result<Instant, ControlError> {
        let until = Instant::now() + limits::RECOVERED_WITHIN;
        let op = Op::AgentStatus { agent: self.agent.clone() };
        while Instant::now() < until {
            // The pid of one that was just killed is known a moment longer than it lives.
            let view: AgentView = ask(&self.house.socket(), &op).await?;
            let lives = processes::descendants().iter().any(|process| Some(process.pid) == view.agent_pid);
            if view.state == "up" && lives {
                return Ok(Instant::now());
            }
            sleep(limits::LOOK_EVERY).await;
        }
        Err(late("the agent did not come back"))
    }

    async fn kill_agent(&self) -> Result<Instant, ControlError> {
        let view: AgentView =
            ask(&self.house.socket(), &Op::AgentStatus { agent: self.agent.clone() }).await?;
        let pid = view.agent_pid.ok_or_else(|| late("choird does not know the agent's process"))?;
        let found = processes::descendants().into_iter().find(|process| process.pid == pid);
        let name = found.map(|process| process.name).unwrap_or_default();
        if name != "choir-agent" {
            return Err(late(format!("process {pid} is no choir-agent below this demo (\"{name}\")")));
        }
        self.words.say(&format!("   kill -9 {pid} (choir-agent)"));
        processes::send(pid, Signal::KILL);
        Ok(Instant::now())
    }

    async fn kill_choird(&mut self, message: MessageId, turn: &Turn) -> Result<Instant, ControlError> {
        self.words.say("   kill -9 choird, and starting it again");
        let killed = Instant::now();
        self.house.choird.kill().await?;
        self.house.choird.start(&self.words).await?;
        // Nobody told the client what became of its message: it sends it again under the same id.
        let again = self.send(message, turn.text).await?;
        if again.repeat {
            self.words.say("   the client sends its message again, unsure; choird knows it already");
        } else if let Some(sent) = self.sent.iter_mut().find(|sent| sent.message == message) {
            sent.forgotten = true;
        }
        Ok(killed)
    }

    /// Waits for the answer to a message.
    async fn answer(&mut self, message: MessageId) -> Result<(), ControlError> {
        let within = if self.house.model.is_some() { limits::SCRIPTED_ANSWER } else { limits::REAL_ANSWER };
        let until = Instant::now() + within;
        loop {
            let said = timeout_at(until, self.listening.next()).await;
            let said = said.map_err(|_| late(format!("no answer within {} s", within.as_secs())))?;
            let said = said.ok_or_else(|| late("nothing more can be heard"))?;
            let done = said.kind == "answer" && said.message == message;
            self.hear(said);
            if done {
                return Ok(());
            }
        }
    }

    fn hear(&mut self, said: SaidView) {
        let answer = said.kind == "answer";
        if self.shown.insert(said.outbound) {
            self.words.line(if answer { AGENT } else { "note" }, &said.text);
        }
        let SaidView { outbound, message, text, repeat, .. } = said;
        self.received.push(Received { outbound, message, answer, text, repeat });
    }

    /// Hears out what is still under way, so that something that comes twice is heard twice.
    async fn settle(&mut self) -> Result<(), ControlError> {
        let until = Instant::now() + limits::LEFT_WITHIN;
        while Instant::now() < until {
            while let Ok(Some(said)) = timeout(limits::LOOK_EVERY, self.listening.next()).await {
                self.hear(said);
            }
            if self.tables.under_way(&self.sent).await? == 0 {
                break;
            }
        }
        Ok(())
    }
}
