//! The Coordinator as an MCP server, without I/O: a message in, a reply or a CHAP call out. Every CHAP method is a tool
//! `chap.<method>`.
//!
//! Two eras are served at once. In the handshake era (up to 2025-11-25) a client begins with `initialize`. In the
//! stateless era (2026-07-28) each request names its version and capabilities in `_meta`, and results are typed and
//! cacheable. Nothing is kept between requests in either, so a client does not notice a restart of the Coordinator.

mod coerce;
mod envelope;
mod stdio;
mod tool;

pub use envelope::Routing;
pub use stdio::{LineEnd, serve_lines};
pub use tool::{ToolSpec, chap_tools};

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::limits::TOOLS_TTL_MS;
use envelope::{Era, Fault};

/// Versions a request may declare in `_meta`, newest first.
pub const DECLARABLE: &[&str] = &["2026-07-28"];

/// Versions reached through `initialize`, newest first.
pub const HANDSHAKE: &[&str] = &["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// Versions told by `server/discover`: the current one of each era.
const ADVERTISED: &[&str] = &["2026-07-28", "2025-11-25"];

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

const INSTRUCTIONS: &str = "A CHAP Coordinator: workspaces in which people and agents share tasks, reviews and decisions. \
     Each tool is one CHAP method; `from` is the participant you act as. Whatever changes state is durable and in the \
     workspace's log before the tool answers. When a tool says that the outcome is unknown, read the log \
     (chap.audit.read) before you repeat the call.";

/// The MCP server's rules and its list of tools.
pub struct McpServer {
    schemas: HashMap<String, Value>,
    listed: Value,
}

/// One message, as its transport has it.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    /// The JSON-RPC message.
    pub bytes: &'a [u8],
    /// What the HTTP headers say, where the transport is HTTP.
    pub routing: Option<Routing<'a>>,
    /// Whether this client can have notices pushed as log messages.
    pub notices: bool,
}

/// What follows from a message.
#[derive(Debug)]
pub enum Step {
    /// Nothing is said: it was a notification or a response.
    Silent,
    /// This is said.
    Reply(Reply),
    /// A CHAP call is to be made; [`ToolCall::finish`] makes the reply of its outcome.
    Call(ToolCall),
}

/// One JSON-RPC reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its JSON text, without line ends.
    pub body: String,
    /// The HTTP status that goes with it.
    pub status: u16,
    /// Whether it completes a handshake.
    pub opens: bool,
}

/// A CHAP call asked for by `tools/call`.
#[derive(Debug)]
pub struct ToolCall {
    /// The CHAP method.
    pub method: String,
    /// Its params.
    pub params: Value,
    id: Value,
    era: Era,
}

/// What came of a CHAP call.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Its result.
    Result(Value),
    /// Its JSON-RPC error object.
    Error(Value),
    /// It has none: one sentence why, and what to do.
    None(String),
}

impl McpServer {
    /// A server with these tools.
    #[must_use]
    pub fn new(tools: &[ToolSpec]) -> Self {
        let schemas = tools.iter().map(|tool| (tool.method.clone(), tool.input_schema.clone())).collect();
        let listed = tools.iter().map(ToolSpec::listed).collect();
        Self { schemas, listed }
    }

    /// Takes one message.
    #[must_use]
    pub fn step(&self, incoming: Incoming<'_>) -> Step {
        let Ok(message) = serde_json::from_slice::<Value>(incoming.bytes) else {
            return Fault::new(PARSE_ERROR, "Parse error: a message is one JSON value in UTF-8")
                .step(&Value::Null, 400);
        };
        let Value::Object(mut message) = message else {
            let fault =
                Fault::new(INVALID_REQUEST, "A message is a single JSON-RPC object; batches are not served");
            return fault.step(&Value::Null, 400);
        };
        let Some(Value::String(method)) = message.remove("method") else {
            // A response to us: nothing was asked, so nothing is waiting for it.
            if message.contains_key("id") && (message.contains_key("result") || message.contains_key("error"))
            {
                return Step::Silent;
            }
            return Fault::new(INVALID_REQUEST, "The message has no method").step(&Value::Null, 400);
        };
        let id = match message.remove("id") {
            None => return Step::Silent,
            Some(id @ (Value::String(_) | Value::Number(_))) => id,
            Some(_) => {
                return Fault::new(INVALID_REQUEST, "An id is a string or a number").step(&Value::Null, 400);
            }
        };
        if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Fault::new(INVALID_REQUEST, "The message is not JSON-RPC 2.0").step(&id, 400);
        }
        let params = message.remove("params").unwrap_or(Value::Null);
        let era = match envelope::era(&method, &params, incoming.routing) {
            Ok(era) => era,
            Err(fault) => return fault.step(&id, 400),
        };
        match self.serve(&method, params, era, incoming.notices) {
            Ok(Served::Result(result)) => {
                let opens = era == Era::Handshake && method == "initialize";
                Step::Reply(Reply { opens, ..era.reply(&id, result) })
            }
            Ok(Served::Call { method, params }) => Step::Call(ToolCall { method, params, id, era }),
            Err(fault) => {
                let status = era.status_of(fault.code);
                fault.step(&id, status)
            }
        }
    }

    fn serve(&self, method: &str, params: Value, era: Era, notices: bool) -> Result<Served, Fault> {
        match (era, method) {
            (Era::Handshake, "initialize") => initialize(&params, notices).map(Served::Result),
            (Era::Handshake, "ping") => Ok(Served::Result(Map::new())),
            // All notices are of one level; whoever wants fewer closes the stream.
            (Era::Handshake, "logging/setLevel") if notices => Ok(Served::Result(Map::new())),
            (Era::Stateless, "server/discover") => Ok(Served::Result(discover())),
            (_, "tools/list") => self.list(&params, era).map(Served::Result),
            (_, "tools/call") => self.call(params, era),
            _ => Err(Fault::new(METHOD_NOT_FOUND, format!("Method not found: {method}"))),
        }
    }

    fn list(&self, params: &Value, era: Era) -> Result<Map<String, Value>, Fault> {
        // All tools are on the first page, so no cursor was ever given out.
        if params.get("cursor").is_some_and(|cursor| !cursor.is_null()) {
            return Err(Fault::new(INVALID_PARAMS, "The cursor is not one of this server's"));
        }
        let mut result = Map::new();
        result.insert("tools".to_owned(), self.listed.clone());
        if era == Era::Stateless {
            cacheable(&mut result);
        }
        Ok(result)
    }

    fn call(&self, params: Value, era: Era) -> Result<Served, Fault> {
        let wrong = |message: &str| Fault::new(INVALID_PARAMS, message);
        let Value::Object(mut params) = params else { return Err(wrong("params must be an object")) };
        let Some(Value::String(name)) = params.remove("name") else {
            return Err(wrong("params.name must be a string"));
        };
        let arguments = match params.remove("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(wrong("params.arguments must be an object")),
        };
        let Some(method) = name.strip_prefix("chap.").filter(|method| !method.is_empty()) else {
            let text = format!("Unknown CHAP tool: {name}");
            return Ok(Served::Result(era.tool_result(text, true)));
        };
        // A method without a tool goes on as it is: the Coordinator knows better what it serves.
        let params = match self.schemas.get(method) {
            Some(schema) => coerce::arguments(schema, arguments),
            None => arguments,
        };
        Ok(Served::Call { method: method.to_owned(), params: Value::Object(params) })
    }
}

