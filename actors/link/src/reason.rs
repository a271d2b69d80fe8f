//! Why a connection was not admitted or a link ended: one sentence each, for logs, and a stable label, for metrics.

/// What kind of frame of the cluster protocol a peer sent. Only calls, replies, pings and pongs pass the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Any message of the node's own authentication.
    Auth,
    /// A one-way message.
    Cast,
    /// A call.
    Call,
    /// An answer to a call.
    Reply,
    /// Announcement of actors.
    Spawn,
    /// Announcement of their end.
    Terminate,
    /// A ping.
    Ping,
    /// A pong.
    Pong,
    /// Joining a process group.
    PgJoin,
    /// Leaving one.
    PgLeave,
    /// A request for the names of other peers.
    EnumerateNodeSessions,
    /// Names of other peers.
    NodeSessions,
    /// End of the node's first exchange.
    Ready,
}

/// Why a connection was refused or a link ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed the connection.
    #[error("the peer closed the link")]
    PeerClosed,
    /// The connection failed.
    #[error("the connection failed ({0})")]
    Io(std::io::ErrorKind),
    /// The connection ended or failed in TLS.
    #[error("the peer did not complete the TLS handshake")]
    Tls,
    /// The handshake was not done in time.
    #[error("the peer did not complete the handshake in time")]
    HandshakeDeadline,
    /// The peer's first bytes are no handshake.
    #[error("what the peer sent is not a handshake of this protocol")]
    NotAHandshake,
    /// Another wire version.
    #[error("the peer speaks version {0} of the wire")]
    Version(u16),
    /// The peer asks for another session than the socket's.
    #[error("the peer asked for another session than this socket's")]
    WrongSession,
    /// The peer does not know the link's secret.
    #[error("the peer does not know the link's secret")]
    WrongSecret,
    /// Too many connections are in the handshake, or too many came at once.
    #[error("too many connections to this socket at once")]
    TooManyConnections,
    /// The socket has a live link.
    #[error("the socket already has a live link")]
    Busy,
    /// A frame announces more than is allowed.
    #[error("the peer announced a frame of {0} bytes, more than the link allows")]
    FrameTooLarge(u64),
    /// A frame was begun and not finished in time.
    #[error("the peer began a frame and did not finish it in time")]
    FrameDeadline,
    /// A frame cannot be read.
    #[error("the peer sent a frame that cannot be read")]
    MalformedFrame,
    /// A frame of a kind that no peer of ours sends.
    #[error("the peer sent a frame that is not allowed ({0:?})")]
    Forbidden(FrameKind),
    /// A call to anything but the one actor behind this link.
    #[error("the peer called an actor that is not behind this link")]
    WrongTarget,
    /// A call with an unknown method, or with metadata.
    #[error("the peer's call is not one this link knows")]
    UnknownCall,
    /// The tag of a call that is still being answered.
    #[error("the peer used the tag of a call that is still being answered")]
    DuplicateTag,
    /// A reply that nobody waits for.
    #[error("the peer answered a call that was not made")]
    UnknownReply,
    /// More pings than a node sends.
    #[error("the peer pings more often than a node does")]
    PingFlood,
    /// A pong without a ping.
    #[error("the peer answered a ping that was not sent")]
    UnknownPong,
    /// The peer does not read.
    #[error("the peer did not take what was sent to it in time")]
    WriteDeadline,
    /// Too many of our calls got no answer.
    #[error("the peer left too many calls unanswered")]
    Unanswered,
    /// The local node did not take the link in, or did not go on with it.
    #[error("the local node did not keep up with the link")]
    NodeStalled,
    /// The local node ended its side.
    #[error("the local node ended the link")]
    NodeGone,
    /// The local gate actor ended.
    #[error("the local gate actor ended")]
    GateGone,
    /// Whoever should hear of the link does not listen.
    #[error("the owner of the link does not take its events")]
    OwnerGone,
    /// The owner ended this link and keeps the socket.
    #[error("the owner ended the link")]
    Disconnected,
    /// The owner closed the socket.
    #[error("the link was revoked")]
    Revoked,
}

impl CloseReason {
    /// A short stable label without figures, for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::PeerClosed => "peer_closed",
            Self::Io(_) => "io",
            Self::Tls => "tls",
            Self::HandshakeDeadline => "handshake_deadline",
            Self::NotAHandshake => "not_a_handshake",
            Self::Version(_) => "version",
            Self::WrongSession => "wrong_session",
            Self::WrongSecret => "wrong_secret",
            Self::TooManyConnections => "too_many_connections",
            Self::Busy => "busy",
            Self::FrameTooLarge(_) => "frame_too_large",
            Self::FrameDeadline => "frame_deadline",
            Self::MalformedFrame => "malformed_frame",
            Self::Forbidden(_) => "forbidden",
            Self::WrongTarget => "wrong_target",
            Self::UnknownCall => "unknown_call",
            Self::DuplicateTag => "duplicate_tag",
            Self::UnknownReply => "unknown_reply",
            Self::PingFlood => "ping_flood",
            Self::UnknownPong => "unknown_pong",
            Self::WriteDeadline => "write_deadline",
            Self::Unanswered => "unanswered",
            Self::NodeStalled => "node_stalled",
            Self::NodeGone => "node_gone",
            Self::GateGone => "gate_gone",
            Self::OwnerGone => "owner_gone",
            Self::Disconnected => "disconnected",
            Self::Revoked => "revoked",
        }
    }

    /// Whether the peer broke a rule that no honest peer breaks.
    #[must_use]
    pub const fn is_hostile(self) -> bool {
        matches!(
            self,
            Self::NotAHandshake
                | Self::WrongSession
                | Self::WrongSecret
                | Self::FrameTooLarge(_)
                | Self::MalformedFrame
                | Self::Forbidden(_)
                | Self::WrongTarget
                | Self::UnknownCall
                | Self::DuplicateTag
                | Self::UnknownReply
                | Self::PingFlood
                | Self::UnknownPong
        )
    }
}

impl From<std::io::Error> for CloseReason {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        match error.kind() {
            Kind::UnexpectedEof | Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => {
                Self::PeerClosed
            }
            other => Self::Io(other),
        }
    }
}
