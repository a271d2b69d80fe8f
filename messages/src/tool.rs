//! Tools as the control plane sees them: what they lock, what they do to the world, what came of a call
//! (`choir §8`, `choir §9`). The model sees only [`ToolView`].

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

use crate::chain::Digest;
use crate::id::JobName;
use crate::json::Json;

/// Who thinks, calls and holds locks inside an agent (`choir §7.1`, `choir §9.4`). Prints as `edge` or `core:<job>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The lane that talks to the user.
    Edge,
    /// One background job.
    Core(JobName),
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge => f.write_str("edge"),
            Self::Core(job) => write!(f, "core:{job}"),
        }
    }
}

impl FromStr for Lane {
    type Err = crate::id::IdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("core:") {
            Some(job) => job.parse().map(Self::Core),
            None if text == "edge" => Ok(Self::Edge),
            None => Err(crate::id::IdError::NotName(text.chars().take(40).collect())),
        }
    }
}

impl Serialize for Lane {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lane {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Shared or exclusive (`choir §9.1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Shared: any number of readers.
    S,
    /// Exclusive: one writer.
    X,
}

/// What can be locked (`choir §9.2`). Prints as in the seed: `workspace`, `file:<path>`, `choirtmp`, ...
///
/// File paths are relative to the workspace, `/`-separated, normalised (no `.`, `..`, empty or trailing parts); the
/// tool executor makes them so before it asks. A directory's lock covers what lies under it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    /// The whole workspace; dominates every file under it.
    Workspace,
    /// One file or directory of the workspace.
    File(String),
    /// A memory namespace.
    Memory(String),
    /// A repository.
    Repo(String),
    /// The agent's browser tab.
    BrowserTab,
    /// The staging area `.choirtmp`, exempt from the workspace's hierarchy.
    ChoirTmp,
    /// A network service.
    Net(String),
    /// An external provider.
    Ext(String),
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workspace => f.write_str("workspace"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Memory(name) => write!(f, "mem:{name}"),
            Self::Repo(name) => write!(f, "repo:{name}"),
            Self::BrowserTab => f.write_str("browser_tab"),
            Self::ChoirTmp => f.write_str("choirtmp"),
            Self::Net(name) => write!(f, "net:{name}"),
            Self::Ext(name) => write!(f, "ext:{name}"),
        }
    }
}

/// Not a resource key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a resource key: workspace, file:<path>, mem:<name>, repo:<name>, browser_tab, choirtmp, net:<name>, ext:<name>"
)]
pub struct NotAResource;

impl FromStr for ResourceKey {
    type Err = NotAResource;
    fn from_str(text: &str) -> Result<Self, NotAResource> {
        match text {
            "workspace" => return Ok(Self::Workspace),
            "browser_tab" => return Ok(Self::BrowserTab),
            "choirtmp" => return Ok(Self::ChoirTmp),
            _ => {}
        }
        match text.split_once(':') {
            Some((_, "")) | None => Err(NotAResource),
            Some(("file", path)) => Ok(Self::File(path.to_owned())),
            Some(("mem", name)) => Ok(Self::Memory(name.to_owned())),
            Some(("repo", name)) => Ok(Self::Repo(name.to_owned())),
            Some(("net", name)) => Ok(Self::Net(name.to_owned())),
            Some(("ext", name)) => Ok(Self::Ext(name.to_owned())),
            Some(_) => Err(NotAResource),
        }
    }
}

impl Serialize for ResourceKey {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourceKey {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One lock a call needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockSpec {
    /// What.
    pub resource: ResourceKey,
    /// How.
    pub mode: LockMode,
}

/// What a tool does to the world (`choir §8.4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SideEffect {
    /// Looks only.
    Read,
    /// Changes the workspace.
    Write,
    /// Reaches outside the agent.
    External,
}

/// The model's view of a tool: all that is ever sent to a model's endpoint (`choir §8.3`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolView {
    /// Canonical, namespaced name, such as `choir.fs.read`.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the input.
    pub input_schema: Json,
}

/// A tool call as a model proposed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of the call, which must come back with the result.
    pub provider_id: String,
    /// The tool's canonical name, as the model wrote it (it may not exist).
    pub tool: String,
    /// The arguments exactly as the model wrote them; a text, for it may not even be JSON.
    pub arguments: String,
}

/// How a call ended (`choir §8.5`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolStatus {
    /// The tool did what was asked.
    Success,
    /// The tool ran and reports a failure (a non-zero exit, a missing file).
    Error,
    /// The call never ran: unknown tool, invalid input, forbidden here, no budget.
    Refused,
    /// Stopped on request before it ended.
    Cancelled,
    /// It may or may not have taken effect: the process died in between. The model is told to check.
    OutcomeUnknown,
}

/// What is known before a call runs that lets a repeat be recognised after a crash (`choir §13.3`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replay {
    /// Running it again is harmless.
    Idempotent,
    /// It takes a file from one content to another: at `before` it has not run, at `after` it has; anything else is
    /// unknown. `None` stands for "no such file".
    FileChange {
        /// Workspace-relative path.
        path: String,
        /// Digest of the content before.
        before: Option<Digest>,
        /// Digest of the content after.
        after: Option<Digest>,
    },
    /// A repeat cannot be told from a first run: after a crash its outcome is unknown.
    Unrepeatable,
}

/// What a tool call gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// How it ended.
    pub status: ToolStatus,
    /// Structured output for the model, at most [`crate::limits::TOOL_OUTPUT_BYTES`] of JSON.
    pub output: Json,
    /// Bytes of output that were cut, 0 if none; the cut is also said inside `output`.
    pub cut_bytes: u64,
}

impl ToolOutcome {
    /// An outcome that tells the model one sentence: `{"error": sentence}`, with what to do next inside it.
    #[must_use]
    pub fn says(status: ToolStatus, sentence: &str) -> Self {
        Self { status, output: Json(serde_json::json!({ "error": sentence })), cut_bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_and_a_key_read_back_what_they_print() {
        for lane in [Lane::Edge, Lane::Core("refactor-auth".parse().unwrap())] {
            assert_eq!(lane.to_string().parse::<Lane>(), Ok(lane));
        }
        for text in
            ["workspace", "file:src/a:b.rs", "mem:x", "repo:x", "browser_tab", "choirtmp", "net:x", "ext:x"]
        {
            assert_eq!(text.parse::<ResourceKey>().unwrap().to_string(), text);
        }
        for bad in ["", "file:", "disk:x", "file"] {
            assert_eq!(bad.parse::<ResourceKey>(), Err(NotAResource), "{bad}");
        }
    }
}
