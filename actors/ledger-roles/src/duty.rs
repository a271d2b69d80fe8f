//! What a role has to do, by the board alone. Each role is three pure functions: what it [`needs`] to do now, what it
//! makes of a model's [answer](hear), and what it does when no answer could be used ([`unusable`]).

use std::sync::Arc;

use choir_ledger::event::Role;
use choir_ledger::trace::RiskClass;
use choir_messages::json::Json;
use choir_messages::model::{ModelAnswer, Turn};
use choir_messages::tool::{SideEffect, ToolOutcome, ToolView};

use crate::board::Board;
use crate::draft::Draft;
use crate::{auditor, critic, executor, planner};

/// A tool as the roles know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolInfo {
    /// The model's view.
    pub view: ToolView,
    /// What it does to the world, which is its risk class.
    pub side_effect: SideEffect,
}

impl ToolInfo {
    /// Its risk class: looking is standard, changing files elevated. What reaches outside is high, and so is a command,
    /// which can do anything.
    #[must_use]
    pub fn class(&self) -> RiskClass {
        match self.side_effect {
            _ if self.view.name == "choir.exec" => RiskClass::High,
            SideEffect::Read => RiskClass::Standard,
            SideEffect::Write => RiskClass::Elevated,
            SideEffect::External => RiskClass::High,
        }
    }
}

/// What a role decides by.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The trace so far.
    pub board: &'a Board,
    /// The time, in milliseconds since 1970.
    pub now: u64,
    /// The tools there are.
    pub tools: &'a [ToolInfo],
    /// Makes the 26 characters of an id that was never used.
    pub fresh: &'a dyn Fn() -> String,
}

impl Scene<'_> {
    /// Whether the task's time is used up.
    #[must_use]
    pub fn time_is_up(&self) -> bool {
        self.board.task.as_ref().is_some_and(|(task, _)| {
            self.now >= self.board.began.saturating_add(task.time_budget().saturating_mul(1000))
        })
    }

    /// Tool calls the task still allows; what is signed counts as made, also if it was blocked.
    #[must_use]
    pub fn tool_calls_left(&self) -> usize {
        let used = self.board.intents.len();
        let failed =
            self.board.executions.iter().filter(|e| e.ended.as_ref().is_some_and(|e| !e.completed)).count();
        if failed >= crate::limits::FAILURES as usize {
            return 0;
        }
        let limit = self.board.task.as_ref().map_or(0, |(task, _)| task.tool_calls());
        usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(used)
    }

    /// A tool by its name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&ToolInfo> {
        self.tools.iter().find(|tool| tool.view.name == name)
    }
}

/// One thing to do. The same thing has the same key in every life of a role, so that it is done once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Planner: propose.
    Plan,
    /// Planner: revise the proposal that was rejected or blocked.
    Revise(String),
    /// Planner: propose another way, since the tools of this one failed.
    Fallback(String),
    /// Critic: review a proposal.
    ReviewProposal(String),
    /// Critic: review an intent.
    ReviewIntent(String),
    /// Critic: say again that a proposal is approved, since another review came after.
    Reaffirm(String, usize),
    /// Critic: review the claims issued so far.
    ReviewClaims(usize),
    /// Executor: decide on the next step under a proposal.
    Act(String, usize),
    /// Executor: start the tool of an intent.
    Start(String),
    /// Executor: run it.
    Run(String),
    /// Executor: answer a challenge; the number counts what happened since.
    Settle(String, usize),
    /// Executor: sign the final statement.
    Conclude,
    /// Auditor: begin the verification.
    BeginAudit,
    /// Auditor: verify and record.
    Audit,
    /// Whoever sees it first: nothing can be done any more.
    GiveUp,
}

/// A question to a role's model: its words, and the one or more tools it is to answer by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The conversation so far, the role's instructions first.
    pub turns: Vec<Turn>,
    /// What it may answer by.
    pub tools: Arc<[ToolView]>,
}

/// How a need is met.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// By these events.
    Say(Vec<Draft>),
    /// By asking the model.
    Ask(Question),
    /// By running a tool.
    Run {
        /// `exec_` and the invocation's id.
        execution: String,
        /// The tool.
        tool: String,
        /// Its input, a JSON text.
        input: Arc<str>,
        /// The agent session that was to run it, and its revision before.
        place: Option<(String, u64)>,
    },
    /// By starting an execution: the place is found first, then this is said with it.
    Start {
        /// The intent's event.
        intent: String,
    },
    /// By the verifier.
    Verify,
    /// Not at all: the run ends. `refused` says that the critic's policy is why.
    Fail {
        /// Why, for a person.
        reason: String,
        /// Whether a rule of policy, and no fault, is why.
        refused: bool,
    },
}

/// What a role needs to do now, all of it: things that do not depend on each other run side by side.
#[must_use]
pub fn needs(role: Role, scene: &Scene<'_>) -> Vec<(Key, Work)> {
    if scene.board.task.is_none() || scene.board.verified.is_some() {
        return Vec::new();
    }
    match role {
        Role::Planner => planner::needs(scene),
        Role::Critic => critic::needs(scene),
        Role::Executor => executor::needs(scene),
        Role::Auditor => auditor::needs(scene),
    }
}

/// What a model's answer becomes. An error is told to the model, which is then asked again.
pub fn hear(role: Role, scene: &Scene<'_>, key: &Key, answer: &ModelAnswer) -> Result<Vec<Draft>, String> {
    match role {
        Role::Planner => planner::hear(scene, key, answer),
        Role::Critic => critic::hear(scene, key, answer),
        Role::Executor => executor::hear(scene, key, answer),
        Role::Auditor => Err("the auditor is not asked for events".to_owned()),
    }
}

/// What is done when the model gave no answer that could be used.
#[must_use]
pub fn unusable(role: Role, scene: &Scene<'_>, key: &Key, why: &str) -> Work {
    match role {
        Role::Planner => planner::unusable(why),
        Role::Critic => critic::unusable(scene, key, why),
        Role::Executor => executor::unusable(scene, key, why),
        Role::Auditor => Work::Verify,
    }
}

/// What a tool's outcome becomes.
#[must_use]
pub fn ran(scene: &Scene<'_>, execution: &str, outcome: &ToolOutcome) -> Vec<Draft> {
    executor::ran(scene, execution, outcome)
}

/// A tool that exists only as a form for answers.
#[must_use]
pub fn form(name: &str, description: &str, schema: serde_json::Value) -> ToolView {
    ToolView { name: name.to_owned(), description: description.to_owned(), input_schema: Json(schema) }
}
