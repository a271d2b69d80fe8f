//! `handoff/1.0`: tasks on their way from one participant to another (digest §3.6).

use choir_messages::chap::ObjectKind;
use serde_json::{Map, Value, json};

use crate::limits::TASKS_PER_HANDOFF;
use crate::method::{Floor, Handled, Method};
use crate::model::{Handoff, HandoffState, Task};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::{Refusal, codes};

const ID: Param = Param::new("handoff_id", Shape::Ref(ObjectKind::Handoff), "The handoff");

pub(crate) const METHODS: &[Method] = &[
    Method::new("handoff.propose", "handoff/1.0", "Propose that somebody takes over tasks of yours", propose)
        .floor(Floor::Early)
        .required_later(&["from", "to", "tasks"])
        .params(&[
            Param::new("tasks", Shape::Any, "[{task_id, title, status_summary, next_action, blockers}]"),
            Param::new("summary", Shape::Any, "Words about all of them"),
            Param::new("context_links", Shape::List, "Where to read more"),
            Param::new("handoff_id", Shape::NewId, "An id of the caller's choice"),
        ]),
    Method::new("handoff.accept", "handoff/1.0", "Take over tasks that were handed to you", accept)
        .floor(Floor::Early)
        .required_later(&["from", "handoff_id"])
        .params(&[
            ID,
            Param::new("accepted_task_ids", Shape::Texts, "Which of them; all where it is absent"),
            Param::new("comment", Shape::Any, "Words"),
        ]),
    Method::new("handoff.decline", "handoff/1.0", "Do not take over tasks that were handed to you", decline)
        .floor(Floor::Early)
        .required_later(&["from", "handoff_id"])
        .params(&[
            ID,
            Param::new("reason", Shape::Any, "Why"),
            Param::new("suggested_target", Shape::Any, "Who might instead"),
        ]),
];

fn propose(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let recipient = match params.texts("to").unwrap_or_default().as_slice() {
        [one] => one.clone(),
        _ => return Err(Refusal::params("A handoff goes to one participant or one group").into()),
    };
    if !recipient.starts_with("group:") && txn.member(&recipient).is_none() {
        let why = format!("Recipient {recipient} is not a member");
        return Err(Refusal::new(codes::HANDOFF_RECIPIENT_NOT_MEMBER, why).into());
    }
    let described = params.list("tasks").filter(|tasks| !tasks.is_empty());
    let Some(described) = described else {
        return Err(Refusal::params("tasks must be a non-empty list").into());
    };
    if described.len() > TASKS_PER_HANDOFF {
        return Err(Refusal::params(format!("A handoff carries at most {TASKS_PER_HANDOFF} tasks")).into());
    }
    let id_of = |task: &Value| task.get("task_id").and_then(Value::as_str).map(str::to_owned);
    let ids: Vec<Option<String>> = described.iter().map(id_of).collect();
    txn.expect::<Task>(&ids.iter().flatten().map(String::as_str).collect::<Vec<_>>())?;
    let mut tasks = Vec::with_capacity(described.len());
    for (task, id) in described.iter().zip(&ids) {
        let found = match id {
            Some(id) => txn.get::<Task>(id)?,
            None => None,
        };
        let Some(found) = found else {
            let shown = id.as_deref().unwrap_or("None");
            return Err(Refusal::params(format!("Unknown task in handoff: {shown}")).into());
        };
        if found.assignee != txn.from() {
            let why = format!("Task {} is not currently assigned to {}", found.id, txn.from());
            return Err(Refusal::new(codes::HANDOFF_TASK_NOT_PROPOSERS, why).into());
        }
        txn.concerns(&found.id);
        tasks.push(pick(task, &["task_id", "title", "status_summary", "next_action", "blockers"]));
    }
    let id = match params.text("handoff_id") {
        Some(id) if txn.get::<Handoff>(id)?.is_some() => {
            return Err(Refusal::params(format!("Handoff id in use: {id}")).into());
        }
        Some(id) => id.to_owned(),
        None => txn.fresh("hnd_"),
    };
    let mut more = Map::new();
    for name in ["summary", "context_links"] {
        if let Some(value) = params.get(name) {
            more.insert(name.into(), value.clone());
        }
    }
    let handoff = Handoff {
        id,
        proposer: txn.from().to_owned(),
        recipient,
        proposed_at: txn.now(),
        tasks,
        more,
        state: HandoffState::Proposed,
        resolution: Map::new(),
    };
    txn.put(&handoff);
    let mut told = Value::Object(handoff.more.clone());
    told["handoff_id"] = json!(handoff.id);
    told["proposer"] = json!(handoff.proposer);
    told["tasks"] = json!(handoff.tasks);
    txn.notify([handoff.recipient.as_str()], "handoff_proposed", told);
    Ok(json!({"handoff_id": handoff.id, "state": "proposed", "task_ids": handoff.task_ids()}).into())
}

