//! Brings the store's hints about what changed to the agents' inbox and outbox actors. A hint lost here costs time,
//! never a message: both look at the tables by themselves now and then.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_persistence::Store;
use choir_persistence::store::changes::{ChangeKind, Changes, ChangesError};
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, WhenFull, mailbox};

use super::shared::Host;

/// Time the store may take to open, Postgres' own start included.
const STORE: Duration = Duration::from_secs(120);

/// The relay's only message: the store was closed.
struct Closed;

impl Mail for Closed {
    fn label(&self) -> &'static str {
        "closed"
    }
}

struct Relay {
    host: Arc<Host>,
    store: Option<Store>,
}

/// Starts once the store is open, so whatever starts after it finds a store.
pub(crate) fn child_spec(host: Arc<Host>) -> ChildSpec {
    let (_, slot) = mailbox("changes", MailboxSpec { capacity: 4, when_full: WhenFull::Refuse });
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move {
            let store = host.store_within(STORE).await;
            let store = store.ok_or_else(|| Failure::new("the database did not open in time"))?;
            Ok(Relay { host, store: Some(store) })
        }
    })
    .start_within(STORE)
}

impl Actor for Relay {
    type Msg = Closed;

    async fn started(&mut self, cx: &mut Context<Closed>) -> Result<(), Failure> {
        let Some(store) = self.store.take() else { return Ok(()) };
        let mut changes = store.changes();
        drop(store);
        let host = Arc::clone(&self.host);
        // Whatever changed while nobody listened.
        host.roster.tell_everything_changed();
        let pump = async move { while pass_on(&host, &mut changes).await {} };
        cx.pipe_to_self(pump, |()| Closed)?;
        Ok(())
    }

    async fn handle(&mut self, Closed: Closed, cx: &mut Context<Closed>) -> Result<(), Failure> {
        cx.stop();
        Ok(())
    }
}

async fn pass_on(host: &Host, changes: &mut Changes) -> bool {
    match changes.next().await {
        Ok(change) => {
            match change.kind {
                ChangeKind::Inbox => host.roster.tell_inbox_changed(&change.agent),
                ChangeKind::Outbox => host.roster.tell_outbox_changed(&change.agent),
                ChangeKind::Session | ChangeKind::Journal { .. } => {}
            }
            true
        }
        Err(ChangesError::Missed(_)) => {
            host.roster.tell_everything_changed();
            true
        }
        Err(ChangesError::Closed) => false,
    }
}
