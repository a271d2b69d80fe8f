//! How this process makes a link: to the host's socket or port, as the bootstrap names it. Every secret that comes over the link
//! is made known to the scrubber before anyone else sees it.

use std::sync::Arc;
use std::time::Duration;

use choir_link::{LinkSecret, Target, Uplink};
use choir_messages::id::SessionId;
use choir_messages::wire::{BoxFuture, ControlPlane, Envelope, LinkAddress, LinkError, Reply, SignalHandler};
use choir_replicator::limits::CONNECT;
use choir_replicator::uplink::Connector;
use choir_telemetry::Scrubber;

/// Connects to the host, over whichever carrier it chose.
pub(crate) struct HostConnector {
    target: Target,
    secret: LinkSecret,
    session: SessionId,
    handler: Arc<dyn SignalHandler>,
    scrubber: Scrubber,
}

impl HostConnector {
    pub(crate) fn new(
        address: LinkAddress,
        secret: LinkSecret,
        session: SessionId,
        handler: Arc<dyn SignalHandler>,
        scrubber: Scrubber,
    ) -> Self {
        Self { target: Target::from(address), secret, session, handler, scrubber }
    }
}

impl Connector for HostConnector {
    fn connect(&self) -> BoxFuture<'static, Result<Arc<dyn ControlPlane>, LinkError>> {
        let (target, secret) = (self.target.clone(), self.secret.clone());
        let (session, handler) = (self.session, Arc::clone(&self.handler));
        let scrubber = self.scrubber.clone();
        Box::pin(async move {
            match choir_link::connect(&target, &secret, session, handler, CONNECT).await {
                Ok(uplink) => Ok(Arc::new(Scrubbed { uplink, scrubber }) as Arc<dyn ControlPlane>),
                Err(error) => {
                    tracing::warn!(%error, "no link to the host yet");
                    Err(LinkError::Down)
                }
            }
        })
    }
}

/// A link whose secrets are known to the scrubber.
struct Scrubbed {
    uplink: Uplink,
    scrubber: Scrubber,
}

impl ControlPlane for Scrubbed {
    fn call(&self, envelope: Envelope, deadline: Duration) -> BoxFuture<'_, Result<Reply, LinkError>> {
        Box::pin(async move {
            let reply = self.uplink.call(envelope, deadline).await?;
            if let Reply::Secrets { values } = &reply {
                for (name, value) in values {
                    if !self.scrubber.add(value) {
                        tracing::warn!(name, "this secret is too short to be looked for in logs");
                    }
                }
            }
            Ok(reply)
        })
    }

    fn closed(&self) -> BoxFuture<'_, ()> {
        self.uplink.closed()
    }
}
