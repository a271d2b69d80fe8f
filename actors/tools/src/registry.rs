//! The registry: every tool there is, fixed at start (`choir §8.8`). It gives models their view, checks what they
//! propose, and tells the control plane what a call locks and does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde::Serialize;
use serde_json::Value;

use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::json::{self, Json};
use choir_messages::limits::{TOOL_INPUT_BYTES, TOOL_INPUT_MEMORY};
use choir_messages::tool::{Lane, LockSpec, SideEffect, ToolOutcome, ToolView};

use crate::exec::{DEFAULT_PATH, ExecTool, SANDBOX_MARK};
use crate::read::ReadTool;
use crate::search::SearchTool;
use crate::text::quote;
use crate::tool::{RuntimeView, Tool, refused};
use crate::workspace::{Workspace, WorkspaceError};
use crate::write::WriteTool;

/// Why there is no registry. It fails the start (`choir §8.8`).
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Two tools of one name.
    #[error("two tools are called {0}; rename one of them")]
    Duplicate(String),
    /// A tool's schema is no JSON Schema.
    #[error("the input schema of {tool} is not a JSON Schema: {error}")]
    Schema {
        /// The tool.
        tool: String,
        /// Why.
        error: String,
    },
    /// A tool's views have no canonical form.
    #[error("the views of the tools cannot be hashed: {0}")]
    Hash(#[from] canonical::CanonicalError),
}

struct Entry {
    tool: Arc<dyn Tool>,
    validator: Validator,
}

/// Every tool, immutable (`choir §8.8`). Share it in an `Arc`.
pub struct ToolRegistry {
    entries: BTreeMap<String, Entry>,
    hash: Digest,
}

impl std::fmt::Debug for ToolRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolRegistry").field("tools", &self.entries.keys()).field("hash", &self.hash).finish()
    }
}

/// A call that passed every check that needs no lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validated {
    /// The input in its one form; this is what is committed and run.
    pub input: Json,
    /// The locks it needs, all at once (`choir §9.3`).
    pub locks: Vec<LockSpec>,
    /// What it does to the world.
    pub side_effect: SideEffect,
    /// Whether its commit must be durable on the host before it runs (DESIGN §5).
    pub needs_durable: bool,
    /// Its time limit.
    pub timeout: Duration,
}

#[derive(Serialize)]
struct DualView<'a> {
    llm: &'a ToolView,
    runtime: &'a RuntimeView,
}

impl ToolRegistry {
    /// The built-in tools for this workspace. Commands are looked for in the `PATH` of this process and carry the mark
    /// of its sandbox, the two things they inherit.
    pub fn builtin(workspace: &Path) -> Result<Self, RegistryError> {
        let path = std::env::var("PATH").unwrap_or_default();
        let sandbox = std::env::var(SANDBOX_MARK).ok();
        Self::builtin_with(workspace, if path.is_empty() { DEFAULT_PATH } else { &path }, sandbox.as_deref())
    }

    /// As [`ToolRegistry::builtin`], with commands looked for in `path` (separated by colons) and marked with
    /// `sandbox`, if there is one.
    pub fn builtin_with(workspace: &Path, path: &str, sandbox: Option<&str>) -> Result<Self, RegistryError> {
        let workspace = Arc::new(Workspace::open(workspace)?);
        Self::of(vec![
            Arc::new(ReadTool::new(Arc::clone(&workspace))),
            Arc::new(WriteTool::new(Arc::clone(&workspace))),
            Arc::new(SearchTool::new(Arc::clone(&workspace))),
            Arc::new(ExecTool::new(workspace, path, sandbox)),
        ])
    }

