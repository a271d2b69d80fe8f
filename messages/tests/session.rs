//! The fold of a session's log under random events, most of them illegal: what `SessionView` promises of any log.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, ModelCallId, SessionId};
use choir_messages::json::Json;
use choir_messages::limits::{HOST_CALL_TRIES, HOST_CALLS, TOOL_CALLS_PER_ANSWER, USER_QUEUE};
use choir_messages::model::{ModelFailure, Turn, Usage};
use choir_messages::session::{
    CallView, Next, PENDING_INJECTIONS, REMEMBERED_HOST_CALLS, REMEMBERED_MESSAGES, SessionView,
    TRANSCRIPT_BYTES, TRANSCRIPT_ENTRIES,
};
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, Replay, SideEffect, ToolCall, ToolOutcome, ToolStatus};
use proptest::prelude::*;

const SESSION: SessionId = SessionId::from_bits(1);

/// An event to try. Numbers pick among the messages and calls that exist, so that many are legal and some are not.
#[derive(Debug, Clone)]
enum Try {
    Opened,
    User {
        id: u8,
        bytes: usize,
    },
    Resumed(u8),
    Answer {
        of: u8,
        calls: usize,
        bytes: usize,
    },
    Failed(u8),
    Requested(u8),
    Committed(u8),
    Result {
        call: u8,
        bytes: usize,
    },
    Inject {
        id: u8,
        bytes: usize,
    },
    Cancel {
        of: Option<u8>,
        id: u8,
    },
    Close {
        of: u8,
        outcome: MessageOutcome,
        bytes: usize,
    },
    Config(u64),
    Notice(u8),
    HostCall(u8),
    /// Whatever the view says comes next, so that long legal logs are common.
    Next {
        calls: usize,
        bytes: usize,
    },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![30 => 0usize..50, 5 => 1000usize..5000, 1 => TRANSCRIPT_BYTES / 3..TRANSCRIPT_BYTES + 10]
}

fn outcome() -> impl Strategy<Value = MessageOutcome> {
    prop_oneof![
        Just(MessageOutcome::Answered),
        Just(MessageOutcome::Refused),
        Just(MessageOutcome::Failed),
        Just(MessageOutcome::Expired),
    ]
}

fn any_try() -> impl Strategy<Value = Try> {
    prop_oneof![
        1 => Just(Try::Opened),
        4 => (any::<u8>(), size()).prop_map(|(id, bytes)| Try::User { id, bytes }),
        1 => (0u8..4).prop_map(Try::Resumed),
        2 => (0u8..4, 0usize..4, size()).prop_map(|(of, calls, bytes)| Try::Answer { of, calls, bytes }),
        1 => (0u8..4).prop_map(Try::Failed),
        2 => (0u8..5).prop_map(Try::Requested),
        2 => (0u8..5).prop_map(Try::Committed),
        2 => (0u8..5, size()).prop_map(|(call, bytes)| Try::Result { call, bytes }),
        2 => (any::<u8>(), 0usize..300).prop_map(|(id, bytes)| Try::Inject { id, bytes }),
        1 => (proptest::option::of(0u8..3), any::<u8>()).prop_map(|(of, id)| Try::Cancel { of, id }),
        2 => (0u8..4, outcome(), 0usize..100).prop_map(|(of, outcome, bytes)| Try::Close { of, outcome, bytes }),
        1 => any::<u64>().prop_map(Try::Config),
        1 => (0u8..4).prop_map(Try::Notice),
        2 => (0u8..12).prop_map(Try::HostCall),
        20 => (0usize..4, size()).prop_map(|(calls, bytes)| Try::Next { calls, bytes }),
    ]
}

fn queued(view: &SessionView, n: u8) -> MessageId {
    view.queue.get(usize::from(n)).map_or(MessageId::from_bits(9_999), |q| q.message)
}

fn nth_call(view: &SessionView, n: u8) -> InvocationId {
    let of_turn = view.turn.iter().flat_map(|turn| turn.calls.iter());
    let calls = of_turn.chain(view.host_calls.iter().map(|open| &open.call));
    let mut calls = calls.map(|call| call.invocation);
    calls.nth(usize::from(n)).unwrap_or(InvocationId::from_bits(9_999))
}

fn answer(view: &SessionView, message: MessageId, calls: usize, bytes: usize) -> EventBody {
    let base = u128::from(view.head.rev) << 8;
    EventBody::ModelOutput {
        call: ModelCallId::from_bits(base),
        message,
        text: Some("a".repeat(bytes)),
        calls: (0..calls)
            .map(|i| {
                let call = ToolCall {
                    provider_id: format!("{}-{i}", view.head.rev),
                    tool: "choir.fs.read".into(),
                    arguments: "{}".into(),
                };
                (InvocationId::from_bits(base + i as u128), call)
            })
            .collect(),
        usage: Usage { prompt_tokens: u64::MAX / 2, completion_tokens: 7 },
        model: "scripted".into(),
    }
}

