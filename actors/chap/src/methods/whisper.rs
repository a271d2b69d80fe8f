//! `whisper/1.0`: a question in the middle of a task, its answer, and its lapse (digest §3.6).

use choir_messages::canonical;
use choir_messages::chap::ObjectKind;
use serde_json::{Map, Value, json};

use super::task::TASK_ID;
use crate::limits::{ADDRESSEES, WHISPER_MS};
use crate::method::{Floor, Handled, Method};
use crate::model::{Whisper, WhisperState};
use crate::params::{Param, Params, Shape};
use crate::refusal::Stop;
use crate::txn::Txn;
use crate::uri::is_broadcast;
use crate::{Refusal, codes};

pub(crate) const METHODS: &[Method] = &[
    Method::new("whisper.ask", "whisper/1.0", "Ask a question in the middle of a task, with a default", ask)
        .floor(Floor::Early)
        .required_later(&["from", "to", "task_id", "question", "deadline_ms", "default_if_lapsed"])
        .params(&[
            TASK_ID,
            Param::new("question", Shape::Any, "The question"),
            Param::new("options", Shape::List, "[{id, label}]: what may be answered; none for a free answer"),
            Param::new("deadline_ms", Shape::Count, "How long to wait, in milliseconds"),
            Param::new("default_if_lapsed", Shape::Any, "What holds when nobody answers"),
            Param::new("urgency", Shape::Text, "low, medium or high"),
            Param::new("whisper_id", Shape::NewId, "An id of the caller's choice"),
        ]),
    Method::new("whisper.answer", "whisper/1.0", "Answer a question that was asked of you", answer)
        .floor(Floor::Early)
        .required_later(&["from", "whisper_id"])
        .params(&[
            Param::new("whisper_id", Shape::Ref(ObjectKind::Whisper), "The question"),
            Param::new("answer_option", Shape::Any, "The id of an option"),
            Param::new("answer", Shape::Any, "A free answer"),
            Param::new("answer_text", Shape::Any, "A free answer, by its other name"),
            Param::new("comment", Shape::Any, "Words beside the answer"),
        ]),
];

fn ask(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let task = txn.task(params)?;
    let askees = params.texts("to").unwrap_or_default();
    if askees.is_empty() || askees.len() > ADDRESSEES {
        return Err(Refusal::params(format!("A whisper is asked of 1 to {ADDRESSEES} participants")).into());
    }
    let deadline_ms = params.count("deadline_ms").filter(|ms| *ms <= WHISPER_MS);
    let Some(deadline_ms) = deadline_ms else {
        return Err(Refusal::params(format!("deadline_ms must be at most {WHISPER_MS}")).into());
    };
    let options = params.list("options").unwrap_or_default().to_vec();
    let default_if_lapsed = params.any("default_if_lapsed");
    // A default need not be one of the options: clients use words of their own for "nobody answered".
    let id = match params.text("whisper_id") {
        Some(id) if txn.get::<Whisper>(id)?.is_some() => {
            return Err(Refusal::params(format!("Whisper id in use: {id}")).into());
        }
        Some(id) => id.to_owned(),
        None => txn.fresh("art_"),
    };
    let whisper = Whisper {
        id,
        task_id: task.id,
        asker: txn.from().to_owned(),
        askees,
        question: params.any("question"),
        options,
        asked_at: txn.now(),
        deadline_ms,
        default_if_lapsed,
        urgency: params.filled("urgency").unwrap_or("low").to_owned(),
        state: WhisperState::Pending,
        answer: Map::new(),
    };
    txn.put(&whisper);
    let more = json!({
        "whisper_id": whisper.id, "task_id": whisper.task_id, "asker": whisper.asker,
        "question": whisper.question, "options": whisper.options, "urgency": whisper.urgency,
        "deadline": whisper.lapses_at().to_string(), "default_if_lapsed": whisper.default_if_lapsed,
    });
    txn.notify(whisper.askees.iter().map(String::as_str), "whisper_asked", more);
    Ok(json!({"whisper_id": whisper.id, "deadline_ms": deadline_ms}).into())
}

