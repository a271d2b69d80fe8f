//! The edge lane's state machine, one sentence a test. A log stands in for arbiter and journal.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use choir_lanes::{Action, Edge, EdgeState, Identity, Input, system_prompt};
use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, MessageOutcome};
use choir_messages::id::{InvocationId, MessageId, ModelCallId, SessionId};
use choir_messages::json::Json;
use choir_messages::mail::{JournalError, Proposal, ProposalRefused};
use choir_messages::model::{ModelAnswer, ModelFailure, Usage};
use choir_messages::session::{Illegal, Rule, SessionView};
use choir_messages::time::Timestamp;
use choir_messages::tool::{Lane, ToolCall, ToolOutcome, ToolStatus};
use choir_messages::wire::Budgets;

struct Log(SessionView);

impl Log {
    fn new() -> Self {
        let mut log = Self(SessionView::new(SessionId::from_bits(1)));
        log.add(EventBody::SessionOpened { agent: "a".parse().unwrap(), tool_manifest: Digest::ZERO });
        log
    }

    fn add(&mut self, body: EventBody) -> Arc<Event> {
        let (event, _) =
            Event::append(self.0.session, self.0.head, Timestamp::from_millis(1), Lane::Edge, body).unwrap();
        self.0.apply(&event).unwrap();
        Arc::new(event)
    }

    fn message(&mut self, n: u128) -> Input {
        Input::Committed(vec![
            self.add(EventBody::UserMsg { message: MessageId::from_bits(n), text: format!("m{n}") }),
        ])
    }
}

fn asked(actions: &[Action]) -> ModelCallId {
    match actions {
        [Action::Ask(call)] => *call,
        other => panic!("{other:?}"),
    }
}

fn proposed(actions: &[Action]) -> &Proposal {
    match actions {
        [Action::Propose(proposal)] => proposal,
        other => panic!("{other:?}"),
    }
}

fn answer(text: Option<&str>, calls: usize) -> ModelAnswer {
    let calls = (0..calls)
        .map(|i| ToolCall { provider_id: format!("p{i}"), tool: "read".into(), arguments: "{}".into() })
        .collect();
    ModelAnswer { text: text.map(str::to_owned), calls, usage: Usage::default(), model: "m".into() }
}

fn model_output(n: u128, text: Option<&str>, calls: &[u128]) -> EventBody {
    EventBody::ModelOutput {
        call: ModelCallId::from_bits(1),
        message: MessageId::from_bits(n),
        text: text.map(str::to_owned),
        calls: calls
            .iter()
            .map(|id| {
                let call =
                    ToolCall { provider_id: id.to_string(), tool: "read".into(), arguments: "{}".into() };
                (InvocationId::from_bits(*id), call)
            })
            .collect(),
        usage: Usage { prompt_tokens: 60, completion_tokens: 40 },
        model: "m".into(),
    }
}

#[test]
fn a_message_is_reasoned_about_and_answered_and_the_next_one_follows() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    assert_eq!(edge.state(), EdgeState::Idle);
    let call = asked(&edge.step(log.message(1)));
    assert_eq!(edge.state(), EdgeState::Reasoning);
    assert!(edge.step(log.message(2)).is_empty(), "one message at a time");
    let actions = edge.step(Input::Answered(call, Some(Ok(answer(Some("hi"), 0)))));
    assert!(
        matches!(proposed(&actions), Proposal::Answer { message, .. } if *message == MessageId::from_bits(1))
    );
    let output = log.add(model_output(1, Some("hi"), &[]));
    let closed = log.add(EventBody::MessageClosed {
        message: MessageId::from_bits(1),
        outcome: MessageOutcome::Answered,
        text: "hi".into(),
    });
    assert!(
        edge.step(Input::Committed(vec![output, closed])).is_empty(),
        "the arbiter's answer is still to come"
    );
    asked(&edge.step(Input::Proposed(Ok(()))));
}

#[test]
fn the_lane_waits_for_every_tool_result_before_it_asks_again() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    edge.step(Input::Answered(call, Some(Ok(answer(None, 2)))));
    let output = log.add(model_output(1, None, &[10, 11]));
    edge.step(Input::Committed(vec![output]));
    assert!(edge.step(Input::Proposed(Ok(()))).is_empty());
    assert_eq!(edge.state(), EdgeState::WaitingTool);
    let result = |id| EventBody::ToolResultCommitted {
        invocation: InvocationId::from_bits(id),
        outcome: ToolOutcome { status: ToolStatus::Success, output: Json::default(), cut_bytes: 0 },
    };
    let first = log.add(result(11));
    assert!(edge.step(Input::Committed(vec![first])).is_empty());
    let second = log.add(result(10));
    asked(&edge.step(Input::Committed(vec![second])));
}

