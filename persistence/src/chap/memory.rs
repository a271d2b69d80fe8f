//! The store in memory: the same promises but for the disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use choir_messages::chap::{
    Change, Entry, EntryPage, EntryQuery, ErasedRecord, Erasure, Notice, Object, ObjectKey, ObjectKind,
    Opened,
};
use choir_messages::time::Timestamp;

use super::{CommitError, Due, WorkspaceSummary, names};
use crate::error::StoreError;
use crate::limits::{CHAP_PAGE, CHAP_PAGE_BYTES};

#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    #[cfg(feature = "testing")]
    faults: Option<super::Faults>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// By key of the name, so that listings have the order of the database.
    workspaces: BTreeMap<String, Workspace>,
    due: BTreeSet<(Timestamp, String, ObjectKind, String)>,
}

#[derive(Debug, Default)]
struct Workspace {
    name: String,
    version: u64,
    meta: String,
    objects: BTreeMap<(ObjectKind, String), Object>,
    open: BTreeSet<(ObjectKind, String)>,
    entries: Vec<Entry>,
    /// Places of the entries that a filter finds, in order.
    places: HashMap<Facet, Vec<u64>>,
    notices: HashMap<String, Vec<Notice>>,
}

/// What a filter asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Facet {
    Method(String),
    From(String),
    Task(String),
    Refused(bool),
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            #[cfg(feature = "testing")]
            faults: None,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn with_faults(faults: super::Faults) -> Self {
        Self { faults: Some(faults), ..Self::new() }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        // Nothing under the lock panics short of exhausted memory, which ends the process.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed { Err(StoreError::Closed) } else { Ok(state) }
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }

    pub(crate) fn open(&self, workspace: &str) -> Result<Option<Opened>, StoreError> {
        let state = self.state()?;
        Ok(state.workspaces.get(&*names::key(workspace)).map(|w| Opened {
            version: w.version,
            meta: w.meta.clone(),
            members: w.of_kind(ObjectKind::Member, None).map(|(_, object)| object.clone()).collect(),
        }))
    }

    pub(crate) fn load(&self, workspace: &str, keys: &[ObjectKey]) -> Result<Vec<Object>, StoreError> {
        let state = self.state()?;
        let Some(w) = state.workspaces.get(&*names::key(workspace)) else { return Ok(Vec::new()) };
        let wanted: BTreeSet<&ObjectKey> = keys.iter().collect();
        Ok(wanted.into_iter().filter_map(|key| w.objects.get(&place(key)).cloned()).collect())
    }

    pub(crate) fn open_objects(
        &self,
        workspace: &str,
        kind: ObjectKind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Object>, StoreError> {
        let state = self.state()?;
        let Some(w) = state.workspaces.get(&*names::key(workspace)) else { return Ok(Vec::new()) };
        let from = match after {
            Some(name) => Bound::Excluded((kind, names::key(name).into_owned())),
            None => Bound::Included((kind, String::new())),
        };
        Ok(w.open
            .range((from, Bound::Unbounded))
            .take_while(|(k, _)| *k == kind)
            .filter_map(|place| w.objects.get(place).cloned())
            .take(limit.min(CHAP_PAGE))
            .collect())
    }

    pub(crate) fn commit(&self, change: Change) -> Result<(), CommitError> {
        #[cfg(feature = "testing")]
        if let Some(fault) = self.faults.as_ref().and_then(|faults| faults.of(&change)) {
            let lost = || StoreError::Unavailable("a fault of the test's plan".into());
            return Err(match fault {
                super::Fault::NotWritten => CommitError::NotWritten(lost()),
                super::Fault::UnknownNotWritten => CommitError::Unknown(lost()),
                super::Fault::Conflict => CommitError::Conflict,
                super::Fault::UnknownWritten => match self.write(change) {
                    Ok(()) => CommitError::Unknown(lost()),
                    Err(error) => error,
                },
            });
        }
        self.write(change)
    }

    fn write(&self, change: Change) -> Result<(), CommitError> {
        let mut state = self.state().map_err(CommitError::NotWritten)?;
        let State { workspaces, due, .. } = &mut *state;
        let key = names::key(&change.workspace).into_owned();
        let known = workspaces.get(&key).map_or((0, 0), |w| (w.version, w.next_seq()));
        let continues = change.entries.first().is_none_or(|first| first.seq == known.1);
        if known.0 != change.version_before || !continues {
            return Err(CommitError::Conflict);
        }
        let w = workspaces.entry(key.clone()).or_default();
        w.name = change.workspace;
        w.version = change.version_after;
        w.meta = change.meta;
        for removed in &change.removes {
            w.forget(&place(removed), &key, due);
        }
        let mut erasures = Vec::new();
        for object in change.puts {
            if object.key.kind == ObjectKind::Erasure {
                erasures.extend(erasure(&object));
            }
            let place = place(&object.key);
            w.forget(&place, &key, due);
            if object.open {
                w.open.insert(place.clone());
            }
            if let Some(at) = object.due {
                due.insert((at, key.clone(), place.0, place.1.clone()));
            }
            w.objects.insert(place, object);
        }
        for entry in change.entries {
            for facet in facets(&entry) {
                w.places.entry(facet).or_default().push(entry.seq);
            }
            w.entries.push(entry);
        }
        // Of entries of this very change as well.
        for (seq, by_seq) in erasures {
            if let Some(entry) = usize::try_from(seq).ok().and_then(|seq| w.entries.get_mut(seq)) {
                entry.record = ErasedRecord::of(&entry.record, by_seq).to_string();
            }
        }
        for notice in change.notices {
            w.notices.entry(notice.to.clone()).or_default().push(notice);
        }
        Ok(())
    }

    pub(crate) fn entries(&self, workspace: &str, query: &EntryQuery) -> Result<EntryPage, StoreError> {
        let state = self.state()?;
        let Some(w) = state.workspaces.get(&*names::key(workspace)) else {
            return Ok(EntryPage { entries: Vec::new(), next_seq: 0 });
        };
        let end = w.next_seq();
        let to = query.to_seq.unwrap_or(end).min(end);
        let limit = query.limit.clamp(1, CHAP_PAGE);
        let wanted = asked(query);
        let matches = |entry: &Entry| {
            let has = facets(entry);
            wanted.iter().all(|facet| has.contains(facet))
        };
        let mut page = EntryPage { entries: Vec::new(), next_seq: query.from_seq.max(to).min(end) };
        let mut bytes = 0usize;
        for entry in w.candidates(&wanted, query.from_seq, to).filter(|entry| matches(entry)) {
            bytes = bytes.saturating_add(entry.record.len());
            if let Some(last) = page.entries.last()
                && (page.entries.len() == limit || bytes > CHAP_PAGE_BYTES)
            {
                page.next_seq = last.seq.saturating_add(1);
                break;
            }
            page.entries.push(entry.clone());
        }
        Ok(page)
    }

    pub(crate) fn notices(
        &self,
        workspace: &str,
        participant: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Notice>, StoreError> {
        let state = self.state()?;
        let all = state.workspaces.get(&*names::key(workspace)).and_then(|w| w.notices.get(participant));
        let all = all.map(Vec::as_slice).unwrap_or_default();
        let first = all.partition_point(|notice| notice.number <= after);
        let mut bytes = 0usize;
        let page = all.iter().skip(first).take(limit.clamp(1, CHAP_PAGE)).take_while(|notice| {
            let alone = bytes == 0;
            bytes = bytes.saturating_add(notice.body.len().max(1));
            alone || bytes <= CHAP_PAGE_BYTES
        });
        Ok(page.cloned().collect())
    }

    pub(crate) fn prune_notices(
        &self,
        workspace: &str,
        participant: &str,
        up_to: u64,
        keep: usize,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut state = self.state()?;
        let all =
            state.workspaces.get_mut(&*names::key(workspace)).and_then(|w| w.notices.get_mut(participant));
        let Some(all) = all else { return Ok(0) };
        let before = all.len();
        let read = all.partition_point(|notice| notice.number <= up_to);
        let kept_from = read.saturating_sub(keep);
        let oldest = older_than.to_string();
        let mut place = 0;
        all.retain(|notice| {
            place += 1;
            place > read || (place > kept_from && given_out(&notice.body).is_none_or(|at| at >= oldest))
        });
        Ok(u64::try_from(before - all.len()).unwrap_or(u64::MAX))
    }

    pub(crate) fn due(
        &self,
        until: Timestamp,
        except: &[String],
        limit: usize,
    ) -> Result<Vec<Due>, StoreError> {
        let state = self.state()?;
        let except: BTreeSet<_> = except.iter().map(|name| names::key(name)).collect();
        Ok(state
            .due
            .iter()
            .take_while(|(at, ..)| *at <= until)
            .filter(|(_, workspace, ..)| !except.contains(workspace.as_str()))
            .take(limit.min(CHAP_PAGE))
            .filter_map(|(at, workspace, kind, name)| {
                let w = state.workspaces.get(workspace)?;
                let object = w.objects.get(&(*kind, name.clone()))?;
                Some(Due { workspace: w.name.clone(), key: object.key.clone(), at: *at })
            })
            .collect())
    }

    pub(crate) fn next_due(&self, after: Option<Timestamp>) -> Result<Option<Timestamp>, StoreError> {
        let state = self.state()?;
        let next = match after {
            None => state.due.first(),
            Some(after) => after.millis().checked_add(1).and_then(|from| {
                let least = (Timestamp::from_millis(from), String::new(), ObjectKind::Member, String::new());
                state.due.range(least..).next()
            }),
        };
        Ok(next.map(|(at, ..)| *at))
    }

    pub(crate) fn workspaces(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<WorkspaceSummary>, StoreError> {
        let state = self.state()?;
        let from = after.map_or(Bound::Unbounded, |name| Bound::Excluded(names::key(name).into_owned()));
        Ok(state
            .workspaces
            .range((from, Bound::Unbounded))
            .take(limit.min(CHAP_PAGE))
            .map(|(_, w)| WorkspaceSummary {
                workspace: w.name.clone(),
                version: w.version,
                entries: w.next_seq(),
            })
            .collect())
    }
}

impl Workspace {
    fn next_seq(&self) -> u64 {
        u64::try_from(self.entries.len()).unwrap_or(u64::MAX)
    }

    fn of_kind(
        &self,
        kind: ObjectKind,
        after: Option<String>,
    ) -> impl Iterator<Item = (&(ObjectKind, String), &Object)> {
        let from = after.map_or(Bound::Included((kind, String::new())), |name| Bound::Excluded((kind, name)));
        self.objects.range((from, Bound::Unbounded)).take_while(move |((k, _), _)| *k == kind)
    }

    fn forget(
        &mut self,
        place: &(ObjectKind, String),
        workspace: &str,
        due: &mut BTreeSet<(Timestamp, String, ObjectKind, String)>,
    ) {
        self.open.remove(place);
        if let Some(at) = self.objects.remove(place).and_then(|old| old.due) {
            due.remove(&(at, workspace.to_owned(), place.0, place.1.clone()));
        }
    }

    /// The entries from a place to another that the rarest of the wanted facets finds.
    fn candidates<'a>(
        &'a self,
        wanted: &[Facet],
        from: u64,
        to: u64,
    ) -> Box<dyn Iterator<Item = &'a Entry> + 'a> {
        let at = |seq: u64| usize::try_from(seq).ok().and_then(|n| self.entries.get(n));
        let rarest = wanted
            .iter()
            .map(|facet| self.places.get(facet).map(Vec::as_slice).unwrap_or_default())
            .min_by_key(|places| places.len());
        match rarest {
            Some(places) => {
                let first = places.partition_point(|seq| *seq < from);
                let places = places.iter().skip(first).copied().take_while(move |seq| *seq < to);
                Box::new(places.filter_map(at))
            }
            None => Box::new((from..to).filter_map(at)),
        }
    }
}

/// The entry that an object orders erased, and the redaction's own.
fn erasure(object: &Object) -> Option<(u64, u64)> {
    let erasure: Erasure = serde_json::from_str(&object.body).ok()?;
    Some((object.key.id.parse().ok()?, erasure.by_seq))
}

/// When a notice was given out, as its text says.
fn given_out(body: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_str(body).ok()?;
    body.pointer("/params/ts")?.as_str().map(str::to_owned)
}

fn place(key: &ObjectKey) -> (ObjectKind, String) {
    (key.kind, names::key(&key.id).into_owned())
}

fn facets(entry: &Entry) -> Vec<Facet> {
    let mut facets = vec![Facet::Method(entry.method.clone()), Facet::Refused(entry.refused.is_some())];
    facets.extend(entry.from.clone().map(Facet::From));
    for task in &entry.tasks {
        let facet = Facet::Task(task.clone());
        // An entry that names a task twice is still one entry.
        if !facets.contains(&facet) {
            facets.push(facet);
        }
    }
    facets
}

fn asked(query: &EntryQuery) -> Vec<Facet> {
    let mut asked = Vec::new();
    asked.extend(query.method.clone().map(Facet::Method));
    asked.extend(query.from.clone().map(Facet::From));
    asked.extend(query.task.clone().map(Facet::Task));
    asked.extend(query.refused.map(Facet::Refused));
    asked
}
