//! choird itself: the start-up sequence (`choir §6.2`), the tree (DESIGN §3), the front, the ordered end.

mod admission;
mod boot;
mod changes;
mod database;
mod doctor;
mod front;
mod leases;
mod links;
mod ops;
mod recovery;
mod roster;
mod settings;
mod shared;
mod streams;

pub use boot::{BootError, Options, find_agent_binary, run};
pub(crate) use leases::{LeaseError, LeasesMsg};
pub use settings::Settings;
pub(crate) use shared::Host;
