//! Every bound of a run, in one place, each with its reason.

use std::time::Duration;

/// Longest task file, in bytes: far beyond any objective a person writes.
pub const TASK_BYTES: u64 = 256 * 1024;

/// Longest objective, in bytes: it is shown to every role's model with each question.
pub const OBJECTIVE_BYTES: usize = 32 * 1024;

/// Longest other text of a task (a constraint, a tag), in bytes.
pub const TASK_TEXT_BYTES: usize = 4 * 1024;

/// Most constraints, input artefacts or tags of a task.
pub const TASK_LIST: usize = 64;

/// Tool calls of a run that names no limit.
pub const TOOL_CALLS_DEFAULT: u32 = 20;

/// Most tool calls a task may ask for: each is kept with its input and output.
pub const TOOL_CALLS_MAX: u32 = 200;

/// Time budget of a run that names none, in seconds.
pub const TIME_BUDGET_DEFAULT: u64 = 3600;

/// Longest time budget a task may ask for, in seconds: a day.
pub const TIME_BUDGET_MAX: u64 = 24 * 3600;

/// Proposals the planner may make at once: the executor works on them side by side.
pub const PROPOSALS_AT_ONCE: usize = 4;

/// Revisions of a proposal that was rejected or blocked; the seed bounds failure handling without a number.
pub const REVISIONS: usize = 3;

/// Fallback proposals of a run, made when tools failed and the policy permits them.
pub const FALLBACKS: usize = 2;

/// Tool calls one answer of the executor's model may propose.
pub const INTENTS_AT_ONCE: usize = 4;

/// Tool calls that may fail under one proposal, none having succeeded, before another way is proposed.
pub const FAILURES_PER_PROPOSAL: usize = 2;

/// Tool calls that may fail in a run: its first way and its fallbacks.
pub const FAILURES: u32 = (FAILURES_PER_PROPOSAL * (1 + FALLBACKS)) as u32;

/// Proposals of a run: each first one with its revisions, and the fallbacks with theirs.
pub const PROPOSALS: u32 = ((PROPOSALS_AT_ONCE + FALLBACKS) * (1 + REVISIONS)) as u32;

/// Challenges of a run.
pub const CHALLENGES: u32 = 64;

/// Claims one answer of the executor's model may issue.
pub const CLAIMS_AT_ONCE: usize = 16;

/// Times a claim may be challenged: after that the dispute stands, and the report warns of it.
pub const CHALLENGES_PER_CLAIM: usize = 2;

/// Times a role's model is asked for the same thing when its answer cannot be used; it is told why each time.
pub const BAD_ANSWERS: u32 = 3;

/// Times a model call that failed is made again, beside the client's own handling of rate limits.
pub const MODEL_TRIES: u32 = 3;

/// Pause before a failed model call is made again.
pub const MODEL_PAUSE: Duration = Duration::from_secs(2);

/// Longest text of a model's answer that goes into an event (a rationale, a claim), in bytes.
pub const TEXT_BYTES: usize = 16 * 1024;

/// Bytes of one tool result shown to a model.
pub const SHOWN_BYTES: usize = 8 * 1024;

/// Events of one run: what the bounds above can add up to, with room. Beyond it the run is given up.
pub const EVENTS: usize = 5_000;

/// Pause before drafts are submitted again that nobody took: the scribe is between two lives, or the run has ended.
pub const SCRIBE_PAUSE: Duration = Duration::from_millis(100);

/// Longest wait for the scribe, which syncs to disk.
pub const SCRIBE: Duration = Duration::from_secs(30);

/// Longest wait for one tool call, whatever its own limit says.
pub const TOOL_WITHIN: Duration = Duration::from_secs(3600);

/// Longest time the verifier may take over one trace.
pub const VERIFY_WITHIN: Duration = Duration::from_secs(120);

/// How often a role looks by itself, should a hint have been lost.
pub const LOOK: Duration = Duration::from_secs(2);

/// Runs at once: each has six actors, and all share the models and the agents.
pub const RUNS: usize = 16;

/// Times a run whose supervisor gave up, or whose choird died, is taken up again without having come further.
pub const RESUMES: u32 = 3;
