//! What a run is asked to do: a task file, or one sentence.

use choir_ledger::trace::{Policy, PolicyProfile, Sensitivity};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits;

/// Why a task cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// Not JSON, or a field is missing or of the wrong kind.
    #[error("the task cannot be read: {0}")]
    Form(String),
    /// A field breaks its rule.
    #[error("the task's \"{field}\" {rule}")]
    Field {
        /// Which.
        field: &'static str,
        /// What is asked of it.
        rule: String,
    },
}

fn field(field: &'static str, rule: impl Into<String>) -> TaskError {
    TaskError::Field { field, rule: rule.into() }
}

/// How a report's disputes are read; the names are the format's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// An open dispute fails the report.
    Strict,
    /// An open dispute is a warning.
    #[default]
    Default,
    /// As default.
    Lenient,
}

impl Profile {
    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Default => "default",
            Self::Lenient => "lenient",
        }
    }
}

/// Reads a sensitivity level. What is not known is taken for the most careful.
#[must_use]
pub fn sensitivity(text: &str) -> Sensitivity {
    match text.trim().to_ascii_lowercase().as_str() {
        "low" | "public" => Sensitivity::Public,
        "" | "standard" | "normal" | "medium" | "default" | "internal" | "moderate" => Sensitivity::Internal,
        "high" | "confidential" | "sensitive" => Sensitivity::Confidential,
        _ => Sensitivity::Restricted,
    }
}

/// The roles' names, in the order in which they speak first.
pub const ROLES: [&str; 4] = ["planner", "critic", "executor", "auditor"];

/// A task. Fields of others are not kept: what is signed is what was understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The task's name: `[a-z0-9._-]+`.
    pub task_id: String,
    /// What is to be done.
    pub objective: String,
    /// What it works from: names or paths, told to the roles as they are.
    #[serde(default)]
    pub input_artifacts: Vec<String>,
    /// What must hold: told to the roles, and to the critic above all.
    #[serde(default)]
    pub constraints: Vec<String>,
    /// How the report is read.
    #[serde(default)]
    pub policy_profile: Profile,
    /// The roles asked for; all four take part whatever it says, at least three must be named.
    #[serde(default = "all_roles")]
    pub requested_roles: Vec<String>,
    /// Seconds the run may take, from its first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_budget_seconds: Option<u64>,
    /// Tool calls it may make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    /// See [`Sensitivity`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sensitivity_level: Option<String>,
    /// Whatever the asker files it under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

fn all_roles() -> Vec<String> {
    ROLES.iter().map(|role| (*role).to_owned()).collect()
}

impl Task {
    /// Reads a task file's text.
    pub fn read(text: &str) -> Result<Self, TaskError> {
        if text.len() as u64 > limits::TASK_BYTES {
            return Err(TaskError::Form(format!("it is larger than {} bytes", limits::TASK_BYTES)));
        }
        let value: Value = serde_json::from_str(text).map_err(|error| TaskError::Form(error.to_string()))?;
        for name in ["input_artifacts", "constraints", "policy_profile", "requested_roles"] {
            if value.get(name).is_none() {
                return Err(TaskError::Form(format!("the field \"{name}\" is missing")));
            }
        }
        let task: Self = serde_json::from_value(value).map_err(|error| TaskError::Form(error.to_string()))?;
        task.check()?;
        Ok(task)
    }

    /// The task of one sentence; `id` names it.
    pub fn of_sentence(sentence: &str, id: &str) -> Result<Self, TaskError> {
        let task = Self {
            task_id: id.to_owned(),
            objective: sentence.trim().to_owned(),
            input_artifacts: Vec::new(),
            constraints: Vec::new(),
            policy_profile: Profile::Default,
            requested_roles: all_roles(),
            time_budget_seconds: None,
            max_tool_calls: None,
            sensitivity_level: None,
            tags: None,
        };
        task.check()?;
        Ok(task)
    }

