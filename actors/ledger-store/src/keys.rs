//! The agents' keys: made at first use, rotated, revoked.

use std::path::PathBuf;
use std::sync::Arc;

use choir_ledger::event::{Actor, Role};
use choir_ledger::identity::{self, Identity, KeyStatus};
use choir_messages::sign::SigningKey;

use crate::error::StoreError;
use crate::home::{Home, PRIVATE_KEYS, Signed};
use crate::pem;
use crate::registry::Change;

/// An agent that can sign.
#[derive(Clone)]
pub struct Signer {
    identity: Arc<Identity>,
    key: Arc<SigningKey>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Signer").field(&self.identity.agent_id).field(&self.identity.key_id).finish()
    }
}

impl Signer {
    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// It, acting in this role.
    #[must_use]
    pub fn actor(&self, role: Role) -> Actor {
        Actor { agent_id: self.identity.agent_id.clone(), role, key_id: self.identity.key_id.clone() }
    }

    /// Its key.
    #[must_use]
    pub fn key(&self) -> &SigningKey {
        &self.key
    }
}

/// Why a key signs no more, if so; what it signed before is another matter.
pub(crate) const fn signs_no_more(identity: &Identity) -> Option<&'static str> {
    match identity.status {
        KeyStatus::Active => None,
        KeyStatus::Rotated => Some("was replaced by another one, and signs no more"),
        KeyStatus::Revoked => Some("was revoked, and signs no more"),
    }
}

/// Whether a text may be an agent's id: what events allow, and no more than a file name takes.
fn is_agent_id(text: &str) -> bool {
    let legal = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    (1..=100).contains(&text.len()) && text.bytes().all(legal) && !text.starts_with('.')
}

impl Home {
    fn private_path(&self, identity: &Identity) -> Result<PathBuf, StoreError> {
        // A registry may have been edited; what stands in it becomes part of a path only if it could not lead elsewhere.
        if !is_agent_id(&identity.agent_id) || !is_agent_id(&identity.key_id) {
            return Err(StoreError::Name {
                what: "an agent's id",
                form: "1 to 100 of a-z, 0-9, '.', '_' and '-'",
            });
        }
        Ok(self.path(PRIVATE_KEYS).join(format!("{}.{}.pem", identity.agent_id, identity.key_id)))
    }

    /// The agent's active key; made, and entered into the registry, at first use. An agent that is there with other roles is
    /// refused: roles are not changed in passing.
    pub fn ensure_agent(
        &self,
        agent_id: &str,
        display_name: &str,
        roles: &[Role],
    ) -> Result<Signer, StoreError> {
        if !is_agent_id(agent_id) {
            return Err(StoreError::Name {
                what: "an agent's id",
                form: "1 to 100 of a-z, 0-9, '.', '_' and '-'",
            });
        }
        let key_id = self.change_registry(|registry, now| {
            // A key of the same agent that came with an imported trace has no private half here.
            let active = |identity: &&Identity| {
                identity.agent_id == agent_id
                    && identity.status == KeyStatus::Active
                    && self.private_path(identity).is_ok_and(|path| path.exists())
            };
            if let Some(found) = registry.identities.iter().find(active) {
                if roles.iter().any(|role| !found.role_capabilities.contains(role)) {
                    return Err(StoreError::Key {
                        key_id: found.key_id.clone(),
                        why: "may not act in that role; use another agent",
                    });
                }
                return Ok((found.key_id.clone(), None));
            }
            let (identity, _) = self.fresh(agent_id, display_name, roles, now)?;
            Ok((identity.key_id.clone(), Some((Change::New { identity: Box::new(identity) }, None))))
        })?;
        self.signer(&key_id)
    }

    /// A new key, its private half on disk already: if the registry is not reached, the file is an unused key.
    fn fresh(
        &self,
        agent_id: &str,
        display_name: &str,
        roles: &[Role],
        now: &str,
    ) -> Result<(Identity, SigningKey), StoreError> {
        let key = SigningKey::generate()?;
        let identity = Identity::new(agent_id, display_name, roles, &key.public(), now);
        pem::write(&self.private_path(&identity)?, &key)?;
        Ok((identity, key))
    }

    /// The signer of an active key of this home.
    pub fn signer(&self, key_id: &str) -> Result<Signer, StoreError> {
        let fault = |why| StoreError::Key { key_id: key_id.to_owned(), why };
        let registry = self.registry()?;
        let identity = registry.by_key(key_id).ok_or_else(|| fault("is not in the registry"))?;
        if let Some(why) = signs_no_more(identity) {
            return Err(fault(why));
        }
        let key = pem::read(&self.private_path(identity)?)?;
        let key = key.ok_or_else(|| fault("has no private half in keys/private"))?;
        if identity::key_id(&key.public()) != identity.key_id {
            return Err(fault("has a private half that belongs to another key"));
        }
        Ok(Signer { identity: Arc::new(identity.clone()), key: Arc::new(key) })
    }

    /// Replaces an active key by a new one of the same agent; the old key signs that. Refused while a running trace names
    /// the old key: a trace's participants stand from its beginning, so nothing that the new key signs would verify in it.
    pub fn rotate_key(&self, key_id: &str) -> Result<Signer, StoreError> {
        let old = self.signer(key_id)?;
        let new = self.change_registry(|_, now| {
            // Under the lock of the keys, which a trace that begins takes, too.
            if let Some(trace) = self.running_with(key_id)? {
                return Err(StoreError::KeyInUse { key_id: key_id.to_owned(), trace });
            }
            let own = old.identity();
            let (identity, _) = self.fresh(&own.agent_id, &own.display_name, &own.role_capabilities, now)?;
            let new = identity.key_id.clone();
            let change = Change::Rotate { key_id: key_id.to_owned(), identity: Box::new(identity) };
            let signed = Signed { key_id: key_id.to_owned(), key: old.key.clone() };
            Ok((new, Some((change, Some(signed)))))
        })?;
        self.signer(&new)
    }

    /// Withdraws a key from now on; what it signed before stays good.
    pub fn revoke_key(&self, key_id: &str, reason: &str) -> Result<Identity, StoreError> {
        let fault = |why| StoreError::Key { key_id: key_id.to_owned(), why };
        self.change_registry(|registry, _| match registry.by_key(key_id) {
            None => Err(fault("is not in the registry")),
            Some(found) if found.status == KeyStatus::Revoked => Err(fault("is revoked already")),
            Some(_) => {
                let change = Change::Revoke { key_id: key_id.to_owned(), reason: reason.to_owned() };
                Ok(((), Some((change, None))))
            }
        })?;
        let registry = self.registry()?;
        registry.by_key(key_id).cloned().ok_or_else(|| fault("is not in the registry"))
    }

    /// Enters a key that came with an imported trace. The same key with other facts is a conflict.
    pub(crate) fn adopt(&self, identity: &Identity) -> Result<bool, StoreError> {
        self.change_registry(|registry, _| match registry.by_key(&identity.key_id) {
            Some(own) if own.public_key == identity.public_key && own.agent_id == identity.agent_id => {
                Ok((false, None))
            }
            Some(_) => Err(StoreError::Conflict(format!(
                "the key {} is here under another agent or with another public key; the trace was not imported",
                identity.key_id
            ))),
            None => Ok((true, Some((Change::Adopt { identity: Box::new(identity.clone()) }, None)))),
        })
    }
}
