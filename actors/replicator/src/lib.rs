//! What keeps an agent's log and gets it to the host: the journal ([`journal`]) owns the events, the replicator
//! ([`stream`]) streams them up and carries acknowledgements back, the uplink ([`uplink`]) keeps one link to the host.
//!
//! The arbiter appends to the journal; lanes and arbiter rebuild from it after a crash of their own. Promised: an event
//! is in the journal before anyone hears of it, an acknowledged event is durable on the host, and after a loss of the
//! whole process the session goes on from the last acknowledged revision (`choir §7.4`, `choir §13`, DESIGN §5).

pub mod identity;
pub mod journal;
pub mod limits;
pub mod stream;
pub mod uplink;
