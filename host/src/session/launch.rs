//! What a sandbox is launched with: where things are, the link's secret, the bootstrap line (`choir §14.1`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use choir_link::LinkSecret;
use choir_messages::secret::Secret;
use choir_messages::wire::{Bootstrap, WIRE_VERSION};
use choir_persistence::store::sessions::SessionRow;
use choir_sandbox::{Limits, Network, SandboxPaths, SandboxSpec};

use super::Grant;
use super::core::Attempt;
use super::gate::SOCKET;
use super::parts::Shared;
use crate::daemon::Carrier;

/// Everything for one launch.
pub(super) struct Prepared {
    pub(super) grant: Arc<Grant>,
    pub(super) secret: LinkSecret,
    pub(super) specify: Specify,
}

/// What the sandbox is started with, once the link listens: at this address, where the system chose one.
pub(super) type Specify = Box<dyn FnOnce(Option<SocketAddr>) -> Result<SandboxSpec, String> + Send>;

/// Models are called from inside, and a link over TCP comes to the host's own port: whatever takes this network away
/// must refuse `link.carrier` "tcp" in the same file.
const NETWORK: Network = Network::Shared;

/// Prepares a launch under an open session; makes the workspace and the socket's directory where they are missing.
pub(super) fn prepare(shared: &Arc<Shared>, row: &SessionRow, attempt: Attempt) -> Result<Prepared, String> {
    let bindings: BTreeMap<String, String> =
        row.bindings.iter().map(|b| (b.kind.clone(), b.name.clone())).collect();
    let named = |kind: &str| bindings.get(kind).cloned().ok_or(format!("the session has no {kind}"));
    let (llm, workspace) = (named("llm")?, named("workspace")?);
    let settings = shared.host.settings();
    let place = settings.config.workspaces.get(&workspace);
    let place = place.ok_or(format!("config.json has no workspace \"{workspace}\" any more"))?;
    std::fs::create_dir_all(&place.path)
        .map_err(|e| format!("cannot make the workspace {}: {e}", place.path.display()))?;
    let socket_dir = shared.host.state.link_dir(&shared.agent);
    // A socket is made by the gate; the directory must be there for the sandbox to be shown it.
    crate::state_dir::make_private(&socket_dir).map_err(|e| e.to_string())?;
    if matches!(shared.host.carrier, Carrier::Unix) {
        crate::state_dir::fits_a_socket(&socket_dir.join(SOCKET)).map_err(|e| e.to_string())?;
    }
    let paths = SandboxPaths {
        binary: shared.host.agent_binary.clone(),
        workspace: place.path.clone(),
        socket_dir,
        choir_dir: settings.config.agents.get(&shared.agent).and_then(|agent| agent.choir_dir.clone()),
    };
    let inside = shared.host.sandbox.borrow().sandbox.inside(&paths);
    let secret = LinkSecret::fresh().map_err(|e| e.to_string())?;
    let grant =
        Grant { attempt, session: row.session, lease: row.lease, generation: row.generation, llm, bindings };
    let (session, lease, generation) = (row.session, row.lease, row.generation);
    let link_secret = secret.to_hex();
    let otlp_endpoint = settings.config.telemetry.otlp_endpoint.clone();
    let shared = Arc::clone(shared);
    let specify = move |listening| {
        let bootstrap = Bootstrap {
            version: WIRE_VERSION,
            agent: shared.agent.clone(),
            session,
            lease,
            generation,
            link: shared.host.carrier.address(inside.socket_dir.join(SOCKET), listening)?,
            link_secret: link_secret.to_string(),
            workspace: inside.workspace,
            choir_dir: inside.choir_dir,
            otlp_endpoint,
        };
        let line = serde_json::to_string(&bootstrap).map_err(|e| e.to_string())?;
        Ok(SandboxSpec {
            label: shared.host.label(),
            paths,
            args: Vec::new(),
            limits: Limits::default(),
            network: NETWORK,
            bootstrap: Secret::new(line),
            log_file: shared.host.state.log_file(shared.agent.as_str()),
        })
    };
    Ok(Prepared { grant: Arc::new(grant), secret, specify: Box::new(specify) })
}