#[test]
fn a_failed_model_call_is_proposed_as_the_end_of_the_message() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    let actions = edge.step(Input::Answered(call, Some(Err(ModelFailure::Filtered))));
    assert!(matches!(proposed(&actions), Proposal::ModelFailed { failure: ModelFailure::Filtered, .. }));
}

#[test]
fn a_models_actor_that_dies_costs_a_retry_and_no_answer() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    assert!(matches!(edge.step(Input::Answered(call, None))[..], [Action::RetryLater]));
    let again = asked(&edge.step(Input::Retry));
    assert_ne!(again, call);
    assert!(
        edge.step(Input::Answered(call, Some(Ok(answer(Some("late"), 0))))).is_empty(),
        "a late answer is dropped"
    );
}

#[test]
fn a_rate_limit_is_told_to_the_user_while_the_call_waits() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    let actions = edge.step(Input::Limited(call, 1500));
    assert!(matches!(proposed(&actions), Proposal::Notice { text, .. } if text.contains("1.5 s")));
    assert_eq!(edge.state(), EdgeState::Reasoning);
}

#[test]
fn a_proposal_the_journal_refuses_makes_the_lane_read_the_log_again() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    edge.step(Input::Answered(call, Some(Ok(answer(Some("hi"), 0)))));
    let illegal = JournalError::Illegal(Illegal { rev: 3, rule: Rule::NoOpenCall });
    assert!(matches!(
        edge.step(Input::Proposed(Err(ProposalRefused::Journal(illegal))))[..],
        [Action::Resync]
    ));
    edge.resync(log.0.clone());
    asked(&edge.step(Input::Retry));
}

#[test]
fn a_gap_in_the_committed_events_makes_the_lane_read_the_log_again_and_a_repeat_does_not() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let first = log.message(1);
    let second = log.message(2);
    assert!(matches!(edge.step(second)[..], [Action::Resync]));
    edge.resync(log.0.clone());
    assert!(!matches!(edge.step(first)[..], [Action::Resync]));
}

#[test]
fn a_cancel_stops_the_model_call_and_closes_the_message() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    let cancelled = log.add(EventBody::Cancelled {
        message: Some(MessageId::from_bits(1)),
        request: MessageId::from_bits(50),
    });
    let actions = edge.step(Input::Committed(vec![cancelled]));
    assert!(matches!(&actions[..], [
        Action::CancelAsk(stopped),
        Action::Propose(Proposal::Close { outcome: MessageOutcome::Failed, .. })
    ] if *stopped == call));
}

#[test]
fn a_turn_found_open_is_put_to_the_arbiter_before_the_model_is_asked() {
    let mut log = Log::new();
    let _ = log.message(1);
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let actions = edge.step(Input::Begin);
    assert!(matches!(proposed(&actions), Proposal::Resume { asked: false, .. }));
    let resumed = log.add(EventBody::TurnResumed { message: MessageId::from_bits(1) });
    edge.step(Input::Committed(vec![resumed]));
    asked(&edge.step(Input::Proposed(Ok(()))));
}

#[test]
fn a_turn_that_was_not_interrupted_goes_on_without_a_record_of_it() {
    let mut log = Log::new();
    let _ = log.message(1);
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    edge.step(Input::Begin);
    asked(&edge.step(Input::Proposed(Ok(()))));
}

#[test]
fn a_lane_says_for_which_turn_one_before_it_had_asked_the_model() {
    let mut log = Log::new();
    let _ = log.message(1);
    for (before, expected) in [(1, true), (2, false)] {
        let mut edge = Edge::new(log.0.clone(), Budgets::default(), Some(MessageId::from_bits(before)));
        let actions = edge.step(Input::Begin);
        assert!(matches!(proposed(&actions), Proposal::Resume { asked, .. } if *asked == expected));
    }
}

#[test]
fn a_turn_found_open_that_the_arbiter_sets_aside_makes_room_for_the_next() {
    let mut log = Log::new();
    let _ = log.message(1);
    let _ = log.message(2);
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    edge.step(Input::Begin);
    let closed = log.add(EventBody::MessageClosed {
        message: MessageId::from_bits(1),
        outcome: MessageOutcome::Failed,
        text: "set aside".into(),
    });
    edge.step(Input::Committed(vec![closed]));
    asked(&edge.step(Input::Proposed(Ok(()))));
    assert_eq!(edge.view().turn.as_ref().map(|turn| turn.message), Some(MessageId::from_bits(2)));
}

