//! `control/1.0`: the brake (digest §3.6). Everything in it is privileged and for members.

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::review::{SUCCESSOR, check_member};
use super::task::{TASK_ID, stated, tell_delegator};
use super::{check_assignee, check_mode, mode_forces_review, note, or_empty, store_new_task};
use crate::call::content_hash;
use crate::limits::TASKS_PER_SNAPSHOT;
use crate::method::{Floor, Handled, Method};
use crate::model::{Mode, Parties, Stored, Task, TaskState};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::workspace::WorkspaceState;
use crate::{Refusal, codes};

const SCOPE: Param = Param::new("scope", Shape::Text, "task, participant or workspace; task if left out");
const WHO: Param = Param::new("participant_uri", Shape::Text, "The participant, in that scope");
const WHO_TOO: Param = Param::new("uri", Shape::Text, "Another name of participant_uri");
const REASON: Param = Param::new("reason", Shape::Text, "Why");

const fn control(name: &'static str, summary: &'static str, run: crate::method::Handler) -> Method {
    Method::new(name, "control/1.0", summary, run).floor(Floor::Early).privileged()
}

pub(crate) const METHODS: &[Method] = &[
    control("control.pause", "Pause a task, a participant or the workspace", pause).params(&[
        SCOPE,
        TASK_ID,
        WHO,
        WHO_TOO,
        REASON,
        Param::new("in_flight_policy", Shape::Text, "What happens to work under way"),
    ]),
    control("control.resume", "End a pause", resume)
        .pause_exempt()
        .params(&[SCOPE, TASK_ID, WHO, WHO_TOO, REASON]),
    control("control.cancel", "Cancel a task", cancel).params(&[TASK_ID, REASON]),
    control("control.supersede", "Replace a task by a new one", supersede).params(&[
        TASK_ID,
        Param::new("successor_task", Shape::Object, "{kind, assignee, input, mode, review_required}"),
        REASON,
    ]),
    control(
        "control.snapshot",
        "Keep the workspace's settings, members and open tasks as an artefact",
        snapshot,
    )
    .params(&[
        Param::new("include", Shape::Texts, "members, open_tasks, mode_ceiling, policy, audit, all"),
        Param::new("label", Shape::Text, "A name for people"),
    ]),
    control("control.rollback", "Restore what a snapshot keeps of the mode ceiling and of members", rollback)
        .params(&[
            Param::new("to_snapshot_artefact_id", Shape::Ref(ObjectKind::Snapshot), "The snapshot's id"),
            Param::new("snapshot_artefact_id", Shape::Ref(ObjectKind::Snapshot), "Another name of it"),
            Param::new("snapshot_id", Shape::Ref(ObjectKind::Snapshot), "Another name of it"),
            Param::new(
                "what_to_restore",
                Shape::Texts,
                "mode_ceiling, members; what it includes if left out",
            ),
            REASON,
        ]),
    control("control.set_mode_ceiling", "Set the highest mode a task may have", set_mode_ceiling).params(&[
        Param::new("new_ceiling", Shape::Text, "shadow, trial or production"),
        Param::new("mode_ceiling", Shape::Text, "Another name of new_ceiling"),
        REASON,
    ]),
];

/// A snapshot of a workspace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    id: String,
    produced_by: String,
    produced_at: Timestamp,
    content_hash: String,
    content: Value,
}

impl Stored for Snapshot {
    const KIND: ObjectKind = ObjectKind::Snapshot;
    fn id(&self) -> &str {
        &self.id
    }
}

enum Scope {
    Task(Box<Task>),
    Participant(String),
    Workspace,
}

fn scope(txn: &Txn<'_>, params: &Params<'_>) -> Result<Scope, Stop> {
    // A scope that is null is none of the three; one that is left out is a task.
    let scope = if params.has("scope") { params.text("scope").unwrap_or_default() } else { "task" };
    match scope {
        "task" => Ok(Scope::Task(Box::new(txn.task(params)?))),
        "participant" => {
            let uri = params.filled("participant_uri").or_else(|| params.filled("uri"));
            match uri.filter(|uri| txn.member(uri).is_some()) {
                Some(uri) => Ok(Scope::Participant(uri.to_owned())),
                None => {
                    Err(Refusal::params(format!("Unknown participant: {}", uri.unwrap_or("none named")))
                        .into())
                }
            }
        }
        "workspace" => Ok(Scope::Workspace),
        _ => Err(Refusal::params("scope must be task, participant or workspace").into()),
    }
}

fn not_allowed(verb: &str, task: &Task) -> Stop {
    Refusal::new(codes::CONTROL_NOT_AUTHORISED, format!("Cannot {verb} {} task", task.state)).into()
}

