//! How a CHAP method is described to MCP clients.

use serde_json::{Value, json};

/// One CHAP method as a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The CHAP method; the tool is called `chap.<method>`.
    pub method: String,
    /// A few words for people.
    pub title: String,
    /// What it does and when to use it, for models.
    pub description: String,
    /// JSON Schema of its params: an object.
    pub input_schema: Value,
    /// It changes nothing.
    pub read_only: bool,
    /// What it changes may not come back.
    pub destructive: bool,
    /// Doing it twice is doing it once.
    pub idempotent: bool,
}

/// Methods that take away what only another call, if any, gives back.
const DESTRUCTIVE: &[&str] = &[
    "audit.redact",
    "control.cancel",
    "control.rollback",
    "control.supersede",
    "participant.leave",
    "participant.revoke_key",
    "workspace.close",
    "workspace.evict",
];

/// Every CHAP method as a tool, from the table of `choir-chap`.
#[must_use]
pub fn chap_tools() -> Vec<ToolSpec> {
    choir_chap::methods().map(ToolSpec::of).collect()
}

impl ToolSpec {
    /// This method as a tool.
    #[must_use]
    pub fn of(method: &choir_chap::Method) -> Self {
        let title = method.name.replace(['.', '_'], " ");
        // Calls that are not recorded change nothing; a call that is can always be told apart from its repeat.
        let read_only = !method.recorded;
        Self {
            method: method.name.to_owned(),
            title: format!("CHAP {title}"),
            description: format!("{} (profile {})", method.summary, method.profile),
            input_schema: method.input_schema(),
            read_only,
            destructive: DESTRUCTIVE.contains(&method.name),
            idempotent: read_only,
        }
    }

    /// The tool as `tools/list` shows it.
    pub(super) fn listed(&self) -> Value {
        json!({
            "name": format!("chap.{}", self.method),
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": {
                "title": self.title,
                "readOnlyHint": self.read_only,
                "destructiveHint": self.destructive,
                "idempotentHint": self.idempotent,
                "openWorldHint": false,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chap_method_is_a_tool_with_a_schema_of_its_params() {
        let tools = chap_tools();
        assert!(tools.len() >= 30, "{}", tools.len());
        for tool in &tools {
            assert!(tool.method.contains('.') && !tool.description.is_empty(), "{tool:?}");
            assert_eq!(tool.input_schema["type"], "object", "{}", tool.method);
            assert!(tool.input_schema["properties"]["workspace"].is_object(), "{}", tool.method);
            assert_eq!(tool.listed()["name"], format!("chap.{}", tool.method));
        }
        let named = |name: &str| tools.iter().find(|tool| tool.method == name).unwrap();
        assert!(named("audit.read").read_only && named("audit.read").idempotent);
        assert!(!named("task.create").read_only && !named("task.create").destructive);
    }

    #[test]
    fn a_review_sent_with_strings_of_json_reaches_the_coordinator_as_what_it_is() {
        let review = chap_tools().into_iter().find(|tool| tool.method == "review.request").unwrap();
        let given = json!({"workspace": "w", "to": "[\"human:me\"]", "artefact": "{\"draft\":\"hi\"}"});
        let given = given.as_object().unwrap().clone();
        let read = super::super::coerce::arguments(&review.input_schema, given);
        assert_eq!((&read["to"], &read["artefact"]), (&json!(["human:me"]), &json!({"draft": "hi"})));
    }
}
