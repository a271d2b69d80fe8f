//! The system prompt of a lane (`choir §11.3`): instructions, then identity. Small and immutable over a session, so that
//! a provider may cache it; tool schemas travel apart (`choir §21.4`).

use choir_messages::id::AgentId;

/// The identity files of an agent, as the image carries them; empty where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// `USER.md`: who the user is.
    pub user: String,
    /// `SOUL.md`: the edge lane's personality.
    pub soul: String,
}

const EDGE: &str = "You are the user's personal agent. You see and change the world only through the tools you are given; \
paths are relative to your workspace. Propose tool calls when you need facts or effects, then answer the user in plain \
words. Do not invent results. A result with status \"outcome_unknown\" means the call may or may not have taken effect: \
check (read, search) before you repeat it. A result with status \"refused\" or \"error\" says what to change. When a \
call cannot be made to work, say so.";

/// The edge lane's system prompt.
#[must_use]
pub fn system_prompt(agent: &AgentId, identity: &Identity) -> String {
    let mut prompt = format!("{EDGE}\nYour name is {agent}.");
    for (title, text) in [("The user", &identity.user), ("Your manner", &identity.soul)] {
        let text = text.trim();
        if !text.is_empty() {
            prompt.push_str("\n\n# ");
            prompt.push_str(title);
            prompt.push('\n');
            prompt.push_str(text);
        }
    }
    prompt
}
