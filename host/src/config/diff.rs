//! What changes between two configurations, field by field, and when each change takes effect (`choir §15.5`).

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::id::AgentId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::types::Config;

/// One field that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Where, as a JSON path such as `models.default.temperature`.
    pub path: String,
    /// What it was, defaults included; absent if it was not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// What it becomes; absent if it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
    /// When that takes effect.
    pub effect: Effect,
    /// Whom it concerns, where it waits for something of theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentId>,
}

/// When a change takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// With the reload.
    Now,
    /// With the next start of the agents it names.
    AgentRestart,
    /// When the agents it names are stopped.
    AgentStop,
    /// With the next start of choird.
    ChoirdRestart,
    /// Never in this version, which does not use the section.
    Unused,
}

/// Parts of a configuration that are made from others, so a difference in them is no difference of its own.
const DERIVED: [&str; 1] = ["secret_names"];

/// Sections that are read when choird starts and never again.
const AT_START: [&str; 7] =
    ["version", "postgres", "sandbox", "link", "coordinator", "telemetry", "log_archive_threshold_lines"];

impl Config {
    /// Every field that is different in `new`, in the order of their paths.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let (before, after) = (fields(self), fields(new));
        let paths: BTreeSet<&Vec<String>> = before.keys().chain(after.keys()).collect();
        let different = paths.into_iter().filter(|path| before.get(*path) != after.get(*path));
        different
            .map(|path| {
                let (effect, agents) = self.effect(new, path);
                Change {
                    path: shown(path),
                    from: before.get(path).cloned(),
                    to: after.get(path).cloned(),
                    effect,
                    agents,
                }
            })
            .collect()
    }

    /// Whether going from `self` to `new` needs restarts, and of what, one sentence for each; the rest takes effect at
    /// once.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<String> {
        let mut sentences = BTreeSet::new();
        for change in self.changes(new) {
            let part = change.path.split('.').take(if change.agents.is_empty() { 1 } else { 2 });
            let part = part.collect::<Vec<_>>().join(".");
            match change.effect {
                Effect::Now | Effect::Unused => {}
                Effect::ChoirdRestart => {
                    sentences.insert(format!("{part}: takes effect when choird is restarted"));
                }
                Effect::AgentRestart => {
                    for agent in &change.agents {
                        sentences
                            .insert(format!("{part}: takes effect with `choirctl agent restart {agent}`"));
                    }
                }
                Effect::AgentStop => {
                    for agent in &change.agents {
                        sentences.insert(format!(
                            "{part}: removed; a running one goes on until `choirctl agent stop {agent}`"
                        ));
                    }
                }
            }
        }
        sentences.into_iter().collect()
    }

    fn effect(&self, new: &Self, path: &[String]) -> (Effect, Vec<AgentId>) {
        let part = |n: usize| path.get(n).map_or("", String::as_str);
        match part(0) {
            section if AT_START.contains(&section) => (Effect::ChoirdRestart, Vec::new()),
            "unused_sections" => (Effect::Unused, Vec::new()),
            "agents" => {
                let Ok(agent) = part(1).parse::<AgentId>() else { return (Effect::Now, Vec::new()) };
                match (self.agents.contains_key(&agent), new.agents.contains_key(&agent)) {
                    (true, false) => (Effect::AgentStop, vec![agent]),
                    (true, true) if part(2) != "autostart" => (Effect::AgentRestart, vec![agent]),
                    _ => (Effect::Now, Vec::new()),
                }
            }
            // A workspace is bound when a session begins: whoever has it keeps the old folder until then.
            "workspaces" => {
                let has = |agent: &&AgentId| {
                    self.agents.get(*agent).is_some_and(|agent| agent.workspace == part(1))
                        && new.agents.contains_key(*agent)
                };
                let agents: Vec<AgentId> = self.agents.keys().filter(has).cloned().collect();
                if agents.is_empty() { (Effect::Now, agents) } else { (Effect::AgentRestart, agents) }
            }
            _ => (Effect::Now, Vec::new()),
        }
    }
}

/// All fields by their path. What is inside an array is part of it.
fn fields(config: &Config) -> BTreeMap<Vec<String>, Value> {
    let mut found = BTreeMap::new();
    // A configuration is plain data, which always serialises.
    let mut whole = serde_json::to_value(config).unwrap_or_default();
    if let Some(top) = whole.as_object_mut() {
        top.retain(|name, _| !DERIVED.contains(&name.as_str()));
    }
    gather(&mut Vec::new(), whole, &mut found);
    found
}

fn gather(path: &mut Vec<String>, value: Value, found: &mut BTreeMap<Vec<String>, Value>) {
    match value {
        Value::Object(inner) => {
            for (name, value) in inner {
                path.push(name);
                gather(path, value, found);
                path.pop();
            }
        }
        // What is not set is the same as what is not there.
        Value::Null => {}
        value => {
            found.insert(path.clone(), value);
        }
    }
}

/// A path for people: names that are not plain words are quoted.
fn shown(path: &[String]) -> String {
    let plain = |name: &String| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    let parts: Vec<String> =
        path.iter().map(|name| if plain(name) { name.clone() } else { format!("{name:?}") }).collect();
    parts.join(".")
}
