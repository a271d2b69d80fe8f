//! The agent's tree (DESIGN §3): who supervises whom, who knows whose address, how long each mailbox is.
//!
//! `session` is rest_for_one: an actor that dies takes along those after it, who rebuild from the journal. The journal
//! comes first, so its loss costs the most (everything not yet durable on the host), and the lanes come last.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use choir_arbiter::{ArbiterDeps, ToolHost};
use choir_lanes::EdgeDeps;
use choir_link::LinkSecret;
use choir_messages::chain::Digest;
use choir_messages::id::{AgentId, LeaseId, SessionId};
use choir_messages::mail::{
    ArbiterMsg, EdgeMsg, JournalMsg, LocksMsg, ModelsMsg, ReplicatorMsg, UplinkEnd, UplinkMsg,
};
use choir_messages::tool::Lane;
use choir_messages::wire::{LinkAddress, SignalHandler, TraceContext};
use choir_replicator::identity::LinkIdentity;
use choir_replicator::{journal, stream, uplink};
use choir_supervisors::{
    Address, ChildSpec, DynamicSpec, Intensity, MailboxSpec, Shutdown, StartError, Strategy, SupervisorSpec,
    Tree, WhenFull, mailbox,
};
use choir_telemetry::Scrubber;
use choir_telemetry::trace_context::set_parent;
use choir_tools::ToolRegistry;
use tokio::sync::{mpsc, watch};

use crate::connector::HostConnector;
use crate::signals::Signals;
use crate::tools::Tools;
use crate::{identity, reporter, signals};

/// The root's name, and so the first part of every path.
const ROOT: &str = "choir-agent";

/// Heartbeat interval until the settings say another.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Tool calls running at once: one model answer's worth, for every lane there may be.
const EXECUTORS: usize = 256;

/// How long a sender waits at a full mailbox.
const PATIENCE: Duration = Duration::from_secs(2);

/// Restarts the session may need under a storm of kills before the process is given up: a fresh process from the
/// host's log is then the better cure.
const SESSION: Intensity = Intensity { restarts: 20, within: Duration::from_secs(10) };

/// What an agent's tree is made from; the bootstrap's content, decoded.
pub struct AgentSpec {
    /// Which agent.
    pub agent: AgentId,
    /// Which session.
    pub session: SessionId,
    /// Under which lease.
    pub lease: LeaseId,
    /// And generation.
    pub generation: u64,
    /// Where the host is.
    pub link: LinkAddress,
    /// The link's secret.
    pub secret: LinkSecret,
    /// The workspace.
    pub workspace: PathBuf,
    /// Identity files.
    pub choir_dir: Option<PathBuf>,
    /// Learns every secret the host sends.
    pub scrubber: Scrubber,
}

/// A running agent: its tree and the addresses the process needs to end it in order.
pub struct Agent {
    /// The tree.
    pub tree: Tree,
    /// The edge lane, to drain.
    pub edge: Address<EdgeMsg>,
    /// The replicator, to flush.
    pub replicator: Address<ReplicatorMsg>,
    /// The uplink, to say goodbye over.
    pub uplink: Address<UplinkMsg>,
}

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The workspace cannot be used.
    #[error("{0}")]
    Workspace(String),
    /// A child did not start.
    #[error(transparent)]
    Tree(#[from] StartError),
}

fn boxed<M: choir_supervisors::Mail>(
    name: &str,
    capacity: usize,
) -> (Address<M>, choir_supervisors::Slot<M>) {
    mailbox(name, MailboxSpec { capacity, when_full: WhenFull::Wait(PATIENCE) })
}