fn answer(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let found = match params.text("whisper_id") {
        Some(id) => txn.get::<Whisper>(id)?,
        None => None,
    };
    let Some(mut whisper) = found else { return Err(Refusal::params("Unknown whisper id").into()) };
    let from = txn.from();
    if !whisper.askees.iter().any(|uri| uri == from || is_broadcast(uri)) {
        return Err(
            Refusal::new(codes::NOT_AUTHORISED, format!("Whisper was not addressed to {from}")).into()
        );
    }
    if whisper.state == WhisperState::Answered {
        return Err(Refusal::new(codes::WHISPER_ALREADY_ANSWERED, "Whisper already answered").into());
    }
    // The timer may be late; the deadline is not.
    if whisper.state == WhisperState::Lapsed || txn.now() >= whisper.lapses_at() {
        return Err(Refusal::new(codes::WHISPER_LAPSED, "Whisper already lapsed").into());
    }
    let option = params.get("answer_option");
    let text = params.get("answer").filter(|v| says_something(v)).or_else(|| params.get("answer_text"));
    if whisper.options.is_empty() {
        if option.is_none() && !text.is_some_and(says_something) {
            return Err(Refusal::params("answer or answer_option required").into());
        }
    } else {
        let Some(option) = option else {
            return Err(Refusal::params("answer_option is required when options are defined").into());
        };
        if !is_option(&whisper.options, option) {
            let shown = canonical::to_string(option).unwrap_or_default();
            let why = format!("Answer option {shown} not in option set");
            return Err(Refusal::new(codes::WHISPER_OPTION_NOT_IN_SET, why).into());
        }
    }
    let mut answer = Map::new();
    answer.insert("by".into(), json!(from));
    answer.insert("at".into(), json!(txn.now().to_string()));
    for (name, value) in [("option", option), ("text", text), ("comment", params.get("comment"))] {
        if let Some(value) = value {
            answer.insert(name.into(), value.clone());
        }
    }
    let mut more = Value::Object(answer.clone());
    more["whisper_id"] = json!(whisper.id);
    more["task_id"] = json!(whisper.task_id);
    whisper.answer = answer;
    whisper.state = WhisperState::Answered;
    txn.put(&whisper);
    txn.concerns(&whisper.task_id);
    txn.notify([whisper.asker.as_str()], "whisper_answered", more);
    Ok(json!({"answered": true, "whisper_id": whisper.id, "task_id": whisper.task_id}).into())
}

/// Whether a value is the id of one of the options: numbers by value, anything composite never.
fn is_option(options: &[Value], chosen: &Value) -> bool {
    options.iter().filter_map(|option| option.get("id")).any(|id| match (id, chosen) {
        (Value::Object(_) | Value::Array(_), _) => false,
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        _ => id == chosen,
    })
}

/// Whether a value is more than nothing, as a person would say.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Bool(true) => true,
    }
}

/// A whisper's deadline has come: its default holds, and everybody concerned is told, on the log.
pub(crate) fn lapse(txn: &mut Txn<'_>, id: &str) -> Result<bool, Stop> {
    let Some(mut whisper) = txn.get::<Whisper>(id)? else { return Ok(false) };
    if whisper.state != WhisperState::Pending || txn.now() < whisper.lapses_at() {
        return Ok(false);
    }
    whisper.state = WhisperState::Lapsed;
    txn.put(&whisper);
    let mut to = vec![whisper.asker.clone()];
    to.extend(whisper.askees.iter().cloned());
    let mut params = Map::new();
    params.insert("kind".into(), json!("whisper_lapsed"));
    params.insert("whisper_id".into(), json!(whisper.id));
    params.insert("task_id".into(), json!(whisper.task_id));
    params.insert("default_applied".into(), whisper.default_if_lapsed.clone());
    params.insert("to".into(), json!(to));
    let more = json!({
        "whisper_id": whisper.id, "task_id": whisper.task_id, "default_applied": whisper.default_if_lapsed,
    });
    txn.notify(to.iter().map(String::as_str), "whisper_lapsed", more);
    txn.own_entry(params);
    Ok(true)
}
