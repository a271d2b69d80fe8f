//! The checker must see what it is there to see: each fault, put into good evidence, is found and counted.

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{AgentId, InvocationId, MessageId, ModelCallId, OutboundId, SessionId};
use choir_messages::json::Json;
use choir_messages::model::Usage;
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use serde_json::json;

use super::check::{Asked, Evidence, InboxRow, OutboxRow, Received, Sent, StoredLog, check};
use super::conversation::{Effect, LOG};

const FIRST: Effect = Effect { file: LOG, line: "first" };
const SECOND: Effect = Effect { file: LOG, line: "second" };

/// Two messages, each with a command that leaves a line, each answered.
fn good() -> Evidence {
    let session = SessionId::from_bits(9);
    let agent: AgentId = "assistant".parse().unwrap();
    let mut log = Log { session, head: Head::START, rows: Vec::new() };
    log.add(EventBody::SessionOpened { agent, tool_manifest: choir_messages::chain::Digest::ZERO });
    for (number, line) in [(1u128, "first"), (2, "second")] {
        log.turn(MessageId::from_bits(number), InvocationId::from_bits(number), line);
    }
    let numbers = [1u128, 2];
    let text = |n: u128| format!("[m{n}]");
    let answer = |n: u128| format!("answer {n}");
    Evidence {
        sent: numbers
            .map(|n| Sent {
                message: MessageId::from_bits(n),
                tag: if n == 1 { "m1" } else { "m2" },
                text: text(n),
                forgotten: false,
            })
            .to_vec(),
        received: numbers.map(|n| received(n, n, &answer(n))).to_vec(),
        inbox: numbers
            .map(|n| InboxRow { message: MessageId::from_bits(n), outcome: Some("answered".into()) })
            .to_vec(),
        outbox: numbers
            .map(|n| OutboxRow { message: MessageId::from_bits(n), answer: true, text: answer(n) })
            .to_vec(),
        files: BTreeMap::from([(LOG, vec!["first".to_owned(), "second".to_owned()])]),
        effects: vec![FIRST, SECOND],
        logs: vec![StoredLog { session, head: log.head, rows: log.rows }],
        asked: Some(
            numbers.map(|n| Asked { message: text(n), answers: BTreeSet::from([answer(n)]) }).to_vec(),
        ),
    }
}

fn received(outbound: u128, message: u128, text: &str) -> Received {
    Received {
        outbound: OutboundId::from_bits(outbound),
        message: MessageId::from_bits(message),
        answer: true,
        text: text.into(),
        repeat: false,
    }
}

struct Log {
    session: SessionId,
    head: Head,
    rows: Vec<(u64, String, String)>,
}

impl Log {
    fn add(&mut self, body: EventBody) {
        let at = Timestamp::from_millis(self.head.rev);
        let (event, text) = Event::append(self.session, self.head, at, Lane::Edge, body).unwrap();
        self.rows.push((event.rev, text, event.hash.to_string()));
        self.head = event.head();
    }

    fn turn(&mut self, message: MessageId, invocation: InvocationId, line: &str) {
        let output = |text: Option<String>, calls| EventBody::ModelOutput {
            call: ModelCallId::from_bits(1),
            message,
            text,
            calls,
            usage: Usage::default(),
            model: "scripted".into(),
        };
        let tool = "choir.exec".to_owned();
        let input = json!({ "command": format!("echo '{line}' >> {LOG}") });
        let call = ToolCall { provider_id: "c".into(), tool: tool.clone(), arguments: input.to_string() };
        let answer = format!("answer {}", message.bits());
        self.add(EventBody::UserMsg { message, text: format!("[m{}]", message.bits()) });
        self.add(output(None, vec![(invocation, call)]));
        self.add(EventBody::ToolCallRequested { invocation, tool: tool.clone(), input: Json(input) });
        self.add(EventBody::ToolCallCommitted {
            invocation,
            tool,
            locks: Vec::new(),
            side_effect: SideEffect::Write,
            replay: Replay::Unrepeatable,
        });
        let outcome = ToolOutcome { status: ToolStatus::Success, output: Json(json!({})), cut_bytes: 0 };
        self.add(EventBody::ToolResultCommitted { invocation, outcome });
        self.add(output(Some(answer.clone()), Vec::new()));
        self.add(EventBody::MessageClosed { message, outcome: MessageOutcome::Answered, text: answer });
    }
}

