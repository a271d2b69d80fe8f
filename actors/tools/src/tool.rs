//! What a tool is: the model's view, the runtime's view and four steps (`choir §8.3`, `choir §8.8`). The trait is
//! object-safe, so that tools made from manifests can stand beside the built-in ones.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use choir_messages::id::InvocationId;
use choir_messages::tool::{Lane, LockSpec, Replay, SideEffect, ToolOutcome, ToolStatus, ToolView};

use crate::stop::{Stop, Stopped};

/// Which lanes see a tool (`choir §8.5`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Exposure {
    /// The lane that talks to the user.
    Edge,
    /// Background jobs.
    Core,
    /// Every lane.
    Both,
    /// No lane: it is there for the runtime.
    None,
}

impl Exposure {
    /// Whether this lane sees the tool.
    #[must_use]
    pub const fn covers(self, lane: &Lane) -> bool {
        match (self, lane) {
            (Self::Both, _) | (Self::Edge, Lane::Edge) | (Self::Core, Lane::Core(_)) => true,
            (Self::Edge | Self::Core | Self::None, _) => false,
        }
    }
}

/// The runtime's view of a tool (`choir §8.3`); the model never sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuntimeView {
    /// Version of the tool's behaviour.
    pub version: &'static str,
    /// Time limit of a call in milliseconds, unless its input says otherwise.
    pub timeout_ms: u64,
    /// The rule by which a call's locks follow from its input, such as `file:<path>:S`.
    pub locks: &'static str,
    /// What it does to the world.
    pub side_effect: SideEffect,
    /// Whether a repeat with the same input is harmless.
    pub idempotent: bool,
    /// Whether it talks to a network by itself.
    pub network: bool,
    /// Named secrets it may use; none of the built-in tools has any (`choir §14.3`).
    pub secret_resources: &'static [&'static str],
    /// Which lanes see it.
    pub exposure: Exposure,
    /// Whether its outputs are kept out of prompts.
    pub prompt_mask: bool,
}

/// One run of a committed call.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The call.
    pub invocation: InvocationId,
    /// Its validated input.
    pub input: &'a Value,
    /// How a repeat is recognised.
    pub replay: &'a Replay,
    /// Whether an earlier run may have taken effect.
    pub again: bool,
    /// Its switch.
    pub stop: &'a Stop,
}

/// A tool. `prepare` and `run` block; they are called on threads that may block, and ask `stop` between steps.
pub trait Tool: Send + Sync + 'static {
    /// What the model sees. The schema names every field and forbids others.
    fn view(&self) -> &ToolView;

    /// What the runtime knows.
    fn runtime(&self) -> &RuntimeView;

    /// Checks what a schema cannot say and brings the input into its one form: defaults filled in, paths real and
    /// relative to the workspace. The outcome of a failure is what the model reads.
    fn normalise(&self, input: Value) -> Result<Value, ToolOutcome>;

    /// The locks a normalised input needs (`choir §9`).
    fn locks(&self, input: &Value) -> Vec<LockSpec>;

    /// The time limit of a call with this normalised input.
    fn timeout(&self, _input: &Value) -> Duration {
        Duration::from_millis(self.runtime().timeout_ms)
    }

    /// Works out, under the call's locks, how a repeat would be recognised; changes nothing. The outcome of a failure
    /// is the call's: it cannot run after all.
    fn prepare(&self, input: &Value, stop: &Stop) -> Result<Replay, ToolOutcome>;

    /// Runs the call.
    fn run(&self, call: &Call<'_>) -> ToolOutcome;
}

/// The call never ran; the sentence tells the model what to do instead.
#[must_use]
pub fn refused(sentence: impl std::fmt::Display) -> ToolOutcome {
    ToolOutcome::says(ToolStatus::Refused, &sentence.to_string())
}

/// The call ran and failed.
#[must_use]
pub fn failed(sentence: impl std::fmt::Display) -> ToolOutcome {
    ToolOutcome::says(ToolStatus::Error, &sentence.to_string())
}

/// The call was ended early, before it changed anything.
#[must_use]
pub fn stopped(why: Stopped) -> ToolOutcome {
    match why {
        Stopped::Cancelled => {
            ToolOutcome::says(ToolStatus::Cancelled, "the call was cancelled before it took effect")
        }
        Stopped::Deadline => failed("the call ran out of time and was ended before it took effect"),
    }
}
