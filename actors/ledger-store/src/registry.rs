//! The registry's log: every change of the registry is an entry of `keys/registry.log.jsonl`, chained by hash and signed.
//! New keys and revocations are signed by the home's root key, a rotation by the key that it replaces. `keys/registry.json`
//! is nothing but the fold of that log, so a registry that was swapped or edited is seen.
//!
//! An entry is one line of canonical JSON (RFC 8785): `seq`, `at`, `prev` (the SHA-256 of the line before, zeros on the
//! first), `change`, `signed_by` (a key id, or `root`), and `signature` over the entry without that member.

use std::path::{Path, PathBuf};

use choir_ledger::identity::{self, Identity, KeyStatus, Registry};
use choir_ledger::layout;
use choir_messages::canonical;
use choir_messages::chain::Digest;
use choir_messages::sign::{PublicKey, Signature, SigningKey};
use choir_messages::time::Timestamp;
use choir_transparency::LogKey;
use serde::{Deserialize, Serialize};

use crate::bounds::MAX_DOCUMENT_BYTES;
use crate::disk;
use crate::error::StoreError;

/// The log, below the home.
pub const REGISTRY_LOG: &str = "keys/registry.log.jsonl";

/// The home's root key, public half, as `name+hash+key`.
pub const ROOT_KEY: &str = "keys/root.vkey";

/// Who signs new keys and revocations.
const ROOT: &str = "root";

/// One change of the registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Change {
    /// The log begins, under this root key.
    Genesis {
        /// The root key, as `name+hash+key`.
        root: String,
    },
    /// A key of this home's own.
    New {
        /// Whose.
        identity: Box<Identity>,
    },
    /// A key that came with an imported trace, as it was there.
    Adopt {
        /// Whose.
        identity: Box<Identity>,
    },
    /// A key is replaced by a new one of the same agent.
    Rotate {
        /// The old key.
        key_id: String,
        /// The agent with its new key.
        identity: Box<Identity>,
    },
    /// A key is withdrawn.
    Revoke {
        /// The key.
        key_id: String,
        /// Why.
        reason: String,
    },
}

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place, from 0.
    pub seq: u64,
    /// When.
    pub at: String,
    /// The SHA-256 of the line before; zeros on the first.
    pub prev: Digest,
    /// What changed.
    pub change: Change,
    /// The key id that signed it, or `root`.
    pub signed_by: String,
    /// Over the canonical JSON of the entry without this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

/// What is wrong with a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1, if it is about one.
    pub line: Option<u64>,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.path.display(), self.message),
            None => write!(f, "{}: {}", self.path.display(), self.message),
        }
    }
}

/// The fold of a registry's log so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fold {
    pub(crate) root: Option<LogKey>,
    pub(crate) registry: Registry,
    pub(crate) entries: u64,
    pub(crate) head: Digest,
    last_at: String,
}

impl Fold {
    pub(crate) fn new() -> Self {
        Self {
            root: None,
            registry: Registry::empty(&Timestamp::from_millis(0).to_string()),
            entries: 0,
            head: Digest::ZERO,
            last_at: String::new(),
        }
    }

    /// The line of the next entry, signed and folded in.
    pub(crate) fn append(
        &mut self,
        change: Change,
        at: &str,
        signed_by: Option<&str>,
        key: &SigningKey,
    ) -> Result<String, StoreError> {
        let mut entry = Entry {
            seq: self.entries,
            at: if *at < *self.last_at { self.last_at.clone() } else { at.to_owned() },
            prev: self.head,
            change,
            signed_by: signed_by.unwrap_or(ROOT).to_owned(),
            signature: None,
        };
        let text =
            |entry: &Entry| canonical::to_string(entry).map_err(|why| StoreError::Registry(why.to_string()));
        entry.signature = Some(key.sign(text(&entry)?.as_bytes()));
        let line = text(&entry)?;
        self.take(&line).map_err(StoreError::Registry)?;
        Ok(line)
    }

