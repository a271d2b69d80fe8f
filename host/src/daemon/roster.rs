//! Who is there: how to reach each agent's session. Agents join when they are configured and stay until choird ends, so
//! that a removed one can still be stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use choir_messages::id::AgentId;
use choir_supervisors::{Address, DynamicError, DynamicHandle};

use super::leases::LeasesMsg;
use super::shared::Host;
use crate::session::{AgentHandle, GateMsg, InboxMsg, OutboxMsg, SessionMsg, agent_spec};

/// The agents by name.
pub(crate) struct Roster {
    agents: RwLock<BTreeMap<AgentId, AgentHandle>>,
    children: DynamicHandle,
    leases: Address<LeasesMsg>,
    admitting: tokio::sync::Mutex<()>,
}

impl Roster {
    pub(crate) fn new(children: DynamicHandle, leases: Address<LeasesMsg>) -> Self {
        Self { agents: RwLock::default(), children, leases, admitting: tokio::sync::Mutex::new(()) }
    }

    /// Sets up every configured agent that is not there yet. Its session starts by itself if the agent is wanted.
    pub(crate) async fn admit_configured(&self, host: &Arc<Host>) -> Result<(), DynamicError> {
        let _one_at_a_time = self.admitting.lock().await;
        let settings = host.settings();
        for agent in settings.config.agents.keys() {
            if self.get(agent).is_some() {
                continue;
            }
            if let Err(error) = self.set_up(agent, host).await {
                self.agents.write().unwrap_or_else(PoisonError::into_inner).remove(agent);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sets up again what was lost with its supervisor, which starts empty. Returns whom.
    pub(crate) async fn readmit_lost(&self, host: &Arc<Host>) -> Result<Vec<AgentId>, DynamicError> {
        let _one_at_a_time = self.admitting.lock().await;
        let there: BTreeSet<String> =
            self.children.which_children().into_iter().map(|node| node.path).collect();
        let lost = |agent: &AgentId| !there.iter().any(|path| path.ends_with(&format!("/{agent}")));
        let lost: Vec<AgentId> = self.all().into_iter().map(|handle| handle.agent).filter(lost).collect();
        for agent in &lost {
            self.set_up(agent, host).await?;
        }
        Ok(lost)
    }

    async fn set_up(&self, agent: &AgentId, host: &Arc<Host>) -> Result<(), DynamicError> {
        let (handle, spec) = agent_spec(agent, host, &self.leases);
        // Known before it starts: its parts look each other up.
        self.agents.write().unwrap_or_else(PoisonError::into_inner).insert(agent.clone(), handle);
        self.children.start_child(spec).await?;
        Ok(())
    }

    pub(crate) fn get(&self, agent: &AgentId) -> Option<AgentHandle> {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).get(agent).cloned()
    }

    pub(crate) fn all(&self) -> Vec<AgentHandle> {
        self.agents.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    // What follows are hints: a full mailbox means that its owner will look anyway.

    pub(crate) fn tell_inbox_changed(&self, agent: &AgentId) {
        if let Some(handle) = self.get(agent) {
            let _ = handle.inbox.try_send(InboxMsg::Changed);
        }
    }

    pub(crate) fn tell_outbox_changed(&self, agent: &AgentId) {
        if let Some(handle) = self.get(agent) {
            let _ = handle.outbox.try_send(OutboxMsg::Changed);
        }
    }

    pub(crate) fn tell_everything_changed(&self) {
        for handle in self.all() {
            let _ = handle.inbox.try_send(InboxMsg::Changed);
            let _ = handle.outbox.try_send(OutboxMsg::Changed);
        }
    }

    /// Tells every agent's gate that there are newer settings; returns whom.
    pub(crate) fn tell_settings_changed(&self, version: u64) -> Vec<AgentId> {
        let told = |handle: &AgentHandle| handle.gate.try_send(GateMsg::ConfigChanged { version }).is_ok();
        self.all().into_iter().filter(told).map(|handle| handle.agent).collect()
    }

    /// Stops every agent in order, all at once, and returns when they are gone or `deadline` has passed.
    pub(crate) async fn quit_all(&self, deadline: Duration) {
        let mut leaving = tokio::task::JoinSet::new();
        for handle in self.all() {
            leaving.spawn(async move {
                let left = handle.session.call(deadline, |reply| SessionMsg::Quit { reply }).await;
                if let Err(error) = left {
                    tracing::warn!(agent = %handle.agent, %error, "the agent did not stop in order");
                }
            });
        }
        while leaving.join_next().await.is_some() {}
    }
}
