//! Agents that outlived the host that started them. The kernel kills them with the host; what escaped that (a tool's
//! background process, where there is no process namespace) still carries the sandbox's marker.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, timeout_at};

use crate::pidfd::PidFd;
use crate::procfs::{self, ProcessIdentity};
use crate::{KILL_DEADLINE, SandboxError};

/// A process that belongs to a sandbox of this installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// Which process.
    pub identity: ProcessIdentity,
    /// Its sandbox's marker: `<label>/<id>`.
    pub marker: String,
}

/// Every living process that carries a marker of this label. Call it before the first agent is started: it cannot tell
/// leftovers from agents of the host that asks. Reads `/proc` on this thread, some milliseconds.
#[must_use]
pub fn find_orphans(label: &str) -> Vec<Orphan> {
    let own = std::process::id();
    procfs::living()
        .into_iter()
        .filter(|stat| stat.pid != own)
        .filter_map(|stat| {
            let marker = procfs::marker(stat.pid)?;
            let (whose, _) = marker.split_once('/')?;
            (whose == label).then(|| Orphan { identity: stat.identity(), marker })
        })
        .collect()
}

/// Kills the process that was recorded as `identity` and waits until it is gone, at most `deadline`. A pid that now
/// belongs to another process is left alone.
///
/// Errors: [`SandboxError::Gone`], [`SandboxError::NotTheSame`], [`SandboxError::NotDead`].
pub async fn kill_orphan(identity: &ProcessIdentity, deadline: Duration) -> Result<(), SandboxError> {
    let pid = identity.pid;
    let until = Instant::now() + deadline;
    let process = PidFd::open(pid).map_err(|_| SandboxError::Gone)?;
    // The pidfd holds on to whoever has the pid now; only then is it worth asking who that is.
    match procfs::stat(pid) {
        None => return Err(SandboxError::Gone),
        Some(now) if now.identity() != *identity => return Err(SandboxError::NotTheSame { pid }),
        Some(now) if now.is_dead() => return Err(SandboxError::Gone),
        Some(_) => {}
    }
    let what = "a leftover agent could not be killed";
    process.signal(Signal::KILL).map_err(SandboxError::system(what))?;
    let end = process.watch().map_err(SandboxError::system(what))?;
    match timeout_at(until, end.reached()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(SandboxError::system(what)(error)),
        Err(_) => Err(SandboxError::NotDead { pid, after: deadline }),
    }
}

/// Kills every leftover of this label until none is found; returns how many were killed. At most [`KILL_DEADLINE`].
pub async fn end_orphans(label: &str) -> Result<usize, SandboxError> {
    let until = Instant::now() + KILL_DEADLINE;
    let mut killed = 0;
    loop {
        let found = find_orphans(label);
        let Some(first) = found.first() else { return Ok(killed) };
        if Instant::now() >= until {
            return Err(SandboxError::NotDead { pid: first.identity.pid, after: KILL_DEADLINE });
        }
        for orphan in &found {
            match kill_orphan(&orphan.identity, until.saturating_duration_since(Instant::now())).await {
                Ok(()) => killed += 1,
                Err(SandboxError::Gone | SandboxError::NotTheSame { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
