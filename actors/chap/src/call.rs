//! One call as received, and its answer: everything that can be decided without a workspace (the first of the checks
//! that digest §3.2 puts in order).

use base64::Engine as _;
use choir_messages::chain::Digest;
use serde_json::{Map, Value, json};

use crate::method::{self, Method};
use crate::params::Params;
use crate::{Refusal, Settings, canonical, codes, json};

/// A call that is well formed, small enough, of a known method, and has a canonical form.
#[derive(Debug, Clone)]
pub struct Call {
    method: &'static Method,
    envelope: Map<String, Value>,
    /// Canonical JSON of the envelope: what is measured, hashed and recorded.
    canonical: String,
    /// SHA-256 of the canonical form without `sig`, for a signed call.
    signed: Option<Digest>,
    /// The workspace it names, or was given by [`Call::place`].
    workspace: Option<String>,
}

/// The answer to one call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The call's id; null where it has none or none could be read.
    pub id: Value,
    /// The result or the refusal.
    pub body: Body,
}

/// What an answer carries.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A result.
    Result(Value),
    /// A result as JSON text, for long ones made of texts that are in the log already.
    Text(String),
    /// A refusal.
    Refused(Refusal),
}

impl Answer {
    /// The JSON-RPC answer as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (name, text) = match &self.body {
            Body::Result(value) => ("result", value.to_string()),
            Body::Text(text) => ("result", text.clone()),
            Body::Refused(refusal) => ("error", refusal.to_json().to_string()),
        };
        format!(r#"{{"jsonrpc":"2.0","id":{},"{name}":{text}}}"#, self.id).into_bytes()
    }

    /// The result, or the JSON-RPC error object.
    pub fn into_result(self) -> Result<Value, Value> {
        match self.body {
            Body::Result(value) => Ok(value),
            // The text is of the rules' own making, so it is JSON.
            Body::Text(text) => Ok(serde_json::from_str(&text).unwrap_or(Value::Null)),
            Body::Refused(refusal) => Err(refusal.to_json()),
        }
    }

    /// The refusal, if it is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refusal> {
        match &self.body {
            Body::Refused(refusal) => Some(refusal),
            Body::Result(_) | Body::Text(_) => None,
        }
    }

    pub(crate) const fn refused(id: Value, refusal: Refusal) -> Self {
        Self { id, body: Body::Refused(refusal) }
    }
}

/// The params of `participant.join` that may let their holder in elsewhere: the log has their digests only.
const SHOWN: [&str; 3] = ["oidc_token", "dpop_proof", "vc_presentation"];

/// What a joining participant shows and somebody outside must verify before the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Presented<'a> {
    /// An OIDC ID token.
    pub oidc_token: Option<&'a str>,
    /// A DPoP proof that the sender has the key the token is bound to.
    pub dpop_proof: Option<&'a str>,
    /// A W3C verifiable presentation.
    pub vc_presentation: Option<&'a Value>,
}

impl Call {
    /// Reads one call. A call that is refused here is recorded nowhere; its answer says why.
    pub fn parse(bytes: &[u8], settings: &Settings) -> Result<Self, Answer> {
        if bytes.len() > settings.max_body_bytes() {
            let refusal = Refusal::new(
                codes::REQUEST,
                format!("The body has more than {} bytes", settings.max_body_bytes()),
            );
            return Err(Answer::refused(Value::Null, refusal));
        }
        let parsed = json::parse(bytes).map_err(|e| {
            Answer::refused(Value::Null, Refusal::new(codes::PARSE, format!("Parse error: {e}")))
        })?;
        let fault = if parsed.lone_surrogate {
            Some("a string holds half of a surrogate pair")
        } else if parsed.not_finite {
            Some("a number is beyond every float")
        } else {
            None
        };
        Self::checked(parsed.value, parsed.too_deep, fault, settings)
    }

    /// A call from inside the system: its method and params, and an id of its own.
    pub fn of(id: &str, method: &str, params: Value, settings: &Settings) -> Result<Self, Answer> {
        let envelope = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let too_deep = json::too_deep(&envelope, 1);
        Self::checked(envelope, too_deep, None, settings)
    }

