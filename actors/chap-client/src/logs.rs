//! A whole log, page by page, from any Coordinator that answers `audit.read`.

use serde_json::{Value, json};

use crate::client::{CallError, Client};

/// Reads the log of one workspace from a place on. Memory holds one page.
#[derive(Debug)]
pub struct LogReader {
    client: Client,
    workspace: String,
    from: Option<String>,
    next: u64,
    ended: bool,
}

/// One page of a log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogPage {
    /// Entries as the Coordinator gives them, in order of `seq`.
    pub entries: Vec<Value>,
}

impl LogReader {
    /// A reader from `seq` 0. `from` is who asks, where reading is for members only.
    #[must_use]
    pub fn new(client: Client, workspace: impl Into<String>, from: Option<String>) -> Self {
        Self { client, workspace: workspace.into(), from, next: 0, ended: false }
    }

    /// The next page, or none at the end. The end is where the log ended when it was reached.
    pub async fn page(&mut self) -> Result<Option<LogPage>, CallError> {
        if self.ended {
            return Ok(None);
        }
        let mut params = json!({ "workspace": self.workspace, "range": { "from_seq": self.next } });
        if let (Some(from), Some(fields)) = (&self.from, params.as_object_mut()) {
            fields.insert("from".into(), Value::String(from.clone()));
        }
        let mut result = self.client.call("audit.read", params).await?;
        let Some(Value::Array(entries)) = result.get_mut("entries").map(Value::take) else {
            return Err(CallError::Malformed("audit.read without entries".into()));
        };
        let last = entries.last().and_then(|entry| entry.get("seq")).and_then(Value::as_u64);
        match last {
            // Ordered and new: a server that repeats itself must not keep this reader for ever.
            Some(last) if last >= self.next => self.next = last + 1,
            Some(_) => return Err(CallError::Malformed("audit.read went backwards".into())),
            None => {
                self.ended = true;
                return Ok(None);
            }
        }
        if result.get("next_seq").and_then(Value::as_u64).is_some_and(|next| next < self.next) {
            return Err(CallError::Malformed("next_seq lies before the entries given".into()));
        }
        Ok(Some(LogPage { entries }))
    }

    /// What the workspace says of itself.
    pub async fn describe(&self) -> Result<Value, CallError> {
        let mut params = json!({ "workspace": self.workspace });
        if let (Some(from), Some(fields)) = (&self.from, params.as_object_mut()) {
            fields.insert("from".into(), Value::String(from.clone()));
        }
        self.client.call("workspace.describe", params).await
    }
}
