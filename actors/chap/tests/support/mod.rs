//! A Coordinator in memory for tests: a store of plain maps, and a house that steps calls against it. The store knows
//! nothing of the rules, and can be cut off at any change.

#![allow(dead_code, reason = "every test uses its own part")]

pub(crate) mod people;
pub(crate) mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use choir_chap::{Answer, Attested, Call, Context, Outcome, Plan, Settings, Workspace, merge};
use choir_messages::chap::{
    Change, Entry, EntryPage, EntryQuery, ErasedRecord, Erasure, Notice, Object, ObjectKey, ObjectKind,
    Opened,
};
use choir_messages::mail::Caller;
use choir_messages::time::Timestamp;
use serde_json::{Value, json};

/// What is stored of one workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stored {
    pub(crate) version: u64,
    pub(crate) meta: String,
    pub(crate) objects: BTreeMap<ObjectKey, Object>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) notices: Vec<Notice>,
}

/// Workspaces by id.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct MapStore(pub(crate) BTreeMap<String, Stored>);

impl MapStore {
    pub(crate) fn open(&self, workspace: &str) -> Option<Opened> {
        let stored = self.0.get(workspace)?;
        let members = stored.objects.values().filter(|o| o.key.kind == ObjectKind::Member).cloned().collect();
        Some(Opened { version: stored.version, meta: stored.meta.clone(), members })
    }

    pub(crate) fn load(&self, workspace: &str, keys: &[ObjectKey]) -> Vec<Object> {
        let Some(stored) = self.0.get(workspace) else { return Vec::new() };
        keys.iter().filter_map(|key| stored.objects.get(key).cloned()).collect()
    }

    pub(crate) fn open_objects(&self, workspace: &str, kind: ObjectKind) -> Vec<Object> {
        let Some(stored) = self.0.get(workspace) else { return Vec::new() };
        stored.objects.values().filter(|o| o.key.kind == kind && o.open).cloned().collect()
    }

    /// What is due at that moment, in the order of falling due.
    pub(crate) fn due(&self, now: Timestamp) -> Vec<(String, ObjectKey)> {
        let mut due: Vec<(Timestamp, ObjectKey, String)> = Vec::new();
        for (id, stored) in &self.0 {
            let timed = stored.objects.values().filter_map(|object| Some((object.due?, object.key.clone())));
            due.extend(timed.filter(|(at, _)| *at <= now).map(|(at, key)| (at, key, id.clone())));
        }
        due.sort();
        due.into_iter().map(|(_, key, id)| (id, key)).collect()
    }

    pub(crate) fn commit(&mut self, change: &Change) {
        let stored = self.0.entry(change.workspace.clone()).or_default();
        assert_eq!(stored.version, change.version_before, "a change that does not follow the last one");
        stored.version = change.version_after;
        stored.meta.clone_from(&change.meta);
        for key in &change.removes {
            stored.objects.remove(key);
        }
        for put in &change.puts {
            stored.objects.insert(put.key.clone(), put.clone());
        }
        for entry in &change.entries {
            assert_eq!(entry.seq, stored.entries.len() as u64, "an entry out of order");
            stored.entries.push(entry.clone());
        }
        for put in change.puts.iter().filter(|put| put.key.kind == ObjectKind::Erasure) {
            let erasure: Erasure = serde_json::from_str(&put.body).expect("an erasure's body");
            let seq: usize = put.key.id.parse().expect("an entry's place");
            let record = &mut stored.entries[seq].record;
            *record = ErasedRecord::of(record, erasure.by_seq).to_string();
        }
        for notice in &change.notices {
            assert_eq!(notice.number, stored.notices.len() as u64 + 1, "a notice out of order");
            stored.notices.push(notice.clone());
        }
    }

    pub(crate) fn entries(&self, workspace: &str, query: &EntryQuery) -> EntryPage {
        let all = self.0.get(workspace).map(|stored| stored.entries.as_slice()).unwrap_or_default();
        let end = query.to_seq.unwrap_or(u64::MAX).min(all.len() as u64);
        let matches = |entry: &&Entry| {
            entry.seq >= query.from_seq
                && entry.seq < end
                && query.method.as_ref().is_none_or(|method| entry.method == *method)
                && query.from.as_ref().is_none_or(|from| entry.from.as_ref() == Some(from))
                && query.task.as_ref().is_none_or(|task| entry.tasks.contains(task))
                && query.refused.is_none_or(|refused| entry.refused.is_some() == refused)
        };
        let mut found: Vec<Entry> = all.iter().filter(matches).take(query.limit + 1).cloned().collect();
        let next_seq = if found.len() > query.limit { found.pop().map_or(end, |next| next.seq) } else { end };
        EntryPage { entries: found, next_seq }
    }
}

/// When a commit happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commits {
    /// After every call, and the workspace stays in memory.
    Always,
    /// After every call, and the workspace is opened again for the next, as after a crash.
    AndReopen,
    /// Only when a read or the end asks for it: changes are merged.
    Lazily,
}

/// A Coordinator in memory.
pub(crate) struct House {
    pub(crate) settings: Settings,
    pub(crate) now: Timestamp,
    pub(crate) caller: Caller,
    pub(crate) attested: Attested,
    pub(crate) store: MapStore,
    pub(crate) commits: Commits,
    pub(crate) changes: Vec<Change>,
    /// Ids are made of this and their place within the call, so that two houses make the same ones.
    pub(crate) salt: u128,
    live: BTreeMap<String, Workspace>,
    pending: BTreeMap<String, Change>,
}

