//! The agent's end: dial, recognise the host, attach.

use std::sync::Arc;
use std::time::Duration;

use choir_messages::id::SessionId;
use choir_messages::wire::{SignalHandler, WIRE_VERSION};
use tokio::time::timeout;

use crate::call::{AGENT_PLACES, Uplink};
use crate::frames::FrameReader;
use crate::guard::Side;
use crate::handshake::{HANDSHAKE_FRAME, Refused, introduce};
use crate::limits::LinkLimits;
use crate::link::Link;
use crate::node::{Node, StartError};
use crate::port::Signals;
use crate::reason::CloseReason;
use crate::secret::LinkSecret;
use crate::socket::{DialError, Target, dial};

/// Why there is no link to the host.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens, or the way there is closed; trying again may help.
    #[error("cannot reach the host: {0}")]
    Unreachable(std::io::Error),
    /// The certificate or the encryption does not fit.
    #[error("the host's TLS does not fit: {0}")]
    Tls(std::io::Error),
    /// Not done in time; trying again may help.
    #[error("the host did not take the link within {0:?}")]
    Deadline(Duration),
    /// The host still has an earlier link of this session; trying again helps once that one is gone.
    #[error("the host still has another link of this session")]
    Busy,
    /// Host and agent are of different versions.
    #[error(
        "the host speaks version {0} of the wire and this agent version {WIRE_VERSION}; rebuild the sandbox"
    )]
    Version(u16),
    /// The host does not want this session or secret here; trying again does not help.
    #[error("the host denies this session or its secret; the sandbox was replaced or revoked")]
    Denied,
    /// Whoever listens does not know the secret; nothing was given away. Trying again does not help.
    #[error("whoever listens there does not know the link's secret")]
    NotOurHost,
    /// Whoever listens speaks something else.
    #[error("whoever listens there is not a choird")]
    NotAHost,
    /// The connection ended meanwhile.
    #[error("the link ended while it was made: {0}")]
    Ended(CloseReason),
    /// The local node did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl ConnectError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Deadline(_) | Self::Busy | Self::Ended(_))
    }
}

impl From<Refused> for ConnectError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Busy => Self::Busy,
            Refused::Version(version) => Self::Version(version),
            Refused::Denied => Self::Denied,
            Refused::Stranger => Self::NotOurHost,
            Refused::NotAHost => Self::NotAHost,
            Refused::Closed(reason) => Self::Ended(reason),
        }
    }
}

/// Connects to the host and returns when both sides are ready, at the latest after `deadline`. `handler` gets the
/// host's signals, each in its own task; its future is dropped when the host no longer waits or the link ends.
/// Reconnecting is calling this again: nothing of an ended link is used.
pub async fn connect(
    target: &Target,
    secret: &LinkSecret,
    session: SessionId,
    handler: Arc<dyn SignalHandler>,
    deadline: Duration,
) -> Result<Uplink, ConnectError> {
    connect_with(target, secret, session, handler, deadline, &LinkLimits::default()).await
}

/// [`connect`] with other bounds than the default.
pub async fn connect_with(
    target: &Target,
    secret: &LinkSecret,
    session: SessionId,
    handler: Arc<dyn SignalHandler>,
    deadline: Duration,
    limits: &LinkLimits,
) -> Result<Uplink, ConnectError> {
    let connecting = connecting(target, secret, session, handler, limits);
    timeout(deadline, connecting).await.unwrap_or(Err(ConnectError::Deadline(deadline)))
}

async fn connecting(
    target: &Target,
    secret: &LinkSecret,
    session: SessionId,
    handler: Arc<dyn SignalHandler>,
    limits: &LinkLimits,
) -> Result<Uplink, ConnectError> {
    let stream = dial(target).await.map_err(|error| match error {
        DialError::Io(error) => ConnectError::Unreachable(error),
        DialError::Tls(error) => ConnectError::Tls(error),
    })?;
    let node = Node::start().await?;
    let answer = Arc::new(Signals { handler });
    let (link, caller) =
        Link::attach(&node, Side::Agent, answer, AGENT_PLACES, limits).await.map_err(ConnectError::Ended)?;
    let mut writer = stream.writer;
    let mut reader = FrameReader::new(stream.reader, HANDSHAKE_FRAME);
    introduce(&mut reader, &mut writer, session, secret, limits.handshake).await?;
    tokio::spawn(async move {
        let reason = link.run(reader, writer).await;
        drop(node);
        tracing::info!(%session, reason = reason.label(), "the link to the host ended: {reason}");
    });
    Ok(Uplink::new(caller))
}
