//! The frames of the cluster protocol, as far as a link uses them: `u64` big-endian length, then one protobuf
//! `NetworkMessage`. The reader is total and strict: a field that is repeated, unknown or of another type is an error,
//! and kinds that are not allowed are recognised by their two outer tags without looking inside. Nothing is copied
//! and nothing is allocated. What passes the guard is always written anew by [`Frame::head`], never forwarded as it
//! came, so that no peer can make the guard and the node behind it read two different messages.

pub(crate) mod local;
mod proto;

use crate::reason::FrameKind;
use proto::{Fields, Value, put_bytes_head, put_varint, varint_len};

/// The one method of a link's gate actor; the version is part of it.
pub const METHOD: &str = "choir.1";

/// The name of the peer's gate actor on the wire and towards the local node. Real process ids do not cross the link.
pub const GATE: u64 = 1;

/// The bytes are not one frame of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a frame of the cluster protocol")]
pub struct Malformed;

/// A frame, borrowing its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A call.
    Call(Call<'a>),
    /// An answer to a call.
    Reply(Reply<'a>),
    /// A ping.
    Ping(Option<Stamp>),
    /// A pong.
    Pong(Option<Stamp>),
    /// Anything else; its inside has not been read.
    Other(FrameKind),
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// The actor called.
    pub to: u64,
    /// The caller's tag; the reply carries it.
    pub tag: u64,
    /// Milliseconds the caller waits, if it says.
    pub timeout_ms: Option<u64>,
    /// The method.
    pub method: &'a str,
    /// Whether it carries metadata (never forwarded).
    pub has_metadata: bool,
    /// The payload.
    pub what: &'a [u8],
}

/// An answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The actor that had been called.
    pub to: u64,
    /// The call's tag.
    pub tag: u64,
    /// The payload.
    pub what: &'a [u8],
}

/// A time, as the raw numbers of the wire: it is only ever sent back to where it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    seconds: u64,
    nanos: u64,
}

/// Field numbers of the protocol.
mod field {
    pub(super) const AUTH: u32 = 1;
    pub(super) const NODE: u32 = 2;
    pub(super) const CONTROL: u32 = 3;
    pub(super) const CALL: u32 = 2;
    pub(super) const REPLY: u32 = 3;
    pub(super) const PING: u32 = 3;
    pub(super) const PONG: u32 = 4;
}

impl<'a> Frame<'a> {
    /// Reads the inside of one frame (without its length).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (outer, inner) = only_message(bytes)?;
        match outer {
            field::AUTH => Ok(Self::Other(FrameKind::Auth)),
            field::NODE => {
                let (kind, body) = only_message(inner)?;
                match kind {
                    1 => Ok(Self::Other(FrameKind::Cast)),
                    field::CALL => call(body).map(Self::Call),
                    field::REPLY => reply(body).map(Self::Reply),
                    _ => Err(Malformed),
                }
            }
            field::CONTROL => {
                let (kind, body) = only_message(inner)?;
                match kind {
                    1 => Ok(Self::Other(FrameKind::Spawn)),
                    2 => Ok(Self::Other(FrameKind::Terminate)),
                    field::PING => stamp(body).map(Self::Ping),
                    field::PONG => stamp(body).map(Self::Pong),
                    5 => Ok(Self::Other(FrameKind::PgJoin)),
                    6 => Ok(Self::Other(FrameKind::PgLeave)),
                    7 => Ok(Self::Other(FrameKind::EnumerateNodeSessions)),
                    8 => Ok(Self::Other(FrameKind::NodeSessions)),
                    9 => Ok(Self::Other(FrameKind::Ready)),
                    _ => Err(Malformed),
                }
            }
            _ => Err(Malformed),
        }
    }

    /// Appends the frame's length and everything but its payload; the payload, which comes last on the wire, is
    /// [`Frame::payload`]. Frames of kind `Other` are not written (the guard passes none) and append nothing.
    pub fn head(&self, out: &mut Vec<u8>) {
        let mut small = Vec::with_capacity(64);
        let (outer, kind) = match self {
            Self::Call(call) => {
                put_varint(&mut small, 1, call.to);
                put_varint(&mut small, 3, call.tag);
                if let Some(timeout) = call.timeout_ms {
                    put_varint(&mut small, 4, timeout);
                }
                put_bytes_head(&mut small, 5, call.method.len());
                small.extend_from_slice(call.method.as_bytes());
                put_bytes_head(&mut small, 2, call.what.len());
                (field::NODE, field::CALL)
            }
            Self::Reply(reply) => {
                put_varint(&mut small, 1, reply.to);
                put_varint(&mut small, 2, reply.tag);
                put_bytes_head(&mut small, 3, reply.what.len());
                (field::NODE, field::REPLY)
            }
            Self::Ping(stamp) => {
                put_stamp(&mut small, *stamp);
                (field::CONTROL, field::PING)
            }
            Self::Pong(stamp) => {
                put_stamp(&mut small, *stamp);
                (field::CONTROL, field::PONG)
            }
            Self::Other(_) => return,
        };
        let inner = small.len() + self.payload().len();
        let middle = 1 + varint_len(inner as u64) + inner;
        let total = 1 + varint_len(middle as u64) + middle;
        out.extend_from_slice(&(total as u64).to_be_bytes());
        put_bytes_head(out, outer, middle);
        put_bytes_head(out, kind, inner);
        out.extend_from_slice(&small);
    }

    /// The payload of a call or reply; nothing for the others.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        match self {
            Self::Call(call) => call.what,
            Self::Reply(reply) => reply.what,
            _ => &[],
        }
    }

    /// The whole frame in one piece, for tests and small frames.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.payload().len());
        self.head(&mut out);
        out.extend_from_slice(self.payload());
        out
    }
}

