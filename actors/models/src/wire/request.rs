//! The request's body.

use serde::Serialize;
use serde_json::{Map, Value};

use choir_messages::model::{ModelConfig, ModelRequest, Turn};
use choir_messages::tool::{ToolCall, ToolView};

use super::names::ToolNames;

/// Fields of a request template that never reach the wire: what the log says is what the model sees, one answer is
/// read, and it is read whole.
const NOT_FROM_THE_TEMPLATE: [&str; 8] =
    ["model", "messages", "tools", "functions", "function_call", "stream", "stream_options", "n"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: String,
    arguments: std::borrow::Cow<'a, str>,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Declaration<'a>,
}

#[derive(Serialize)]
struct Declaration<'a> {
    name: String,
    description: &'a str,
    parameters: &'a Value,
}

/// The JSON text of one request. Temperature and reasoning effort are left out when the configuration has none; the
/// template's fields are added beside them and override nothing.
#[must_use]
pub fn body(config: &ModelConfig, request: &ModelRequest, names: &ToolNames) -> Vec<u8> {
    let temperature = config.temperature.filter(|t| t.is_finite());
    let reasoning_effort = config.reasoning_effort.as_deref();
    let mut extra = config.extra.value().as_object().cloned().unwrap_or_default();
    extra.retain(|field, _| match field.as_str() {
        "temperature" => temperature.is_none(),
        "reasoning_effort" => reasoning_effort.is_none(),
        field => !NOT_FROM_THE_TEMPLATE.contains(&field),
    });
    let body = Body {
        model: &config.model,
        messages: request.turns.iter().map(|turn| message(turn, names)).collect(),
        tools: request.tools.iter().map(|view| tool(view, names)).collect(),
        stream: false,
        temperature,
        reasoning_effort,
        extra,
    };
    serde_json::to_vec(&body).expect("strings, finite numbers and JSON values always serialise")
}

fn message<'a>(turn: &'a Turn, names: &ToolNames) -> Message<'a> {
    match turn {
        Turn::System(content) => Message::System { content },
        Turn::User(content) => Message::User { content },
        Turn::Assistant { text, calls } => Message::Assistant {
            // Providers accept an absent text only beside calls.
            content: text.as_deref().or(if calls.is_empty() { Some("") } else { None }),
            tool_calls: calls.iter().map(|call| tool_call(call, names)).collect(),
        },
        Turn::ToolResult { provider_id, content } => Message::Tool { tool_call_id: provider_id, content },
    }
}

fn tool_call<'a>(call: &'a ToolCall, names: &ToolNames) -> Call<'a> {
    // Providers that read the arguments of earlier calls refuse the whole transcript if one is no JSON object, and
    // would then refuse every later call of the session. The model still sees what it wrote, and why it was refused.
    let arguments = if serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok() {
        std::borrow::Cow::Borrowed(call.arguments.as_str())
    } else {
        std::borrow::Cow::Owned(serde_json::json!({ "malformed_arguments": call.arguments }).to_string())
    };
    Call {
        id: &call.provider_id,
        r#type: "function",
        function: Function { name: names.wire(&call.tool), arguments },
    }
}

fn tool<'a>(view: &'a ToolView, names: &ToolNames) -> Tool<'a> {
    Tool {
        r#type: "function",
        function: Declaration {
            name: names.wire(&view.name),
            description: &view.description,
            parameters: view.input_schema.value(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use choir_messages::json::Json;
    use serde_json::json;

    fn config(extra: Value) -> ModelConfig {
        ModelConfig {
            name: "m".into(),
            model: "vendor/model".into(),
            endpoint: "http://127.0.0.1/v1".into(),
            temperature: None,
            reasoning_effort: None,
            secret: None,
            timeout_ms: 1000,
            rate_limit_retry_ms: 1,
            extra: Json(extra),
        }
    }

    fn built(config: &ModelConfig, request: &ModelRequest) -> Value {
        let names = ToolNames::new(&request.tools);
        serde_json::from_slice(&body(config, request, &names)).unwrap()
    }

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { provider_id: id.into(), tool: "choir.fs.read".into(), arguments: arguments.into() }
    }

    #[test]
    fn a_request_has_the_shape_the_interface_asks_for() {
        let request = ModelRequest {
            turns: vec![
                Turn::System("be brief".into()),
                Turn::User("read it".into()),
                Turn::Assistant { text: None, calls: vec![call("c1", r#"{"path":"a"}"#)] },
                Turn::ToolResult { provider_id: "c1".into(), content: "{}".into() },
            ],
            tools: vec![ToolView {
                name: "choir.fs.read".into(),
                description: "Reads a file.".into(),
                input_schema: Json(json!({"type":"object"})),
            }]
            .into(),
        };
        assert_eq!(
            built(&config(Value::Null), &request),
            json!({
                "model": "vendor/model",
                "stream": false,
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "read it"},
                    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                        "function": {"name": "choir_fs_read", "arguments": "{\"path\":\"a\"}"}}]},
                    {"role": "tool", "tool_call_id": "c1", "content": "{}"},
                ],
                "tools": [{"type": "function", "function": {"name": "choir_fs_read",
                    "description": "Reads a file.", "parameters": {"type": "object"}}}],
            })
        );
    }

    #[test]
    fn a_template_adds_fields_but_overrides_none() {
        let request = ModelRequest { turns: vec![Turn::User("hi".into())], tools: Vec::new().into() };
        let mut config = config(json!({
            "model": "other", "messages": [], "tools": [1], "stream": true, "n": 4,
            "temperature": 2, "max_tokens": 100, "provider": {"order": ["x"]}
        }));
        config.temperature = Some(0.5);
        let body = built(&config, &request);
        assert_eq!(
            body,
            json!({
                "model": "vendor/model", "messages": [{"role": "user", "content": "hi"}], "stream": false,
                "temperature": 0.5, "max_tokens": 100, "provider": {"order": ["x"]},
            })
        );
        config.temperature = None;
        assert_eq!(built(&config, &request)["temperature"], 2);
    }

    #[test]
    fn an_earlier_call_with_malformed_arguments_does_not_make_the_transcript_unacceptable() {
        let calls = ["{\"path\":", "[1]", "", "\"x\""].map(|arguments| call("c", arguments));
        let request = ModelRequest {
            turns: vec![Turn::Assistant { text: None, calls: calls.to_vec() }],
            tools: Vec::new().into(),
        };
        let body = built(&config(Value::Null), &request);
        for (at, written) in calls.iter().enumerate() {
            let sent = body["messages"][0]["tool_calls"][at]["function"]["arguments"].as_str().unwrap();
            let sent: Value = serde_json::from_str(sent).unwrap();
            assert_eq!(sent["malformed_arguments"], written.arguments);
        }
    }
}