/// Lost, duplicated, and whether the chain broke, after `damage`.
fn counts(damage: impl FnOnce(&mut Evidence)) -> (usize, usize, bool) {
    let mut evidence = good();
    damage(&mut evidence);
    let findings = check(&evidence);
    assert_eq!(
        findings.holds(),
        findings.lost.is_empty() && findings.duplicated.is_empty() && findings.broken.is_none()
    );
    (findings.lost.len(), findings.duplicated.len(), findings.broken.is_some())
}

#[test]
fn good_evidence_is_found_good_and_counted() {
    let findings = check(&good());
    assert!(findings.holds(), "{findings:?}");
    assert_eq!((findings.events, findings.turns, findings.tool_calls), (15, 2, 2));
}

#[test]
fn a_lost_answer_is_seen_wherever_it_was_lost() {
    assert_eq!(counts(|e| drop(e.received.pop())), (1, 0, false));
    assert_eq!(counts(|e| drop(e.outbox.pop())), (1, 0, false));
    assert_eq!(counts(|e| drop(e.inbox.pop())), (1, 0, false));
    assert_eq!(counts(|e| e.inbox[0].outcome = None), (1, 0, false));
    assert_eq!(counts(|e| e.inbox[0].outcome = Some("failed".into())), (1, 0, false));
    assert_eq!(counts(|e| drop(e.asked.as_mut().unwrap().pop())), (1, 0, false));
    assert_eq!(counts(|e| e.received[1].text.push('!')), (1, 0, false));
    assert_eq!(counts(|e| e.sent[0].forgotten = true), (1, 0, false));
    // Both of them, then, are two.
    assert_eq!(counts(|e| e.received.clear()), (2, 0, false));
}

#[test]
fn a_message_without_a_trace_in_the_log_is_lost() {
    let extra = Sent { message: MessageId::from_bits(3), tag: "m3", text: "[m3]".into(), forgotten: false };
    assert_eq!(counts(|e| e.sent.push(extra)), (1, 0, false));
}

#[test]
fn a_second_answer_is_seen() {
    assert_eq!(counts(|e| e.outbox.push(e.outbox[0].clone())), (0, 1, false));
    assert_eq!(counts(|e| e.received.push(received(7, 1, "answer 1"))), (0, 1, false));
    let other = |e: &mut Evidence| e.asked.as_mut().unwrap()[0].answers.extend(["another".to_owned()]);
    assert_eq!(counts(other), (0, 1, false));
}

#[test]
fn an_answer_sent_again_is_no_second_one_if_it_says_so() {
    let again =
        |repeat| move |e: &mut Evidence| e.received.push(Received { repeat, ..e.received[0].clone() });
    assert_eq!(counts(again(true)), (0, 0, false));
    assert_eq!(counts(again(false)), (0, 1, false));
}

#[test]
fn a_repeated_effect_a_missing_one_and_one_that_nobody_asked_for_are_seen() {
    let with = |lines: &[&str]| {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        counts(|e| drop(e.files.insert(LOG, lines)))
    };
    assert_eq!(with(&["first", "second", "first"]), (0, 1, false));
    assert_eq!(with(&["first"]), (1, 0, false));
    assert_eq!(with(&["first", "second", "third"]), (0, 1, false));
    assert_eq!(counts(|e| e.files.clear()), (2, 0, false));
}

#[test]
fn any_change_to_a_stored_event_breaks_the_chain() {
    for at in 0..15 {
        assert!(counts(|e| drop(e.logs[0].rows.remove(at))).2, "row {at} removed");
        assert!(
            counts(|e| e.logs[0].rows[at].1 =
                e.logs[0].rows[at].1.replace("answer", "anSwer").replace("\"at\":", "\"at\":1"))
            .2
        );
        assert!(
            counts(|e| e.logs[0].rows[at].2 = e.logs[0].rows[(at + 1) % 15].2.clone()).2,
            "hash {at} swapped"
        );
    }
    assert!(counts(|e| e.logs[0].head.rev += 1).2);
    assert!(counts(|e| e.logs.clear()).2);
}

#[test]
fn a_model_that_is_free_to_choose_is_held_to_what_the_log_says_it_did() {
    let free = |damage: fn(&mut Evidence)| {
        counts(|e| {
            e.asked = None;
            damage(e);
        })
    };
    assert_eq!(free(|_| {}), (0, 0, false));
    // It never ran a third command, so a line of one is not missed; one that ran twice by one call is.
    assert_eq!(free(|e| e.effects.push(Effect { file: LOG, line: "third" })), (0, 0, false));
    assert_eq!(free(|e| e.files.get_mut(LOG).unwrap().push("first".into())), (0, 1, false));
    assert_eq!(free(|e| drop(e.files.get_mut(LOG).unwrap().pop())), (1, 0, false));
}
