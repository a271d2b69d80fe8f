//! The file of an exported log: its lines, read and written one at a time.

use choir_messages::chain::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::model::Task;
use crate::params::Params;
use crate::{canonical, evidence, json as reader};

/// What the first line says the file is.
pub const FORMAT: &str = "choir-workspace-log/1";

/// Longest line read, in bytes: a call of the largest size, escaped throughout, with room to spare.
pub const LINE_BYTES: usize = 64 * 1024 * 1024;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// The workspace.
    pub workspace: String,
    /// When it was written, RFC 3339.
    pub exported_at: String,
    /// The first entry in the file; 0 for a whole log.
    pub first_seq: u64,
    /// Whether the Coordinator took signed calls only: a signature that does not hold is then a fault of the log.
    #[serde(default)]
    pub signatures_required: bool,
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trailer {
    /// Entries in the file.
    pub entries: u64,
    /// The chain's head after the last one; none for an unchained log.
    pub head: Option<String>,
}

/// What is known of a task beside the log, which never says which task a creation made. Not covered by the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// Its id.
    pub id: String,
    /// What sort of work.
    pub kind: String,
    /// `shadow`, `trial` or `production`.
    pub mode: String,
    /// Who does it.
    pub assignee: String,
    /// When it was created, RFC 3339.
    pub created_at: String,
}

impl From<&Task> for TaskFacts {
    fn from(task: &Task) -> Self {
        Self {
            id: task.id.clone(),
            kind: task.kind.clone(),
            mode: task.mode.as_str().to_owned(),
            assignee: task.assignee.clone(),
            created_at: task.created_at.to_string(),
        }
    }
}

/// The line of a header, without its line break. Entries are [`crate::entry_to_wire`].
#[must_use]
pub fn header_line(header: &Header) -> String {
    json!(header).to_string()
}

/// The line of a task's facts.
#[must_use]
pub fn task_line(task: &TaskFacts) -> String {
    json!({"task": task}).to_string()
}

/// The line of a trailer.
#[must_use]
pub fn trailer_line(trailer: &Trailer) -> String {
    json!({"trailer": trailer}).to_string()
}

/// The file is not what it should be, so that nothing more can be read of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotALog {
    /// The first line is no header.
    #[error(
        "line 1 is no header of \"{FORMAT}\"; export the log with: choirctl workspace-log export <workspace>"
    )]
    Header,
    /// A line is too long.
    #[error("line {0} is longer than {LINE_BYTES} bytes")]
    TooLong(u64),
    /// A line is neither an entry, a task nor the trailer.
    #[error("line {0} is neither an entry, a task nor the trailer")]
    Line(u64),
    /// Something follows the trailer.
    #[error("line {0} follows the trailer")]
    AfterTrailer(u64),
}

/// What one line of the file is.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// The header.
    Header(Header),
    /// An entry.
    Entry(Box<LogEntry>),
    /// Facts of a task.
    Task(TaskFacts),
    /// The trailer.
    Trailer(Trailer),
}

/// An entry as the file has it.
#[derive(Debug, Clone, PartialEq)]
pub struct LogEntry {
    /// Its place.
    pub seq: u64,
    /// When it arrived, as written.
    pub arrived: String,
    /// The code it was refused with, if it was.
    pub refused: Option<i64>,
    /// The call.
    pub call: Map<String, Value>,
    /// The head before it.
    pub prev_hash: Option<String>,
    /// Its receipt, if it has one.
    pub receipt: Option<String>,
    /// The entry that redacted it: its content is withheld, and `call` is empty.
    pub redacted_by: Option<u64>,
    /// The SHA-256 of the record that a redacted entry had, by the Coordinator's word.
    pub record_digest: Option<Digest>,
    /// It is neither an accepted call, a refused one with its outcome, nor a redacted entry.
    pub malformed: bool,
}

impl LogEntry {
    /// The canonical text that the chain's link covers; none if it has no such form.
    #[must_use]
    pub fn record(&self) -> Option<String> {
        let call = canonical::object_text(&self.call).ok()?;
        Some(match self.refused {
            Some(code) => evidence::refusal_record(&call, code),
            None => call,
        })
    }

