//! `postmaster.pid`: who runs a cluster, if anybody does.

use std::path::Path;

use super::error::ClusterError;

/// What is known of the process that `postmaster.pid` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Postmaster {
    /// There is no such file.
    None,
    /// The file is a leftover: its process is gone, or is not this cluster's Postgres.
    Stale,
    /// This process runs the cluster.
    Living(u32),
}

/// Looks at the file and at the process it names.
pub(super) fn look(data: &Path) -> Postmaster {
    let Ok(text) = std::fs::read_to_string(data.join("postmaster.pid")) else { return Postmaster::None };
    match pid_of(&text) {
        Some(pid) if runs(pid, data) => Postmaster::Living(pid),
        _ => Postmaster::Stale,
    }
}

/// Removes a leftover, so that a process that got its number by chance cannot keep the cluster from starting.
pub(super) fn remove_stale(data: &Path) -> Result<(), ClusterError> {
    let path = data.join("postmaster.pid");
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ClusterError::file(&path, &e)),
    }
}

/// The first line is the postmaster's process id.
fn pid_of(text: &str) -> Option<u32> {
    text.lines().next()?.trim().parse().ok().filter(|pid| *pid > 1)
}

/// Whether a process is a Postgres of this data folder and alive (a zombie is not).
fn runs(pid: u32, data: &Path) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state follows the command's closing bracket; the command itself may contain anything.
    let state = status.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    if matches!(state, None | Some('Z' | 'X' | 'x')) {
        return false;
    }
    let Ok(command) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut arguments = command.split(|byte| *byte == 0);
    let is_postgres = arguments.next().is_some_and(|program| program.ends_with(b"postgres"));
    is_postgres && arguments.any(|argument| argument == data.as_os_str().as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_pid_is_the_first_line() {
        assert_eq!(pid_of("4711\n/data\n1\n5432\n/sock\n\n 0 0\nready   \n"), Some(4711));
        for odd in ["", "\n", "x", "-1", "0", "1", "99999999999"] {
            assert_eq!(pid_of(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn any_file_can_be_read(text in any::<String>()) {
            let _ = pid_of(&text);
        }
    }

    #[test]
    fn a_file_that_names_a_dead_or_foreign_process_is_stale() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(look(dir.path()), Postmaster::None);
        for pid in [std::process::id().to_string(), "4194304".to_owned(), "garbage".to_owned()] {
            std::fs::write(dir.path().join("postmaster.pid"), pid).unwrap();
            assert_eq!(look(dir.path()), Postmaster::Stale);
        }
        remove_stale(dir.path()).unwrap();
        remove_stale(dir.path()).unwrap();
        assert_eq!(look(dir.path()), Postmaster::None);
    }
}
