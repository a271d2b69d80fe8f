//! Reads of the log: a plan says which page it wants, is given it, and makes the answer when it has enough. So the log
//! is never in memory, and nothing here waits.

use std::collections::BTreeMap;

use choir_messages::chap::{Entry, EntryPage, EntryQuery, ErasedRecord};
use serde_json::{Value, json};

use crate::call::{Answer, Body};
use crate::evidence::{self, GENESIS};
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES};
use crate::redaction::Redactions;
use crate::{Refusal, codes};

/// A read under way. While [`Plan::wants`] says something, load that page and hand it to [`Plan::page`]; then
/// [`Plan::finish`] is the answer.
#[derive(Debug)]
pub struct Plan {
    id: Value,
    reading: Box<dyn Reading>,
}

/// What a plan does with its pages.
pub(crate) trait Reading: std::fmt::Debug + Send {
    /// The next page it wants, if any.
    fn wants(&self) -> Option<EntryQuery>;
    /// Takes the page it asked for.
    fn page(&mut self, page: EntryPage);
    /// The answer.
    fn finish(self: Box<Self>) -> Body;
}

impl Plan {
    pub(crate) fn new(reading: impl Reading + 'static) -> Self {
        Self { id: Value::Null, reading: Box::new(reading) }
    }

    pub(crate) fn answering(mut self, id: Value) -> Self {
        self.id = id;
        self
    }

    /// The next page it wants, if any. The query ends before whatever is appended while the plan is carried out.
    #[must_use]
    pub fn wants(&self) -> Option<EntryQuery> {
        self.reading.wants()
    }

    /// Takes the page that [`Plan::wants`] asked for.
    pub fn page(&mut self, page: EntryPage) {
        self.reading.page(page);
    }

    /// The answer, once nothing more is wanted.
    #[must_use]
    pub fn finish(self) -> Answer {
        Answer { id: self.id, body: self.reading.finish() }
    }
}

