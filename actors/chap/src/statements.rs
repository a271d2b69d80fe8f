//! `audit.submit_to_scitt` where the Coordinator keeps no log of its own: statements about entries, unsigned, for the
//! caller to have signed and registered elsewhere.

use choir_messages::chain::Digest;
use choir_messages::chap::{Entry, EntryPage, EntryQuery, ErasedRecord};
use serde_json::{Value, json};

use crate::call::Body;
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES};
use crate::ranges::Range;
use crate::read::Reading;
use crate::redaction::Redactions;
use crate::uri::COORDINATOR;

/// One page of statements.
#[derive(Debug)]
pub(crate) struct Statements {
    workspace: String,
    issuer: String,
    redactions: Redactions,
    query: Option<EntryQuery>,
    end: u64,
    next_seq: u64,
    statements: Vec<Value>,
}

impl Statements {
    pub(crate) fn new(workspace: &str, issuer: Option<&str>, range: Range, redactions: Redactions) -> Self {
        let Range { from, to } = range;
        let query =
            EntryQuery { from_seq: from, to_seq: Some(to), limit: PAGE_ENTRIES, ..EntryQuery::default() };
        Self {
            workspace: workspace.to_owned(),
            issuer: issuer.unwrap_or(COORDINATOR).to_owned(),
            redactions,
            query: (from < to).then_some(query),
            end: to,
            next_seq: to,
            statements: Vec::new(),
        }
    }

    fn about(&self, entry: &Entry) -> Value {
        let mut statement = json!({
            "protected": {
                "alg": -8,
                "iss": self.issuer,
                "kid": null,
                "cwt_claims": {"sub": self.workspace, "iat": entry.arrived.millis() / 1000},
                "content-type": "application/chap+json;version=0.3",
            },
            "payload": entry.record,
            "signature": null,
        });
        let erased = ErasedRecord::read(&entry.record);
        if erased.is_some() || self.redactions.of(entry.seq).is_some() {
            let digest = erased.map_or_else(|| Digest::of(entry.record.as_bytes()), |erased| erased.digest);
            statement["payload"] = Value::Null;
            statement["payload_digest"] = json!(format!("sha256:{digest}"));
        }
        statement
    }
}

impl Reading for Statements {
    fn wants(&self) -> Option<EntryQuery> {
        self.query.clone()
    }

    fn page(&mut self, page: EntryPage) {
        self.query = None;
        self.next_seq = page.next_seq.min(self.end);
        let mut bytes = 0;
        for entry in &page.entries {
            bytes += entry.record.len();
            if bytes > PAGE_BYTES && !self.statements.is_empty() {
                self.next_seq = entry.seq;
                break;
            }
            self.statements.push(self.about(entry));
        }
    }

    fn finish(self: Box<Self>) -> Body {
        let note = "This Coordinator keeps no transparency log: have these signed and submit them elsewhere";
        let mut result = json!({"statements": self.statements, "note": note});
        // Only a range too long for one answer is cut; go on from there.
        if self.next_seq < self.end {
            result["next_seq"] = json!(self.next_seq);
        }
        Body::Result(result)
    }
}
