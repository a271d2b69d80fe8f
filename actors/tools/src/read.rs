//! `choir.fs.read`: a file's lines, or a directory's entries (`choir §8.7`). What it gives always fits an output; where
//! it stops it says how to read on.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use choir_messages::json::Json;
use choir_messages::tool::{LockMode, LockSpec, Replay, SideEffect, ToolOutcome, ToolStatus, ToolView};

use crate::limits::{
    CHUNK_BYTES, FILE_TOOL_TIMEOUT, HEX_BYTES, LIST_ENTRIES, OUTPUT_BULK_BYTES, PATH_BYTES, READ_LINES,
    SNIFF_BYTES, TAIL_BYTES,
};
use crate::stop::Stop;
use crate::text::{cut, cut_start, json_len};
use crate::tool::{Call, Exposure, RuntimeView, Tool, failed, refused, stopped};
use crate::workspace::{Kind, Workspace, WsPath};

/// The tool.
#[derive(Debug)]
pub struct ReadTool {
    workspace: Arc<Workspace>,
    view: ToolView,
    runtime: RuntimeView,
}

#[derive(Debug, Deserialize)]
struct Input {
    path: String,
    head: Option<u64>,
    tail: Option<u64>,
    offset: Option<u64>,
    limit: Option<u64>,
    #[serde(default)]
    lossy: bool,
}

/// Which lines (or entries) are wanted.
#[derive(Debug, Clone, Copy)]
enum Range {
    /// From this line on (1-based), at most so many.
    From { first: u64, most: Option<u64> },
    /// The last so many.
    Last(u64),
}

impl ReadTool {
    /// The tool for this workspace.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>) -> Self {
        let lines = |description: &str| json!({ "type": "integer", "minimum": 1, "maximum": READ_LINES, "description": description });
        let view = ToolView {
            name: "choir.fs.read".to_owned(),
            description: "Read a text file of the workspace, or list a directory. Long files are given in parts: the \
                          result says where it stops and with which offset to read on. Give head, tail, or offset and \
                          limit, not several of them."
                .to_owned(),
            input_schema: Json(json!({
                "type": "object",
                "properties": {
                    "path": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES, "description": "File or directory, relative to the workspace; \".\" is the workspace itself." },
                    "head": lines("Only the first so many lines."),
                    "tail": lines("Only the last so many lines."),
                    "offset": { "type": "integer", "minimum": 1, "description": "First line to read, counted from 1." },
                    "limit": lines("At most so many lines from offset on."),
                    "lossy": { "type": "boolean", "description": "Show a file that is not UTF-8 text anyway, with U+FFFD for each byte that is not." }
                },
                "required": ["path"],
                "additionalProperties": false
            })),
        };
        let runtime = RuntimeView {
            version: "1.0",
            timeout_ms: FILE_TOOL_TIMEOUT.as_millis() as u64,
            locks: "file:<path>:S",
            side_effect: SideEffect::Read,
            idempotent: true,
            network: false,
            secret_resources: &[],
            exposure: Exposure::Both,
            prompt_mask: false,
        };
        Self { workspace, view, runtime }
    }
}

impl Tool for ReadTool {
    fn view(&self) -> &ToolView {
        &self.view
    }

    fn runtime(&self) -> &RuntimeView {
        &self.runtime
    }

    fn normalise(&self, mut input: Value) -> Result<Value, ToolOutcome> {
        let read = parse(&input)?;
        let given = [read.head.is_some(), read.tail.is_some(), read.offset.is_some() || read.limit.is_some()];
        if given.into_iter().filter(|given| *given).count() > 1 {
            return Err(refused(
                "choir.fs.read takes head, or tail, or offset and limit, not several of them",
            ));
        }
        let path = self.workspace.resolve(&read.path).map_err(refused)?;
        set_path(&mut input, "path", &path);
        Ok(input)
    }

    fn locks(&self, input: &Value) -> Vec<LockSpec> {
        vec![LockSpec { resource: path_of(input, "path").resource(), mode: LockMode::S }]
    }

    fn prepare(&self, _input: &Value, _stop: &Stop) -> Result<Replay, ToolOutcome> {
        Ok(Replay::Idempotent)
    }

    fn run(&self, call: &Call<'_>) -> ToolOutcome {
        self.read(call).unwrap_or_else(|outcome| outcome)
    }
}

