//! The parts of one agent's session, put together: a one_for_one supervisor, since each part is written to find its
//! neighbours restarted.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use choir_messages::id::AgentId;
use choir_sandbox::ProcessIdentity;
use choir_supervisors::{
    Address, ChildSpec, Intensity, MailboxSpec, Shutdown, Strategy, SupervisorSpec, WhenFull, mailbox,
};

use super::core::Attempt;
use super::delivery_actor::{self, OutboxMsg};
use super::gate::{self, GateMsg};
use super::pusher_actor::{self, InboxMsg};
use super::replica::{self, ReplicaMsg};
use super::sandbox::{self, SandboxMsg};
use super::session_actor;
use super::session_mail::SessionMsg;
use super::watchdog_actor::{self, WatchdogMsg};
use crate::daemon::{Host, LeasesMsg};
use crate::limits;

/// What the parts of one agent know of each other.
pub(crate) struct Shared {
    pub(crate) agent: AgentId,
    pub(crate) host: Arc<Host>,
    pub(crate) leases: Address<LeasesMsg>,
    pub(crate) session: Address<SessionMsg>,
    pub(crate) sandbox: Address<SandboxMsg>,
    pub(crate) gate: Address<GateMsg>,
    pub(crate) replica: Address<ReplicaMsg>,
    pub(crate) watchdog: Address<WatchdogMsg>,
    pub(crate) inbox: Address<InboxMsg>,
    /// The last attempt's number, so that a restarted session actor counts on.
    pub(crate) attempts: AtomicU64,
    /// The process that runs, so that a restarted sandbox actor can make sure of its end.
    pub(crate) process: Mutex<Option<(Attempt, ProcessIdentity)>>,
}

/// How others reach one agent.
#[derive(Clone)]
pub(crate) struct AgentHandle {
    pub(crate) agent: AgentId,
    pub(crate) session: Address<SessionMsg>,
    pub(crate) gate: Address<GateMsg>,
    pub(crate) replica: Address<ReplicaMsg>,
    pub(crate) inbox: Address<InboxMsg>,
    pub(crate) outbox: Address<OutboxMsg>,
}

/// The supervisor of one agent, and how to reach what is in it.
pub(crate) fn agent_spec(
    agent: &AgentId,
    host: &Arc<Host>,
    leases: &Address<LeasesMsg>,
) -> (AgentHandle, ChildSpec) {
    let refuse = MailboxSpec { capacity: limits::MAILBOX, when_full: WhenFull::Refuse };
    // Heartbeats wait for the database; the link bounds how many there can be.
    let patient =
        MailboxSpec { capacity: limits::MAILBOX, when_full: WhenFull::Wait(limits::SIGNAL_DEADLINE) };
    // Only the newest matters.
    let hints = MailboxSpec { capacity: limits::MAILBOX, when_full: WhenFull::DropOldest };
    let (session, session_slot) = mailbox("session", patient);
    let (sandbox, sandbox_slot) = mailbox("sandbox", refuse);
    let (gate, gate_slot) = mailbox("gate", patient);
    let (replica, replica_slot) = mailbox("replica", patient);
    let (watchdog, watchdog_slot) = mailbox("watchdog", hints);
    let (inbox, inbox_slot) = mailbox("inbox", patient);
    let (outbox, outbox_slot) = mailbox("outbox", patient);
    let handle = AgentHandle {
        agent: agent.clone(),
        session: session.clone(),
        gate: gate.clone(),
        replica: replica.clone(),
        inbox: inbox.clone(),
        outbox,
    };
    let shared = Arc::new(Shared {
        agent: agent.clone(),
        host: Arc::clone(host),
        leases: leases.clone(),
        session,
        sandbox,
        gate,
        replica,
        watchdog,
        inbox,
        attempts: AtomicU64::new(0),
        process: Mutex::new(None),
    });
    let spec = SupervisorSpec::new(agent.as_str(), Strategy::OneForOne)
        .intensity(Intensity { restarts: 30, within: std::time::Duration::from_secs(10) })
        .child(outbox_spec(outbox_slot, &shared))
        .child(pusher_actor::child_spec(inbox_slot, Arc::clone(&shared)))
        .child(watchdog_actor::child_spec(watchdog_slot, Arc::clone(&shared)))
        .child(replica::child_spec(replica_slot, Arc::clone(&shared)))
        .child(gate::child_spec(gate_slot, Arc::clone(&shared)))
        .child(sandbox::child_spec(sandbox_slot, Arc::clone(&shared)))
        .child(
            session_actor::child_spec(session_slot, shared)
                .shutdown(Shutdown::Within(limits::STOP_WITHIN + limits::GONE_WITHIN)),
        );
    (handle, ChildSpec::supervisor(spec))
}

fn outbox_spec(slot: choir_supervisors::Slot<OutboxMsg>, shared: &Arc<Shared>) -> ChildSpec {
    delivery_actor::child_spec(slot, Arc::clone(shared))
}
