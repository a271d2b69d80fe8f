//! Room on the disks that choird writes to. A full one is said wherever an operator looks, with what it stops and what
//! ends it; nothing has to be restarted afterwards.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::config::{Config, Postgres};
use crate::control::views::Check;
use crate::state_dir::StateDir;

/// Free space under the database below which an operator should act, in MiB: logs and the journal grow.
const ROOM_MIB: u64 = 512;

/// A disk with less than this many MiB is full: what is left goes to file systems' own needs.
const FULL_MIB: u64 = 1;

/// Elsewhere, the part of a disk that should be free: one in so many. A small disk for logs is not low for being small.
const ROOM_PART: u64 = 20;

/// What is on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// The state, and in it the private database.
    Database,
    /// The state without a database.
    State,
    Logs,
    Workspace,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    id: String,
    what: String,
    holds: Holds,
    path: PathBuf,
    free_mib: u64,
    total_mib: u64,
}

/// The disks that choird and its agents write to, each once, under the most important thing on it.
pub(crate) fn disks(state: &StateDir, config: Option<&Config>) -> Vec<Disk> {
    let embedded = config.is_none_or(|config| matches!(config.postgres, Postgres::Embedded { .. }));
    let holds = if embedded { Holds::Database } else { Holds::State };
    let mut places = vec![
        ("disk".to_owned(), "the state directory".to_owned(), holds, state.root().to_owned()),
        ("disk-logs".to_owned(), "the logs".to_owned(), Holds::Logs, state.logs()),
    ];
    for (name, workspace) in config.iter().flat_map(|config| &config.workspaces) {
        let what = format!("workspace \"{name}\"");
        places.push((format!("disk-workspace-{name}"), what, Holds::Workspace, workspace.path.clone()));
    }
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for (id, what, holds, path) in places {
        // A folder that is not there yet will be made on the disk of the folder above it.
        let Some((path, device)) = path.ancestors().find_map(|path| Some((path, device(path)?))) else {
            continue;
        };
        if seen.contains(&device) {
            continue;
        }
        seen.push(device);
        let Ok(stat) = rustix::fs::statvfs(path) else { continue };
        let mib = |blocks: u64| blocks.saturating_mul(stat.f_frsize) / (1024 * 1024);
        let (free_mib, total_mib) = (mib(stat.f_bavail), mib(stat.f_blocks));
        found.push(Disk { id, what, holds, path: path.to_owned(), free_mib, total_mib });
    }
    found
}

fn device(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|meta| meta.dev())
}

impl Disk {
    fn is_full(&self) -> bool {
        self.free_mib
            < if self.holds == Holds::Database { choir_persistence::postgres::FREE_MIB } else { FULL_MIB }
    }

    fn is_low(&self) -> bool {
        self.free_mib < ROOM_MIB
            && (self.holds == Holds::Database || self.free_mib.saturating_mul(ROOM_PART) < self.total_mib)
    }

    fn evidence(&self) -> String {
        let Self { what, free_mib, total_mib, path, .. } = self;
        let full = if self.is_full() { " is full" } else { "" };
        format!("the disk of {what}{full}: {free_mib} of {total_mib} MiB are free under {}", path.display())
    }

    /// What a full one stops, and what to do.
    fn consequence(&self) -> &'static str {
        match self.holds {
            Holds::Database => {
                "free some space: without room messages are refused and agents wait; then everything goes on by itself"
            }
            Holds::State => "free some space: configuration, secrets and agents' sockets cannot be written",
            Holds::Logs => "free some space: log lines are lost until then, and nothing else",
            Holds::Workspace => "free some space: the agents in it are told that their writes failed",
        }
    }

    /// For `choirctl doctor`.
    pub(crate) fn check(&self) -> Check {
        let (id, evidence) = (self.id.as_str(), self.evidence());
        if self.is_full() && matches!(self.holds, Holds::Database | Holds::State) {
            Check::fail(id, evidence, self.consequence())
        } else if self.is_full() || self.is_low() {
            Check::warn(id, evidence, self.consequence())
        } else {
            Check::ok(id, evidence)
        }
    }

    /// For `choirctl status`, if there is anything to say.
    pub(crate) fn warning(&self) -> Option<String> {
        (self.is_full() || self.is_low()).then(|| format!("{}; {}", self.evidence(), self.consequence()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::views::CheckStatus;

    fn disk(holds: Holds, free_mib: u64, total_mib: u64) -> Disk {
        Disk { id: "disk".into(), what: "the logs".into(), holds, path: "/x".into(), free_mib, total_mib }
    }

    #[test]
    fn a_disk_is_judged_by_what_is_on_it() {
        for (holds, free, total, status) in [
            (Holds::Database, 10_000, 20_000, CheckStatus::Ok),
            (Holds::Database, 511, 100_000, CheckStatus::Warn),
            (Holds::Database, 63, 100_000, CheckStatus::Fail),
            (Holds::State, 63, 100_000, CheckStatus::Warn),
            (Holds::State, 0, 100_000, CheckStatus::Fail),
            (Holds::Logs, 30, 40, CheckStatus::Ok),
            (Holds::Logs, 1, 40, CheckStatus::Warn),
            (Holds::Workspace, 0, 1, CheckStatus::Warn),
        ] {
            let disk = disk(holds, free, total);
            assert_eq!(disk.check().status, status, "{disk:?}");
            assert_eq!(disk.warning().is_some(), status != CheckStatus::Ok, "{disk:?}");
            assert_eq!(disk.check().fix.is_some(), status != CheckStatus::Ok);
        }
    }

    #[test]
    fn each_disk_is_told_of_once_even_for_folders_that_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&dir.path().join("not/there"))).unwrap();
        let found = disks(&state, None);
        assert_eq!(found.len(), 1);
        assert!(found[0].path == dir.path() && found[0].id == "disk", "{found:?}");
    }
}