impl ReadTool {
    fn read(&self, call: &Call<'_>) -> Result<ToolOutcome, ToolOutcome> {
        let input = parse(call.input)?;
        let path = WsPath::parse(&input.path, self.workspace.real_path()).map_err(refused)?;
        let range = match (input.head, input.tail) {
            (Some(n), _) => Range::From { first: 1, most: Some(n) },
            (None, Some(n)) => Range::Last(n),
            (None, None) => Range::From { first: input.offset.unwrap_or(1), most: input.limit },
        };
        if let Some((Kind::Directory, _)) = self.workspace.look(&path).map_err(failed)? {
            return self.list(&path, range);
        }
        let (mut file, stat) = self.workspace.open_file(&path).map_err(failed)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let io = |error: std::io::Error| failed(crate::workspace::PathError::from_io(&path, &error));

        let mut start = Vec::new();
        Read::by_ref(&mut file).take(SNIFF_BYTES as u64).read_to_end(&mut start).map_err(io)?;
        if start.contains(&0) && !input.lossy {
            return Ok(binary(&path, size, &start));
        }
        let part = match range {
            Range::From { first, most } => forward(&mut file, start, first, most, call.stop),
            Range::Last(n) => backward(&mut file, size, n),
        };
        let part = match part {
            Ok(part) => part,
            Err(Fault::Io(error)) => return Err(io(error)),
            Err(Fault::Stopped(why)) => return Err(stopped(why)),
        };
        Ok(part.show(&path, size, input.lossy))
    }

    fn list(&self, path: &WsPath, range: Range) -> Result<ToolOutcome, ToolOutcome> {
        let listing = self.workspace.list(path).map_err(failed)?;
        let total = listing.entries.len();
        let (skip, take) = match range {
            Range::From { first, most } => {
                (usize::try_from(first - 1).unwrap_or(usize::MAX), most.unwrap_or(u64::MAX))
            }
            Range::Last(n) => (total.saturating_sub(usize::try_from(n).unwrap_or(usize::MAX)), u64::MAX),
        };
        let take = usize::try_from(take).unwrap_or(usize::MAX).min(LIST_ENTRIES);
        let mut shown = Vec::new();
        let mut used = 0;
        for entry in listing.entries.iter().skip(skip).take(take) {
            let kind = match entry.kind {
                Kind::File => "file",
                Kind::Directory => "directory",
                Kind::Link => "link",
                Kind::Special(what) => what,
            };
            let mut item = json!({ "name": entry.name, "kind": kind });
            if !entry.exact {
                item["note"] = json!("the name is not UTF-8; use choir.exec for it");
            }
            used += json_len(&entry.name) + 96;
            if used > OUTPUT_BULK_BYTES {
                break;
            }
            shown.push(item);
        }
        let next = skip.saturating_add(shown.len());
        let mut output = json!({
            "path": path.to_string(), "kind": "directory", "entries_total": total, "entries": shown,
        });
        if listing.more {
            output["note"] =
                json!("the directory has more entries than can be listed; use choir.exec with ls");
        } else if next < total {
            output["note"] =
                json!(format!("{} more entries; read on with offset {}", total - next, next + 1));
        }
        Ok(ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 })
    }
}

enum Fault {
    Io(std::io::Error),
    Stopped(crate::stop::Stopped),
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// A part of a file.
struct Part {
    bytes: Vec<u8>,
    /// Number of the first line shown, if it is known.
    first: Option<u64>,
    /// Whether the end of the file is in it.
    to_end: bool,
    /// Whether it stops (or begins, for a tail) earlier than was asked, for lack of room.
    cut: bool,
    /// Whether lines are missing before it because the tail did not fit.
    from_end: bool,
    /// Lines passed, if the end was reached.
    lines: Option<u64>,
}

/// Reads lines from the beginning on; holds no more than one output's worth.
fn forward(
    file: &mut File,
    start: Vec<u8>,
    first: u64,
    most: Option<u64>,
    stop: &Stop,
) -> Result<Part, Fault> {
    let mut bytes = Vec::new();
    let mut line = 1u64;
    let past = first.saturating_add(most.unwrap_or(u64::MAX - first));
    let mut chunk = start;
    let mut last = None;
    loop {
        if chunk.is_empty() {
            // A last line without a line break counts, an empty rest after the last break does not.
            let lines = if last.is_none_or(|byte| byte == b'\n') { line - 1 } else { line };
            return Ok(Part {
                bytes,
                first: Some(first),
                to_end: true,
                cut: false,
                from_end: false,
                lines: Some(lines),
            });
        }
        last = chunk.last().copied();
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if line >= past {
                return Ok(Part {
                    bytes,
                    first: Some(first),
                    to_end: false,
                    cut: false,
                    from_end: false,
                    lines: None,
                });
            }
            if line >= first {
                let room = (OUTPUT_BULK_BYTES + 1).saturating_sub(bytes.len());
                bytes.extend_from_slice(piece.get(..room).unwrap_or(piece));
                if bytes.len() > OUTPUT_BULK_BYTES {
                    return Ok(Part {
                        bytes,
                        first: Some(first),
                        to_end: false,
                        cut: true,
                        from_end: false,
                        lines: None,
                    });
                }
            }
            if piece.ends_with(b"\n") {
                line += 1;
            }
        }
        stop.check().map_err(Fault::Stopped)?;
        chunk.resize(CHUNK_BYTES, 0);
        let n = loop {
            match file.read(&mut chunk) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        chunk.truncate(n);
    }
}

/// Reads the last lines; looks at no more than one output's worth from the end.
fn backward(file: &mut File, size: u64, wanted: u64) -> Result<Part, Fault> {
    let from = size.saturating_sub(TAIL_BYTES as u64);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES as u64).read_to_end(&mut bytes)?;
    // The line break that ends the file begins no line.
    let inner = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let mut found = 0u64;
    let begin = inner.iter().enumerate().rev().find_map(|(at, byte)| {
        found += u64::from(*byte == b'\n');
        (found == wanted).then_some(at + 1)
    });
    let breaks = |part: &[u8]| part.iter().filter(|byte| **byte == b'\n').count() as u64;
    let (at, cut) = match begin {
        Some(at) => (at, false),
        None if from == 0 => (0, false),
        // The first line of the window is a torn one, unless it is all there is.
        None => (inner.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1), true),
    };
    let first = (from == 0).then(|| breaks(bytes.get(..at).unwrap_or_default()) + 1);
    bytes.drain(..at);
    if cut {
        // Not in the middle of a character.
        let torn = bytes.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        bytes.drain(..torn);
    }
    Ok(Part { bytes, first, to_end: true, cut, from_end: true, lines: None })
}

