//! The router: the Coordinator's door. Reads a call once and passes it on; holds nothing, waits for nothing.

use std::sync::Arc;

use choir_chap::Call;
use choir_messages::id::MessageId;
use choir_messages::mail::{Caller, CoordinatorMsg};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Slot, WhenFull};

use crate::catalogue::CatalogueMsg;
use crate::dispatcher::DispatchMsg;
use crate::job::{Asker, Reply};
use crate::limits::{READ_INLINE, ROUTER_MAILBOX};

/// A caller that finds it full is told at once.
pub(crate) const MAILBOX: MailboxSpec = MailboxSpec { capacity: ROUTER_MAILBOX, when_full: WhenFull::Refuse };

pub(crate) struct Router {
    rules: Arc<choir_chap::Settings>,
    dispatcher: Address<DispatchMsg>,
    catalogue: Address<CatalogueMsg>,
}

pub(crate) fn child(
    slot: Slot<CoordinatorMsg>,
    rules: Arc<choir_chap::Settings>,
    dispatcher: Address<DispatchMsg>,
    catalogue: Address<CatalogueMsg>,
) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let (rules, dispatcher, catalogue) = (Arc::clone(&rules), dispatcher.clone(), catalogue.clone());
        async move { Ok(Router { rules, dispatcher, catalogue }) }
    })
}

impl Router {
    /// Passes a call on. A full dispatcher drops it, which tells its asker.
    fn pass(&self, call: Call, caller: Caller, asker: Asker) {
        let _ = self.dispatcher.try_send(DispatchMsg::Call { call: Box::new(call), caller, asker });
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
                    let _ = self.dispatcher.try_send(DispatchMsg::Read { bytes, caller, asker });
                } else {
                    match Call::parse(&bytes, &self.rules) {
                        Ok(call) => self.pass(call, caller, asker),
                        Err(answer) => asker.answer("none", answer),
                    }
                }
            }
            CoordinatorMsg::Ask { method, params, caller, reply } => {
                let asker = Asker::new(Reply::Value(reply));
                match Call::of(&MessageId::fresh().to_string(), &method, params, &self.rules) {
                    Ok(call) => self.pass(call, caller, asker),
                    Err(answer) => asker.answer("none", answer),
                }
            }
            CoordinatorMsg::Inbox { workspace, participant, after, limit, wait, caller, reply } => {
                let ask = crate::inboxes::Ask::new(workspace, participant, after, limit, wait, reply);
                let _ = self.dispatcher.try_send(DispatchMsg::Inbox { ask, caller });
            }
            CoordinatorMsg::Workspaces { after, limit, reply } => {
                let _ = self.catalogue.try_send(CatalogueMsg { after, limit, reply });
            }
        }
        Ok(())
    }
}
