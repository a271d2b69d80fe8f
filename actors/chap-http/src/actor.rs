//! The server as a supervised actor: started with the tree, restarted when it fails, ended in order.

use std::sync::Arc;

use choir_messages::mail::{CoordinatorMsg, Mail};
use choir_supervisors::{Actor, Address, ChildSpec, Context, Failure, MailboxSpec, Shutdown, Slot, WhenFull};
use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::watch;

use crate::config::{Config, Listen};
use crate::mcp::ToolSpec;
use crate::serve::{Serving, open, shutdown_within};

/// What the server's actor is told; only by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMsg {
    /// The accept loop is gone.
    Ended,
}

impl Mail for HttpMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Ended => "ended",
        }
    }
}

/// The mailbox the server's actor wants: nobody else writes to it.
#[must_use]
pub const fn mailbox_spec() -> MailboxSpec {
    MailboxSpec { capacity: 1, when_full: WhenFull::Refuse }
}

/// The server as a child: permanent. `bound` learns where it listens, anew after each restart, and `None` while it
/// does not.
pub fn child_spec(
    slot: Slot<HttpMsg>,
    config: Config,
    coordinator: Address<CoordinatorMsg>,
    tools: Arc<[ToolSpec]>,
    bound: watch::Sender<Option<Listen>>,
) -> ChildSpec {
    let within = shutdown_within(config.front.limits.stop_within);
    let bound = Arc::new(bound);
    ChildSpec::worker(slot, move |_| {
        let (config, coordinator) = (config.clone(), coordinator.clone());
        let (tools, bound) = (Arc::clone(&tools), Arc::clone(&bound));
        async move {
            let (serving, accepting) = open(config, coordinator, &tools).await?;
            Ok(HttpServer { serving: Some(serving), accepting: Some(accepting.boxed()), bound })
        }
    })
    .shutdown(Shutdown::Within(within))
}

/// One incarnation: it owns the server.
struct HttpServer {
    serving: Option<Serving>,
    /// The accept loop until it runs. It belongs to the incarnation, so the port is free before the next one wants it.
    accepting: Option<BoxFuture<'static, ()>>,
    bound: Arc<watch::Sender<Option<Listen>>>,
}

impl Actor for HttpServer {
    type Msg = HttpMsg;

    async fn started(&mut self, cx: &mut Context<HttpMsg>) -> Result<(), Failure> {
        if let Some(accepting) = self.accepting.take() {
            cx.pipe_to_self(accepting, |()| HttpMsg::Ended)?;
        }
        self.bound.send_replace(self.serving.as_ref().map(|serving| serving.local().clone()));
        Ok(())
    }

    async fn handle(&mut self, HttpMsg::Ended: HttpMsg, _cx: &mut Context<HttpMsg>) -> Result<(), Failure> {
        Err(Failure::new("the HTTP server accepts no more connections"))
    }

    async fn stopping(&mut self, _cx: &mut Context<HttpMsg>) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown().await;
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.bound.send_replace(None);
    }
}
