//! Processes that left their command's group (daemons, `setsid`). Each carries the call's mark in its environment,
//! where the kernel shows it; only one that wiped its environment on purpose is missed, and the sandbox ends that one
//! with the agent.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::limits::REAP_ROUNDS;

/// Most of a process's environment that is looked at, in bytes: the mark stands near its beginning.
const ENVIRON_BYTES: u64 = 256 * 1024;

/// The kernel's mark of its own threads (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Pause before another look where some program's environment was empty. An `exec` is over by then; a program that really
/// has none costs each call a few of these.
const BLANK_PAUSE: Duration = Duration::from_millis(1);

/// Kills every process whose environment holds this `NAME=value`. Returns how many.
pub(super) fn kill_marked(mark: &str) -> usize {
    let mut killed = 0;
    for _ in 0..REAP_ROUNDS {
        let found = marked(mark);
        let round = found.processes.into_iter().filter(kill).count();
        killed += round;
        if round == 0 {
            if !found.blank {
                break;
            }
            std::thread::sleep(BLANK_PAUSE);
        }
    }
    killed
}

fn kill(process: &OwnedFd) -> bool {
    pidfd_send_signal(process, Signal::KILL).is_ok()
}

/// What a look at all processes found.
#[derive(Default)]
struct Found {
    /// Handles of the living ones with the mark.
    processes: Vec<OwnedFd>,
    /// Whether some program's environment was empty: it may have none, or be between two programs (`exec`), when the
    /// kernel shows none.
    blank: bool,
}

/// Looks at all processes. The mark is looked at again once the handle is open, so that a number that is used again in
/// between hits nobody else.
fn marked(mark: &str) -> Found {
    let mut found = Found::default();
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?));
    for pid in pids {
        match environment(pid) {
            Some(environ) if environ.is_empty() => found.blank = found.blank || is_program(pid),
            Some(environ) if has_mark(&environ, mark) => {
                let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
                match environment(pid) {
                    Some(environ) if environ.is_empty() => found.blank = true,
                    Some(environ) if has_mark(&environ, mark) => found.processes.push(handle),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    found
}

/// A process's environment; none of others' processes, which cannot be read.
fn environment(pid: Pid) -> Option<Vec<u8>> {
    let mut environ = Vec::new();
    let file = fs::File::open(format!("/proc/{}/environ", pid.as_raw_nonzero())).ok()?;
    file.take(ENVIRON_BYTES).read_to_end(&mut environ).ok()?;
    Some(environ)
}

fn has_mark(environ: &[u8], mark: &str) -> bool {
    environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
}

/// Whether this is neither a zombie nor a thread of the kernel, which never have an environment.
fn is_program(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { return false };
    // The name stands in parentheses and may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let flags: Option<u64> = fields.nth(5).and_then(|flags| flags.parse().ok());
    !matches!(state, Some("Z" | "X") | None) && flags.is_some_and(|flags| flags & KERNEL_THREAD == 0)
}