    /// Its method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.call.get("method").and_then(Value::as_str).unwrap_or_default()
    }

    /// Its params.
    #[must_use]
    pub fn params(&self) -> Params<'_> {
        Params::of(self.call.get("params").and_then(Value::as_object))
    }

    fn read(mut line: Map<String, Value>) -> Option<Self> {
        let seq = line.get("seq")?.as_u64()?;
        let arrived = line.get("arrived")?.as_str()?.to_owned();
        let text =
            |line: &Map<String, Value>, name: &str| line.get(name).and_then(Value::as_str).map(str::to_owned);
        let (prev_hash, receipt) = (text(&line, "prev_hash"), text(&line, "receipt"));
        let outcome = line.remove("outcome");
        let (envelope, request) = (line.remove("envelope"), line.remove("request"));
        let code = outcome.as_ref().and_then(|outcome| outcome.get("code")).and_then(Value::as_i64);
        let known = code.is_some()
            && outcome.as_ref().and_then(Value::as_object).is_some_and(|outcome| {
                outcome.len() == 2 && outcome.get("status").and_then(Value::as_str) == Some("refused")
            });
        if let Some(redacted) = line.get("redacted") {
            let redacted_by = redacted.get("by_seq").and_then(Value::as_u64).filter(|by| *by > seq);
            let bare = envelope.is_none() && request.is_none() && (known || outcome.is_none());
            let malformed = !(bare && redacted_by.is_some());
            return Some(Self {
                seq,
                arrived,
                refused: code,
                call: Map::new(),
                prev_hash,
                receipt,
                redacted_by,
                record_digest: text(&line, "record_digest")
                    .and_then(|digest| digest.strip_prefix("sha256:")?.parse().ok()),
                malformed,
            });
        }
        let (call, refused, fits) = match (envelope, request, outcome) {
            (Some(Value::Object(call)), None, None) => (call, None, true),
            (None, Some(Value::Object(call)), Some(_)) => (call, code, known),
            _ => (Map::new(), None, false),
        };
        let is_call = call.get("jsonrpc").and_then(Value::as_str) == Some("2.0")
            && call.get("method").is_some_and(Value::is_string);
        let malformed = !(fits && is_call);
        Some(Self {
            seq,
            arrived,
            refused,
            call,
            prev_hash,
            receipt,
            redacted_by: None,
            record_digest: None,
            malformed,
        })
    }
}

/// A line that was read, and what the chain covers of it: the part of verifying a line that needs no other line.
#[derive(Debug)]
pub struct Prepared {
    pub(super) line: Result<Line, NotALog>,
    /// The record of an entry that has one.
    pub(super) record: Option<String>,
}

impl Prepared {
    /// Reads a line, without its line break; `number` counts from 1.
    #[must_use]
    pub fn of(text: &str, number: u64) -> Self {
        let line = read_line(text, number);
        let record = match &line {
            Ok(Line::Entry(entry)) if !entry.malformed && entry.redacted_by.is_none() => entry.record(),
            _ => None,
        };
        Self { line, record }
    }
}

/// Reads one line; `number` counts from 1.
pub fn read_line(text: &str, number: u64) -> Result<Line, NotALog> {
    if text.len() > LINE_BYTES {
        return Err(NotALog::TooLong(number));
    }
    let parsed = reader::parse(text.as_bytes()).map_err(|_| NotALog::Line(number))?;
    let Value::Object(mut line) = parsed.value else { return Err(NotALog::Line(number)) };
    if parsed.lone_surrogate || parsed.not_finite {
        return Err(NotALog::Line(number));
    }
    if line.contains_key("seq") {
        return LogEntry::read(line).map(|entry| Line::Entry(Box::new(entry))).ok_or(NotALog::Line(number));
    }
    if let Some(task) = line.remove("task") {
        return serde_json::from_value(task).map(Line::Task).map_err(|_| NotALog::Line(number));
    }
    if let Some(trailer) = line.remove("trailer") {
        return serde_json::from_value(trailer).map(Line::Trailer).map_err(|_| NotALog::Line(number));
    }
    match serde_json::from_value::<Header>(Value::Object(line)) {
        Ok(header) if header.format == FORMAT => Ok(Line::Header(header)),
        _ => Err(if number == 1 { NotALog::Header } else { NotALog::Line(number) }),
    }
}
