//! Offline verification of an exported log. The file is lines of JSON: a header, one entry a line as `audit.read` gives
//! them out, optionally facts about tasks, and a trailer with the count and the head. Nothing but the file is needed and
//! nothing of it is kept: the chain is replayed, the order of entries is checked, and signatures are checked with the keys
//! that the log itself introduces, as they were valid when each entry arrived. What cannot be checked is said, with the
//! reason.

use std::collections::BTreeMap;

use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use choir_transparency::LogKey;
use serde_json::Value;

use crate::evidence::{self, GENESIS};
use crate::model::Key;
use crate::params::Params;
use crate::{canonical, moment, signature};

mod checkpoint;
mod file;
mod outcome;

pub use file::{
    FORMAT, Header, LINE_BYTES, Line, LogEntry, NotALog, Prepared, TaskFacts, Trailer, header_line,
    read_line, task_line, trailer_line,
};
pub use outcome::{
    ChainReport, CheckpointReport, Fault, ReceiptReport, Report, SavedReport, SignatureReport, Verdict,
};

use checkpoint::Checkpoints;

/// Faults told one by one; the counts go on.
pub const FAULTS_TOLD: usize = 1_000;

/// A leaf of the transparency log that a good receipt speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its place in the log.
    pub index: u64,
    /// Its hash.
    pub hash: Digest,
}

/// Judges an entry's receipt: given the entry's place, the SHA-256 of its record's canonical text, and the receipt. Gives
/// the leaf, for whoever rebuilds the tree.
pub type ReceiptCheck<'h> = Box<dyn FnMut(u64, &Digest, &str) -> Result<Option<Leaf>, String> + 'h>;

/// A verification under way. Hand it every line, then ask for the report.
pub struct Verifier<'h> {
    receipts: Option<ReceiptCheck<'h>>,
    header: Option<Header>,
    trailer: Option<Trailer>,
    lines: u64,
    next_seq: u64,
    running: Option<String>,
    last_arrival: Option<Timestamp>,
    members: BTreeMap<String, Vec<Key>>,
    attested: std::collections::BTreeSet<String>,
    clock_went_back: u64,
    tasks: u64,
    /// Redacted entries whose redaction has not been seen yet, by the entry that is to be it.
    withheld: BTreeMap<u64, u64>,
    checkpoints: Option<Checkpoints>,
    report: Report,
}

impl<'h> Verifier<'h> {
    /// A verification; `receipts` judges receipts, which are otherwise counted and not checked.
    #[must_use]
    pub fn new(receipts: Option<ReceiptCheck<'h>>) -> Self {
        let report = Report {
            verdict: Verdict::Incomplete,
            workspace: String::new(),
            entries: 0,
            refused: 0,
            redacted: 0,
            chain: ChainReport::default(),
            signatures: SignatureReport::default(),
            receipts: ReceiptReport::default(),
            checkpoints: CheckpointReport::default(),
            faults: Vec::new(),
            fault_count: 0,
            notes: Vec::new(),
        };
        Self {
            receipts,
            header: None,
            trailer: None,
            lines: 0,
            next_seq: 0,
            running: None,
            last_arrival: None,
            members: BTreeMap::new(),
            attested: std::collections::BTreeSet::new(),
            clock_went_back: 0,
            tasks: 0,
            withheld: BTreeMap::new(),
            checkpoints: None,
            report,
        }
    }

    /// Also checks the checkpoints on the log with the Coordinator's log key and, if one is given that was saved earlier,
    /// that the file is that log, or one that grew from it.
    #[must_use]
    pub fn with_checkpoints(mut self, key: LogKey, saved: Option<String>) -> Self {
        self.checkpoints = Some(Checkpoints::new(key, saved));
        self
    }

    /// Takes the next line, without its line break.
    pub fn line(&mut self, text: &str) -> Result<(), NotALog> {
        self.prepared(Prepared::of(text, self.lines.saturating_add(1)))
    }

    /// Takes the next line, which was read already: a thread that reads can be ahead of this one.
    pub fn prepared(&mut self, line: Prepared) -> Result<(), NotALog> {
        self.lines += 1;
        if self.trailer.is_some() {
            return Err(NotALog::AfterTrailer(self.lines));
        }
        let Prepared { line, record } = line;
        match (line?, self.lines) {
            (Line::Header(header), 1) => {
                self.next_seq = header.first_seq;
                self.report.workspace.clone_from(&header.workspace);
                if let Some(Err(why)) = self.checkpoints.as_mut().map(|all| all.open(&header.workspace)) {
                    self.fault(None, why);
                }
                self.header = Some(header);
            }
            (_, 1) => return Err(NotALog::Header),
            (Line::Header(_), number) => return Err(NotALog::Line(number)),
            (Line::Entry(entry), _) => self.entry(&entry, record),
            (Line::Task(_), _) => self.tasks += 1,
            (Line::Trailer(trailer), _) => self.trailer = Some(trailer),
        }
        Ok(())
    }

