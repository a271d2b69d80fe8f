//! Each violation is detected: a good conversation passes, and each way of spoiling it is named.

use std::collections::BTreeMap;

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, ModelCallId, OutboundId, SessionId};
use choir_messages::json::Json;
use choir_messages::model::{ModelFailure, Usage};
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use choir_scripted_model::{Entry, Fault, Outcome};

use super::*;

const SESSION: SessionId = SessionId::from_bits(1);
const FIRST: MessageId = MessageId::from_bits(11);
const SECOND: MessageId = MessageId::from_bits(12);
const CALL: InvocationId = InvocationId::from_bits(21);
const TAG: &str = "e1.0.0.";

fn opened() -> EventBody {
    EventBody::SessionOpened { agent: "assistant".parse().unwrap(), tool_manifest: Digest::ZERO }
}

fn user(message: MessageId) -> EventBody {
    EventBody::UserMsg { message, text: "do it".into() }
}

fn output(message: MessageId, text: Option<&str>, calls: Vec<(InvocationId, ToolCall)>) -> EventBody {
    let (call, model) = (ModelCallId::from_bits(31), "scripted".to_owned());
    EventBody::ModelOutput {
        call,
        message,
        text: text.map(str::to_owned),
        calls,
        usage: Usage::default(),
        model,
    }
}

fn closed(message: MessageId, outcome: MessageOutcome, text: &str) -> EventBody {
    EventBody::MessageClosed { message, outcome, text: text.into() }
}

fn command() -> ToolCall {
    let arguments = format!("{{\"command\":\"echo '{TAG}' >> s1/ran.txt\"}}");
    ToolCall { provider_id: "c".into(), tool: "choir.exec".into(), arguments }
}

fn requested() -> EventBody {
    EventBody::ToolCallRequested { invocation: CALL, tool: "choir.exec".into(), input: Json::default() }
}

fn committed() -> EventBody {
    EventBody::ToolCallCommitted {
        invocation: CALL,
        tool: "choir.exec".into(),
        locks: Vec::new(),
        side_effect: SideEffect::Write,
        replay: Replay::Unrepeatable,
    }
}

fn result(status: ToolStatus) -> EventBody {
    EventBody::ToolResultCommitted {
        invocation: CALL,
        outcome: ToolOutcome { status, output: Json::default(), cut_bytes: 0 },
    }
}

/// Two messages, the first with one command.
fn bodies() -> Vec<EventBody> {
    vec![
        opened(),
        user(FIRST),
        output(FIRST, None, vec![(CALL, command())]),
        requested(),
        committed(),
        result(ToolStatus::Success),
        output(FIRST, Some("done s1m0"), Vec::new()),
        closed(FIRST, MessageOutcome::Answered, "done s1m0"),
        user(SECOND),
        output(SECOND, Some("done s1m1"), Vec::new()),
        closed(SECOND, MessageOutcome::Answered, "done s1m1"),
    ]
}

fn entry(number: u64, tag: &str, step: usize, fault: Option<Fault>, outcome: Outcome) -> Entry {
    Entry {
        number,
        at: Timestamp::from_millis(number),
        ended: None,
        message: format!("Please do the work of [{tag}]."),
        rule: tag.into(),
        step,
        messages: 2,
        request_bytes: 100,
        transcript: format!("{tag}{step}"),
        fault,
        outcome,
    }
}

fn says(text: &str) -> Outcome {
    Outcome::Answered { text: Some(text.into()), tools: Vec::new(), off_script: false }
}

fn outbound(number: u128) -> OutboundId {
    OutboundId::from_bits(number)
}

impl Evidence {
    /// Replaces the log.
    fn log_of(mut self, bodies: Vec<EventBody>) -> Self {
        let mut head = Head::START;
        self.log.clear();
        for body in bodies {
            let at = Timestamp::from_millis(5);
            let (event, canonical) = Event::append(SESSION, head, at, Lane::Edge, body).unwrap();
            head = event.head();
            self.log.push(LoggedEvent { canonical, hash: event.hash });
        }
        self.head = head;
        self
    }

