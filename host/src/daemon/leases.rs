//! Grants and takes back leases (`choir §6.4`), one request after another, so that two starts never race for a
//! resource in this process; the store's transaction is what makes it true.

use std::sync::Arc;

use choir_messages::id::{AgentId, SessionId};
use choir_messages::mail::Mail;
use choir_messages::reply::ReplyTo;
use choir_persistence::store::sessions::{Binding, OpenError, SessionRow};
use choir_persistence::{Store, StoreError};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};

use super::shared::Host;

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeaseError {
    /// Waiting does not help.
    #[error("{0}")]
    Refused(String),
    /// It may.
    #[error("{0}")]
    Unavailable(String),
}

impl From<OpenError> for LeaseError {
    fn from(error: OpenError) -> Self {
        match &error {
            OpenError::Database(store) if !store.is_transient() && !matches!(store, StoreError::Closed) => {
                Self::Refused(error.to_string())
            }
            OpenError::Database(_) => Self::Unavailable(error.to_string()),
            OpenError::AlreadyActive { .. } | OpenError::ResourceHeld { .. } => {
                Self::Refused(error.to_string())
            }
        }
    }
}

/// What the leases actor is told.
#[derive(Debug)]
pub(crate) enum LeasesMsg {
    /// Open or resume an agent's session with these resources, all or none.
    Open {
        agent: AgentId,
        bindings: Vec<Binding>,
        fresh: bool,
        reply: ReplyTo<Result<SessionRow, LeaseError>>,
    },
    /// Close a session's lease.
    Close { session: SessionId, generation: u64, crashed: bool, reply: ReplyTo<Result<(), LeaseError>> },
    /// Mark whatever session of the agent is still active as crashed: its keeper lost sight of it.
    Reclaim { agent: AgentId, reply: ReplyTo<Result<(), LeaseError>> },
}

impl Mail for LeasesMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Close { .. } => "close",
            Self::Reclaim { .. } => "reclaim",
        }
    }
}

pub(crate) fn child_spec(slot: Slot<LeasesMsg>, host: Arc<Host>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move { Ok(LeasesActor { host }) }
    })
}

struct LeasesActor {
    host: Arc<Host>,
}

impl LeasesActor {
    fn store(&self) -> Result<Store, LeaseError> {
        self.host.store().ok_or_else(|| {
            let why = self.host.health.borrow().trouble.clone();
            LeaseError::Unavailable(why.unwrap_or_else(|| "the database is not open yet".into()))
        })
    }

    async fn open(
        &self,
        agent: &AgentId,
        bindings: &[Binding],
        fresh: bool,
    ) -> Result<SessionRow, LeaseError> {
        let store = self.store()?;
        store.register_agent(agent).await.map_err(unavailable)?;
        Ok(store.open_or_resume_session(agent, bindings, fresh).await?)
    }

    async fn close(&self, session: SessionId, generation: u64, crashed: bool) -> Result<(), LeaseError> {
        let store = self.store()?;
        let marked = if crashed {
            store.mark_crashed(session, generation).await
        } else {
            store.mark_stopped(session, generation).await
        };
        // "Not active under this generation" means that it is closed already.
        marked.map(|_| ()).map_err(unavailable)
    }

    async fn reclaim(&self, agent: &AgentId) -> Result<(), LeaseError> {
        use choir_persistence::store::sessions::SessionStatus;
        let store = self.store()?;
        let rows = store.sessions(Some(agent), 16).await.map_err(unavailable)?;
        for row in rows.iter().filter(|row| row.status == SessionStatus::Active) {
            store.mark_crashed(row.session, row.generation).await.map_err(unavailable)?;
        }
        Ok(())
    }
}

fn unavailable(error: StoreError) -> LeaseError {
    LeaseError::Unavailable(error.to_string())
}

impl Actor for LeasesActor {
    type Msg = LeasesMsg;

    async fn handle(&mut self, msg: LeasesMsg, _cx: &mut Context<LeasesMsg>) -> Result<(), Failure> {
        match msg {
            LeasesMsg::Open { agent, bindings, fresh, reply } => {
                let opened = self.open(&agent, &bindings, fresh).await;
                if let Ok(row) = &opened
                    && reply.is_abandoned()
                {
                    // Nobody would ever close it.
                    self.close(row.session, row.generation, true).await.ok();
                }
                reply.send(opened);
            }
            LeasesMsg::Close { session, generation, crashed, reply } => {
                reply.send(self.close(session, generation, crashed).await);
            }
            LeasesMsg::Reclaim { agent, reply } => reply.send(self.reclaim(&agent).await),
        }
        Ok(())
    }
}
