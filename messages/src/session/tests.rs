//! Bounds of the view, and what a turn is given up for.

use super::*;
use crate::chain::Digest;
use crate::id::ModelCallId;
use crate::model::Usage;
use crate::time::Timestamp;
use crate::tool::Lane;

fn add(view: &mut SessionView, body: EventBody) -> Result<(), Rule> {
    let (event, _) =
        Event::append(view.session, view.head, Timestamp::from_millis(1), Lane::Edge, body).unwrap();
    view.apply(&event).map_err(|illegal| illegal.rule)
}

fn opened() -> SessionView {
    let mut view = SessionView::new(SessionId::from_bits(1));
    add(&mut view, EventBody::SessionOpened { agent: "a".parse().unwrap(), tool_manifest: Digest::ZERO })
        .unwrap();
    let message = MessageId::from_bits(1);
    add(&mut view, EventBody::UserMsg { message, text: "hello".into() }).unwrap();
    view
}

fn answer(n: u128, arguments: String) -> EventBody {
    let call = ToolCall { provider_id: format!("p{n}"), tool: "t".into(), arguments };
    EventBody::ModelOutput {
        call: ModelCallId::from_bits(n),
        message: MessageId::from_bits(1),
        text: None,
        calls: vec![(InvocationId::from_bits(n), call)],
        usage: Usage::default(),
        model: "m".into(),
    }
}

fn result(n: u128, bytes: usize) -> EventBody {
    let output = Json(serde_json::Value::String("x".repeat(bytes)));
    let outcome = ToolOutcome { status: ToolStatus::Success, output, cut_bytes: 0 };
    EventBody::ToolResultCommitted { invocation: InvocationId::from_bits(n), outcome }
}

#[test]
fn a_hostile_log_cannot_make_the_view_grow_without_end() {
    let mut view = opened();
    let mut refused = false;
    for n in 0..20 {
        let step = add(&mut view, answer(n, "x".repeat(limits::TOOL_INPUT_BYTES)))
            .and_then(|()| add(&mut view, result(n, limits::TOOL_OUTPUT_BYTES)));
        refused |= step == Err(Rule::Bound);
        assert!(view.transcript_bytes() <= limits::TURN_BYTES_HARD);
    }
    assert!(refused);
}

#[test]
fn too_long_arguments_results_and_texts_are_refused() {
    let mut view = opened();
    assert_eq!(add(&mut view, answer(1, "x".repeat(limits::TOOL_INPUT_BYTES + 1))), Err(Rule::Bound));
    add(&mut view, answer(1, "{}".into())).unwrap();
    assert_eq!(add(&mut view, result(1, limits::TOOL_OUTCOME_BYTES)), Err(Rule::Bound));
    add(&mut view, result(1, limits::TOOL_OUTPUT_BYTES)).unwrap();
}

#[test]
fn a_step_interrupted_twice_is_out_of_tries_and_one_that_comes_further_has_new_ones() {
    let mut view = opened();
    let resumed = || EventBody::TurnResumed { message: MessageId::from_bits(1) };
    let spent = |view: &SessionView| view.turn.as_ref().unwrap().is_out_of_tries();
    assert!(!spent(&view), "the first interruption of a step is none too many");
    add(&mut view, resumed()).unwrap();
    assert!(spent(&view), "the second is, with nothing done in between");
    add(&mut view, EventBody::Notice { message: MessageId::from_bits(1), text: "wait".into() }).unwrap();
    assert!(spent(&view), "a notice is nothing done");
    add(&mut view, answer(1, "{}".into())).unwrap();
    assert!(!spent(&view));
    add(&mut view, resumed()).unwrap();
    add(&mut view, result(1, 1)).unwrap();
    assert!(!spent(&view));
}

#[test]
fn a_turn_that_always_comes_further_is_still_resumed_only_so_often() {
    let mut view = opened();
    for n in 0..u128::from(limits::RESUMES_PER_MESSAGE) {
        assert!(!view.turn.as_ref().unwrap().is_out_of_tries(), "after {n} resumptions");
        add(&mut view, EventBody::TurnResumed { message: MessageId::from_bits(1) }).unwrap();
        add(&mut view, answer(n, "{}".into())).unwrap();
        add(&mut view, result(n, 1)).unwrap();
    }
    assert!(view.turn.as_ref().unwrap().is_out_of_tries());
}

#[test]
fn an_input_of_many_small_objects_is_refused() {
    let mut view = opened();
    add(&mut view, answer(1, "{}".into())).unwrap();
    let requested = |objects| EventBody::ToolCallRequested {
        invocation: InvocationId::from_bits(1),
        tool: "t".into(),
        input: Json(serde_json::json!(vec![serde_json::json!({ "": 0 }); objects])),
    };
    assert_eq!(add(&mut view, requested(limits::TOOL_INPUT_BYTES / 8)), Err(Rule::Bound));
    add(&mut view, requested(100)).unwrap();
}

#[test]
fn instructions_to_an_idle_lane_do_not_pile_up() {
    let mut view = SessionView::new(SessionId::from_bits(1));
    add(&mut view, EventBody::SessionOpened { agent: "a".parse().unwrap(), tool_manifest: Digest::ZERO })
        .unwrap();
    for n in 0..2000 {
        let text = "x".repeat(1000);
        add(&mut view, EventBody::InjectedInstruction { message: MessageId::from_bits(n), text }).unwrap();
    }
    assert!(view.transcript_bytes() <= TRANSCRIPT_BYTES && view.transcript.len() <= TRANSCRIPT_ENTRIES);
}