    /// A registry of these tools. Compiles every schema once.
    pub fn of(tools: Vec<Arc<dyn Tool>>) -> Result<Self, RegistryError> {
        let mut entries = BTreeMap::new();
        for tool in tools {
            let view = tool.view();
            let name = view.name.clone();
            let validator = jsonschema::draft202012::new(view.input_schema.value())
                .map_err(|e| RegistryError::Schema { tool: name.clone(), error: e.to_string() })?;
            if entries.insert(name.clone(), Entry { tool, validator }).is_some() {
                return Err(RegistryError::Duplicate(name));
            }
        }
        let views: Vec<_> =
            entries.values().map(|e| DualView { llm: e.tool.view(), runtime: e.tool.runtime() }).collect();
        let hash = Digest::of(&canonical::to_vec(&views)?);
        Ok(Self { entries, hash })
    }

    /// What a lane's model sees, sorted by name. Nothing of the runtime's view is in it (`choir §8.3`).
    #[must_use]
    pub fn views(&self, lane: &Lane) -> Vec<ToolView> {
        let tools = self.entries.values().map(|entry| &entry.tool);
        tools.filter(|tool| tool.runtime().exposure.covers(lane)).map(|tool| tool.view().clone()).collect()
    }

    /// The names of all tools, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Digest of both views of all tools, so that drift shows (`choir §15.1`). The same for every workspace.
    #[must_use]
    pub const fn manifest_hash(&self) -> Digest {
        self.hash
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.entries.get(name).map(|entry| Arc::clone(&entry.tool))
    }

    /// Checks a call as a model wrote it. `lane` must see the tool. A failure is the call's outcome: refused, with one
    /// sentence the model can act on. Looks at symbolic links of the workspace and at nothing else outside memory.
    pub fn validate(&self, lane: &Lane, name: &str, arguments: &str) -> Result<Validated, ToolOutcome> {
        let seen = self.entries.get(name).filter(|entry| entry.tool.runtime().exposure.covers(lane));
        let Some(entry) = seen else {
            let known: Vec<_> = self.views(lane).into_iter().map(|view| view.name).collect();
            return Err(refused(format!(
                "there is no tool \"{}\"; there are: {}",
                quote(name),
                known.join(", ")
            )));
        };
        if arguments.len() > TOOL_INPUT_BYTES {
            return Err(refused(format!(
                "{name}: the arguments have {} bytes, more than the {TOOL_INPUT_BYTES} that are taken; do it in parts",
                arguments.len()
            )));
        }
        // Some models leave the arguments empty where they mean none.
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        if json::memory(text.as_bytes()) > TOOL_INPUT_MEMORY {
            return Err(refused(format!("{name}: the arguments have too many values; do it in parts")));
        }
        let mut input: Value = serde_json::from_str(text).map_err(|error| {
            refused(format!("{name}: the arguments are not valid JSON: {error}; send one JSON object"))
        })?;
        tidy(&mut input);
        // The log would round such a number, and after a restart the call would be another.
        canonical::check_exact(&input)
            .map_err(|error| refused(format!("{name}: {error}; use a smaller one")))?;
        if let Err(error) = entry.validator.validate(&input) {
            return Err(refused(format!("{name}: {}", explain(&error, entry.tool.view()))));
        }
        let input = entry.tool.normalise(input)?;
        let side_effect = entry.tool.runtime().side_effect;
        Ok(Validated {
            locks: entry.tool.locks(&input),
            timeout: entry.tool.timeout(&input),
            side_effect,
            needs_durable: side_effect != SideEffect::Read,
            input: Json(input),
        })
    }
}

/// Evens out what models write: an optional field set to null is one left out, and 10.0 is 10.
fn tidy(input: &mut Value) {
    let Some(fields) = input.as_object_mut() else { return };
    fields.retain(|_, value| !value.is_null());
    for value in fields.values_mut() {
        if let Some(float) = value.as_f64()
            && value.is_f64()
            && float.fract() == 0.0
            && float.abs() <= canonical::SAFE_INTEGER as f64
        {
            *value = Value::from(float as i64);
        }
    }
}

