//! Reads over a range of the log: its check (`audit.verify`), and its export as a portable file (`audit.export`).

use choir_messages::chap::{EntryPage, EntryQuery, ErasedRecord};
use choir_messages::time::Timestamp;
use serde_json::json;

use crate::call::Body;
use crate::evidence::{self, GENESIS};
use crate::limits::{PAGE_BYTES, PAGE_ENTRIES};
use crate::read::{Reading, Replay};
use crate::redaction::Redactions;
use crate::verify::{FORMAT, Header, Trailer};
use crate::{Refusal, codes};

/// The places from the first on, up to before the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

fn query(from_seq: u64, to_seq: u64) -> Option<EntryQuery> {
    (from_seq < to_seq).then(|| EntryQuery {
        from_seq,
        to_seq: Some(to_seq),
        limit: PAGE_ENTRIES,
        ..EntryQuery::default()
    })
}

/// `audit.verify`: the links of a range. Its first link is taken as it is stored, unless the chain begins there; its last
/// one is compared with the entry after it, or with the stored head.
#[derive(Debug)]
pub(crate) struct VerifyRange {
    range: Range,
    /// The first chained entry of the range.
    begin: u64,
    /// Entries on the whole log.
    end: u64,
    head: String,
    begins_the_chain: bool,
    replay: Replay,
}

impl VerifyRange {
    /// A check of a range within the log's first `end` entries, chained from `chained_from` on.
    pub(crate) fn new(range: Range, chained_from: u64, end: u64, head: Option<String>) -> Self {
        let begin = range.from.max(chained_from).min(range.to);
        let begins_the_chain = begin == chained_from;
        let replay = Replay::from(begin, begins_the_chain);
        Self { range, begin, end, head: head.unwrap_or_else(|| GENESIS.to_owned()), begins_the_chain, replay }
    }

    /// Up to where pages are wanted: one entry further than the range, for the last link.
    fn last(&self) -> u64 {
        if self.begin < self.range.to { self.range.to.saturating_add(1).min(self.end) } else { self.range.to }
    }
}

impl Reading for VerifyRange {
    fn wants(&self) -> Option<EntryQuery> {
        query(self.replay.next, self.last())
    }

    fn page(&mut self, page: EntryPage) {
        let before = self.replay.next;
        for entry in &page.entries {
            if entry.seq >= self.range.to {
                self.replay.closing(entry);
                self.replay.next = self.last();
            } else {
                self.replay.entry(entry);
            }
        }
        if self.replay.next == before {
            self.replay.fault(format!("seq {before}: malformed entry"));
            self.replay.next = self.last();
        }
    }

    fn finish(mut self: Box<Self>) -> Body {
        let Range { from, to } = self.range;
        let checked = to - self.begin;
        if checked > 0 && to == self.end && !self.replay.resync && self.replay.running != self.head {
            self.replay.fault("chain_head mismatch: replay does not match stored head".to_owned());
        }
        if !self.replay.errors.is_empty() {
            return Body::Refused(Refusal::new(codes::PARAMS, self.replay.errors.join("; ")));
        }
        let unchecked = self.begin - from;
        let mut result = json!({
            "status": "verified",
            "ok": true,
            "range": {"from_seq": from, "to_seq": to},
            "entries_total": to - from,
            "entries_checked": checked,
            "entries_unchecked": unchecked,
            "checked_from_seq": (checked > 0).then_some(self.begin),
            "head": (checked > 0).then_some(&self.replay.running),
            "first_link": if self.begins_the_chain { "zeros" } else { "as stored" },
            "last_link": if to == self.end { "the stored head" } else { "the next entry" },
            "checked": ["chain"],
            "not_checked": ["signatures", "receipts"],
        });
        if self.replay.erased > 0 {
            result["entries_redacted"] = json!(self.replay.erased);
        }
        let why_not = match (checked, unchecked) {
            (_, 1..) => Some("unchained_prefix"),
            (0, 0) => Some("empty_range"),
            _ => None,
        };
        if let Some(why) = why_not {
            result["status"] = json!("not_evaluated");
            result["ok"] = json!(false);
            result["reason"] = json!(why);
        }
        Body::Result(result)
    }
}

/// `audit.export`: a page of the log in the format of [`crate::verify`]. Header, entries and trailer, one a line, are a
/// file that stands by itself; to join pages keep the first header and the last trailer, with the counts added up.
#[derive(Debug)]
pub(crate) struct Export {
    header: Header,
    query: Option<EntryQuery>,
    range: Range,
    redactions: Redactions,
    head: Option<String>,
    entries: String,
    count: u64,
    next_seq: u64,
}

/// What the header of an export says.
pub(crate) struct About<'a> {
    pub(crate) workspace: &'a str,
    pub(crate) now: Timestamp,
    pub(crate) signatures_required: bool,
    /// The chain's head, for an export that has no entry to say it.
    pub(crate) head: Option<String>,
}

impl Export {
    pub(crate) fn new(range: Range, redactions: Redactions, about: About<'_>) -> Self {
        let header = Header {
            format: FORMAT.to_owned(),
            workspace: about.workspace.to_owned(),
            exported_at: about.now.to_string(),
            first_seq: range.from,
            signatures_required: about.signatures_required,
        };
        Self {
            header,
            query: query(range.from, range.to),
            range,
            redactions,
            head: about.head,
            entries: String::new(),
            count: 0,
            next_seq: range.to,
        }
    }
}

impl Reading for Export {
    fn wants(&self) -> Option<EntryQuery> {
        self.query.clone()
    }

    fn page(&mut self, page: EntryPage) {
        self.query = None;
        self.next_seq = page.next_seq.min(self.range.to);
        for entry in &page.entries {
            if self.entries.len() + entry.record.len() > PAGE_BYTES && !self.entries.is_empty() {
                self.next_seq = entry.seq;
                break;
            }
            if !self.entries.is_empty() {
                self.entries.push(',');
            }
            self.entries.push_str(&self.redactions.wire(entry));
            // The link over an erased record is known to the next entry alone.
            let previous = entry.prev_hash.as_ref().filter(|_| ErasedRecord::read(&entry.record).is_none());
            self.head = previous.map(|previous| evidence::link(&entry.record, previous));
            self.count += 1;
        }
    }

    fn finish(self: Box<Self>) -> Body {
        let trailer = Trailer { entries: self.count, head: self.head };
        let done = self.next_seq >= self.range.to;
        Body::Text(format!(
            r#"{{"format":"{FORMAT}","header":{},"entries":[{}],"trailer":{},"next_seq":{},"done":{done}}}"#,
            json!(self.header),
            self.entries,
            json!(trailer),
            self.next_seq,
        ))
    }
}
