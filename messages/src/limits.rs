//! Every bound that both sides of the link must agree on, in one place, each with its reason.

/// Longest text of one user message, in bytes: larger ones are refused at the door, before the inbox.
pub const USER_MESSAGE_BYTES: usize = 256 * 1024;

/// Longest tool output kept in the log and shown to the model, in bytes of JSON; the rest is cut and the cut is said.
pub const TOOL_OUTPUT_BYTES: usize = 64 * 1024;

/// Longest JSON of one tool's outcome in the log: its output and the words around it.
pub const TOOL_OUTCOME_BYTES: usize = TOOL_OUTPUT_BYTES + 2048;

/// Longest id or name that comes from a model, in bytes.
pub const MODEL_NAME_BYTES: usize = 8 * 1024;

/// Transcript of one running turn, in bytes, beyond which the lane ends the turn: no model reads that much, and it is
/// far more than [`crate::session::TRANSCRIPT_BYTES`], which holds between turns.
pub const TURN_BYTES: usize = 2 * 1024 * 1024;

/// Transcript beyond which a log is refused: [`TURN_BYTES`], one more answer ([`EVENT_BYTES`]) and its results.
pub const TURN_BYTES_HARD: usize = TURN_BYTES + EVENT_BYTES + TOOL_CALLS_PER_ANSWER * TOOL_OUTCOME_BYTES;

/// Most locks of one call in the log.
pub const LOCKS_PER_CALL: usize = 64;

/// Longest tool input a model may propose, in bytes of JSON: a file's content travels in it.
pub const TOOL_INPUT_BYTES: usize = 1024 * 1024;

/// Most memory a tool input's values may take, in bytes (as [`crate::json::memory`] foretells it): four times the text,
/// for inputs are a few fields, one of them long. Small objects alone would take a hundred times theirs.
pub const TOOL_INPUT_MEMORY: usize = 4 * TOOL_INPUT_BYTES;

/// Most memory the JSON values of one message of the link may take, in bytes, likewise: a restored session with as many
/// dense tool results as one turn may have. Without it 8 MiB of small objects would take 800.
pub const MESSAGE_JSON_MEMORY: usize = 128 * 1024 * 1024;

/// Longest text a model may answer with, in bytes.
pub const MODEL_TEXT_BYTES: usize = 512 * 1024;

/// Most tool calls accepted from one model answer.
pub const TOOL_CALLS_PER_ANSWER: usize = 32;

/// Longest canonical form of one event, in bytes: the sum of its parts (a tool input, or a model's text with its calls)
/// and room for escapes.
pub const EVENT_BYTES: usize = 4 * 1024 * 1024;

/// Longest frame on the link, in bytes. A heartbeat carries at least one event of the largest size and its envelope.
pub const FRAME_BYTES: u64 = 8 * 1024 * 1024;

/// Bytes of events put into one heartbeat, unless a single event is larger.
pub const BATCH_BYTES: usize = 1024 * 1024;

/// Events put into one heartbeat.
pub const BATCH_EVENTS: usize = 256;

/// Names asked for in one `GET_SECRETS`.
pub const SECRET_NAMES: usize = 64;

/// User messages waiting in one agent's queue before new ones are refused (`choir §7.1`).
pub const USER_QUEUE: usize = 64;

/// Times one step of a turn is tried. A step that was interrupted twice, with nothing done in between, is taken to be
/// what interrupts it: its turn is set aside.
pub const TRIES_PER_STEP: u32 = 2;

/// Times a turn may be resumed after interruptions, however much it gets done in between, before it is set aside: an
/// agent that ends this often under one message is not helped by one more start.
pub const RESUMES_PER_MESSAGE: u32 = 8;

/// Tool calls the host may have open in one session beside the turn's: a few proposals of a few runs at once.
pub const HOST_CALLS: usize = 8;

/// Times a tool call of the host is begun. One that was interrupted this often is taken to be what interrupts it.
pub const HOST_CALL_TRIES: u32 = 4;

/// Events that may wait for the host in the agent's journal; beyond it nothing new is taken until the link is back.
pub const UNACKNOWLEDGED_EVENTS: u64 = 10_000;
