//! `choir.exec`: one shell command in the workspace (`choir §8.7`). It sees a clean environment, holds the whole
//! workspace, and nothing it started outlives the call, however the call ends.

mod capture;
mod process;
mod stray;

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use choir_messages::id::InvocationId;
use choir_messages::json::Json;
use choir_messages::limits::TOOL_INPUT_BYTES;
use choir_messages::tool::{
    LockMode, LockSpec, Replay, ResourceKey, SideEffect, ToolOutcome, ToolStatus, ToolView,
};

use crate::limits::{COMMAND_BYTES, EXEC_TIMEOUT, EXEC_TIMEOUT_DEFAULT, OUTPUT_BULK_BYTES, PATH_BYTES};
use crate::read::{path_of, set_path};
use crate::stop::{Stop, Stopped};
use crate::text::json_len;
use crate::tool::{Call, Exposure, RuntimeView, Tool, failed, refused, stopped};
use crate::workspace::Workspace;
use capture::{Captured, watch};
use process::{Running, Start, StartError};

/// Where commands are looked for if nothing else is said.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variable that marks everything a call starts.
const MARK: &str = "CHOIR_CALL";

/// The variable by which the host that started this agent finds what is left of its sandbox, where nothing else holds a
/// sandbox's processes together (`choir_sandbox::MARKER`). Whatever a command leaves behind must carry it too.
pub const SANDBOX_MARK: &str = "CHOIR_SANDBOX";

/// The tool.
#[derive(Debug)]
pub struct ExecTool {
    workspace: Arc<Workspace>,
    view: ToolView,
    runtime: RuntimeView,
    /// Everything a command finds in its environment, but for its mark.
    env: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
struct Input {
    command: String,
    #[serde(default = "here")]
    cwd: String,
    #[serde(default)]
    stdin: String,
}

fn here() -> String {
    ".".to_owned()
}

impl Input {
    fn parse(input: &Value) -> Result<Self, ToolOutcome> {
        Self::deserialize(input).map_err(|error| refused(format!("choir.exec: {error}")))
    }
}

impl ExecTool {
    /// The tool for this workspace. `path` is the commands' search path and `sandbox` the mark of the sandbox they run
    /// in, the two things taken over from outside.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>, path: &str, sandbox: Option<&str>) -> Self {
        let view = ToolView {
            name: "choir.exec".to_owned(),
            description: "Run a command with /bin/sh -c in the workspace and give its output and exit code. Long \
                          output keeps its beginning and end. Processes still running when the command ends are \
                          ended too."
                .to_owned(),
            input_schema: Json(json!({
                "type": "object",
                "properties": {
                    "command": { "type": "string", "minLength": 1, "maxLength": COMMAND_BYTES },
                    "cwd": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES, "description": "Directory to start in; the workspace if left out." },
                    "timeout_ms": { "type": "integer", "minimum": 1, "maximum": EXEC_TIMEOUT.as_millis() as u64, "description": "Time limit; two minutes if left out." },
                    "stdin": { "type": "string", "maxLength": TOOL_INPUT_BYTES }
                },
                "required": ["command"],
                "additionalProperties": false
            })),
        };
        let runtime = RuntimeView {
            version: "1.0",
            timeout_ms: EXEC_TIMEOUT_DEFAULT.as_millis() as u64,
            locks: "workspace:X",
            // What a command reaches beyond the workspace is the sandbox's to limit.
            side_effect: SideEffect::Write,
            idempotent: false,
            network: false,
            secret_resources: &[],
            exposure: Exposure::Both,
            prompt_mask: false,
        };
        let root = workspace.real_path().to_owned();
        let env = [
            ("HOME", root.as_str()),
            ("LANG", "C.UTF-8"),
            ("PATH", if path.is_empty() { DEFAULT_PATH } else { path }),
            ("TERM", "dumb"),
        ];
        let env = env.into_iter().chain(sandbox.map(|mark| (SANDBOX_MARK, mark)));
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { workspace, view, runtime, env }
    }

    fn exec(&self, call: &Call<'_>) -> Result<ToolOutcome, ToolOutcome> {
        if call.again {
            return Err(ToolOutcome::says(
                ToolStatus::OutcomeUnknown,
                "the agent was restarted during this command; it may have run in part or whole, and was not run \
                 again. Check what it was to change before you go on",
            ));
        }
        let input = Input::parse(call.input)?;
        let dir = self.workspace.open_dir(&path_of(call.input, "cwd")).map_err(failed)?;
        let mark = mark(call.invocation);
        let mut env = self.env.clone();
        env.push((MARK.to_owned(), call.invocation.to_string()));
        let with_stdin = !input.stdin.is_empty();
        let start = Start { command: &input.command, dir, env: &env, mark, with_stdin };
        let running = Running::start(start, call.stop).map_err(|error| match error {
            StartError::Stopped(why) => stopped(why),
            error @ StartError::Io(_) => failed(error),
        })?;
        Ok(report(&watch(running, input.stdin.as_bytes(), call.stop), self.timeout(call.input)))
    }
}