impl std::fmt::Debug for McpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "McpServer({} tools)", self.schemas.len())
    }
}

enum Served {
    Result(Map<String, Value>),
    Call { method: String, params: Value },
}

impl ToolCall {
    /// The reply to the tool's caller. A CHAP error is the tool's error, with its code, message and data.
    #[must_use]
    pub fn finish(self, outcome: Outcome) -> Reply {
        let (text, failed) = match outcome {
            Outcome::Result(result) => (result.to_string(), false),
            Outcome::Error(error) => {
                let mut told = Map::new();
                told.insert("chap_error".to_owned(), error.get("code").cloned().unwrap_or_default());
                told.insert("message".to_owned(), error.get("message").cloned().unwrap_or_default());
                if let Some(data) = error.get("data") {
                    told.insert("data".to_owned(), data.clone());
                }
                // Spread out, as the reference has it: people read these.
                (format!("{:#}", Value::Object(told)), true)
            }
            Outcome::None(why) => (why, true),
        };
        self.era.reply(&self.id, self.era.tool_result(text, failed))
    }
}

impl Era {
    fn tool_result(self, text: String, failed: bool) -> Map<String, Value> {
        let mut result = Map::new();
        result.insert("content".to_owned(), json!([{"type": "text", "text": text}]));
        result.insert("isError".to_owned(), failed.into());
        result
    }

    fn reply(self, id: &Value, mut result: Map<String, Value>) -> Reply {
        if self == Self::Stateless {
            result.insert("resultType".to_owned(), "complete".into());
            result.insert("_meta".to_owned(), json!({SERVER_INFO: server_info()}));
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
        Reply { body, status: 200, opens: false }
    }

    /// The HTTP status of an error of the method itself.
    const fn status_of(self, code: i64) -> u16 {
        match (self, code) {
            (Self::Handshake, _) => 200,
            (Self::Stateless, METHOD_NOT_FOUND) => 404,
            (Self::Stateless, _) => 400,
        }
    }
}

fn initialize(params: &Value, notices: bool) -> Result<Map<String, Value>, Fault> {
    let Some(wanted) = params.get("protocolVersion").and_then(Value::as_str) else {
        return Err(Fault::new(INVALID_PARAMS, "params.protocolVersion must be a string"));
    };
    // A version that is not served is answered with ours; whether that will do is for the client to say.
    let agreed = HANDSHAKE.iter().copied().find(|version| *version == wanted).unwrap_or("2025-11-25");
    let mut capabilities = json!({"tools": {"listChanged": false}});
    if notices && let Some(capabilities) = capabilities.as_object_mut() {
        capabilities.insert("logging".to_owned(), json!({}));
    }
    Ok(object([
        ("protocolVersion", agreed.into()),
        ("capabilities", capabilities),
        ("serverInfo", server_info()),
        ("instructions", INSTRUCTIONS.into()),
    ]))
}

fn discover() -> Map<String, Value> {
    let mut result = object([
        ("supportedVersions", json!(ADVERTISED)),
        ("capabilities", json!({"tools": {"listChanged": false}})),
        ("instructions", INSTRUCTIONS.into()),
    ]);
    cacheable(&mut result);
    result
}

fn cacheable(result: &mut Map<String, Value>) {
    result.insert("ttlMs".to_owned(), TOOLS_TTL_MS.into());
    result.insert("cacheScope".to_owned(), "public".into());
}

fn server_info() -> Value {
    json!({"name": "chap", "title": "Choir CHAP Coordinator", "version": env!("CARGO_PKG_VERSION")})
}

fn object<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests;
