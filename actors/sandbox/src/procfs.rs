//! What `/proc` says of processes: who they are, who started them, which sandbox they carry the marker of.

use std::collections::HashSet;
use std::fs;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::MARKER;
use crate::pidfd::PidFd;

/// A process, told apart from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub started: u64,
    /// Id of the boot that `started` counts from.
    pub boot: String,
}

impl ProcessIdentity {
    /// The identity of a living process, or none.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = stat(pid)?;
        Some(Self { pid, started: stat.started, boot: boot_id() })
    }

    /// Whether this very process still runs (a zombie does not).
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.boot == boot_id()
            && stat(self.pid).is_some_and(|now| now.started == self.started && !now.is_dead())
    }
}

/// The id of this boot of the machine; empty where the kernel does not tell.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|t| t.trim().to_owned()).unwrap_or_default()
}

/// The part of `/proc/<pid>/stat` that matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) pid: u32,
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    pub(crate) started: u64,
}

impl Stat {
    /// Dead, and only waiting for its parent to notice.
    pub(crate) const fn is_dead(self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    pub(crate) fn identity(self) -> ProcessIdentity {
        ProcessIdentity { pid: self.pid, started: self.started, boot: boot_id() }
    }
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(pid, &fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a stat line. The command's name is chosen by the process and may contain anything, so the fields are counted
/// from the last closing parenthesis.
fn parse_stat(pid: u32, line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Field 22 of the line; `session` was field 6.
    let started = fields.nth(15)?.parse().ok()?;
    Some(Stat { pid, state, parent, group, session, started })
}

/// Every process that is not dead.
pub(crate) fn living() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .filter(|stat| !stat.is_dead())
        .collect()
}

/// The sandbox marker a process was started with, if its environment may be read.
pub(crate) fn marker(pid: u32) -> Option<String> {
    marker_in(&fs::read(format!("/proc/{pid}/environ")).ok()?)
}

fn marker_in(environ: &[u8]) -> Option<String> {
    environ
        .split(|b| *b == 0)
        .find_map(|entry| entry.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))
        .and_then(|value| String::from_utf8(value.to_vec()).ok())
}

/// The descendants of a process, nearest first, by the parents they have now.
pub(crate) fn descendants(root: u32, all: &[Stat]) -> Vec<Stat> {
    let mut seen = HashSet::from([root]);
    let mut found: Vec<Stat> = Vec::new();
    let mut layer = vec![root];
    while !layer.is_empty() {
        let next: Vec<Stat> =
            all.iter().filter(|s| layer.contains(&s.parent) && !seen.contains(&s.pid)).copied().collect();
        layer = next.iter().map(|s| s.pid).collect();
        seen.extend(&layer);
        found.extend(next);
    }
    found
}

/// Whoever belongs to the sandbox that `leader` was started for, without the leader: its descendants, its session and
/// group (a child that outlived its parent keeps those), and whoever carries the sandbox's marker.
///
/// Call it only while the leader is alive or not reaped: its pid then cannot name another session.
pub(crate) fn members(leader: u32, sandbox: &str) -> Vec<Stat> {
    let all = living();
    let own = std::process::id();
    let below: HashSet<u32> = descendants(leader, &all).iter().map(|s| s.pid).collect();
    all.into_iter()
        .filter(|s| s.pid != leader && s.pid != own)
        .filter(|s| {
            below.contains(&s.pid)
                || s.session == leader
                || s.group == leader
                || marker(s.pid).is_some_and(|m| m == sandbox)
        })
        .collect()
}

/// Kills exactly this process: the pidfd is taken first and the start time compared after, so that a recycled pid is
/// never hit. Returns whether a signal was sent.
pub(crate) fn kill_exactly(pid: u32, started: u64) -> bool {
    let Ok(process) = PidFd::open(pid) else { return false };
    stat(pid).is_some_and(|now| now.started == started) && process.signal(Signal::KILL).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_command_name_full_of_parentheses_does_not_shift_the_fields() {
        let line = b"42 (a) R 1 (x) S 7 8 9 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        assert_eq!(
            parse_stat(42, line),
            Some(Stat { pid: 42, state: b'S', parent: 7, group: 8, session: 9, started: 777 })
        );
    }

    #[test]
    fn this_process_is_itself_and_not_another_start_of_its_pid() {
        let me = ProcessIdentity::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!ProcessIdentity { started: me.started + 1, ..me.clone() }.is_alive());
        assert!(!ProcessIdentity { boot: "another".into(), ..me.clone() }.is_alive());
        assert!(!kill_exactly(me.pid, me.started + 1));
    }

    #[test]
    fn a_marker_is_read_whole_and_only_from_its_own_variable() {
        assert_eq!(marker_in(b"A=1\0CHOIR_SANDBOX=l/1\0"), Some("l/1".into()));
        assert_eq!(marker_in(b"X_CHOIR_SANDBOX=l/1\0CHOIR_SANDBOXES=2\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_stat(1, &bytes);
            let _ = marker_in(&bytes);
        }

        #[test]
        fn descendants_end_even_in_a_table_with_loops(pairs in proptest::collection::vec((0u32..20, 0u32..20), 0..60)) {
            let all: Vec<Stat> = pairs
                .iter()
                .map(|(pid, parent)| Stat { pid: *pid, state: b'S', parent: *parent, group: 0, session: 0, started: 0 })
                .collect();
            prop_assert!(descendants(0, &all).iter().all(|s| s.pid != 0));
        }
    }
}
