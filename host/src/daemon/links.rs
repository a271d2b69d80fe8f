//! The link's node as an actor: one per process, started anew when it has died.

use std::sync::Arc;
use std::time::Duration;

use choir_link::Links;
use choir_messages::mail::Mail;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, MailboxSpec, WhenFull, mailbox};

use super::shared::Host;

/// How often the node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

struct Look;

impl Mail for Look {
    fn label(&self) -> &'static str {
        "look"
    }
}

struct LinksActor {
    links: Links,
}

pub(crate) fn child_spec(host: Arc<Host>) -> ChildSpec {
    let (_, slot) = mailbox("links", MailboxSpec { capacity: 4, when_full: WhenFull::DropOldest });
    ChildSpec::worker(slot, move |_| {
        let host = Arc::clone(&host);
        async move {
            let current = host.links.borrow().clone().filter(Links::is_alive);
            let links = match current {
                Some(links) => links,
                None => Links::start().await?,
            };
            host.links.send_replace(Some(links.clone()));
            Ok(LinksActor { links })
        }
    })
}

impl Actor for LinksActor {
    type Msg = Look;

    async fn started(&mut self, cx: &mut Context<Look>) -> Result<(), Failure> {
        cx.send_interval(LOOK_EVERY, || Look)?;
        Ok(())
    }

    async fn handle(&mut self, Look: Look, _cx: &mut Context<Look>) -> Result<(), Failure> {
        if self.links.is_alive() { Ok(()) } else { Err(Failure::new("the link's node has ended")) }
    }
}