/// What stands in the environment of everything this call starts.
fn mark(invocation: InvocationId) -> String {
    format!("{MARK}={invocation}")
}

fn report(captured: &Captured, limit: Duration) -> ToolOutcome {
    let [stdout, stderr] = &captured.streams;
    // Errors are short and matter; they get up to a third, and what the other does not need.
    let (least, _) = stderr.render(OUTPUT_BULK_BYTES / 3);
    let (out, out_cut) = stdout.render(OUTPUT_BULK_BYTES - json_len(&least));
    let (err, err_cut) = stderr.render(OUTPUT_BULK_BYTES - json_len(&out));
    let code = captured.status.and_then(|status| status.code());
    let mut output = json!({ "exit_code": code, "stdout": out, "stderr": err });
    for (name, total, cut) in
        [("stdout_bytes", stdout.total(), out_cut), ("stderr_bytes", stderr.total(), err_cut)]
    {
        if cut > 0 {
            output[name] = json!(total);
        }
    }
    let signal = captured.status.and_then(|status| status.signal());
    let (status, error) = match (captured.stopped, code, signal) {
        (Some(Stopped::Cancelled), ..) => (
            ToolStatus::Cancelled,
            Some(
                "the command was cancelled and everything it had started was ended; it may have run in part"
                    .to_owned(),
            ),
        ),
        (Some(Stopped::Deadline), ..) => (
            ToolStatus::Error,
            Some(format!(
                "the command took longer than {} ms and everything it had started was ended; give a larger timeout_ms \
                 (at most {}) or do it in parts",
                limit.as_millis(),
                EXEC_TIMEOUT.as_millis()
            )),
        ),
        (None, Some(0), _) => (ToolStatus::Success, None),
        (None, Some(code), _) => {
            (ToolStatus::Error, Some(format!("the command ended with exit code {code}")))
        }
        (None, None, Some(signal)) => {
            (ToolStatus::Error, Some(format!("the command was ended by signal {signal}")))
        }
        (None, None, None) => {
            (ToolStatus::Error, Some("the command's exit code could not be read".to_owned()))
        }
    };
    if let Some(error) = error {
        output["error"] = json!(error);
    }
    if let (None, Some(signal)) = (captured.stopped, signal) {
        output["signal"] = json!(signal);
    }
    if captured.left_running {
        output["note"] = json!(
            "processes it had left running in the background were ended with it; only what ends by itself is finished"
        );
    }
    ToolOutcome { status, output: Json(output), cut_bytes: out_cut + err_cut }
}

impl Tool for ExecTool {
    fn view(&self) -> &ToolView {
        &self.view
    }

    fn runtime(&self) -> &RuntimeView {
        &self.runtime
    }

    fn normalise(&self, mut input: Value) -> Result<Value, ToolOutcome> {
        let exec = Input::parse(&input)?;
        if exec.command.contains('\0') {
            return Err(refused("choir.exec: the command contains a NUL character; remove it"));
        }
        if exec.command.len() > COMMAND_BYTES {
            return Err(refused(format!(
                "choir.exec: the command is longer than {COMMAND_BYTES} bytes; write it to a file with choir.fs.write \
                 and run that"
            )));
        }
        let cwd = self.workspace.resolve(&exec.cwd).map_err(refused)?;
        set_path(&mut input, "cwd", &cwd);
        Ok(input)
    }

    fn locks(&self, _input: &Value) -> Vec<LockSpec> {
        vec![LockSpec { resource: ResourceKey::Workspace, mode: LockMode::X }]
    }

    fn timeout(&self, input: &Value) -> Duration {
        let asked = input.get("timeout_ms").and_then(Value::as_u64).map(Duration::from_millis);
        asked.unwrap_or(EXEC_TIMEOUT_DEFAULT).min(EXEC_TIMEOUT)
    }

    fn prepare(&self, _input: &Value, _stop: &Stop) -> Result<Replay, ToolOutcome> {
        Ok(Replay::Unrepeatable)
    }

    fn run(&self, call: &Call<'_>) -> ToolOutcome {
        self.exec(call).unwrap_or_else(|outcome| outcome)
    }
}
