use super::*;
use proptest::prelude::*;
use serde_json::json;

const CALL: ModelCallId = ModelCallId::from_bits(9);

fn read_bytes(body: &[u8]) -> Parsed {
    let names = ToolNames::for_names(["choir.fs.read", "choir.exec"]);
    parse(body, &Reading { names: &names, model: "configured", call: CALL })
}

fn read(body: &Value) -> Parsed {
    read_bytes(body.to_string().as_bytes())
}

fn answered(body: &Value) -> ModelAnswer {
    match read(body) {
        Parsed::Answer(answer) => answer,
        other => panic!("{other:?} from {body}"),
    }
}

fn refused(body: &Value) -> ModelFailure {
    match read(body) {
        Parsed::Failure(failure) => failure,
        other => panic!("{other:?} from {body}"),
    }
}

fn message(message: Value) -> Value {
    json!({ "choices": [{ "message": message, "finish_reason": "stop" }] })
}

fn function(name: &str, arguments: Value) -> Value {
    json!({ "id": "c1", "type": "function", "function": { "name": name, "arguments": arguments } })
}

#[test]
fn a_text_is_read_with_its_usage_and_model() {
    let answer = answered(&json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "vendor/model-7",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4.0, "total_tokens": 7}
    }));
    assert_eq!(answer.text.as_deref(), Some("hello"));
    assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (3, 4));
    assert_eq!(answer.model, "vendor/model-7");
}

#[test]
fn what_a_provider_leaves_out_is_filled_in() {
    let answer = answered(&message(json!({ "content": "hi" })));
    assert_eq!((answer.usage, answer.model.as_str()), (Usage::default(), "configured"));
    let answer = answered(&json!({ "choices": [{ "message": { "content": "hi" } }], "usage": null }));
    assert_eq!(answer.text.as_deref(), Some("hi"));
}

#[test]
fn content_may_be_an_array_of_parts() {
    let parts =
        json!([{"type": "text", "text": "a"}, {"type": "image"}, "b", {"type": "output_text", "text": "c"}]);
    assert_eq!(answered(&message(json!({ "content": parts }))).text.as_deref(), Some("abc"));
}

#[test]
fn calls_get_their_canonical_names_and_keep_their_arguments_as_written() {
    let call = function("choir_fs_read", json!("{\"path\": \"a"));
    let answer = answered(&message(json!({ "content": null, "tool_calls": [call] })));
    let expected = ToolCall {
        provider_id: "c1".into(),
        tool: "choir.fs.read".into(),
        arguments: "{\"path\": \"a".into(),
    };
    assert_eq!((answer.text, answer.calls), (None, vec![expected]));
}

#[test]
fn an_unknown_tool_passes_through_by_its_own_name() {
    let call = function("drop tables", json!({"x": 1}));
    let answer = answered(&message(json!({ "tool_calls": [call] })));
    assert_eq!(
        (answer.calls[0].tool.as_str(), answer.calls[0].arguments.as_str()),
        ("drop tables", "{\"x\":1}")
    );
}

#[test]
fn a_call_without_arguments_has_none() {
    for arguments in [json!(null), json!(""), json!(" \n")] {
        let answer = answered(&message(json!({ "tool_calls": [function("choir_exec", arguments)] })));
        assert_eq!(answer.calls[0].arguments, "{}");
    }
}

#[test]
fn missing_and_repeated_call_ids_become_unique_ones() {
    let own = format!("call_{CALL}_2");
    let with = |id: Value| json!({ "id": id, "function": { "name": "choir_exec", "arguments": "{}" } });
    let calls =
        json!([with(json!("a")), with(json!("a")), with(json!(own)), with(json!(null)), with(json!(""))]);
    let answer = answered(&message(json!({ "tool_calls": calls })));
    let ids: BTreeSet<_> = answer.calls.iter().map(|call| call.provider_id.clone()).collect();
    assert_eq!(ids.len(), 5, "{ids:?}");
    assert!(ids.iter().all(|id| id.len() <= 64), "{ids:?}");
}

#[test]
fn a_filtered_answer_is_told_from_a_malformed_one() {
    let body =
        json!({ "choices": [{ "message": { "content": "half" }, "finish_reason": "content_filter" }] });
    assert_eq!(refused(&body), ModelFailure::Filtered);
}

#[test]
fn a_text_that_the_output_limit_cut_says_so() {
    let body = json!({ "choices": [{ "message": { "content": "half" }, "finish_reason": "length" }] });
    assert_eq!(answered(&body).text.unwrap(), format!("half{CUT_NOTICE}"));
    let body = json!({ "choices": [{ "message": { "content": "" }, "finish_reason": "length" }] });
    assert!(refused(&body).to_string().contains("output limit"));
}

#[test]
fn a_refusal_in_words_is_an_answer() {
    let answer = answered(&message(json!({ "content": null, "refusal": "I will not" })));
    assert_eq!(answer.text.as_deref(), Some("I will not"));
}

