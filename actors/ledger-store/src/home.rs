//! A home: one folder with keys, traces, artefacts and the transparency log, private to its user.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use choir_ledger::identity::Registry;
use choir_ledger::layout;
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use choir_transparency::{LogKey, Origin};

use crate::bounds::MAX_DOCUMENT_BYTES;
use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::pem;
use crate::registry::{Change, Finding, Fold, REGISTRY_LOG, ROOT_KEY, check_registry, fold, to_text};

/// The folder of private keys, below the home.
pub(crate) const PRIVATE_KEYS: &str = "keys/private";

/// The root key's private half, below the home.
const ROOT_PRIVATE: &str = "keys/private/root.pem";

/// The lock of the registry and its log.
const KEYS_LOCK: &str = "keys/.lock";

/// Where times come from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A ledger's home. Cheap to clone; threads and processes may share one.
#[derive(Clone)]
pub struct Home(Arc<Inner>);

struct Inner {
    root: PathBuf,
    key: Arc<SigningKey>,
    log_key: LogKey,
    clock: Clock,
    registry: Mutex<Option<Cached>>,
    /// One sidecar of an artefact is written at a time.
    pub(crate) sidecars: Mutex<()>,
}

struct Cached {
    stamp: Stamp,
    registry: Arc<Registry>,
}

/// By what a file is recognised as the one that was read.
#[derive(PartialEq, Eq, Clone, Copy)]
struct Stamp {
    modified: SystemTime,
    length: u64,
    inode: u64,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Home").field(&self.0.root).finish()
    }
}

impl Home {
    /// Opens the home, or makes it: private folders, a root key, an empty registry with its log.
    pub fn create(root: &Path) -> Result<Self, StoreError> {
        Self::create_with_clock(root, Arc::new(Timestamp::now))
    }

    /// As [`Home::create`], with another source of times.
    pub fn create_with_clock(root: &Path, clock: Clock) -> Result<Self, StoreError> {
        for folder in ["", PRIVATE_KEYS, layout::TRACES, "artifacts/sha256"] {
            disk::make_folder(&root.join(folder))?;
        }
        let _lock = Lock::wait(&root.join(KEYS_LOCK), &root.join("keys"))?;
        let private = root.join(ROOT_PRIVATE);
        let key = match pem::read(&private)? {
            Some(key) => key,
            None if root.join(REGISTRY_LOG).exists() => {
                return Err(StoreError::Key {
                    key_id: "root".into(),
                    why: "has no private half in keys/private",
                });
            }
            None => {
                let key = SigningKey::generate()?;
                pem::write(&private, &key)?;
                key
            }
        };
        let log_key = LogKey { origin: origin(&key)?, key: key.public() };
        let home = Self::with(root, key, log_key, clock);
        if !root.join(REGISTRY_LOG).exists() {
            disk::write_whole(&root.join(ROOT_KEY), format!("{}\n", home.log_key()).as_bytes())?;
            let root_key = home.log_key().to_string();
            home.write_change(Fold::new(), "", Change::Genesis { root: root_key }, None)?;
        } else {
            home.repair_registry()?;
        }
        Ok(home)
    }

