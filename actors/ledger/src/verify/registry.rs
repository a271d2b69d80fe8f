//! The registry as a verifier sees it: read leniently, entry by entry, with the public keys decoded once.

use super::comb::{self, Comb, Pending};
use super::home::{Home, read_bounded};
use crate::identity::{from_pem, key_id};
use crate::json::{self, Value};
use crate::time;
use choir_messages::sign::{PublicKey, Signature};
use std::collections::HashMap;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest registry that is read: 16 MiB holds some 30,000 identities.
pub const MAX_REGISTRY: u64 = 16 << 20;

/// Signatures after which a key is worth a table ([`Comb`]); making one costs as much as verifying this many without.
const WORTH_A_TABLE: u32 = 48;

/// Keys that get a table at most, so that a registry of thousands of keys cannot fill the memory with 480 KiB each.
const MAX_TABLES: u32 = 8;

/// How the registry says a key stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Rotated,
    Revoked,
    /// Active, or a word that is not known.
    Other,
}

/// One identity.
pub(super) struct Entry {
    agent_id: Option<String>,
    roles: Vec<String>,
    status: Status,
    created_at: Option<String>,
    updated_at: Option<String>,
    revoked_at: Option<String>,
    public: Option<PublicKey>,
    /// The key id is the fingerprint of the key.
    fits: bool,
    /// Another entry has the same key id.
    doubled: bool,
    used: AtomicU32,
    table: OnceLock<Option<Comb>>,
}

/// The registry.
pub(super) struct Keys {
    by_id: HashMap<String, Entry>,
    tables: AtomicU32,
    generator: OnceLock<Comb>,
    /// Why nothing could be read, if so. A missing file is an empty registry.
    pub(super) unreadable: Option<String>,
}

/// What became of a signature.
pub(super) enum Outcome {
    /// It holds, or not.
    Known(bool),
    /// It holds if [`comb::settle`] says so.
    Computed(Pending),
}

impl Keys {
    /// Reads the registry of a home.
    pub(super) fn read(home: &dyn Home) -> Self {
        let mut keys = Self {
            by_id: HashMap::new(),
            tables: AtomicU32::new(0),
            generator: OnceLock::new(),
            unreadable: None,
        };
        match read_bounded(home, Path::new(crate::layout::REGISTRY), MAX_REGISTRY) {
            Ok(None) => {}
            Ok(Some(bytes)) => keys.take(&bytes),
            Err(error) => keys.unreadable = Some(error.to_string()),
        }
        keys
    }

    fn take(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let value = match json::parse(&text) {
            Ok((value, _)) => value,
            Err(error) => {
                self.unreadable = Some(error.to_string());
                return;
            }
        };
        let Some(identities) = value.get("identities").and_then(Value::as_array) else {
            self.unreadable = Some("it has no list of identities".to_owned());
            return;
        };
        for identity in identities {
            let Some(id) = identity.get("key_id").and_then(Value::as_str) else { continue };
            match self.by_id.entry(id.to_owned()) {
                std::collections::hash_map::Entry::Occupied(mut first) => first.get_mut().doubled = true,
                std::collections::hash_map::Entry::Vacant(place) => {
                    place.insert(Entry::read(id, identity));
                }
            }
        }
    }

    pub(super) fn get(&self, key_id: &str) -> Option<&Entry> {
        self.by_id.get(key_id)
    }

    /// Verifies a signature: at once, or by a table if the key has signed a lot.
    pub(super) fn verify(&self, entry: &Entry, message: &[u8], signature: &[u8; 64]) -> Outcome {
        let Some(key) = &entry.public else { return Outcome::Known(false) };
        let table = match entry.table.get() {
            Some(table) => table.as_ref(),
            // Too few so far; or one thread makes the table, and the others need not wait for it.
            None if entry.used.fetch_add(1, Ordering::Relaxed) != WORTH_A_TABLE => None,
            None => entry
                .table
                .get_or_init(|| {
                    let free = self.tables.fetch_add(1, Ordering::Relaxed) < MAX_TABLES;
                    if free { Comb::key(key) } else { None }
                })
                .as_ref(),
        };
        match table {
            Some(table) => {
                let generator = self.generator.get_or_init(Comb::generator);
                comb::compute(generator, table, key, message, signature)
                    .map_or(Outcome::Known(false), Outcome::Computed)
            }
            None => Outcome::Known(key.verify(message, &Signature::from_bytes(*signature)).is_ok()),
        }
    }
}

impl Entry {
    fn read(id: &str, identity: &Value<'_>) -> Self {
        let text = |name: &str| identity.get(name).and_then(Value::as_str).map(str::to_owned);
        let roles = identity.get("role_capabilities").and_then(Value::as_array).unwrap_or_default();
        let public = identity.get("public_key").and_then(Value::as_str).and_then(from_pem);
        Self {
            agent_id: text("agent_id"),
            roles: roles.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            status: match identity.get("status").and_then(Value::as_str) {
                Some("rotated") => Status::Rotated,
                Some("revoked") => Status::Revoked,
                _ => Status::Other,
            },
            created_at: text("created_at"),
            updated_at: text("updated_at"),
            revoked_at: text("revoked_at"),
            fits: public.is_some_and(|key| key_id(&key) == id),
            public,
            doubled: false,
            used: AtomicU32::new(0),
            table: OnceLock::new(),
        }
    }

    /// Whether the key may act in this role.
    pub(super) fn may_act_as(&self, role: &str) -> bool {
        self.roles.iter().any(|known| known == role)
    }

    /// What the original objects to when this agent signs at this time.
    pub(super) fn objection(&self, agent_id: Option<&str>, created_at: Option<&str>) -> Option<&'static str> {
        if self.agent_id.as_deref() != agent_id {
            return Some("the key belongs to another agent");
        }
        let revoked = match (self.status, &self.revoked_at, created_at) {
            (Status::Revoked, Some(revoked), Some(created)) => created >= revoked.as_str(),
            _ => false,
        };
        revoked.then_some("the key was revoked before the event")
    }

    /// What the strict reading objects to beyond that (R06).
    pub(super) fn strict_objection(&self, created_at: Option<&str>) -> Option<&'static str> {
        let real = |text: &Option<String>| text.as_deref().is_some_and(time::is_real);
        let created = created_at.unwrap_or_default();
        if self.doubled {
            return Some("the registry has two entries for the key");
        }
        if !self.fits {
            return Some("the key's id is not the fingerprint of the public key in the registry");
        }
        match self.status {
            Status::Revoked if !real(&self.revoked_at) => {
                return Some("the key was revoked without a date, so it was never good");
            }
            Status::Rotated if !real(&self.updated_at) => {
                return Some("the key was rotated without a date, so it was never good");
            }
            Status::Rotated if self.updated_at.as_deref().is_some_and(|rotated| created > rotated) => {
                return Some("the key had been rotated before the event");
            }
            _ => {}
        }
        match &self.created_at {
            Some(made) if time::is_real(made) => {
                (created < made.as_str()).then_some("the key did not exist yet")
            }
            _ => Some("the registry does not say since when the key exists"),
        }
    }
}
