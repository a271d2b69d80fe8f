//! The Coordinator's endpoint: what anybody who can reach it may send, to a workspace with members and tasks in it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use choir_chap::{Answer, Attested, Body, Call, Context, Outcome, Plan, Settings, Workspace, codes};
use choir_messages::chap::{Change, Entry, EntryPage, EntryQuery, Object, ObjectKey, ObjectKind, Opened};
use choir_messages::mail::Caller;
use choir_messages::time::Timestamp;
use serde_json::{Value, json};

/// Calls of one input, so that a long input is not a slow one.
const CALLS: usize = 24;

/// Rounds in which a step asks for objects: the shell gives up there.
const ROUNDS: usize = 8;

/// Calls before the input's own: they make the members, the tasks and everything else that ids in the seeds name.
const SCENE: &[(&str, &str)] = &[
    (
        "workspace.create",
        r#"{"from":"human:a","profiles":["core/1.0","review/1.0","whisper/1.0","deliberation/1.0","handoff/1.0","control/1.0","routing/1.0","modes/1.0","audit-scitt/1.0"],"mode":"production"}"#,
    ),
    (
        "participant.join",
        r#"{"from":"human:a","type":"human","role":"admin","jwks":{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":"AA"}]}}"#,
    ),
    ("participant.join", r#"{"from":"human:b","type":"human"}"#),
    ("participant.join", r#"{"from":"agent:c","type":"agent"}"#),
    (
        "task.create",
        r#"{"from":"human:a","kind":"k","input":{"n":1},"assignee":"agent:c","routing_hints":{"criticality":"critical"}}"#,
    ),
    ("task.create", r#"{"from":"human:a","kind":"k","input":{},"assignee":"agent:c"}"#),
    (
        "review.request",
        r#"{"from":"agent:c","task_id":"$1","artefact":{"a":[1]},"to":["human:a","human:b"],"rule":"all_approve"}"#,
    ),
    (
        "whisper.ask",
        r#"{"from":"agent:c","to":"human:b","task_id":"$0","question":"q","deadline_ms":60000,"default_if_lapsed":"x","options":[{"id":"x"}],"whisper_id":"art_w"}"#,
    ),
    (
        "deliberate.open",
        r#"{"from":"human:a","rule":"quorum:1","to":["human:b"],"deliberation_id":"dlb_d","deadline":"2027-01-01T00:01:00Z"}"#,
    ),
    (
        "handoff.propose",
        r#"{"from":"agent:c","to":"human:b","tasks":[{"task_id":"$0"}],"handoff_id":"hnd_h"}"#,
    ),
];

/// When the scene begins.
const BEGINNING: Timestamp = Timestamp::from_millis(1_798_761_600_000);

/// What is stored of one workspace.
#[derive(Debug, Clone, Default)]
struct Stored {
    version: u64,
    meta: String,
    objects: BTreeMap<ObjectKey, Object>,
    entries: Vec<Entry>,
}

/// A Coordinator in memory that opens a workspace anew for every call.
#[derive(Debug, Clone)]
struct House {
    settings: Settings,
    now: Timestamp,
    made: u128,
    stored: BTreeMap<String, Stored>,
}

impl House {
    /// The scene that every input finds.
    fn furnished() -> Self {
        static SCENERY: OnceLock<House> = OnceLock::new();
        let furnish = || {
            let mut house =
                Self { settings: Settings::default(), now: BEGINNING, made: 0, stored: BTreeMap::new() };
            let mut tasks: Vec<String> = Vec::new();
            for (method, params) in SCENE {
                let mut text = (*params).to_owned();
                for (number, task) in tasks.iter().enumerate() {
                    text = text.replace(&format!("${number}"), task);
                }
                let mut params: Value = serde_json::from_str(&text).expect("the scene is JSON");
                params["workspace"] = json!("w");
                let call =
                    Call::of("1", method, params, &house.settings).expect("the scene's calls are calls");
                let result = house.call(&call).into_result().expect("the scene's calls are accepted");
                tasks.extend(
                    result["task_id"].as_str().filter(|_| *method == "task.create").map(str::to_owned),
                );
            }
            house
        };
        SCENERY.get_or_init(furnish).clone()
    }

    fn open(&self, id: &str) -> Workspace {
        let Some(stored) = self.stored.get(id) else { return Workspace::absent(id) };
        let members = stored.objects.values().filter(|object| object.key.kind == ObjectKind::Member).cloned();
        let opened =
            Opened { version: stored.version, meta: stored.meta.clone(), members: members.collect() };
        Workspace::open(id, &opened).expect("what was stored can be read")
    }

    /// Steps until the rules have all they ask for; gives the answer and stores what changed.
    fn drive(
        &mut self,
        id: &str,
        mut step: impl FnMut(&mut Workspace, Context<'_>) -> Outcome,
    ) -> (Answer, Option<Change>) {
        let mut workspace = self.open(id);
        for _ in 0..ROUNDS {
            let mut fresh = || {
                self.made += 1;
                self.made
            };
            let context = Context {
                settings: &self.settings,
                now: self.now,
                caller: Caller::anyone(),
                attested: Attested::default(),
                fresh: &mut fresh,
            };
            match step(&mut workspace, context) {
                Outcome::Needs { keys, open } => {
                    let objects = self.stored.get(id).map(|stored| &stored.objects);
                    let found = keys.iter().filter_map(|key| objects?.get(key).cloned()).collect();
                    workspace.supply(&keys, found);
                    for kind in open {
                        let all = objects.into_iter().flat_map(BTreeMap::values);
                        workspace.supply_open(
                            kind,
                            all.filter(|o| o.key.kind == kind && o.open).cloned().collect(),
                        );
                    }
                }
                Outcome::Done { answer, change } => {
                    if let Some(change) = &change {
                        self.store(change);
                    }
                    return (answer, change);
                }
                Outcome::Read(plan) => return (self.read(id, plan), None),
            }
        }
        panic!("a step goes on asking for objects");
    }

    fn store(&mut self, change: &Change) {
        let stored = self.stored.entry(change.workspace.clone()).or_default();
        assert_eq!(stored.version, change.version_before, "a change that does not follow the last one");
        stored.version = change.version_after;
        stored.meta.clone_from(&change.meta);
        change.removes.iter().for_each(|key| drop(stored.objects.remove(key)));
        stored.objects.extend(change.puts.iter().map(|object| (object.key.clone(), object.clone())));
        for entry in &change.entries {
            assert_eq!(entry.seq, stored.entries.len() as u64, "an entry out of order");
            stored.entries.push(entry.clone());
        }
    }

    fn read(&self, id: &str, mut plan: Plan) -> Answer {
        while let Some(query) = plan.wants() {
            plan.page(self.page(id, &query));
        }
        plan.finish()
    }

    fn page(&self, id: &str, query: &EntryQuery) -> EntryPage {
        let entries = self.stored.get(id).map(|stored| stored.entries.as_slice()).unwrap_or_default();
        let end = query.to_seq.unwrap_or(u64::MAX).min(entries.len() as u64);
        let fits = |entry: &&Entry| {
            (query.from_seq..end).contains(&entry.seq)
                && query.method.as_ref().is_none_or(|method| entry.method == *method)
                && query.from.as_ref().is_none_or(|from| entry.from.as_ref() == Some(from))
                && query.task.as_ref().is_none_or(|task| entry.tasks.contains(task))
                && query.refused.is_none_or(|refused| entry.refused.is_some() == refused)
        };
        let entries: Vec<Entry> = entries.iter().filter(fits).take(query.limit).cloned().collect();
        EntryPage { entries, next_seq: end }
    }

    fn call(&mut self, call: &Call) -> Answer {
        self.now = Timestamp::from_millis(self.now.millis() + 1_000);
        let id = call.workspace().unwrap_or_default().to_owned();
        let (answer, change) = self.drive(&id, |workspace, context| workspace.step(call, context));
        if let (Some(refusal), Some(change)) = (answer.refusal(), &change) {
            assert!(
                change.puts.iter().all(|put| put.key.kind == ObjectKind::SignedCall),
                "a refused call changed an object"
            );
            assert!(
                change.removes.is_empty() && change.notices.is_empty(),
                "a refused call removed or told something"
            );
            let recorded: Vec<_> = change.entries.iter().map(|entry| entry.refused).collect();
            assert_eq!(recorded, [Some(refusal.code)], "a refusal is recorded as something else");
        }
        answer
    }

    /// Everything that waits comes due.
    fn timers(&mut self) {
        self.now = Timestamp::from_millis(self.now.millis() + 400 * 24 * 3600 * 1_000);
        let due = |(id, stored): (&String, &Stored)| -> Vec<(String, ObjectKey)> {
            let keys = stored.objects.values().filter(|object| object.due.is_some());
            keys.map(|object| (id.clone(), object.key.clone())).collect()
        };
        for (id, key) in self.stored.iter().flat_map(due).collect::<Vec<_>>() {
            self.drive(&id, |workspace, context| workspace.lapse(&key, context));
        }
    }
}

fn check(answer: &Answer) -> bool {
    let text: Value = serde_json::from_slice(&answer.to_bytes()).expect("an answer is JSON");
    assert_eq!(text["jsonrpc"], "2.0");
    match &answer.body {
        Body::Refused(refusal) => {
            assert_ne!(refusal.code, codes::INTERNAL, "an internal error: {}", refusal.message);
            assert!(!refusal.message.is_empty());
            false
        }
        Body::Result(_) | Body::Text(_) => true,
    }
}

/// The input is calls, one a line. No call panics or is answered with an internal error; a refused one changes nothing
/// but the log; afterwards, and once everything that waits has come due, every chained log verifies.
pub fn chap_calls(data: &[u8]) -> bool {
    let mut house = House::furnished();
    let mut understood = false;
    for line in data.split(|byte| *byte == b'\n').take(CALLS) {
        let answer = match Call::parse(line, &house.settings) {
            Ok(mut call) => {
                if call.wants_a_workspace_id() {
                    call.place("wsp_new".to_owned());
                }
                house.call(&call)
            }
            Err(answer) => answer,
        };
        understood |= check(&answer);
    }
    house.timers();
    for id in house.stored.keys().cloned().collect::<Vec<_>>() {
        let chained =
            house.stored.get(&id).is_some_and(|stored| stored.entries.iter().any(|e| e.prev_hash.is_some()));
        if chained {
            let params = json!({"workspace": id});
            let call = Call::of("v", "audit.verify", params, &house.settings).expect("a call");
            let verified = house.call(&call).into_result().expect("the chain verifies");
            let prefix = verified["reason"] == "unchained_prefix";
            assert!(verified["ok"] == true || prefix, "the chain does not verify: {verified}");
        }
    }
    understood
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scene_has_what_the_seeds_name() {
        let house = House::furnished();
        let stored = house.stored.get("w").expect("the scene's workspace");
        for (kind, id) in [
            (ObjectKind::Task, "tsk_01MB78QSW80000000000000001"),
            (ObjectKind::Task, "tsk_01MB78QTVG0000000000000002"),
            (ObjectKind::Whisper, "art_w"),
            (ObjectKind::Deliberation, "dlb_d"),
            (ObjectKind::Handoff, "hnd_h"),
        ] {
            assert!(stored.objects.contains_key(&ObjectKey { kind, id: id.to_owned() }), "{id}");
        }
    }
}
