//! choir-agent.