    /// Opens a home that exists.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        if !root.join(ROOT_PRIVATE).exists() || !root.join(REGISTRY_LOG).exists() {
            return Err(StoreError::NoHome(root.to_owned()));
        }
        let key = pem::read(&root.join(ROOT_PRIVATE))?.ok_or_else(|| StoreError::NoHome(root.to_owned()))?;
        let log_key = LogKey { origin: origin(&key)?, key: key.public() };
        Ok(Self::with(root, key, log_key, Arc::new(Timestamp::now)))
    }

    fn with(root: &Path, key: SigningKey, log_key: LogKey, clock: Clock) -> Self {
        Self(Arc::new(Inner {
            root: root.to_owned(),
            key: Arc::new(key),
            log_key,
            clock,
            registry: Mutex::new(None),
            sidecars: Mutex::new(()),
        }))
    }

    /// Its folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Its root key, public half, as `name+hash+key`: what an auditor pins. It signs checkpoints, new keys, revocations and
    /// the transparency log.
    #[must_use]
    pub fn log_key(&self) -> &LogKey {
        &self.0.log_key
    }

    /// The time now.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.0.clock)()
    }

    pub(crate) fn key(&self) -> &Arc<SigningKey> {
        &self.0.key
    }

    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.0.root.join(relative)
    }

    pub(crate) fn sidecars(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0.sidecars.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registry, as `keys/registry.json` has it; read again when the file has changed.
    pub fn registry(&self) -> Result<Arc<Registry>, StoreError> {
        let path = self.path(layout::REGISTRY);
        let stamp = stamp(&path)?;
        let mut cached = self.0.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref().filter(|cached| cached.stamp == stamp) {
            return Ok(cached.registry.clone());
        }
        let text = disk::read_text(&path, MAX_DOCUMENT_BYTES)?.unwrap_or_default();
        let registry: Registry =
            serde_json::from_str(&text).map_err(|why| StoreError::unreadable(&path, why))?;
        let registry = Arc::new(registry);
        *cached = Some(Cached { stamp, registry: registry.clone() });
        Ok(registry)
    }

    /// Whether the registry is the fold of its signed log; see [`check_registry`].
    #[must_use]
    pub fn check_registry(&self) -> Vec<Finding> {
        check_registry(self.root(), Some(self.log_key()))
    }

    /// The registry's log as it stands. A log that is not in order is gone on with by nobody.
    fn sound_fold(&self) -> Result<Fold, StoreError> {
        let (fold, findings) = fold(self.root())?;
        match findings.first() {
            Some(finding) => Err(StoreError::Registry(finding.to_string())),
            None if fold.root.as_ref() != Some(self.log_key()) => {
                Err(StoreError::Registry("its log does not begin with this home's root key".into()))
            }
            None => Ok(fold),
        }
    }

    /// The SHA-256 of the registry log's last line.
    pub(crate) fn registry_head(&self) -> Result<choir_messages::chain::Digest, StoreError> {
        Ok(self.sound_fold()?.head)
    }

    /// Waits for the lock of the keys: whoever has it may count on the registry as it is.
    pub(crate) fn lock_keys(&self) -> Result<Lock, StoreError> {
        Lock::wait(&self.path(KEYS_LOCK), &self.path("keys"))
    }

    /// Makes changes to the registry under its lock: `decide` sees the registry and says what to append, and by whom it is
    /// signed (the root key, unless a key is given).
    pub(crate) fn change_registry<T>(
        &self,
        decide: impl FnOnce(&Registry, &str) -> Result<(T, Option<(Change, Option<Signed>)>), StoreError>,
    ) -> Result<T, StoreError> {
        let _lock = self.lock_keys()?;
        let fold = self.sound_fold()?;
        // The log's times do not go back with the clock.
        let now = self.now().to_string().max(fold.registry.generated_at.clone());
        let (value, change) = decide(&fold.registry, &now)?;
        if let Some((change, signed)) = change {
            let text = disk::read_text(&self.path(REGISTRY_LOG), MAX_DOCUMENT_BYTES)?.unwrap_or_default();
            self.write_change_at(fold, &text, change, signed, &now)?;
        }
        Ok(value)
    }

    fn write_change(
        &self,
        fold: Fold,
        log: &str,
        change: Change,
        signed: Option<Signed>,
    ) -> Result<(), StoreError> {
        let now = self.now().to_string();
        self.write_change_at(fold, log, change, signed, &now)
    }

    /// The log first, then the registry: in between, the registry is behind, which [`Home::create`] puts right.
    fn write_change_at(
        &self,
        mut fold: Fold,
        log: &str,
        change: Change,
        signed: Option<Signed>,
        now: &str,
    ) -> Result<(), StoreError> {
        let line = match &signed {
            Some(signed) => fold.append(change, now, Some(&signed.key_id), &signed.key)?,
            None => fold.append(change, now, None, &self.0.key)?,
        };
        disk::write_whole(&self.path(REGISTRY_LOG), format!("{log}{line}\n").as_bytes())?;
        disk::write_whole(&self.path(layout::REGISTRY), to_text(&fold.registry)?.as_bytes())
    }

    /// Writes the registry again if a crash left it one change behind its log. Anything else that differs is a finding, not
    /// something to repair.
    fn repair_registry(&self) -> Result<(), StoreError> {
        let fold = self.sound_fold()?;
        let path = self.path(layout::REGISTRY);
        let written = disk::read_text(&path, MAX_DOCUMENT_BYTES)?;
        let behind = match written.as_deref().map(serde_json::from_str::<Registry>) {
            None => true,
            Some(Ok(written)) => written != fold.registry && self.was_before(&written)?,
            Some(Err(_)) => false,
        };
        if behind { disk::write_whole(&path, to_text(&fold.registry)?.as_bytes()) } else { Ok(()) }
    }

    /// Whether this registry is the fold of the log without its last entry.
    fn was_before(&self, written: &Registry) -> Result<bool, StoreError> {
        let text = disk::read_text(&self.path(REGISTRY_LOG), MAX_DOCUMENT_BYTES)?.unwrap_or_default();
        let mut before = Fold::new();
        let lines: Vec<_> = text.lines().collect();
        let Some((_, earlier)) = lines.split_last() else { return Ok(false) };
        let sound = earlier.iter().all(|line| before.take(line).is_ok());
        Ok(sound && before.registry == *written)
    }
}

/// By whom a change is signed, if not by the root key.
pub(crate) struct Signed {
    pub(crate) key_id: String,
    pub(crate) key: Arc<SigningKey>,
}

fn stamp(path: &Path) -> Result<Stamp, StoreError> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).map_err(|error| StoreError::io("read", path, error))?;
    let modified = metadata.modified().map_err(|error| StoreError::io("read", path, error))?;
    Ok(Stamp { modified, length: metadata.len(), inode: metadata.ino() })
}

/// The name of a home's log: it is its key's.
fn origin(key: &SigningKey) -> Result<Origin, StoreError> {
    let thumbprint = choir_transparency::key_thumbprint(&key.public()).to_string();
    let short = thumbprint.get(..16).unwrap_or_default();
    Ok(Origin::new(format!("ledger-{short}"))?)
}