    fn fault(&mut self, seq: Option<u64>, what: impl Into<String>) {
        self.report.fault_count += 1;
        if self.report.faults.len() < FAULTS_TOLD {
            self.report.faults.push(Fault { seq, what: what.into() });
        }
    }

    fn entry(&mut self, entry: &LogEntry, record: Option<String>) {
        let seq = entry.seq;
        if seq != self.next_seq {
            self.fault(Some(seq), format!("entry {} is expected here", self.next_seq));
        }
        self.next_seq = seq.saturating_add(1);
        self.report.entries += 1;
        self.report.refused += u64::from(entry.refused.is_some());
        let arrived = moment::parse(&entry.arrived);
        match arrived {
            None => self.fault(Some(seq), "its time of arrival is no RFC 3339 time"),
            Some(at) => {
                self.clock_went_back += u64::from(self.last_arrival.is_some_and(|last| at < last));
                self.last_arrival = Some(at);
            }
        }
        let redacted_by = entry.redacted_by.filter(|_| !entry.malformed);
        if let Some(by) = redacted_by {
            self.report.redacted += 1;
            if self.withheld.insert(by, seq).is_some() {
                self.fault(Some(seq), format!("entry {by} is said to redact another entry as well"));
            }
        } else if record.is_none() {
            self.fault(Some(seq), "it is neither an accepted call nor a refused one with its outcome");
        }
        self.link(entry, record.as_deref());
        if let Some(checkpoints) = &mut self.checkpoints {
            let faults = checkpoints.entry(entry, self.running.as_deref());
            faults.into_iter().for_each(|what| self.fault(Some(seq), what));
        }
        if let Some(receipt) = &entry.receipt {
            let digest = record.as_ref().map(|record| Digest::of(record.as_bytes()));
            let digest = digest.or_else(|| entry.record_digest.filter(|_| redacted_by.is_some()));
            if let Some(digest) = digest {
                self.receipt(seq, &digest, receipt);
            }
        }
        if record.is_none() {
            return;
        }
        let arrived = arrived.unwrap_or(Timestamp::from_millis(0));
        if entry.call.contains_key("sig") {
            self.signature(entry, arrived);
        }
        if entry.refused.is_none() {
            self.learn(entry, arrived);
        }
        self.redaction(entry);
    }

    /// What is withheld must be withheld by an accepted redaction of it that stands on the log itself.
    fn redaction(&mut self, entry: &LogEntry) {
        let Some(seq) = self.withheld.remove(&entry.seq) else { return };
        let names = entry.params().count("seq") == Some(seq);
        if entry.refused.is_some() || entry.method() != "audit.redact" || !names {
            self.fault(Some(seq), format!("it is withheld, and entry {} is no redaction of it", entry.seq));
        }
    }

    fn link(&mut self, entry: &LogEntry, record: Option<&str>) {
        let chained = self.report.chain.from_seq.is_some();
        let expected = match (&entry.prev_hash, &self.running) {
            (None, _) if !chained => {
                self.report.chain.unchecked += 1;
                return;
            }
            (None, running) => {
                let running = running.clone();
                self.fault(Some(entry.seq), "it has no prev_hash, and those before it do");
                running
            }
            // A chain begins at zeros, wherever in the log; a part of a log begins with what it says itself.
            (Some(stored), _) if !chained => {
                let whole = self.header.as_ref().is_none_or(|header| header.first_seq == 0);
                if whole && stored != GENESIS {
                    self.fault(Some(entry.seq), "the chain does not begin at zeros");
                }
                self.report.chain.from_seq = Some(entry.seq);
                Some(stored.clone())
            }
            (Some(stored), Some(running)) => {
                let fits = stored == running;
                let stored = stored.clone();
                if !fits {
                    self.fault(Some(entry.seq), "its prev_hash is not what the entries before it come to");
                }
                Some(stored)
            }
            // After an entry that cannot be read the next link is taken as it stands.
            (Some(stored), None) => Some(stored.clone()),
        };
        self.report.chain.checked += 1;
        self.running = match (record, expected) {
            (Some(record), Some(expected)) => Some(evidence::link(record, &expected)),
            _ => None,
        };
    }

