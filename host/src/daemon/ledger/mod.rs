//! The signed ledger as a part of choird: a desk that begins and follows runs, and a supervisor with one child a run.
//! The roles and their keys live here; tools run in the agents' sandboxes, which know neither.

pub(crate) mod archive;
mod book;
mod desk;
mod hands;
mod ops;
mod tools;
mod tries;

use std::sync::Arc;

use choir_ledger_roles::limits::RUNS;
use choir_messages::mail::LedgerMsg;
use choir_supervisors::{
    Address, ChildSpec, DynamicSpec, Intensity, Slot, Strategy, SupervisorSpec, mailbox,
};

pub(super) use ops::{abort, follow, list, run};

use crate::daemon::Host;

/// The job whose lane the tools of all runs use.
const JOB: &str = "ledger";

/// The desk's mailbox.
pub(super) fn mailbox_of_desk() -> (Address<LedgerMsg>, Slot<LedgerMsg>) {
    mailbox("desk", desk::MAILBOX)
}

/// The ledger's place in the tree.
pub(super) fn child_spec(slot: Slot<LedgerMsg>, host: Arc<Host>) -> ChildSpec {
    // Runs that fail are taken up by the desk, each with its own bound: no run takes the others along.
    let intensity = Intensity { restarts: 1000, within: std::time::Duration::from_secs(10) };
    // Twice the runs there may be: those that are ending still count.
    let (runs, runs_spec) = DynamicSpec::with("runs", intensity, 2 * RUNS);
    let spec = SupervisorSpec::new("ledger", Strategy::OneForOne)
        .intensity(Intensity { restarts: 60, within: std::time::Duration::from_secs(10) })
        .child(runs_spec)
        .child(desk::child_spec(slot, host, runs));
    ChildSpec::supervisor(spec)
}
