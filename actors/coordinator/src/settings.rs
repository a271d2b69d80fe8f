//! What an operator decides, and what the Coordinator is given from outside.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use choir_chap::Attested;
use choir_messages::time::Timestamp;
use serde_json::Value;

use crate::limits;

/// The Coordinator's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What the rules look at.
    pub rules: choir_chap::Settings,
    /// Workspace actors alive at once; the least recently used one makes room for another.
    pub live_workspaces: usize,
    /// How long a workspace actor lives without work.
    pub idle_after: Duration,
    /// What one participant may ask for.
    pub quota: Quota,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: choir_chap::Settings::default(),
            live_workspaces: limits::LIVE_WORKSPACES,
            idle_after: limits::IDLE_AFTER,
            quota: Quota::default(),
        }
    }
}

/// What one participant may ask of the Coordinator; more is answered [`Busy`](choir_messages::mail::Unanswered::Busy).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quota {
    /// Calls a second, in the long run.
    pub calls_per_second: f64,
    /// Calls that may come at once after a pause.
    pub burst: f64,
    /// Calls not answered yet.
    pub outstanding: usize,
}

impl Default for Quota {
    /// Far above what a person or an agent does, far below what one Coordinator carries.
    fn default() -> Self {
        Self { calls_per_second: 5_000.0, burst: 10_000.0, outstanding: 256 }
    }
}

/// A future of a hook.
pub type HookFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a joining participant presents.
#[derive(Clone, PartialEq)]
pub struct Presentation {
    /// The workspace it joins.
    pub workspace: String,
    /// Who it says it is.
    pub participant: Option<String>,
    /// An OIDC ID token.
    pub oidc_token: Option<String>,
    /// A DPoP proof that the sender has the key the token is bound to.
    pub dpop_proof: Option<String>,
    /// A W3C verifiable presentation.
    pub vc_presentation: Option<Value>,
}

impl std::fmt::Debug for Presentation {
    /// Without what is presented: it may let its holder in elsewhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presentation")
            .field("workspace", &self.workspace)
            .field("participant", &self.participant)
            .finish_non_exhaustive()
    }
}

/// Verifies what joining participants present. May ask the network; the Coordinator waits
/// [`ATTEST_WITHIN`](limits::ATTEST_WITHIN) at most and then refuses the call.
pub trait Attest: Send + Sync + 'static {
    /// The claims, or the refusal to answer with, of everything that was presented.
    fn attest(&self, presentation: Presentation) -> HookFuture<'_, Attested>;
}

/// A clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the Coordinator is given from outside.
#[derive(Clone)]
pub struct Hooks {
    /// Verifies tokens and presentations. Without it none are looked at, whatever the settings say.
    pub attest: Option<Arc<dyn Attest>>,
    /// The clock of evidence and deadlines.
    pub clock: Clock,
}

impl Default for Hooks {
    /// No verifier, and the wall clock.
    fn default() -> Self {
        Self { attest: None, clock: Arc::new(Timestamp::now) }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").field("attest", &self.attest.is_some()).finish_non_exhaustive()
    }
}
