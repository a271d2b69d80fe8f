//! Who joining participants are: ID tokens and verifiable presentations verified for the Coordinator, with keys and status
//! lists fetched from where the operator's identity file says. Tokens and presentations are never logged and never stand
//! in an error; everything that cannot be verified is a refusal.

mod fetch;
mod file;
mod oidc;
mod vc;

pub(crate) use fetch::may_fetch;
pub use file::{IdentityError, IdentityFile, read_identity};

use choir_chap::Attested;
use choir_coordinator::{Attest, HookFuture, Presentation};
use choir_messages::time::Timestamp;

use oidc::Oidc;
use vc::Presentations;

/// The verifier of one Coordinator.
pub(crate) struct Verifier {
    oidc: Option<Oidc>,
    vc: Option<Presentations>,
}

impl Verifier {
    /// A verifier that trusts what the file says. Nothing is fetched yet.
    pub(crate) fn new(file: &IdentityFile) -> Result<Self, IdentityError> {
        let web = fetch::Web::new(file.reaches_the_network()).map_err(IdentityError::Tls)?;
        Ok(Self {
            oidc: (!file.oidc.is_empty()).then(|| Oidc::new(file, web.clone())),
            vc: file.vc.as_ref().map(|rules| Presentations::new(rules, web)),
        })
    }

    /// Whether it verifies ID tokens, and whether presentations.
    pub(crate) const fn verifies(&self) -> (bool, bool) {
        (self.oidc.is_some(), self.vc.is_some())
    }
}

impl Attest for Verifier {
    fn attest(&self, shown: Presentation) -> HookFuture<'_, Attested> {
        Box::pin(async move {
            let now = Timestamp::now();
            let mut attested = Attested::default();
            if let (Some(oidc), Some(token)) = (&self.oidc, &shown.oidc_token) {
                attested.oidc = Some(oidc.claims(token, shown.dpop_proof.as_deref(), now).await);
            }
            if let (Some(vc), Some(presentation)) = (&self.vc, &shown.vc_presentation) {
                attested.vc = Some(vc.subject(presentation, now).await);
            }
            attested
        })
    }
}

/// A lock whose holders never panic while they hold it; if one did, what it guards is a cache.
fn locked<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
