//! The longer way through a task that the specification names (§12.3): propose, accept or decline, start, progress; and
//! its description, a reviewer's sign of life, and notes kept beside a task. All of it stays within the states of digest
//! §3.7: an assigned or accepted task is `created`, with that in its history.

use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::task::{TASK_ID, create, tell_delegator};
use super::{check_assignee, note};
use crate::method::{Floor, Handled, Method};
use crate::model::{Stored, Task, TaskState};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::uri::is_broadcast;
use crate::{Refusal, codes};

const REASON: Param = Param::new("reason", Shape::Text, "Why");
const NOTE: Param = Param::new("progress_note", Shape::Text, "What there is to say");

pub(crate) const METHODS: &[Method] = &[
    Method::new(
        "task.assign",
        "core/1.0",
        "Propose a task to an assignee: a new one, or one that exists",
        assign,
    )
    .floor(Floor::Member)
    .params(&[
        TASK_ID,
        Param::new("assignee", Shape::Text, "Who is to do it; `to` if left out"),
        Param::new("kind", Shape::Text, "What sort of work, for a new task"),
        Param::new("input", Shape::Any, "What the work starts from, for a new task"),
        Param::new("mode", Shape::Text, "shadow, trial or production; the workspace's mode if left out"),
        Param::new("deadline", Shape::Text, "Until when, RFC 3339"),
        Param::new("routing_hints", Shape::Object, "Hints such as criticality and confidence"),
        Param::new("review_required", Shape::Bool, "Whether completing it opens a review"),
        REASON,
    ]),
    Method::new("task.accept", "core/1.0", "Accept a task that was assigned to you", accept)
        .floor(Floor::Member)
        .required_later(&["from", "task_id"])
        .params(&[TASK_ID, Param::new("comment", Shape::Text, "Words")]),
    Method::new("task.decline", "core/1.0", "Decline a task that was assigned to you", decline)
        .floor(Floor::Member)
        .required_later(&["from", "task_id"])
        .params(&[TASK_ID, REASON]),
    Method::new("task.start", "core/1.0", "Say that you have begun a task of yours", start)
        .floor(Floor::Member)
        .required_later(&["from", "task_id"])
        .params(&[TASK_ID, NOTE]),
    Method::new("task.progress", "core/1.0", "Say how a task of yours is getting on", progress)
        .floor(Floor::Member)
        .required_later(&["from", "task_id"])
        .params(&[
            TASK_ID,
            NOTE,
            Param::new("stage", Shape::Text, "Where it stands, in one word"),
            Param::new("percent", Shape::Count, "How much of it is done, 0 to 100"),
        ]),
    Method::new("task.describe", "core/1.0", "Describe a task: its state, its review, its history", describe)
        .floor(Floor::Reader)
        .pause_exempt()
        .read()
        .required_later(&["task_id"])
        .params(&[TASK_ID]),
    Method::new(
        "review.acknowledge",
        "review/1.0",
        "Say that you have begun a review asked of you",
        acknowledge,
    )
    .floor(Floor::Member)
    .required_later(&["from", "task_id"])
    .params(&[TASK_ID, Param::new("comment", Shape::Text, "Words")]),
    Method::new("capture.append", "core/1.0", "Keep a note, a tag or a link beside a task", capture)
        .floor(Floor::Member)
        .required_later(&["from", "task_id"])
        .params(&[
            TASK_ID,
            Param::new("kind", Shape::Text, "note, tag or link; note if left out"),
            Param::new("content", Shape::Any, "What is kept"),
            Param::new("text", Shape::Text, "The same, as a text"),
            Param::new("tags", Shape::Texts, "Tags"),
        ]),
];

/// A fragment kept beside a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Capture {
    id: String,
    task_id: String,
    by: String,
    ts: Timestamp,
    kind: String,
    content: Value,
    tags: Vec<String>,
}

impl Stored for Capture {
    const KIND: ObjectKind = ObjectKind::Record;
    fn id(&self) -> &str {
        &self.id
    }
}

fn assign(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    if params.get("task_id").is_none() {
        params.require(&["from", "kind", "input"])?;
        return create(txn, params);
    }
    let mut task = txn.task(params)?;
    if !matches!(task.state, TaskState::Created | TaskState::InProgress) {
        return Err(Refusal::params(format!("Cannot assign task in state: {}", task.state)).into());
    }
    let from = txn.from().to_owned();
    let admin = txn.member(&from).is_some_and(|member| member.role == "admin");
    if ![&task.delegator, &task.assignee].contains(&&from) && !admin {
        let why = "Only its delegator, its assignee or an admin may assign a task to somebody else";
        return Err(Refusal::new(codes::NOT_AUTHORISED, why).into());
    }
    let named = params.filled("assignee").or_else(|| params.filled("to"));
    let assignee = check_assignee(txn, named, "Assignee not in workspace")?;
    task.assignee.clone_from(&assignee);
    let state = task.state;
    let words = params.filled("reason").map_or_else(|| format!("assigned to {assignee}"), str::to_owned);
    task.enter(state, &from, txn.now(), Some(words));
    txn.put(&task);
    if assignee != from {
        let more = json!({"task_id": task.id, "task_kind": task.kind, "delegator": task.delegator});
        txn.notify([assignee.as_str()], "task_assigned", more);
    }
    Ok(json!({"task_id": task.id, "state": state.as_str(), "assignee": assignee}).into())
}

