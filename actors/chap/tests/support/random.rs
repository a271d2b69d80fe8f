//! Calls made up from the table of methods: every method, every param, values that mostly fit what is there.

use choir_chap::{Method, Param, Shape, methods};
use choir_messages::chap::ObjectKind;
use serde_json::{Map, Value, json};

use super::House;

/// A small generator, so that one number makes one sequence.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap_or(0)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }
}

pub(crate) const PEOPLE: [&str; 5] =
    ["human:ann@e.org", "human:bob@e.org", "human:cy@e.org", "agent:one#v1", "service:mill"];

pub(crate) const PROFILES: [&str; 9] = [
    "core/1.0",
    "review/1.0",
    "whisper/1.0",
    "deliberation/1.0",
    "handoff/1.0",
    "control/1.0",
    "routing/1.0",
    "modes/1.0",
    "audit-scitt/1.0",
];

/// A workspace with everybody in it.
pub(crate) fn furnish(house: &mut House) {
    house.ok("workspace.create", json!({"workspace": "wsp_a", "profiles": PROFILES, "mode": "production"}));
    for (number, uri) in PEOPLE.iter().enumerate() {
        let role = if number == 0 { "admin" } else { "participant" };
        let kind = uri.split(':').next();
        house.ok("participant.join", json!({"workspace": "wsp_a", "from": uri, "type": kind, "role": role}));
    }
}

/// Ids of stored objects of a kind, and one that is none.
fn ids(house: &House, kind: ObjectKind) -> Vec<String> {
    let mut ids: Vec<String> = house
        .store
        .0
        .get("wsp_a")
        .into_iter()
        .flat_map(|stored| stored.objects.keys())
        .filter(|key| key.kind == kind)
        .map(|key| key.id.clone())
        .collect();
    ids.push("none".to_owned());
    ids
}

/// A value that fits a param.
pub(crate) fn fitting(house: &House, rng: &mut Rng, param: &Param) -> Value {
    let word = |rng: &mut Rng| {
        json!(rng.pick(&[
            "in_progress",
            "completed",
            "declined",
            "task",
            "participant",
            "workspace",
            "shadow",
            "trial",
            "production",
            "yea",
            "nay",
            "any_one_approves",
            "all_approve",
            "quorum:2",
            "weighted_vote:2",
            "k1",
            "human",
            "members",
            "words",
            "",
        ]))
    };
    match (param.name, param.shape) {
        ("artefact" | "output" | "input", _) => {
            rng.pick(&[json!({"a": 1}), json!({"a": [1, 2]}), json!("x")]).clone()
        }
        ("diff", _) => json!([{"op": "replace", "path": "/a", "value": rng.below(9)}]),
        ("rule", _) => json!(rng.pick(&["any_one_approves", "all_approve", "quorum:2", "weighted_vote:2"])),
        ("state", _) => json!(rng.pick(&["in_progress", "completed", "declined", "cancelled"])),
        ("vote", _) => json!(rng.pick(&["yea", "nay", "abstain"])),
        ("scope", _) => json!(rng.pick(&["task", "task", "task", "participant"])),
        ("type", _) => json!(rng.pick(&["human", "agent"])),
        ("mode" | "new_mode", _) => json!(rng.pick(&["shadow", "trial", "production"])),
        ("new_ceiling" | "mode_ceiling", _) => json!(rng.pick(&["trial", "production", "production"])),
        ("new_task" | "successor_task", _) => {
            json!({"kind": "next", "assignee": rng.pick(&PEOPLE), "input": {"n": 1}})
        }
        ("tasks", _) => {
            let tasks = ids(house, ObjectKind::Task);
            json!([{"task_id": rng.pick(&tasks)}])
        }
        ("new_jwk", _) => {
            json!({"kty": "OKP", "crv": "Ed25519", "kid": format!("k{}", rng.below(9)), "x": "AA"})
        }
        ("jwks", _) => json!({"keys": [{"kid": "k1"}]}),
        ("options", _) => json!([{"id": "a"}, {"id": "b"}]),
        ("default_if_lapsed" | "answer_option", _) => json!(rng.pick(&["a", "b"])),
        ("profiles", _) => json!(PROFILES),
        ("range", _) => json!({"from_seq": rng.below(20)}),
        ("candidates", _) => json!(PEOPLE),
        (
            "assignee"
            | "participant_uri"
            | "uri"
            | "target_uri"
            | "default_escalation_target"
            | "suggested_target",
            _,
        ) => {
            json!(rng.pick(&PEOPLE))
        }
        (_, Shape::Any) => rng.pick(&[json!(null), json!("x"), json!({"a": 1}), json!([1])]).clone(),
        (_, Shape::Text) => word(rng),
        (_, Shape::Bool) => json!(rng.chance(50)),
        (_, Shape::Count) => json!(rng.below(100_000)),
        (_, Shape::Object) => json!({"criticality": "high", "confidence": "0.9"}),
        (_, Shape::List) => json!([word(rng)]),
        (_, Shape::Texts) => json!([word(rng)]),
        (_, Shape::TextOrTexts) => json!([rng.pick(&PEOPLE), rng.pick(&PEOPLE)]),
        (_, Shape::Uri) => json!(rng.pick(&PEOPLE)),
        (_, Shape::Time) => {
            let shift = rng.below(400_000) as u64;
            json!(choir_messages::time::Timestamp::from_millis(house.now.millis() + shift).to_string())
        }
        (_, Shape::Ref(kind)) => json!(rng.pick(&ids(house, kind))),
        (_, Shape::NewId) => json!(format!("id_{}", rng.below(5))),
    }
}

/// Params for a method: all that are required, and some of the others.
pub(crate) fn params(house: &House, rng: &mut Rng, method: &Method) -> Map<String, Value> {
    let mut params = Map::new();
    params.insert("workspace".to_owned(), json!("wsp_a"));
    params.insert("from".to_owned(), json!(rng.pick(&PEOPLE)));
    if rng.chance(60) {
        params.insert("to".to_owned(), json!(rng.pick(&PEOPLE)));
    }
    for param in method.params {
        let needed = method.required.contains(&param.name) || matches!(param.shape, Shape::Ref(_));
        if needed || rng.chance(35) {
            params.insert(param.name.to_owned(), fitting(house, rng, param));
        }
    }
    params
}

/// Methods that change much and let little happen afterwards are called seldom.
const SELDOM: [&str; 8] = [
    "participant.leave",
    "workspace.set_profiles",
    "workspace.close",
    "workspace.pause",
    "workspace.evict",
    "control.set_mode_ceiling",
    "workspace.set_mode",
    "audit.redact",
];

/// Any method and its params.
pub(crate) fn call(house: &House, rng: &mut Rng) -> (&'static str, Value) {
    let all: Vec<&'static Method> = methods().collect();
    loop {
        let method = *rng.pick(&all);
        if SELDOM.contains(&method.name) && !rng.chance(10) {
            continue;
        }
        // Tasks are what everything else is about.
        if rng.chance(15) {
            let method = choir_chap::method("task.create").expect("it is in the table");
            return (method.name, Value::Object(params(house, rng, method)));
        }
        return (method.name, Value::Object(params(house, rng, method)));
    }
}
