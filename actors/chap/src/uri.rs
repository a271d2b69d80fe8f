//! Participant URIs and ids (digest §3.1): `human:|agent:|service:|group:|workspace:`, a local id, optionally
//! `@authority` and `#version`.

use crate::limits::{ID_BYTES, URI_BYTES};

/// The schemes of participants, which are also their types.
pub const SCHEMES: [&str; 5] = ["human", "agent", "service", "group", "workspace"];

/// Who speaks when the Coordinator itself does.
pub const COORDINATOR: &str = "service:coordinator";

/// Whether this is a participant URI: one of the five schemes, something after it, and no space or control character.
#[must_use]
pub fn is_participant(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    SCHEMES.contains(&scheme)
        && !rest.is_empty()
        && text.len() <= URI_BYTES
        && !rest.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// Whether this addresses everybody: the Coordinator keeps no list of a group's people, so a group is any member.
#[must_use]
pub fn is_broadcast(text: &str) -> bool {
    text.starts_with("workspace:") || text.starts_with("group:")
}

/// Whether this can name a workspace or an object: not empty, bounded, without control characters (a store cannot keep
/// NUL in a key).
#[must_use]
pub fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= ID_BYTES && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_five_schemes_with_authority_and_version_are_participants() {
        for good in [
            "human:alice@example.org",
            "agent:triage#v3.2",
            "service:x",
            "group:on-call@e.org",
            "workspace:wsp_a",
        ] {
            assert!(is_participant(good), "{good}");
        }
        for bad in [
            "",
            "human:",
            "robot:x",
            "not a uri",
            "human:a b",
            "human:a\0",
            "human",
            &format!("human:{}", "a".repeat(600)),
        ] {
            assert!(!is_participant(bad), "{bad}");
        }
    }
}
