//! What `/proc` says, and signals to processes that were verified there first. Nothing is ever found by name.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// A process, told apart from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    started: u64,
}

struct Stat {
    state: u8,
    parent: u32,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything; what follows the last bracket is plain.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

impl Process {
    /// The living process with this number.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = stat(pid)?;
        (!matches!(stat.state, b'Z' | b'X')).then_some(Self { pid, started: stat.started })
    }

    /// Whether it still lives.
    pub(super) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Whether it descends from another process.
    pub(super) fn descends_from(self, ancestor: u32) -> bool {
        let mut pid = self.pid;
        // Deeper than any tree of ours.
        for _ in 0..16 {
            match stat(pid) {
                Some(stat) if stat.parent == ancestor => return true,
                Some(stat) if stat.parent > 1 => pid = stat.parent,
                _ => return false,
            }
        }
        false
    }

    /// Its living children.
    pub(super) fn children(self) -> Vec<Self> {
        pids()
            .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == self.pid))
            .filter_map(Self::of)
            .collect()
    }

    /// Whether one of its arguments is exactly this path.
    pub(super) fn was_given(self, path: &Path) -> bool {
        let Ok(line) = fs::read(format!("/proc/{}/cmdline", self.pid)) else { return false };
        line.split(|byte| *byte == 0).any(|argument| argument == path.as_os_str().as_encoded_bytes())
    }

    /// Sends a signal, unless the process is gone.
    pub(super) fn signal(self, signal: Signal) {
        let raw = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = raw.filter(|_| self.lives()) {
            // The only failure is that it ended just now.
            let _ = kill_process(pid, signal);
        }
    }
}

fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Every living process but this one that has a path in its command line, its environment or as its working directory.
pub(super) fn holding(path: &Path) -> Vec<String> {
    let needle = path.as_os_str().as_encoded_bytes();
    let has = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let mut found = Vec::new();
    for pid in pids().filter(|pid| *pid != std::process::id()) {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let dir = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        let holds = has(&read("cmdline")) || has(&read("environ")) || dir.starts_with(path);
        if holds && Process::of(pid).is_some() {
            let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push(format!("{pid}: {}", line.trim()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_its_successor_and_found_by_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read x"])
            .arg(dir.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = Process::of(child.id()).unwrap();
        let me = Process::of(std::process::id()).unwrap();
        assert!(process.lives() && process.descends_from(me.pid) && me.children().contains(&process));
        assert!(!Process { started: process.started + 1, ..process }.lives());
        assert!(process.was_given(dir.path()) && !process.was_given(Path::new("read")));
        assert_eq!(holding(dir.path()).len(), 1);
        process.signal(Signal::KILL);
        child.wait().unwrap();
        assert!(!process.lives() && holding(dir.path()).is_empty());
    }
}