/// An entry as `audit.read` gives it out, as JSON text.
#[must_use]
pub fn entry_to_wire(entry: &Entry) -> String {
    let mut out = format!(r#"{{"seq":{},"arrived":"{}""#, entry.seq, entry.arrived);
    match evidence::take_apart(&entry.record) {
        Some((request, Some(code))) => {
            out.push_str(&format!(r#","request":{request},"outcome":{{"status":"refused","code":{code}}}"#));
        }
        _ => {
            out.push_str(r#","envelope":"#);
            out.push_str(&entry.record);
        }
    }
    if let Some(previous) = &entry.prev_hash {
        out.push_str(&format!(r#","prev_hash":"{previous}""#));
    }
    out.push('}');
    out
}

/// `audit.read`: one page, matching what was asked.
#[derive(Debug)]
pub(crate) struct ReadEntries {
    query: Option<EntryQuery>,
    end: u64,
    redactions: Redactions,
    entries: String,
    next_seq: u64,
}

impl ReadEntries {
    /// A read of what matches, up to `end` at most.
    pub(crate) fn new(query: EntryQuery, end: u64, redactions: Redactions) -> Self {
        let next_seq = end;
        let empty = query.from_seq >= end;
        Self { query: (!empty).then_some(query), end, redactions, entries: String::new(), next_seq }
    }
}

impl Reading for ReadEntries {
    fn wants(&self) -> Option<EntryQuery> {
        self.query.clone()
    }

    fn page(&mut self, page: EntryPage) {
        self.query = None;
        self.next_seq = page.next_seq.min(self.end);
        for entry in &page.entries {
            if self.entries.len() + entry.record.len() > PAGE_BYTES && !self.entries.is_empty() {
                self.next_seq = entry.seq;
                break;
            }
            if !self.entries.is_empty() {
                self.entries.push(',');
            }
            self.entries.push_str(&self.redactions.wire(entry));
        }
    }

    fn finish(self: Box<Self>) -> Body {
        Body::Text(format!(r#"{{"entries":[{}],"next_seq":{}}}"#, self.entries, self.next_seq))
    }
}

/// Links replayed one after the other.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The next entry.
    pub(crate) next: u64,
    /// The head so far.
    pub(crate) running: String,
    /// The next link is taken as it is stored: what comes before it cannot be read, or is not looked at.
    pub(crate) resync: bool,
    /// What is wrong, one sentence each.
    pub(crate) errors: Vec<String>,
    /// Erased entries so far.
    pub(crate) erased: u64,
    /// Those whose redaction has not been seen yet, by the entry that is to be it.
    awaited: BTreeMap<u64, u64>,
}

/// Faults told in one answer; a log broken everywhere need not be listed whole.
const FAULTS_TOLD: usize = 1_000;

impl Replay {
    /// A replay from this entry on: from zeros where the chain begins with it, else from its own link.
    pub(crate) fn from(next: u64, begins: bool) -> Self {
        Self {
            next,
            running: GENESIS.to_owned(),
            resync: !begins,
            errors: Vec::new(),
            erased: 0,
            awaited: BTreeMap::new(),
        }
    }

    pub(crate) fn fault(&mut self, fault: String) {
        if self.errors.len() < FAULTS_TOLD {
            self.errors.push(fault);
        }
    }

    /// Checks that an entry's link is what those before it come to; gives that link.
    fn link(&mut self, entry: &Entry) -> String {
        let stored = entry.prev_hash.as_ref();
        let expected = match (stored, std::mem::take(&mut self.resync)) {
            (Some(stored), true) => stored.clone(),
            _ => std::mem::take(&mut self.running),
        };
        if stored != Some(&expected) {
            self.fault(format!("seq {}: prev_hash mismatch", entry.seq));
        }
        expected
    }

    /// Looks at the link of the entry after the last one, and at nothing else of it.
    pub(crate) fn closing(&mut self, entry: &Entry) {
        self.running = self.link(entry);
    }

    /// What is erased must be erased by an accepted redaction of it that stands on the log itself.
    fn redaction(&mut self, entry: &Entry) {
        let Some(seq) = self.awaited.remove(&entry.seq) else { return };
        let names = |record: &str| {
            let call: Option<Value> = serde_json::from_str(record).ok();
            call.is_some_and(|call| call.pointer("/params/seq").and_then(Value::as_u64) == Some(seq))
        };
        if entry.refused.is_some() || entry.method != "audit.redact" || !names(&entry.record) {
            self.fault(format!("seq {seq}: erased, and entry {} is no redaction of it", entry.seq));
        }
    }

    pub(crate) fn entry(&mut self, entry: &Entry) {
        if entry.seq != self.next {
            self.fault(format!("seq {}: malformed entry", self.next));
            self.next = entry.seq;
        }
        self.next += 1;
        // After an entry that cannot be read, the next link is taken as it is stored.
        let expected = self.link(entry);
        self.redaction(entry);
        if let Some(erased) = ErasedRecord::read(&entry.record).filter(|erased| erased.by_seq > entry.seq) {
            self.erased += 1;
            if self.awaited.insert(erased.by_seq, entry.seq).is_some() {
                self.fault(format!("seq {}: erased, and entry {} redacts another", entry.seq, erased.by_seq));
            }
            // The link over what is gone is the next entry's word.
            self.resync = true;
            return;
        }
        match evidence::take_apart(&entry.record) {
            Some((_, refused)) if refused == entry.refused => {
                self.running = evidence::link(&entry.record, &expected)
            }
            _ => {
                self.fault(format!("seq {}: malformed entry", entry.seq));
                "sha256:malformed".clone_into(&mut self.running);
                self.resync = true;
            }
        }
    }
}

/// `audit.verify_chain`: the whole chained part of the log, replayed page by page.
#[derive(Debug)]
pub(crate) struct VerifyChain {
    from: u64,
    end: u64,
    head: String,
    replay: Replay,
}

impl VerifyChain {
    /// A check of the entries from `from` (the first chained one) to before `end`, against the stored head.
    pub(crate) fn new(from: u64, end: u64, head: Option<String>) -> Self {
        let head = head.unwrap_or_else(|| GENESIS.to_owned());
        Self { from, end, head, replay: Replay::from(from, true) }
    }
}

impl Reading for VerifyChain {
    fn wants(&self) -> Option<EntryQuery> {
        (self.replay.next < self.end).then(|| EntryQuery {
            from_seq: self.replay.next,
            to_seq: Some(self.end),
            limit: PAGE_ENTRIES,
            ..EntryQuery::default()
        })
    }

    fn page(&mut self, page: EntryPage) {
        page.entries.iter().for_each(|entry| self.replay.entry(entry));
        // A page that does not go on ends the check: what is missing shows at the head.
        if page.entries.is_empty() {
            self.replay.next = self.end;
        }
    }

    fn finish(mut self: Box<Self>) -> Body {
        if !self.replay.resync && self.replay.running != self.head {
            self.replay.errors.push("chain_head mismatch: replay does not match stored head".to_owned());
        }
        if !self.replay.errors.is_empty() {
            return Body::Refused(Refusal::new(codes::PARAMS, self.replay.errors.join("; ")));
        }
        let checked = self.end - self.from;
        let mut result = json!({
            "status": "verified",
            "ok": true,
            "entries_total": self.end,
            "entries_checked": checked,
            "entries_unchecked": self.from,
            "checked_from_seq": (checked > 0).then_some(self.from),
            "chain_head": self.head,
        });
        if self.replay.erased > 0 {
            // Their links were taken from the entries after them.
            result["entries_redacted"] = json!(self.replay.erased);
        }
        if self.from > 0
            && let Some(map) = result.as_object_mut()
        {
            map.insert("status".to_owned(), json!("not_evaluated"));
            map.insert("ok".to_owned(), json!(false));
            map.insert("reason".to_owned(), json!("unchained_prefix"));
        }
        Body::Result(result)
    }
}