fn result(invocation: InvocationId, bytes: usize) -> EventBody {
    let output = Json(serde_json::json!({ "text": "r".repeat(bytes) }));
    EventBody::ToolResultCommitted {
        invocation,
        outcome: ToolOutcome { status: ToolStatus::Success, output, cut_bytes: 0 },
    }
}

fn close(message: MessageId, outcome: MessageOutcome, bytes: usize) -> EventBody {
    EventBody::MessageClosed { message, outcome, text: "c".repeat(bytes) }
}

fn body(view: &SessionView, attempt: &Try) -> EventBody {
    match attempt {
        Try::Opened => {
            EventBody::SessionOpened { agent: "agent".parse().unwrap(), tool_manifest: Digest::ZERO }
        }
        Try::User { id, bytes } => EventBody::UserMsg {
            message: MessageId::from_bits(u128::from(*id) | (u128::from(view.head.rev / 40) << 8)),
            text: "u".repeat(*bytes),
        },
        Try::Resumed(of) => EventBody::TurnResumed { message: queued(view, *of) },
        Try::Answer { of, calls, bytes } => answer(view, queued(view, *of), *calls, *bytes),
        Try::Failed(of) => EventBody::ModelFailed {
            call: ModelCallId::from_bits(1),
            message: queued(view, *of),
            failure: ModelFailure::Filtered,
        },
        Try::Requested(call) => EventBody::ToolCallRequested {
            invocation: nth_call(view, *call),
            tool: "choir.fs.read".into(),
            input: Json::default(),
        },
        Try::Committed(call) => EventBody::ToolCallCommitted {
            invocation: nth_call(view, *call),
            tool: "choir.fs.read".into(),
            locks: Vec::new(),
            side_effect: SideEffect::Read,
            replay: Replay::Idempotent,
        },
        Try::Result { call, bytes } => result(nth_call(view, *call), *bytes),
        Try::Inject { id, bytes } => EventBody::InjectedInstruction {
            message: MessageId::from_bits(
                u128::from(*id) | (1 << 100) | (u128::from(view.head.rev / 40) << 8),
            ),
            text: "i".repeat(*bytes),
        },
        Try::Cancel { of, id } => EventBody::Cancelled {
            message: of.map(|of| queued(view, of)),
            request: MessageId::from_bits(u128::from(*id) | (1 << 110)),
        },
        Try::Close { of, outcome, bytes } => close(queued(view, *of), *outcome, *bytes),
        Try::Config(version) => EventBody::ConfigApplied { version: *version },
        Try::Notice(of) => EventBody::Notice { message: queued(view, *of), text: "n".into() },
        Try::HostCall(n) => EventBody::HostCallAsked {
            invocation: InvocationId::from_bits(
                u128::from(*n) | (1 << 100) | (u128::from(view.head.rev / 30) << 8),
            ),
            job: "ledger".parse().unwrap(),
            tool: "choir.fs.read".into(),
            arguments: "{}".into(),
        },
        Try::Next { calls, bytes } => match view.next() {
            Next::Idle if view.agent.is_none() => body(view, &Try::Opened),
            Next::Idle => EventBody::UserMsg {
                message: MessageId::from_bits(u128::from(view.head.rev) | (1 << 90)),
                text: "u".repeat(*bytes),
            },
            Next::Model => answer(view, queued(view, 0), *calls, *bytes),
            Next::Tools => {
                let open = view.turn.as_ref().and_then(|t| t.calls.iter().find(|c| c.is_open())).unwrap();
                result(open.invocation, *bytes)
            }
            Next::Close => {
                let answered = view
                    .turn
                    .as_ref()
                    .is_some_and(|t| matches!(t.end, choir_messages::session::TurnEnd::Answer(_)));
                let outcome = if answered { MessageOutcome::Answered } else { MessageOutcome::Failed };
                close(queued(view, 0), outcome, *bytes % 100)
            }
        },
    }
}

/// The next event. Its hash is made up: the fold checks meaning, and the chain is checked elsewhere.
fn event(view: &SessionView, body: EventBody) -> Event {
    let rev = view.head.rev + 1;
    let at = Timestamp::from_millis(rev);
    let hash = Digest::of(&rev.to_be_bytes());
    Event { session: SESSION, rev, at, lane: Lane::Edge, body, prev: view.head.hash, hash }
}