fn pause(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    match scope(txn, params)? {
        Scope::Task(mut task) => {
            if task.state.is_over() {
                return Err(not_allowed("pause", &task));
            }
            let before = task.state;
            if before != TaskState::Paused {
                task.paused_from = Some(before);
            }
            task.enter(TaskState::Paused, txn.from(), txn.now(), Some(format!("was {before}")));
            txn.put(&*task);
            tell_assignee(txn, &task, "task_paused");
            Ok(json!({"scope": "task", "task_id": task.id, "state": "paused"}).into())
        }
        Scope::Participant(uri) => {
            set_paused(txn, &uri, true);
            let policy = params.text("in_flight_policy").unwrap_or("allow_to_complete");
            Ok(json!({"scope": "participant", "participant_uri": uri, "paused": true, "in_flight_policy": policy})
                .into())
        }
        Scope::Workspace => set_state(txn, WorkspaceState::Paused),
    }
}

fn resume(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    match scope(txn, params)? {
        Scope::Task(mut task) => {
            if task.state != TaskState::Paused {
                return Err(not_allowed("resume", &task));
            }
            let state = task.paused_from.take().unwrap_or(TaskState::InProgress);
            task.enter(state, txn.from(), txn.now(), None);
            txn.put(&*task);
            tell_assignee(txn, &task, "task_resumed");
            Ok(json!({"scope": "task", "task_id": task.id, "state": state.as_str()}).into())
        }
        Scope::Participant(uri) => {
            set_paused(txn, &uri, false);
            Ok(json!({"scope": "participant", "participant_uri": uri, "paused": false}).into())
        }
        Scope::Workspace => set_state(txn, WorkspaceState::Active),
    }
}

fn set_paused(txn: &mut Txn<'_>, uri: &str, paused: bool) {
    if let Some(mut member) = txn.member(uri).cloned() {
        member.paused = paused;
        txn.put_member(member);
        if uri != txn.from() {
            txn.notify([uri], if paused { "participant_paused" } else { "participant_resumed" }, json!({}));
        }
    }
}

/// Pauses the workspace or ends the pause, and tells everybody.
pub(crate) fn set_state(txn: &mut Txn<'_>, state: WorkspaceState) -> Handled {
    txn.here_mut()?.state = state;
    let everybody = format!("workspace:{}", txn.workspace());
    txn.notify([everybody.as_str()], "workspace_state", json!({"state": state.as_str()}));
    Ok(json!({"scope": "workspace", "workspace": txn.workspace(), "state": state.as_str()}).into())
}

fn tell_assignee(txn: &mut Txn<'_>, task: &Task, kind: &str) {
    if task.assignee != txn.from() {
        txn.notify([task.assignee.as_str()], kind, json!({"task_id": task.id, "state": task.state.as_str()}));
    }
}

fn cancel(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    if task.state.is_over() {
        return Err(not_allowed("cancel", &task));
    }
    task.enter(TaskState::Cancelled, txn.from(), txn.now(), note(params.text("reason")));
    txn.put(&task);
    tell_assignee(txn, &task, "task_cancelled");
    tell_delegator(txn, &task);
    Ok(json!({"state": "cancelled"}).into())
}

fn supersede(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut old = txn.task(params)?;
    let Some(wanted) = params.object("successor_task").filter(|wanted| wanted.has("kind")) else {
        return Err(Refusal::params("successor_task must include kind").into());
    };
    let unknown = "successor assignee not in workspace";
    if wanted.get("assignee").is_some_and(|assignee| !assignee.is_string()) {
        return Err(Refusal::params(unknown).into());
    }
    let named = wanted.filled("assignee").unwrap_or(&old.assignee);
    check_member(txn, Some(named), unknown)?;
    wanted.check(&SUCCESSOR).map_err(|r| Refusal::params(format!("successor_task.{}", r.message)))?;
    let assignee = check_assignee(txn, Some(named), unknown)?;
    let mode = check_mode(txn, wanted.text("mode"), old.mode)?;
    let (id, from, now) = (txn.fresh("tsk_"), txn.from().to_owned(), txn.now());
    let reason = params.text("reason").unwrap_or_default();
    let kind = wanted.text("kind").unwrap_or_default().to_owned();
    let words = Some(format!("supersedes {}: {reason}", old.id));
    let input = or_empty(wanted.any("input"));
    let parties = Parties { assignee, delegator: from.clone() };
    let mut task = Task::new(id, kind, parties, input, mode, now, words);
    task.supersedes = Some(old.id.clone());
    task.review_required = if old.review_required == Some(true) || mode_forces_review(txn, mode) {
        Some(true)
    } else {
        stated(&wanted)
    };
    store_new_task(txn, &task)?;
    old.superseded_by = Some(task.id.clone());
    old.enter(TaskState::Superseded, &from, now, Some(format!("-> {}: {reason}", task.id)));
    txn.put(&old);
    tell_assignee(txn, &old, "task_superseded");
    tell_delegator(txn, &old);
    Ok(json!({"superseded_task_id": old.id, "new_task_id": task.id, "reason": params.any("reason")}).into())
}

