//! A workspace with its registry, and ways to wait for processes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use choir_messages::id::InvocationId;
use choir_messages::limits::TOOL_OUTPUT_BYTES;
use choir_messages::tool::{Lane, Replay, ToolOutcome, ToolStatus};
use choir_tools::stop::Stop;
use choir_tools::{Call, ToolRegistry};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

/// Longest wait for anything in a test; reached only when it fails.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) registry: Arc<ToolRegistry>,
}

/// A workspace, and a secret beside it.
pub(crate) fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ws")).unwrap();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/secret"), "the secret\n").unwrap();
    let registry = Arc::new(ToolRegistry::builtin(&dir.path().join("ws")).unwrap());
    Bench { dir, registry }
}

impl Bench {
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("ws")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn content(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: &str) {
        symlink(target, self.root().join(path)).unwrap();
    }

    /// Validates, prepares and runs a call, as the arbiter does.
    pub(crate) fn call(&self, tool: &str, input: Value) -> ToolOutcome {
        let stop = Stop::within(DEADLINE);
        self.call_with(tool, &input, &stop)
    }

    pub(crate) fn call_with(&self, tool: &str, input: &Value, stop: &Stop) -> ToolOutcome {
        let valid = match self.registry.validate(&Lane::Edge, tool, &input.to_string()) {
            Ok(valid) => valid,
            Err(outcome) => return outcome,
        };
        let tool = self.registry.get(tool).unwrap();
        let replay = match tool.prepare(valid.input.value(), stop) {
            Ok(replay) => replay,
            Err(outcome) => return outcome,
        };
        let outcome = tool.run(&Call {
            invocation: InvocationId::fresh(),
            input: valid.input.value(),
            replay: &replay,
            again: false,
            stop,
        });
        assert!(outcome.output.value().to_string().len() <= TOOL_OUTPUT_BYTES);
        outcome
    }

    pub(crate) fn ok(&self, tool: &str, input: Value) -> Value {
        let outcome = self.call(tool, input);
        assert_eq!(outcome.status, ToolStatus::Success, "{outcome:?}");
        outcome.output.0
    }

    /// The sentence of a call that fails.
    pub(crate) fn error(&self, tool: &str, input: Value) -> String {
        let outcome = self.call(tool, input);
        assert_ne!(outcome.status, ToolStatus::Success, "{outcome:?}");
        outcome.output.value()["error"].as_str().unwrap().to_owned()
    }

    /// Whether the tools left a half-written file anywhere.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.root()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".part")).collect()
    }
}

pub(crate) fn again(
    bench: &Bench,
    tool: &str,
    input: &Value,
    replay: &Replay,
    id: InvocationId,
) -> ToolOutcome {
    let stop = Stop::within(DEADLINE);
    let tool = bench.registry.get(tool).unwrap();
    tool.run(&Call { invocation: id, input, replay, again: true, stop: &stop })
}

/// A FIFO outside the workspace, by which a command says that it has come this far.
pub(crate) fn fifo(bench: &Bench) -> PathBuf {
    let path = bench.dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    path
}

/// What is written into the FIFO, once somebody has written it.
pub(crate) fn hear(fifo: &Path) -> String {
    let (say, heard) = std::sync::mpsc::channel();
    let fifo = fifo.to_owned();
    std::thread::spawn(move || say.send(fs::read_to_string(fifo).unwrap()));
    heard.recv_timeout(DEADLINE).expect("nobody wrote into the FIFO")
}

/// Waits until this process has ended (it may still be a zombie).
pub(crate) fn wait_gone(pid: &str) {
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let mut fds = [PollFd::new(&handle, PollFlags::IN)];
    let limit = DEADLINE.try_into().unwrap();
    assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "process {} is still alive", pid.as_raw_nonzero());
}

/// Whether this process runs; a zombie does not.
pub(crate) fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