fn bytes_of(view: &SessionView) -> usize {
    view.transcript
        .iter()
        .map(|turn| match &**turn {
            Turn::System(text) | Turn::User(text) => text.len(),
            Turn::Assistant { text, calls } => {
                text.as_ref().map_or(0, String::len)
                    + calls
                        .iter()
                        .map(|c| c.arguments.len() + c.tool.len() + c.provider_id.len())
                        .sum::<usize>()
            }
            Turn::ToolResult { content, .. } => content.len(),
        })
        .sum()
}

/// Every call in the transcript is followed by its results, in order and once, before anything else is said; only the
/// last answer may still wait for them. No result stands without its call.
fn assert_paired(view: &SessionView) {
    let mut waiting: Vec<&str> = Vec::new();
    let mut next = 0;
    for turn in &view.transcript {
        match &**turn {
            Turn::ToolResult { provider_id, .. } => {
                assert_eq!(
                    waiting.get(next),
                    Some(&provider_id.as_str()),
                    "a result without its call: {view:#?}"
                );
                next += 1;
            }
            other => {
                assert_eq!(next, waiting.len(), "calls without results before {other:?}");
                (waiting, next) = (Vec::new(), 0);
                if let Turn::Assistant { calls, .. } = other {
                    waiting = calls.iter().map(|c| c.provider_id.as_str()).collect();
                }
            }
        }
    }
    let open = view.turn.as_ref().is_some_and(|turn| turn.calls.iter().any(CallView::is_open));
    if open {
        assert_eq!(next, 0, "results join all at once");
        let calls = view.turn.as_ref().map(|t| t.calls.len());
        assert_eq!(calls, Some(waiting.len()), "the open calls are those of the last answer: {view:#?}");
    } else {
        assert_eq!(next, waiting.len(), "every call has its result");
    }
}

fn assert_consistent(view: &SessionView) {
    assert_eq!(view.turn.as_ref().map(|t| t.message), view.queue.front().map(|q| q.message));
    assert!(view.queue.len() <= USER_QUEUE);
    assert!(view.injections.len() <= PENDING_INJECTIONS);
    assert!(view.recorded.len() <= REMEMBERED_MESSAGES);
    assert!(view.host_calls.len() <= HOST_CALLS && view.host_calls_done.len() <= REMEMBERED_HOST_CALLS);
    for open in &view.host_calls {
        assert!(open.call.is_open() && open.asked <= HOST_CALL_TRIES);
        assert!(!view.host_calls_done.contains(&open.call.invocation), "a call has one end");
    }
    if let Some(turn) = &view.turn {
        assert!(turn.calls.len() <= TOOL_CALLS_PER_ANSWER);
    }
    let expected = match &view.turn {
        None => Next::Idle,
        Some(turn) if turn.calls.iter().any(CallView::is_open) => Next::Tools,
        Some(turn) if turn.end == choir_messages::session::TurnEnd::Open => Next::Model,
        Some(_) => Next::Close,
    };
    assert_eq!(view.next(), expected);
}

/// Applies a try and checks everything that must hold of one step. Returns whether it was legal.
fn step(view: &mut SessionView, attempt: &Try) -> bool {
    let event = event(view, body(view, attempt));
    let before = view.clone();
    let permitted = view.permits(&event.body);
    assert_eq!(*view, before, "asking changes nothing");
    match view.apply(&event) {
        Ok(()) => {
            assert_eq!(permitted, Ok(()));
            assert_eq!(view.head, event.head());
        }
        Err(illegal) => {
            assert_eq!(permitted, Err(illegal.rule));
            assert_eq!(illegal.rev, event.rev);
            assert_eq!(*view, before, "a refused event changes nothing");
            return false;
        }
    }
    assert_paired(view);
    assert_consistent(view);
    if let EventBody::MessageClosed { message, .. } = &event.body {
        assert!(!view.queue.iter().any(|q| q.message == *message));
        assert!(view.has_recorded(*message));
        if before.queue.front().is_some_and(|q| q.message == *message) {
            // What the next message adds came after the cut.
            let next = view.queue.front().map_or(0, |q| q.text.len());
            assert!(bytes_of(view) <= TRANSCRIPT_BYTES + next, "{} bytes", bytes_of(view));
            assert!(view.transcript.len() <= TRANSCRIPT_ENTRIES + 1);
            assert!(view.transcript.first().is_none_or(|turn| matches!(**turn, Turn::User(_))));
        }
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_events_keeps_the_views_promises(tries in proptest::collection::vec(any_try(), 0..120)) {
        let mut view = SessionView::new(SESSION);
        let mut legal = Vec::new();
        for attempt in &tries {
            let event = event(&view, body(&view, attempt));
            if step(&mut view, attempt) {
                legal.push(event);
            }
        }
        // A snapshot is the view and nothing else: taken anywhere, with the tail it gives the same state.
        let half = legal.len() / 2;
        let mut replayed = SessionView::new(SESSION);
        for (i, event) in legal.iter().enumerate() {
            if i == half {
                let text = serde_json::to_string(&replayed).unwrap();
                let read: SessionView = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&read, &replayed);
                let bytes = choir_messages::codec::encode(&read, 1 << 30).unwrap();
                replayed = choir_messages::codec::decode(&bytes, 1 << 30).unwrap();
            }
            replayed.apply(event).unwrap();
        }
        prop_assert_eq!(replayed, view);
    }
}