    /// Folds a line in, or says why it is no entry that may stand here. A refused one changes nothing.
    pub(crate) fn take(&mut self, line: &str) -> Result<(), String> {
        let entry: Entry = serde_json::from_str(line).map_err(|why| format!("it is no entry: {why}"))?;
        if entry.seq != self.entries || entry.prev != self.head {
            return Err("it does not follow the entry before".into());
        }
        if *entry.at < *self.last_at || !choir_ledger::time::is_real(&entry.at) {
            return Err("its time is none, or lies before the entry before".into());
        }
        let signer = self.signer(&entry)?;
        let mut unsigned = entry.clone();
        let signature = unsigned.signature.take().ok_or("it is not signed")?;
        let text = canonical::to_string(&unsigned).map_err(|why| why.to_string())?;
        if canonical::to_string(&entry).ok().as_deref() != Some(line) {
            return Err("it is not in its canonical form".into());
        }
        signer.verify(text.as_bytes(), &signature).map_err(|why| why.to_string())?;
        self.change(&entry)?;
        self.registry.generated_at.clone_from(&entry.at);
        self.last_at = entry.at;
        self.entries += 1;
        self.head = Digest::of(line.as_bytes());
        Ok(())
    }

    /// The key that must have signed the entry.
    fn signer(&self, entry: &Entry) -> Result<PublicKey, String> {
        let by_root = entry.signed_by == ROOT;
        match &entry.change {
            Change::Genesis { root } if by_root && self.entries == 0 => {
                let root: LogKey = root.parse().map_err(|_| "its root key cannot be read")?;
                Ok(root.key)
            }
            Change::Genesis { .. } => Err("a log begins once".into()),
            Change::New { .. } | Change::Adopt { .. } | Change::Revoke { .. } => {
                let root = self.root.as_ref().ok_or("the log does not begin with its root key")?;
                if by_root { Ok(root.key) } else { Err("it must be signed by the root key".into()) }
            }
            Change::Rotate { key_id, .. } => {
                if entry.signed_by != *key_id {
                    return Err("a rotation is signed by the key that it replaces".into());
                }
                let old = self.registry.by_key(key_id).ok_or("it rotates a key that is not there")?;
                identity::from_pem(&old.public_key).ok_or_else(|| "the old key cannot be read".into())
            }
        }
    }

    fn change(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.change {
            Change::Genesis { root } => self.root = root.parse().ok(),
            Change::New { identity } => {
                let fresh = identity.status == KeyStatus::Active
                    && identity.created_at == entry.at
                    && identity.updated_at == entry.at;
                if !fresh {
                    return Err("a new key is active, from the entry's time on".into());
                }
                self.add(identity)?;
            }
            Change::Adopt { identity } => self.add(identity)?,
            Change::Rotate { key_id, identity } => {
                let old = self.registry.by_key(key_id).ok_or("it rotates a key that is not there")?;
                let same = old.agent_id == identity.agent_id
                    && old.role_capabilities == identity.role_capabilities
                    && identity.status == KeyStatus::Active
                    && identity.created_at == entry.at;
                if old.status != KeyStatus::Active || !same {
                    return Err("a rotation replaces an active key of the same agent and roles".into());
                }
                self.add(identity)?;
                if let Some(old) = self.registry.identities.iter_mut().find(|old| old.key_id == *key_id) {
                    old.status = KeyStatus::Rotated;
                    old.updated_at.clone_from(&entry.at);
                }
            }
            Change::Revoke { key_id, reason } => {
                let found = self.registry.identities.iter_mut().find(|old| old.key_id == *key_id);
                let found = found.ok_or("it revokes a key that is not there")?;
                if found.status == KeyStatus::Revoked {
                    return Err("it revokes a key that is revoked".into());
                }
                found.status = KeyStatus::Revoked;
                found.updated_at.clone_from(&entry.at);
                found.revoked_at = Some(entry.at.clone());
                found.revoked_reason = Some(reason.clone());
            }
        }
        Ok(())
    }

    fn add(&mut self, identity: &Identity) -> Result<(), String> {
        if self.registry.by_key(&identity.key_id).is_some() {
            return Err("its key is there already".into());
        }
        let key = identity::from_pem(&identity.public_key).ok_or("its public key cannot be read")?;
        if identity::key_id(&key) != identity.key_id {
            return Err("its key id is not its key's".into());
        }
        self.registry.identities.push(identity.clone());
        Ok(())
    }
}