/// These members of an object, where they are there.
fn pick(object: &Value, names: &[&str]) -> Value {
    let named = names.iter().filter_map(|name| Some(((*name).to_owned(), object.get(*name)?.clone())));
    Value::Object(named.collect())
}

/// The handoff named, while nobody has resolved it.
fn unresolved(txn: &Txn<'_>, params: &Params<'_>) -> Result<Handoff, Stop> {
    let found = match params.text("handoff_id") {
        Some(id) => txn.get::<Handoff>(id)?,
        None => None,
    };
    let Some(handoff) = found else { return Err(Refusal::params("Unknown handoff").into()) };
    if handoff.state == HandoffState::Proposed {
        return Ok(handoff);
    }
    let why = format!("Handoff already {}", handoff.state.as_str());
    Err(Refusal::new(codes::HANDOFF_ALREADY_RESOLVED, why).into())
}

fn accept(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut handoff = unresolved(txn, params)?;
    let from = txn.from().to_owned();
    if !handoff.recipient.starts_with("group:") && handoff.recipient != from {
        let why = "Acceptor is not the named recipient";
        return Err(Refusal::new(codes::HANDOFF_RECIPIENT_NOT_MEMBER, why).into());
    }
    if txn.member(&from).is_some_and(|member| member.paused) {
        return Err(Refusal::new(codes::CONTROL_PAUSED, format!("Acceptor {from} is paused")).into());
    }
    let proposed: Vec<String> = handoff.task_ids().into_iter().map(str::to_owned).collect();
    let accepted = match params.texts("accepted_task_ids") {
        Some(ids) if ids.is_empty() => {
            return Err(Refusal::params("accepted_task_ids must not be empty").into());
        }
        Some(ids) => ids,
        None => proposed.clone(),
    };
    if let Some(other) = accepted.iter().find(|id| !proposed.contains(id)) {
        return Err(Refusal::params(format!("Task {other} not in this handoff")).into());
    }
    txn.expect::<Task>(&accepted.iter().map(String::as_str).collect::<Vec<_>>())?;
    let now = txn.now();
    for id in &accepted {
        let Some(mut task) = txn.get::<Task>(id)? else { continue };
        // Somebody else may hold it by now; a handoff passes on only what its proposer has.
        if task.assignee != handoff.proposer && task.assignee != from {
            let why = format!("Task {id} is not currently assigned to {}", handoff.proposer);
            return Err(Refusal::new(codes::HANDOFF_TASK_NOT_PROPOSERS, why).into());
        }
        task.assignee.clone_from(&from);
        let state = task.state;
        task.enter(state, &from, now, Some(format!("handoff accepted from {}", handoff.proposer)));
        txn.put(&task);
        txn.concerns(id);
    }
    handoff.state = HandoffState::Accepted;
    handoff.resolution = Map::from_iter([
        ("by".to_owned(), json!(from)),
        ("at".to_owned(), json!(now.to_string())),
        ("task_ids".to_owned(), json!(accepted)),
        ("comment".to_owned(), params.any("comment")),
    ]);
    txn.put(&handoff);
    let told = json!({"handoff_id": handoff.id, "task_ids": accepted, "assignee": from});
    txn.notify([handoff.proposer.as_str()], "handoff_accepted", told);
    Ok(json!({"accepted": true, "task_ids": accepted, "assignee": from}).into())
}

fn decline(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut handoff = unresolved(txn, params)?;
    let from = txn.from().to_owned();
    handoff.resolution = Map::from_iter([
        ("by".to_owned(), json!(from)),
        ("at".to_owned(), json!(txn.now().to_string())),
        ("reason".to_owned(), params.any("reason")),
        ("suggested_target".to_owned(), params.any("suggested_target")),
    ]);
    // One of a group, or a bystander, does not speak for the others.
    if handoff.recipient == from {
        handoff.state = HandoffState::Declined;
    }
    txn.put(&handoff);
    let tasks: Vec<String> = handoff.task_ids().into_iter().map(str::to_owned).collect();
    tasks.iter().for_each(|id| txn.concerns(id));
    let mut told = Value::Object(handoff.resolution.clone());
    told["handoff_id"] = json!(handoff.id);
    told["state"] = json!(handoff.state.as_str());
    txn.notify([handoff.proposer.as_str()], "handoff_declined", told);
    Ok(json!({"recorded": true, "state": handoff.state.as_str()}).into())
}
