//! `task.create`, `.update`, `.complete` (digest §3.6 core, §3.7).

use choir_messages::chain::Digest;
use choir_messages::chap::ObjectKind;
use serde_json::{Value, json};

use super::{check_assignee, check_mode, mode_forces_review, note, review, store_new_task};
use crate::Refusal;
use crate::method::{Floor, Handled, Method};
use crate::model::{Idempotency, Parties, Task, TaskState};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;

pub(crate) const METHODS: &[Method] = &[
    Method::new("task.create", "core/1.0", "Create a task and hand it to its assignee", create)
        .floor(Floor::Member)
        .required(&["workspace", "from", "kind", "input"])
        .replayed(created_before)
        .params(&[
            Param::new("kind", Shape::Text, "What sort of work"),
            Param::new("input", Shape::Any, "What the work starts from"),
            Param::new("assignee", Shape::Text, "Who does it; `to` if left out"),
            Param::new("mode", Shape::Text, "shadow, trial or production; the workspace's mode if left out"),
            Param::new("deadline", Shape::Text, "Until when, RFC 3339"),
            Param::new("routing_hints", Shape::Object, "Hints such as criticality and confidence"),
            Param::new("review_required", Shape::Bool, "Whether completing it opens a review"),
            Param::new(
                "idempotency_key",
                Shape::Text,
                "A repeat with the same key is answered with the first task",
            ),
        ]),
    Method::new("task.update", "core/1.0", "Move a task to another state", update)
        .floor(Floor::Member)
        .params(&[
            TASK_ID,
            Param::new("state", Shape::Text, "in_progress, completed, declined or cancelled"),
            Param::new("progress_note", Shape::Text, "What there is to say about it"),
        ]),
    Method::new("task.complete", "core/1.0", "Hand in what came of a task", complete)
        .floor(Floor::Member)
        .params(&[
            TASK_ID,
            Param::new("output", Shape::Any, "What came of it"),
            Param::new("confidence", Shape::Any, "How sure its producer is, as text such as \"0.82\""),
        ]),
];

pub(crate) const TASK_ID: Param = Param::new("task_id", Shape::Ref(ObjectKind::Task), "The task's id");

fn key_id(key: &str) -> String {
    Digest::of(key.as_bytes()).to_string()
}

/// A repeat of a creation is answered with the task it made.
fn created_before(txn: &Txn<'_>, params: &Params<'_>) -> Result<Option<Value>, Stop> {
    let Some(key) = params.text("idempotency_key") else { return Ok(None) };
    let Some(known) = txn.get::<Idempotency>(&key_id(key))? else { return Ok(None) };
    let task = txn.get::<Task>(&known.task_id)?;
    Ok(task.map(|task| json!({"task_id": task.id, "state": task.state.as_str()})))
}

pub(crate) fn create(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let named = params.filled("assignee").or_else(|| params.filled("to"));
    let assignee = check_assignee(txn, named, "Assignee not in workspace")?;
    let workspace_mode = txn.here()?.mode;
    let mode = check_mode(txn, params.text("mode"), workspace_mode)?;
    let (id, from, now) = (txn.fresh("tsk_"), txn.from().to_owned(), txn.now());
    let kind = params.text("kind").unwrap_or_default().to_owned();
    let parties = Parties { assignee, delegator: from };
    let mut task = Task::new(id, kind, parties, params.any("input"), mode, now, None);
    task.deadline = note(params.text("deadline"));
    task.routing_hints = params.map("routing_hints").cloned();
    task.review_required = if mode_forces_review(txn, mode) { Some(true) } else { stated(params) };
    store_new_task(txn, &task)?;
    if let Some(key) = params.text("idempotency_key") {
        txn.put(&Idempotency { id: key_id(key), task_id: task.id.clone() });
    }
    Ok(json!({"task_id": task.id, "state": "created"}).into())
}

/// What a caller says of `review_required`: a null is a no.
pub(crate) fn stated(params: &Params<'_>) -> Option<bool> {
    params.has("review_required").then(|| params.flag("review_required").unwrap_or(false))
}

/// Where a task may go by `task.update`. Pauses belong to `control/1.0`, reviews to `review/1.0`.
fn may_become(from: TaskState, to: &str) -> Option<TaskState> {
    use TaskState::{Cancelled, Completed, Created, Declined, InProgress, Paused, ReviewRequested};
    let allowed: &[TaskState] = match from {
        Created => &[InProgress, Declined],
        InProgress => &[InProgress, Completed, Declined],
        ReviewRequested => &[InProgress],
        Paused => &[Cancelled],
        _ => &[],
    };
    allowed.iter().copied().find(|state| state.as_str() == to)
}

fn update(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    let wanted = params.text("state").unwrap_or("None");
    let Some(state) = may_become(task.state, wanted) else {
        return Err(Refusal::params(format!("Illegal transition {} -> {wanted}", task.state)).into());
    };
    if state == TaskState::Completed && task.review_required == Some(true) {
        let why = "This task requires review: hand its output in with task.complete, which opens the review";
        return Err(Refusal::params(why).into());
    }
    task.enter(state, txn.from(), txn.now(), note(params.text("progress_note")));
    if state == TaskState::Completed {
        task.producer = Some(txn.from().to_owned());
    }
    txn.put(&task);
    tell_delegator(txn, &task);
    Ok(json!({"state": state.as_str()}).into())
}

fn complete(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    if !matches!(task.state, TaskState::Created | TaskState::InProgress) {
        return Err(Refusal::params(format!("Cannot complete task in state: {}", task.state)).into());
    }
    if task.review_required == Some(true) {
        return review::open_on_completion(txn, task, params);
    }
    task.output = params.any("output");
    if params.has("confidence") {
        task.confidence = params.any("confidence");
    }
    task.producer = Some(txn.from().to_owned());
    task.enter(TaskState::Completed, txn.from(), txn.now(), None);
    txn.put(&task);
    tell_delegator(txn, &task);
    Ok(json!({"state": "completed"}).into())
}

/// Tells whoever asked for a task that it is over, unless it is their own doing.
pub(crate) fn tell_delegator(txn: &mut Txn<'_>, task: &Task) {
    if task.state.is_over() && task.delegator != txn.from() {
        let more = json!({"task_id": task.id, "state": task.state.as_str()});
        txn.notify([task.delegator.as_str()], "task_finished", more);
    }
}