/// A message whose one field is a message.
fn only_message(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    let mut fields = Fields::of(bytes);
    match (fields.next()?, fields.is_empty()) {
        (Some((number, Value::Bytes(inner))), true) => Ok((number, inner)),
        _ => Err(Malformed),
    }
}

fn set<T>(place: &mut Option<T>, value: T) -> Result<(), Malformed> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Malformed),
    }
}

fn call(body: &[u8]) -> Result<Call<'_>, Malformed> {
    let (mut to, mut what, mut tag, mut timeout_ms, mut method) = (None, None, None, None, None);
    let mut metadata = None;
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Varint(v)) => set(&mut to, v)?,
            (2, Value::Bytes(v)) => set(&mut what, v)?,
            (3, Value::Varint(v)) => set(&mut tag, v)?,
            (4, Value::Varint(v)) => set(&mut timeout_ms, v)?,
            (5, Value::Bytes(v)) => set(&mut method, std::str::from_utf8(v).map_err(|_| Malformed)?)?,
            (6, Value::Bytes(_)) => set(&mut metadata, ())?,
            _ => return Err(Malformed),
        }
    }
    Ok(Call {
        to: to.unwrap_or(0),
        tag: tag.unwrap_or(0),
        timeout_ms,
        method: method.unwrap_or(""),
        has_metadata: metadata.is_some(),
        what: what.unwrap_or(&[]),
    })
}

fn reply(body: &[u8]) -> Result<Reply<'_>, Malformed> {
    let (mut to, mut tag, mut what) = (None, None, None);
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Varint(v)) => set(&mut to, v)?,
            (2, Value::Varint(v)) => set(&mut tag, v)?,
            (3, Value::Bytes(v)) => set(&mut what, v)?,
            _ => return Err(Malformed),
        }
    }
    Ok(Reply { to: to.unwrap_or(0), tag: tag.unwrap_or(0), what: what.unwrap_or(&[]) })
}

fn stamp(body: &[u8]) -> Result<Option<Stamp>, Malformed> {
    if body.is_empty() {
        return Ok(None);
    }
    let (number, inner) = only_message(body)?;
    if number != 1 {
        return Err(Malformed);
    }
    let (mut seconds, mut nanos) = (None, None);
    let mut fields = Fields::of(inner);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Varint(v)) => set(&mut seconds, v)?,
            (2, Value::Varint(v)) => set(&mut nanos, v)?,
            _ => return Err(Malformed),
        }
    }
    Ok(Some(Stamp { seconds: seconds.unwrap_or(0), nanos: nanos.unwrap_or(0) }))
}

fn put_stamp(out: &mut Vec<u8>, stamp: Option<Stamp>) {
    let Some(stamp) = stamp else { return };
    let mut inner = Vec::with_capacity(24);
    put_varint(&mut inner, 1, stamp.seconds);
    put_varint(&mut inner, 2, stamp.nanos);
    put_bytes_head(out, 1, inner.len());
    out.extend_from_slice(&inner);
}

#[cfg(test)]
mod tests;