    fn checked(
        value: Value,
        too_deep: bool,
        fault: Option<&str>,
        settings: &Settings,
    ) -> Result<Self, Answer> {
        let not_a_call = || Refusal::new(codes::REQUEST, "Invalid JSON-RPC 2.0 request");
        let Value::Object(envelope) = value else {
            return Err(Answer::refused(Value::Null, not_a_call()));
        };
        let id = envelope.get("id").cloned().unwrap_or(Value::Null);
        let refuse = |refusal| Err(Answer::refused(id.clone(), refusal));
        let method = match (envelope.get("jsonrpc"), envelope.get("method")) {
            (Some(Value::String(version)), Some(Value::String(method)))
                if version == "2.0" && !method.is_empty() =>
            {
                method.as_str()
            }
            _ => return refuse(not_a_call()),
        };
        if too_deep {
            let limit = crate::limits::NESTING;
            return refuse(Refusal::new(
                codes::REQUEST,
                format!("Envelope nests deeper than {limit} levels"),
            ));
        }
        let canonical = match fault {
            Some(fault) => Err(fault.to_owned()),
            None => canonical::object_text(&envelope).map_err(|e| e.to_string()),
        };
        if let Ok(text) = &canonical
            && text.len() > settings.max_envelope_bytes
        {
            let (is, limit) = (text.len(), settings.max_envelope_bytes);
            return refuse(Refusal::new(
                codes::REQUEST,
                format!("Envelope exceeds max_envelope_bytes ({is} > {limit})"),
            ));
        }
        if !matches!(envelope.get("params"), None | Some(Value::Null | Value::Object(_))) {
            return refuse(Refusal::params("Invalid params: expected an object"));
        }
        let Some(method) = method::find(method) else {
            return refuse(Refusal::new(codes::METHOD, format!("Unknown method: {method}")));
        };
        let canonical = match canonical {
            Ok(text) => text,
            Err(why) => return refuse(Refusal::params(format!("The call has no canonical form: {why}"))),
        };
        let signed = match envelope.get("sig") {
            Some(Value::String(_)) => {
                let mut stripped = envelope.clone();
                stripped.remove("sig");
                // What has a canonical form has one without a member, too.
                canonical::object_text(&stripped).ok().map(|text| Digest::of(text.as_bytes()))
            }
            _ => None,
        };
        let mut call = Self { method, envelope, canonical, signed, workspace: None };
        call.workspace = call.params().text("workspace").filter(|id| !id.is_empty()).map(str::to_owned);
        Ok(call)
    }

    /// The workspace it belongs to: what it names, or what [`Call::place`] gave it.
    #[must_use]
    pub fn workspace(&self) -> Option<&str> {
        self.workspace.as_deref()
    }

    /// Whether it is a `workspace.create` that leaves the id to the Coordinator.
    #[must_use]
    pub fn wants_a_workspace_id(&self) -> bool {
        self.method.name == "workspace.create"
            && self.workspace.is_none()
            && matches!(self.params().get("workspace"), None | Some(Value::String(_)))
    }

    /// Gives a call of that kind its workspace: `wsp_` and a ULID.
    pub fn place(&mut self, id: String) {
        if self.wants_a_workspace_id() {
            self.workspace = Some(id);
        }
    }

    /// What has to be verified before the step, for a `participant.join` that shows something.
    #[must_use]
    pub fn presented(&self, settings: &Settings) -> Option<Presented<'_>> {
        if self.method.name != "participant.join" {
            return None;
        }
        let params = self.params();
        let presented = Presented {
            oidc_token: params.text("oidc_token").filter(|_| settings.verify_oidc),
            dpop_proof: params.text("dpop_proof").filter(|_| settings.verify_oidc),
            vc_presentation: params.get("vc_presentation").filter(|v| v.is_object() && settings.verify_vc),
        };
        (presented.oidc_token.is_some() || presented.vc_presentation.is_some()).then_some(presented)
    }

    /// The call's method.
    #[must_use]
    pub const fn method(&self) -> &'static Method {
        self.method
    }

    /// Its id, null if it has none.
    #[must_use]
    pub fn id(&self) -> Value {
        self.envelope.get("id").cloned().unwrap_or(Value::Null)
    }

    /// Who sends it, by its own word.
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        self.params().text("from")
    }

    /// Its params.
    #[must_use]
    pub fn params(&self) -> Params<'_> {
        Params::of(self.envelope.get("params").and_then(Value::as_object))
    }

    pub(crate) fn top(&self, name: &str) -> Option<&Value> {
        self.envelope.get(name)
    }

    /// The digest that names a signed call: of what its sender signed.
    pub(crate) const fn signed(&self) -> Option<&Digest> {
        self.signed.as_ref()
    }

    /// The canonical bytes its sender signed.
    pub(crate) fn signed_bytes(&self) -> Option<Vec<u8>> {
        let mut stripped = self.envelope.clone();
        stripped.remove("sig");
        canonical::object_text(&stripped).ok().map(String::into_bytes)
    }

    /// What goes on the log: the canonical envelope, with the digest of a token in the token's place.
    pub(crate) fn recorded(&self) -> String {
        let params = self.params();
        if self.method.name != "participant.join" || SHOWN.iter().all(|name| params.get(name).is_none()) {
            return self.canonical.clone();
        }
        let mut envelope = self.envelope.clone();
        if let Some(Value::Object(params)) = envelope.get_mut("params") {
            for name in SHOWN {
                if let Some(shown) = params.get_mut(name).filter(|shown| !shown.is_null()) {
                    *shown = Value::String(withheld(shown));
                }
            }
        }
        canonical::object_text(&envelope).unwrap_or_else(|_| self.canonical.clone())
    }
}

/// What stands in the log for a token or a presentation: the digest of its bytes, or of its canonical form.
#[must_use]
pub fn withheld(shown: &Value) -> String {
    let digest = match shown {
        Value::String(token) => Digest::of(token.as_bytes()),
        other => Digest::of(canonical::text(other).unwrap_or_default().as_bytes()),
    };
    format!("sha256:{digest}")
}

/// `sha256:…` over the canonical form of a value that came in a call (digest §3.4).
#[must_use]
pub fn content_hash(value: &Value) -> String {
    // Only what has a canonical form is ever stored, so there is something to hash.
    format!("sha256:{}", Digest::of(canonical::text(value).unwrap_or_default().as_bytes()))
}

/// Standard base64 with or without padding, and nothing else.
pub(crate) fn base64_standard(text: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// base64url with or without padding, and nothing else.
pub(crate) fn base64_url(text: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}
