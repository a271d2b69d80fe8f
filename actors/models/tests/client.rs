//! The client against the scripted endpoint and against servers that misbehave by hand: every failure there is.

mod common;

use choir_messages::model::{ModelFailure, ModelRequest, Turn};
use choir_models::{Client, SettingsError, limits};
use choir_scripted_model::{
    Fault, FaultRule, JournalSink, Match, Outcome, Script, ScriptedModel, Step, When,
};
use common::{CANARY, Server, WITHIN, client, complete, complete_request, config, request};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

const HELLO: &str = r#"{"choices":[{"message":{"content":"hello"}}]}"#;

#[tokio::test]
async fn a_turn_with_tools_goes_through_a_strict_endpoint() {
    let script = Script::interactive().rule(
        Match::Any,
        [
            Step::calls([
                ("choir.fs.read", json!({ "path": "a" })),
                ("choir.exec", json!({ "command": "ls" })),
            ]),
            Step::text("done"),
        ],
    );
    let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
    let client = client(&model.endpoint(), model.key());
    let answer = complete(&client, "go").await.unwrap();
    let tools: Vec<_> = answer.calls.iter().map(|call| call.tool.as_str()).collect();
    assert_eq!(tools, ["choir.fs.read", "choir.exec"]);
    assert!(answer.usage.total() > 0 && answer.model == "vendor/model");

    let ModelRequest { mut turns, tools } = request("go");
    turns.push(Turn::Assistant { text: answer.text, calls: answer.calls.clone() });
    turns.extend(answer.calls.iter().map(|call| Turn::ToolResult {
        provider_id: call.provider_id.clone(),
        content: "{\"status\":\"success\"}".into(),
    }));
    let last = complete_request(&client, &ModelRequest { turns, tools }).await.unwrap();
    assert_eq!((last.text.as_deref(), last.calls.len()), (Some("done"), 0));
}

#[tokio::test]
async fn calls_the_model_got_wrong_come_back_as_written_and_do_not_spoil_the_transcript() {
    for fault in [Fault::InvalidArguments, Fault::UnknownTool] {
        let script = Script::interactive()
            .rule(Match::Any, [Step::text("done")])
            .fault(FaultRule::once(When::Always, fault.clone()));
        let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
        let client = client(&model.endpoint(), model.key());
        let answer = complete(&client, "go").await.unwrap();
        match fault {
            Fault::InvalidArguments => assert_eq!(answer.calls[0].arguments, "{\"path\": \"unfinished"),
            _ => assert_eq!(answer.calls[0].tool, "no_such_tool"),
        }
        let ModelRequest { mut turns, tools } = request("go");
        let provider_id = answer.calls[0].provider_id.clone();
        turns.push(Turn::Assistant { text: None, calls: answer.calls });
        turns.push(Turn::ToolResult { provider_id, content: "{\"status\":\"refused\"}".into() });
        let last = complete_request(&client, &ModelRequest { turns, tools }).await.unwrap();
        assert_eq!(last.text.as_deref(), Some("done"));
    }
}

#[tokio::test]
async fn every_fault_of_a_provider_is_the_failure_it_should_be() {
    let script = Script::interactive().rule(Match::Any, [Step::text("hello")]);
    let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
    let client = client(&model.endpoint(), model.key());
    let huge = limits::ANSWER_BODY_BYTES + 1;
    let faults = [
        (Fault::RateLimited { retry_after: Some("0".into()) }, "RateLimited"),
        (Fault::Status { status: 500 }, "ServerError"),
        (Fault::Status { status: 403 }, "Unauthorised"),
        (Fault::Status { status: 400 }, "Rejected"),
        (Fault::CutBody, "Unreachable"),
        (Fault::MalformedJson, "Malformed"),
        (Fault::WrongShape, "Malformed"),
        (Fault::Empty, "Malformed"),
        (Fault::HugeText { bytes: 600 * 1024 }, "TooLarge"),
        (Fault::HugeBody { bytes: huge }, "TooLarge"),
        (Fault::ContentFilter, "Filtered"),
    ];
    for (fault, expected) in faults {
        model.clear_faults();
        model.add_fault(FaultRule::always(When::Always, fault.clone()));
        let failure = complete(&client, "go").await.unwrap_err();
        let name = format!("{failure:?}");
        assert!(name.starts_with(expected), "{fault:?} became {failure:?}");
    }
    model.clear_faults();
    assert!(complete(&client, "go").await.is_ok(), "the client is as good as new");
}

