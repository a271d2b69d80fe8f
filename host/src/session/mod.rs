//! One agent's session on the host: its life ([`core`]), its heart ([`watchdog`]), what goes in ([`inbox`]) and what
//! comes out ([`outbox`]) as rules; and the actors that carry them out, one file each (`*_actor`, `gate`, `sandbox`,
//! `replica`), put together in `parts`.

mod alarm;
pub mod core;
mod delivery_actor;
mod gate;
pub mod inbox;
mod launch;
pub mod outbox;
mod parts;
mod pusher_actor;
mod replica;
mod sandbox;
mod session_actor;
mod session_mail;
mod verbs;
pub mod watchdog;
mod watchdog_actor;

use std::collections::BTreeMap;
use std::time::Duration;

use choir_messages::id::{LeaseId, SessionId};

pub(crate) use delivery_actor::{OutboxMsg, SOURCE};
pub(crate) use gate::GateMsg;
pub(crate) use parts::{AgentHandle, agent_spec};
pub(crate) use pusher_actor::InboxMsg;
pub(crate) use replica::ReplicaMsg;
pub(crate) use session_mail::{Overrides, SessionMsg};

/// A moment, as the time since choird started. The cores below read no clock.
pub type Now = Duration;

/// What one sandbox was started under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) attempt: self::core::Attempt,
    pub(crate) session: SessionId,
    pub(crate) lease: LeaseId,
    pub(crate) generation: u64,
    pub(crate) llm: String,
    pub(crate) bindings: BTreeMap<String, String>,
}
