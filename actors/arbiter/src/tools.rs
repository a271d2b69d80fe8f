//! What the arbiter needs of the tools: rules to check a call by, and someone to run it. The container brings both.

use choir_messages::chain::Digest;
use choir_messages::id::InvocationId;
use choir_messages::json::Json;
use choir_messages::mail::Execution;
use choir_messages::tool::{Lane, LockSpec, Replay, SideEffect, ToolOutcome};
use choir_messages::wire::BoxFuture;

/// A call that passed validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidCall {
    /// The input, normalised.
    pub input: Json,
    /// The locks it needs.
    pub locks: Vec<LockSpec>,
    /// What it does to the world.
    pub side_effect: SideEffect,
    /// How a repeat is recognised, where that is known without looking at the world. `None`: ask
    /// [`ToolHost::prepare`] once the locks are held.
    pub replay: Option<Replay>,
}

/// The rules: pure, so that the core can be driven by properties and models.
pub trait ToolRules {
    /// Checks a call as a lane's model wrote it; the refusal is what the model will read.
    fn validate(&self, lane: &Lane, tool: &str, arguments: &str) -> Result<ValidCall, ToolOutcome>;

    /// Hash of the tools' views.
    fn manifest(&self) -> Digest;
}

/// The hands: runs calls somewhere else.
pub trait ToolHost: ToolRules + Send + Sync {
    /// Works out, under its locks, how a repeat of the call could be recognised.
    fn prepare(&self, execution: Execution) -> BoxFuture<'static, Result<Replay, ToolOutcome>>;

    /// Runs a committed call to its end. `None`: whoever ran it died without a word.
    fn run(&self, execution: Execution) -> BoxFuture<'static, Option<ToolOutcome>>;

    /// Stops a running call; its outcome says so.
    fn cancel(&self, invocation: InvocationId);
}