    /// The first message failed instead, for this reason in the log.
    fn failed(self, reason: EventBody, text: &str) -> Self {
        let mut bodies = bodies();
        bodies.truncate(2);
        bodies.push(reason);
        bodies.push(closed(FIRST, MessageOutcome::Failed, text));
        let mut evidence = self.log_of(bodies);
        evidence.asked.truncate(1);
        evidence.inbox.truncate(1);
        evidence.outbox.truncate(1);
        evidence.said.truncate(1);
        evidence.invocations.clear();
        evidence.lines.clear();
        evidence.inbox[0].outcome = Some(MessageOutcome::Failed);
        evidence.outbox[0].text = text.into();
        evidence.said[0].text = text.into();
        evidence.requests = vec![entry(1, "s1m0", 0, None, Outcome::Disconnected)];
        evidence
    }
}

/// What was seen of a conversation in which all went well.
fn good() -> Evidence {
    let row = |message| InboxRow { message, outcome: Some(MessageOutcome::Answered) };
    let out = |number, message, text: &str| OutboxRow {
        outbound: outbound(number),
        message,
        kind: "answer".into(),
        text: text.into(),
        state: "delivered".into(),
    };
    let said = |number, message, text: &str| Answer {
        outbound: outbound(number),
        message,
        kind: "answer".into(),
        text: text.into(),
        repeat: false,
    };
    Evidence {
        session: SESSION,
        head: Head::START,
        asked: vec![
            Asked { message: FIRST, tag: "s1m0".into(), effects: vec![TAG.into()] },
            Asked { message: SECOND, tag: "s1m1".into(), effects: Vec::new() },
        ],
        inbox: vec![row(FIRST), row(SECOND)],
        outbox: vec![out(1, FIRST, "done s1m0"), out(2, SECOND, "done s1m1")],
        log: Vec::new(),
        invocations: vec![InvocationRow { invocation: CALL, status: "success".into() }],
        said: vec![said(1, FIRST, "done s1m0"), said(2, SECOND, "done s1m1")],
        requests: vec![
            entry(
                1,
                "s1m0",
                0,
                None,
                Outcome::Answered { text: None, tools: vec!["x".into()], off_script: false },
            ),
            entry(2, "s1m0", 1, None, says("done s1m0")),
            entry(3, "s1m1", 0, None, says("done s1m1")),
        ],
        lines: BTreeMap::from([(TAG.to_owned(), 1)]),
        leases: 0,
        wounds: 1,
    }
    .log_of(bodies())
}

fn spoiled(spoil: impl FnOnce(&mut Evidence)) -> Vec<Violation> {
    let mut evidence = good();
    spoil(&mut evidence);
    check(&evidence)
}

#[test]
fn a_good_conversation_passes_and_so_does_a_marked_repeat_of_an_answer() {
    assert_eq!(check(&good()), []);
    let repeated = spoiled(|evidence| {
        let again = Answer { repeat: true, ..evidence.said[0].clone() };
        evidence.said.push(again);
    });
    assert_eq!(repeated, []);
}

#[test]
fn a_lost_message_is_detected() {
    assert!(spoiled(|e| e.inbox[0].outcome = None).contains(&Violation::Lost(FIRST)));
    assert!(
        spoiled(|e| {
            e.inbox.remove(0);
        })
        .contains(&Violation::NotStored(FIRST))
    );
    let stranger = MessageId::from_bits(99);
    let row = InboxRow { message: stranger, outcome: None };
    assert!(spoiled(|e| e.inbox.push(row)).contains(&Violation::Stranger(stranger)));
    let mut cut = bodies();
    cut.truncate(8);
    let found = check(&good().log_of(cut));
    assert!(found.contains(&Violation::Recorded { message: SECOND, times: 0 }), "{found:?}");
    assert!(found.contains(&Violation::Closed { message: SECOND, times: 0 }), "{found:?}");
}

#[test]
fn a_second_answer_is_detected_wherever_it_shows() {
    let mut twice = bodies();
    twice.push(closed(SECOND, MessageOutcome::Answered, "done s1m1"));
    let found = check(&good().log_of(twice));
    assert!(found.contains(&Violation::Closed { message: SECOND, times: 2 }), "{found:?}");
    let found = spoiled(|e| {
        let again = OutboxRow { outbound: outbound(7), ..e.outbox[0].clone() };
        e.outbox.push(again);
        let again = Answer { outbound: outbound(7), ..e.said[0].clone() };
        e.said.push(again);
    });
    assert!(found.contains(&Violation::Outbox { message: FIRST, answers: 2 }), "{found:?}");
    assert!(found.contains(&Violation::Answered { message: FIRST, answers: 2 }), "{found:?}");
    let found = spoiled(|e| e.requests.push(entry(4, "s1m0", 1, None, says("done otherwise"))));
    assert_eq!(found, [Violation::TwoEnds("s1m0".into())]);
}

