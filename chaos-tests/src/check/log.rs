//! The log itself, the calls in it, and the model's side of it.

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::InvocationId;
use choir_messages::session::SessionView;
use choir_scripted_model::{Entry, Outcome};

use super::{Evidence, Violation};

/// Reads the log and verifies it from its first event to the head that the tables tell.
pub(super) fn read(evidence: &Evidence, found: &mut Vec<Violation>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut head = Head::START;
    let mut view = SessionView::new(evidence.session);
    for row in &evidence.log {
        let event = match Event::from_canonical(&row.canonical, row.hash) {
            Ok(event) => event,
            Err(error) => {
                found.push(Violation::Chain(format!("an event cannot be read: {error}")));
                return events;
            }
        };
        match event.check(evidence.session, head) {
            Err(error) => found.push(Violation::Chain(error.to_string())),
            Ok(text) if text != row.canonical => {
                found.push(Violation::Chain(format!(
                    "revision {}: the stored text is not canonical",
                    event.rev
                )));
            }
            Ok(_) => {}
        }
        if let Err(illegal) = view.apply(&event) {
            found.push(Violation::Chain(illegal.to_string()));
        }
        head = event.head();
        events.push(event);
    }
    if head != evidence.head {
        let what = format!("it ends at revision {}, the session's row says {}", head.rev, evidence.head.rev);
        found.push(Violation::Chain(what));
    }
    events
}

/// How a call went, by the log.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub(super) tool: String,
    pub(super) arguments: String,
    pub(super) committed: bool,
    pub(super) results: Vec<choir_messages::tool::ToolStatus>,
}

/// Every call of the log.
pub(super) fn calls(events: &[Event]) -> BTreeMap<InvocationId, Call> {
    let mut calls: BTreeMap<InvocationId, Call> = BTreeMap::new();
    for event in events {
        match &event.body {
            EventBody::ModelOutput { calls: proposed, .. } => {
                for (invocation, call) in proposed {
                    let entry = calls.entry(*invocation).or_default();
                    entry.tool.clone_from(&call.tool);
                    entry.arguments.clone_from(&call.arguments);
                }
            }
            EventBody::ToolCallCommitted { invocation, .. } => {
                calls.entry(*invocation).or_default().committed = true;
            }
            EventBody::ToolResultCommitted { invocation, outcome } => {
                calls.entry(*invocation).or_default().results.push(outcome.status);
            }
            _ => {}
        }
    }
    calls
}

/// Each call has one result, and the table of invocations agrees.
pub(super) fn invocations(evidence: &Evidence, events: &[Event], found: &mut Vec<Violation>) {
    let table: BTreeMap<InvocationId, &str> =
        evidence.invocations.iter().map(|row| (row.invocation, row.status.as_str())).collect();
    let calls = calls(events);
    for (invocation, call) in &calls {
        if call.results.len() != 1 {
            found.push(Violation::Results { invocation: *invocation, results: call.results.len() });
        }
        let log = if call.committed {
            let word = call.results.first().and_then(|status| serde_json::to_value(status).ok());
            word.and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_else(|| "committed".into())
        } else {
            // Only committed calls have a row.
            "absent".to_owned()
        };
        let there = table.get(invocation).copied().unwrap_or("absent");
        if there != log {
            found.push(Violation::Invocation { invocation: *invocation, table: there.to_owned(), log });
        }
    }
    for invocation in table.keys().filter(|invocation| !calls.contains_key(invocation)) {
        let table = table.get(invocation).copied().unwrap_or_default().to_owned();
        found.push(Violation::Invocation { invocation: *invocation, table, log: "absent".into() });
    }
}

/// The endpoint was asked nothing malformed and nothing unscripted, and ended each message in one way.
pub(super) fn model(evidence: &Evidence, found: &mut Vec<Violation>) {
    for entry in &evidence.requests {
        match &entry.outcome {
            Outcome::Refused { status, reason } => found.push(Violation::Model {
                number: entry.number,
                what: format!("refused with status {status}: {reason}"),
            }),
            Outcome::Answered { off_script: true, .. } => found.push(Violation::Model {
                number: entry.number,
                what: format!("the script has nothing for step {} of \"{}\"", entry.step, entry.message),
            }),
            _ => {}
        }
    }
    for asked in &evidence.asked {
        let ends: BTreeSet<&str> = about(evidence, &asked.tag).filter_map(Entry::final_answer).collect();
        if ends.len() > 1 {
            found.push(Violation::TwoEnds(asked.tag.clone()));
        }
    }
}

/// The requests about one message.
pub(super) fn about<'a>(evidence: &'a Evidence, tag: &str) -> impl Iterator<Item = &'a Entry> {
    let tag = format!("[{tag}]");
    evidence.requests.iter().filter(move |entry| entry.message.contains(&tag))
}
