//! One live link: the gate actor, the node's session and the two pumps between socket and node, each frame judged by
//! the guard and written anew. All of it ends together, for one reason.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::call::Caller;
use crate::frames::{FrameReader, Reader, Writer, write};
use crate::guard::{FromNode, FromPeer, Guard, Side};
use crate::limits::{FRAME, LinkLimits, NODE_STEP, REPLY_GRACE};
use crate::node::{Node, Session};
use crate::port::{Answer, RunningGate};
use crate::reason::CloseReason;
use crate::shared::Shared;
use crate::wire::Frame;

/// Payloads up to this size are copied behind their head and written in one piece.
const COPY: usize = 4 * 1024;

/// A link that the local node has taken in, before its pumps run.
pub(crate) struct Link {
    shared: Arc<Shared>,
    gate: RunningGate,
    session: Session,
    limits: LinkLimits,
}

impl Link {
    /// Starts the gate, gives the node a session, and makes the caller for the other direction.
    pub(crate) async fn attach(
        node: &Node,
        side: Side,
        answer: Arc<dyn Answer>,
        (slots, slow): (usize, usize),
        limits: &LinkLimits,
    ) -> Result<(Self, Caller), CloseReason> {
        // Before the session, so that the node counts the gate among what this session may reach.
        let gate = RunningGate::start(answer).await.ok_or(CloseReason::GateGone)?;
        let guard = Guard::new(side, gate.pid(), limits, std::time::Instant::now());
        let shared = Arc::new(Shared::new(guard));
        gate.open(shared.clone());
        let session = node.attach().await?;
        let stand_in = session.stand_in().ok_or(CloseReason::NodeGone)?;
        let caller = Caller::new(stand_in, shared.clone(), slots, slow);
        Ok((Self { shared, gate, session, limits: limits.clone() }, caller))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs until something ends it, and returns once nothing of it is left in this process.
    pub(crate) async fn run(self, mut reader: FrameReader<Reader>, mut writer: Writer) -> CloseReason {
        let Self { shared, mut gate, session, limits } = self;
        let Session { mut to_node, mut from_node, mut end } = session;
        reader.allow(FRAME);
        let reason = tokio::select! {
            biased;
            reason = shared.closed() => reason,
            () = gate.ended() => CloseReason::GateGone,
            reason = inbound(&shared, &mut reader, &mut to_node, &limits) => reason,
            reason = outbound(&shared, &mut from_node, &mut writer, &limits) => reason,
        };
        shared.close(reason);
        drop((reader, writer, to_node, from_node));
        gate.end(NODE_STEP).await;
        end.gone().await;
        shared.reason().unwrap_or(reason)
    }
}

fn one_piece(frame: &Frame<'_>, head: &mut Vec<u8>) -> bool {
    head.clear();
    frame.head(head);
    let small = frame.payload().len() <= COPY;
    if small {
        head.extend_from_slice(frame.payload());
    }
    small
}

async fn put<W: tokio::io::AsyncWrite + Unpin>(
    frame: &Frame<'_>,
    head: &mut Vec<u8>,
    writer: &mut W,
    deadline: std::time::Duration,
    late: CloseReason,
) -> Result<(), CloseReason> {
    let small = one_piece(frame, head);
    write(writer, head, deadline, late).await?;
    if small { Ok(()) } else { write(writer, frame.payload(), deadline, late).await }
}

/// From the peer to the node.
async fn inbound(
    shared: &Shared,
    reader: &mut FrameReader<Reader>,
    to_node: &mut tokio::io::DuplexStream,
    limits: &LinkLimits,
) -> CloseReason {
    let mut head = Vec::new();
    loop {
        let step = async {
            reader.fill(limits.frame).await?;
            let frame = Frame::parse(reader.frame()).map_err(|_| CloseReason::MalformedFrame)?;
            loop {
                let judged = shared.guard().from_peer(&frame, std::time::Instant::now())?;
                let FromPeer::Forward(frame) = judged else {
                    // Nothing is read meanwhile. Every call is answered within its deadline, so room comes.
                    timeout(limits.call + 2 * REPLY_GRACE, shared.room.notified())
                        .await
                        .map_err(|_| CloseReason::NodeStalled)?;
                    continue;
                };
                return put(&frame, &mut head, to_node, NODE_STEP, CloseReason::NodeStalled)
                    .await
                    .map_err(of_the_node);
            }
        };
        if let Err(reason) = step.await {
            return reason;
        }
        reader.consume();
    }
}

/// From the node to the peer.
async fn outbound(
    shared: &Shared,
    from_node: &mut FrameReader<tokio::io::DuplexStream>,
    writer: &mut Writer,
    limits: &LinkLimits,
) -> CloseReason {
    let mut head = Vec::new();
    loop {
        if let Err(reason) = from_node.fill(NODE_STEP).await {
            return of_the_node(reason);
        }
        let step = async {
            let frame = Frame::parse(from_node.frame()).map_err(|_| CloseReason::NodeGone)?;
            let judged = shared.guard().from_node(&frame)?;
            if let FromNode::Send(frame, written) = judged {
                put(&frame, &mut head, writer, limits.write, CloseReason::WriteDeadline).await?;
                shared.written(written);
            }
            Ok(())
        };
        if let Err(reason) = step.await {
            return reason;
        }
        from_node.consume();
        if !from_node.has_frame() {
            match timeout(limits.write, writer.flush()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.into(),
                Err(_) => return CloseReason::WriteDeadline,
            }
        }
    }
}

/// The end of a pipe to the node is the node's end, not the peer's.
fn of_the_node(reason: CloseReason) -> CloseReason {
    match reason {
        CloseReason::PeerClosed | CloseReason::Io(_) => CloseReason::NodeGone,
        CloseReason::FrameDeadline => CloseReason::NodeStalled,
        other => other,
    }
}