#[test]
fn answers_that_are_not_the_protocols_are_malformed_with_a_reason() {
    let mut reasons = BTreeSet::new();
    for body in [
        json!([]),
        json!({}),
        json!({ "choices": 1 }),
        json!({ "choices": [] }),
        json!({ "choices": [1] }),
        json!({ "choices": [{}] }),
        json!({ "choices": [{ "message": 1 }] }),
        json!({ "choices": [{ "message": { "content": "x" }, "finish_reason": 1 }] }),
        message(json!({ "content": 1 })),
        message(json!({ "content": [1] })),
        message(json!({ "content": [{ "text": 1 }] })),
        message(json!({ "content": " " })),
        message(json!({ "tool_calls": 1 })),
        message(json!({ "tool_calls": [1] })),
        message(json!({ "tool_calls": [{}] })),
        message(json!({ "tool_calls": [{ "function": {} }] })),
        message(json!({ "tool_calls": [function("x", json!(1))] })),
        message(json!({ "tool_calls": [{ "id": 1, "function": { "name": "x" } }] })),
        json!({ "choices": [{ "message": { "content": "x" } }], "usage": 1 }),
        json!({ "choices": [{ "message": { "content": "x" } }], "usage": { "prompt_tokens": "1" } }),
        message(json!({ "tool_calls": vec![function("x", json!("{}")); TOOL_CALLS_PER_ANSWER + 1] })),
        message(json!({ "tool_calls": [function(&"x".repeat(300), json!("{}"))] })),
    ] {
        let ModelFailure::Malformed { reason } = refused(&body) else { panic!("{body}") };
        assert!(reasons.insert(reason.clone()), "two faults share the reason {reason:?}");
    }
    assert!(matches!(read_bytes(b"<html>"), Parsed::Failure(ModelFailure::Malformed { .. })));
    assert!(matches!(read_bytes(b"\xff"), Parsed::Failure(ModelFailure::Malformed { .. })));
    assert!(matches!(
        read_bytes("[".repeat(100_000).as_bytes()),
        Parsed::Failure(ModelFailure::Malformed { .. })
    ));
}

#[test]
fn an_answer_past_a_bound_is_too_large() {
    let large = |failure| matches!(failure, ModelFailure::TooLarge { .. });
    assert!(large(refused(&message(json!({ "content": "x".repeat(MODEL_TEXT_BYTES + 1) })))));
    let call = function("x", json!("x".repeat(TOOL_INPUT_BYTES + 1)));
    assert!(large(refused(&message(json!({ "tool_calls": [call] })))));
    // Each within its own bound, together too much for one event.
    let call = function("x", json!("\u{1}".repeat(TOOL_INPUT_BYTES)));
    assert!(large(refused(&message(json!({ "tool_calls": [call] })))));
}

#[test]
fn a_body_of_many_small_objects_is_refused_before_it_is_read() {
    let mut body = message(json!({ "content": "x" }));
    body["extra"] = json!(vec![json!({ "": 0 }); 100_000]);
    assert!(matches!(refused(&body), ModelFailure::Malformed { .. }));
}

#[test]
fn an_error_inside_a_good_response_stands_for_its_status() {
    for (error, status) in [
        (json!({ "code": 429, "message": "slow down" }), 429),
        (json!({ "code": 7, "message": "m" }), 502),
        (json!("broken"), 502),
        (json!({ "code": "x" }), 502),
    ] {
        for body in [json!({ "error": error }), json!({ "choices": [{ "error": error }] })] {
            assert!(matches!(read(&body), Parsed::Status { status: found, .. } if found == status), "{body}");
        }
    }
}

#[test]
fn a_claimed_cost_is_bounded() {
    let body = json!({ "choices": [{ "message": { "content": "x" } }],
        "usage": { "prompt_tokens": u64::MAX, "completion_tokens": -4 } });
    let usage = answered(&body).usage;
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (limits::TOKENS_CLAIMED, 0));
}

/// JSON in the neighbourhood of an answer: the protocol's field names with values of any type.
fn near_answers() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z{}\"]{0,6}".prop_map(Value::from),
        Just(json!("length")),
        Just(json!("choir_exec")),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let field = prop::sample::select(vec![
            "choices",
            "message",
            "content",
            "tool_calls",
            "function",
            "name",
            "arguments",
            "id",
            "usage",
            "prompt_tokens",
            "completion_tokens",
            "finish_reason",
            "error",
            "code",
            "model",
            "text",
            "refusal",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(field.prop_map(str::to_owned), inner.clone(), 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
            inner.clone().prop_map(|v| json!({ "choices": [{ "message": v }] })),
            inner.prop_map(|v| json!({ "choices": [{ "message": { "content": "t", "tool_calls": [v] } }] })),
        ]
    })
}

proptest! {
    #[test]
    fn reading_is_total_and_every_answer_is_within_bounds(body in near_answers()) {
        if let Parsed::Answer(answer) = read(&body) {
            prop_assert!(answer.text.is_some() || !answer.calls.is_empty());
            prop_assert!(answer.calls.len() <= TOOL_CALLS_PER_ANSWER);
            let ids: BTreeSet<_> = answer.calls.iter().map(|call| &call.provider_id).collect();
            prop_assert_eq!(ids.len(), answer.calls.len());
            prop_assert!(answer.calls.iter().all(|call| !call.provider_id.is_empty()));
        }
    }

    #[test]
    fn reading_is_total_over_bytes(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_bytes(&body);
    }
}
