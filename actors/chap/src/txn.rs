//! One step's view of a workspace: what it changes is laid over what is there, and either all of it becomes a change or
//! none of it does. Handlers see nothing else.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use choir_messages::chap::{Change, Notice, Object, ObjectKey, ObjectKind};
use choir_messages::mail::Caller;
use choir_messages::time::Timestamp;
use serde_json::{Map, Value, json};
use ulid::Ulid;

use crate::append::{Appending, Draft};
use crate::evidence;
use crate::model::{Member, Stored, Task};
use crate::params::Params;
use crate::refusal::Stop;
use crate::step::{Attested, Context};
use crate::uri::{COORDINATOR, is_broadcast, is_id, is_participant};
use crate::workspace::{Meta, Workspace};
use crate::{Refusal, Settings, codes};

/// A notice that is about to be given out.
struct Due {
    to: String,
    body: Map<String, Value>,
}

/// A step in the making.
pub(crate) struct Txn<'a> {
    workspace: &'a Workspace,
    settings: &'a Settings,
    now: Timestamp,
    caller: &'a Caller,
    attested: &'a Attested,
    fresh: RefCell<&'a mut dyn FnMut() -> u128>,
    from: Option<String>,
    meta: Option<Meta>,
    members: BTreeMap<String, Member>,
    puts: BTreeMap<ObjectKey, Option<Object>>,
    entries: Vec<Draft>,
    notices: Vec<Due>,
    concerns: BTreeSet<String>,
}

impl<'a> Txn<'a> {
    pub(crate) fn new(workspace: &'a Workspace, context: &'a mut Context<'_>, from: Option<&str>) -> Self {
        Self {
            workspace,
            settings: context.settings,
            now: context.now,
            caller: &context.caller,
            attested: &context.attested,
            fresh: RefCell::new(&mut *context.fresh),
            from: from.map(str::to_owned),
            meta: workspace.meta.clone(),
            members: BTreeMap::new(),
            puts: BTreeMap::new(),
            entries: Vec::new(),
            notices: Vec::new(),
            concerns: BTreeSet::new(),
        }
    }

    // ---- what is there

