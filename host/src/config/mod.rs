//! `config.json`: read, checked, and refused with every problem named at once (`choir §6.3`).

mod coordinator;
mod diff;
mod identity;
mod later;
mod link;
mod reader;
mod rules;
mod template;
mod types;

use std::io::Read;
use std::path::Path;

pub use diff::{Change, Effect};
pub use identity::{IdentitySection, OidcSection, VcIssuer, VcSection};
pub use reader::Problem;
pub(crate) use reader::{At, Node, Problems, known_list, nearest, parse};
pub use template::{Template, template};
pub use types::{
    Agent, Config, Coordinator, CoordinatorTls, FORMAT, Link, Model, Postgres, SandboxChoice, Telemetry,
    Workspace,
};

use crate::limits;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {file}: {reason}{}", next_step(.file, .reason))]
    Unreadable {
        /// Which file.
        file: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// Larger than [`limits::CONFIG_BYTES`].
    #[error("{file} is larger than {} bytes; is it the right file?", limits::CONFIG_BYTES)]
    TooLarge {
        /// Which file.
        file: String,
    },
    /// Permissions that would let others read secrets.
    #[error("{file} {what}; {fix}")]
    Exposed {
        /// Which file.
        file: String,
        /// What is wrong.
        what: String,
        /// The command that cures it.
        fix: String,
    },
    /// Its content is wrong.
    #[error("{file} has {}:\n{}", count(.problems), list(.problems))]
    Invalid {
        /// Which file.
        file: String,
        /// Everything wrong with it.
        problems: Vec<Problem>,
    },
}

fn next_step(file: &str, reason: &std::io::Error) -> String {
    if reason.kind() != std::io::ErrorKind::NotFound {
        return String::new();
    }
    if file.ends_with("secrets.json") {
        "; `choirctl secret set NAME` creates it".into()
    } else {
        "; `choirctl init` creates it".into()
    }
}

fn count(problems: &[Problem]) -> String {
    if problems.len() == 1 { "a problem".into() } else { format!("{} problems", problems.len()) }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n")
}

/// Reads at most [`limits::CONFIG_BYTES`] of a regular file.
pub(crate) fn read_bounded(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let file = path.display().to_string();
    let unreadable = |reason| ConfigError::Unreadable { file: path.display().to_string(), reason };
    let handle = std::fs::File::open(path).map_err(unreadable)?;
    if !handle.metadata().map_err(unreadable)?.is_file() {
        return Err(unreadable(std::io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    handle.take(limits::CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limits::CONFIG_BYTES { Err(ConfigError::TooLarge { file }) } else { Ok(bytes) }
}

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to the file's directory.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let bytes = read_bounded(path)?;
        let base = path.parent().unwrap_or(Path::new("."));
        Self::from_json(&bytes, base)
            .map_err(|problems| ConfigError::Invalid { file: path.display().to_string(), problems })
    }

    /// Checks a text. All problems are reported together.
    pub fn from_json(bytes: &[u8], base: &Path) -> Result<Self, Vec<Problem>> {
        let node = parse(bytes).map_err(|problem| vec![problem])?;
        let mut problems = Problems::default();
        let config = rules::read(&At::root(&node), base, &mut problems);
        let problems = problems.into_vec();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(problems),
        }
    }
}

/// Reads an identity file, which has the form of the section `coordinator.identity`.
pub(crate) fn read_identity_section(bytes: &[u8]) -> Result<IdentitySection, Vec<Problem>> {
    let node = parse(bytes).map_err(|problem| vec![problem])?;
    let mut problems = Problems::default();
    let section = identity::read(&At::root(&node), &mut problems);
    let problems = problems.into_vec();
    match section {
        Some(section) if problems.is_empty() => Ok(section),
        _ => Err(problems),
    }
}

#[cfg(test)]
mod tests;