impl House {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Timestamp::from_millis(1_790_000_000_000),
            caller: Caller::anyone(),
            attested: Attested::default(),
            store: MapStore::default(),
            commits: Commits::Always,
            changes: Vec::new(),
            salt: 0,
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    fn workspace(&mut self, id: &str) -> Workspace {
        self.live.remove(id).unwrap_or_else(|| match self.store.open(id) {
            Some(opened) => Workspace::open(id, &opened).expect("the house stores what it reads"),
            None => Workspace::absent(id),
        })
    }

    fn put_back(&mut self, workspace: Workspace) {
        if self.commits != Commits::AndReopen && workspace.meta().is_some() {
            self.live.insert(workspace.id().to_owned(), workspace);
        }
    }

    /// Stores what is pending.
    pub(crate) fn flush(&mut self, id: &str) {
        if let Some(change) = self.pending.remove(id) {
            self.store.commit(&change);
            self.changes.push(change);
        }
        if let Some(workspace) = self.live.get_mut(id) {
            workspace.committed();
        }
    }

    fn take(&mut self, workspace: &mut Workspace, change: Change) {
        let id = change.workspace.clone();
        match self.pending.get_mut(&id) {
            Some(first) => merge(first, change),
            None => {
                self.pending.insert(id.clone(), change);
            }
        }
        if self.commits != Commits::Lazily {
            self.flush(&id);
            workspace.committed();
        }
    }

    fn drive(
        &mut self,
        mut workspace: Workspace,
        mut step: impl FnMut(&mut Workspace, Context<'_>) -> Outcome,
    ) -> Answer {
        let id = &workspace.id().to_owned();
        for _ in 0..8 {
            let (salt, mut made) = (self.salt, 0);
            let mut fresh = || {
                made += 1;
                salt * 1000 + made
            };
            let context = Context {
                settings: &self.settings,
                now: self.now,
                caller: self.caller.clone(),
                attested: self.attested.clone(),
                fresh: &mut fresh,
            };
            match step(&mut workspace, context) {
                Outcome::Needs { keys, open } => {
                    // What is asked for is not in memory, so it is not pending either.
                    workspace.supply(&keys, self.store.load(id, &keys));
                    for kind in open {
                        workspace.supply_open(kind, self.store.open_objects(id, kind));
                    }
                }
                Outcome::Done { answer, change } => {
                    if let Some(change) = change {
                        self.take(&mut workspace, change);
                    }
                    self.put_back(workspace);
                    return answer;
                }
                Outcome::Read(plan) => {
                    self.put_back(workspace);
                    self.flush(id);
                    return self.carry_out(id, plan);
                }
            }
        }
        panic!("a step goes on asking for objects");
    }

    fn carry_out(&self, id: &str, mut plan: Plan) -> Answer {
        while let Some(query) = plan.wants() {
            plan.page(self.store.entries(id, &query));
        }
        plan.finish()
    }

    /// Answers one call as bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Answer {
        let mut call = match Call::parse(bytes, &self.settings) {
            Ok(call) => call,
            Err(answer) => return answer,
        };
        self.salt += 1;
        if call.wants_a_workspace_id() {
            call.place(format!("wsp_{:026}", self.salt));
        }
        let id = call.workspace().unwrap_or_default().to_owned();
        let mut workspace = self.workspace(&id);
        let keys = workspace.needs(&call);
        workspace.supply(&keys, self.store.load(&id, &keys));
        self.drive(workspace, |workspace, context| workspace.step(&call, context))
    }

    /// Calls a method and gives its result, or its error object.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let envelope =
            json!({"jsonrpc": "2.0", "id": format!("m{}", self.salt), "method": method, "params": params});
        self.bytes(envelope.to_string().as_bytes()).into_result()
    }

    /// Calls a method that must work.
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        match self.call(method, params) {
            Ok(result) => result,
            Err(error) => panic!("{method} was refused: {error}"),
        }
    }

    /// Calls a method that must be refused, and gives the code.
    pub(crate) fn code(&mut self, method: &str, params: Value) -> i64 {
        match self.call(method, params) {
            Ok(result) => panic!("{method} was not refused: {result}"),
            Err(error) => error["code"].as_i64().expect("an error has a code"),
        }
    }

    /// Lets everything of that kind, or of all, lapse whose time has come.
    pub(crate) fn timers(&mut self, kind: Option<ObjectKind>) {
        for id in self.live.keys().cloned().collect::<Vec<_>>() {
            self.flush(&id);
        }
        let due = self.store.due(self.now).into_iter();
        for (id, key) in due.filter(|(_, key)| kind.is_none_or(|kind| key.kind == kind)).collect::<Vec<_>>() {
            self.salt += 1;
            let workspace = self.workspace(&id);
            self.drive(workspace, |workspace, context| workspace.lapse(&key, context));
            self.flush(&id);
        }
    }

    /// The stored log of a workspace.
    pub(crate) fn log(&mut self, id: &str) -> Vec<Entry> {
        self.flush(id);
        self.store.0.get(id).map(|stored| stored.entries.clone()).unwrap_or_default()
    }

    /// Objects and bytes a workspace holds in memory.
    pub(crate) fn cache_size(&self, id: &str) -> (usize, usize) {
        self.live.get(id).map(Workspace::cache_size).unwrap_or_default()
    }

    /// A carrier that has authenticated these participants.
    pub(crate) fn called_by(&mut self, participants: &[&str]) {
        self.caller =
            Caller { participants: Some(participants.iter().map(|p| (*p).to_owned()).collect::<Arc<[_]>>()) };
    }
}