/// What is wrong with an input, naming the field.
fn explain(error: &jsonschema::ValidationError<'_>, view: &ToolView) -> String {
    let fields = || {
        let properties = view.input_schema.value().get("properties").and_then(Value::as_object);
        properties.map(|map| map.keys().cloned().collect::<Vec<_>>().join(", ")).unwrap_or_default()
    };
    let field = error.instance_path().to_string();
    let field = field.trim_start_matches('/');
    match error.kind() {
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let names: Vec<_> =
                unexpected.iter().take(5).map(|name| format!("\"{}\"", quote(name))).collect();
            format!("there is no field {}; there are: {}", names.join(", "), fields())
        }
        ValidationErrorKind::Required { property } => {
            format!("the field {property} is missing; the fields are: {}", fields())
        }
        _ if field.is_empty() => {
            format!("the arguments must be one JSON object with the fields: {}", fields())
        }
        // The value itself is left out: it may be long, and the model knows it.
        _ => format!("the field \"{}\": {}", quote(field), error.masked_with("the value")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::tool::{LockMode, ResourceKey, ToolStatus};

    fn registry() -> (tempfile::TempDir, ToolRegistry) {
        let dir = tempfile::tempdir().unwrap();
        let registry = ToolRegistry::builtin(dir.path()).unwrap();
        (dir, registry)
    }

    fn refusal(registry: &ToolRegistry, tool: &str, arguments: &str) -> String {
        let outcome = registry.validate(&Lane::Edge, tool, arguments).unwrap_err();
        assert_eq!(outcome.status, ToolStatus::Refused);
        outcome.output.value()["error"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_call_that_fails_a_check_is_refused_with_what_to_do() {
        let (_dir, registry) = registry();
        for (tool, arguments, says) in [
            ("choir.fs.delete", "{}", &["choir.fs.delete", "choir.exec, choir.fs.read"][..]),
            ("choir.fs.read", "{\"path\": ", &["not valid JSON", "line 1 column"]),
            ("choir.fs.read", "[1]", &["one JSON object", "path"]),
            ("choir.fs.read", "", &["\"path\" is missing", "offset"]),
            ("choir.fs.read", "{\"path\":\"a\",\"haed\":1}", &["no field \"haed\"", "head, limit"]),
            ("choir.fs.read", "{\"path\":\"a\",\"head\":0}", &["\"head\"", "minimum of 1"]),
            ("choir.fs.read", "{\"path\":7}", &["\"path\"", "\"string\""]),
            ("choir.fs.read", "{\"path\":\"a\",\"head\":1,\"tail\":1}", &["not several"]),
            ("choir.fs.read", "{\"path\":\"../a\"}", &["\"..\""]),
            ("choir.fs.read", "{\"path\":\"/etc/passwd\"}", &["outside the workspace"]),
            (
                "choir.fs.write",
                "{\"path\":\"a\",\"content\":\"\",\"mode\":\"erase\"}",
                &["\"mode\"", "overwrite"],
            ),
            ("choir.fs.write", "{\"path\":\"a\",\"content\":\"\",\"mode\":\"insert\"}", &["takes line"]),
            ("choir.fs.write", "{\"path\":\"a\",\"content\":\"\",\"line\":1}", &["mode insert"]),
            ("choir.fs.write", "{\"path\":\".\",\"content\":\"\"}", &["is a directory"]),
            ("choir.fs.search", "{\"pattern\":\"(\"}", &["regular expression", "unclosed group"]),
            ("choir.fs.search", "{\"pattern\":\"x\",\"glob\":\"[\"}", &["glob"]),
            ("choir.exec", "{\"command\":\"ls\",\"timeout_ms\":1e9}", &["\"timeout_ms\"", "maximum"]),
            ("choir.exec", "{\"command\":\"a\\u0000b\"}", &["NUL"]),
            (
                "choir.fs.read",
                "{\"path\":\"a\",\"offset\":9007199254740993}",
                &["9007199254740993", "smaller"],
            ),
        ] {
            let sentence = refusal(&registry, tool, arguments);
            for part in says {
                assert!(sentence.contains(part), "{tool} {arguments}: {sentence}");
            }
        }
        let dense = format!("{{\"path\":[{}0]}}", "{\"\":0},".repeat(100_000));
        assert!(refusal(&registry, "choir.fs.read", &dense).contains("too many values"));
        let long = refusal(&registry, "choir.fs.read", &"x".repeat(TOOL_INPUT_BYTES + 1));
        assert!(long.contains("do it in parts") && long.len() < 300, "{long}");
        let wild = refusal(&registry, &"y\n".repeat(10_000), "{}");
        assert!(wild.len() < 500, "{wild}");
    }

    #[test]
    fn a_valid_call_gets_one_form_and_the_locks_of_the_policy() {
        let (dir, registry) = registry();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let file = |path: &str| ResourceKey::File(path.into());
        for (tool, arguments, resource, mode, durable) in [
            ("choir.fs.read", r#"{"path":"link/a","head":10.0}"#, file("real/a"), LockMode::S, false),
            (
                "choir.fs.read",
                r#"{"path":"/workspace/./real//a","tail":null}"#,
                file("real/a"),
                LockMode::S,
                false,
            ),
            ("choir.fs.read", r#"{"path":"."}"#, file("."), LockMode::S, false),
            ("choir.fs.search", r#"{"pattern":"x"}"#, file("."), LockMode::S, false),
            ("choir.fs.search", r#"{"pattern":"x","path":"link"}"#, file("real"), LockMode::S, false),
            ("choir.fs.write", r#"{"path":"link/a","content":"x"}"#, file("real/a"), LockMode::X, true),
            (
                "choir.fs.write",
                r#"{"path":".choirtmp/send/a","content":"x"}"#,
                ResourceKey::ChoirTmp,
                LockMode::X,
                true,
            ),
            ("choir.exec", r#"{"command":"ls","cwd":"link"}"#, ResourceKey::Workspace, LockMode::X, true),
        ] {
            let valid = registry.validate(&Lane::Edge, tool, arguments).unwrap();
            assert_eq!(valid.locks, [LockSpec { resource, mode }], "{tool} {arguments}");
            assert_eq!(valid.needs_durable, durable);
            // What is committed validates again to itself.
            let again = registry.validate(&Lane::Edge, tool, &valid.input.value().to_string()).unwrap();
            assert_eq!(again, valid);
        }
    }

    #[test]
    fn the_manifest_hash_is_the_same_for_every_workspace() {
        let ((_a, first), (_b, second)) = (registry(), registry());
        assert_eq!(first.manifest_hash(), second.manifest_hash());
        let tools = || first.entries.values().map(|entry| Arc::clone(&entry.tool));
        let fewer = ToolRegistry::of(tools().skip(1).collect()).unwrap();
        assert_ne!(fewer.manifest_hash(), first.manifest_hash());
        let reordered = ToolRegistry::of(tools().rev().collect()).unwrap();
        assert_eq!(reordered.manifest_hash(), first.manifest_hash());
        let twice = ToolRegistry::of(tools().chain(tools()).collect());
        assert!(matches!(twice, Err(RegistryError::Duplicate(_))));
    }

    #[test]
    fn the_models_view_holds_nothing_of_the_runtime() {
        let (_dir, registry) = registry();
        let views = registry.views(&Lane::Edge);
        assert_eq!(
            views.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(),
            ["choir.exec", "choir.fs.read", "choir.fs.search", "choir.fs.write"]
        );
        let text = serde_json::to_string(&views).unwrap();
        for word in ["side_effect", "locks", "workspace:X", "exposure", "idempotent"] {
            assert!(!text.contains(word), "{word}");
        }
        for view in &views {
            assert_eq!(view.input_schema.value()["additionalProperties"], false);
        }
    }
}
