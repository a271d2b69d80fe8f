//! The guard's rules, without IO: which frames pass between a peer and the node, what they look like when they do, and
//! what is held meanwhile. One guard per link, shared by its two pumps.
//!
//! From the peer: calls to the one gate, replies to calls that were made, pings at a node's rate, pongs that are due.
//! Anything else ends the link. From the node: calls, replies, pings and pongs; everything else (announcements of
//! other actors and groups) is dropped, so a peer learns of nothing but its own gate.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::limits::{
    ACK_BYTES, FRAME_OVERHEAD, INBOUND_BYTES, PAYLOAD_BYTES, PINGS_BURST, PINGS_PER_SECOND, REPLY_GRACE,
    SIGNAL_BYTES, UNANSWERED,
};
use crate::limits::{Bucket, LinkLimits};
use crate::reason::CloseReason;
use crate::wire::{Call, Frame, GATE, METHOD, Reply};

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The host: answers verbs, sends signals.
    Host,
    /// The agent: sends verbs, answers signals.
    Agent,
}

impl Side {
    /// Largest payload of a call that comes in.
    #[must_use]
    pub const fn call_bytes(self) -> usize {
        match self {
            Self::Host => PAYLOAD_BYTES,
            Self::Agent => SIGNAL_BYTES,
        }
    }

    /// Largest payload of a reply that comes in.
    #[must_use]
    pub const fn reply_bytes(self) -> usize {
        match self {
            Self::Host => ACK_BYTES,
            Self::Agent => PAYLOAD_BYTES,
        }
    }
}

/// What to do with a frame of the peer's.
#[derive(Debug, PartialEq, Eq)]
pub enum FromPeer<'a> {
    /// Write this to the node.
    Forward(Frame<'a>),
    /// No room: offer the same frame again when a reply has been written, and read nothing until then.
    Wait,
}

/// What to do with a frame of the node's.
#[derive(Debug, PartialEq, Eq)]
pub enum FromNode<'a> {
    /// Write this to the peer, then tell [`Guard::written`].
    Send(Frame<'a>, Written),
    /// Not for the peer.
    Drop,
}

/// What a written frame frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// The answered call.
    call: Option<u64>,
    /// Payload bytes that were accounted as on their way out; `None` for frames that are not accounted.
    pub outbound: Option<usize>,
}

/// The rules of one link and what it holds.
#[derive(Debug)]
pub struct Guard {
    side: Side,
    /// Local process id of the gate actor.
    gate: u64,
    call_deadline: Duration,
    calls_in_flight: usize,
    /// Payload size of each of the peer's calls that waits for its answer, by tag.
    calls: HashMap<u64, usize>,
    /// Their sum.
    held: usize,
    /// Tags of our calls that have no answer yet.
    asked: HashSet<u64>,
    pings: Bucket,
    pongs_due: u32,
}

impl Guard {
    /// A guard for one link whose local gate actor has this process id.
    #[must_use]
    pub fn new(side: Side, gate: u64, limits: &LinkLimits, now: Instant) -> Self {
        Self {
            side,
            gate,
            call_deadline: limits.call,
            calls_in_flight: limits.calls_in_flight.max(1),
            calls: HashMap::new(),
            held: 0,
            asked: HashSet::new(),
            pings: Bucket::new(PINGS_BURST, PINGS_PER_SECOND, now),
            pongs_due: 0,
        }
    }

