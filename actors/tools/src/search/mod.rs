//! `choir.fs.search`: finds lines by a regular expression, with ripgrep's engine in this process (`choir §8.7`). It
//! reads only through the workspace, is bounded in results, bytes, memory and time, and says what it left out.

pub mod walk;

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use ignore::overrides::{Override, OverrideBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use choir_messages::json::Json;
use choir_messages::tool::{LockMode, LockSpec, Replay, SideEffect, ToolOutcome, ToolStatus, ToolView};

use crate::limits::{
    FILE_TOOL_TIMEOUT, GLOB_BYTES, OUTPUT_BULK_BYTES, PATH_BYTES, PATTERN_BYTES, REGEX_BYTES, REGEX_DEPTH,
    SEARCH_HEAP_BYTES, SEARCH_LINE_BYTES, SEARCH_RESULTS, SEARCH_RESULTS_DEFAULT, SEARCH_TIME,
};
use crate::read::{path_of, set_path};
use crate::stop::{Stop, Stopped};
use crate::text::{cut, json_len, quote};
use crate::tool::{Call, Exposure, RuntimeView, Tool, failed, refused, stopped};
use crate::workspace::{Kind, PathError, Workspace, WsPath};
use walk::{Left, Next, Walk, WalkError};

/// The tool.
#[derive(Debug)]
pub struct SearchTool {
    workspace: Arc<Workspace>,
    view: ToolView,
    runtime: RuntimeView,
}

#[derive(Debug, Deserialize)]
struct Input {
    pattern: String,
    #[serde(default = "here")]
    path: String,
    glob: Option<String>,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    case_insensitive: bool,
    #[serde(default)]
    all: bool,
    max_results: Option<u64>,
}

fn here() -> String {
    ".".to_owned()
}

impl Input {
    fn parse(input: &Value) -> Result<Self, ToolOutcome> {
        Self::deserialize(input).map_err(|error| refused(format!("choir.fs.search: {error}")))
    }

    fn matcher(&self) -> Result<RegexMatcher, String> {
        let mut builder = RegexMatcherBuilder::new();
        builder
            .case_insensitive(self.case_insensitive)
            .line_terminator(Some(b'\n'))
            .fixed_strings(self.literal)
            .size_limit(REGEX_BYTES)
            .dfa_size_limit(REGEX_BYTES)
            .nest_limit(REGEX_DEPTH);
        builder.build_many(&[self.pattern.as_str()]).map_err(|error| {
            let text = error.to_string();
            let what = cut(&text, 500);
            format!(
                "the pattern is not a regular expression that can be searched for: {what}; correct it, or set literal \
                 to search for the text as it is (one line at a time)"
            )
        })
    }

    fn glob(&self) -> Result<Override, String> {
        let mut builder = OverrideBuilder::new("");
        if let Some(glob) = &self.glob {
            builder.add(glob).map_err(|error| format!("glob: {}", quote(&error.to_string())))?;
        }
        builder.build().map_err(|error| format!("glob: {}", quote(&error.to_string())))
    }
}

impl SearchTool {
    /// The tool for this workspace.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>) -> Self {
        let flag = |description: &str| json!({ "type": "boolean", "description": description });
        let view = ToolView {
            name: "choir.fs.search".to_owned(),
            description: "Search the files of the workspace for lines that match a regular expression (Rust syntax, \
                          one line at a time). Hidden files and files ignored by .gitignore are left out unless all \
                          is set; binary files always are."
                .to_owned(),
            input_schema: Json(json!({
                "type": "object",
                "properties": {
                    "pattern": { "type": "string", "minLength": 1, "maxLength": PATTERN_BYTES },
                    "path": { "type": "string", "minLength": 1, "maxLength": PATH_BYTES, "description": "File or directory to search; the workspace if left out." },
                    "glob": { "type": "string", "minLength": 1, "maxLength": GLOB_BYTES, "description": "Only files that match, such as *.rs or src/**; with ! in front, only others." },
                    "literal": flag("Search for the pattern as plain text."),
                    "case_insensitive": flag("Ignore case."),
                    "all": flag("Search hidden and ignored files too."),
                    "max_results": { "type": "integer", "minimum": 1, "maximum": SEARCH_RESULTS }
                },
                "required": ["pattern"],
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

    fn search(&self, call: &Call<'_>) -> Result<ToolOutcome, ToolOutcome> {
        let input = Input::parse(call.input)?;
        let matcher = input.matcher().map_err(refused)?;
        let glob = input.glob().map_err(refused)?;
        let path = path_of(call.input, "path");
        let mut found = Found {
            matches: Vec::new(),
            most: input.max_results.unwrap_or(SEARCH_RESULTS_DEFAULT).min(SEARCH_RESULTS),
            room: OUTPUT_BULK_BYTES,
            full: None,
            files: 0,
            binary: 0,
            long_lines: 0,
            unreadable: 0,
            until: call.stop.deadline().min(Instant::now() + SEARCH_TIME),
        };
        let mut searcher = SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(SEARCH_HEAP_BYTES))
            .build();
        let mut look = |file: &WsPath| self.look(file, &matcher, &mut searcher, &mut found, call.stop);
        let left = match self.workspace.look(&path).map_err(failed)? {
            None => return Err(failed(PathError::NotFound(path.to_string()))),
            Some((Kind::Directory, _)) => {
                let walk = Walk { workspace: &self.workspace, glob: &glob, all: input.all, stop: call.stop };
                walk.run(&path, look).map_err(|error| match error {
                    WalkError::Path(error) => failed(error),
                    WalkError::Stopped(why) => stopped(why),
                })?
            }
            Some(_) => {
                self.workspace.open_file(&path).map_err(failed)?;
                look(&path).map_err(stopped)?;
                Left::default()
            }
        };
        Ok(found.report(&path, &left))
    }

    /// Searches one file. A file that cannot be read is counted, not an error: the others still count.
    fn look(
        &self,
        path: &WsPath,
        matcher: &RegexMatcher,
        searcher: &mut Searcher,
        found: &mut Found,
        stop: &Stop,
    ) -> Result<Next, Stopped> {
        let Ok((file, _)) = self.workspace.open_file(path) else {
            found.unreadable += 1;
            return Ok(Next::Go);
        };
        let reader = Watched { file, stop, until: found.until };
        let before = found.matches.len();
        let mut sink = FileSink { found, path, binary: false };
        let searched = searcher.search_reader(matcher, reader, &mut sink);
        let binary = sink.binary;
        found.files += 1;
        if binary {
            // Lines of a file that turns out to be binary are no lines.
            found.binary += 1;
            found.matches.truncate(before);
        }
        if let Err(error) = searched {
            stop.check()?;
            if Instant::now() >= found.until {
                found.full = Some("time");
            } else if error.kind() == io::ErrorKind::Other && error.raw_os_error().is_none() {
                found.long_lines += 1;
            } else {
                found.unreadable += 1;
            }
        }
        Ok(if found.full.is_some() { Next::Enough } else { Next::Go })
    }
}

/// What a search has found so far.
struct Found {
    matches: Vec<Value>,
    most: u64,
    room: usize,
    /// What ended the search before its end.
    full: Option<&'static str>,
    files: u64,
    binary: u64,
    long_lines: u64,
    unreadable: u64,
    until: Instant,
}

impl Found {
    fn report(self, path: &WsPath, left: &Left) -> ToolOutcome {
        let mut skipped = serde_json::Map::new();
        for (what, count) in [
            ("binary", self.binary),
            ("with_too_long_lines", self.long_lines),
            ("unreadable", self.unreadable + left.unreadable),
            ("special", left.special),
            ("not_utf8_names", left.not_utf8),
        ] {
            if count > 0 {
                skipped.insert(what.to_owned(), json!(count));
            }
        }
        let mut output = json!({
            "path": path.to_string(), "matches": self.matches, "files_searched": self.files,
            "complete": self.full.is_none() && !left.bounded,
        });
        if !skipped.is_empty() {
            output["files_skipped"] = Value::Object(skipped);
        }
        let note = match self.full {
            Some("results") => {
                Some("more lines match than were asked for; narrow the search or raise max_results")
            }
            Some("bytes") => {
                Some("more lines match than fit here; narrow the search by path, glob or pattern")
            }
            Some(_) => Some("the search took too long and was ended; narrow it by path or glob"),
            None if left.bounded => {
                Some("there are too many files to search them all; narrow the search by path")
            }
            None => None,
        };
        if let Some(note) = note {
            output["note"] = json!(note);
        }
        ToolOutcome { status: ToolStatus::Success, output: Json(output), cut_bytes: 0 }
    }
}

struct FileSink<'a> {
    found: &'a mut Found,
    path: &'a WsPath,
    binary: bool,
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, line: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let found = &mut *self.found;
        if found.matches.len() as u64 >= found.most {
            found.full = Some("results");
            return Ok(false);
        }
        let bytes = line.bytes();
        let text = String::from_utf8_lossy(bytes.get(..SEARCH_LINE_BYTES * 4).unwrap_or(bytes));
        let text = text.trim_end_matches(['\n', '\r']);
        let shown = cut(text, SEARCH_LINE_BYTES);
        let cost = json_len(shown) + json_len(self.path.as_str()) + 64;
        if cost > found.room {
            found.full = Some("bytes");
            return Ok(false);
        }
        found.room -= cost;
        let mut item = json!({ "path": self.path.as_str(), "line": line.line_number(), "text": shown });
        if shown.len() < text.len() {
            item["line_bytes"] = json!(bytes.len());
        }
        found.matches.push(item);
        Ok(true)
    }

    fn binary_data(&mut self, _searcher: &Searcher, _offset: u64) -> Result<bool, io::Error> {
        self.binary = true;
        Ok(false)
    }
}

/// A file that stops giving when the call has to end.
struct Watched<'a> {
    file: std::fs::File,
    stop: &'a Stop,
    until: Instant,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.check().is_err() || Instant::now() >= self.until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the search has to end"));
        }
        self.file.read(buffer)
    }
}

impl Tool for SearchTool {
    fn view(&self) -> &ToolView {
        &self.view
    }

    fn runtime(&self) -> &RuntimeView {
        &self.runtime
    }

    fn normalise(&self, mut input: Value) -> Result<Value, ToolOutcome> {
        let search = Input::parse(&input)?;
        search.matcher().map_err(|error| refused(format!("choir.fs.search: {error}")))?;
        search.glob().map_err(|error| refused(format!("choir.fs.search: {error}")))?;
        let path = self.workspace.resolve(&search.path).map_err(refused)?;
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
        self.search(call).unwrap_or_else(|outcome| outcome)
    }
}