/// The task named, if the sender is its assignee.
fn own(txn: &Txn<'_>, params: &Params<'_>) -> Result<Task, Stop> {
    let task = txn.task(params)?;
    if task.assignee == txn.from() {
        return Ok(task);
    }
    let why = format!("Task {} is assigned to {}, not to {}", task.id, task.assignee, txn.from());
    Err(Refusal::new(codes::NOT_AUTHORISED, why).into())
}

fn illegal(task: &Task, to: &str) -> Stop {
    Refusal::params(format!("Illegal transition {} -> {to}", task.state)).into()
}

fn tell(txn: &mut Txn<'_>, task: &Task, kind: &str, mut more: Value) {
    if task.delegator != txn.from() {
        more["task_id"] = json!(task.id);
        txn.notify([task.delegator.as_str()], kind, more);
    }
}

fn accept(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = own(txn, params)?;
    if task.state != TaskState::Created {
        return Err(illegal(&task, "accepted"));
    }
    let words = params.filled("comment").map_or_else(|| "accepted".to_owned(), |c| format!("accepted: {c}"));
    let from = txn.from().to_owned();
    task.enter(TaskState::Created, &from, txn.now(), Some(words));
    txn.put(&task);
    tell(txn, &task, "task_accepted", json!({}));
    Ok(json!({"task_id": task.id, "accepted": true, "state": task.state.as_str()}).into())
}

fn decline(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = own(txn, params)?;
    if !matches!(task.state, TaskState::Created | TaskState::InProgress) {
        return Err(illegal(&task, "declined"));
    }
    let from = txn.from().to_owned();
    task.enter(TaskState::Declined, &from, txn.now(), note(params.text("reason")));
    txn.put(&task);
    tell_delegator(txn, &task);
    Ok(json!({"task_id": task.id, "state": "declined"}).into())
}

fn start(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = own(txn, params)?;
    if task.state != TaskState::Created {
        return Err(illegal(&task, "in_progress"));
    }
    let from = txn.from().to_owned();
    task.enter(TaskState::InProgress, &from, txn.now(), note(params.text("progress_note")));
    txn.put(&task);
    tell(txn, &task, "task_started", json!({}));
    Ok(json!({"task_id": task.id, "state": "in_progress"}).into())
}

fn progress(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = own(txn, params)?;
    if task.state != TaskState::InProgress {
        let why = format!("Progress is told of a task in progress, not of one that is {}", task.state);
        return Err(Refusal::params(why).into());
    }
    let percent = params.count("percent");
    if percent.is_some_and(|percent| percent > 100) {
        return Err(Refusal::params("percent must be from 0 to 100").into());
    }
    let stage = params.filled("stage");
    let words: Vec<String> = [
        stage.map(str::to_owned),
        percent.map(|percent| format!("{percent} %")),
        params.filled("progress_note").map(str::to_owned),
    ]
    .into_iter()
    .flatten()
    .collect();
    let from = txn.from().to_owned();
    task.enter(TaskState::InProgress, &from, txn.now(), note(Some(&words.join(": "))));
    txn.put(&task);
    tell(
        txn,
        &task,
        "task_progress",
        json!({"stage": stage, "percent": percent, "note": params.text("progress_note")}),
    );
    Ok(json!({"task_id": task.id, "recorded": true, "state": "in_progress"}).into())
}

fn describe(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let task = txn.task(params)?;
    let withheld = !txn.sees_output(&task, params.text("from"));
    Ok(json!({"task": task.to_wire(withheld)}).into())
}

fn acknowledge(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    let now = txn.now();
    let (TaskState::ReviewRequested, Some(review)) = (task.state, task.review.clone()) else {
        let why = format!("Task not awaiting review: {}", task.state);
        return Err(Refusal::new(codes::NOT_REVIEWABLE, why).into());
    };
    let from = txn.from().to_owned();
    if !review.requested_to.iter().any(|uri| *uri == from || is_broadcast(uri)) {
        let why = format!("Not an addressed reviewer for this task: {from}");
        return Err(Refusal::new(codes::NOT_AUTHORISED, why).into());
    }
    let words =
        params.filled("comment").map_or_else(|| "review begun".to_owned(), |c| format!("review begun: {c}"));
    task.enter(TaskState::ReviewRequested, &from, now, Some(words));
    txn.put(&task);
    txn.notify(
        [review.requested_by.as_str()],
        "review_acknowledged",
        json!({"task_id": task.id, "reviewer": from}),
    );
    Ok(json!({"task_id": task.id, "acknowledged": true, "state": "review_requested"}).into())
}

fn capture(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let task = txn.task(params)?;
    let kind = params.filled("kind").unwrap_or("note");
    if !matches!(kind, "note" | "tag" | "link") {
        return Err(Refusal::params("kind must be note, tag or link").into());
    }
    let content = params.get("content").or_else(|| params.get("text")).cloned().unwrap_or_default();
    let tags = params.texts("tags").unwrap_or_default();
    if content.is_null() && tags.is_empty() {
        return Err(Refusal::params("capture.append needs content, text or tags").into());
    }
    let id = txn.fresh("art_");
    let (by, ts, kind) = (txn.from().to_owned(), txn.now(), kind.to_owned());
    txn.put(&Capture { id: id.clone(), task_id: task.id.clone(), by, ts, kind, content, tags });
    Ok(json!({"capture_id": id, "task_id": task.id}).into())
}
