//! `choir.fs.write`: creates and edits files (`choir §8.7`). A write is atomic, durable before it is reported, and
//! recognised when it is repeated after a crash: [`Replay::FileChange`] holds the digests of the content before and
//! after, worked out under the call's locks.

pub mod edit;

use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use choir_messages::chain::Digest;
use choir_messages::json::Json;
use choir_messages::limits::TOOL_INPUT_BYTES;
use choir_messages::tool::{LockMode, LockSpec, Replay, SideEffect, ToolOutcome, ToolStatus, ToolView};
use rustix::fs::Stat;

use crate::limits::{CHUNK_BYTES, EDIT_FILE_BYTES, FILE_TOOL_TIMEOUT, PATH_BYTES};
use crate::read::{path_of, set_path};
use crate::stop::Stop;
use crate::tool::{Call, Exposure, RuntimeView, Tool, failed, refused, stopped};
use crate::workspace::{PathError, ReplaceError, Workspace, WsPath};
use edit::{Edit, apply, count_lines};

/// The tool.
#[derive(Debug)]
pub struct WriteTool {
    workspace: Arc<Workspace>,
    view: ToolView,
    runtime: RuntimeView,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Overwrite,
    Append,
    Insert,
    Replace,
}

#[derive(Debug, Deserialize)]
struct Input {
    path: String,
    #[serde(default)]
    mode: Mode,
    content: String,
    line: Option<u64>,
    from: Option<u64>,
    to: Option<u64>,
    find: Option<String>,
}

impl Input {
    fn parse(input: &Value) -> Result<Self, ToolOutcome> {
        Self::deserialize(input).map_err(|error| refused(format!("choir.fs.write: {error}")))
    }

    /// The edit these fields describe, or what is wrong with them.
    fn edit(&self) -> Result<Edit<'_>, &'static str> {
        match (self.mode, self.line, self.from, self.to, &self.find) {
            (Mode::Overwrite, None, None, None, None) => Ok(Edit::Overwrite),
            (Mode::Append, None, None, None, None) => Ok(Edit::Append),
            (Mode::Overwrite | Mode::Append, ..) => Err(
                "modes overwrite and append take path and content only; use mode insert or replace for a place",
            ),
            (Mode::Insert, Some(line), None, None, None) => Ok(Edit::Insert { line }),
            (Mode::Insert, ..) => {
                Err("mode insert takes line (the line to insert before), and no from, to, find")
            }
            (Mode::Replace, None, None, None, Some(find)) => Ok(Edit::Text { find }),
            (Mode::Replace, None, Some(from), to, None) => Ok(Edit::Lines { from, to: to.unwrap_or(from) }),
            (Mode::Replace, ..) => {
                Err("mode replace takes either from and to (lines), or find (a text), and no line")
            }
        }
    }
}

/// What a write would do: worked out twice, before it is committed and when it runs.
struct Plan {
    before: Option<Digest>,
    after: Digest,
    content: Vec<u8>,
    old: Option<Stat>,
}

