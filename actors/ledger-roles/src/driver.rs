//! Carries a role's needs out, without I/O: which questions are under way, what was drafted and not appended yet, how
//! often a bad answer was asked again. Everything in here may be lost at any moment: the board says what is still needed,
//! and a new driver begins it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use choir_ledger::event::Role;
use choir_messages::model::{ModelAnswer, Turn};
use choir_messages::tool::ToolOutcome;

use crate::answer::cut;
use crate::auditor;
use crate::board::Board;
use crate::draft::Draft;
use crate::duty::{self, Key, Question, Scene, ToolInfo, Work};
use crate::limits::{BAD_ANSWERS, MODEL_PAUSE, MODEL_TRIES, SCRIBE_PAUSE};

/// Bytes of a bad answer that are shown to the model again.
const BAD_ANSWER_BYTES: usize = 4096;

/// What the driver is told.
#[derive(Debug)]
pub enum Input {
    /// The board may have changed, or time may have passed.
    Look,
    /// The model answered.
    Answered(Key, Result<ModelAnswer, String>),
    /// A pause after a failed model call is over.
    Paused(Key),
    /// The place of a call to be started was found, or why there is none.
    Placed(Key, Result<(String, u64), String>),
    /// A tool ended.
    Ran(Key, ToolOutcome),
    /// The verifier ended: its verdict, the report's id, the report as JSON and as text; or why there is none.
    Verified(Key, Result<Report, String>),
    /// What became of a submission.
    Submitted(Key, Result<(), NotAppended>),
}

/// A verification report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The verdict's name.
    pub status: String,
    /// The report's id.
    pub id: String,
    /// The report.
    pub json: String,
    /// The same for a person.
    pub text: String,
}

/// Why drafts were not appended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAppended {
    /// The trace has moved on: look again.
    #[error("the trace has moved on")]
    Behind,
    /// The trace's rules refuse it.
    #[error("{0}")]
    Refused(String),
    /// Nobody appends now.
    #[error("the scribe is not there: {0}")]
    Unavailable(String),
}

/// What is to be done in the world.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Ask the model.
    Ask(Key, Question),
    /// Tell [`Input::Paused`] after this time.
    Pause(Key, Duration),
    /// Find the place of a call about to be started.
    Place(Key),
    /// Run a tool.
    Run {
        /// For which need.
        key: Key,
        /// `exec_` and the invocation's id.
        execution: String,
        /// The tool.
        tool: String,
        /// Its input.
        input: Arc<str>,
        /// The agent session that was to run it, and its revision before.
        place: Option<(String, u64)>,
    },
    /// Verify the trace.
    Verify(Key),
    /// Keep a report beside the trace.
    Keep(Report),
    /// Append these, if the trace has this many events.
    Submit {
        /// For which need.
        key: Key,
        /// What.
        drafts: Vec<Draft>,
        /// The events seen.
        seen: usize,
    },
    /// Stop whatever is under way for a need that is gone.
    Drop(Key),
    /// The run ends without success.
    Fail {
        /// Why.
        reason: String,
        /// Whether policy is why.
        refused: bool,
    },
}

#[derive(Debug)]
struct Doing {
    /// The conversation with the model, as far as it has come.
    question: Option<Question>,
    asked: u32,
    failures: u32,
    drafts: Option<Vec<Draft>>,
    /// The verifier's report, while its comment is asked for.
    report: Option<Report>,
    submitted: bool,
    /// Nothing more is done for it, though the board still asks.
    settled: bool,
}

/// One role's work under way.
pub struct Driver {
    role: Role,
    tools: Arc<[ToolInfo]>,
    doing: BTreeMap<Key, Doing>,
}

impl Driver {
    /// A driver that has nothing under way.
    #[must_use]
    pub const fn new(role: Role, tools: Arc<[ToolInfo]>) -> Self {
        Self { role, tools, doing: BTreeMap::new() }
    }