#[tokio::test]
async fn a_rate_limit_is_told_once_and_the_call_tried_once_more() {
    let script = Script::interactive().rule(Match::Any, [Step::text("hello")]);
    let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
    let client = client(&model.endpoint(), model.key());
    model.add_fault(FaultRule::once(When::Always, Fault::RateLimited { retry_after: None }));
    let mut told = Vec::new();
    let call = choir_messages::id::ModelCallId::fresh();
    let answer = client.complete(call, &request("go"), |millis| told.push(millis)).await;
    assert!(answer.is_ok());
    assert_eq!((told, model.journal().requests()), (vec![1], 2));

    model.add_fault(FaultRule::always(When::Always, Fault::RateLimited { retry_after: Some("0".into()) }));
    assert_eq!(complete(&client, "go").await, Err(ModelFailure::RateLimited { waited_ms: 0 }));
    assert_eq!(model.journal().requests(), 4);
}

#[tokio::test]
async fn nothing_but_a_429_is_tried_again() {
    let model = ScriptedModel::start(Script::interactive(), JournalSink::Memory).await.unwrap();
    let client = client(&model.endpoint(), model.key());
    for (count, fault) in
        [Fault::Status { status: 503 }, Fault::CutBody, Fault::MalformedJson].into_iter().enumerate()
    {
        model.add_fault(FaultRule::once(When::Always, fault));
        assert!(complete(&client, "go").await.is_err());
        assert_eq!(model.journal().requests(), count as u64 + 1);
    }
}

#[tokio::test]
async fn a_wrong_key_is_unauthorised_and_not_repeated_back() {
    let model = ScriptedModel::start(Script::interactive(), JournalSink::Memory).await.unwrap();
    let failure = complete(&client(&model.endpoint(), CANARY), "go").await.unwrap_err();
    assert_eq!(failure, ModelFailure::Unauthorised { status: 401 });
}

#[tokio::test]
async fn a_provider_that_never_answers_runs_into_the_deadline() {
    let script = Script::interactive().fault(FaultRule::always(When::Always, Fault::NeverAnswers));
    let model = ScriptedModel::start(script, JournalSink::Memory).await.unwrap();
    let mut config = config(&model.endpoint());
    config.timeout_ms = 50;
    let client = Client::new(config, Some(choir_messages::secret::Secret::new(model.key().into()))).unwrap();
    assert_eq!(complete(&client, "go").await, Err(ModelFailure::Timeout { after_ms: 50 }));
    let gone = |entries: &[choir_scripted_model::Entry]| {
        entries.first().is_some_and(|entry| entry.outcome == Outcome::Disconnected).then_some(())
    };
    model.journal().until(WITHIN, gone).await.expect("the connection is dropped with the call");
}

#[tokio::test]
async fn an_answer_that_stops_half_way_runs_into_the_deadline() {
    let server = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await;
        std::future::pending::<()>().await;
    })
    .await;
    let mut config = config(&server.endpoint);
    config.timeout_ms = 50;
    let client = Client::new(config, None).unwrap();
    assert_eq!(complete(&client, "go").await, Err(ModelFailure::Timeout { after_ms: 50 }));
}

