//! Counts what was lost, what came twice, and whether the log holds, from evidence collected outside the parts under
//! test. Pure: it reads no clock, file or table.

use std::collections::{BTreeMap, BTreeSet};

use choir_messages::chain::Digest;
use choir_messages::event::{Event, EventBody, Head};
use choir_messages::id::{InvocationId, MessageId, OutboundId, SessionId};
use choir_messages::session::SessionView;
use choir_messages::tool::ToolStatus;

use super::conversation::{Effect, LOG};

/// A message the demo sent.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) message: MessageId,
    pub(super) tag: &'static str,
    pub(super) text: String,
    /// It was sent again under its id and taken for a new one.
    pub(super) forgotten: bool,
}

/// Something the chat received.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) outbound: OutboundId,
    pub(super) message: MessageId,
    pub(super) answer: bool,
    pub(super) text: String,
    /// It was said to be a possible repeat.
    pub(super) repeat: bool,
}

/// A row of the inbox.
#[derive(Debug, Clone)]
pub(super) struct InboxRow {
    pub(super) message: MessageId,
    pub(super) outcome: Option<String>,
}

/// A row of the outbox.
#[derive(Debug, Clone)]
pub(super) struct OutboxRow {
    pub(super) message: MessageId,
    pub(super) answer: bool,
    pub(super) text: String,
}

/// A session's log as it is stored.
#[derive(Debug, Clone)]
pub(super) struct StoredLog {
    pub(super) session: SessionId,
    /// The head the session claims.
    pub(super) head: Head,
    /// Revision, canonical text and hash of each event, in order.
    pub(super) rows: Vec<(u64, String, String)>,
}

/// What the model's endpoint saw of one message.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The message's text.
    pub(super) message: String,
    /// The different last answers it gave.
    pub(super) answers: BTreeSet<String>,
}

/// Everything collected.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub(super) sent: Vec<Sent>,
    pub(super) received: Vec<Received>,
    pub(super) inbox: Vec<InboxRow>,
    pub(super) outbox: Vec<OutboxRow>,
    /// The lines of each file that is counted.
    pub(super) files: BTreeMap<&'static str, Vec<String>>,
    /// The lines that must be there.
    pub(super) effects: Vec<Effect>,
    pub(super) logs: Vec<StoredLog>,
    /// The scripted endpoint's journal. A real model leaves none, and may choose what it runs: then the log says what
    /// must have happened.
    pub(super) asked: Option<Vec<Asked>>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// What was lost, each with every sign of it.
    pub(super) lost: BTreeMap<String, Vec<String>>,
    /// What came twice, each with every sign of it.
    pub(super) duplicated: BTreeMap<String, Vec<String>>,
    /// The first thing wrong with a log.
    pub(super) broken: Option<String>,
    /// Events that verified.
    pub(super) events: usize,
    /// Messages that were answered, by the log.
    pub(super) turns: usize,
    /// Tool calls that were committed, by the log.
    pub(super) tool_calls: usize,
}

impl Findings {
    /// Whether everything is as promised.
    pub(super) fn holds(&self) -> bool {
        self.lost.is_empty() && self.duplicated.is_empty() && self.broken.is_none()
    }

    fn lost(&mut self, what: &str, sign: impl Into<String>) {
        self.lost.entry(what.to_owned()).or_default().push(sign.into());
    }

    fn duplicated(&mut self, what: &str, sign: impl Into<String>) {
        self.duplicated.entry(what.to_owned()).or_default().push(sign.into());
    }

    /// Holds a count against how often something must be there.
    fn count(&mut self, what: &str, sign: &str, found: usize, at_least: usize, at_most: usize) {
        if found < at_least {
            self.lost(what, format!("{sign}: {found} instead of {at_least}"));
        } else if found > at_most {
            self.duplicated(what, format!("{sign}: {found} instead of {at_most}"));
        }
    }
}

/// Checks the evidence.
pub(super) fn check(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    let mut events = Vec::new();
    for log in &evidence.logs {
        if let Err(fault) = verify(log, &mut events) {
            findings.broken.get_or_insert(format!("session {}: {fault}", log.session));
        }
    }
    if events.is_empty() && !evidence.sent.is_empty() {
        findings.broken.get_or_insert("no log was found".to_owned());
    }
    findings.events = events.len();
    for sent in &evidence.sent {
        message(&mut findings, evidence, &events, sent);
    }
    effects(&mut findings, evidence, &events);
    for event in &events {
        match &event.body {
            EventBody::MessageClosed { outcome: choir_messages::event::MessageOutcome::Answered, .. } => {
                findings.turns += 1
            }
            EventBody::ToolCallCommitted { .. } => findings.tool_calls += 1,
            _ => {}
        }
    }
    findings
}

