//! The router: the Coordinator's door. Reads a call once and passes it on: to its workspace's actor where there is one, and
//! to the dispatcher where there is more to do. Waits for nothing.

use std::sync::Arc;

use choir_chap::{Attested, Call};
use choir_messages::id::MessageId;
use choir_messages::mail::{Caller, CoordinatorMsg};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull};

use crate::catalogue::CatalogueMsg;
use crate::dispatcher::{DispatchMsg, sender};
use crate::gauge::{Gauge, Held};
use crate::job::{Asker, Job, Reply};
use crate::limits::{READ_INLINE, ROUTER_MAILBOX};
use crate::rates::Quotas;
use crate::seats::Seats;
use crate::workspace::WorkspaceMsg;

/// A caller that finds it full is told at once.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: ROUTER_MAILBOX, when_full: WhenFull::Refuse };

/// What every incarnation of the router is given.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) rules: Arc<choir_chap::Settings>,
    /// Whether somebody verifies what calls present.
    pub(crate) attests: bool,
    pub(crate) dispatcher: Address<DispatchMsg>,
    pub(crate) catalogue: Address<CatalogueMsg>,
    pub(crate) seats: Seats,
    pub(crate) quotas: Quotas,
}

pub(crate) struct Router {
    deps: Deps,
    /// Calls that the dispatcher has not passed on yet.
    in_line: Gauge,
}

pub(crate) fn child(slot: Slot<CoordinatorMsg>, deps: Deps) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let deps = deps.clone();
        async move { Ok(Router { deps, in_line: Gauge::new() }) }
    })
}

impl Router {
    /// Passes a call on. Whoever has no room for it drops it, which tells its asker.
    fn pass(&self, call: Call, caller: Caller, mut asker: Asker) {
        let Some((address, seated)) = self.seat(&call) else {
            let (call, in_line) = (Box::new(call), Some(self.in_line.hold()));
            let _ = self.deps.dispatcher.try_send(DispatchMsg::Call { call, caller, asker, in_line });
            return;
        };
        let Some(admitted) = self.deps.quotas.admit(sender(&call, &caller)) else { return };
        asker.hold(admitted);
        asker.hold(seated);
        let _ = address.try_send(WorkspaceMsg::Call(Job::new(call, caller, Attested::default(), asker)));
    }

    /// Where a call can go at once. Behind one that the dispatcher still has, a call goes the same way: whoever sends
    /// several without waiting for answers may count on their order.
    fn seat(&self, call: &Call) -> Option<(Address<WorkspaceMsg>, Held)> {
        let to_verify = self.deps.attests && call.presented(&self.deps.rules).is_some();
        if to_verify || self.in_line.count() > 0 {
            return None;
        }
        self.deps.seats.of(call.workspace()?)
    }
}

impl Actor for Router {
    type Msg = CoordinatorMsg;

    async fn handle(
        &mut self,
        msg: CoordinatorMsg,
        _cx: &mut Context<CoordinatorMsg>,
    ) -> Result<(), Failure> {
        match msg {
            CoordinatorMsg::Call { bytes, caller, reply } => {
                let asker = Asker::new(Reply::Bytes(reply));
                if bytes.len() > READ_INLINE {
                    let _ = self.deps.dispatcher.try_send(DispatchMsg::Read { bytes, caller, asker });
                } else {
                    match Call::parse(&bytes, &self.deps.rules) {
                        Ok(call) => self.pass(call, caller, asker),
                        Err(answer) => asker.answer("none", answer),
                    }
                }
            }
            CoordinatorMsg::Ask { method, params, caller, reply } => {
                let asker = Asker::new(Reply::Value(reply));
                match Call::of(&MessageId::fresh().to_string(), &method, params, &self.deps.rules) {
                    Ok(call) => self.pass(call, caller, asker),
                    Err(answer) => asker.answer("none", answer),
                }
            }
            CoordinatorMsg::Inbox { workspace, participant, after, limit, wait, caller, reply } => {
                let ask = crate::inboxes::Ask::new(workspace, participant, after, limit, wait, reply);
                let _ = self.deps.dispatcher.try_send(DispatchMsg::Inbox { ask, caller });
            }
            CoordinatorMsg::Workspaces { after, limit, reply } => {
                let _ = self.deps.catalogue.try_send(CatalogueMsg { after, limit, reply });
            }
        }
        Ok(())
    }
}
