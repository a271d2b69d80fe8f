//! The rules of both eras, message by message.

use proptest::prelude::*;

use super::*;

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";

fn server() -> McpServer {
    McpServer::new(&[ToolSpec {
        method: "task.complete".to_owned(),
        title: "Complete a task".to_owned(),
        description: "Completes a task.".to_owned(),
        input_schema: json!({"type": "object", "properties": {"output": {}, "task_id": {"type": "string"}}}),
        read_only: false,
        destructive: false,
        idempotent: false,
    }])
}

fn step(message: &Value) -> Step {
    server().step(Incoming { bytes: message.to_string().as_bytes(), routing: None, notices: false })
}

fn reply(step: Step) -> (u16, Value) {
    match step {
        Step::Reply(Reply { body, status, .. }) => {
            assert!(!body.contains('\n'), "a reply is one line");
            (status, serde_json::from_str(&body).unwrap())
        }
        other => panic!("no reply: {other:?}"),
    }
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

fn enveloped(version: Value, mut params: Value) -> Value {
    params["_meta"] = json!({META_VERSION: version, META_CAPABILITIES: {}});
    params
}

fn modern(method: &str, params: Value) -> Value {
    request(method, enveloped("2026-07-28".into(), params))
}

fn error_of(message: &Value) -> (i64, Value) {
    let (_, reply) = reply(step(message));
    (reply["error"]["code"].as_i64().unwrap(), reply["error"].clone())
}

#[test]
fn discovery_needs_no_handshake_and_tells_both_eras() {
    let (status, reply) = reply(step(&modern("server/discover", json!({}))));
    let result = &reply["result"];
    assert_eq!(status, 200);
    assert_eq!(result["supportedVersions"], json!(["2026-07-28", "2025-11-25"]));
    assert_eq!(result["resultType"], "complete");
    assert_eq!(result["cacheScope"], "public");
    assert!(result["ttlMs"].as_u64().unwrap() > 0);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "chap");
    assert!(result["capabilities"]["tools"].is_object() && result["instructions"].is_string());
    // Of the stateless era only.
    assert_eq!(error_of(&request("server/discover", json!({}))).0, METHOD_NOT_FOUND);
}

#[test]
fn a_version_that_cannot_be_declared_is_refused_with_those_that_can() {
    for version in ["1900-01-01", "2024-11-05", "2025-11-25", "2099-01-01"] {
        let (code, error) = error_of(&request("tools/list", enveloped(version.into(), json!({}))));
        assert_eq!(code, -32022, "{version}");
        assert_eq!(error["message"], "Unsupported protocol version");
        assert_eq!(error["data"], json!({"supported": ["2026-07-28"], "requested": version}));
    }
}

#[test]
fn a_broken_envelope_outranks_its_version() {
    let lacking = request("tools/list", json!({"_meta": {META_VERSION: "1900-01-01"}}));
    let (code, error) = error_of(&lacking);
    assert_eq!(code, INVALID_PARAMS);
    assert!(error["message"].as_str().unwrap().contains("missing the required envelope key"));
    let (code, error) = error_of(&request("tools/list", enveloped(20_260_728.into(), json!({}))));
    assert_eq!(code, INVALID_PARAMS);
    assert!(error["message"].as_str().unwrap().contains("must be a string"));
}

#[test]
fn a_handshake_agrees_on_the_clients_version_or_offers_ours() {
    for (wanted, agreed) in [
        ("2025-11-25", "2025-11-25"),
        ("2024-11-05", "2024-11-05"),
        ("2026-07-28", "2025-11-25"),
        ("x", "2025-11-25"),
    ] {
        let params = json!({"protocolVersion": wanted, "capabilities": {}, "clientInfo": {}});
        let (_, reply) = reply(step(&request("initialize", params)));
        assert_eq!(reply["result"]["protocolVersion"], agreed);
        assert_eq!(reply["result"]["serverInfo"]["name"], "chap");
        assert_eq!(reply["result"].get("resultType"), None);
    }
    assert_eq!(error_of(&request("initialize", json!({}))).0, INVALID_PARAMS);
    assert_eq!(reply(step(&request("ping", Value::Null))).1["result"], json!({}));
    assert_eq!(error_of(&modern("ping", json!({}))).0, METHOD_NOT_FOUND);
    assert_eq!(error_of(&modern("initialize", json!({"protocolVersion": "2025-11-25"}))).0, METHOD_NOT_FOUND);
}

