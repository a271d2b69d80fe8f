//! What an operator decides for every workspace of a Coordinator.

use crate::limits;
use crate::register::Log;

/// The Coordinator's settings, as far as the rules look at them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Canonical bytes of one envelope; published in the descriptor.
    pub max_envelope_bytes: usize,
    /// Every call but `workspace.create` and `participant.join` must be signed by a key of its sender.
    pub require_signatures: bool,
    /// Privileged methods ask people for a fresh login.
    pub enforce_step_up: bool,
    /// Reads are for members only.
    pub require_read_membership: bool,
    /// Every log is chained, whatever its workspace advertises.
    pub enable_chain: bool,
    /// What a workspace advertises unless its creator says otherwise.
    pub default_profiles: Vec<String>,
    /// Somebody verifies ID tokens: a joining participant's token is looked at, and `identity-oidc/1.0` may be advertised.
    pub verify_oidc: bool,
    /// Somebody verifies presentations.
    pub verify_vc: bool,
    /// The transparency log that entries are registered in, where `audit-scitt/1.0` is advertised.
    pub log: Option<Log>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_envelope_bytes: limits::ENVELOPE_BYTES,
            require_signatures: false,
            enforce_step_up: false,
            require_read_membership: false,
            enable_chain: false,
            default_profiles: vec!["core/1.0".to_owned(), "review/1.0".to_owned()],
            verify_oidc: false,
            verify_vc: false,
            log: None,
        }
    }
}

impl Settings {
    /// The longest body worth reading, in bytes: a longer one cannot be a call of [`Settings::max_envelope_bytes`] in
    /// any reasonable spelling. A transport stops reading there.
    #[must_use]
    pub const fn max_body_bytes(&self) -> usize {
        self.max_envelope_bytes.saturating_mul(limits::BODY_FACTOR)
    }
}
