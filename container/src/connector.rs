//! How this process makes a link: the host's socket, as the bootstrap names it.

use std::path::PathBuf;
use std::sync::Arc;

use choir_link::{LinkSecret, Target};
use choir_messages::id::SessionId;
use choir_messages::wire::{BoxFuture, ControlPlane, LinkError, SignalHandler};
use choir_replicator::limits::CONNECT;
use choir_replicator::uplink::Connector;

/// Connects over the Unix socket.
pub(crate) struct UdsConnector {
    socket: PathBuf,
    secret: LinkSecret,
    session: SessionId,
    handler: Arc<dyn SignalHandler>,
}

impl UdsConnector {
    pub(crate) fn new(
        socket: PathBuf,
        secret: LinkSecret,
        session: SessionId,
        handler: Arc<dyn SignalHandler>,
    ) -> Self {
        Self { socket, secret, session, handler }
    }
}

impl Connector for UdsConnector {
    fn connect(&self) -> BoxFuture<'static, Result<Arc<dyn ControlPlane>, LinkError>> {
        let (target, secret) = (Target::Unix(self.socket.clone()), self.secret.clone());
        let (session, handler) = (self.session, Arc::clone(&self.handler));
        Box::pin(async move {
            match choir_link::connect(target, secret, session, handler, CONNECT).await {
                Ok(uplink) => Ok(Arc::new(uplink) as Arc<dyn ControlPlane>),
                Err(error) => {
                    tracing::warn!(%error, "no link to the host yet");
                    Err(LinkError::Down)
                }
            }
        })
    }
}
