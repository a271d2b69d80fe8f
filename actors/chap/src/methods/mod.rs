//! The families of methods. Adding a method is adding a row to its family's table and a function beside it.

mod audit;
mod control;
mod deliberation;
mod extra_audit;
mod extra_participant;
mod extra_task;
mod extra_workspace;
mod handoff;
mod keys;
mod participant;
mod review;
mod routing;
mod task;
mod whisper;
mod workspace;

pub use extra_workspace::Gate;

use choir_messages::chap::{ObjectKey, ObjectKind};
use serde_json::Value;

use crate::method::Method;
use crate::model::{Mode, Task};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::{Refusal, codes};

/// Every family's table.
pub(crate) const FAMILIES: &[&[Method]] = &[
    workspace::METHODS,
    participant::METHODS,
    task::METHODS,
    audit::METHODS,
    review::METHODS,
    control::METHODS,
    whisper::METHODS,
    deliberation::METHODS,
    handoff::METHODS,
    routing::METHODS,
    keys::METHODS,
    extra_workspace::METHODS,
    extra_participant::METHODS,
    extra_task::METHODS,
    extra_audit::METHODS,
];

/// Does what an object's deadline asks, if it has come; says whether it did anything.
pub(crate) fn lapse(txn: &mut Txn<'_>, key: &ObjectKey) -> Result<bool, Stop> {
    match key.kind {
        ObjectKind::Task => review::lapse(txn, &key.id),
        ObjectKind::Whisper => whisper::lapse(txn, &key.id),
        ObjectKind::Deliberation => deliberation::lapse(txn, &key.id),
        _ => Ok(false),
    }
}

/// Refuses an assignee who is no member or takes no new tasks.
pub(crate) fn check_assignee(
    txn: &Txn<'_>,
    assignee: Option<&str>,
    unknown: &str,
) -> Result<String, Refusal> {
    let Some(member) = assignee.and_then(|uri| txn.member(uri)) else { return Err(Refusal::params(unknown)) };
    if member.paused {
        return Err(Refusal::new(codes::CONTROL_PAUSED, format!("Assignee {} is paused", member.uri)));
    }
    Ok(member.uri.clone())
}

/// The mode a new task gets: what is named, or else the other; never above the workspace's ceiling. A name that is no
/// mode is above every ceiling.
pub(crate) fn check_mode(txn: &Txn<'_>, named: Option<&str>, otherwise: Mode) -> Result<Mode, Stop> {
    let ceiling = txn.here()?.mode_ceiling;
    let named = named.filter(|name| !name.is_empty());
    match named.map_or(Some(otherwise), Mode::from_name) {
        Some(mode) if mode <= ceiling => Ok(mode),
        _ => Err(Refusal::new(
            codes::MODE_CEILING_EXCEEDED,
            format!(
                "Requested mode {} exceeds ceiling {}",
                named.unwrap_or(otherwise.as_str()),
                ceiling.as_str()
            ),
        )
        .into()),
    }
}

/// Whether a task of that mode is always reviewed: in `trial`, where `modes/1.0` is advertised.
pub(crate) fn mode_forces_review(txn: &Txn<'_>, mode: Mode) -> bool {
    mode == Mode::Trial && txn.meta().is_some_and(|meta| meta.has_profile("modes"))
}

/// Stores a task just created, counts it, and tells its assignee.
pub(crate) fn store_new_task(txn: &mut Txn<'_>, task: &Task) -> Result<(), Stop> {
    txn.put(task);
    txn.here_mut()?.tasks += 1;
    if task.assignee != txn.from() {
        let more =
            serde_json::json!({"task_id": task.id, "task_kind": task.kind, "delegator": task.delegator});
        txn.notify([task.assignee.as_str()], "task_created", more);
    }
    Ok(())
}

/// A text as a note: none if there is none.
pub(crate) fn note(value: Option<&str>) -> Option<String> {
    value.filter(|text| !text.is_empty()).map(str::to_owned)
}

/// A value that says something, or an empty object for one that does not: null, false, zero, and what is empty.
pub(crate) fn or_empty(value: Value) -> Value {
    let says_nothing = match &value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(true) | Value::Object(_) => false,
    };
    if says_nothing { Value::Object(serde_json::Map::new()) } else { value }
}
