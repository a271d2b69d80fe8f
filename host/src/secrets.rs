//! `secrets.json`: the authoritative secret values (`choir §6.3`, `choir §14`). One flat object of names and texts, mode
//! 0600, owned by the user. Values never reach argv, environment, logs or errors.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use choir_messages::id::is_name;
use choir_messages::secret::Secret;
use rustix::fs::FlockOperation;
use rustix::termios;
use zeroize::Zeroizing;

use crate::config::{At, Config, ConfigError, Problem, Problems, known_list, nearest, parse};
use crate::limits;

/// All secrets, in memory.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, Secret>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Why a secret cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file itself is not usable.
    #[error(transparent)]
    File(#[from] ConfigError),
    /// Not a name.
    #[error("\"{0}\" is not a secret's name (1 to 63 characters: a-z, 0-9, '-' and '_')")]
    NotAName(String),
    /// Not an acceptable value.
    #[error("the value {0}")]
    NotAValue(&'static str),
    /// No such secret.
    #[error("there is no secret named \"{name}\"; {known}")]
    Unknown {
        /// The name.
        name: String,
        /// What there is.
        known: String,
    },
    /// Writing failed; the old file is untouched.
    #[error("cannot write {file}: {reason}; nothing was changed")]
    Write {
        /// Which file.
        file: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// The value cannot be read.
    #[error("cannot read the value: {0}")]
    Input(std::io::Error),
}

impl Secrets {
    /// Reads the file after checking its mode and owner. A file that does not exist holds no secrets.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(reason) => {
                return Err(ConfigError::Unreadable { file: path.display().to_string(), reason });
            }
            Ok(meta) => check_exposure(path, &meta)?,
        }
        let bytes = Zeroizing::new(crate::config::read_bounded(path)?);
        Self::from_json(&bytes)
            .map_err(|problems| ConfigError::Invalid { file: path.display().to_string(), problems })
    }

    /// Checks a text. Public for the fuzz target; everything else reads the file, whose mode counts as well.
    #[doc(hidden)]
    pub fn from_json(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let node = parse(bytes).map_err(|p| vec![p])?;
        let mut problems = Problems::default();
        let mut values = BTreeMap::new();
        if let Some(object) = At::root(&node).object(&mut problems) {
            for (name, at) in object.each() {
                if !is_name(name) {
                    problems.add(at.path.clone(), "is not a secret's name (a-z, 0-9, '-', '_')");
                }
                let crate::config::Node::Text(value) = at.node else {
                    problems.add(at.path, "must be a text");
                    continue;
                };
                if let Err(SecretError::NotAValue(what)) = check_value(value) {
                    problems.add(at.path, format!("its value {what}"));
                }
                values.insert(name.to_owned(), Secret::new(value.clone()));
            }
        }
        let problems = problems.into_vec();
        if problems.is_empty() { Ok(Self(values)) } else { Err(problems) }
    }

    /// A secret by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0.get(name)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// All values, for the scrubber that keeps them out of logs.
    pub fn values(&self) -> impl Iterator<Item = &Secret> {
        self.0.values()
    }

    /// The secrets that the configuration refers to and that are not here, each with the command that sets it.
    #[must_use]
    pub fn missing(&self, config: &Config) -> Vec<Problem> {
        let missing = config.secret_names.iter().filter(|name| !self.0.contains_key(*name));
        missing
            .map(|name| Problem {
                path: String::new(),
                what: format!("config.json refers to the secret \"{name}\", which is not set; run `choirctl secret set {name}`"),
            })
            .collect()
    }

    /// Sets one secret in the file, under a lock, atomically.
    pub fn set(path: &Path, name: &str, value: &Zeroizing<String>) -> Result<(), SecretError> {
        if !is_name(name) {
            return Err(SecretError::NotAName(name.chars().take(40).collect()));
        }
        check_value(value)?;
        let _lock = lock(path)?;
        let mut all = Self::load(path)?;
        all.0.insert(name.to_owned(), Secret::new(value.as_str().to_owned()));
        all.write(path)
    }

    /// Deletes one secret from the file.
    pub fn delete(path: &Path, name: &str) -> Result<(), SecretError> {
        let _lock = lock(path)?;
        let mut all = Self::load(path)?;
        if all.0.remove(name).is_none() {
            let near =
                nearest(name, all.names()).map(|n| format!("did you mean \"{n}\"? ")).unwrap_or_default();
            let known = format!("{near}{}", known_list(all.names()));
            return Err(SecretError::Unknown { name: name.chars().take(63).collect(), known });
        }
        all.write(path)
    }

    /// Writes the whole file: beside it first, then renamed over it, so that a crash leaves the old or the new one.
    fn write(&self, path: &Path) -> Result<(), SecretError> {
        let failed = |reason| SecretError::Write { file: path.display().to_string(), reason };
        let map: BTreeMap<&str, &str> = self.0.iter().map(|(k, v)| (k.as_str(), v.expose())).collect();
        let text = serde_json::to_string_pretty(&map).map_err(|e| failed(std::io::Error::other(e)))?;
        let mut text = Zeroizing::new(text);
        text.push('\n');
        let beside = path.with_extension("json.new");
        let _ = fs::remove_file(&beside);
        let write = || -> std::io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, path)?;
            if let Some(dir) = path.parent() {
                fs::File::open(dir)?.sync_all()?;
            }
            Ok(())
        };
        write().map_err(|reason| {
            let _ = fs::remove_file(&beside);
            failed(reason)
        })
    }
}

