//! A workspace in memory: its settings and counters, its members, and as many of its other objects as a bounded cache
//! holds. Entries are never in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use choir_messages::chap::{Change, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::limits::{CACHED_BYTES, CACHED_OBJECTS};
use crate::methods::Gate;
use crate::model::{Member, Mode, Stored as _};
use crate::redaction::Redactions;

/// Whether a workspace takes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceState {
    /// It does.
    Active,
    /// Only what ends the pause, and reads.
    Paused,
    /// Sealed: only reads.
    Closed,
}

impl WorkspaceState {
    /// Its name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Closed => "closed",
        }
    }
}

/// What reviewers decided, counted since the workspace's mode last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Decided {
    /// Approvals as it was.
    pub approved: u64,
    /// Approvals of a changed version.
    pub overridden: u64,
    /// Rejections.
    pub rejected: u64,
    /// Abstentions.
    pub abstained: u64,
}

impl Decided {
    /// All of them.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.approved + self.overridden + self.rejected + self.abstained
    }

    /// Counts one more decision of that kind.
    pub(crate) fn count(&mut self, kind: &str) {
        match kind {
            "approve" => self.approved += 1,
            "override" => self.overridden += 1,
            "reject" => self.rejected += 1,
            _ => self.abstained += 1,
        }
    }
}

/// A workspace's own text: everything that is not an object, an entry or a notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// When it was created.
    pub created: Timestamp,
    /// Whether it takes calls.
    pub state: WorkspaceState,
    /// What it advertises.
    pub profiles: Vec<String>,
    /// The mode of new tasks.
    pub mode: Mode,
    /// The highest mode a task may have.
    pub mode_ceiling: Mode,
    /// Where its routing policy is described.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_policy_uri: Option<String>,
    /// How fresh a login must be for privileged methods, in seconds.
    pub step_up_window_sec: u64,
    /// How strong it must be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_acr: Option<String>,
    /// Its log's Merkle tree, once entries are registered in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<crate::register::Register>,
    /// Entries on the log.
    pub entries: u64,
    /// The chain's head, once the log is chained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// The first chained entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chained_from: Option<u64>,
    /// When the last entry arrived: a clock that goes back does not make the log do so.
    pub last_arrival: Timestamp,
    /// Tasks ever created.
    pub tasks: u64,
    /// Overrides ever made.
    pub overrides: u64,
    /// Notices ever given out.
    pub notices: u64,
    /// Participants who ever joined.
    pub joins: u64,
    /// What must have happened before a promotion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion_gate: Option<Gate>,
    /// What has.
    #[serde(default)]
    pub decided: Decided,
    /// Entries whose content is given out no more.
    #[serde(default, skip_serializing_if = "Redactions::is_empty")]
    pub redacted: Redactions,
}

impl Meta {
    /// Whether a profile of that name, of any version, is advertised.
    #[must_use]
    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles
            .iter()
            .any(|p| p.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }
}

/// What is stored cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what is stored of the workspace \"{workspace}\" cannot be read ({why}); restore it from a backup")]
pub struct Corrupt {
    /// The workspace.
    pub workspace: String,
    /// What is wrong.
    pub why: String,
}

#[derive(Debug, Clone)]
struct Cached {
    /// None: it is known not to exist.
    body: Option<Arc<str>>,
    /// Changed since the last commit: it must stay.
    dirty: bool,
    /// When it was last looked at, in steps.
    used: u64,
}

/// One workspace. [`Workspace::step`] and [`Workspace::lapse`] advance it and say what to store; whoever drives it
/// stores that, says [`Workspace::committed`], and only then gives the answers away. If storing fails it drops this value
/// and opens the workspace again.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub(crate) id: String,
    pub(crate) version: u64,
    pub(crate) meta: Option<Meta>,
    pub(crate) members: BTreeMap<String, Member>,
    cache: HashMap<ObjectKey, Cached>,
    /// The changed ones among them.
    dirty: Vec<ObjectKey>,
    cached_bytes: usize,
    open: BTreeMap<ObjectKind, Vec<Object>>,
    steps: u64,
    /// The last step ended for want of an object and is about to be tried again.
    waiting: bool,
}

