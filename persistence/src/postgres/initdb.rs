//! Making a cluster: beside its place, then moved there, so that a half-made one is never used.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use super::NAME;
use super::binaries::Binaries;
use super::error::ClusterError;
use super::layout::{Layout, private_dir};
use super::run_as::RunAs;
use super::starting::GivenUp;

/// Longest run of `initdb`: half a second on a quiet machine, far more where the disk is shared.
const WITHIN: Duration = Duration::from_secs(120);

/// Time that it and the servers it runs have to end when told to, before they are killed. A server that ends by itself
/// gives its shared memory back.
const END_WITHIN: Duration = Duration::from_millis(500);

/// Prefix of a cluster in the making.
const UNFINISHED: &str = "data.new-";

/// Makes the cluster if there is none, from `template` (the data folder of a stopped cluster) or by `initdb`. The caller holds the manager's lock.
pub(super) async fn ensure(
    layout: &Layout,
    binaries: &Binaries,
    run_as: RunAs,
    template: Option<&Path>,
    given_up: &mut GivenUp,
) -> Result<bool, ClusterError> {
    remove_unfinished(layout)?;
    if layout.data.exists() {
        check_version(&layout.data, binaries)?;
        return Ok(false);
    }
    let unfinished = layout.root.join(format!("{UNFINISHED}{}", std::process::id()));
    match template {
        Some(template) => {
            copy(template, &unfinished)?;
            run_as.give_all(&unfinished)?;
        }
        None => initdb(layout, binaries, run_as, &unfinished, given_up).await?,
    }
    check_version(&unfinished, binaries)?;
    std::fs::rename(&unfinished, &layout.data).map_err(|e| ClusterError::file(&layout.data, &e))?;
    // The rename itself must survive a power cut.
    File::open(&layout.root)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| ClusterError::file(&layout.root, &e))?;
    Ok(true)
}

fn remove_unfinished(layout: &Layout) -> Result<(), ClusterError> {
    let fail = |e: std::io::Error| ClusterError::file(&layout.root, &e);
    for entry in std::fs::read_dir(&layout.root).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            std::fs::remove_dir_all(entry.path()).map_err(fail)?;
        }
    }
    Ok(())
}

/// Compares the cluster's version with the programs'.
fn check_version(data: &Path, binaries: &Binaries) -> Result<(), ClusterError> {
    let path = data.join("PG_VERSION");
    let text = std::fs::read_to_string(&path).map_err(|e| ClusterError::file(&path, &e))?;
    let found = text.trim();
    if found == binaries.major().to_string() {
        return Ok(());
    }
    let found = found.chars().take(20).collect();
    Err(ClusterError::WrongVersion { data: data.to_owned(), found, programs: binaries.major() })
}

async fn initdb(
    layout: &Layout,
    binaries: &Binaries,
    run_as: RunAs,
    unfinished: &Path,
    given_up: &mut GivenUp,
) -> Result<(), ClusterError> {
    private_dir(unfinished)?;
    run_as.give(unfinished)?;
    let mut command = run_as.command(binaries.program("initdb"));
    // The built-in locale sorts the same on every system, so a cluster can be moved. Small WAL segments keep a new
    // cluster small. `trust` is for the private socket, the only way in.
    command
        .arg("--pgdata")
        .arg(unfinished)
        .args(["--username", NAME, "--auth", "trust", "--encoding", "UTF8", "--locale", "C"])
        .args(["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--wal-segsize", "4"])
        .arg("--no-instructions")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let program = binaries.program("initdb");
    let child = command.spawn().map_err(|e| ClusterError::file(&program, &e))?;
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let output = child.wait_with_output();
    tokio::pin!(output);
    let instead = tokio::select! {
        biased;
        output = &mut output => Ok(output.map_err(|e| ClusterError::file(&program, &e))?),
        () = given_up.wait() => Err(ClusterError::GivenUp),
        () = tokio::time::sleep(WITHIN) => {
            Err(ClusterError::Slow { program: "initdb", seconds: WITHIN.as_secs(), log: layout.log.clone() })
        }
    };
    let output = match instead {
        Ok(output) => output,
        Err(error) => {
            // It is the leader of a group that holds the servers it runs.
            for signal in [Signal::TERM, Signal::KILL] {
                if let Some(group) = group {
                    // Gone already is as good.
                    let _ = kill_process_group(group, signal);
                }
                // Its output ends when all of them have ended.
                if tokio::time::timeout(END_WITHIN, &mut output).await.is_ok() {
                    break;
                }
            }
            remove_unfinished(layout)?;
            return Err(error);
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let heard = String::from_utf8_lossy(&output.stderr);
    // Best effort: the reason is in the error in any case.
    let _ = std::fs::write(layout.log.with_extension("initdb.log"), heard.as_bytes());
    Err(explain("initdb", &heard, layout, layout.log.with_extension("initdb.log")))
}

/// Makes an error of what a failed program said.
pub(super) fn explain(program: &'static str, said: &str, layout: &Layout, log: PathBuf) -> ClusterError {
    if said.contains("No space left on device") {
        return ClusterError::DiskFull { dir: layout.root.clone(), free_mib: layout.free_mib() };
    }
    let telling =
        |line: &&str| ["FATAL:", "PANIC:", "error:", "could not"].iter().any(|mark| line.contains(mark));
    let why = said
        .lines()
        .rfind(telling)
        .or_else(|| said.lines().rfind(|line| !line.trim().is_empty()))
        .unwrap_or("it said nothing");
    ClusterError::Failed { program, why: why.trim().chars().take(300).collect(), log }
}

/// Copies a folder of plain files and folders, as a cluster is.
fn copy(from: &Path, to: &Path) -> Result<(), ClusterError> {
    private_dir(to)?;
    for entry in std::fs::read_dir(from).map_err(|e| ClusterError::file(from, &e))? {
        let entry = entry.map_err(|e| ClusterError::file(from, &e))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy(&source, &target)?;
        } else {
            std::fs::copy(&source, &target).map_err(|e| ClusterError::file(&source, &e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_fatal_line_are_told_from_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::prepare(dir.path()).unwrap();
        let full =
            "LOG:  x\nPANIC:  could not write to file \"pg_wal/xlogtemp.1\": No space left on device\n";
        assert!(matches!(explain("postgres", full, &layout, PathBuf::new()), ClusterError::DiskFull { .. }));
        let fatal = "2026 FATAL:  lock file is empty\n2026 LOG:  database system is shut down\n";
        let ClusterError::Failed { why, .. } = explain("postgres", fatal, &layout, PathBuf::new()) else {
            panic!("not a failure")
        };
        assert!(why.contains("lock file is empty"));
        assert!(explain("postgres", "", &layout, PathBuf::new()).to_string().contains("said nothing"));
    }
}
