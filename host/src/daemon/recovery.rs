//! Cleans up after an earlier choird (`choir §6.2`, steps 6 and 7), once, before any agent may start: its orphaned
//! agents are killed, the sessions it left active are marked crashed, their leases released.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_sandbox::end_orphans;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, Restart, WhenFull, mailbox};

use super::shared::Host;

/// Time the store may take to open.
const STORE: Duration = Duration::from_secs(60);

struct Nothing;

impl Mail for Nothing {
    fn label(&self) -> &'static str {
        "nothing"
    }
}

struct Recovery;

pub(crate) fn child_spec(host: Arc<Host>) -> ChildSpec {
    let (_, slot) = mailbox("recovery", MailboxSpec { capacity: 1, when_full: WhenFull::Refuse });
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move {
            let orphans = end_orphans(&host.label()).await?;
            tracing::info!(killed = orphans, "orphaned agents of an earlier choird are gone");
            let store = host.store_within(STORE).await;
            let store = store.ok_or_else(|| Failure::new("the database did not open in time"))?;
            let left = store.clean_up_after_crash().await?;
            for (agent, session) in &left.crashed {
                tracing::warn!(%agent, %session, "the session was active when an earlier choird ended; marked crashed");
            }
            tracing::info!(
                crashed = left.crashed.len(),
                ambiguous = left.ambiguous,
                "leases of an earlier choird are released"
            );
            Ok(Recovery)
        }
    })
    .restart(Restart::Transient)
    .start_within(STORE)
}

impl Actor for Recovery {
    type Msg = Nothing;

    async fn started(&mut self, cx: &mut Context<Nothing>) -> Result<(), Failure> {
        cx.stop();
        Ok(())
    }

    async fn handle(&mut self, Nothing: Nothing, _cx: &mut Context<Nothing>) -> Result<(), Failure> {
        Ok(())
    }
}
