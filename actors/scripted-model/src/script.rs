//! Scripts as data: rules that recognise a user's message, and the steps that answer it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::faults::{FaultRule, SeededFaults};
use crate::limits::BRANCH_DEPTH;

/// What the model does.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// Rules, the first that recognises a message answers it.
    pub rules: Vec<Rule>,
    /// What is said to messages that no rule recognises.
    pub otherwise: Otherwise,
    /// Milliseconds of "thinking" before each answer.
    pub thinking_ms: u64,
    /// Faults from the beginning; more can be added while it runs.
    pub faults: Vec<FaultRule>,
    /// Faults drawn from a seed.
    pub seeded: Option<SeededFaults>,
}

/// One kind of message and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which messages.
    pub when: Match,
    /// What the model says, one step for each time it is asked within the turn.
    pub steps: Vec<Step>,
}

/// Recognises a user's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// It contains this tag in brackets, such as `[turn-1]`.
    Tag(String),
    /// It contains this text.
    Contains(String),
    /// It is this text.
    Equals(String),
    /// Any message.
    Any,
}

impl Match {
    /// Whether it recognises a message.
    #[must_use]
    pub fn recognises(&self, message: &str) -> bool {
        match self {
            Self::Tag(tag) => message.contains(&format!("[{tag}]")),
            Self::Contains(part) => message.contains(part),
            Self::Equals(whole) => message == whole,
            Self::Any => true,
        }
    }
}

/// What is said to messages that no rule recognises.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Otherwise {
    /// A small chat: `read`, `write`, `append`, `search`, `run`, `help`; anything else gets a plain sentence.
    #[default]
    Chat,
    /// This text.
    Text(String),
}

/// One answer of the model. Without calls it is the last of its turn.
///
/// Texts and arguments may hold placeholders: `{{user}}` is the user's message, `{{last:/output/content}}` a field of
/// the latest tool result (a JSON pointer; empty for the whole), `{{result:0:/output/content}}` of the turn's first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    /// Its text.
    pub text: Option<String>,
    /// The tool calls it proposes.
    pub calls: Vec<Call>,
    /// Steps to insert before the next one if the outcome of one of the calls is unknown: look, instead of repeating.
    pub on_outcome_unknown: Vec<Step>,
    /// Steps to insert before the next one under other conditions; the first that holds counts.
    pub branches: Vec<Branch>,
}

/// Steps that are taken under a condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// The condition on the step's results.
    pub when: Condition,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A condition on the results of one step's calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// One of them has this `status`.
    StatusIs(String),
    /// One of them contains this text (after placeholders).
    ResultContains(String),
    /// None of them contains this text.
    ResultLacks(String),
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Canonical name, such as `choir.fs.read`; sent under the name by which the request offers it.
    pub tool: String,
    /// The arguments. A string that is one placeholder and nothing else becomes the value it stands for.
    pub arguments: Value,
}

/// Why a script cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// Not a script.
    #[error("the script is not valid: {0}")]
    Json(#[from] serde_json::Error),
    /// A rule that never answers.
    #[error("rule {rule} of the script has no steps; give it at least one with a text")]
    NoSteps {
        /// Its place, from 0.
        rule: usize,
    },
    /// Branches in branches without end.
    #[error("rule {rule} of the script nests branches deeper than {BRANCH_DEPTH}")]
    TooDeep {
        /// Its place, from 0.
        rule: usize,
    },
}

impl Script {
    /// A script that only chats, for a demo without a key.
    #[must_use]
    pub fn interactive() -> Self {
        Self::default()
    }

    /// Reads a script from JSON and checks it.
    pub fn from_json(text: &str) -> Result<Self, ScriptError> {
        let script: Self = serde_json::from_str(text)?;
        script.check()?;
        Ok(script)
    }

    /// Checks that every rule can answer.
    pub fn check(&self) -> Result<(), ScriptError> {
        for (rule, Rule { steps, .. }) in self.rules.iter().enumerate() {
            if steps.is_empty() {
                return Err(ScriptError::NoSteps { rule });
            }
            if depth(steps) > BRANCH_DEPTH {
                return Err(ScriptError::TooDeep { rule });
            }
        }
        Ok(())
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, when: Match, steps: impl IntoIterator<Item = Step>) -> Self {
        self.rules.push(Rule { when, steps: steps.into_iter().collect() });
        self
    }

    /// Adds a fault.
    #[must_use]
    pub fn fault(mut self, fault: FaultRule) -> Self {
        self.faults.push(fault);
        self
    }
}

fn depth(steps: &[Step]) -> usize {
    let within = |step: &Step| {
        let branches = step.branches.iter().map(|branch| depth(&branch.steps));
        branches.chain([depth(&step.on_outcome_unknown)]).max().unwrap_or(0)
    };
    steps.iter().map(|step| 1 + within(step)).max().unwrap_or(0)
}

impl Step {
    /// A last answer.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// One call.
    #[must_use]
    pub fn call(tool: impl Into<String>, arguments: Value) -> Self {
        Self { calls: vec![Call { tool: tool.into(), arguments }], ..Self::default() }
    }

    /// Several calls at once.
    #[must_use]
    pub fn calls(calls: impl IntoIterator<Item = (&'static str, Value)>) -> Self {
        let calls = calls.into_iter().map(|(tool, arguments)| Call { tool: tool.to_owned(), arguments });
        Self { calls: calls.collect(), ..Self::default() }
    }

    /// With steps for an unknown outcome.
    #[must_use]
    pub fn on_outcome_unknown(mut self, steps: impl IntoIterator<Item = Self>) -> Self {
        self.on_outcome_unknown = steps.into_iter().collect();
        self
    }

    /// With steps under a condition.
    #[must_use]
    pub fn branch(mut self, when: Condition, steps: impl IntoIterator<Item = Self>) -> Self {
        self.branches.push(Branch { when, steps: steps.into_iter().collect() });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_reads_back_what_it_writes() {
        let script = Script::interactive().rule(
            Match::Tag("t1".into()),
            [
                Step::call("choir.fs.write", serde_json::json!({ "path": "a" }))
                    .on_outcome_unknown([Step::call("choir.fs.read", serde_json::json!({ "path": "a" }))])
                    .branch(Condition::StatusIs("error".into()), [Step::text("no")]),
                Step::text("done"),
            ],
        );
        let text = serde_json::to_string(&script).unwrap();
        assert_eq!(Script::from_json(&text).unwrap(), script);
    }

    #[test]
    fn a_script_that_cannot_answer_is_refused() {
        let refused = |text| Script::from_json(text).unwrap_err().to_string();
        assert!(refused(r#"{"rules":[{"when":"any","steps":[]}]}"#).contains("no steps"));
        assert!(refused(r#"{"rulez":[]}"#).contains("rulez"));
        let mut step = Step::text("x");
        for _ in 0..BRANCH_DEPTH {
            step = Step::text("x").on_outcome_unknown([step]);
        }
        assert!(matches!(
            Script::interactive().rule(Match::Any, [step]).check(),
            Err(ScriptError::TooDeep { rule: 0 })
        ));
    }

    #[test]
    fn a_tag_is_recognised_whole() {
        let tag = Match::Tag("t1".into());
        assert!(tag.recognises("do it [t1]") && !tag.recognises("do it [t10]") && !tag.recognises("t1"));
    }
}