#[tokio::test]
async fn a_connection_that_fails_says_how() {
    let refused = client("http://127.0.0.1:1/v1", CANARY);
    let failure = complete(&refused, "go").await.unwrap_err();
    assert!(
        matches!(&failure, ModelFailure::Unreachable { reason } if reason.contains("refused")),
        "{failure}"
    );
    let closing = Server::says("").await;
    for bad in [&closing, &Server::says("not http\r\n\r\n").await, &Server::says("HTTP/1.1 200").await] {
        let failure = complete(&client(&bad.endpoint, CANARY), "go").await.unwrap_err();
        assert!(matches!(failure, ModelFailure::Unreachable { .. }), "{failure:?}");
    }
}

#[tokio::test]
async fn an_announced_length_past_the_limit_is_refused_before_the_body() {
    let server = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n").await;
        std::future::pending::<()>().await;
    })
    .await;
    let failure = complete(&client(&server.endpoint, CANARY), "go").await.unwrap_err();
    assert_eq!(failure, ModelFailure::TooLarge { limit: limits::ANSWER_BODY_BYTES as u64 });
}

#[tokio::test]
async fn a_redirect_is_not_followed_so_the_key_stays_with_its_address() {
    let thief = Server::responds(200, "", HELLO).await;
    for status in [301, 302, 303, 307, 308] {
        let headers = format!("location: {}/chat/completions\r\n", thief.endpoint);
        let server = Server::responds(status, &headers, "").await;
        let failure = complete(&client(&server.endpoint, CANARY), "go").await.unwrap_err();
        assert!(
            matches!(failure, ModelFailure::Rejected { status: found, .. } if found == status),
            "{failure:?}"
        );
    }
    assert_eq!(thief.seen(), "");
}

#[tokio::test]
async fn an_error_whose_body_never_ends_still_counts_by_its_status() {
    let server = Server::start(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 500 x\r\ncontent-length: 9\r\n\r\n{").await;
        std::future::pending::<()>().await;
    })
    .await;
    let failure = complete(&client(&server.endpoint, CANARY), "go").await.unwrap_err();
    assert_eq!(failure, ModelFailure::ServerError { status: 500 });
}

#[tokio::test]
async fn the_key_travels_in_one_header_and_is_seen_nowhere_else() {
    let echo = format!("you sent Bearer {CANARY} to /v1?key={CANARY}");
    let mut shown = String::new();
    for (status, body) in [
        (400, json!({ "error": { "message": echo } }).to_string()),
        (404, echo.clone()),
        (200, json!({ "error": { "code": 422, "message": echo } }).to_string()),
        (200, json!({ "model": echo, "choices": [{ "message": { "content": echo } }] }).to_string()),
        (200, json!({ "choices": [{ "finish_reason": CANARY, "message": {} }] }).to_string()),
        (200, echo.clone()),
    ] {
        let server = Server::responds(status, "", &body).await;
        let client = client(&format!("{}?key={CANARY}", server.endpoint), CANARY);
        let result = complete(&client, "go").await;
        shown += &format!("{client:?} {result:?} {}", client.shown());
        if let Err(failure) = result {
            shown += &failure.to_string();
        }
        let seen = server.seen();
        assert_eq!(seen.matches(&format!("Bearer {CANARY}")).count(), 1);
        let (head, sent) = seen.split_once("\r\n\r\n").unwrap();
        assert!(!sent.contains(CANARY) && !head.to_lowercase().contains("traceparent"), "{head}");
    }
    let dead = client(&format!("http://127.0.0.1:1/v1?key={CANARY}"), CANARY);
    shown += &format!("{:?}", complete(&dead, "go").await);
    assert!(!shown.contains("canary"), "{shown}");
    assert!(shown.contains("[secret]"));
}

#[test]
fn a_configuration_error_names_the_model_and_holds_no_secret() {
    for endpoint in [format!("https://me:{CANARY}@a.example/v1"), format!("http://a.example/?key={CANARY}")] {
        let error: SettingsError = Client::new(config(&endpoint), None).unwrap_err();
        assert!(error.to_string().contains("`main`"), "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