impl Workspace {
    /// A workspace that does not exist yet; a call may create it.
    #[must_use]
    pub fn absent(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            version: 0,
            meta: None,
            members: BTreeMap::new(),
            cache: HashMap::new(),
            dirty: Vec::new(),
            cached_bytes: 0,
            open: BTreeMap::new(),
            steps: 0,
            waiting: false,
        }
    }

    /// A workspace as a store opened it.
    pub fn open(id: &str, opened: &Opened) -> Result<Self, Corrupt> {
        let corrupt = |why: serde_json::Error| Corrupt { workspace: id.to_owned(), why: why.to_string() };
        let mut workspace = Self::absent(id);
        workspace.version = opened.version;
        workspace.meta = Some(serde_json::from_str(&opened.meta).map_err(corrupt)?);
        for object in &opened.members {
            let member: Member = serde_json::from_str(&object.body).map_err(corrupt)?;
            if member.left.is_none() {
                workspace.members.insert(member.uri.clone(), member);
            }
        }
        Ok(workspace)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The version that the next change builds on.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Its settings and counters, once it exists.
    #[must_use]
    pub const fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// The member of that URI.
    #[must_use]
    pub fn member(&self, uri: &str) -> Option<&Member> {
        self.members.get(uri)
    }

    /// Its members, in the order of joining.
    #[must_use]
    pub fn members(&self) -> Vec<&Member> {
        let mut members: Vec<&Member> = self.members.values().collect();
        members.sort_by_key(|member| member.order);
        members
    }

    /// Hands over objects that were asked for. `asked` names them all: what is asked for and not found does not exist.
    pub fn supply(&mut self, asked: &[ObjectKey], found: Vec<Object>) {
        let found: HashMap<ObjectKey, Arc<str>> =
            found.into_iter().map(|o| (o.key, Arc::from(o.body))).collect();
        for key in asked {
            // What is in memory is newer than what is stored.
            if self.cache.get(key).is_none_or(|cached| !cached.dirty) {
                self.remember(key.clone(), found.get(key).cloned(), false);
            }
        }
        self.trim(self.steps);
    }

    /// Hands over all stored open objects of a kind, for the next step only.
    pub fn supply_open(&mut self, kind: ObjectKind, found: Vec<Object>) {
        self.open.insert(kind, found);
    }

    /// Everything up to now is stored.
    pub fn committed(&mut self) {
        for key in self.dirty.drain(..) {
            if let Some(cached) = self.cache.get_mut(&key) {
                cached.dirty = false;
            }
        }
        self.trim(self.steps + 1);
    }

    /// An object's text: `None` if it is not known here, `Some(None)` if it does not exist.
    pub(crate) fn cached(&self, key: &ObjectKey) -> Option<Option<&Arc<str>>> {
        self.cache.get(key).map(|cached| cached.body.as_ref())
    }

    /// The open objects of a kind: what was supplied, under what has changed since.
    pub(crate) fn open_objects(&self, kind: ObjectKind) -> Option<BTreeMap<String, Arc<str>>> {
        let mut all: BTreeMap<String, Arc<str>> =
            self.open.get(&kind)?.iter().map(|o| (o.key.id.clone(), Arc::from(o.body.as_str()))).collect();
        for (key, cached) in self.cache.iter().filter(|(key, cached)| key.kind == kind && cached.dirty) {
            match &cached.body {
                Some(body) => all.insert(key.id.clone(), body.clone()),
                None => all.remove(&key.id),
            };
        }
        Some(all)
    }

    /// Marks the beginning of a step that looks at these objects.
    pub(crate) fn begin(&mut self, keys: &[ObjectKey]) {
        // Until a step has all it asked for, nothing it was given may be forgotten.
        self.steps += u64::from(!std::mem::take(&mut self.waiting));
        for key in keys {
            if let Some(cached) = self.cache.get_mut(key) {
                cached.used = self.steps;
            }
        }
    }

    /// Takes a change in.
    pub(crate) fn advance(&mut self, change: &Change, meta: Meta, members: Vec<Member>) {
        self.version = change.version_after;
        self.meta = Some(meta);
        for member in members {
            if member.left.is_none() {
                self.members.insert(member.uri.clone(), member);
            } else {
                self.members.remove(member.id());
            }
        }
        for object in &change.puts {
            if object.key.kind != ObjectKind::Member {
                self.remember(object.key.clone(), Some(Arc::from(object.body.as_str())), true);
            }
        }
        for key in &change.removes {
            self.remember(key.clone(), None, true);
        }
        self.open.clear();
    }

    pub(crate) fn end_step(&mut self, waiting: bool) {
        self.waiting = waiting;
        if !waiting {
            self.open.clear();
        }
    }

    fn remember(&mut self, key: ObjectKey, body: Option<Arc<str>>, dirty: bool) {
        let size = |body: &Option<Arc<str>>| body.as_ref().map_or(0, |body| body.len());
        self.cached_bytes += size(&body);
        if dirty {
            self.dirty.push(key.clone());
        }
        if let Some(old) = self.cache.insert(key, Cached { body, dirty, used: self.steps }) {
            self.cached_bytes -= size(&old.body);
        }
    }

    /// Forgets the objects that were not looked at for longest, down to half the bounds; never a changed one, and none
    /// looked at since `keep`.
    fn trim(&mut self, keep: u64) {
        if self.cache.len() <= CACHED_OBJECTS && self.cached_bytes <= CACHED_BYTES {
            return;
        }
        let mut old: Vec<(u64, ObjectKey)> = self
            .cache
            .iter()
            .filter(|(_, cached)| !cached.dirty && cached.used < keep)
            .map(|(key, cached)| (cached.used, key.clone()))
            .collect();
        old.sort_by_key(|(used, _)| *used);
        for (_, key) in old {
            if self.cache.len() <= CACHED_OBJECTS / 2 && self.cached_bytes <= CACHED_BYTES / 2 {
                break;
            }
            if let Some(cached) = self.cache.remove(&key) {
                self.cached_bytes -= cached.body.map_or(0, |body| body.len());
            }
        }
    }

    /// Objects and bytes in the cache, for a gauge.
    #[must_use]
    pub fn cache_size(&self) -> (usize, usize) {
        (self.cache.len(), self.cached_bytes)
    }
}
