//! Processes that left their command's group (daemons, `setsid`). Each carries the call's mark in its environment,
//! where the kernel shows it; only one that wiped its environment on purpose is missed, and the sandbox ends that one
//! with the agent.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::limits::REAP_ROUNDS;

/// Most of a process's environment that is looked at, in bytes: the mark stands near its beginning.
const ENVIRON_BYTES: u64 = 256 * 1024;

/// Kills every process whose environment holds this `NAME=value`. Returns how many.
pub(super) fn kill_marked(mark: &str) -> usize {
    let mut killed = 0;
    for _ in 0..REAP_ROUNDS {
        let round = marked(mark).into_iter().filter(kill).count();
        if round == 0 {
            break;
        }
        killed += round;
    }
    killed
}

fn kill(process: &OwnedFd) -> bool {
    pidfd_send_signal(process, Signal::KILL).is_ok()
}

/// Handles of the living processes with this mark. The mark is looked at again once the handle is open, so that a
/// number that is used again in between hits nobody else.
fn marked(mark: &str) -> Vec<OwnedFd> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
            let handle = has_mark(pid, mark).then(|| pidfd_open(pid, PidfdFlags::empty()))?.ok()?;
            has_mark(pid, mark).then_some(handle)
        })
        .collect()
}

fn has_mark(pid: Pid, mark: &str) -> bool {
    let mut environ = Vec::new();
    // Others' processes cannot be read, and a zombie has no environment any more.
    let read = fs::File::open(format!("/proc/{}/environ", pid.as_raw_nonzero()))
        .and_then(|file| file.take(ENVIRON_BYTES).read_to_end(&mut environ));
    read.is_ok() && environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
}
