//! choird as the demo's child: started, killed, stopped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, interval_at, sleep_until, timeout};

use crate::control::lines::{Line, read_line};
use crate::control::{Client, ControlError, ErrorCode, Op};
use crate::state_dir::{STATE_DIR_ENV, StateDir};

use super::processes::{Waited, send};
use super::words::Words;
use super::{limits, model};

/// Longest line choird says on standard output: one that names a socket.
const READY_BYTES: usize = 4096;

/// Time to ask choird to end, before it is told by a signal.
const ASK_TO_END: Duration = Duration::from_secs(2);

/// Ends choird with the demo even where the demo cannot, because it was killed itself; and the database, where choird
/// cannot, because it was killed with it. Sits on a pipe until that closes.
const WATCHDOG: &str = r#"cat >/dev/null
of() { [ -n "$1" ] && tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -qxF -e "$2"; }
choird=$(cat "$1/run/choird.pid" 2>/dev/null)
of "$choird" "$1" && kill -TERM "$choird"
n=0
while of "$choird" "$1" && [ $n -lt 500 ]; do sleep 0.1; n=$((n + 1)); done
of "$choird" "$1" && kill -KILL "$choird"
postgres=$(head -n 1 "$1/postgres/data/postmaster.pid" 2>/dev/null)
of "$postgres" "$1/postgres/data" && kill -INT "$postgres"
exit 0
"#;

/// A child that is waited for.
struct Running {
    child: Child,
    pid: u32,
}

/// choird.
pub(super) struct Choird {
    binary: PathBuf,
    state: StateDir,
    stderr: PathBuf,
    waited: Waited,
    running: Option<Running>,
    watchdog: Option<Running>,
}

fn failed(what: impl Into<String>) -> ControlError {
    ControlError::new(ErrorCode::Runtime, what)
}

/// The choird beside this program.
pub(super) fn find() -> Result<PathBuf, ControlError> {
    let own =
        std::env::current_exe().map_err(|e| failed(format!("where this program is cannot be told: {e}")))?;
    let path = own.parent().unwrap_or(Path::new("/")).join("choird");
    if path.is_file() {
        Ok(path)
    } else {
        Err(failed(format!("choird is not at {}, beside choirctl", path.display()))
            .next("build it: cargo build -p choir-host -p choir-agent"))
    }
}

impl Choird {
    pub(super) fn new(binary: PathBuf, state: StateDir, stderr: PathBuf, waited: Waited) -> Self {
        Self { binary, state, stderr, waited, running: None, watchdog: None }
    }

    /// Starts it and waits until it accepts commands; says how long it takes if it takes long.
    pub(super) async fn start(&mut self, words: &Words) -> Result<(), ControlError> {
        self.watch()?;
        let log = File::options().create(true).append(true).open(&self.stderr);
        let log = log.map_err(|e| failed(format!("cannot write {}: {e}", self.stderr.display())))?;
        let mut command = Command::new(&self.binary);
        // A group of its own, so that Ctrl-C on the terminal reaches the demo and nobody else.
        command.arg("--state-dir").arg(self.state.root()).arg("--quiet").process_group(0);
        command
            .env_remove(STATE_DIR_ENV)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        for name in model::KEY_VARIABLES {
            command.env_remove(name);
        }
        let mut running = self.spawn(&mut command)?;
        let out = running.child.stdout.take();
        let running = self.running.insert(running);
        let ready = first_line(out);
        tokio::pin!(ready);
        let began = Instant::now();
        let mut say = interval_at(began + limits::SAY_EVERY, limits::SAY_EVERY);
        let ended = loop {
            tokio::select! {
                biased;
                () = &mut ready => return Ok(()),
                ended = running.child.wait() => break ended,
                _ = say.tick() => {
                    let seconds = began.elapsed().as_secs();
                    words.say(&format!("choird is still starting after {seconds} s; making a new database takes a while"));
                }
                () = sleep_until(began + limits::READY_WITHIN) => {
                    let seconds = limits::READY_WITHIN.as_secs();
                    return Err(failed(format!("choird was not ready after {seconds} s{}", last_words(&self.stderr))));
                }
            }
        };
        let how = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
        self.forget();
        Err(failed(format!("choird ended before it was ready ({how}){}", last_words(&self.stderr))))
    }

    fn spawn(&self, command: &mut Command) -> Result<Running, ControlError> {
        let child = self.waited.spawn(command);
        let name = || command.as_std().get_program().to_string_lossy().into_owned();
        let child = child.map_err(|e| failed(format!("{} cannot be started: {e}", name())))?;
        let pid = child.id().ok_or_else(|| failed(format!("{} ended at once", name())))?;
        Ok(Running { child, pid })
    }

    fn watch(&mut self) -> Result<(), ControlError> {
        if self.watchdog.is_none() {
            let mut command = Command::new("sh");
            command.args(["-c", WATCHDOG, "choir-demo-watchdog"]).arg(self.state.root()).process_group(0);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            self.watchdog = Some(self.spawn(&mut command)?);
        }
        Ok(())
    }

    fn forget(&mut self) {
        if let Some(running) = self.running.take() {
            self.waited.done(running.pid);
        }
    }

    /// Kills it as `kill -9` does, and waits until it is gone.
    pub(super) async fn kill(&mut self) -> Result<(), ControlError> {
        let running = self.running.as_mut().ok_or_else(|| failed("choird is not running"))?;
        send(running.pid, Signal::KILL);
        let gone = timeout(limits::LEFT_WITHIN, running.child.wait()).await;
        gone.map_err(|_| failed("choird is not gone although it was killed"))?
            .map_err(|e| failed(format!("choird cannot be waited for: {e}")))?;
        self.forget();
        Ok(())
    }

    /// Asks it to end in order and waits. False if it had to be killed.
    pub(super) async fn stop(&mut self) -> bool {
        let mut orderly = true;
        if let Some(running) = &mut self.running {
            let asked = async {
                let client = Client::connect(&self.state.control_socket(), ASK_TO_END).await?;
                client.call::<Value>(Op::Shutdown, ASK_TO_END).await
            };
            // One that still starts has no socket, and hears a signal.
            if asked.await.is_err() {
                send(running.pid, Signal::TERM);
            }
            orderly = timeout(limits::END_WITHIN, running.child.wait()).await.is_ok();
            if !orderly {
                send(running.pid, Signal::KILL);
                let _ = timeout(limits::LEFT_WITHIN, running.child.wait()).await;
            }
            self.forget();
        }
        orderly
    }

    /// Ends the watchdog, when nothing is left for it to end.
    pub(super) async fn dismiss(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            drop(watchdog.child.stdin.take());
            if timeout(limits::LEFT_WITHIN, watchdog.child.wait()).await.is_err() {
                send(watchdog.pid, Signal::KILL);
            }
            self.waited.done(watchdog.pid);
        }
    }
}

/// Resolves with the first whole line; never if there is none, for then the process's end tells more.
async fn first_line<R: AsyncRead + Unpin>(out: Option<R>) {
    if let Some(out) = out
        && let Ok(Line::Text(_)) = read_line(&mut BufReader::new(out), READY_BYTES).await
    {
        return;
    }
    std::future::pending().await
}

/// What choird said last, to be put after a sentence.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let from = lines.len().saturating_sub(limits::LAST_LINES);
    lines.iter().skip(from).map(|line| format!("\n  {line}")).collect()
}
