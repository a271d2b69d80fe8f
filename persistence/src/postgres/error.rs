//! What can go wrong with the private cluster, each as one sentence with what to do next.

use std::path::PathBuf;

/// Why there is no running cluster.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClusterError {
    /// No programs anywhere.
    #[error(
        "PostgreSQL's programs were not found (looked in {}): run scripts/fetch-postgres, or set {} to their folder, or set {} to \
         the URL of a server",
        list(.looked), super::POSTGRES_BIN_VAR, super::DATABASE_URL_VAR
    )]
    NoBinaries {
        /// Folders that were looked at.
        looked: Vec<PathBuf>,
    },
    /// A folder that was named holds no usable programs.
    #[error("{} does not hold PostgreSQL's programs: {why}", .dir.display())]
    BadBinaries {
        /// The folder.
        dir: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The cluster was made by another major version.
    #[error(
        "the database in {} was made by PostgreSQL {found}, the programs are version {programs}: set {} to the programs of \
         version {found}, or dump it with them and restore it into a new one",
        .data.display(), super::POSTGRES_BIN_VAR
    )]
    WrongVersion {
        /// The cluster.
        data: PathBuf,
        /// Its version.
        found: String,
        /// The programs' version.
        programs: u32,
    },
    /// Another choird manages this cluster.
    #[error("another choird manages the database in {}: stop it first", .dir.display())]
    Managed {
        /// The folder.
        dir: PathBuf,
    },
    /// The disk is full, or nearly.
    #[error("the disk under {} is full or nearly so ({free_mib} MiB free, {} MiB needed): free some space and start again",
        .dir.display(), super::layout::FREE_MIB)]
    DiskFull {
        /// A folder on that disk.
        dir: PathBuf,
        /// What is free.
        free_mib: u64,
    },
    /// No folder for the socket that is short enough and safe.
    #[error("no folder for the database's socket: {why}; use a shorter state folder")]
    NoSocketFolder {
        /// What is wrong.
        why: String,
    },
    /// Postgres refuses root and no other user can be had.
    #[error(
        "PostgreSQL refuses to run as root, and neither a user namespace nor the user \"nobody\" could be used ({why}): run choird as \
         an ordinary user, or set {} to the URL of a server",
        super::DATABASE_URL_VAR
    )]
    Root {
        /// What was tried.
        why: String,
    },
    /// A file operation failed.
    #[error("{}: {why}", .path.display())]
    File {
        /// On what.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A program failed.
    #[error("{program} failed: {why} (its log: {})", .log.display())]
    Failed {
        /// Which.
        program: &'static str,
        /// The last thing it said.
        why: String,
        /// Where it said more.
        log: PathBuf,
    },
    /// A program took too long.
    #[error("{program} was not done within {seconds} s (its log: {})", .log.display())]
    Slow {
        /// Which.
        program: &'static str,
        /// How long was waited.
        seconds: u64,
        /// Where it said more.
        log: PathBuf,
    },
    /// Nobody waits for the start any more, so it was undone.
    #[error("the start of the database was given up")]
    GivenUp,
    /// A URL that cannot be used.
    #[error("{setting} is not a usable Postgres URL (postgres://user@host/database): {why}")]
    BadUrl {
        /// Where it came from.
        setting: &'static str,
        /// What is wrong; never the URL, which may hold a password.
        why: String,
    },
}

impl ClusterError {
    pub(super) fn file(path: &std::path::Path, error: &impl ToString) -> Self {
        Self::File { path: path.to_owned(), why: error.to_string() }
    }

    /// Whether starting again a little later may help without anyone doing anything.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::Slow { .. } | Self::Managed { .. } | Self::DiskFull { .. })
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}