fn opened() -> SessionView {
    let mut view = SessionView::new(SESSION);
    assert!(step(&mut view, &Try::Opened));
    view
}

#[test]
fn a_long_session_keeps_whole_turns_within_the_bounds() {
    let mut view = opened();
    for _ in 0..2000 {
        let calls = if view.head.rev.is_multiple_of(7) { 0 } else { 2 };
        assert!(step(&mut view, &Try::Next { calls, bytes: 900 }));
    }
    assert!(view.transcript.len() > TRANSCRIPT_ENTRIES / 4, "and no more is dropped than needed");
}

#[test]
fn a_turn_larger_than_the_transcript_is_dropped_whole_and_the_next_one_is_kept() {
    let mut view = opened();
    assert!(step(&mut view, &Try::User { id: 1, bytes: TRANSCRIPT_BYTES + 1 }));
    assert!(step(&mut view, &Try::Answer { of: 0, calls: 0, bytes: 10 }));
    assert!(step(&mut view, &Try::User { id: 2, bytes: 5 }));
    assert!(step(&mut view, &Try::Close { of: 0, outcome: MessageOutcome::Answered, bytes: 1 }));
    assert_eq!(view.transcript.len(), 1);
    assert!(matches!(&*view.transcript[0], Turn::User(text) if text == "uuuuu"));
}

#[test]
fn a_waiting_message_that_expires_leaves_the_running_turn_alone() {
    let mut view = opened();
    // Answers of an earlier turn fill the transcript to just below its bound.
    for (id, bytes) in [(1, 10), (2, TRANSCRIPT_BYTES / 2)] {
        assert!(step(&mut view, &Try::User { id, bytes }));
    }
    assert!(step(&mut view, &Try::Answer { of: 0, calls: 1, bytes: TRANSCRIPT_BYTES + 10 }));
    // The turn now exceeds the bound, its call is open, and the message behind it expires.
    assert!(step(&mut view, &Try::Close { of: 1, outcome: MessageOutcome::Expired, bytes: 3 }));
    assert!(step(&mut view, &Try::Result { call: 0, bytes: 5 }));
    assert_eq!(view.next(), Next::Model);
    assert!(view.transcript.iter().any(|turn| matches!(&**turn, Turn::User(text) if text.len() == 10)));
}

#[test]
fn an_instruction_waits_until_every_call_of_the_answer_has_its_result() {
    let mut view = opened();
    assert!(step(&mut view, &Try::User { id: 1, bytes: 3 }));
    assert!(step(&mut view, &Try::Answer { of: 0, calls: 2, bytes: 0 }));
    assert!(step(&mut view, &Try::Inject { id: 7, bytes: 4 }));
    assert!(step(&mut view, &Try::Result { call: 1, bytes: 1 }));
    assert_eq!(view.injections.len(), 1);
    assert!(step(&mut view, &Try::Result { call: 0, bytes: 1 }));
    assert!(view.injections.is_empty());
    assert!(matches!(&**view.transcript.last().unwrap(), Turn::User(text) if text == "iiii"));
}

#[test]
fn a_cancelled_turn_still_needs_its_results_and_is_then_closed() {
    let mut view = opened();
    assert!(step(&mut view, &Try::User { id: 1, bytes: 3 }));
    assert!(step(&mut view, &Try::Answer { of: 0, calls: 1, bytes: 0 }));
    assert!(step(&mut view, &Try::Cancel { of: Some(0), id: 1 }));
    assert!(!step(&mut view, &Try::Cancel { of: None, id: 1 }), "a repeat is recognised");
    assert!(!step(&mut view, &Try::Close { of: 0, outcome: MessageOutcome::Failed, bytes: 1 }));
    assert!(step(&mut view, &Try::Result { call: 0, bytes: 1 }));
    assert_eq!(view.next(), Next::Close);
    assert!(!step(&mut view, &Try::Answer { of: 0, calls: 0, bytes: 1 }));
    assert!(!step(&mut view, &Try::Close { of: 0, outcome: MessageOutcome::Answered, bytes: 1 }));
    assert!(step(&mut view, &Try::Close { of: 0, outcome: MessageOutcome::Failed, bytes: 1 }));
}

#[test]
fn a_head_is_where_the_view_says() {
    let view = opened();
    assert_ne!(view.head, Head::START);
    assert_eq!(view.head.rev, 1);
}