#[test]
fn logging_is_offered_only_where_notices_are_pushed() {
    let message = request("initialize", json!({"protocolVersion": "2025-11-25"})).to_string();
    let level = request("logging/setLevel", json!({"level": "info"})).to_string();
    for notices in [true, false] {
        let take = |bytes: &str| {
            reply(server().step(Incoming { bytes: bytes.as_bytes(), routing: None, notices })).1
        };
        assert_eq!(take(&message)["result"]["capabilities"].get("logging").is_some(), notices);
        assert_eq!(take(&level).get("result").is_some(), notices);
    }
}

#[test]
fn the_list_of_tools_has_the_words_of_its_era() {
    let (_, plain) = reply(step(&request("tools/list", json!({}))));
    let tool = &plain["result"]["tools"][0];
    assert_eq!(tool["name"], "chap.task.complete");
    assert_eq!(tool["annotations"]["readOnlyHint"], false);
    for word in ["resultType", "ttlMs", "cacheScope", "_meta"] {
        assert_eq!(plain["result"].get(word), None, "{word}");
    }
    let (_, typed) = reply(step(&modern("tools/list", json!({}))));
    assert_eq!(typed["result"]["resultType"], "complete");
    assert_eq!(typed["result"]["cacheScope"], "public");
    assert_eq!(typed["result"]["tools"], plain["result"]["tools"]);
    assert_eq!(error_of(&request("tools/list", json!({"cursor": "x"}))).0, INVALID_PARAMS);
}

#[test]
fn a_tools_call_becomes_a_chap_call_with_its_strings_of_json_read() {
    let arguments = json!({"task_id": "{tsk}", "output": "{\"draft\":1}", "from": "[agent:a]"});
    let Step::Call(call) =
        step(&request("tools/call", json!({"name": "chap.task.complete", "arguments": arguments})))
    else {
        panic!("no call")
    };
    assert_eq!(call.method, "task.complete");
    assert_eq!(call.params, json!({"task_id": "{tsk}", "output": {"draft": 1}, "from": "[agent:a]"}));
    let (_, done) = reply(Step::Reply(call.finish(Outcome::Result(json!({"task_id": "t"})))));
    assert_eq!(done["result"]["isError"], false);
    assert_eq!(done["result"]["content"], json!([{"type": "text", "text": "{\"task_id\":\"t\"}"}]));
    assert_eq!(done["result"].get("resultType"), None);
}

#[test]
fn a_chap_error_is_the_tools_error_with_code_message_and_data() {
    let Step::Call(call) = step(&modern("tools/call", json!({"name": "chap.no.such"}))) else {
        panic!("no call")
    };
    assert_eq!((call.method.as_str(), &call.params), ("no.such", &json!({})));
    let error = json!({"code": -32601, "message": "Unknown method: no.such", "data": {"x": 1}});
    let (_, done) = reply(Step::Reply(call.finish(Outcome::Error(error))));
    let text = done["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("\"chap_error\": -32601"), "{text}");
    let told: Value = serde_json::from_str(text).unwrap();
    assert_eq!(told, json!({"chap_error": -32601, "message": "Unknown method: no.such", "data": {"x": 1}}));
    assert_eq!(
        (&done["result"]["isError"], &done["result"]["resultType"]),
        (&json!(true), &json!("complete"))
    );
}

#[test]
fn a_name_that_is_no_tools_is_a_tools_error() {
    for name in ["not.a.tool", "chap.", "chap", ""] {
        let (_, done) = reply(step(&request("tools/call", json!({"name": name}))));
        assert_eq!(done["result"]["isError"], true);
        assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("Unknown CHAP tool"));
    }
}