#[test]
fn what_went_wrong_on_the_way_to_the_user_is_detected() {
    let found = spoiled(|e| {
        e.said.remove(0);
    });
    assert_eq!(found, [Violation::Answered { message: FIRST, answers: 0 }]);
    let found = spoiled(|e| {
        let again = e.said[0].clone();
        e.said.push(again);
    });
    assert_eq!(found, [Violation::BlindRepeat(outbound(1))]);
    let found = spoiled(|e| e.outbox[1].state = "sending".into());
    assert_eq!(found, [Violation::NotDelivered { outbound: outbound(2), state: "sending".into() }]);
    assert_eq!(spoiled(|e| e.said.reverse()), [Violation::Order]);
    let found = spoiled(|e| e.said[0].text = "something else".into());
    assert!(matches!(&found[..], [Violation::OtherText { place: "the chat", .. }]), "{found:?}");
    let found = spoiled(|e| e.outbox[0].text = "something else".into());
    assert!(matches!(&found[..], [Violation::OtherText { place: "the outbox", .. }]), "{found:?}");
    let found = spoiled(|e| {
        e.said[0].outbound = outbound(9);
    });
    assert_eq!(found, [Violation::Unborn(outbound(9))]);
    assert!(
        spoiled(|e| {
            e.outbox.remove(0);
        })
        .contains(&Violation::Outbox { message: FIRST, answers: 0 })
    );
}

#[test]
fn a_repeated_a_missing_and_an_unexplained_effect_are_detected() {
    let found = spoiled(|e| {
        e.lines.insert(TAG.into(), 2);
    });
    assert_eq!(found, [Violation::Repeated { tag: TAG.into(), times: 2 }]);
    assert_eq!(spoiled(|e| e.lines.clear()), [Violation::Missing(TAG.into())]);
    let found = spoiled(|e| {
        e.lines.insert("else".into(), 1);
    });
    assert_eq!(found, [Violation::Strange("else".into())]);
    // An effect of a call that was only requested.
    let mut bodies = bodies();
    bodies.retain(|body| *body != committed());
    bodies[4] = result(ToolStatus::OutcomeUnknown);
    let mut evidence = good().log_of(bodies);
    evidence.invocations.clear();
    assert_eq!(check(&evidence), [Violation::Unrecorded(TAG.into())]);
}

#[test]
fn an_effect_may_be_there_or_not_after_an_unknown_outcome_but_not_after_a_refusal() {
    let ending = |status, word: &str| {
        let mut bodies = bodies();
        bodies[5] = result(status);
        let mut evidence = good().log_of(bodies);
        evidence.invocations[0].status = word.into();
        evidence
    };
    let unknown = ending(ToolStatus::OutcomeUnknown, "outcome_unknown");
    assert_eq!(check(&unknown), []);
    assert_eq!(check(&Evidence { lines: BTreeMap::new(), ..unknown }), []);
    for (status, word) in
        [(ToolStatus::Refused, "refused"), (ToolStatus::Error, "error"), (ToolStatus::Cancelled, "cancelled")]
    {
        let denied = ending(status, word);
        assert_eq!(check(&denied), [Violation::Denied { tag: TAG.into(), status }]);
        assert_eq!(check(&Evidence { lines: BTreeMap::new(), ..denied }), []);
    }
}

#[test]
fn a_changed_log_is_detected() {
    let changed = |found: &[Violation]| found.iter().any(|v| matches!(v, Violation::Chain(_)));
    assert!(changed(&spoiled(|e| e.log[3].canonical = e.log[3].canonical.replace("edge", "core:x"))));
    assert!(changed(&spoiled(|e| e.log[3].canonical.push(' '))));
    assert!(changed(&spoiled(|e| e.log[3].hash = Digest::ZERO)));
    assert!(changed(&spoiled(|e| {
        e.log.remove(3);
    })));
    assert!(changed(&spoiled(|e| {
        e.log.pop();
    })));
    assert!(changed(&spoiled(|e| e.log.swap(1, 2))));
    // A chain that holds, of events that may not follow each other.
    let mut bodies = bodies();
    bodies.swap(3, 4);
    assert!(changed(&check(&good().log_of(bodies))));
}

