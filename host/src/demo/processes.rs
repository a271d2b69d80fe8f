//! Who runs because of the demo. The demo declares itself the reaper of its descendants, so whatever loses its parent
//! becomes its child instead of slipping away: what it started, at any remove, is found by walking down from it.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// How often ended descendants are reaped. The kernel tells of a child's end once for many, so looking is needed anyway.
const REAP_EVERY: Duration = Duration::from_millis(25);

/// A process below the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    parent: u32,
    dead: bool,
}

/// Children that are waited for by whoever started them, and so must not be reaped here.
#[derive(Debug, Clone, Default)]
pub(super) struct Waited(Arc<Mutex<BTreeSet<u32>>>);

impl Waited {
    /// Starts a child and notes it, with no moment between in which it could be reaped.
    pub(super) fn spawn(
        &self,
        command: &mut tokio::process::Command,
    ) -> std::io::Result<tokio::process::Child> {
        let mut waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        waited.extend(child.id());
        Ok(child)
    }

    /// The child was waited for.
    pub(super) fn done(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }

    fn reap(&self) {
        let waited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::process::id();
        for process in all() {
            if process.parent == own && process.dead && !waited.contains(&process.pid) {
                // Not a child any more is as good.
                let _ = waitpid(pid(process.pid), WaitOptions::NOHANG);
            }
        }
    }
}

/// Becomes the reaper of all descendants, now and as long as the returned task runs.
pub(super) fn adopt(waited: &Waited) -> std::io::Result<tokio::task::JoinHandle<()>> {
    set_child_subreaper(Some(getpid()))?;
    let waited = waited.clone();
    Ok(tokio::spawn(async move {
        loop {
            waited.reap();
            tokio::time::sleep(REAP_EVERY).await;
        }
    }))
}

/// The living descendants of this process, nearest first.
pub(super) fn descendants() -> Vec<Process> {
    below(std::process::id(), &all())
}

/// Sends a signal to one process. Whether it is gone already does not matter.
pub(super) fn send(to: u32, signal: Signal) {
    if let Some(pid) = pid(to) {
        let _ = kill_process(pid, signal);
    }
}

fn pid(number: u32) -> Option<Pid> {
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

fn below(root: u32, all: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut layer = BTreeSet::from([root]);
    let mut seen = layer.clone();
    while !layer.is_empty() {
        let next: Vec<&Process> =
            all.iter().filter(|p| layer.contains(&p.parent) && !seen.contains(&p.pid)).collect();
        layer = next.iter().map(|p| p.pid).collect();
        seen.extend(&layer);
        // A dead one is nobody, but its children are.
        found.extend(next.into_iter().filter(|p| !p.dead).cloned());
    }
    found
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| parse(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Reads `/proc/<pid>/stat`. The name in it is the process's own choice and may hold anything, parentheses too.
fn parse(pid: u32, stat: &[u8]) -> Option<Process> {
    let (open, close) = (stat.iter().position(|b| *b == b'(')?, stat.iter().rposition(|b| *b == b')')?);
    let name = String::from_utf8_lossy(stat.get(open + 1..close)?).into_owned();
    let mut rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let dead = matches!(rest.next()?, "Z" | "X" | "x");
    Some(Process { pid, name, parent: rest.next()?.parse().ok()?, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, dead: bool) -> Process {
        Process { pid, name: format!("p{pid}"), parent, dead }
    }

    #[test]
    fn a_line_is_read_whatever_the_process_calls_itself() {
        let read = parse(7, b"7 (a) R 1 (b) S 3 4 5").unwrap();
        assert_eq!((read.name.as_str(), read.parent, read.dead), ("a) R 1 (b", 3, false));
        assert!(parse(7, b"7 (x) Z 1 1").unwrap().dead);
        for odd in [&b""[..], b"7 (x", b"7 (x)", b"7 (x) S", b") (", b"7 (x) S y"] {
            assert_eq!(parse(7, odd), None);
        }
    }

    #[test]
    fn descendants_are_found_through_dead_parents_and_others_are_left_out() {
        let all = [
            process(2, 1, false),
            process(3, 2, true),
            process(4, 3, false),
            process(5, 9, false),
            process(1, 1, false),
        ];
        let pids: Vec<u32> = below(1, &all).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [2, 4]);
    }
}
