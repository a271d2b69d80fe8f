//! The rules of `config.json`: which fields there are, what each may say, what each refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use choir_messages::id::{AgentId, is_name};
use choir_messages::wire::Budgets;
use serde_json::json;

use super::reader::{At, Object, Problems, join, known_list, nearest};
use super::types::{Agent, Config, FORMAT, Model, Postgres, SandboxChoice, Telemetry, Workspace};
use super::{coordinator, later, link};
use crate::limits;

/// Shortest and longest interval that makes sense for a timer of the file, in milliseconds. The shortest is how often an
/// agent looks at its clock.
const TIMER_MS: std::ops::RangeInclusive<u64> = 250..=3_600_000;

/// Longest wait for one answer of a model, in milliseconds.
const MODEL_TIMEOUT_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// Wait for one answer of a model where the file does not say: long reasoning takes minutes.
const MODEL_TIMEOUT_DEFAULT_MS: u64 = 300_000;

/// Names by kind that other parts refer to.
pub(super) struct Known {
    pub(super) names: BTreeMap<&'static str, BTreeSet<String>>,
    pub(super) secrets: BTreeSet<String>,
}

impl Known {
    /// Checks a reference to a named thing.
    pub(super) fn check(
        &self,
        kind: &str,
        what: &str,
        at: &At<'_>,
        problems: &mut Problems,
    ) -> Option<String> {
        let name = at.text(problems)?;
        let names = self.names.get(kind).into_iter().flatten().map(String::as_str);
        if names.clone().any(|n| n == name) {
            return Some(name);
        }
        let hint = match nearest(&name, names.clone()) {
            Some(near) => format!("did you mean {near:?}? "),
            None => String::new(),
        };
        problems.add(at.path.clone(), format!("no {what} named \"{name}\"; {hint}{}", known_list(names)));
        None
    }

    /// Takes note of a reference to a secret.
    pub(super) fn secret(&mut self, at: &At<'_>, problems: &mut Problems) -> Option<String> {
        let name = at.text(problems)?;
        if !is_name(&name) {
            let what = "is the *name* of a secret (a-z, 0-9, '-', '_'), never its value; \
                        set the value with `choirctl secret set NAME`";
            problems.add(at.path.clone(), what);
            return None;
        }
        self.secrets.insert(name.clone());
        Some(name)
    }
}