#[test]
fn tables_that_tell_another_story_than_the_log_are_detected() {
    let found = spoiled(|e| e.invocations[0].status = "committed".into());
    assert_eq!(
        found,
        [Violation::Invocation { invocation: CALL, table: "committed".into(), log: "success".into() }]
    );
    let found = spoiled(|e| e.invocations.clear());
    assert!(matches!(&found[..], [Violation::Invocation { .. }]), "{found:?}");
    let found = spoiled(|e| {
        let row = InvocationRow { invocation: InvocationId::from_bits(99), status: "success".into() };
        e.invocations.push(row);
    });
    assert!(matches!(&found[..], [Violation::Invocation { .. }]), "{found:?}");
    let found = spoiled(|e| e.inbox[0].outcome = Some(MessageOutcome::Failed));
    assert!(matches!(&found[..], [Violation::TwoOutcomes { .. }]), "{found:?}");
    let mut open = bodies();
    open.remove(5);
    let found = check(&good().log_of(open));
    assert!(found.contains(&Violation::Results { invocation: CALL, results: 0 }), "{found:?}");
    assert_eq!(spoiled(|e| e.leases = 1), [Violation::Leases(1)]);
}

#[test]
fn a_failure_needs_a_fault_at_the_model_or_more_interruptions_than_are_borne() {
    let failure = ModelFailure::ServerError { status: 500 };
    let model_failed = || EventBody::ModelFailed {
        call: ModelCallId::from_bits(31),
        message: FIRST,
        failure: failure.clone(),
    };
    let mut evidence = good().failed(model_failed(), "no");
    assert!(matches!(&check(&evidence)[..], [Violation::Unexplained { .. }]));
    evidence.requests = vec![entry(1, "s1m0", 0, Some(Fault::Status { status: 500 }), Outcome::Faulted)];
    assert_eq!(check(&evidence), []);
    // Faults that a model call must survive explain nothing.
    evidence.requests = vec![entry(1, "s1m0", 0, Some(Fault::UnknownTool), Outcome::Faulted)];
    assert!(matches!(&check(&evidence)[..], [Violation::Unexplained { .. }]));

    let resumed = || EventBody::TurnResumed { message: FIRST };
    let interrupted = |turn: Vec<EventBody>, wounds| {
        let mut evidence = good().failed(resumed(), "set aside");
        let mut bodies = vec![opened(), user(FIRST)];
        bodies.extend(turn);
        bodies.push(closed(FIRST, MessageOutcome::Failed, "set aside"));
        evidence = evidence.log_of(bodies);
        evidence.wounds = wounds;
        check(&evidence)
    };
    let unexplained = |found: Vec<Violation>| matches!(&found[..], [Violation::Unexplained { .. }]);
    // Two interruptions in a row: the second is never resumed.
    assert_eq!(interrupted(vec![resumed()], 2), []);
    assert!(unexplained(interrupted(vec![resumed()], 1)), "one wound is no two interruptions");
    assert!(unexplained(interrupted(vec![], 2)), "nor is one that was not resumed");
    // What the turn got done in between makes it another step; calls that end with the turn are nothing done.
    let asks = || output(FIRST, None, vec![(CALL, command())]);
    let done = vec![resumed(), asks(), result(ToolStatus::Success)];
    assert!(interrupted(done, 2).iter().any(|v| matches!(v, Violation::Unexplained { .. })));
    let ended = vec![asks(), resumed(), result(ToolStatus::Cancelled)];
    assert!(!interrupted(ended, 2).iter().any(|v| matches!(v, Violation::Unexplained { .. })));
    for outcome in [MessageOutcome::Refused, MessageOutcome::Expired] {
        let found = {
            let mut bodies = bodies();
            bodies[10] = closed(SECOND, outcome, "done s1m1");
            let mut evidence = good().log_of(bodies);
            evidence.inbox[1].outcome = Some(outcome);
            check(&evidence)
        };
        assert!(found.iter().any(|v| matches!(v, Violation::Unexplained { .. })), "{found:?}");
    }
}

#[test]
fn a_request_that_a_real_endpoint_would_refuse_is_detected() {
    let refused = Outcome::Refused { status: 400, reason: "a call without its result".into() };
    let found = spoiled(|e| e.requests[1].outcome = refused);
    assert!(matches!(&found[..], [Violation::Model { number: 2, .. }]), "{found:?}");
    let lost = Outcome::Answered { text: Some("?".into()), tools: Vec::new(), off_script: true };
    let found = spoiled(|e| e.requests[0].outcome = lost);
    assert!(found.iter().any(|v| matches!(v, Violation::Model { number: 1, .. })), "{found:?}");
}