fn message(findings: &mut Findings, evidence: &Evidence, events: &[Event], sent: &Sent) {
    let what = format!("message {}", sent.tag);
    let what = what.as_str();
    let id = sent.message;
    if sent.forgotten {
        findings.lost(what, "sent again under its id, it was not recognised");
    }
    let inbox: Vec<_> = evidence.inbox.iter().filter(|row| row.message == id).collect();
    findings.count(what, "rows in the inbox", inbox.len(), 1, 1);
    for row in inbox {
        match row.outcome.as_deref() {
            None => findings.lost(what, "it has no end in the inbox"),
            // Every end is an honest one; but a scripted model has no reason for any other.
            Some(outcome) if evidence.asked.is_some() && outcome != "answered" => {
                findings.lost(what, format!("it ended as {outcome}"));
            }
            Some(_) => {}
        }
    }
    let recorded =
        events.iter().filter(|e| matches!(&e.body, EventBody::UserMsg { message, .. } if *message == id));
    findings.count(what, "times recorded in the log", recorded.count(), 1, 1);
    let closed = events
        .iter()
        .filter(|e| matches!(&e.body, EventBody::MessageClosed { message, .. } if *message == id));
    findings.count(what, "times closed in the log", closed.count(), 1, 1);

    let stored: Vec<_> = evidence.outbox.iter().filter(|row| row.message == id && row.answer).collect();
    findings.count(what, "answers in the outbox", stored.len(), 1, 1);
    let received: Vec<_> = evidence.received.iter().filter(|r| r.message == id && r.answer).collect();
    let different: BTreeSet<_> = received.iter().map(|r| r.outbound).collect();
    findings.count(what, "answers that arrived at the chat", different.len(), 1, 1);
    for outbound in different {
        let as_new = received.iter().filter(|r| r.outbound == outbound && !r.repeat).count();
        findings.count(what, "times one answer arrived as a new one", as_new, 0, 1);
    }
    let texts: BTreeSet<&str> = stored.iter().map(|row| row.text.as_str()).collect();
    for received in received {
        if !texts.contains(received.text.as_str()) {
            findings.lost(what, "what arrived at the chat is not what the outbox holds");
        }
    }
    if let Some(asked) = &evidence.asked {
        let asked: Vec<_> = asked.iter().filter(|asked| asked.message == sent.text).collect();
        let answers: BTreeSet<&str> = asked.iter().flat_map(|a| &a.answers).map(String::as_str).collect();
        if asked.is_empty() {
            findings.lost(what, "the model was never asked about it");
        }
        findings.count(what, "different last answers of the model", answers.len(), 1, 1);
        if !texts.is_subset(&answers) {
            findings.lost(what, "its answer is not the model's");
        }
    }
}

fn effects(findings: &mut Findings, evidence: &Evidence, events: &[Event]) {
    for effect in &evidence.effects {
        let lines = evidence.files.get(effect.file).map_or(&[][..], Vec::as_slice);
        let found = lines.iter().filter(|line| *line == effect.line).count();
        let (at_least, at_most) = if evidence.asked.is_some() { (1, 1) } else { by_the_log(events, effect) };
        let what = format!("effect \"{}\"", effect.line);
        findings.count(&what, &format!("lines in {}", effect.file), found, at_least, at_most);
    }
    // A real model may choose its own words, so only the scripted one is held to them.
    let log = evidence.files.get(LOG).filter(|_| evidence.asked.is_some());
    for line in log.map_or(&[][..], Vec::as_slice) {
        if !evidence.effects.iter().any(|effect| effect.file == LOG && effect.line == line) {
            findings.duplicated(
                &format!("effect \"{line}\""),
                format!("nothing in the conversation leaves it in {LOG}"),
            );
        }
    }
}

/// How often the log allows a line to be there: each call that mentions it and succeeded left it, any other that was
/// committed may have.
fn by_the_log(events: &[Event], effect: &Effect) -> (usize, usize) {
    let mut mentioning: BTreeSet<InvocationId> = BTreeSet::new();
    let (mut succeeded, mut committed) = (0, 0);
    for event in events {
        match &event.body {
            EventBody::ToolCallRequested { invocation, input, tool }
                if leaves(tool, &input.0.to_string(), effect) =>
            {
                mentioning.insert(*invocation);
            }
            EventBody::ToolCallCommitted { invocation, .. } if mentioning.contains(invocation) => {
                committed += 1
            }
            EventBody::ToolResultCommitted { invocation, outcome }
                if mentioning.contains(invocation) && outcome.status == ToolStatus::Success =>
            {
                succeeded += 1;
            }
            _ => {}
        }
    }
    // A model may also write a whole file anew, which leaves the line as it was.
    (succeeded.min(1), committed)
}

/// Whether a call, by its input, is one that may leave the line.
fn leaves(tool: &str, input: &str, effect: &Effect) -> bool {
    input.contains(effect.line) && (tool == "choir.fs.write" || (tool == "choir.exec" && input.contains('>')))
}

/// Verifies one log row by row, adding its events to `events`.
fn verify(log: &StoredLog, events: &mut Vec<Event>) -> Result<(), String> {
    let mut view = SessionView::new(log.session);
    for (rev, canonical, hash) in &log.rows {
        let hash: Digest =
            hash.parse().map_err(|_| format!("revision {rev}: the stored hash is no digest"))?;
        let event =
            Event::from_canonical(canonical, hash).map_err(|e| format!("revision {rev}: no event: {e}"))?;
        if event.rev != *rev {
            return Err(format!("revision {rev}: the content says {}", event.rev));
        }
        let text = event.check(log.session, view.head).map_err(|e| e.to_string())?;
        if text != *canonical {
            return Err(format!("revision {rev}: the stored text is not canonical"));
        }
        view.apply(&event).map_err(|e| format!("revision {rev}: {}", e.rule))?;
        events.push(event);
    }
    if view.head == log.head {
        Ok(())
    } else {
        Err(format!("the log ends at revision {}, the session says {}", view.head.rev, log.head.rev))
    }
}
