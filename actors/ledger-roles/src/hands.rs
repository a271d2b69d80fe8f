//! Where tools run: in an agent's sandbox, never here. Whoever assembles the tree brings the hands; they ask the agent
//! over its link and find the result in the agent's replicated log.

use choir_messages::id::{AgentId, InvocationId};
use choir_messages::tool::ToolOutcome;
use choir_messages::wire::BoxFuture;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandsCall {
    /// The agent.
    pub agent: AgentId,
    /// The call's id: a repeat under it is recognised and not run twice.
    pub invocation: InvocationId,
    /// The tool.
    pub tool: String,
    /// Its input, a JSON text.
    pub input: String,
    /// The agent session it was to run in, and that session's revision before.
    pub place: Option<(String, u64)>,
}

/// Runs tools for the roles.
pub trait Hands: Send + Sync {
    /// Makes sure that the agent is up; its session, and how far its log is durable now. The error is for a person.
    fn place(&self, agent: AgentId) -> BoxFuture<'static, Result<(String, u64), String>>;

    /// Runs a call to its end, or finds the result of one that was run before. Always an outcome: unknown, where nobody
    /// can tell. Dropping the future leaves the call to itself; asking again under its id finds it.
    fn run(&self, call: HandsCall) -> BoxFuture<'static, ToolOutcome>;

    /// Stops a call that nobody waits for any more.
    fn stop(&self, agent: AgentId, invocation: InvocationId) -> BoxFuture<'static, ()>;
}