impl Part {
    fn show(mut self, path: &WsPath, size: u64, lossy: bool) -> ToolOutcome {
        if self.cut && !self.from_end {
            // A character torn at the cut is no sign of a binary file.
            if let Err(error) = std::str::from_utf8(&self.bytes)
                && error.error_len().is_none()
            {
                self.bytes.truncate(error.valid_up_to());
            }
        }
        let text = match String::from_utf8(std::mem::take(&mut self.bytes)) {
            Ok(text) => text,
            Err(error) if lossy => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            Err(error) => return binary(path, size, error.as_bytes()),
        };
        let mut shown =
            if self.from_end { cut_start(&text, OUTPUT_BULK_BYTES) } else { cut(&text, OUTPUT_BULK_BYTES) };
        let short = self.cut || shown.len() < text.len();
        let mut torn = false;
        if short {
            // Whole lines, so that reading on by line number misses and repeats nothing.
            if self.from_end {
                if shown.len() < text.len() {
                    shown = shown.split_once('\n').map_or(shown, |(_, rest)| rest);
                }
            } else if let Some((whole, _)) = shown.rsplit_once('\n') {
                shown = shown.get(..=whole.len()).unwrap_or(shown);
            } else {
                torn = true;
            }
        }
        let lines = shown.lines().count() as u64;
        let mut output = json!({ "path": path.to_string(), "size": size, "content": shown });
        let next = self.first.map(|first| first + lines);
        if let Some(first) = self.first
            && !(self.from_end && short)
            && lines > 0
        {
            output["first_line"] = json!(first);
            output["last_line"] = json!(first + lines - 1);
        }
        let end = self.to_end && (self.from_end || !short);
        output["end_of_file"] = json!(end);
        let note = if self.from_end && short {
            Some("the lines before these did not fit; read them with offset and limit".to_owned())
        } else if torn {
            next.map(|next| {
                format!(
                    "line {} is too long to be shown whole; use choir.exec with cut -c or a search for the rest of \
                     it, read on with offset {next}",
                    next - 1
                )
            })
        } else if !end {
            next.map(|next| format!("the file goes on; read on with offset {next}"))
        } else if lines == 0 && self.first.is_some_and(|first| first > 1) {
            self.lines.map(|total| format!("the file has only {total} lines"))
        } else {
            None
        };
        if let Some(note) = note {
            output["note"] = json!(note);
        }
        let cut_bytes = if short { size.saturating_sub(shown.len() as u64).max(1) } else { 0 };
        ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes }
    }
}

/// The report of a file that is no text: how large it is, and a sample of its bytes.
fn binary(path: &WsPath, size: u64, start: &[u8]) -> ToolOutcome {
    let head = start.get(..HEX_BYTES).unwrap_or(start);
    let output = json!({
        "path": path.to_string(), "size": size, "binary": true, "sample_hex": hex::encode(head),
        "note": "the file is not UTF-8 text; set lossy to see it with U+FFFD in place of what is not, or look at it \
                 with choir.exec (file, xxd)",
    });
    ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 }
}

fn parse(input: &Value) -> Result<Input, ToolOutcome> {
    Input::deserialize(input).map_err(|error| refused(format!("choir.fs.read: {error}")))
}

/// Puts a resolved path into a normalised input.
pub(crate) fn set_path(input: &mut Value, field: &str, path: &WsPath) {
    if let Some(map) = input.as_object_mut() {
        map.insert(field.to_owned(), json!(path.to_string()));
    }
}

/// The path in a normalised input; the workspace itself where there is none.
pub(crate) fn path_of(input: &Value, field: &str) -> WsPath {
    let text = input.get(field).and_then(Value::as_str).unwrap_or(".");
    WsPath::parse(text, crate::workspace::MOUNT).unwrap_or(WsPath::ROOT)
}