    /// Whether every field keeps its rule.
    pub fn check(&self) -> Result<(), TaskError> {
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
        if self.task_id.is_empty() || self.task_id.len() > 128 || !self.task_id.chars().all(named) {
            return Err(field("task_id", "is 1 to 128 of a-z, 0-9, '.', '_' and '-'"));
        }
        if self.objective.trim().is_empty() {
            return Err(field("objective", "is empty; say what is to be done"));
        }
        if self.objective.len() > limits::OBJECTIVE_BYTES {
            return Err(field("objective", format!("is longer than {} bytes", limits::OBJECTIVE_BYTES)));
        }
        let tags = self.tags.as_deref().unwrap_or_default();
        for (name, list) in
            [("input_artifacts", &*self.input_artifacts), ("constraints", &*self.constraints), ("tags", tags)]
        {
            if list.len() > limits::TASK_LIST || list.iter().any(|t| t.len() > limits::TASK_TEXT_BYTES) {
                let (most, bytes) = (limits::TASK_LIST, limits::TASK_TEXT_BYTES);
                return Err(field(name, format!("has at most {most} texts of at most {bytes} bytes")));
            }
        }
        if let Some(unknown) = self.requested_roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
            let unknown: String = unknown.chars().take(40).collect();
            return Err(field(
                "requested_roles",
                format!("names {unknown:?}; there are {}", ROLES.join(", ")),
            ));
        }
        let mut roles = self.requested_roles.clone();
        roles.sort();
        roles.dedup();
        if roles.len() < 3 {
            return Err(field("requested_roles", "names at least three of the four roles"));
        }
        if self.time_budget_seconds.is_some_and(|s| s == 0 || s > limits::TIME_BUDGET_MAX) {
            return Err(field("time_budget_seconds", format!("is from 1 to {}", limits::TIME_BUDGET_MAX)));
        }
        if self.max_tool_calls.is_some_and(|n| n == 0 || n > limits::TOOL_CALLS_MAX) {
            return Err(field("max_tool_calls", format!("is from 1 to {}", limits::TOOL_CALLS_MAX)));
        }
        Ok(())
    }

    /// Seconds the run may take.
    #[must_use]
    pub fn time_budget(&self) -> u64 {
        self.time_budget_seconds.unwrap_or(limits::TIME_BUDGET_DEFAULT)
    }

    /// Tool calls it may make.
    #[must_use]
    pub fn tool_calls(&self) -> u32 {
        self.max_tool_calls.unwrap_or(limits::TOOL_CALLS_DEFAULT)
    }

    /// How careful the critic is to be.
    #[must_use]
    pub fn sensitivity(&self) -> Sensitivity {
        self.sensitivity_level.as_deref().map_or(Sensitivity::Internal, sensitivity)
    }

    /// The rules its trace is kept by.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let profile = match self.policy_profile {
            Profile::Strict => PolicyProfile::Strict,
            Profile::Default => PolicyProfile::Default,
            Profile::Lenient => PolicyProfile::Lenient,
        };
        Policy {
            time_budget_ms: Some(self.time_budget().saturating_mul(1000)),
            tool_calls: Some(self.tool_calls()),
            failures: Some(limits::FAILURES),
            proposals: Some(limits::PROPOSALS),
            challenges: Some(limits::CHALLENGES),
            fallback: profile != PolicyProfile::Strict,
            ..Policy::of(profile, self.sensitivity())
        }
    }

    /// The payload of the session's first event, which holds all a restarted run needs to know of its task.
    #[must_use]
    pub fn payload(&self, agent: &str) -> Value {
        let mut payload = match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        payload.insert("agent".into(), json!(agent));
        // It is numbers, flags and words: it reads back.
        payload.insert(
            "policy".into(),
            serde_json::from_str(&self.policy().to_value().to_json()).unwrap_or_default(),
        );
        Value::Object(payload)
    }

    /// Reads it back; the task, and the agent whose tools are used.
    pub fn of_payload(payload: &Value) -> Result<(Self, String), TaskError> {
        let agent = payload.get("agent").and_then(Value::as_str).unwrap_or_default().to_owned();
        let task: Self =
            serde_json::from_value(payload.clone()).map_err(|error| TaskError::Form(error.to_string()))?;
        Ok((task, agent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"{"task_id":"t.1","objective":"Produce a signed run.","input_artifacts":[],
        "constraints":["local-only"],"policy_profile":"strict","requested_roles":["planner","executor","critic"],
        "time_budget_seconds":60,"max_tool_calls":3,"sensitivity_level":"high","tags":["x"],"more":{"of":1}}"#;

    #[test]
    fn a_task_file_of_the_format_is_read_and_unknown_fields_are_left() {
        let task = Task::read(FILE).unwrap();
        assert_eq!(
            (task.time_budget(), task.tool_calls(), task.sensitivity()),
            (60, 3, Sensitivity::Confidential)
        );
        assert_eq!(task.policy_profile, Profile::Strict);
        let (again, agent) = Task::of_payload(&task.payload("assistant")).unwrap();
        assert_eq!((again, agent.as_str()), (task, "assistant"));
    }

    #[test]
    fn each_broken_field_is_named() {
        let broken = |name: &str, value: Value| {
            let mut file: Value = serde_json::from_str(FILE).unwrap();
            file[name] = value;
            Task::read(&file.to_string()).unwrap_err().to_string()
        };
        for (name, value) in [
            ("task_id", json!("A b")),
            ("task_id", json!("")),
            ("objective", json!(" ")),
            ("requested_roles", json!(["planner", "critic"])),
            ("requested_roles", json!(["planner", "planner", "planner"])),
            ("requested_roles", json!(["planner", "critic", "king"])),
            ("time_budget_seconds", json!(0)),
            ("max_tool_calls", json!(100_000)),
            ("constraints", json!(vec!["x"; 65])),
        ] {
            assert!(broken(name, value).contains(name), "{name}");
        }
        assert!(broken("policy_profile", json!("fierce")).contains("strict"));
        for missing in ["task_id", "objective", "input_artifacts", "constraints", "policy_profile"] {
            let mut file: Value = serde_json::from_str(FILE).unwrap();
            file.as_object_mut().unwrap().remove(missing);
            assert!(Task::read(&file.to_string()).unwrap_err().to_string().contains(missing));
        }
    }

    #[test]
    fn an_unknown_sensitivity_is_taken_for_the_most_careful() {
        for (text, level) in [
            ("low", Sensitivity::Public),
            ("Medium", Sensitivity::Internal),
            ("confidential", Sensitivity::Confidential),
            ("cosmic", Sensitivity::Restricted),
        ] {
            assert_eq!(sensitivity(text), level);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in ".{0,200}") {
            let _ = Task::read(&text);
            let _ = Task::of_sentence(&text, "t");
        }
    }
}
