//! The demo's state folder: a temporary one, or one that was named and is not somebody's real installation.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use choir_messages::id::MessageId;

use crate::config::{Config, Template, template};
use crate::control::{ControlError, ErrorCode};
use crate::state_dir::{StateDir, fits_a_socket};

use super::AGENT;
use super::house::agent;
use super::model::Access;
use super::stale::{self, Held};

/// Marks a folder as made by the demo, so that it may be written over by the next one.
const MARK: &str = "made-by-choirctl-demo";

/// The folder, and whether it goes with the demo.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) state: StateDir,
    /// It was made by this run.
    new: bool,
    keep: bool,
    workspace: PathBuf,
    /// This run's hold on a folder that goes with it, so that it can be told from one that was left behind.
    held: Option<Held>,
}

fn runtime(path: &Path, error: &std::io::Error) -> ControlError {
    ControlError::new(ErrorCode::Runtime, format!("cannot use {}: {error}", path.display()))
}

impl Folder {
    /// Makes the folder, private to this user. A play works in an empty folder of its own, so that what an earlier one
    /// left is not counted again.
    pub(super) fn make(named: Option<&Path>, keep: bool, script: bool) -> Result<Self, ControlError> {
        let (state, new) = match named {
            None => (temporary()?, true),
            Some(dir) => {
                let state = StateDir::locate(Some(dir))?;
                let there = state.root().exists();
                let empty =
                    there && fs::read_dir(state.root()).is_ok_and(|mut entries| entries.next().is_none());
                if there && !empty && !state.root().join(MARK).exists() {
                    let what = format!(
                        "{} is in use by something else than a demo; nothing was changed",
                        state.root().display()
                    );
                    return Err(ControlError::new(ErrorCode::Refused, what)
                        .next("leave out --state-dir (and unset CHOIR_STATE_DIR), or name a folder that does not exist yet"));
                }
                (state, !there)
            }
        };
        // Before anything is made: the longest of the paths that must fit.
        fits_a_socket(&state.link_dir(&agent()?).join("link.sock"))?;
        let workspace =
            state.root().join(if script { format!("play-{}", random_name()) } else { "workspace".into() });
        let mut folder = Self { state, new, keep, workspace, held: None };
        folder.state.create()?;
        if folder.goes() {
            let held = Held::take(folder.state.root()).map_err(|e| runtime(folder.state.root(), &e))?;
            folder.held = Some(held);
        }
        let mark = folder.state.root().join(MARK);
        fs::write(&mark, "").map_err(|e| runtime(&mark, &e))?;
        Ok(folder)
    }

    /// The agent's working folder.
    pub(super) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Where choird's own last words go.
    pub(super) fn words_of_choird(&self) -> PathBuf {
        self.state.root().join("logs/choird.stderr")
    }

    /// Writes `config.json`, as `choirctl init` does, and `secrets.json`.
    pub(super) fn configure(&self, model: &Access) -> Result<(), ControlError> {
        let workspace = self.workspace.as_path();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(workspace)
            .map_err(|e| runtime(workspace, &e))?;
        let text = template(&Template {
            agent: AGENT,
            workspace,
            model: &model.model,
            endpoint: &model.endpoint,
            secret: Some(SECRET),
        });
        Config::from_json(text.as_bytes(), self.state.root()).map_err(|problems| {
            let list: Vec<_> = problems.iter().map(ToString::to_string).collect();
            ControlError::new(ErrorCode::Usage, format!("{} cannot be used: {}", model.said, list.join("; ")))
        })?;
        let config = self.state.config();
        fs::write(&config, text).map_err(|e| runtime(&config, &e))?;
        crate::secrets::Secrets::set(&self.state.secrets(), SECRET, &model.key)?;
        Ok(())
    }

    /// Whether the folder will be removed at the end.
    pub(super) const fn goes(&self) -> bool {
        self.new && !self.keep
    }

    /// Leaves the folder where it is. The key is taken out of one that stays only to show what went wrong.
    pub(super) fn stays(&self, damaged: bool) {
        if damaged && !self.keep {
            let _ = fs::remove_file(self.state.secrets());
        }
        if let Some(held) = &self.held {
            held.leave();
        }
    }

    /// Removes the folders of demos that were killed, and says which.
    pub(super) fn sweep() -> Vec<PathBuf> {
        stale::sweep(&bases())
    }

    /// Removes it.
    pub(super) fn remove(&self) -> Result<(), ControlError> {
        fs::remove_dir_all(self.state.root()).map_err(|e| runtime(self.state.root(), &e))
    }
}

/// Name of the secret with the model's key.
const SECRET: &str = "model-key";

/// A name that nobody can have guessed: the random end of a fresh id.
fn random_name() -> String {
    let id = MessageId::fresh().to_string().to_ascii_lowercase();
    id.get(16..).unwrap_or(&id).to_owned()
}

/// Where temporary folders are: the usual place, and `/tmp` where that is too long a path for sockets.
fn bases() -> Vec<PathBuf> {
    let mut bases = vec![std::env::temp_dir(), PathBuf::from("/tmp")];
    bases.dedup();
    bases
}

/// A new folder in one of them.
fn temporary() -> Result<StateDir, ControlError> {
    let name = format!("{}{}", stale::PREFIX, random_name());
    let mut bases = bases();
    bases.retain(|base| fits_a_socket(&base.join(&name).join("postgres/sock/.s.PGSQL.5432")).is_ok());
    let root = bases.first().map_or_else(|| PathBuf::from("/tmp"), Clone::clone).join(name);
    fs::DirBuilder::new().mode(0o700).create(&root).map_err(|e| runtime(&root, &e))?;
    Ok(StateDir::locate(Some(&root))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use zeroize::Zeroizing;

    fn access() -> Access {
        Access {
            name: "scripted".into(),
            model: "m".into(),
            endpoint: "http://127.0.0.1:1/v1".into(),
            key: Zeroizing::new("canary".into()),
            said: "x".into(),
        }
    }

    #[test]
    fn a_temporary_folder_is_private_and_is_removed() {
        let folder = Folder::make(None, false, true).unwrap();
        folder.configure(&access()).unwrap();
        let root = folder.state.root().to_path_buf();
        assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(folder.state.secrets()).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!fs::read_to_string(folder.state.config()).unwrap().contains("canary"));
        assert!(folder.goes());
        folder.remove().unwrap();
        assert!(!root.exists());
    }

    #[test]
    fn a_real_installation_is_never_written_over_and_an_earlier_demo_is() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs::create_dir(&real).unwrap();
        fs::write(real.join("config.json"), "mine").unwrap();
        let error = Folder::make(Some(&real), false, true).unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused);
        assert_eq!(fs::read_to_string(real.join("config.json")).unwrap(), "mine");

        let demo = dir.path().join("demo");
        let first = Folder::make(Some(&demo), true, true).unwrap();
        first.configure(&access()).unwrap();
        assert!(!first.goes(), "it is to be kept");
        let second = Folder::make(Some(&demo), false, true).unwrap();
        second.configure(&access()).unwrap();
        assert!(!second.goes(), "it was there before");
        assert_ne!(first.workspace(), second.workspace());
        second.stays(true);
        assert!(!second.state.secrets().exists());
    }

    #[test]
    fn a_path_that_is_too_long_for_sockets_is_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(90));
        assert_eq!(Folder::make(Some(&long), false, true).unwrap_err().code, ErrorCode::Usage);
        assert!(!long.exists());
    }
}