    /// The Coordinator's clock.
    pub(crate) const fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) const fn settings(&self) -> &'a Settings {
        self.settings
    }

    pub(crate) const fn caller(&self) -> &'a Caller {
        self.caller
    }

    /// What was verified of a joining participant.
    pub(crate) const fn attested(&self) -> &'a Attested {
        self.attested
    }

    /// The workspace's id.
    pub(crate) fn workspace(&self) -> &'a str {
        &self.workspace.id
    }

    /// Who calls: empty where the call does not say. After a member floor it is a member.
    pub(crate) fn from(&self) -> &str {
        self.from.as_deref().unwrap_or_default()
    }

    /// The workspace's settings and counters, if it exists.
    pub(crate) const fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// The same where a check before has made sure that it exists.
    pub(crate) fn here(&self) -> Result<&Meta, Stop> {
        self.meta.as_ref().ok_or_else(|| Stop::Refused(Refusal::params("Unknown workspace")))
    }

    /// The same, to change.
    pub(crate) fn here_mut(&mut self) -> Result<&mut Meta, Stop> {
        self.meta.as_mut().ok_or_else(|| Stop::Refused(Refusal::params("Unknown workspace")))
    }

    pub(crate) fn create(&mut self, meta: Meta) {
        self.meta = Some(meta);
    }

    /// A present member.
    pub(crate) fn member(&self, uri: &str) -> Option<&Member> {
        self.members
            .get(uri)
            .or_else(|| self.workspace.members.get(uri))
            .filter(|member| member.left.is_none())
    }

    /// All present members, in the order of joining.
    pub(crate) fn members(&self) -> Vec<&Member> {
        let mut all: BTreeMap<&str, &Member> =
            self.workspace.members.iter().map(|(uri, member)| (uri.as_str(), member)).collect();
        all.extend(self.members.iter().map(|(uri, member)| (uri.as_str(), member)));
        let mut members: Vec<&Member> = all.into_values().filter(|member| member.left.is_none()).collect();
        members.sort_by_key(|member| member.order);
        members
    }

    /// Inserts or replaces a member; one whose `left` is set is none any more.
    pub(crate) fn put_member(&mut self, member: Member) {
        self.members.insert(member.uri.clone(), member);
    }

    /// The object of that id. Ids that nothing can have are simply not found.
    pub(crate) fn get<T: Stored>(&self, id: &str) -> Result<Option<T>, Stop> {
        if !is_id(id) {
            return Ok(None);
        }
        let key = ObjectKey { kind: T::KIND, id: id.to_owned() };
        if let Some(put) = self.puts.get(&key) {
            return put.as_ref().map(|object| read(&object.body)).transpose();
        }
        if self.workspace.version == 0 {
            return Ok(None);
        }
        match self.workspace.cached(&key) {
            Some(body) => body.map(|body| read(body)).transpose(),
            None => Err(Stop::Needs(vec![key])),
        }
    }

    /// Asks for several objects at once, so that they are loaded in one go.
    pub(crate) fn expect<T: Stored>(&self, ids: &[&str]) -> Result<(), Stop> {
        if self.workspace.version == 0 {
            return Ok(());
        }
        let missing: Vec<ObjectKey> = ids
            .iter()
            .filter(|id| is_id(id))
            .map(|id| ObjectKey { kind: T::KIND, id: (*id).to_owned() })
            .filter(|key| !self.puts.contains_key(key) && self.workspace.cached(key).is_none())
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(Stop::Needs(missing)) }
    }

    /// Every open object of a kind, by id.
    pub(crate) fn open<T: Stored>(&self) -> Result<Vec<T>, Stop> {
        let mut all: BTreeMap<String, T> = BTreeMap::new();
        if self.workspace.version > 0 {
            let stored = self.workspace.open_objects(T::KIND).ok_or(Stop::NeedsOpen(T::KIND))?;
            for (id, body) in stored {
                all.insert(id, read(&body)?);
            }
        }
        for (key, put) in self.puts.iter().filter(|(key, _)| key.kind == T::KIND) {
            match put {
                Some(object) => all.insert(key.id.clone(), read(&object.body)?),
                None => all.remove(&key.id),
            };
        }
        Ok(all.into_values().filter(Stored::open).collect())
    }

    /// The task that `task_id` names.
    pub(crate) fn task(&self, params: &Params<'_>) -> Result<Task, Stop> {
        let task = match params.text("task_id") {
            Some(id) => self.get::<Task>(id)?,
            None => None,
        };
        task.ok_or_else(|| Stop::Refused(Refusal::params("Unknown task")))
    }

    /// Whether that participant may see what came of a task: in `shadow`, where `modes/1.0` is advertised, only people,
    /// its reviewers and its producer do, until a person has approved or changed it.
    pub(crate) fn sees_output(&self, task: &Task, who: Option<&str>) -> bool {
        if task.mode != crate::model::Mode::Shadow
            || !self.meta.as_ref().is_some_and(|meta| meta.has_profile("modes"))
        {
            return true;
        }
        let decided = task.review.as_ref().is_some_and(|review| {
            review.decisions.iter().any(|decision| {
                matches!(decision.kind.as_str(), "approve" | "override")
                    && self.member(&decision.reviewer).is_some_and(Member::is_human)
            })
        });
        if decided && task.state == crate::model::TaskState::Completed {
            return true;
        }
        let Some(member) = who.and_then(|uri| self.member(uri)) else { return false };
        let named = |review: &crate::model::Review| review.requested_to.contains(&member.uri);
        member.is_human()
            || task.producer.as_ref() == Some(&member.uri)
            || task.review.as_ref().is_some_and(named)
    }

    // ---- what changes

    /// A fresh id: the prefix and a ULID.
    pub(crate) fn fresh(&self, prefix: &str) -> String {
        let random = (self.fresh.borrow_mut())();
        format!("{prefix}{}", Ulid::from_parts(self.now.millis(), random))
    }

    /// Inserts or replaces an object.
    pub(crate) fn put<T: Stored>(&mut self, object: &T) {
        let key = ObjectKey { kind: T::KIND, id: object.id().to_owned() };
        // The stored types have string keys and finite numbers only, so they always have a text.
        let body = serde_json::to_string(object).expect("a stored object is plain data");
        self.puts.insert(key.clone(), Some(Object { key, body, open: object.open(), due: object.due() }));
    }

    /// Says that the call's entry is about this task, beyond the `task_id` it names itself.
    pub(crate) fn concerns(&mut self, task: &str) {
        self.concerns.insert(task.to_owned());
    }

    /// Gives each of these participants a notice of that kind, once. `group:` and `workspace:` stand for every member but
    /// the sender; who is no participant gets nothing.
    pub(crate) fn notify<'u>(&mut self, to: impl IntoIterator<Item = &'u str>, kind: &str, more: Value) {
        let mut everybody: BTreeSet<String> = BTreeSet::new();
        for uri in to {
            if is_broadcast(uri) {
                let from = self.from().to_owned();
                everybody
                    .extend(self.members().iter().map(|m| m.uri.clone()).filter(|member| *member != from));
            } else if is_participant(uri) {
                everybody.insert(uri.to_owned());
            }
        }
        for to in everybody {
            let mut body = more.as_object().cloned().unwrap_or_default();
            body.insert("kind".to_owned(), json!(kind));
            self.notices.push(Due { to, body });
        }
    }

    /// Appends an entry of the Coordinator's own: a `notify.message` without an id.
    pub(crate) fn own_entry(&mut self, params: Map<String, Value>) {
        self.entries.push(Draft::own(&self.workspace.id, self.now, "notify.message", params));
    }

    /// Appends the entry of a call.
    pub(crate) fn entry(&mut self, call: &crate::Call, refused: Option<i64>) {
        let request = call.recorded();
        let record = match refused {
            Some(code) => evidence::refusal_record(&request, code),
            None => request,
        };
        let mut tasks = std::mem::take(&mut self.concerns);
        if call.method().name != "whisper.answer"
            && let Some(task) = call.params().text("task_id").filter(|id| is_id(id))
        {
            tasks.insert(task.to_owned());
        }
        self.entries.push(Draft {
            record,
            refused,
            method: call.method().name.to_owned(),
            from: call.from().filter(|from| is_participant(from)).map(str::to_owned),
            tasks,
        });
    }

    /// Keeps the objects' changes and drops entries and notices: for a sealed workspace.
    pub(crate) fn silence(&mut self) {
        self.entries.clear();
        self.notices.clear();
    }

    /// Where the next entry goes.
    pub(crate) fn next_seq(&self) -> u64 {
        self.meta.as_ref().map_or(0, |meta| meta.entries)
    }

    /// Turns all of it into a change; none if nothing changed.
    pub(crate) fn finish(self) -> Option<(Change, Meta, Vec<Member>)> {
        let mut meta = self.meta?;
        let first_seq = meta.entries;
        let mut appending = Appending::new(self.settings, &self.workspace.id, self.now);
        appending.all(&mut meta, self.entries);
        let Appending { entries, nodes, .. } = appending;
        let mut notices = Vec::with_capacity(self.notices.len());
        for due in self.notices {
            meta.notices += 1;
            let mut params = due.body;
            params.insert("workspace".to_owned(), json!(self.workspace.id));
            params.insert("from".to_owned(), json!(COORDINATOR));
            params.insert("to".to_owned(), json!(due.to));
            params.insert("ts".to_owned(), json!(self.now.to_string()));
            params.insert("seq".to_owned(), json!(first_seq));
            let body = json!({"jsonrpc": "2.0", "method": "notify.message", "params": params});
            notices.push(Notice { number: meta.notices, to: due.to, body: body.to_string() });
        }
        let members: Vec<Member> = self.members.into_values().collect();
        let mut change = Change {
            workspace: self.workspace.id.clone(),
            version_before: self.workspace.version,
            version_after: self.workspace.version + 1,
            meta: serde_json::to_string(&meta).expect("a workspace's settings are plain data"),
            puts: Vec::new(),
            removes: Vec::new(),
            entries,
            notices,
        };
        for member in &members {
            let key = ObjectKey { kind: ObjectKind::Member, id: member.uri.clone() };
            let body = serde_json::to_string(member).expect("a member is plain data");
            change.puts.push(Object { key, body, open: member.open(), due: None });
        }
        for node in nodes {
            let key = ObjectKey { kind: ObjectKind::Record, id: node.id().to_owned() };
            let body = serde_json::to_string(&node).expect("a node of a tree is plain data");
            change.puts.push(Object { key, body, open: false, due: None });
        }
        for (key, put) in self.puts {
            match put {
                Some(object) => change.puts.push(object),
                None => change.removes.push(key),
            }
        }
        Some((change, meta, members))
    }
}

/// Reads a stored object. What cannot be read is a fault of the store, never of a caller.
fn read<T: Stored>(body: &str) -> Result<T, Stop> {
    serde_json::from_str(body).map_err(|_| {
        Stop::Refused(Refusal::new(
            codes::INTERNAL,
            format!("A stored {} cannot be read; restore the workspace from a backup", T::KIND.as_str()),
        ))
    })
}
