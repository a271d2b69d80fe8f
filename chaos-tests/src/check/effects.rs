//! Effects: each at most once, never before its call is durable, and never denied.

use std::collections::BTreeSet;

use choir_messages::event::Event;
use choir_messages::tool::ToolStatus;

use super::evidence::Evidence;
use super::{Violation, log};

/// Tools whose calls leave the tag in their arguments.
const HANDS: [&str; 2] = ["choir.exec", "choir.fs.write"];

pub(super) fn check(evidence: &Evidence, events: &[Event], found: &mut Vec<Violation>) {
    let calls: Vec<log::Call> = log::calls(events).into_values().collect();
    let known: BTreeSet<&str> =
        evidence.asked.iter().flat_map(|asked| &asked.effects).map(String::as_str).collect();
    for (line, times) in &evidence.lines {
        if !known.contains(line.as_str()) {
            found.push(Violation::Strange(line.clone()));
        } else if *times > 1 {
            found.push(Violation::Repeated { tag: line.clone(), times: *times });
        }
    }
    for tag in known {
        one(evidence, &calls, tag, found);
    }
}

fn one(evidence: &Evidence, calls: &[log::Call], tag: &str, found: &mut Vec<Violation>) {
    let there = evidence.lines.contains_key(tag);
    let calls: Vec<&log::Call> = calls
        .iter()
        .filter(|call| HANDS.contains(&call.tool.as_str()) && call.arguments.contains(tag))
        .collect();
    let statuses: Vec<ToolStatus> = calls.iter().flat_map(|call| call.results.iter().copied()).collect();
    if !there {
        if statuses.contains(&ToolStatus::Success) {
            found.push(Violation::Missing(tag.to_owned()));
        }
        return;
    }
    if !calls.iter().any(|call| call.committed) {
        found.push(Violation::Unrecorded(tag.to_owned()));
    }
    let admits = |status: &ToolStatus| matches!(status, ToolStatus::Success | ToolStatus::OutcomeUnknown);
    if let Some(status) = statuses.first().filter(|_| !statuses.iter().any(admits)) {
        found.push(Violation::Denied { tag: tag.to_owned(), status: *status });
    }
}
