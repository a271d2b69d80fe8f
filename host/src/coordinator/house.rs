//! What a Coordinator and its HTTP front are made of, wherever they run.

use std::sync::Arc;

use choir_chap_http::mcp::{ToolSpec, chap_tools};
use choir_chap_http::{Config as HttpConfig, Listen, child_spec, mailbox_spec};
use choir_coordinator::{Hooks, Settings};
use choir_messages::mail::CoordinatorMsg;
use choir_persistence::chap::ChapStore;
use choir_supervisors::{Address, ChildSpec, mailbox};
use tokio::sync::watch;

/// The parts of a Coordinator, to be put into a tree in this order.
pub(crate) struct House {
    /// The Coordinator.
    pub(crate) coordinator: ChildSpec,
    /// Its mailbox.
    pub(crate) address: Address<CoordinatorMsg>,
    /// The servers before it.
    pub(crate) fronts: Vec<ChildSpec>,
    /// Where each of them listens, once it does.
    pub(crate) bound: Vec<watch::Receiver<Option<Listen>>>,
}

impl House {
    /// A Coordinator over this store with these servers.
    pub(crate) fn new(store: ChapStore, settings: Settings, hooks: Hooks, servers: Vec<HttpConfig>) -> Self {
        let (spec, address) = choir_coordinator::spec(store, settings, hooks);
        let tools: Arc<[ToolSpec]> = chap_tools().into();
        let mut bound = Vec::with_capacity(servers.len());
        let mut fronts = Vec::with_capacity(servers.len());
        for (number, server) in servers.into_iter().enumerate() {
            let name = if number == 0 { "http".to_owned() } else { format!("http-{number}") };
            let (_, slot) = mailbox(&name, mailbox_spec());
            let (tell, hear) = watch::channel(None);
            fronts.push(child_spec(slot, server, address.clone(), Arc::clone(&tools), tell));
            bound.push(hear);
        }
        Self { coordinator: ChildSpec::supervisor(spec), address, fronts, bound }
    }
}
