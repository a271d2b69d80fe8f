//! The CHAP Coordinator as actors: one supervised actor a workspace around the rules of `choir-chap`, over a store of
//! `choir-persistence`. Transports and agents' sessions send it [`CoordinatorMsg`]; whoever assembles the tree calls
//! [`spec`].
//!
//! What it promises:
//!
//! - An answer is given only once what it says is stored. Calls that wait together share a commit, within a workspace
//!   and across workspaces.
//! - Every call is answered, or its asker is told that nothing was done, or that nobody knows. A killed workspace actor
//!   costs its callers a latency; it comes back from the store with nothing lost and nothing twice.
//! - What has a deadline meets it: one alarm serves all workspaces, and what fell due while the Coordinator was down is
//!   seen to when it is up.
//! - Everything is bounded: live workspaces, queues, calls a participant may have under way, those who wait for notices.
//!   Whoever is over a bound is told at once, and nothing was done.
//!
//! ```text
//! coordinator                 one_for_one
//! ├─ inboxes                  who waits for notices
//! ├─ pen                      stores, then answers
//! ├─ timers                   the earliest deadline
//! ├─ catalogue                which workspaces there are
//! ├─ floor                    rest_for_one
//! │   ├─ dispatcher           starts and ends workspaces' actors; has verified what is presented
//! │   └─ workspaces           dynamic: one actor a live workspace
//! └─ router                   reads calls, and sends each to its workspace's actor
//! ```

mod alarm;
mod catalogue;
mod dispatcher;
mod fresh;
mod gauge;
mod inboxes;
mod job;
pub mod limits;
mod pen;
mod rates;
mod router;
mod seats;
mod settings;
mod timers;
mod workspace;

pub use settings::{Attest, Clock, HookFuture, Hooks, Presentation, Quota, Settings};

use std::sync::Arc;

use choir_messages::mail::CoordinatorMsg;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Address, ChildSpec, DynamicSpec, Intensity, Strategy, SupervisorSpec, mailbox};

use dispatcher::Deps;
use pen::Pen;
use rates::Quotas;
use seats::Seats;
use workspace::Surroundings;

/// The Coordinator over a store: its tree, named `coordinator`, and the address of its mailbox. The address may be given
/// away before the tree runs; what is sent early waits.
///
/// Without a verifier in the hooks no tokens and no presentations are looked at, whatever the settings say.
#[must_use]
pub fn spec(store: ChapStore, settings: Settings, hooks: Hooks) -> (SupervisorSpec, Address<CoordinatorMsg>) {
    let mut settings = settings;
    settings.rules.verify_oidc &= hooks.attest.is_some();
    settings.rules.verify_vc &= hooks.attest.is_some();
    let rules = Arc::new(settings.rules.clone());

    let (inboxes, inboxes_slot) = mailbox("inboxes", inboxes::MAILBOX);
    let (_, pen_slot) = mailbox("pen", pen::MAILBOX);
    let (timers, timers_slot) = mailbox("timers", timers::MAILBOX);
    let (dispatcher, dispatcher_slot) = mailbox("dispatcher", dispatcher::MAILBOX);
    let (catalogue, catalogue_slot) = mailbox("catalogue", catalogue::MAILBOX);
    let (router, router_slot) = mailbox("router", router::MAILBOX);
    // Twice the live ones: those that are ending still count.
    let (workspaces, workspaces_spec) = DynamicSpec::with(
        "workspaces",
        Intensity::new(limits::RESTARTS, limits::RESTARTS_WITHIN),
        settings.live_workspaces.max(1).saturating_mul(2),
    );

    let pen = Pen::new(store.clone(), inboxes.clone(), timers);
    let pen_child = pen::child(pen_slot, &pen);
    let around = Arc::new(Surroundings {
        store: store.clone(),
        rules: Arc::clone(&rules),
        clock: Arc::clone(&hooks.clock),
        pen,
        inboxes,
    });
    let (seats, quotas) = (Seats::default(), Quotas::new(settings.quota));
    let door = router::Deps {
        rules,
        attests: hooks.attest.is_some(),
        dispatcher: dispatcher.clone(),
        catalogue,
        seats: seats.clone(),
        quotas: quotas.clone(),
    };
    let deps = Deps { settings: Arc::new(settings), hooks: hooks.clone(), around, workspaces, seats, quotas };
    let floor = SupervisorSpec::new("floor", Strategy::RestForOne)
        .child(dispatcher::child(dispatcher_slot, deps))
        .child(workspaces_spec);
    let tree = SupervisorSpec::new("coordinator", Strategy::OneForOne)
        .child(inboxes::child(inboxes_slot, store.clone(), Arc::clone(&hooks.clock)))
        .child(pen_child)
        .child(timers::child(timers_slot, store.clone(), hooks.clock, dispatcher))
        .child(catalogue::child(catalogue_slot, store))
        .child(ChildSpec::supervisor(floor))
        .child(router::child(router_slot, door));
    (tree, router)
}
