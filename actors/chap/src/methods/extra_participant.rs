//! Participants telling of themselves and each other (specification §7.1, §12.2, §12.8): descriptors, presence, messages.

use serde_json::{Map, Value, json};

use crate::Refusal;
use crate::limits::ADDRESSEES;
use crate::method::{Floor, Handled, Method};
use crate::params::{Param, Params, Shape};
use crate::txn::Txn;
use crate::uri::{is_broadcast, is_participant};

const WHO: Param = Param::new("participant_uri", Shape::Text, "Whom; the caller if left out");
const WHO_TOO: Param = Param::new("uri", Shape::Text, "Another name of participant_uri");
const TASK: Param = Param::new("task_id", Shape::Text, "The task it is about");

pub(crate) const METHODS: &[Method] = &[
    Method::new("participant.describe", "core/1.0", "Describe a participant", describe)
        .floor(Floor::Reader)
        .pause_exempt()
        .read()
        .params(&[WHO, WHO_TOO]),
    Method::new("participant.announce", "core/1.0", "Say that you are here, and what you can do", announce)
        .floor(Floor::Member)
        .required_later(&["from"])
        .params(&[
            Param::new("status", Shape::Text, "available, busy or away; available if left out"),
            Param::new("display_name", Shape::Text, "A name for people"),
            Param::new("capabilities", Shape::Object, "What you can do"),
            Param::new("scopes", Shape::Texts, "What you are willing to do"),
            Param::new("note", Shape::Text, "Words"),
        ]),
    Method::new("participant.heartbeat", "core/1.0", "Say that you are still here", heartbeat)
        .floor(Floor::Member)
        .required_later(&["from"])
        .params(&[Param::new("status", Shape::Text, "available, busy or away")]),
    Method::new("notify.message", "core/1.0", "Send a message to participants", message)
        .floor(Floor::Member)
        .required_later(&["from", "to"])
        .params(&[
            TASK,
            Param::new("kind", Shape::Text, "What sort of message"),
            Param::new("text", Shape::Text, "The message"),
            Param::new("message", Shape::Any, "The message, by its other name"),
            Param::new("links", Shape::List, "Where to read more"),
        ]),
    Method::new("notify.alert", "core/1.0", "Send an alert to participants", alert)
        .floor(Floor::Member)
        .required_later(&["from", "to", "severity"])
        .params(&[
            TASK,
            Param::new("severity", Shape::Text, "low, medium, high or critical"),
            Param::new("title", Shape::Text, "What it is about"),
            Param::new("summary", Shape::Text, "What has happened"),
            Param::new("links", Shape::List, "Where to read more"),
        ]),
];

fn describe(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let uri =
        ["participant_uri", "uri", "from"].iter().find_map(|name| params.filled(name)).unwrap_or_default();
    let Some(member) = txn.member(uri) else {
        return Err(Refusal::params(format!("Unknown participant: {uri}")).into());
    };
    let mut descriptor = member.to_wire();
    if let Some(presence) = &member.presence {
        descriptor["presence"] = presence.clone();
    }
    Ok(json!({"participant": descriptor}).into())
}

fn status<'a>(params: &Params<'a>) -> Result<&'a str, Refusal> {
    match params.filled("status").unwrap_or("available") {
        known @ ("available" | "busy" | "away") => Ok(known),
        _ => Err(Refusal::params("status must be available, busy or away")),
    }
}

fn announce(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let status = status(params)?;
    let now = txn.now().to_string();
    let from = txn.from().to_owned();
    let Some(mut member) = txn.member(&from).cloned() else {
        return Err(Refusal::params(format!("Unknown participant: {from}")).into());
    };
    if let Some(name) = params.owned("display_name") {
        member.display_name = Some(name);
    }
    if let Some(capabilities) = params.get("capabilities") {
        member.capabilities = Some(capabilities.clone());
    }
    if let Some(scopes) = params.texts("scopes") {
        member.scopes = Some(scopes);
    }
    let mut presence = json!({"status": status, "announced": now, "last_seen": now});
    if let Some(note) = params.filled("note") {
        presence["note"] = json!(note);
    }
    member.presence = Some(presence);
    txn.put_member(member);
    Ok(json!({"announced": true, "as": from, "status": status}).into())
}

fn heartbeat(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    let from = txn.from().to_owned();
    let now = txn.now().to_string();
    let Some(mut member) = txn.member(&from).cloned() else {
        return Err(Refusal::params(format!("Unknown participant: {from}")).into());
    };
    let mut presence = member.presence.take().filter(Value::is_object).unwrap_or_else(|| json!({}));
    presence["last_seen"] = json!(now);
    if params.has("status") || presence.get("status").is_none() {
        presence["status"] = json!(status(params)?);
    }
    member.presence = Some(presence);
    txn.put_member(member);
    Ok(json!({"alive": true, "at": now}).into())
}

/// Whom a message goes to: members, or everybody.
fn addressees(txn: &Txn<'_>, params: &Params<'_>) -> Result<Vec<String>, Refusal> {
    let to = params.texts("to").unwrap_or_default();
    if to.is_empty() || to.len() > ADDRESSEES {
        return Err(Refusal::params(format!("A message goes to 1 to {ADDRESSEES} participants")));
    }
    if let Some(stranger) = to.iter().find(|uri| !is_broadcast(uri) && txn.member(uri).is_none()) {
        return Err(Refusal::params(format!("Recipient {stranger} is not a member")));
    }
    Ok(to)
}

fn deliver(txn: &mut Txn<'_>, params: &Params<'_>, kind: &str, names: &[&str]) -> Handled {
    let to = addressees(txn, params)?;
    let mut more = Map::new();
    more.insert("sender".into(), json!(txn.from()));
    for name in names {
        if let Some(value) = params.get(name) {
            more.insert((*name).into(), value.clone());
        }
    }
    let told = to.iter().map(String::as_str).filter(|uri| is_broadcast(uri) || is_participant(uri));
    txn.notify(told, kind, Value::Object(more));
    Ok(json!({"delivered": true, "to": to}).into())
}

fn message(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    if params.get("text").is_none() && params.get("message").is_none() && params.get("kind").is_none() {
        return Err(Refusal::params("notify.message needs text, message or kind").into());
    }
    let kind = params.filled("kind").unwrap_or("message").to_owned();
    deliver(txn, params, &kind, &["task_id", "text", "message", "links"])
}

fn alert(txn: &mut Txn<'_>, params: &Params<'_>) -> Handled {
    if !matches!(params.text("severity"), Some("low" | "medium" | "high" | "critical")) {
        return Err(Refusal::params("severity must be low, medium, high or critical").into());
    }
    deliver(txn, params, "alert", &["task_id", "severity", "title", "summary", "links"])
}