    /// Judges one frame of the peer's. An error ends the link.
    pub fn from_peer<'a>(&mut self, frame: &Frame<'a>, now: Instant) -> Result<FromPeer<'a>, CloseReason> {
        match frame {
            Frame::Call(call) => self.call(call),
            Frame::Reply(reply) => self.reply(reply),
            Frame::Ping(stamp) if self.pings.take(now) => Ok(FromPeer::Forward(Frame::Ping(*stamp))),
            Frame::Ping(_) => Err(CloseReason::PingFlood),
            Frame::Pong(stamp) => {
                self.pongs_due = self.pongs_due.checked_sub(1).ok_or(CloseReason::UnknownPong)?;
                Ok(FromPeer::Forward(Frame::Pong(*stamp)))
            }
            Frame::Other(kind) => Err(CloseReason::Forbidden(*kind)),
        }
    }

    fn call<'a>(&mut self, call: &Call<'a>) -> Result<FromPeer<'a>, CloseReason> {
        if call.to != GATE {
            return Err(CloseReason::WrongTarget);
        }
        if call.method != METHOD || call.has_metadata {
            return Err(CloseReason::UnknownCall);
        }
        let size = call.what.len();
        if size > self.side.call_bytes() {
            return Err(CloseReason::FrameTooLarge(size as u64));
        }
        if self.calls.contains_key(&call.tag) {
            return Err(CloseReason::DuplicateTag);
        }
        let charge = size + FRAME_OVERHEAD;
        if self.calls.len() >= self.calls_in_flight || self.held + charge > INBOUND_BYTES {
            return Ok(FromPeer::Wait);
        }
        self.calls.insert(call.tag, charge);
        self.held += charge;
        let asked = call.timeout_ms.map_or(self.call_deadline, Duration::from_millis);
        let deadline = asked.min(self.call_deadline) + REPLY_GRACE;
        Ok(FromPeer::Forward(Frame::Call(Call {
            to: self.gate,
            tag: call.tag,
            timeout_ms: Some(deadline.as_millis() as u64),
            method: METHOD,
            has_metadata: false,
            what: call.what,
        })))
    }

    fn reply<'a>(&mut self, reply: &Reply<'a>) -> Result<FromPeer<'a>, CloseReason> {
        if reply.what.len() > self.side.reply_bytes() {
            return Err(CloseReason::FrameTooLarge(reply.what.len() as u64));
        }
        if reply.to != GATE || !self.asked.remove(&reply.tag) {
            return Err(CloseReason::UnknownReply);
        }
        Ok(FromPeer::Forward(Frame::Reply(*reply)))
    }

    /// Judges one frame of the local node's.
    pub fn from_node<'a>(&mut self, frame: &Frame<'a>) -> Result<FromNode<'a>, CloseReason> {
        match frame {
            Frame::Call(call) if call.to == GATE => {
                if self.asked.len() >= UNANSWERED {
                    return Err(CloseReason::Unanswered);
                }
                self.asked.insert(call.tag);
                let frame = Frame::Call(Call { method: METHOD, has_metadata: false, ..*call });
                Ok(FromNode::Send(frame, Written { call: None, outbound: Some(call.what.len()) }))
            }
            Frame::Reply(reply) if reply.to == self.gate && self.calls.contains_key(&reply.tag) => {
                let frame = Frame::Reply(Reply { to: GATE, ..*reply });
                let written = Written { call: Some(reply.tag), outbound: Some(reply.what.len()) };
                Ok(FromNode::Send(frame, written))
            }
            Frame::Ping(_) => {
                self.pongs_due = self.pongs_due.saturating_add(1);
                Ok(FromNode::Send(*frame, Written::default()))
            }
            Frame::Pong(_) => Ok(FromNode::Send(*frame, Written::default())),
            Frame::Call(_) | Frame::Reply(_) | Frame::Other(_) => Ok(FromNode::Drop),
        }
    }

    /// The frame that gave this has been written to the socket.
    pub fn written(&mut self, written: Written) {
        if let Some(size) = written.call.and_then(|tag| self.calls.remove(&tag)) {
            self.held -= size;
        }
    }

    /// The peer's calls that are being answered, and their bytes.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        (self.calls.len(), self.held)
    }
}

/// Reads and judges the inside of one frame: what the fuzz target drives.
pub fn judge<'a>(guard: &mut Guard, bytes: &'a [u8], now: Instant) -> Result<FromPeer<'a>, CloseReason> {
    let frame = Frame::parse(bytes).map_err(|_| CloseReason::MalformedFrame)?;
    guard.from_peer(&frame, now)
}

#[cfg(test)]
mod tests;
