//! `routing/1.0`: who does a task, how deeply it is reviewed, whether it is escalated (digest §3.6). Each call leaves a
//! decision artefact. `review.depth` and `escalate.auto` only say so unless asked to act, as existing clients expect.

use choir_messages::chain::Digest;
use choir_messages::chap::ObjectKind;
use choir_messages::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::task::TASK_ID;
use super::{check_mode, mode_forces_review, store_new_task};
use crate::method::{Floor, Handled, Method};
use crate::model::{Parties, Stored, Task, TaskState};
use crate::params::{Param, Params, Shape};
use crate::txn::Txn;
use crate::uri::COORDINATOR;
use crate::{Refusal, codes};

const ACT: Param = Param::new("act", Shape::Bool, "Carry the decision out, instead of only saying it");

pub(crate) const METHODS: &[Method] = &[
    Method::new("task.route", "routing/1.0", "Choose who does a task", route)
        .floor(Floor::Early)
        .params(&[TASK_ID, Param::new("candidates", Shape::List, "Who might, best first")]),
    Method::new("review.depth", "routing/1.0", "Say how deeply a task's output is to be reviewed", depth)
        .floor(Floor::Early)
        .params(&[
            TASK_ID,
            Param::new(
                "artefact_routing_hints",
                Shape::Object,
                "What its producer says of it: confidence, …",
            ),
            ACT,
        ]),
    Method::new("escalate.auto", "routing/1.0", "Say whether a task is to be escalated", escalate)
        .floor(Floor::Early)
        .params(&[TASK_ID, Param::new("default_escalation_target", Shape::Text, "To whom"), ACT]),
];

/// What a routing method decided, from what, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RouteDecision {
    id: String,
    decision_type: String,
    outcome: Value,
    produced_at: Timestamp,
    task: String,
    policy_id: String,
    hints_observed: Map<String, Value>,
    rationale: String,
    more: Map<String, Value>,
}

impl Stored for RouteDecision {
    const KIND: ObjectKind = ObjectKind::Decision;
    fn id(&self) -> &str {
        &self.id
    }
}

fn record(
    txn: &mut Txn<'_>,
    task: &Task,
    what: &str,
    outcome: Value,
    hints: &Map<String, Value>,
    why: &Why,
) -> String {
    let id = txn.fresh("art_");
    txn.put(&RouteDecision {
        id: id.clone(),
        decision_type: what.to_owned(),
        outcome,
        produced_at: txn.now(),
        task: task.id.clone(),
        policy_id: why.policy.to_owned(),
        hints_observed: hints.clone(),
        rationale: why.summary.to_owned(),
        more: why.more.clone(),
    });
    id
}

struct Why {
    policy: &'static str,
    summary: &'static str,
    more: Map<String, Value>,
}

fn route(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    let candidates = params.list("candidates").unwrap_or_default();
    if candidates.is_empty() {
        return Err(Refusal::new(codes::ROUTING_CANDIDATES_EMPTY, "candidates array was empty").into());
    }
    let mut selected: Option<String> = None;
    let mut others = Vec::new();
    for candidate in candidates {
        let Some(member) = candidate.as_str().and_then(|uri| txn.member(uri)) else { continue };
        if member.paused {
            others.push(json!({"candidate": candidate, "reason_excluded": "paused"}));
        } else if selected.is_none() {
            selected = Some(member.uri.clone());
        } else {
            others.push(json!({"candidate": candidate, "reason_excluded": "not first eligible"}));
        }
    }
    let Some(selected) = selected else {
        let why = "No candidate is a workspace member who is not paused";
        return Err(Refusal::new(codes::ROUTING_NO_ELIGIBLE_ASSIGNEE, why).into());
    };
    let hints = task.routing_hints.clone().unwrap_or_default();
    let why = Why {
        policy: "default",
        summary: "default policy: first eligible candidate",
        more: Map::from_iter([("alternatives_considered".to_owned(), json!(others))]),
    };
    let before = std::mem::replace(&mut task.assignee, selected.clone());
    let state = task.state;
    task.enter(state, COORDINATOR, txn.now(), Some(format!("routed to {selected}")));
    txn.put(&task);
    let id = record(txn, &task, "task.route", json!(selected), &hints, &why);
    if before != selected {
        let more = json!({"task_id": task.id, "task_kind": task.kind, "decision_artefact": id});
        txn.notify([selected.as_str()], "task_routed", more);
    }
    let rationale = json!({
        "policy_id": why.policy, "hints_used": names(&hints), "summary": why.summary,
        "alternatives_considered": others,
    });
    Ok(json!({"selected": selected, "decision_artefact": id, "rationale": rationale}).into())
}

