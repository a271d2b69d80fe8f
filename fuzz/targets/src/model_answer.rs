//! What a model's provider answers: any status, any header, any bytes (`choir §7.7`).

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody};
use choir_messages::id::{InvocationId, MessageId, ModelCallId, SessionId};
use choir_messages::json::Json;
use choir_messages::limits::TOOL_CALLS_PER_ANSWER;
use choir_messages::model::{ModelAnswer, ModelConfig, ModelFailure, ModelRequest, Turn};
use choir_messages::secret::Secret;
use choir_messages::session::SessionView;
use choir_messages::time::Timestamp;
use choir_messages::tool::Lane;
use choir_models::exchange::{Action, Event as Heard, Exchange, Response};
use choir_models::limits::{REASON_CHARS, RETRY_AFTER_MAX};
use choir_models::scrub::Scrubber;
use choir_models::wire::{ToolNames, body};
use serde_json::Value;

use crate::{Input, assert_one_line};

/// The key of the call, which a provider may echo.
const KEY: &str = "sk-canary-0123456789";

/// When it is, for dates in Retry-After.
const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// The input is a status (two bytes), the Retry-After header (a piece; none if empty) and a body; both tries of the
/// call get the same. Every answer fits the log and the transcript and gives a next request in which each call has one
/// id; every wait is bounded; every failure is a short line; the key is in nothing of it.
pub fn model_answer(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let (Some(status), Some(header)) = (input.number(), input.piece()) else { return false };
    let retry_after = std::str::from_utf8(header).ok().filter(|h| !h.is_empty()).map(str::to_owned);
    let response = Response { status, retry_after, body: input.rest().to_vec() };
    let names = ToolNames::for_names(["choir.fs.read", "choir_fs.read", "choir.exec"]);
    let scrubber = Scrubber::new([Secret::new(KEY.to_owned())]);
    let call = ModelCallId::from_bits(7);
    let mut exchange = Exchange::new(&names, "configured", call, &scrubber, 1000);
    assert_eq!(exchange.step(Heard::Begun, NOW), Action::Send);
    let mut action = exchange.step(Heard::Responded(response.clone()), NOW);
    if let Action::Wait { millis } = action {
        assert!(u128::from(millis) <= RETRY_AFTER_MAX.as_millis());
        assert_eq!(exchange.step(Heard::Waited, NOW), Action::Send);
        action = exchange.step(Heard::Responded(response), NOW);
    }
    match action {
        Action::Done(Ok(answer)) => {
            assert!(!format!("{answer:?}").contains(KEY), "{answer:?}");
            assert_answer_is_usable(&answer, &names);
            true
        }
        Action::Done(Err(failure)) => {
            let sentence = failure.to_string();
            assert!(!sentence.contains(KEY), "{sentence}");
            assert_one_line(&sentence);
            if let ModelFailure::Rejected { reason, .. } | ModelFailure::Malformed { reason } = &failure {
                assert!(reason.chars().count() <= REASON_CHARS + "...".len(), "{reason}");
            }
            // Anything but bytes that are no answer at all.
            !matches!(failure, ModelFailure::Malformed { .. })
        }
        other => panic!("a call went on after its second response: {other:?}"),
    }
}

fn assert_answer_is_usable(answer: &ModelAnswer, names: &ToolNames) {
    assert!(answer.text.is_some() || !answer.calls.is_empty());
    assert!(answer.calls.len() <= TOOL_CALLS_PER_ANSWER);
    let mut view = SessionView::new(SessionId::from_bits(1));
    let message = MessageId::from_bits(1);
    let invocations = (1u128..).map(InvocationId::from_bits);
    for body in [
        EventBody::SessionOpened { agent: "a".parse().expect("it is a name"), tool_manifest: Digest::ZERO },
        EventBody::UserMsg { message, text: "hello".into() },
        EventBody::ModelOutput {
            call: ModelCallId::from_bits(7),
            message,
            text: answer.text.clone(),
            calls: invocations.zip(answer.calls.iter().cloned()).collect(),
            usage: answer.usage,
            model: answer.model.clone(),
        },
    ] {
        let (event, text) = Event::append(view.session, view.head, NOW, Lane::Edge, body)
            .expect("an answer within its bounds is an event within its own");
        view.apply(&event).expect("the log takes an answer to its first message");
        assert_eq!(Event::from_canonical(&text, event.hash).ok().as_ref(), Some(&event));
    }
    let results = answer
        .calls
        .iter()
        .map(|call| Turn::ToolResult { provider_id: call.provider_id.clone(), content: "{}".into() });
    let turns = view.transcript.iter().map(|turn| Turn::clone(turn)).chain(results).collect();
    let config = ModelConfig {
        name: "m".into(),
        model: "m".into(),
        endpoint: "http://127.0.0.1:1/v1".into(),
        temperature: None,
        reasoning_effort: None,
        secret: None,
        timeout_ms: 1000,
        rate_limit_retry_ms: 1000,
        extra: Json::default(),
    };
    let request = body(&config, &ModelRequest { turns, tools: Vec::new().into() }, names);
    let request: Value = serde_json::from_slice(&request).expect("a request is JSON");
    let messages = request["messages"].as_array().expect("a request has messages");
    let mut ids: Vec<&str> = Vec::new();
    for call in messages.iter().filter_map(|message| message["tool_calls"].as_array()).flatten() {
        ids.push(call["id"].as_str().expect("each call has an id"));
        let arguments = call["function"]["arguments"].as_str().expect("arguments are a text");
        let arguments: Value = serde_json::from_str(arguments).expect("of JSON");
        assert!(arguments.is_object(), "a provider would refuse the transcript: {arguments}");
        let name = call["function"]["name"].as_str().expect("each call has a name");
        assert!((1..=64).contains(&name.len()), "{name}");
    }
    let answered: Vec<&str> =
        messages.iter().filter_map(|message| message["tool_call_id"].as_str()).collect();
    assert_eq!(ids, answered);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), answered.len(), "two calls share an id");
}