impl WriteTool {
    /// The tool for this workspace.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>) -> Self {
        let line = |description: &str| json!({ "type": "integer", "minimum": 1, "description": description });
        let view = ToolView {
            name: "choir.fs.write".to_owned(),
            description: "Create or edit a file of the workspace. Modes: overwrite (default; creates the file and its \
                          directories), append, insert (content becomes lines before line), replace (content replaces \
                          lines from..to, or the one place where find stands; empty content removes them)."
                .to_owned(),
            input_schema: Json(json!({
                "type": "object",
                "properties": {
                    "path": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES, "description": "The file, relative to the workspace." },
                    "mode": { "type": "string", "enum": ["overwrite", "append", "insert", "replace"] },
                    "content": { "type": "string", "maxLength": TOOL_INPUT_BYTES },
                    "line": line("insert: the line to insert before, counted from 1; one past the last line inserts at the end."),
                    "from": line("replace: first line to replace."),
                    "to": line("replace: last line to replace; from if left out."),
                    "find": { "type": "string", "minLength": 1, "description": "replace: the text to replace, copied exactly; it must stand in the file once." }
                },
                "required": ["path", "content"],
                "additionalProperties": false
            })),
        };
        let runtime = RuntimeView {
            version: "1.0",
            timeout_ms: FILE_TOOL_TIMEOUT.as_millis() as u64,
            locks: "file:<path>:X",
            side_effect: SideEffect::Write,
            idempotent: false,
            network: false,
            secret_resources: &[],
            exposure: Exposure::Both,
            prompt_mask: false,
        };
        Self { workspace, view, runtime }
    }

    fn plan(&self, path: &WsPath, input: &Value, stop: &Stop) -> Result<Plan, ToolOutcome> {
        let input = Input::parse(input)?;
        let edit = input.edit().map_err(refused)?;
        let (before, old, content) = match self.workspace.open_file(path) {
            Err(PathError::NotFound(_)) => (None, None, None),
            Err(error) => return Err(failed(error)),
            Ok((mut file, stat)) => {
                let keep = edit != Edit::Overwrite;
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                if keep && size > EDIT_FILE_BYTES {
                    return Err(failed(format!(
                        "\"{path}\" has {size} bytes; files above {EDIT_FILE_BYTES} bytes cannot be edited in place, \
                         use choir.exec (sed, cat) for it"
                    )));
                }
                let (digest, content) = digest(&mut file, path, keep, stop)?;
                (Some(digest), Some(stat), content)
            }
        };
        // Overwriting needs no old content, only to know that there is some.
        let old_bytes = content.as_deref().or_else(|| before.is_some().then_some(&[][..]));
        let content = apply(old_bytes, edit, input.content.as_bytes())
            .map_err(|error| failed(format!("\"{path}\" was not changed: {error}")))?;
        if content.len() as u64 > EDIT_FILE_BYTES {
            return Err(failed(format!(
                "\"{path}\" was not changed: it would grow beyond {EDIT_FILE_BYTES} bytes; use choir.exec for it"
            )));
        }
        Ok(Plan { before, after: Digest::of(&content), content, old })
    }

    fn write(&self, call: &Call<'_>) -> Result<ToolOutcome, ToolOutcome> {
        let path = path_of(call.input, "path");
        let Replay::FileChange { before, after, .. } = call.replay else {
            return Err(if call.again { unknown(&path) } else { failed("the call carries no replay guard") });
        };
        if call.again {
            self.workspace.clear_staged(&path, call.invocation);
            let now = self.current(&path, call.stop)?;
            if now == *after {
                return Ok(self.already(&path, *after));
            }
            if now != *before {
                return Err(unknown(&path));
            }
        }
        let plan = self.plan(&path, call.input, call.stop)?;
        if plan.before != *before || Some(plan.after) != *after {
            return Err(failed(PathError::Moved(path.to_string())));
        }
        let lines = count_lines(&plan.content);
        let done = |note: Option<String>| {
            let mut output = json!({
                "path": path.to_string(), "bytes": plan.content.len(), "lines": lines,
                "sha256": plan.after.to_string(), "created": plan.before.is_none(),
            });
            if let Some(note) = note {
                output["note"] = json!(note);
            }
            ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 }
        };
        let put = self
            .workspace
            .stage(&path, &plan.content, plan.old.as_ref(), call.invocation, call.stop)
            .and_then(|staged| staged.put(call.stop));
        match put {
            Ok(()) => Ok(done(None)),
            Err(error @ ReplaceError::NotDurable(_)) => Ok(done(Some(error.to_string()))),
            Err(ReplaceError::Path(error)) => Err(failed(error)),
            Err(ReplaceError::Stopped(why)) => Err(stopped(why)),
        }
    }

    /// Digest of what stands at the path now.
    fn current(&self, path: &WsPath, stop: &Stop) -> Result<Option<Digest>, ToolOutcome> {
        match self.workspace.open_file(path) {
            Ok((mut file, _)) => Ok(Some(digest(&mut file, path, false, stop)?.0)),
            Err(PathError::NotFound(_) | PathError::NotADirectory(_)) => Ok(None),
            // Something else stands there now; nobody can tell what the first run did.
            Err(_) => Err(unknown(path)),
        }
    }

    fn already(&self, path: &WsPath, after: Option<Digest>) -> ToolOutcome {
        let output = json!({
            "path": path.to_string(), "sha256": after.map(|digest| digest.to_string()),
            "note": "already applied before a restart; the file has the new content",
        });
        ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 }
    }
}

impl Tool for WriteTool {
    fn view(&self) -> &ToolView {
        &self.view
    }

    fn runtime(&self) -> &RuntimeView {
        &self.runtime
    }

    fn normalise(&self, mut input: Value) -> Result<Value, ToolOutcome> {
        let write = Input::parse(&input)?;
        write.edit().map_err(|error| refused(format!("choir.fs.write: {error}")))?;
        let path = self.workspace.resolve(&write.path).map_err(refused)?;
        if path.is_root() {
            return Err(refused(PathError::IsADirectory(path.to_string())));
        }
        set_path(&mut input, "path", &path);
        Ok(input)
    }

    fn locks(&self, input: &Value) -> Vec<LockSpec> {
        vec![LockSpec { resource: path_of(input, "path").resource(), mode: LockMode::X }]
    }

    fn prepare(&self, input: &Value, stop: &Stop) -> Result<Replay, ToolOutcome> {
        let path = path_of(input, "path");
        let plan = self.plan(&path, input, stop)?;
        Ok(Replay::FileChange { path: path.to_string(), before: plan.before, after: Some(plan.after) })
    }

    fn run(&self, call: &Call<'_>) -> ToolOutcome {
        self.write(call).unwrap_or_else(|outcome| outcome)
    }
}

fn unknown(path: &WsPath) -> ToolOutcome {
    ToolOutcome::says(
        ToolStatus::OutcomeUnknown,
        &format!(
            "the agent was restarted during this call, and \"{path}\" holds neither the old nor the new content; read \
             it before you go on"
        ),
    )
}

/// Digest of a file from where it stands, and its content if that is wanted.
fn digest(
    file: &mut std::fs::File,
    path: &WsPath,
    keep: bool,
    stop: &Stop,
) -> Result<(Digest, Option<Vec<u8>>), ToolOutcome> {
    let mut hash = Sha256::new();
    let mut content = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        stop.check().map_err(stopped)?;
        let n = match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(PathError::from_io(path, &error))),
        };
        let read = chunk.get(..n).unwrap_or_default();
        hash.update(read);
        if keep {
            content.extend_from_slice(read);
            if content.len() as u64 > EDIT_FILE_BYTES {
                return Err(failed(format!("\"{path}\" grows while it is read; repeat the call later")));
            }
        }
    }
    Ok((Digest::from_bytes(hash.finalize().into()), keep.then_some(content)))
}
