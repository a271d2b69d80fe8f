//! choird itself: the start-up sequence (`choir §6.2`), the tree (DESIGN §3), the front, the ordered end.

mod admission;
mod boot;
mod changes;
mod coordinator;
mod database;
pub(crate) mod disk;
pub(crate) mod doctor;
mod front;
mod leases;
pub(crate) mod ledger;
mod links;
mod ops;
mod recovery;
mod roster;
mod settings;
mod shared;
mod signals;
mod streams;

pub use boot::{BootError, Options, find_agent_binary, run};
pub use coordinator::CoordinatorError;
pub(crate) use leases::{LeaseError, LeasesMsg};
pub(crate) use links::Carrier;
pub use links::CarrierError;
pub use settings::Settings;
pub(crate) use shared::Host;
pub(crate) use signals::Signals;