#[test]
fn what_is_no_request_is_refused_or_passed_over_in_silence() {
    for silent in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}),
    ] {
        assert!(matches!(step(&silent), Step::Silent), "{silent}");
    }
    for (odd, code) in [
        (json!([]), INVALID_REQUEST),
        (json!([request("ping", json!({}))]), INVALID_REQUEST),
        (json!(1), INVALID_REQUEST),
        (json!({"id": 1}), INVALID_REQUEST),
        (json!({"jsonrpc": "2.0", "id": null, "method": "ping"}), INVALID_REQUEST),
        (json!({"jsonrpc": "2.0", "id": {}, "method": "ping"}), INVALID_REQUEST),
        (json!({"jsonrpc": "1.0", "id": 1, "method": "ping"}), INVALID_REQUEST),
        (request("tools/call", json!({})), INVALID_PARAMS),
        (request("tools/call", json!([])), INVALID_PARAMS),
        (request("tools/call", json!({"name": 1})), INVALID_PARAMS),
        (request("tools/call", json!({"name": "chap.x", "arguments": []})), INVALID_PARAMS),
        (request("prompts/list", json!({})), METHOD_NOT_FOUND),
    ] {
        assert_eq!(error_of(&odd).0, code, "{odd}");
    }
    let broken = server().step(Incoming { bytes: b"{", routing: None, notices: false });
    assert_eq!(reply(broken).1["error"]["code"], PARSE_ERROR);
}

/// The status and error code of a stateless call under these headers; code 0 for none.
fn routed(routing: Routing<'_>, message: &Value) -> (u16, i64) {
    let bytes = message.to_string();
    match server().step(Incoming { bytes: bytes.as_bytes(), routing: Some(routing), notices: false }) {
        Step::Call(_) => (200, 0),
        step => {
            let (status, reply) = reply(step);
            (status, reply["error"]["code"].as_i64().unwrap_or(0))
        }
    }
}

#[test]
fn over_http_the_headers_must_say_what_the_body_says() {
    let call = modern("tools/call", json!({"name": "chap.task.complete"}));
    let right = Routing {
        version: Some("2026-07-28"),
        method: Some("tools/call"),
        name: Some("chap.task.complete"),
        garbled: false,
    };
    assert_eq!(routed(right, &call), (200, 0));
    for wrong in [
        Routing { version: None, ..right },
        Routing { version: Some("2025-11-25"), ..right },
        Routing { method: None, ..right },
        Routing { method: Some("tools/list"), ..right },
        Routing { name: None, ..right },
        Routing { name: Some("chap.control.cancel"), ..right },
        Routing { garbled: true, ..right },
    ] {
        assert_eq!(routed(wrong, &call), (400, -32020), "{wrong:?}");
    }
    let handshake = Routing { version: Some("2025-11-25"), ..Routing::default() };
    assert_eq!(routed(handshake, &request("tools/list", json!({}))), (200, 0));
    assert_eq!(routed(Routing::default(), &request("tools/list", json!({}))), (200, 0));
    // A header of the stateless era, or of none, asks for an envelope.
    assert_eq!(routed(right, &request("tools/list", json!({}))), (400, INVALID_PARAMS));
    let unknown = Routing { method: Some("nothing"), ..right };
    assert_eq!(routed(unknown, &modern("nothing", json!({}))), (404, METHOD_NOT_FOUND));
    assert_eq!(routed(Routing::default(), &request("nothing", json!({}))), (200, METHOD_NOT_FOUND));
}

proptest! {
    #[test]
    fn no_message_makes_it_panic_and_every_request_is_answered_once(
        method in prop_oneof![Just("initialize"), Just("tools/list"), Just("tools/call"), Just("server/discover"), Just("x")],
        params in json_value(),
        id in prop_oneof![Just(json!(1)), Just(json!("a"))],
        stateless in any::<bool>(),
    ) {
        let params = if stateless && params.is_object() { enveloped("2026-07-28".into(), params) } else { params };
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        match step(&message) {
            Step::Silent => prop_assert!(false, "a request has an answer"),
            Step::Call(call) => {
                let Reply { body, .. } = call.finish(Outcome::None("later".to_owned()));
                prop_assert_eq!(&serde_json::from_str::<Value>(&body).unwrap()["id"], &id);
            }
            Step::Reply(Reply { body, .. }) => {
                prop_assert_eq!(&serde_json::from_str::<Value>(&body).unwrap()["id"], &id);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = server().step(Incoming { bytes: &bytes, routing: None, notices: true });
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z{\\[\"]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let key = prop_oneof![
            Just("name".to_owned()),
            Just("arguments".to_owned()),
            Just("_meta".to_owned()),
            Just("protocolVersion".to_owned()),
            "[a-z]{0,4}",
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}
