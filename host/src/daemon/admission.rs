//! Sees to it that every agent of the roster has its part of the tree. Their supervisor keeps its children in memory only,
//! so one that was restarted has none: they are set up again here, and their sessions start by themselves if wanted.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::mail::Mail;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, WhenFull, mailbox};

use super::shared::Host;

/// How often the roster is compared with the tree: a comparison of a handful of names.
const LOOK_EVERY: Duration = Duration::from_millis(250);

struct Look;

impl Mail for Look {
    fn label(&self) -> &'static str {
        "look"
    }
}

struct Admission {
    host: Arc<Host>,
}

/// The admission's place in the tree, after the agents' supervisor.
pub(super) fn child_spec(host: Arc<Host>) -> ChildSpec {
    let (_, slot) = mailbox("admission", MailboxSpec { capacity: 1, when_full: WhenFull::Refuse });
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move { Ok::<_, Failure>(Admission { host }) }
    })
}

impl Actor for Admission {
    type Msg = Look;

    async fn started(&mut self, cx: &mut Context<Look>) -> Result<(), Failure> {
        // Here, and not once the tree stands: the front comes after this, and must not deny what is configured.
        self.host.roster.admit_configured(&self.host).await?;
        cx.send_interval(LOOK_EVERY, || Look)?;
        Ok(())
    }

    async fn handle(&mut self, _: Look, _cx: &mut Context<Look>) -> Result<(), Failure> {
        for agent in self.host.roster.readmit_lost(&self.host).await? {
            tracing::warn!(%agent, "set up again: it was lost with its supervisor");
        }
        Ok(())
    }
}
