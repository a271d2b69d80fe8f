//! Every bound of the tools, each with its reason. The bounds both sides of the link share are in
//! [`choir_messages::limits`].

use std::time::Duration;

use choir_messages::limits::TOOL_OUTPUT_BYTES;

/// Room, in bytes of JSON, for what stands beside the bulk of an output: field names, paths, counts, notes.
pub const OUTPUT_FRAME_BYTES: usize = 12 * 1024;

/// Bytes of JSON for the bulk of an output (a file's text, matches, a command's output).
pub const OUTPUT_BULK_BYTES: usize = TOOL_OUTPUT_BYTES - OUTPUT_FRAME_BYTES;

/// Longest path a model may name, in bytes: Linux's own `PATH_MAX`.
pub const PATH_BYTES: usize = 4096;

/// Longest part of a path between two slashes, in bytes: Linux's own `NAME_MAX`.
pub const NAME_BYTES: usize = 255;

/// Symbolic links followed while one path is resolved: Linux's own limit, which catches loops.
pub const LINKS_FOLLOWED: usize = 40;

/// Times a confined open is tried again when the kernel reports a concurrent rename.
pub const OPEN_TRIES: usize = 16;

/// Longest file that can be edited or appended to, in bytes: its old and new content are held in memory together.
pub const EDIT_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Read in one go from a file.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// Bytes looked at to tell text from a binary file, as git does.
pub const SNIFF_BYTES: usize = 8 * 1024;

/// Bytes of a binary file's beginning that are shown in hexadecimal.
pub const HEX_BYTES: usize = 64;

/// Bytes read backwards at once to find a file's last lines.
pub const TAIL_BYTES: usize = OUTPUT_BULK_BYTES;

/// Most lines a read may ask for: more would not fit an output anyway.
pub const READ_LINES: u64 = 100_000;

/// Directory entries listed by one read.
pub const LIST_ENTRIES: usize = 1000;

/// Directory entries looked at before a listing or walk of one directory gives up: they are sorted in memory.
pub const DIRECTORY_ENTRIES: usize = 100_000;

/// Longest search pattern, in bytes.
pub const PATTERN_BYTES: usize = 4096;

/// Longest glob of a search, in bytes.
pub const GLOB_BYTES: usize = 1024;

/// Memory of one compiled search pattern, in bytes; a larger one is refused.
pub const REGEX_BYTES: usize = 4 * 1024 * 1024;

/// Nesting depth of a search pattern.
pub const REGEX_DEPTH: u32 = 50;

/// Matching lines a search reports unless told otherwise.
pub const SEARCH_RESULTS_DEFAULT: u64 = 200;

/// Most matching lines a search reports.
pub const SEARCH_RESULTS: u64 = 1000;

/// Bytes of JSON shown of one matching line.
pub const SEARCH_LINE_BYTES: usize = 512;

/// Memory for one line of a searched file; a file with a longer line is skipped and that is said.
pub const SEARCH_HEAP_BYTES: usize = 4 * 1024 * 1024;

/// Files looked at by one search.
pub const SEARCH_FILES: u64 = 200_000;

/// Directories within directories that a search enters.
pub const SEARCH_DEPTH: usize = 128;

/// Longest ignore file that is honoured, in bytes.
pub const IGNORE_FILE_BYTES: u64 = 256 * 1024;

/// Longest a search looks before it reports what it has; below the tool's own timeout, so that a slow search still
/// gives something.
pub const SEARCH_TIME: Duration = Duration::from_secs(20);

/// Time limit of a file tool.
pub const FILE_TOOL_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of a command unless told otherwise.
pub const EXEC_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// Longest time limit a command may ask for: it holds the workspace for that long.
pub const EXEC_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest command line of a shell, in bytes: Linux's own limit of one argument is 128 KiB.
pub const COMMAND_BYTES: usize = 120 * 1024;

/// Bytes kept of each of a command's streams from its beginning, and as many from its end.
pub const STREAM_KEEP_BYTES: usize = 24 * 1024;

/// How long a command's background processes may keep its output open after it has ended.
pub const EXEC_GRACE: Duration = Duration::from_millis(250);

/// How long the output is still read after everything was killed: the kernel closes the pipes within this.
pub const EXEC_DRAIN: Duration = Duration::from_secs(1);

/// Rounds of looking for processes that left the command's group; each round can only find what the one before had
/// not yet seen start.
pub const REAP_ROUNDS: usize = 5;

/// Longest an executor waits for the committed call to be durable on the host before it gives up without running it.
pub const DURABLE_DEADLINE: Duration = Duration::from_secs(30);

/// Longest a replay guard may take to work out.
pub const PREPARE_DEADLINE: Duration = Duration::from_secs(30);

/// Time between a tool's own time limit and the moment its executor stops waiting for it to notice.
pub const OVERTIME: Duration = Duration::from_secs(5);

/// Bytes of a foreign text (an unknown tool's name, a wrong value) that are quoted in an error.
pub const QUOTE_BYTES: usize = 120;