fn snapshot(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let include = params
        .texts("include")
        .unwrap_or_else(|| ["members", "open_tasks", "mode_ceiling"].map(str::to_owned).to_vec());
    if include.is_empty() {
        return Err(Refusal::params("include must not be empty").into());
    }
    let includes = |name: &str| include.iter().any(|included| included == name);
    let mut state = Map::new();
    if includes("members") {
        let members: Vec<Value> = txn.members().into_iter().map(member_slice).collect();
        if !members.is_empty() {
            state.insert("members".to_owned(), json!(members));
        }
    }
    if includes("open_tasks") {
        let tasks = txn.open::<Task>()?;
        if tasks.len() > TASKS_PER_SNAPSHOT {
            let why =
                format!("A snapshot lists at most {TASKS_PER_SNAPSHOT} open tasks; leave open_tasks out");
            return Err(Refusal::params(why).into());
        }
        if !tasks.is_empty() {
            state.insert("open_tasks".to_owned(), tasks.iter().map(task_slice).collect());
        }
    }
    let meta = txn.here()?;
    let seq = meta.entries;
    if includes("mode_ceiling") {
        state.insert("mode_ceiling".to_owned(), json!(meta.mode_ceiling.as_str()));
    }
    if let Some(uri) = meta.routing_policy_uri.as_ref().filter(|uri| includes("policy") && !uri.is_empty()) {
        state.insert("routing_policy_uri".to_owned(), json!(uri));
    }
    if includes("all") || includes("audit") {
        state.insert("audit_seq".to_owned(), json!(seq));
    }
    let mut content =
        json!({"workspace": txn.workspace(), "audit_seq": seq, "include": include, "state": state});
    if let (Some(label), Some(map)) = (params.filled("label"), content.as_object_mut()) {
        map.insert("label".to_owned(), json!(label));
    }
    let snapshot = Snapshot {
        id: txn.fresh("art_"),
        produced_by: txn.from().to_owned(),
        produced_at: txn.now(),
        content_hash: content_hash(&content),
        content,
    };
    txn.put(&snapshot);
    let artefact = json!({
        "id": snapshot.id,
        "kind": "snapshot",
        "produced_by": snapshot.produced_by,
        "produced_at": snapshot.produced_at.to_string(),
        "content_hash": snapshot.content_hash,
        "content": snapshot.content,
    });
    Ok(json!({"snapshot_artefact_id": snapshot.id, "audit_seq": seq, "artefact": artefact}).into())
}

fn member_slice(member: &crate::model::Member) -> Value {
    let mut out = json!({"uri": member.uri, "type": member.kind, "role": member.role});
    if let (Some(scopes), Some(map)) = (member.scopes.as_ref().filter(|s| !s.is_empty()), out.as_object_mut())
    {
        map.insert("scopes".to_owned(), json!(scopes));
    }
    out
}

fn task_slice(task: &Task) -> Value {
    json!({"id": task.id, "kind": task.kind, "state": task.state.as_str(), "assignee": task.assignee})
}

fn rollback(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let names = ["to_snapshot_artefact_id", "snapshot_artefact_id", "snapshot_id"];
    let Some(id) = names.iter().find_map(|name| params.filled(name)) else {
        return Err(Refusal::params("to_snapshot_artefact_id is required").into());
    };
    let Some(snapshot) = txn.get::<Snapshot>(id)? else {
        return Err(Refusal::new(codes::CONTROL_SNAPSHOT_NOT_FOUND, format!("Unknown snapshot: {id}")).into());
    };
    let what = match params.texts("what_to_restore") {
        Some(what) if what.is_empty() => {
            return Err(Refusal::params("what_to_restore must not be empty").into());
        }
        Some(what) => what,
        None => Params::of(snapshot.content.as_object()).texts("include").unwrap_or_default(),
    };
    let state = Params::of(snapshot.content.as_object()).object("state").unwrap_or(Params::of(None));
    let mut restored = Vec::new();
    if let Some(ceiling) = state.text("mode_ceiling").and_then(Mode::from_name)
        && what.iter().any(|name| name == "mode_ceiling")
    {
        txn.here_mut()?.mode_ceiling = ceiling;
        restored.push("mode_ceiling");
    }
    if let Some(members) = state.list("members")
        && what.iter().any(|name| name == "members")
    {
        for kept in members.iter().map(|kept| Params::of(kept.as_object())) {
            // Who has left stays away, and who came since stays.
            if let Some(mut member) = kept.text("uri").and_then(|uri| txn.member(uri)).cloned() {
                member.role = kept.text("role").unwrap_or(&member.role).to_owned();
                member.scopes = kept.texts("scopes");
                txn.put_member(member);
            }
        }
        restored.push("members");
    }
    let seq = Params::of(snapshot.content.as_object()).any("audit_seq");
    let mut out = json!({"rolled_back_to": id, "audit_seq": seq, "restored": restored});
    if let (Some(reason), Some(map)) = (params.filled("reason"), out.as_object_mut()) {
        map.insert("reason".to_owned(), json!(reason));
    }
    Ok(out.into())
}

fn set_mode_ceiling(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let wanted = params.filled("new_ceiling").or_else(|| params.filled("mode_ceiling"));
    let Some(ceiling) = wanted.and_then(Mode::from_name) else {
        return Err(Refusal::params("new_ceiling must be shadow, trial or production").into());
    };
    txn.here_mut()?.mode_ceiling = ceiling;
    Ok(json!({"mode_ceiling": ceiling.as_str(), "reason": params.any("reason")}).into())
}
