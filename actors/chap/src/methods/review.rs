//! `review/1.0`: requests, decisions, abstentions, escalations, and the deadline of a review (digest §3.6).

use choir_messages::chap::ObjectKind;
use serde_json::{Map, Value, json};

use super::task::{TASK_ID, tell_delegator};
use super::{check_assignee, check_mode, mode_forces_review, note, or_empty, store_new_task};
use crate::call::content_hash;
use crate::limits::{ADDRESSEES, DECISIONS_PER_REVIEW};
use crate::method::{Floor, Handled, Method};
use crate::model::{Decision, Override, Parties, Review, Task, TaskState};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::uri::is_broadcast;
use crate::{Refusal, codes, moment, patch};

const TAGS: Param = Param::new("tags", Shape::Texts, "Tags for analytics");
const COMMENT: Param = Param::new("comment", Shape::Any, "Words of the reviewer");
const DIGEST: Param =
    Param::new("approved_artefact_digest", Shape::Text, "sha256:… of the artefact the reviewer has seen");

pub(crate) const METHODS: &[Method] = &[
    Method::new("review.request", "review/1.0", "Ask reviewers to decide on an artefact", request)
        .floor(Floor::Member)
        .required(&["workspace", "from", "task_id", "artefact"])
        .params(&[
            TASK_ID,
            Param::new("artefact", Shape::Any, "What is to be decided on"),
            Param::new("rule", Shape::Text, "any_one_approves, all_approve or quorum:<n>"),
            Param::new("deadline", Shape::Time, "Until when to decide, RFC 3339"),
        ]),
    Method::new("decide.approve", "review/1.0", "Approve what is under review", approve)
        .floor(Floor::Member)
        .required(&["workspace", "from", "task_id"])
        .early(&[TAGS])
        .params(&[TASK_ID, COMMENT, TAGS, DIGEST]),
    Method::new("decide.reject", "review/1.0", "Reject what is under review", reject)
        .floor(Floor::Member)
        .required(&["workspace", "from", "task_id"])
        .early(&[TAGS])
        .params(&[
            TASK_ID,
            COMMENT,
            TAGS,
            DIGEST,
            Param::new("request_revision", Shape::Bool, "Whether the assignee may try again"),
        ]),
    Method::new(
        "decide.override",
        "review/1.0",
        "Approve a changed version of what is under review",
        override_,
    )
    .floor(Floor::Member)
    .required(&["workspace", "from", "task_id", "diff", "rationale"])
    .early(&[TAGS])
    .params(&[
        TASK_ID,
        Param::new("diff", Shape::List, "JSON Patch against the artefact under review"),
        Param::new("rationale", Shape::Any, "Why it was changed"),
        TAGS,
        Param::new("policy_refs", Shape::List, "Policies it follows"),
        Param::new("logical_id", Shape::Any, "Which decision it expresses"),
        Param::new("instance_id", Shape::Any, "Which instance of it"),
        Param::new("intent_preserved", Shape::Bool, "Whether the intent stays and its expression changes"),
        DIGEST,
    ]),
    Method::new("abstain.declare", "review/1.0", "Decline to decide", abstain)
        .floor(Floor::Member)
        .required(&["workspace", "from", "task_id", "reason"])
        .params(&[
            TASK_ID,
            Param::new("reason", Shape::Text, "Why"),
            Param::new(
                "category",
                Shape::Text,
                "out_of_authority, out_of_scope, conflict_of_interest, … or other",
            ),
            Param::new("suggested_escalation_target", Shape::Text, "Who might decide instead"),
        ]),
    Method::new("escalate.raise", "review/1.0", "Hand a task on to somebody else as a new one", escalate)
        .floor(Floor::Member)
        .required(&["workspace", "from", "original_task_id", "new_task"])
        .params(&[
            Param::new("original_task_id", Shape::Ref(ObjectKind::Task), "The task handed on"),
            Param::new("new_task", Shape::Object, "{kind, assignee, input, mode}"),
        ]),
];

/// Whether `review/1.0` can judge by this rule.
fn supported(rule: &str) -> bool {
    matches!(rule, "any_one_approves" | "all_approve") || quorum(rule).is_some_and(|n| n >= 1)
}