/// Folds the log of a home. Findings are the lines that may not stand there; the fold goes on with the last good state, so
/// that everything after a bad entry is found too.
pub(crate) fn fold(home: &Path) -> Result<(Fold, Vec<Finding>), StoreError> {
    let path = home.join(REGISTRY_LOG);
    let (mut fold, mut findings) = (Fold::new(), Vec::new());
    let Some(text) = disk::read_text(&path, MAX_DOCUMENT_BYTES)? else { return Ok((fold, findings)) };
    let relative = PathBuf::from(REGISTRY_LOG);
    if !text.is_empty() && !text.ends_with('\n') {
        let message = "its last line is cut".to_owned();
        findings.push(Finding { path: relative.clone(), line: None, message });
    }
    for (number, line) in (1u64..).zip(text.lines()) {
        if let Err(message) = fold.take(line) {
            findings.push(Finding { path: relative.clone(), line: Some(number), message });
        }
    }
    Ok((fold, findings))
}

/// The text of a registry as the original writes it.
pub(crate) fn to_text(registry: &Registry) -> Result<String, StoreError> {
    serde_json::to_string_pretty(registry).map_err(|why| StoreError::Registry(why.to_string()))
}

/// Whether a home's `registry.json` is the fold of its signed log, and the log in order. `pinned` is the root key that an
/// auditor knows; without it the home's own word is taken, and somebody who swapped the whole of `keys/` is not seen here
/// (but by the proofs of the transparency log, which name the registry log's head). No finding means in order. A home
/// without a log, such as one of the original, has one finding that says so.
#[must_use]
pub fn check_registry(home: &Path, pinned: Option<&LogKey>) -> Vec<Finding> {
    let whole = |path: &str, message: String| Finding { path: path.into(), line: None, message };
    let (fold, mut findings) = match fold(home) {
        Ok(folded) => folded,
        Err(why) => return vec![whole(REGISTRY_LOG, why.to_string())],
    };
    if fold.entries == 0 && findings.is_empty() {
        return vec![whole(
            REGISTRY_LOG,
            "there is no signed log, so nothing vouches for the registry".into(),
        )];
    }
    match (pinned, &fold.root) {
        (Some(pinned), Some(root)) if pinned != root => {
            findings.push(whole(REGISTRY_LOG, "its root key is not the one expected".into()));
        }
        _ => {}
    }
    let stated = disk::read_text(&home.join(ROOT_KEY), MAX_DOCUMENT_BYTES).ok().flatten();
    if fold.root.is_none() || stated.and_then(|stated| stated.trim().parse().ok()) != fold.root {
        findings.push(whole(ROOT_KEY, "it is not the root key of the signed log".into()));
    }
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    let written = disk::read_text(&home.join(layout::REGISTRY), MAX_DOCUMENT_BYTES).ok().flatten();
    let folded = to_text(&fold.registry).ok();
    match (written.as_deref().and_then(value), folded.as_deref().and_then(value)) {
        (Some(written), Some(folded)) if written == folded => {}
        (None, _) => findings.push(whole(layout::REGISTRY, "it is missing or cannot be read".into())),
        _ => findings.push(whole(layout::REGISTRY, differs(&fold.registry, written.as_deref()))),
    }
    findings
}

/// Says where a registry differs from the log's.
fn differs(folded: &Registry, written: Option<&str>) -> String {
    let written: Option<Registry> = written.and_then(|text| serde_json::from_str(text).ok());
    let Some(written) = written else { return "it is not a registry".into() };
    for identity in &written.identities {
        match folded.by_key(&identity.key_id) {
            None => return format!("it holds the key {}, which the signed log does not", identity.key_id),
            Some(own) if own != identity => {
                return format!("its entry of {} is not the signed log's", identity.key_id);
            }
            Some(_) => {}
        }
    }
    let missing = folded.identities.iter().find(|own| written.by_key(&own.key_id).is_none());
    match missing {
        Some(own) => format!("the key {} of the signed log is missing in it", own.key_id),
        None => "it differs from the signed log in order or time".into(),
    }
}