    /// Needs under way, for whoever looks.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.doing.len()
    }

    /// Takes in what happened and says what to do. `now` is in milliseconds since 1970; `fresh` makes ids.
    pub fn step(&mut self, input: Input, board: &Board, now: u64, fresh: &dyn Fn() -> String) -> Vec<Action> {
        let tools = Arc::clone(&self.tools);
        let scene = Scene { board, now, tools: &tools, fresh };
        let mut actions = Vec::new();
        match input {
            Input::Look => {}
            Input::Answered(key, answer) => self.answered(&scene, key, answer, &mut actions),
            Input::Paused(key) => match self.doing.get_mut(&key) {
                // Drafted and not taken: the look below submits it again.
                Some(doing) if doing.drafts.is_some() => doing.submitted = false,
                Some(Doing { question: Some(question), .. }) => {
                    actions.push(Action::Ask(key, question.clone()))
                }
                _ => {}
            },
            Input::Placed(key, place) => self.placed(&scene, key, place, &mut actions),
            Input::Ran(key, outcome) => {
                if let Key::Run(execution) = &key {
                    let drafts = duty::ran(&scene, execution, &outcome);
                    self.say(&scene, key, drafts, &mut actions);
                }
            }
            Input::Verified(key, report) => self.verified(&scene, key, report, &mut actions),
            Input::Submitted(key, result) => self.submitted(&scene, key, result, &mut actions),
        }
        self.look(&scene, &mut actions);
        actions
    }

    /// Begins what is needed and not under way, drops what is not needed any more.
    fn look(&mut self, scene: &Scene<'_>, actions: &mut Vec<Action>) {
        let needs = duty::needs(self.role, scene);
        let needed: BTreeSet<&Key> = needs.iter().map(|(key, _)| key).collect();
        let gone: Vec<Key> = self.doing.keys().filter(|key| !needed.contains(key)).cloned().collect();
        for key in gone {
            self.doing.remove(&key);
            actions.push(Action::Drop(key));
        }
        for (key, work) in needs {
            match self.doing.get_mut(&key) {
                None => {
                    self.doing.insert(key.clone(), Doing::new());
                    self.begin(scene, key, work, actions);
                }
                // Drafted before the trace moved on, and still needed.
                Some(doing) if !doing.submitted && !doing.settled => {
                    if let Some(drafts) = doing.drafts.clone() {
                        doing.submitted = true;
                        actions.push(Action::Submit { key, drafts, seen: scene.board.count });
                    }
                }
                Some(_) => {}
            }
        }
    }

    fn begin(&mut self, scene: &Scene<'_>, key: Key, work: Work, actions: &mut Vec<Action>) {
        match work {
            Work::Say(drafts) => self.say(scene, key, drafts, actions),
            Work::Ask(question) => {
                if let Some(doing) = self.doing.get_mut(&key) {
                    doing.question = Some(question.clone());
                    doing.asked = 1;
                }
                actions.push(Action::Ask(key, question));
            }
            Work::Run { execution, tool, input, place } => {
                actions.push(Action::Run { key, execution, tool, input, place });
            }
            Work::Start { .. } => actions.push(Action::Place(key)),
            Work::Verify => actions.push(Action::Verify(key)),
            Work::Fail { reason, refused } => {
                self.settle(&key);
                actions.push(Action::Fail { reason, refused });
            }
        }
    }

    fn settle(&mut self, key: &Key) {
        if let Some(doing) = self.doing.get_mut(key) {
            doing.settled = true;
        }
    }

    fn say(&mut self, scene: &Scene<'_>, key: Key, drafts: Vec<Draft>, actions: &mut Vec<Action>) {
        let Some(doing) = self.doing.get_mut(&key) else { return };
        if drafts.is_empty() {
            doing.settled = true;
            return;
        }
        doing.drafts = Some(drafts.clone());
        doing.submitted = true;
        actions.push(Action::Submit { key, drafts, seen: scene.board.count });
    }

    fn answered(
        &mut self,
        scene: &Scene<'_>,
        key: Key,
        answer: Result<ModelAnswer, String>,
        actions: &mut Vec<Action>,
    ) {
        let Some(doing) = self.doing.get_mut(&key) else { return };
        if let Some(report) = doing.report.clone() {
            // A comment that does not come is no reason to keep the report back.
            let note = answer.ok().as_ref().and_then(auditor::note);
            let drafts = vec![auditor::recorded(&report.status, &report.id, report.json, note)];
            return self.say(scene, key, drafts, actions);
        }
        match answer {
            Err(why) => {
                doing.failures += 1;
                if doing.failures < MODEL_TRIES {
                    actions.push(Action::Pause(key, MODEL_PAUSE));
                } else {
                    self.settle(&key);
                    let reason = format!("the {}'s model cannot be asked: {why}", self.role.as_str());
                    actions.push(Action::Fail { reason, refused: false });
                }
            }
            Ok(answer) => match duty::hear(self.role, scene, &key, &answer) {
                Ok(drafts) => self.say(scene, key, drafts, actions),
                Err(why) => self.ask_again(scene, key, &answer, &why, actions),
            },
        }
    }

    /// Tells the model what is wrong with its answer, a bounded number of times.
    fn ask_again(
        &mut self,
        scene: &Scene<'_>,
        key: Key,
        answer: &ModelAnswer,
        why: &str,
        actions: &mut Vec<Action>,
    ) {
        let Some(doing) = self.doing.get_mut(&key) else { return };
        tracing::info!(role = self.role.as_str(), ?key, why, "an answer cannot be used");
        let Some(question) = doing.question.as_mut().filter(|_| doing.asked < BAD_ANSWERS) else {
            return self.give_up(scene, key, why, actions);
        };
        doing.asked += 1;
        let said = answer.text.clone().unwrap_or_default();
        let calls: Vec<String> = answer.calls.iter().map(|c| format!("{} {}", c.tool, c.arguments)).collect();
        let said = cut(&format!("{said}\n{}", calls.join("\n")), BAD_ANSWER_BYTES);
        question.turns.push(Turn::Assistant { text: Some(said.trim().to_owned()), calls: Vec::new() });
        question.turns.push(Turn::User(format!("That cannot be used: {why}. Answer again.")));
        actions.push(Action::Ask(key, question.clone()));
    }

    fn give_up(&mut self, scene: &Scene<'_>, key: Key, why: &str, actions: &mut Vec<Action>) {
        let work = duty::unusable(self.role, scene, &key, why);
        if let Some(doing) = self.doing.get_mut(&key) {
            // What follows is said without a model; if that is refused too, the run cannot go on.
            doing.question = None;
        }
        self.begin(scene, key, work, actions);
    }

    fn placed(
        &mut self,
        scene: &Scene<'_>,
        key: Key,
        place: Result<(String, u64), String>,
        actions: &mut Vec<Action>,
    ) {
        let Key::Start(intent) = &key else { return };
        match place {
            Ok(place) => {
                let drafts = crate::executor::started(scene, intent, &place).into_iter().collect();
                self.say(scene, key, drafts, actions);
            }
            Err(why) => {
                let Some(doing) = self.doing.get_mut(&key) else { return };
                doing.failures += 1;
                // The next look begins it anew.
                if doing.failures < MODEL_TRIES {
                    actions.push(Action::Place(key));
                } else {
                    self.settle(&key);
                    let reason = format!("the agent that is to run the tools is not there: {why}");
                    actions.push(Action::Fail { reason, refused: false });
                }
            }
        }
    }

    fn verified(
        &mut self,
        scene: &Scene<'_>,
        key: Key,
        report: Result<Report, String>,
        actions: &mut Vec<Action>,
    ) {
        let Some(doing) = self.doing.get_mut(&key) else { return };
        match report {
            Ok(report) => {
                actions.push(Action::Keep(report.clone()));
                let question = auditor::ask_note(scene, &report.text);
                doing.report = Some(report);
                actions.push(Action::Ask(key, question));
            }
            Err(why) => {
                doing.settled = true;
                let reason = format!("the trace could not be verified: {why}");
                actions.push(Action::Fail { reason, refused: false });
            }
        }
    }

    fn submitted(
        &mut self,
        scene: &Scene<'_>,
        key: Key,
        result: Result<(), NotAppended>,
        actions: &mut Vec<Action>,
    ) {
        let Some(doing) = self.doing.get_mut(&key) else { return };
        match result {
            // The board will show it; until then nothing is begun anew.
            Ok(()) => doing.drafts = None,
            Err(NotAppended::Behind) => {
                doing.submitted = false;
                let drafted = doing.drafts.clone();
                // A start names what may have changed meanwhile; it is drafted again.
                if matches!(key, Key::Start(_)) && drafted.is_some() {
                    doing.drafts = None;
                    actions.push(Action::Place(key));
                }
            }
            Err(NotAppended::Unavailable(_)) => actions.push(Action::Pause(key, SCRIBE_PAUSE)),
            Err(NotAppended::Refused(why)) => {
                doing.drafts = None;
                doing.submitted = false;
                if doing.question.is_some() {
                    let nothing = ModelAnswer {
                        text: None,
                        calls: Vec::new(),
                        usage: choir_messages::model::Usage::default(),
                        model: String::new(),
                    };
                    return self.ask_again(scene, key, &nothing, &why, actions);
                }
                doing.settled = true;
                let reason = format!("the trace refuses what the {} has to say: {why}", self.role.as_str());
                actions.push(Action::Fail { reason, refused: false });
            }
        }
    }
}

impl Doing {
    const fn new() -> Self {
        Self {
            question: None,
            asked: 0,
            failures: 0,
            drafts: None,
            report: None,
            submitted: false,
            settled: false,
        }
    }
}