fn quorum(rule: &str) -> Option<usize> {
    let digits = rule.strip_prefix("quorum:")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Whether the approvals so far satisfy the rule.
fn satisfied(review: &Review) -> bool {
    let counting = review.decisions.iter().skip(review.since);
    let approvers: std::collections::BTreeSet<&str> =
        counting.filter(|d| d.kind == "approve").map(|d| d.reviewer.as_str()).collect();
    if review.rule == "all_approve" {
        let mut named = review.requested_to.iter().filter(|uri| !is_broadcast(uri)).peekable();
        // A review addressed to everybody has nobody in particular to wait for.
        return if named.peek().is_none() {
            !approvers.is_empty()
        } else {
            named.all(|uri| approvers.contains(uri.as_str()))
        };
    }
    approvers.len() >= quorum(&review.rule).unwrap_or(1)
}

fn request(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let mut task = txn.task(params)?;
    if matches!(task.state, TaskState::Cancelled | TaskState::Superseded | TaskState::Paused) {
        let message = format!("Cannot request review for task in state: {}", task.state);
        return Err(Refusal::new(codes::NOT_REVIEWABLE, message).into());
    }
    let mut reviewers: Vec<String> = Vec::new();
    for uri in params.texts("to").unwrap_or_default() {
        if !reviewers.contains(&uri) {
            reviewers.push(uri);
        }
    }
    reviewers.retain(|uri| !uri.is_empty());
    if reviewers.is_empty() {
        return Err(Refusal::params("review.request needs 'to'").into());
    }
    if reviewers.len() > ADDRESSEES {
        return Err(Refusal::params(format!("A review has at most {ADDRESSEES} reviewers")).into());
    }
    let declared = params.get("rule").and_then(Value::as_str);
    let rule = declared.filter(|rule| !rule.is_empty()).unwrap_or("any_one_approves");
    if !supported(rule) {
        let message = format!(
            "Unsupported review rule '{rule}': review/1.0 supports any_one_approves, all_approve, quorum:<n>"
        );
        return Err(Refusal::params(message).into());
    }
    let now = txn.now();
    let deadline = note(params.text("deadline"));
    if task.state == TaskState::ReviewRequested
        && task.review.as_ref().is_some_and(|review| !review.is_past(now))
    {
        return amend(txn, task, params, reviewers, declared);
    }
    task.review = Some(Review {
        requested_at: now,
        requested_by: txn.from().to_owned(),
        requested_to: reviewers,
        rule: rule.to_owned(),
        due: deadline.as_deref().and_then(moment::parse),
        deadline,
        lapsed: false,
        decisions: Vec::new(),
        since: 0,
    });
    task.pending_artefact = params.any("artefact");
    task.producer = Some(txn.from().to_owned());
    task.enter(TaskState::ReviewRequested, txn.from(), now, None);
    txn.put(&task);
    ask_reviewers(txn, &task);
    Ok(json!({"state": "review_requested", "review_id": task.id}).into())
}

/// A second request while the review is open: it may widen who decides and move the deadline, and nothing else, so that
/// nobody decides on what they have not seen.
fn amend(
    txn: &mut Txn<'_>,
    mut task: Task,
    params: &Params<'_>,
    reviewers: Vec<String>,
    declared: Option<&str>,
) -> Handled {
    let open = |why: String| Err(Stop::Refused(Refusal::new(codes::REVIEW_ALREADY_OPEN, why)));
    if content_hash(&task.pending_artefact) != content_hash(&params.any("artefact")) {
        return open(
            "A review with other content is open on this task: decide, abstain, escalate or cancel it first"
                .to_owned(),
        );
    }
    let Some(review) = &mut task.review else { return open("No review is open".to_owned()) };
    if declared.is_some_and(|rule| rule != review.rule) {
        return open(format!(
            "Cannot change the decision rule of an open review (currently {})",
            review.rule
        ));
    }
    let added: Vec<String> = reviewers.into_iter().filter(|uri| !review.requested_to.contains(uri)).collect();
    review.requested_to.extend(added.iter().cloned());
    if review.requested_to.len() > ADDRESSEES {
        return Err(Refusal::params(format!("A review has at most {ADDRESSEES} reviewers")).into());
    }
    if let Some(deadline) = note(params.text("deadline")) {
        review.due = moment::parse(&deadline);
        review.deadline = Some(deadline);
    }
    let requested_to = review.requested_to.clone();
    task.updated_at = txn.now();
    txn.put(&task);
    let more = json!({"task_id": task.id, "rule": task.review.as_ref().map(|review| &review.rule)});
    txn.notify(added.iter().map(String::as_str), "review_requested", more);
    Ok(json!({
        "state": "review_requested", "review_id": task.id, "amended": true, "requested_to": requested_to,
    })
    .into())
}

fn ask_reviewers(txn: &mut Txn<'_>, task: &Task) {
    let Some(review) = &task.review else { return };
    let mut more = json!({"task_id": task.id, "rule": review.rule});
    if let (Some(deadline), Some(map)) = (&review.deadline, more.as_object_mut()) {
        map.insert("deadline".to_owned(), json!(deadline));
    }
    txn.notify(review.requested_to.iter().map(String::as_str), "review_requested", more);
}

/// Completing a task that must be reviewed holds its output and asks every person who did not make it.
pub(crate) fn open_on_completion(txn: &mut Txn<'_>, mut task: Task, params: &Params<'_>) -> Handled {
    let now = txn.now();
    if task.review.as_ref().is_none_or(|review| review.is_past(now)) {
        let from = txn.from();
        let people: Vec<String> = txn
            .members()
            .into_iter()
            .filter(|member| member.is_human() && member.uri != from && member.uri != task.assignee)
            .map(|member| member.uri.clone())
            .collect();
        if people.is_empty() {
            let why = "Task requires review but has no eligible human reviewer \
                       (needs a human member other than its assignee and completer)";
            return Err(Refusal::new(codes::NOT_AUTHORISED, why).into());
        }
        task.review = Some(Review {
            requested_at: now,
            requested_by: from.to_owned(),
            requested_to: people,
            rule: "any_one_approves".to_owned(),
            deadline: None,
            due: None,
            lapsed: false,
            decisions: Vec::new(),
            since: 0,
        });
    } else if let Some(review) = &mut task.review {
        // What was approved before was another artefact.
        review.since = review.decisions.len();
    }
    task.pending_artefact = params.any("output");
    if params.has("confidence") {
        task.confidence = params.any("confidence");
    }
    task.producer = Some(txn.from().to_owned());
    let words = "review required; opened on task.complete".to_owned();
    task.enter(TaskState::ReviewRequested, txn.from(), now, Some(words));
    txn.put(&task);
    ask_reviewers(txn, &task);
    Ok(json!({"state": "review_requested", "review_id": task.id}).into())
}

/// The task under review that the sender may decide on.
fn under_review(txn: &Txn<'_>, params: &Params<'_>) -> Result<(Task, Review), Stop> {
    let task = txn.task(params)?;
    let (TaskState::ReviewRequested, Some(review)) = (task.state, task.review.clone()) else {
        let message = format!("Task not awaiting review: {}", task.state);
        return Err(Refusal::new(codes::NOT_REVIEWABLE, message).into());
    };
    let from = txn.from();
    let addressed = &review.requested_to;
    if !addressed.is_empty() && !addressed.iter().any(|uri| uri == from || is_broadcast(uri)) {
        let message = format!("Not an addressed reviewer for this task: {from}");
        return Err(Refusal::new(codes::NOT_AUTHORISED, message).into());
    }
    if review.is_past(txn.now()) {
        let deadline = review.deadline.as_deref().unwrap_or_default();
        let message =
            format!("The review's deadline has passed: {deadline}; request it again with a new one");
        return Err(Refusal::new(codes::REVIEW_LAPSED, message).into());
    }
    if review.decisions.len() >= DECISIONS_PER_REVIEW {
        return Err(Refusal::params(format!("A review has at most {DECISIONS_PER_REVIEW} decisions")).into());
    }
    Ok((task, review))
}

/// A decision may name the digest of what its reviewer saw; it must then be what is under review.
fn check_digest(params: &Params<'_>, task: &Task) -> Result<(), Refusal> {
    let Some(declared) = params.text("approved_artefact_digest") else { return Ok(()) };
    if task.pending_artefact.is_null() {
        return Err(Refusal::params("No artefact under review to bind a digest to"));
    }
    let actual = content_hash(&task.pending_artefact);
    if declared == actual {
        return Ok(());
    }
    Err(Refusal::new(
        codes::ARTEFACT_DIGEST_MISMATCH,
        "approved_artefact_digest does not match the artefact under review",
    )
    .with(json!({"declared": declared, "actual": actual})))
}

fn tags(params: &Params<'_>) -> Vec<String> {
    params.texts("tags").unwrap_or_default()
}

/// Writes a decision down, and tells whoever waits for it.
fn decide(
    txn: &mut Txn<'_>,
    mut task: Task,
    mut review: Review,
    decision: Decision,
    state: TaskState,
    words: Option<String>,
) {
    let kind = decision.kind.clone();
    if let Ok(meta) = txn.here_mut() {
        meta.decided.count(&kind);
    }
    review.decisions.push(decision);
    task.review = Some(review);
    task.enter(state, txn.from(), txn.now(), words);
    txn.put(&task);
    let more = json!({"task_id": task.id, "decision": kind, "state": state.as_str(), "reviewer": txn.from()});
    let asked = task.review.as_ref().map(|review| review.requested_by.clone());
    let mut waiting = vec![task.assignee.clone(), task.delegator.clone()];
    waiting.extend(asked);
    waiting.retain(|uri| uri != txn.from());
    txn.notify(waiting.iter().map(String::as_str), "review_decided", more);
}

fn approve(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let (mut task, mut review) = under_review(txn, params)?;
    check_digest(params, &task)?;
    let decision = decision(txn, "approve", json!({"comment": params.any("comment"), "tags": tags(params)}));
    review.decisions.push(decision.clone());
    let state = if satisfied(&review) { TaskState::Completed } else { TaskState::ReviewRequested };
    review.decisions.pop();
    if state == TaskState::Completed {
        task.output = task.pending_artefact.clone();
    }
    decide(txn, task, review, decision, state, None);
    Ok(json!({"state": state.as_str()}).into())
}

fn reject(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let (task, review) = under_review(txn, params)?;
    check_digest(params, &task)?;
    let decision = decision(txn, "reject", json!({"comment": params.any("comment"), "tags": tags(params)}));
    let again = params.flag("request_revision") == Some(true);
    let state = if again { TaskState::InProgress } else { TaskState::Declined };
    decide(txn, task, review, decision, state, None);
    Ok(json!({"state": state.as_str()}).into())
}

fn override_(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let (mut task, review) = under_review(txn, params)?;
    check_digest(params, &task)?;
    if task.pending_artefact.is_null() {
        return Err(Refusal::params("No base artefact for override").into());
    }
    let diff = params.list("diff").unwrap_or_default();
    let result = patch::apply(&task.pending_artefact, diff)
        .map_err(|e| Refusal::new(codes::PATCH_FAILED, e.to_string()))?;
    let id = txn.fresh("art_");
    txn.put(&Override {
        id: id.clone(),
        task_id: task.id.clone(),
        reviewer: txn.from().to_owned(),
        based_on_artefact: task.pending_artefact.clone(),
        diff: params.any("diff"),
        result: result.clone(),
        rationale: params.any("rationale"),
        tags: tags(params),
        policy_refs: params.any("policy_refs"),
        ts: txn.now(),
        logical_id: params.any("logical_id"),
        instance_id: params.any("instance_id"),
        intent_preserved: params.flag("intent_preserved"),
    });
    txn.here_mut()?.overrides += 1;
    task.output = result.clone();
    let decision = decision(txn, "override", json!({"tags": tags(params), "override_artefact_id": id}));
    decide(txn, task, review, decision, TaskState::Completed, Some("override applied".to_owned()));
    Ok(json!({"state": "completed", "override_artefact_id": id, "applied": result}).into())
}

fn abstain(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let (task, review) = under_review(txn, params)?;
    let reason = params.text("reason").unwrap_or_default();
    let category = params.filled("category").unwrap_or("other");
    let decision = decision(txn, "abstain", json!({"comment": reason, "abstain_category": category}));
    decide(txn, task, review, decision, TaskState::Abstained, note(Some(reason)));
    Ok(json!({"state": "abstained"}).into())
}

fn decision(txn: &Txn<'_>, kind: &str, more: Value) -> Decision {
    let more = match more {
        Value::Object(more) => more,
        _ => Map::new(),
    };
    Decision { reviewer: txn.from().to_owned(), kind: kind.to_owned(), ts: txn.now(), more }
}

fn escalate(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let original = match params.text("original_task_id") {
        Some(id) => txn.get::<Task>(id)?,
        None => None,
    };
    let Some(mut original) = original else { return Err(Refusal::params("Unknown original task").into()) };
    if matches!(original.state, TaskState::Completed | TaskState::Cancelled | TaskState::Superseded) {
        return Err(Refusal::params(format!("Cannot escalate a terminal task: {}", original.state)).into());
    }
    let Some(wanted) = params.object("new_task") else {
        return Err(Refusal::params("new_task must be an object").into());
    };
    let unknown = "Escalation assignee not in workspace";
    check_member(txn, wanted.text("assignee"), unknown)?;
    wanted.check(&SUCCESSOR).map_err(|r| Refusal::params(format!("new_task.{}", r.message)))?;
    let assignee = check_assignee(txn, wanted.text("assignee"), unknown)?;
    let mode = check_mode(txn, wanted.text("mode"), original.mode)?;
    let (id, from, now) = (txn.fresh("tsk_"), txn.from().to_owned(), txn.now());
    let kind = wanted.filled("kind").unwrap_or(&original.kind).to_owned();
    let words = Some(format!("escalated from {}", original.id));
    let input = or_empty(wanted.any("input"));
    let parties = Parties { assignee, delegator: from.clone() };
    let mut task = Task::new(id, kind, parties, input, mode, now, words);
    task.supersedes = Some(original.id.clone());
    if original.review_required == Some(true) || mode_forces_review(txn, mode) {
        task.review_required = Some(true);
    }
    store_new_task(txn, &task)?;
    original.superseded_by = Some(task.id.clone());
    original.enter(TaskState::Escalated, &from, now, Some(format!("-> {}", task.id)));
    txn.put(&original);
    tell_delegator(txn, &original);
    Ok(json!({"new_task_id": task.id, "escalated_from": original.id}).into())
}

/// What a task made from another may say of itself.
pub(crate) const SUCCESSOR: [Param; 3] = [
    Param::new("mode", Shape::Text, ""),
    Param::new("kind", Shape::Text, ""),
    Param::new("review_required", Shape::Bool, ""),
];

pub(crate) fn check_member(txn: &Txn<'_>, uri: Option<&str>, unknown: &str) -> Result<(), Refusal> {
    if uri.is_some_and(|uri| txn.member(uri).is_some()) { Ok(()) } else { Err(Refusal::params(unknown)) }
}

/// A review's deadline has come: it is told, and nobody decides any more until it is requested again.
pub(crate) fn lapse(txn: &mut Txn<'_>, id: &str) -> Result<bool, Stop> {
    let Some(mut task) = txn.get::<Task>(id)? else { return Ok(false) };
    let now = txn.now();
    let Some(review) = task.review.as_mut().filter(|review| !review.lapsed && review.is_past(now)) else {
        return Ok(false);
    };
    if task.state != TaskState::ReviewRequested {
        return Ok(false);
    }
    review.lapsed = true;
    let mut told: Vec<String> = vec![review.requested_by.clone()];
    told.extend(review.requested_to.iter().cloned());
    told.dedup();
    let mut params = Map::new();
    params.insert("kind".to_owned(), json!("review_lapsed"));
    params.insert("task_id".to_owned(), json!(task.id));
    params.insert("to".to_owned(), json!(told));
    if let Some(deadline) = &review.deadline {
        params.insert("deadline".to_owned(), json!(deadline));
    }
    txn.put(&task);
    let more = json!({"task_id": task.id});
    txn.notify(told.iter().map(String::as_str), "review_lapsed", more);
    txn.own_entry(params);
    Ok(true)
}
