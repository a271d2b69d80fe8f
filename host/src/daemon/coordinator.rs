//! The CHAP Coordinator as a part of choird: over choird's database, on a private socket, and where the configuration
//! says besides.

use std::sync::Arc;

use choir_chap_http::{Auth, Config as HttpConfig, FrontConfig, Limits, Listen, TlsFiles};
use choir_coordinator::{Hooks, Settings};
use choir_persistence::chap::ChapStore;
use choir_persistence::postgres::{ClusterError, Source};

use crate::config::Coordinator;
use crate::coordinator::{
    House, IdentityError, IdentityFile, LogKeyError, TokensError, Verifier, kept_log, read_tokens,
};
use crate::state_dir::{StateDir, StateDirError, fits_a_socket};
use crate::telemetry::remote_parent;

/// Why the Coordinator cannot be served as configured.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The token file.
    #[error("coordinator.tokens_file: {0}")]
    Tokens(#[from] TokensError),
    /// What was asked for is refused.
    #[error("coordinator.listen: {0}")]
    Refused(#[from] choir_chap_http::ConfigError),
    /// The database.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The key of its transparency log.
    #[error(transparent)]
    LogKey(#[from] LogKeyError),
    /// Identity providers.
    #[error("coordinator.identity: {0}")]
    Identity(#[from] IdentityError),
    /// The socket's place.
    #[error(transparent)]
    State(#[from] StateDirError),
}

/// The Coordinator's parts.
pub(super) fn part(
    section: &Coordinator,
    state: &StateDir,
    source: &Source,
) -> Result<House, CoordinatorError> {
    let rules = choir_chap::Settings {
        max_envelope_bytes: usize::try_from(section.max_envelope_bytes).unwrap_or(usize::MAX),
        require_signatures: section.require_signatures,
        enforce_step_up: section.enforce_step_up,
        require_read_membership: section.require_read_membership,
        enable_chain: section.enable_chain,
        default_profiles: section.default_profiles.clone(),
        log: Some(kept_log(state)?),
        ..choir_chap::Settings::default()
    };
    let front = FrontConfig {
        limits: Limits { envelope_bytes: rules.max_envelope_bytes, ..Limits::default() },
        profiles: rules.default_profiles.clone(),
        listing: !rules.require_read_membership,
        remote_parent: Some(remote_parent),
        ..FrontConfig::default()
    };
    let socket = state.coordinator_socket();
    fits_a_socket(&socket)?;
    // Who reaches the private socket is the operator.
    let own = FrontConfig { listing: true, ..front.clone() };
    let mut servers = vec![HttpConfig { listen: Listen::Unix(socket), tls: None, front: own }];
    if let Some(address) = section.listen {
        let auth = section.tokens_file.as_deref().map(read_tokens).transpose()?.unwrap_or(Auth::None);
        let tls = section
            .tls
            .as_ref()
            .map(|tls| TlsFiles { certificates: tls.certificate.clone(), key: tls.key.clone() });
        let server = HttpConfig { listen: Listen::Tcp(address), tls, front: FrontConfig { auth, ..front } };
        server.check()?;
        servers.push(server);
    }
    let options = match source {
        Source::External(options) => options.as_ref().clone(),
        Source::Embedded(cluster) => cluster.options()?,
    };
    let mut settings = Settings { rules, ..Settings::default() };
    let mut hooks = Hooks::default();
    if let Some(says) = &section.identity {
        let verifier = Verifier::new(&IdentityFile::new(says, state.root())?)?;
        (settings.rules.verify_oidc, settings.rules.verify_vc) = verifier.verifies();
        hooks.attest = Some(Arc::new(verifier));
    }
    Ok(House::new(ChapStore::connect(options), settings, hooks, servers))
}
