//! `choir.fs.search`: patterns and globs of a model over files with any content (`choir §8.7`).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use choir_messages::id::InvocationId;
use choir_messages::limits::TOOL_OUTPUT_BYTES;
use choir_messages::tool::{Lane, Replay, ToolStatus};
use choir_tools::limits::SEARCH_RESULTS;
use choir_tools::stop::Stop;
use choir_tools::{Call, ToolRegistry};
use serde_json::Value;

const TOOL: &str = "choir.fs.search";

/// The file whose content is the input's.
const FILE: &str = "a/found";

/// A search of three small files that has not ended by then is held up by its pattern.
const WITHIN: Duration = Duration::from_secs(5);

struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
    registry: ToolRegistry,
}

impl Place {
    fn new() -> std::io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let root = dir.path().canonicalize()?;
        fs::create_dir(root.join("a"))?;
        fs::write(root.join("a/other.rs"), "fn main() {}\n// text\n")?;
        fs::write(root.join(".gitignore"), "*.log\n")?;
        fs::write(root.join("x.log"), "text\n")?;
        let registry = ToolRegistry::builtin_with(&root, "/bin", None).map_err(std::io::Error::other)?;
        Ok(Self { _dir: dir, root, registry })
    }
}

/// The input is the arguments up to the first line end, then a file's content. A call that is accepted runs to an
/// outcome that the log takes; each line it reports is in the file under that number; a plain search of plain text
/// finds exactly the lines that hold it.
pub fn search(data: &[u8]) -> bool {
    thread_local! {
        static PLACE: Place = Place::new().expect("a temporary folder can be made");
    }
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (arguments, content) = data.split_at(end);
    let content = content.get(1..).unwrap_or_default();
    let Ok(arguments) = std::str::from_utf8(arguments) else { return false };
    PLACE.with(|place| {
        let Ok(valid) = place.registry.validate(&Lane::Edge, TOOL, arguments) else { return false };
        fs::write(place.root.join(FILE), content).expect("a temporary file can be written");
        let tool = place.registry.get(TOOL).expect("it is built in");
        let stop = Stop::within(WITHIN);
        let outcome = tool.run(&Call {
            invocation: InvocationId::from_bits(1),
            input: valid.input.value(),
            replay: &Replay::Idempotent,
            again: false,
            stop: &stop,
        });
        assert!(stop.check().is_ok(), "the search took longer than {WITHIN:?}");
        let output = outcome.output.value();
        assert!(output.to_string().len() <= TOOL_OUTPUT_BYTES);
        if outcome.status != ToolStatus::Success {
            assert_eq!(outcome.status, ToolStatus::Error);
            return false;
        }
        let matches = output["matches"].as_array().expect("a search lists its matches");
        let most = valid.input.value()["max_results"].as_u64().unwrap_or(SEARCH_RESULTS);
        assert!(matches.len() as u64 <= most.min(SEARCH_RESULTS));
        // A text in another encoding is searched as what it says.
        let plain = !content.contains(&0) && !starts_with_mark(content);
        let lines: Vec<&[u8]> = content.split(|byte| *byte == b'\n').collect();
        let mut found = Vec::new();
        for item in matches.iter().filter(|item| plain && item["path"] == FILE) {
            let number =
                item["line"].as_u64().and_then(|n| usize::try_from(n).ok()).expect("a line has a number");
            let line = lines.get(number - 1).expect("the line is there");
            let text = item["text"].as_str().expect("a line is text");
            assert!(String::from_utf8_lossy(line).starts_with(text), "line {number} is another");
            found.push(number);
        }
        if plain && let Some(pattern) = plain_search(valid.input.value(), output) {
            let held = |line: &[u8]| line.windows(pattern.len()).any(|window| window == pattern.as_bytes());
            let expected: Vec<usize> = (1..).zip(&lines).filter(|(_, l)| held(l)).map(|(n, _)| n).collect();
            assert_eq!(found, expected, "of {pattern:?}");
        }
        true
    })
}

fn starts_with_mark(content: &[u8]) -> bool {
    [&b"\xef\xbb\xbf"[..], b"\xfe\xff", b"\xff\xfe"].iter().any(|mark| content.starts_with(mark))
}

/// The pattern of a complete, literal, case-sensitive search in which nothing is left out.
fn plain_search<'a>(input: &'a Value, output: &Value) -> Option<&'a str> {
    let plain = input["literal"] == true
        && input["case_insensitive"] != true
        && input["glob"].is_null()
        && [".", "a", FILE].iter().any(|path| input["path"] == *path)
        && output["complete"] == true;
    input["pattern"].as_str().filter(|pattern| plain && !pattern.is_empty())
}
