//! Messages: each stored before it is confirmed, recorded once, closed once, answered once, and told so once.

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{MessageId, OutboundId};
use choir_messages::limits::{RESUMES_PER_MESSAGE, TRIES_PER_STEP};
use choir_messages::tool::ToolStatus;
use choir_scripted_model::{Fault, Outcome};

use super::evidence::{Asked, Evidence};
use super::{Violation, log};

pub(super) fn check(evidence: &Evidence, events: &[Event], found: &mut Vec<Violation>) {
    let known: BTreeSet<MessageId> = evidence.asked.iter().map(|asked| asked.message).collect();
    for row in evidence.inbox.iter().filter(|row| !known.contains(&row.message)) {
        found.push(Violation::Stranger(row.message));
    }
    for asked in &evidence.asked {
        one(evidence, events, asked, found);
    }
    delivery(evidence, events, found);
}

fn one(evidence: &Evidence, events: &[Event], asked: &Asked, found: &mut Vec<Violation>) {
    let message = asked.message;
    let Some(row) = evidence.inbox.iter().find(|row| row.message == message) else {
        found.push(Violation::NotStored(message));
        return;
    };
    let recorded = events
        .iter()
        .filter(|event| matches!(&event.body, EventBody::UserMsg { message: m, .. } if *m == message))
        .count();
    if recorded != 1 {
        found.push(Violation::Recorded { message, times: recorded });
    }
    let closed: Vec<(MessageOutcome, &str)> = closings(events)
        .filter(|(id, ..)| *id == message)
        .map(|(_, outcome, text)| (outcome, text))
        .collect();
    if closed.len() != 1 {
        found.push(Violation::Closed { message, times: closed.len() });
    }
    let Some(outcome) = row.outcome else {
        found.push(Violation::Lost(message));
        return;
    };
    let Some((log, text)) = closed.first().copied() else { return };
    if log != outcome {
        found.push(Violation::TwoOutcomes { message, inbox: outcome, log });
    }
    let explained = match log {
        MessageOutcome::Answered => true,
        MessageOutcome::Failed => failed_by_the_run(evidence, events, asked),
        MessageOutcome::Refused | MessageOutcome::Expired => false,
    };
    if !explained {
        found.push(Violation::Unexplained { message, outcome: log, text: text.to_owned() });
    }
    let born: Vec<_> =
        evidence.outbox.iter().filter(|row| row.message == message && row.kind == "answer").collect();
    if born.len() != 1 {
        found.push(Violation::Outbox { message, answers: born.len() });
    }
    let said: Vec<_> =
        evidence.said.iter().filter(|said| said.message == message && said.kind == "answer").collect();
    let different: BTreeSet<OutboundId> = said.iter().map(|said| said.outbound).collect();
    if different.len() != 1 {
        found.push(Violation::Answered { message, answers: different.len() });
    }
    let texts = born.iter().map(|row| ("the outbox", &row.text));
    let texts = texts.chain(said.iter().map(|said| ("the chat", &said.text)));
    if let Some((place, found_text)) = texts.into_iter().find(|(_, found)| *found != text) {
        let (found_text, log) = (found_text.clone(), text.to_owned());
        found.push(Violation::OtherText { message, place, found: found_text, log });
    }
}

/// Whether what the run did to a message explains that it failed: a fault at the model, or too many interruptions.
fn failed_by_the_run(evidence: &Evidence, events: &[Event], asked: &Asked) -> bool {
    let failed = |event: &&Event| matches!(&event.body, EventBody::ModelFailed { message, .. } if *message == asked.message);
    if events.iter().any(|event| failed(&event)) {
        return log::about(evidence, &asked.tag).any(|entry| {
            entry.outcome == Outcome::Faulted
                && !matches!(entry.fault, Some(Fault::InvalidArguments | Fault::UnknownTool) | None)
        });
    }
    let (resumes, stalled) = interruptions(events, asked.message);
    let out_of_tries = stalled + 1 >= TRIES_PER_STEP && evidence.wounds >= TRIES_PER_STEP;
    out_of_tries || (resumes >= RESUMES_PER_MESSAGE && evidence.wounds > RESUMES_PER_MESSAGE)
}

/// How often a message's turn was resumed: in all, and since it last came further. What is settled together with its
/// closing, the results of calls that are not run again, is nothing that it got done.
fn interruptions(events: &[Event], message: MessageId) -> (u32, u32) {
    let closes =
        |event: &Event| matches!(&event.body, EventBody::MessageClosed { message: m, .. } if *m == message);
    let settled = |event: &Event| match &event.body {
        EventBody::ToolResultCommitted { outcome, .. } => {
            matches!(outcome.status, ToolStatus::Cancelled | ToolStatus::OutcomeUnknown)
        }
        _ => false,
    };
    let end = events.iter().position(closes).unwrap_or(events.len());
    let worked = events[..end].iter().rposition(|event| !settled(event)).map_or(0, |last| last + 1);
    let (mut resumes, mut stalled) = (0, 0);
    for event in &events[..worked] {
        match &event.body {
            EventBody::TurnResumed { message: m } if *m == message => {
                resumes += 1;
                stalled += 1;
            }
            EventBody::ModelOutput { .. }
            | EventBody::ToolCallRequested { .. }
            | EventBody::ToolCallCommitted { .. }
            | EventBody::ToolResultCommitted { .. } => stalled = 0,
            _ => {}
        }
    }
    (resumes, stalled)
}

/// What reached the client was born in the outbox, ended there as delivered, came again only as a repeat, and in the
/// order in which the log says it.
fn delivery(evidence: &Evidence, events: &[Event], found: &mut Vec<Violation>) {
    let born: BTreeSet<OutboundId> = evidence.outbox.iter().map(|row| row.outbound).collect();
    let mut seen: BTreeSet<OutboundId> = BTreeSet::new();
    let mut order: Vec<MessageId> = Vec::new();
    for said in &evidence.said {
        if !born.contains(&said.outbound) {
            found.push(Violation::Unborn(said.outbound));
        }
        if seen.insert(said.outbound) {
            if said.kind == "answer" {
                order.push(said.message);
            }
        } else if !said.repeat {
            found.push(Violation::BlindRepeat(said.outbound));
        }
    }
    for row in evidence.outbox.iter().filter(|row| row.state != "delivered") {
        found.push(Violation::NotDelivered { outbound: row.outbound, state: row.state.clone() });
    }
    let place: BTreeMap<MessageId, usize> = closings(events).map(|(id, ..)| id).zip(0..).collect();
    let places: Vec<usize> = order.iter().filter_map(|message| place.get(message).copied()).collect();
    if !places.is_sorted() {
        found.push(Violation::Order);
    }
}

fn closings(events: &[Event]) -> impl Iterator<Item = (MessageId, MessageOutcome, &str)> {
    events.iter().filter_map(|event| match &event.body {
        EventBody::MessageClosed { message, outcome, text } => Some((*message, *outcome, text.as_str())),
        _ => None,
    })
}