fn names(hints: &Map<String, Value>) -> Vec<&str> {
    hints.keys().map(String::as_str).collect()
}

/// `low` 0 to `critical` 3; anything else counts as `medium`.
fn criticality(hints: &Map<String, Value>) -> u8 {
    match hints.get("criticality").and_then(Value::as_str) {
        Some("low") => 0,
        Some("high") => 2,
        Some("critical") => 3,
        _ => 1,
    }
}

/// A decimal text or a number; 1 where there is none that can be read.
fn confidence(hints: &Map<String, Value>) -> f64 {
    match hints.get("confidence") {
        Some(Value::String(text)) => text.trim().parse().ok().filter(|c: &f64| c.is_finite()),
        Some(value) => value.as_f64(),
        None => None,
    }
    .unwrap_or(1.0)
}

/// How deeply to review: the depth, the share to sample, and why.
fn depth_for(hints: &Map<String, Value>) -> (&'static str, Option<f64>, &'static str) {
    let confidence = confidence(hints);
    match criticality(hints) {
        3.. => ("full", None, "criticality=critical: full review"),
        2 if confidence < 0.7 => ("full", None, "criticality=high and confidence<0.7: full review"),
        0 if confidence >= 0.95 => ("skip", None, "very low criticality + very high confidence: skip"),
        0 | 1 if confidence >= 0.85 => {
            ("spot_check", Some(0.10), "low criticality + high confidence: 10% sample")
        }
        _ => ("spot_check", Some(0.25), "default mid-confidence: 25% sample"),
    }
}

fn depth(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    let mut hints = task.routing_hints.clone().unwrap_or_default();
    hints.extend(params.map("artefact_routing_hints").cloned().unwrap_or_default());
    if hints.is_empty() {
        return Err(Refusal::new(codes::ROUTING_DEPTH_NOT_APPLICABLE, "No routing_hints to consult").into());
    }
    let (depth, share, summary) = depth_for(&hints);
    let mut why = Why { policy: "default", summary, more: Map::new() };
    if let Some(share) = share {
        why.more.insert("sampling_probability".into(), json!(share));
    }
    let id = record(txn, &task, "review.depth", json!(depth), &hints, &why);
    let mut result = json!({
        "depth": depth, "decision_artefact": id,
        "rationale": {"policy_id": why.policy, "hints_used": names(&hints), "summary": summary},
    });
    if let Some(share) = share {
        result["sampling_probability"] = json!(share);
    }
    if params.flag("act") == Some(true) {
        let reviewed = match share {
            // Drawn from the decision's own id, so that an auditor draws the same.
            Some(share) => drawn(&id) < share,
            None => depth == "full",
        };
        task.review_required = Some(reviewed || mode_forces_review(txn, task.mode));
        result["review_required"] = json!(task.review_required);
        let (state, words) = (task.state, format!("review depth {depth}"));
        task.enter(state, COORDINATOR, txn.now(), Some(words));
        txn.put(&task);
    }
    Ok(result.into())
}