pub(super) fn read(root: &At<'_>, base: &Path, problems: &mut Problems) -> Option<Config> {
    let mut top = root.object(problems)?;
    let version = match top.get("version") {
        None => FORMAT,
        Some(at) => match at.whole(0..=u64::MAX, problems) {
            Some(v) if v == FORMAT => v,
            Some(v) => {
                let what = format!(
                    "this choird reads format {FORMAT}, the file has {v}; use the choird that wrote it or set {FORMAT} and adapt the file"
                );
                problems.add(at.path, what);
                // The meaning of everything else is unknown, so no further complaint would be fair.
                return None;
            }
            None => return None,
        },
    };
    let mut known = Known { names: BTreeMap::new(), secrets: BTreeSet::new() };
    let workspaces = named(&mut top, "workspaces", problems, |at, _, p| workspace(at, base, p), &mut known);
    no_nested_workspaces(&workspaces, problems);
    let models = named(&mut top, "models", problems, model, &mut known);
    let unused_sections = later::read(&mut top, &mut known, problems);
    let agents = agents(&mut top, base, &known, problems);
    let postgres = postgres(&mut top, base, &mut known, problems);
    let sandbox = top
        .some("sandbox")
        .and_then(|at| {
            let words = [
                ("auto", SandboxChoice::Auto),
                ("bubblewrap", SandboxChoice::Bubblewrap),
                ("process", SandboxChoice::Process),
            ];
            at.word(&words, problems)
        })
        .unwrap_or(SandboxChoice::Auto);
    let link = link::read(&mut top, problems);
    let coordinator = coordinator::read(&mut top, problems);
    let telemetry = telemetry(&mut top, problems);
    let budgets = budgets(&mut top, problems);
    let mut timer =
        |key, default| top.some(key).and_then(|at| at.whole(TIMER_MS, problems)).unwrap_or(default);
    let heartbeat_interval_ms = timer("heartbeat_interval_ms", 5_000);
    let crash_detection_threshold_ms =
        timer("crash_detection_threshold_ms", heartbeat_interval_ms.max(5_000) * 2);
    let rate_limit_retry_ms = timer("rate_limit_retry_ms", 1_000);
    if crash_detection_threshold_ms < heartbeat_interval_ms.saturating_mul(2) {
        problems.add(
            "crash_detection_threshold_ms",
            format!(
                "must be at least twice heartbeat_interval_ms ({}), found {crash_detection_threshold_ms}",
                heartbeat_interval_ms * 2
            ),
        );
    }
    let log_archive_threshold_lines = top
        .some("log_archive_threshold_lines")
        .and_then(|at| at.whole(100..=100_000_000, problems))
        .unwrap_or(100_000);
    let message_max_age_ms = top
        .some("message_max_age_ms")
        .and_then(|at| at.whole(1_000..=30 * 86_400_000, problems))
        .unwrap_or_else(|| millis(limits::MESSAGE_MAX_AGE));
    top.finish(problems);
    Some(Config {
        version,
        workspaces,
        models,
        agents,
        postgres,
        sandbox,
        link,
        coordinator,
        telemetry,
        budgets,
        heartbeat_interval_ms,
        crash_detection_threshold_ms,
        rate_limit_retry_ms,
        log_archive_threshold_lines,
        message_max_age_ms,
        secret_names: known.secrets,
        unused_sections,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A section whose keys are names of things of one kind. The names count as known even where a thing is wrong, so that
/// one mistake is not reported at every reference too.
pub(super) fn named<T>(
    top: &mut Object<'_>,
    kind: &'static str,
    problems: &mut Problems,
    read: impl Fn(&At<'_>, &mut Known, &mut Problems) -> Option<T>,
    known: &mut Known,
) -> BTreeMap<String, T> {
    let mut things = BTreeMap::new();
    let names = known.names.entry(kind).or_default();
    let Some(section) = top.some(kind).and_then(|at| at.object(problems)) else { return things };
    for (name, _) in section.each() {
        names.insert(name.to_owned());
    }
    for (name, at) in section.each() {
        if !is_name(name) {
            let what =
                "is not a name (1 to 63 characters: a-z, 0-9, '-' and '_', starting with a letter or digit)";
            problems.add(at.path.clone(), what);
        }
        if let Some(thing) = read(&at, known, problems) {
            things.insert(name.to_owned(), thing);
        }
    }
    things
}

fn path(at: &At<'_>, base: &Path, problems: &mut Problems) -> Option<PathBuf> {
    let text = at.text(problems)?;
    let path = base.join(&text);
    let path = std::path::absolute(&path).unwrap_or(path);
    if path.components().any(|c| c == Component::ParentDir) {
        problems.add(at.path.clone(), "must not contain \"..\"");
        return None;
    }
    if text.starts_with('~') {
        problems.add(at.path.clone(), "\"~\" is not expanded here; write the absolute path");
        return None;
    }
    Some(path)
}

fn workspace(at: &At<'_>, base: &Path, problems: &mut Problems) -> Option<Workspace> {
    let mut fields = at.object(problems)?;
    let found = fields.must("path", problems).and_then(|at| {
        let found = path(&at, base, problems)?;
        if found.parent().is_none() {
            problems.add(at.path, "an agent must not be given the root directory");
            return None;
        }
        Some(found)
    });
    fields.finish(problems);
    found.map(|path| Workspace { path })
}

/// Two names for one directory, or a directory inside another, would make an exclusive lease worth nothing.
fn no_nested_workspaces(workspaces: &BTreeMap<String, Workspace>, problems: &mut Problems) {
    for (name, workspace) in workspaces {
        for (other, outer) in workspaces {
            let inside = workspace.path.starts_with(&outer.path);
            if name != other && inside && (workspace.path != outer.path || name > other) {
                problems.add(
                    join(&join("workspaces", name), "path"),
                    format!(
                        "lies in workspace {other:?}; workspaces are leased exclusively and must not overlap"
                    ),
                );
            }
        }
    }
}

/// An `http://` or `https://` URL without credentials, query or fragment.
pub(super) fn url(at: &At<'_>, problems: &mut Problems) -> Option<String> {
    let text = at.text(problems)?;
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let authority = rest.and_then(|r| r.split('/').next()).unwrap_or_default();
    if authority.is_empty() || text.contains(char::is_whitespace) {
        problems.add(at.path.clone(), "must be a URL that starts with https:// or http://");
        return None;
    }
    if authority.contains('@') || text.contains('?') || text.contains('#') {
        let what = "must not contain credentials, a query or a fragment; a key belongs in a secret";
        problems.add(at.path.clone(), what);
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

fn model(at: &At<'_>, known: &mut Known, problems: &mut Problems) -> Option<Model> {
    let mut fields = at.object(problems)?;
    let provider =
        fields.some("provider").and_then(|at| at.text(problems)).unwrap_or_else(|| "openai".into());
    let model = fields.must("model", problems).and_then(|at| at.text(problems));
    let endpoint = fields.must("endpoint", problems).and_then(|at| url(&at, problems));
    let temperature = match fields.get("temperature") {
        None => Some(0.7),
        Some(at) if at.is_null() => None,
        Some(at) => at.number(0.0..=2.0, problems),
    };
    let reasoning_effort = fields.some("reasoning_effort").and_then(|at| at.text(problems));
    let secret = fields.some("secret").and_then(|at| known.secret(&at, problems));
    let timeout_ms = fields
        .some("timeout_ms")
        .and_then(|at| at.whole(MODEL_TIMEOUT_MS, problems))
        .unwrap_or(MODEL_TIMEOUT_DEFAULT_MS);
    let extra = match fields.some("extra") {
        None => json!({}),
        Some(at) => {
            at.object(&mut Problems::default());
            let value = at.free(problems);
            if !value.is_object() {
                problems.add(at.path, "expected an object of extra request fields");
            }
            value
        }
    };
    fields.finish(problems);
    Some(Model {
        provider,
        model: model?,
        endpoint: endpoint?,
        temperature,
        reasoning_effort,
        secret,
        timeout_ms,
        extra,
    })
}

fn agents(
    top: &mut Object<'_>,
    base: &Path,
    known: &Known,
    problems: &mut Problems,
) -> BTreeMap<AgentId, Agent> {
    let mut agents = BTreeMap::new();
    let Some(section) = top.some("agents").and_then(|at| at.object(problems)) else { return agents };
    if section.each().count() > limits::AGENTS {
        problems.add("agents", format!("more than {} agents", limits::AGENTS));
    }
    for (name, at) in section.each() {
        let id = name.parse::<AgentId>();
        if let Err(error) = &id {
            problems.add(at.path.clone(), error.to_string());
        }
        let Some(agent) = agent(&at, base, known, problems) else { continue };
        if let Ok(id) = id {
            agents.insert(id, agent);
        }
    }
    agents
}

fn agent(at: &At<'_>, base: &Path, known: &Known, problems: &mut Problems) -> Option<Agent> {
    let mut fields = at.object(problems)?;
    if let Some(repo) = fields.some("repo") {
        later::repo(&repo, problems);
    }
    let choir_dir = fields.some("choir_dir").and_then(|at| path(&at, base, problems));
    let autostart = fields.some("autostart").and_then(|at| at.boolean(problems)).unwrap_or(false);
    let defaults = fields.must("defaults", problems).and_then(|at| at.object(problems));
    fields.finish(problems);
    let mut defaults = defaults?;
    let workspace = defaults
        .must("workspace", problems)
        .and_then(|at| known.check("workspaces", "workspace", &at, problems));
    let llm = defaults.must("llm", problems).and_then(|at| known.check("models", "model", &at, problems));
    let other_exclusive = later::agent_defaults(&mut defaults, known, problems);
    defaults.finish(problems);
    Some(Agent { workspace: workspace?, llm: llm?, choir_dir, autostart, other_exclusive })
}

fn postgres(top: &mut Object<'_>, base: &Path, known: &mut Known, problems: &mut Problems) -> Postgres {
    let embedded = Postgres::Embedded { binaries: None };
    let Some(mut fields) = top.some("postgres").and_then(|at| at.object(problems)) else { return embedded };
    let binaries = fields.some("binaries").and_then(|at| path(&at, base, problems));
    let host = fields.some("host");
    let port = fields.some("port").and_then(|at| at.whole(1..=65_535, problems)).unwrap_or(5432);
    let database = fields.some("database").and_then(|at| at.text(problems)).unwrap_or_else(|| "choir".into());
    let user = fields.some("user").and_then(|at| at.text(problems)).unwrap_or_else(|| "choir".into());
    let secret = fields.some("secret").and_then(|at| known.secret(&at, problems));
    fields.finish(problems);
    match (host, binaries) {
        (Some(at), Some(_)) => {
            problems.add(
                at.path,
                "either \"host\" (an external server) or \"binaries\" (the embedded one), not both",
            );
            embedded
        }
        (Some(at), None) => {
            let host = at.text(problems).unwrap_or_default();
            let port = u16::try_from(port).unwrap_or(5432);
            Postgres::External { host, port, database, user, secret }
        }
        (None, binaries) => Postgres::Embedded { binaries },
    }
}

fn telemetry(top: &mut Object<'_>, problems: &mut Problems) -> Telemetry {
    let Some(mut fields) = top.some("telemetry").and_then(|at| at.object(problems)) else {
        return Telemetry::default();
    };
    let otlp_endpoint = fields.some("otlp_endpoint").and_then(|at| url(&at, problems));
    fields.finish(problems);
    Telemetry { otlp_endpoint }
}

fn budgets(top: &mut Object<'_>, problems: &mut Problems) -> Budgets {
    let mut budgets = Budgets::default();
    let Some(mut fields) = top.some("budgets").and_then(|at| at.object(problems)) else { return budgets };
    let mut whole = |key, range| fields.some(key).and_then(|at| at.whole(range, problems));
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    if let Some(n) = whole("max_core_jobs", 0..=64) {
        budgets.max_core_jobs = small(n);
    }
    if let Some(n) = whole("total_session_tokens", 1..=u64::MAX) {
        budgets.total_session_tokens = n;
    }
    if let Some(n) = whole("max_tool_calls_per_session", 0..=u64::MAX) {
        budgets.max_tool_calls_per_session = n;
    }
    if let Some(n) = whole("max_model_calls_per_turn", 1..=10_000) {
        budgets.max_model_calls_per_turn = small(n);
    }
    fields.finish(problems);
    budgets
}
