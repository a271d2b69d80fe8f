//! Which era a request belongs to, and whether a stateless one is in order. The first rule that is broken decides the
//! error, in this order: the keys of `_meta`, agreement with the HTTP headers, the version.

use serde_json::{Value, json};

use super::{DECLARABLE, HANDSHAKE, INVALID_PARAMS, Reply, Step};

const HEADER_MISMATCH: i64 = -32020;
const UNSUPPORTED_VERSION: i64 = -32022;

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";

/// The rules a request is served by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Era {
    /// Up to 2025-11-25: `initialize` first, plain results.
    Handshake,
    /// 2026-07-28: each request stands alone, results are typed.
    Stateless,
}

/// What the headers of an HTTP request say of the message in it; each `None` if it is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Routing<'a> {
    /// `MCP-Protocol-Version`.
    pub version: Option<&'a str>,
    /// `Mcp-Method`.
    pub method: Option<&'a str>,
    /// `Mcp-Name`, decoded.
    pub name: Option<&'a str>,
    /// One of them is there more than once, or cannot be read.
    pub garbled: bool,
}

/// A JSON-RPC error of MCP's own.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    pub(super) code: i64,
    message: String,
    data: Option<Value>,
}

impl Fault {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn step(self, id: &Value, status: u16) -> Step {
        let mut error = json!({"code": self.code, "message": self.message});
        if let (Some(data), Some(error)) = (self.data, error.as_object_mut()) {
            error.insert("data".to_owned(), data);
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        Step::Reply(Reply { body, status, opens: false })
    }
}

/// The era of a request, once it has passed the rules of that era.
pub(super) fn era(method: &str, params: &Value, routing: Option<Routing<'_>>) -> Result<Era, Fault> {
    let meta = params.get("_meta");
    let enveloped = meta.is_some_and(|meta| meta.get(VERSION_KEY).is_some());
    let routed = routing.is_some_and(|routing| {
        routing.garbled || routing.version.is_some_and(|said| !HANDSHAKE.contains(&said))
    });
    if !enveloped && !routed {
        return Ok(Era::Handshake);
    }
    let Some(Value::Object(meta)) = meta else {
        return Err(missing(VERSION_KEY));
    };
    for key in [VERSION_KEY, CAPABILITIES_KEY] {
        if !meta.contains_key(key) {
            return Err(missing(key));
        }
    }
    let version = meta.get(VERSION_KEY).unwrap_or(&Value::Null);
    if let Some(routing) = routing {
        agree(routing, version, method, params)?;
    }
    let Some(version) = version.as_str() else {
        return Err(Fault::new(INVALID_PARAMS, format!("params._meta: {VERSION_KEY} must be a string")));
    };
    if DECLARABLE.contains(&version) {
        return Ok(Era::Stateless);
    }
    Err(Fault {
        code: UNSUPPORTED_VERSION,
        message: "Unsupported protocol version".to_owned(),
        // Only what a retry may declare; what `initialize` reaches would be refused here again.
        data: Some(json!({"supported": DECLARABLE, "requested": version})),
    })
}

fn missing(key: &str) -> Fault {
    Fault::new(INVALID_PARAMS, format!("params._meta is missing the required envelope key {key}"))
}

/// A proxy that routes by the headers and a server that acts by the body must see the same request.
fn agree(routing: Routing<'_>, version: &Value, method: &str, params: &Value) -> Result<(), Fault> {
    let differs = |header: &str, what: &str| {
        Err(Fault::new(HEADER_MISMATCH, format!("The {header} header does not match the request's {what}")))
    };
    if routing.garbled {
        return differs(
            "MCP-Protocol-Version, Mcp-Method or Mcp-Name",
            "body: it is repeated or cannot be read",
        );
    }
    if routing.version.is_none() || routing.version != version.as_str() {
        return differs("MCP-Protocol-Version", "declared version");
    }
    if routing.method != Some(method) {
        return differs("Mcp-Method", "method");
    }
    let named = if method == "tools/call" { params.get("name").filter(|name| !name.is_null()) } else { None };
    match named {
        Some(name) if routing.name.is_none() || routing.name != name.as_str() => {
            differs("Mcp-Name", "params.name")
        }
        _ => Ok(()),
    }
}