fn check_value(value: &str) -> Result<(), SecretError> {
    if value.is_empty() {
        Err(SecretError::NotAValue("is empty"))
    } else if value.len() > limits::SECRET_BYTES {
        Err(SecretError::NotAValue("is longer than 64 KiB"))
    } else if value.contains('\0') {
        Err(SecretError::NotAValue("contains a NUL character"))
    } else {
        Ok(())
    }
}

/// A file that others can read is refused, not repaired: its values may already be known.
fn check_exposure(path: &Path, meta: &fs::Metadata) -> Result<(), ConfigError> {
    let file = path.display().to_string();
    let exposed = |what: String, fix: String| Err(ConfigError::Exposed { file: file.clone(), what, fix });
    if !meta.file_type().is_file() {
        return exposed("is not a regular file".into(), "replace it by one".into());
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return exposed(
            format!("belongs to user {} and not to user {me}, who runs this", meta.uid()),
            format!("run `chown {me} {file}`"),
        );
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return exposed(
            format!("can be read by others (mode {mode:04o})"),
            format!("run `chmod 600 {file}` and consider the values in it known to others"),
        );
    }
    Ok(())
}

fn lock(path: &Path) -> Result<fs::File, SecretError> {
    let lock = PathBuf::from(format!("{}.lock", path.display()));
    let failed = |reason: std::io::Error| SecretError::Write { file: path.display().to_string(), reason };
    let file = fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(lock)
        .map_err(failed)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    Ok(file)
}

/// Reads a value from standard input: a hidden prompt on a terminal, else everything up to the end of file, without its
/// last line break.
pub fn read_value(prompt: &str) -> Result<Zeroizing<String>, SecretError> {
    let stdin = std::io::stdin();
    let mut value = Zeroizing::new(String::new());
    if termios::isatty(&stdin) {
        let mut err = std::io::stderr();
        let _ = write!(err, "{prompt}: ");
        let _ = err.flush();
        let before = termios::tcgetattr(&stdin).map_err(|e| SecretError::Input(e.into()))?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(termios::LocalModes::ECHO);
        termios::tcsetattr(&stdin, termios::OptionalActions::Flush, &hidden)
            .map_err(|e| SecretError::Input(e.into()))?;
        let read = stdin.lock().take(limits::SECRET_BYTES as u64 + 2).read_line(&mut value);
        let _ = termios::tcsetattr(&stdin, termios::OptionalActions::Flush, &before);
        let _ = writeln!(err);
        read.map_err(SecretError::Input)?;
    } else {
        let mut input = stdin.lock().take(limits::SECRET_BYTES as u64 + 2);
        input.read_to_string(&mut value).map_err(SecretError::Input)?;
    }
    for end in ['\n', '\r'] {
        if value.ends_with(end) {
            value.pop();
        }
    }
    check_value(&value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn value(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    #[test]
    fn a_secret_that_was_set_is_read_back_and_the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.json");
        assert_eq!(Secrets::load(&path).unwrap().names().count(), 0);
        Secrets::set(&path, "model-key", &value("canary \"1\"\n2")).unwrap();
        Secrets::set(&path, "other", &value("x")).unwrap();
        let secrets = Secrets::load(&path).unwrap();
        assert_eq!(secrets.get("model-key").unwrap().expose(), "canary \"1\"\n2");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        Secrets::delete(&path, "other").unwrap();
        assert_eq!(Secrets::load(&path).unwrap().names().collect::<Vec<_>>(), ["model-key"]);
        let error = Secrets::delete(&path, "model-kye").unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no secret named \"model-kye\"; did you mean \"model-key\"? known: model-key"
        );
        assert!(!format!("{secrets:?}").contains("canary"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.json");
        Secrets::set(&path, "k", &value("canary")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Secrets::load(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0640") && error.contains("chmod 600"), "{error}");
        assert!(Secrets::set(&path, "k", &value("y")).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let link = dir.path().join("link.json");
        symlink(&path, &link).unwrap();
        assert!(Secrets::load(&link).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn names_and_values_have_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.json");
        assert!(matches!(Secrets::set(&path, "A b", &value("x")), Err(SecretError::NotAName(_))));
        for bad in ["", "a\0b", &"x".repeat(limits::SECRET_BYTES + 1)] {
            assert!(matches!(Secrets::set(&path, "k", &value(bad)), Err(SecretError::NotAValue(_))));
        }
        assert!(!path.exists());
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_without_its_values() {
        let problems =
            Secrets::from_json(br#"{"ok": "canary", "n": 7, "ok": "canary2", "E": ""}"#).unwrap_err();
        let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "ok: appears twice; keep one",
                "n: must be a text",
                "E: is not a secret's name (a-z, 0-9, '-', '_')",
                "E: its value is empty",
            ]
        );
    }

    #[test]
    fn a_missing_secret_names_the_command_that_sets_it() {
        let config = br#"{"models": {"m": {"model": "m", "endpoint": "https://h", "secret": "the-key"}}}"#;
        let config = Config::from_json(config, Path::new("/s")).unwrap();
        let missing = Secrets::default().missing(&config);
        assert_eq!(missing.len(), 1);
        assert!(missing[0].what.ends_with("run `choirctl secret set the-key`"));
    }
}