/// A number from 0 to 1 that belongs to this text.
fn drawn(text: &str) -> f64 {
    let [a, b, c, d, ..] = *Digest::of(text.as_bytes()).bytes();
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

fn escalate(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let task = txn.task(params)?;
    let hints = task.routing_hints.clone().unwrap_or_default();
    let rank = criticality(&hints);
    let due = rank >= 3 || (rank == 2 && confidence(&hints) < 0.6);
    let mut why = Why {
        policy: "default-auto-esc",
        summary: "criticality=critical OR (criticality>=high AND confidence<0.6)",
        more: Map::new(),
    };
    if !due {
        let id = record(txn, &task, "escalate.auto", json!({"escalate": false}), &hints, &why);
        return Ok(json!({"escalate": false, "decision_artefact": id}).into());
    }
    let unavailable = |why: String| Refusal::new(codes::ROUTING_ESCALATION_TARGET_UNAVAILABLE, why);
    let Some(to) = params.filled("default_escalation_target").map(str::to_owned) else {
        return Err(unavailable("Escalation triggered but no target available".into()).into());
    };
    if !to.starts_with("group:") && txn.member(&to).is_none() {
        return Err(unavailable(format!("Escalation target {to} is not a member or group")).into());
    }
    why.more.insert("escalation_target".into(), json!(to));
    let outcome = json!({"escalate": true, "to": to});
    let id = record(txn, &task, "escalate.auto", outcome, &hints, &why);
    let rule =
        json!({"rule_id": why.policy, "summary": why.summary, "hints_used": ["criticality", "confidence"]});
    let mut result = json!({"escalate": true, "to": to, "decision_artefact": id, "triggered_rule": rule});
    let told = json!({"task_id": task.id, "task_kind": task.kind, "decision_artefact": id});
    txn.notify([to.as_str()], "escalation_triggered", told);
    if params.flag("act") == Some(true) {
        result["new_task_id"] = json!(carry_out(txn, task, &to)?);
    }
    Ok(result.into())
}

/// Hands the task on to the target as a new one, as `escalate.raise` does.
fn carry_out(txn: &mut Txn<'_>, mut task: Task, to: &str) -> Result<String, crate::refusal::Stop> {
    if matches!(task.state, TaskState::Completed | TaskState::Cancelled | TaskState::Superseded) {
        return Err(Refusal::params(format!("Cannot escalate a terminal task: {}", task.state)).into());
    }
    let to = super::check_assignee(txn, Some(to), "Only a member can be given the task; a group cannot")?;
    let mode = check_mode(txn, None, task.mode)?;
    let (id, from, now) = (txn.fresh("tsk_"), txn.from().to_owned(), txn.now());
    let words = Some(format!("escalated from {}", task.id));
    let parties = Parties { assignee: to, delegator: from.clone() };
    let mut next = Task::new(id, task.kind.clone(), parties, task.input.clone(), mode, now, words);
    next.supersedes = Some(task.id.clone());
    next.routing_hints.clone_from(&task.routing_hints);
    if task.review_required == Some(true) || mode_forces_review(txn, mode) {
        next.review_required = Some(true);
    }
    store_new_task(txn, &next)?;
    task.superseded_by = Some(next.id.clone());
    task.enter(TaskState::Escalated, &from, now, Some(format!("-> {}", next.id)));
    txn.put(&task);
    super::task::tell_delegator(txn, &task);
    Ok(next.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(criticality: &str, confidence: Value) -> Map<String, Value> {
        Map::from_iter([
            ("criticality".to_owned(), json!(criticality)),
            ("confidence".to_owned(), confidence),
        ])
    }

    #[test]
    fn the_depth_table_is_the_documented_one() {
        for (criticality, confidence, depth) in [
            ("critical", "0.99", "full"),
            ("high", "0.69", "full"),
            ("high", "0.70", "spot_check"),
            ("low", "0.95", "skip"),
            ("low", "0.94", "spot_check"),
            ("medium", "0.99", "spot_check"),
            ("no such", "0.1", "spot_check"),
        ] {
            assert_eq!(
                depth_for(&hints(criticality, json!(confidence))).0,
                depth,
                "{criticality} {confidence}"
            );
        }
        assert_eq!(depth_for(&hints("medium", json!("0.85"))).1, Some(0.10));
        assert_eq!(depth_for(&hints("medium", json!("0.84"))).1, Some(0.25));
    }

    #[test]
    fn a_confidence_that_cannot_be_read_is_full_confidence() {
        for odd in [json!("sure"), json!("NaN"), json!({}), Value::Null] {
            assert!((confidence(&hints("low", odd)) - 1.0).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn a_draw_belongs_to_its_text_and_lies_between_0_and_1() {
        let shares: Vec<f64> = (0..1000).map(|n| drawn(&format!("art_{n}"))).collect();
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        let sampled = shares.iter().filter(|share| **share < 0.25).count();
        assert!((200..300).contains(&sampled), "{sampled}");
    }
}