/// Builds the tree and starts it. `shut_down` hears of the host's wish to stop, `ended` of verdicts that end the
/// process.
pub async fn start(
    spec: AgentSpec,
    shut_down: mpsc::Sender<Duration>,
    ended: Arc<dyn Fn(UplinkEnd) + Send + Sync>,
) -> Result<Agent, AgentError> {
    let registry = Arc::new(
        ToolRegistry::builtin(&spec.workspace).map_err(|error| AgentError::Workspace(error.to_string()))?,
    );
    let (uplink_at, uplink_slot) = boxed::<UplinkMsg>("uplink", 64);
    let (journal_at, journal_slot) = boxed::<JournalMsg>("journal", 512);
    let (replicator_at, replicator_slot) = boxed::<ReplicatorMsg>("replicator", 1024);
    let (locks_at, locks_slot) = mailbox::<LocksMsg>("locks", choir_locks::mailbox_spec());
    let (arbiter_at, arbiter_slot) = boxed::<ArbiterMsg>("arbiter", 512);
    let (models_at, models_slot) = mailbox::<ModelsMsg>("models", choir_models::actor::MAILBOX);
    let (edge_at, edge_slot) = boxed::<EdgeMsg>("edge", 1024);

    let identity = Arc::new(LinkIdentity {
        agent: spec.agent.clone(),
        session: spec.session,
        lease: spec.lease,
        generation: spec.generation,
        image_version: env!("CARGO_PKG_VERSION").to_owned(),
        tool_manifest: registry.manifest_hash(),
        skill_manifest: Digest::ZERO,
        trace: choir_telemetry::trace_context::current,
    });
    let cell = signals::tree_cell();
    let handler: Arc<dyn SignalHandler> = Arc::new(Signals {
        lease: spec.lease,
        generation: spec.generation,
        arbiter: arbiter_at.clone(),
        uplink: uplink_at.clone(),
        tree: Arc::clone(&cell),
        shut_down,
    });
    let connector =
        Arc::new(HostConnector::new(spec.link, spec.secret, spec.session, handler, spec.scrubber));

    let (interval, interval_at) = watch::channel(HEARTBEAT);
    let (executors, executors_spec) = DynamicSpec::with("executors", Intensity::default(), EXECUTORS);
    let tools: Arc<dyn ToolHost> = Arc::new(Tools::new(Arc::clone(&registry), executors, journal_at.clone()));

    // These hold nothing that a successor does not read from the journal, and have nothing to tidy up. Asked to stop
    // politely, one that waits for a dead neighbour would hold up that neighbour's restart until its own deadline.
    let expendable = |child: ChildSpec| child.shutdown(Shutdown::Brutal);
    let session = SupervisorSpec::new("session", Strategy::RestForOne)
        .intensity(SESSION)
        .child(journal::child_spec(
            journal_slot,
            journal::JournalDeps { uplink: uplink_at.clone(), replicator: replicator_at.clone() },
        ))
        .child(expendable(stream::child_spec(
            replicator_slot,
            stream::ReplicatorDeps {
                journal: journal_at.clone(),
                uplink: uplink_at.clone(),
                identity: Arc::clone(&identity),
                interval: interval_at,
            },
        )))
        .child(choir_locks::child_spec(locks_slot))
        .child(expendable(choir_arbiter::child_spec(
            arbiter_slot,
            ArbiterDeps {
                agent: spec.agent.clone(),
                journal: journal_at.clone(),
                locks: locks_at,
                edge: edge_at.clone(),
                uplink: uplink_at.clone(),
                tools,
            },
        )))
        .child(executors_spec)
        .child(expendable(choir_models::child_spec_in(spec.session, models_slot, None)))
        .child(expendable(choir_lanes::child_spec(
            edge_slot,
            EdgeDeps {
                agent: spec.agent,
                identity: identity::read(spec.choir_dir.as_deref()),
                tools: registry.views(&Lane::Edge).into(),
                journal: journal_at.clone(),
                arbiter: arbiter_at.clone(),
                models: models_at.clone(),
                uplink: uplink_at.clone(),
                adopt: Arc::new(|span, message| set_parent(span, &TraceContext::of_message(message))),
            },
        )));

    let root = SupervisorSpec::new(ROOT, Strategy::OneForOne)
        .child(uplink::child_spec(
            uplink_slot,
            uplink::UplinkDeps {
                connector,
                identity,
                journal: journal_at,
                replicator: replicator_at.clone(),
                arbiter: arbiter_at,
                edge: edge_at.clone(),
                models: models_at,
                interval,
                ended,
            },
        ))
        .child(ChildSpec::supervisor(session))
        .child(reporter::child_spec(edge_at.clone(), uplink_at.clone(), Arc::clone(&cell)));

    let tree = Tree::start(root).await?;
    // Nobody else fills the cell.
    let _ = cell.set(tree.handle());
    Ok(Agent { tree, edge: edge_at, replicator: replicator_at, uplink: uplink_at })
}