#[test]
fn a_model_that_never_stops_calling_tools_is_stopped_by_the_turn_budget() {
    let mut log = Log::new();
    let budgets = Budgets { max_model_calls_per_turn: 1, ..Budgets::default() };
    let mut edge = Edge::new(log.0.clone(), budgets, None);
    let call = asked(&edge.step(log.message(1)));
    edge.step(Input::Answered(call, Some(Ok(answer(None, 1)))));
    let output = log.add(model_output(1, None, &[10]));
    edge.step(Input::Committed(vec![output]));
    edge.step(Input::Proposed(Ok(())));
    let result = log.add(EventBody::ToolResultCommitted {
        invocation: InvocationId::from_bits(10),
        outcome: ToolOutcome { status: ToolStatus::Success, output: Json::default(), cut_bytes: 0 },
    });
    let actions = edge.step(Input::Committed(vec![result]));
    assert!(matches!(proposed(&actions),
        Proposal::Close { outcome: MessageOutcome::Failed, text, .. } if text.contains("max_model_calls_per_turn")));
}

#[test]
fn a_used_up_token_budget_ends_the_turn_with_a_sentence_and_the_lane_is_terminated() {
    let mut log = Log::new();
    let budgets = Budgets { total_session_tokens: 100, ..Budgets::default() };
    let _ = log.message(1);
    log.add(model_output(1, Some("x"), &[]));
    log.add(EventBody::MessageClosed {
        message: MessageId::from_bits(1),
        outcome: MessageOutcome::Answered,
        text: "x".into(),
    });
    let mut edge = Edge::new(log.0.clone(), budgets, None);
    assert_eq!(edge.state(), EdgeState::Terminated);
    let actions = edge.step(log.message(2));
    assert!(matches!(proposed(&actions), Proposal::Close { outcome: MessageOutcome::Failed, .. }));
}

#[test]
fn a_draining_lane_says_so_once_nothing_is_in_flight() {
    let mut log = Log::new();
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    let call = asked(&edge.step(log.message(1)));
    assert!(edge.step(Input::Drain).is_empty(), "a model call is in flight");
    edge.step(Input::Answered(call, Some(Ok(answer(Some("hi"), 0)))));
    let output = log.add(model_output(1, Some("hi"), &[]));
    let closed = log.add(EventBody::MessageClosed {
        message: MessageId::from_bits(1),
        outcome: MessageOutcome::Answered,
        text: "hi".into(),
    });
    edge.step(Input::Committed(vec![output, closed]));
    assert!(matches!(edge.step(Input::Proposed(Ok(())))[..], [Action::Drained]));
    assert!(edge.step(log.message(2)).is_empty(), "it takes up nothing new");
}

#[test]
fn the_system_prompt_is_small_and_leaves_out_what_is_empty() {
    let prompt = system_prompt(&"a".parse().unwrap(), &Identity::default());
    assert!(prompt.len() < 2048 && !prompt.contains('#'), "{prompt}");
    let identity = Identity { user: "Likes tea.".into(), soul: String::new() };
    assert!(system_prompt(&"a".parse().unwrap(), &identity).ends_with("# The user\nLikes tea."));
}

#[test]
fn what_a_gap_hides_is_not_proposed_again() {
    // A resumption in the gap is not made twice.
    let mut log = Log::new();
    let _ = log.message(1);
    let mut edge = Edge::new(log.0.clone(), Budgets::default(), None);
    assert!(matches!(proposed(&edge.step(Input::Begin)), Proposal::Resume { .. }));
    log.add(EventBody::TurnResumed { message: MessageId::from_bits(1) });
    edge.resync(log.0.clone());
    let call = asked(&edge.step(Input::Proposed(Ok(()))));
    // Nor an answer, whose calls would run again under new ids.
    let actions = edge.step(Input::Answered(call, Some(Ok(answer(None, 1)))));
    assert!(matches!(proposed(&actions), Proposal::Answer { .. }));
    log.add(model_output(1, None, &[7]));
    let outcome = ToolOutcome::says(ToolStatus::Refused, "no such tool");
    log.add(EventBody::ToolResultCommitted { invocation: InvocationId::from_bits(7), outcome });
    edge.resync(log.0.clone());
    let next = asked(&edge.step(Input::Proposed(Ok(()))));
    // And what was asked for one message never answers another.
    let text = "Cancelled.".to_owned();
    log.add(EventBody::Cancelled {
        message: Some(MessageId::from_bits(1)),
        request: MessageId::from_bits(9),
    });
    log.add(EventBody::MessageClosed {
        message: MessageId::from_bits(1),
        outcome: MessageOutcome::Failed,
        text,
    });
    let _ = log.message(2);
    edge.resync(log.0.clone());
    assert!(edge.step(Input::Answered(next, Some(Ok(answer(Some("late"), 0))))).is_empty());
    asked(&edge.step(Input::Retry));
}