    fn receipt(&mut self, seq: u64, record: &Digest, receipt: &str) {
        self.report.receipts.present += 1;
        let Some(check) = &mut self.receipts else { return };
        match check(seq, record, receipt) {
            Ok(leaf) => {
                self.report.receipts.good += 1;
                let fault = self.checkpoints.as_mut().zip(leaf).and_then(|(all, leaf)| all.leaf(leaf));
                fault.into_iter().for_each(|what| self.fault(Some(seq), what));
            }
            Err(why) => {
                self.report.receipts.bad += 1;
                self.fault(Some(seq), format!("its receipt does not hold: {why}"));
            }
        }
    }

    fn signature(&mut self, entry: &LogEntry, arrived: Timestamp) {
        self.report.signatures.signed += 1;
        match self.judge_signature(entry, arrived) {
            Ok(true) => self.report.signatures.good += 1,
            Ok(false) => {
                self.report.signatures.bad += 1;
                if self.header.as_ref().is_some_and(|header| header.signatures_required) {
                    self.fault(Some(entry.seq), "its signature does not hold");
                }
            }
            Err(why) => *self.report.signatures.unchecked.entry(why.to_owned()).or_default() += 1,
        }
    }

    /// Whether the signature holds; or why that cannot be said.
    fn judge_signature(&self, entry: &LogEntry, arrived: Timestamp) -> Result<bool, &'static str> {
        let Some(tag) = entry.call.get("sig").and_then(Value::as_str).and_then(signature::tag) else {
            return Ok(false);
        };
        let params = entry.params();
        let Some(from) = params.text("from") else { return Ok(false) };
        let joining = entry.method() == "participant.join";
        if joining && shows_a_token(&params) {
            return Err(
                "the log keeps the digest of a token or presentation in the place of what was signed",
            );
        }
        // Who joins signs with a key that the same call introduces.
        let own = if joining { introduced(&params, arrived) } else { Vec::new() };
        let Some(keys) = self.members.get(from).or(joining.then_some(&own)) else {
            return Err("the file does not show its sender joining");
        };
        let stated = params.text("ts").or_else(|| entry.call.get("ts").and_then(Value::as_str));
        let Some(at) = stated.map_or(Some(arrived), moment::parse) else { return Ok(false) };
        let ended = |key: &Key| {
            key.revoked_at.is_some_and(|end| arrived >= end)
                || key.valid_until.is_some_and(|end| arrived >= end)
        };
        let mut named = keys.iter().filter(|key| key.kid == tag.kid).peekable();
        if named.peek().is_none() && self.attested.contains(from) {
            return Err("its key came with a token or presentation, of which the log keeps the digest only");
        }
        let Some(key) = named.find(|key| key.covers(at) && !ended(key)) else { return Ok(false) };
        let mut unsigned = entry.call.clone();
        unsigned.remove("sig");
        let bytes = canonical::object_text(&unsigned).unwrap_or_default();
        Ok(signature::holds(&key.jwk, tag.signature, bytes.as_bytes()))
    }

    /// Follows who has which keys.
    fn learn(&mut self, entry: &LogEntry, arrived: Timestamp) {
        let params = entry.params();
        let Some(from) = params.text("from") else { return };
        match entry.method() {
            "participant.join" => {
                if shows_a_token(&params) {
                    self.attested.insert(from.to_owned());
                }
                if !self.members.contains_key(from) {
                    self.members.insert(from.to_owned(), introduced(&params, arrived));
                }
            }
            "participant.leave" => {
                self.members.remove(from);
            }
            "workspace.evict" => {
                for name in ["participant_uri", "target_uri", "uri"] {
                    if let Some(uri) = params.text(name) {
                        self.members.remove(uri);
                    }
                }
            }
            "participant.rotate_key" => {
                let Some(keys) = self.members.get_mut(from) else { return };
                if let Some(old) =
                    keys.iter_mut().find(|key| Some(key.kid.as_str()) == params.text("old_kid"))
                {
                    old.valid_until = Some(arrived);
                }
                if let Some((jwk, kid)) =
                    params.get("new_jwk").and_then(|jwk| Some((jwk, jwk.get("kid")?.as_str()?)))
                {
                    keys.push(Key::new(kid.to_owned(), jwk.clone(), arrived));
                }
            }
            "participant.revoke_key" => {
                let keys = params.text("target_uri").and_then(|uri| self.members.get_mut(uri));
                let kid = params.text("kid");
                if let Some(key) =
                    keys.and_then(|keys| keys.iter_mut().find(|key| Some(key.kid.as_str()) == kid))
                {
                    key.revoked_at = Some(arrived);
                }
            }
            _ => {}
        }
    }

    /// The report, once all lines are in.
    #[must_use]
    pub fn finish(mut self) -> Report {
        match (self.header.is_some(), self.trailer.take()) {
            (false, _) => self.fault(None, "the file has no header"),
            (true, None) => self.fault(None, "the file has no trailer: it was cut short"),
            (true, Some(trailer)) => {
                if trailer.entries != self.report.entries {
                    let told = trailer.entries;
                    self.fault(
                        None,
                        format!("the trailer tells of {told} entries, the file has {}", self.report.entries),
                    );
                }
                let came_to = self
                    .running
                    .clone()
                    .or_else(|| trailer.head.clone().filter(|_| self.report.entries == 0));
                let unreadable = self.report.chain.from_seq.is_some() && self.running.is_none();
                if trailer.head != came_to && !unreadable {
                    // An unchained log may have been given a head of zeros just before the export.
                    let fresh =
                        self.report.chain.from_seq.is_none() && trailer.head.as_deref() == Some(GENESIS);
                    if !fresh {
                        self.fault(None, "the trailer's head is not what the entries come to");
                    }
                }
            }
        }
        let first = self.header.as_ref().map_or(0, |header| header.first_seq);
        let mut unseen = None;
        if let Some(checkpoints) = self.checkpoints.take() {
            let (report, end) = checkpoints.finish(first, self.next_seq);
            self.report.checkpoints = report;
            match end {
                Err(fault) => self.fault(None, fault),
                Ok(note) => unseen = note,
            }
        }
        self.report.chain.head = self.running.take();
        self.notes();
        self.report.notes.extend(unseen);
        self.report.verdict = match (self.report.fault_count, self.report.notes.is_empty()) {
            (0, true) => Verdict::Verified,
            (0, false) => Verdict::Incomplete,
            _ => Verdict::Broken,
        };
        self.report
    }

    fn notes(&mut self) {
        let mut notes = Vec::new();
        let (chain, signatures, receipts) =
            (&self.report.chain, &self.report.signatures, &self.report.receipts);
        if let Some(first) = self.header.as_ref().map(|header| header.first_seq).filter(|first| *first > 0) {
            notes.push(format!("the file begins at entry {first}; what is before it was not looked at"));
        }
        if chain.from_seq.is_none() && self.report.entries > 0 {
            notes.push("the log is not chained: nothing shows whether an entry was altered".to_owned());
        } else if chain.unchecked > 0 {
            notes.push(format!("{} entries were written before the chain began", chain.unchecked));
        }
        if signatures.bad > 0 && self.header.as_ref().is_some_and(|header| !header.signatures_required) {
            notes.push(format!(
                "{} signatures do not hold; the Coordinator did not require signatures and stored them unchecked",
                signatures.bad
            ));
        }
        for (why, count) in &signatures.unchecked {
            notes.push(format!("{count} signatures could not be checked: {why}"));
        }
        if self.report.redacted > 0 {
            notes.push(format!(
                "redacted: {}; their hashes were taken as given: what those entries said is erased, so that the links over \
                 them cannot be computed. Their places, the links around them and their redactions were checked{}",
                self.report.redacted,
                if self.receipts.is_some() { ", and so were their receipts" } else { "" }
            ));
        }
        if !self.withheld.is_empty() {
            notes.push(format!("{} redactions lie beyond the end of the file", self.withheld.len()));
        }
        if receipts.present > 0 && self.receipts.is_none() {
            notes.push(format!("{} receipts were not checked: no log key was given", receipts.present));
        }
        if self.clock_went_back > 0 {
            notes.push(format!(
                "{} entries arrived before the one before them, by the clock",
                self.clock_went_back
            ));
        }
        self.report.notes = notes;
    }
}

fn shows_a_token(params: &Params<'_>) -> bool {
    params.get("oidc_token").is_some() || params.get("vc_presentation").is_some()
}

/// The keys a joining participant brings.
fn introduced(params: &Params<'_>, arrived: Timestamp) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let listed = params.object("jwks").and_then(|jwks| jwks.list("keys")).unwrap_or_default();
    for jwk in listed {
        if let Some(kid) = jwk.get("kid").and_then(Value::as_str).filter(|kid| !kid.is_empty())
            && keys.iter().all(|key| key.kid != kid)
        {
            keys.push(Key::new(kid.to_owned(), jwk.clone(), arrived));
        }
    }
    keys
}
