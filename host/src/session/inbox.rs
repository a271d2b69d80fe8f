//! Brings users' messages from the inbox to a running agent, in order (DESIGN §5: none is lost, none is answered
//! twice). A message leaves the store's list of unrecorded ones only when the event that records it is durable, so
//! everything here may be forgotten and begun again; the agent recognises a repeat by its id.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use choir_messages::event::MessageOutcome;
use choir_messages::id::MessageId;
use choir_messages::wire::{LinkError, SignalAck, SignalRefused};

use super::Now;
use crate::limits;

/// A message that no durable event records yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its id.
    pub message: MessageId,
    /// Its text.
    pub text: String,
    /// How long ago it arrived.
    pub age: Duration,
}

/// What the pusher is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The agent is ready for signals.
    Up,
    /// It is not any more.
    Down,
    /// Something changed in the inbox: a message arrived, was recorded or was closed.
    Changed,
    /// The store's list, oldest first.
    Loaded(Vec<Pending>),
    /// The store could not say.
    LoadFailed,
    /// What became of a push.
    Pushed {
        /// Of which message.
        message: MessageId,
        /// What the agent, or the link, said.
        result: Result<SignalAck, LinkError>,
    },
    /// Time passed.
    Tick,
}

/// What the pusher wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Ask the store for the unrecorded messages; answered by `Loaded` or `LoadFailed`.
    Load,
    /// Signal a message to the agent; answered by `Pushed`.
    Push {
        /// Its id.
        message: MessageId,
        /// Its text.
        text: String,
    },
    /// Close a message that no agent will take.
    Close {
        /// Its id.
        message: MessageId,
        /// How it ends.
        outcome: MessageOutcome,
        /// What its user is told.
        text: String,
    },
}

/// How often the list is looked at although nothing changed: finds the expired, and heals a lost notice.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The rules; see the module's text.
#[derive(Debug)]
pub struct Pusher {
    max_age: Duration,
    up: bool,
    loading: bool,
    stale: bool,
    waiting: VecDeque<Pending>,
    in_flight: Option<Pending>,
    /// Taken by this incarnation of the agent, not durable yet as far as is known.
    handed: BTreeSet<MessageId>,
    /// Offered to any agent since choird started: it may be in a log, so it must not expire here.
    offered: BTreeSet<MessageId>,
    pause: Option<Now>,
    look: Now,
}

impl Pusher {
    /// Nothing known yet; the first [`Input::Changed`] or [`Input::Tick`] loads the list.
    #[must_use]
    pub const fn new(max_age: Duration) -> Self {
        Self {
            max_age,
            up: false,
            loading: false,
            stale: true,
            waiting: VecDeque::new(),
            in_flight: None,
            handed: BTreeSet::new(),
            offered: BTreeSet::new(),
            pause: None,
            look: Now::ZERO,
        }
    }

    /// A new age limit.
    pub const fn set_max_age(&mut self, max_age: Duration) {
        self.max_age = max_age;
    }

    /// Messages known to wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + usize::from(self.in_flight.is_some())
    }

    /// When [`Input::Tick`] must come at the latest.
    #[must_use]
    pub fn deadline(&self) -> Now {
        self.pause.map_or(self.look, |pause| pause.min(self.look))
    }

    /// Takes one input in.
    pub fn step(&mut self, input: Input, now: Now) -> Vec<Action> {
        let mut out = Vec::new();
        match input {
            Input::Up => {
                self.up = true;
                self.handed.clear();
                // What was known is from before; nothing is pushed until the list has been read again.
                self.waiting.clear();
                self.in_flight = None;
                self.pause = None;
                self.stale = true;
            }
            Input::Down => {
                self.up = false;
                self.in_flight = None;
                self.pause = None;
            }
            Input::Changed => {
                self.stale = true;
                self.pause = None;
            }
            Input::Loaded(list) => {
                self.loading = false;
                self.look = now + LOOK_AGAIN;
                self.loaded(list, &mut out);
            }
            Input::LoadFailed => {
                self.loading = false;
                self.look = now + limits::OPEN_RETRY;
            }
            Input::Pushed { message, result } => {
                if let Some(pending) = self.in_flight.take_if(|p| p.message == message) {
                    self.pushed(pending, result, now, &mut out);
                }
            }
            Input::Tick => {
                if self.pause.is_some_and(|until| until <= now) {
                    self.pause = None;
                }
                if self.look <= now {
                    self.stale = true;
                }
            }
        }
        if self.stale && !self.loading {
            self.stale = false;
            self.loading = true;
            self.look = now + LOOK_AGAIN;
            out.push(Action::Load);
        }
        // A read under way does not hold back a push: a steady stream of changes would starve it.
        let may_push = self.up && self.in_flight.is_none() && self.pause.is_none();
        if may_push && let Some(next) = self.waiting.pop_front() {
            self.offered.insert(next.message);
            out.push(Action::Push { message: next.message, text: next.text.clone() });
            self.in_flight = Some(next);
        }
        out
    }

    fn loaded(&mut self, list: Vec<Pending>, out: &mut Vec<Action>) {
        let present: BTreeSet<_> = list.iter().map(|p| p.message).collect();
        self.handed.retain(|id| present.contains(id));
        self.offered.retain(|id| present.contains(id));
        self.waiting.clear();
        for pending in list {
            let flying = self.in_flight.as_ref().is_some_and(|p| p.message == pending.message);
            if flying || self.handed.contains(&pending.message) {
                continue;
            }
            if pending.age > self.max_age && !self.offered.contains(&pending.message) {
                out.push(Action::Close {
                    message: pending.message,
                    outcome: MessageOutcome::Expired,
                    text: format!(
                        "This message waited {} minutes without an agent to take it and was not acted on. Send it again if it still matters.",
                        pending.age.as_secs() / 60
                    ),
                });
                continue;
            }
            self.waiting.push_back(pending);
        }
    }

    fn pushed(
        &mut self,
        pending: Pending,
        result: Result<SignalAck, LinkError>,
        now: Now,
        out: &mut Vec<Action>,
    ) {
        let message = pending.message;
        match result {
            Ok(SignalAck::Recorded { .. }) => {
                self.handed.insert(message);
            }
            Ok(SignalAck::Refused(
                refused @ (SignalRefused::Budget { .. } | SignalRefused::TooLarge { .. }),
            )) => {
                out.push(Action::Close {
                    message,
                    outcome: MessageOutcome::Refused,
                    text: refused.to_string(),
                });
                self.stale = true;
            }
            Err(LinkError::TooLarge) => {
                let text = "the message is too large for the agent's link".to_owned();
                out.push(Action::Close { message, outcome: MessageOutcome::Refused, text });
                self.stale = true;
            }
            Ok(SignalAck::Refused(SignalRefused::QueueFull { .. })) => {
                self.again(pending, now + limits::QUEUE_FULL_RETRY);
            }
            // Another incarnation is being talked to, or none: the next `Up` begins again.
            Ok(SignalAck::Refused(SignalRefused::WrongLease)) | Err(LinkError::Down) => {
                self.up = false;
                self.stale = true;
            }
            Ok(
                SignalAck::Refused(SignalRefused::NotReady | SignalRefused::NoSuchActor) | SignalAck::Noted,
            )
            | Err(LinkError::Deadline(_) | LinkError::Malformed | LinkError::Refused(_)) => {
                self.again(pending, now + limits::SIGNAL_RETRY);
            }
        }
    }

    fn again(&mut self, pending: Pending, at: Now) {
        self.waiting.push_front(pending);
        self.pause = Some(at);
    }
}

#[cfg(test)]
mod tests;
