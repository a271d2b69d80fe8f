//! Brings an agent's outbound messages to the channel that is attached (DESIGN §5: prepared, sending, delivered,
//! ambiguous; never resent blindly). One message is under way at a time, so their order is the log's.

use std::time::Duration;

use choir_messages::id::OutboundId;

use super::Now;
use crate::limits;

/// Counts the channels that were attached to one agent.
pub type ChannelNo = u64;

/// Time a channel has to say that it showed a message.
const ACK_WITHIN: Duration = Duration::from_secs(30);

/// What the outbox is told. `T` is the message with its text; the rules do not look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<T> {
    /// A channel wants the messages from now on. A newer one takes over.
    Attach {
        /// Its number, higher than any before.
        channel: ChannelNo,
        /// Whether it recognises repeats by id and so may be sent ambiguous messages again.
        redeliver: bool,
    },
    /// A channel is gone.
    Detach {
        /// Which.
        channel: ChannelNo,
    },
    /// The store may hold something new.
    Changed,
    /// The store's answer to `Claim`: the message is now `sending`.
    Claimed(Option<(OutboundId, T)>),
    /// The store's answer to `Again`: the message is `sending` again.
    Again(Option<(OutboundId, T)>),
    /// The store could not say.
    StoreFailed,
    /// A channel showed the message.
    Acked {
        /// The channel that is attached now; 0 for none.
        channel: ChannelNo,
        /// Which message.
        id: OutboundId,
    },
    /// Time passed.
    Tick,
}

/// What the outbox wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<T> {
    /// Claim the next prepared message.
    Claim,
    /// Claim the next ambiguous message, to be sent again under its id.
    Again,
    /// Hand a message to a channel.
    Write {
        /// Which channel.
        channel: ChannelNo,
        /// The message's id.
        id: OutboundId,
        /// The message.
        message: T,
        /// Whether it may have been shown before.
        repeat: bool,
    },
    /// Record that it was delivered.
    Delivered(OutboundId),
    /// Record that it may or may not have been.
    MarkAmbiguous(OutboundId),
    /// End a channel: a newer one has taken over.
    End {
        /// Which.
        channel: ChannelNo,
    },
}

#[derive(Debug)]
struct Channel {
    no: ChannelNo,
    redeliver: bool,
}

/// The rules; see the module's text.
#[derive(Debug)]
pub struct Outbox<T> {
    message: std::marker::PhantomData<fn() -> T>,
    channel: Option<Channel>,
    asking: bool,
    stale: bool,
    want_again: bool,
    under_way: Option<(OutboundId, Now)>,
    retry: Option<Now>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self {
            message: std::marker::PhantomData,
            channel: None,
            asking: false,
            stale: false,
            want_again: false,
            under_way: None,
            retry: None,
        }
    }
}

impl<T> Outbox<T> {
    /// Whether a channel is attached.
    #[must_use]
    pub const fn attached(&self) -> bool {
        self.channel.is_some()
    }

    /// When [`Input::Tick`] must come at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        match (self.retry, self.under_way.map(|(_, until)| until)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Takes one input in.
    pub fn step(&mut self, input: Input<T>, now: Now) -> Vec<Action<T>> {
        let mut out = Vec::new();
        match input {
            Input::Attach { channel, redeliver } => {
                if let Some(old) = self.channel.take() {
                    out.push(Action::End { channel: old.no });
                }
                self.lose(&mut out);
                self.channel = Some(Channel { no: channel, redeliver });
                self.want_again = redeliver;
                self.stale = true;
            }
            Input::Detach { channel } => {
                if self.channel.as_ref().is_some_and(|c| c.no == channel) {
                    self.channel = None;
                    self.lose(&mut out);
                }
            }
            Input::Changed => self.stale = true,
            Input::Claimed(claimed) => {
                self.asking = false;
                match (claimed, &self.channel) {
                    (Some((id, message)), Some(channel)) => {
                        out.push(Action::Write { channel: channel.no, id, message, repeat: false });
                        self.under_way = Some((id, now + ACK_WITHIN));
                        self.stale = true;
                    }
                    // The channel left between claim and answer; nothing was shown, but only this place knows that.
                    (Some((id, _)), None) => out.push(Action::MarkAmbiguous(id)),
                    (None, _) => {}
                }
            }
            Input::Again(claimed) => {
                self.asking = false;
                match (claimed, &self.channel) {
                    // The channel that asked may have been followed by one that must not see repeats.
                    (Some((id, message)), Some(channel)) if channel.redeliver => {
                        out.push(Action::Write { channel: channel.no, id, message, repeat: true });
                        self.under_way = Some((id, now + ACK_WITHIN));
                    }
                    (Some((id, _)), _) => out.push(Action::MarkAmbiguous(id)),
                    (None, _) => self.want_again = false,
                }
            }
            Input::StoreFailed => {
                self.asking = false;
                self.stale = true;
                // The claim may have been made although its answer is lost: such a message is ambiguous now.
                self.want_again |= self.channel.as_ref().is_some_and(|channel| channel.redeliver);
                self.retry = Some(now + limits::OPEN_RETRY);
            }
            Input::Acked { channel, id } => {
                let current = self.channel.as_ref().is_some_and(|c| c.no == channel);
                if current && self.under_way.is_some_and(|(u, _)| u == id) {
                    self.under_way = None;
                }
                // A late confirmation, of an earlier channel or incarnation, is as good as one in time.
                out.push(Action::Delivered(id));
            }
            Input::Tick => {
                if self.retry.is_some_and(|at| at <= now) {
                    self.retry = None;
                }
                if self.under_way.is_some_and(|(_, until)| until <= now) {
                    if let Some(old) = self.channel.take() {
                        out.push(Action::End { channel: old.no });
                    }
                    self.lose(&mut out);
                }
            }
        }
        self.go_on(&mut out);
        out
    }

    fn lose(&mut self, out: &mut Vec<Action<T>>) {
        if let Some((id, _)) = self.under_way.take() {
            out.push(Action::MarkAmbiguous(id));
        }
    }

    fn go_on(&mut self, out: &mut Vec<Action<T>>) {
        if self.channel.is_none() || self.asking || self.under_way.is_some() || self.retry.is_some() {
            return;
        }
        if self.want_again {
            self.asking = true;
            out.push(Action::Again);
        } else if self.stale {
            self.stale = false;
            self.asking = true;
            out.push(Action::Claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn id(n: u128) -> OutboundId {
        OutboundId::from_bits(n)
    }

    #[test]
    fn a_message_is_claimed_written_and_delivered_then_the_next() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.step(Input::Attach { channel: 1, redeliver: false }, Now::ZERO), [Action::Claim]);
        let out = outbox.step(Input::Claimed(Some((id(1), "a"))), Now::ZERO);
        assert_eq!(out, [Action::Write { channel: 1, id: id(1), message: "a", repeat: false }]);
        let out = outbox.step(Input::Acked { channel: 1, id: id(1) }, Now::ZERO);
        assert_eq!(out, [Action::Delivered(id(1)), Action::Claim]);
        assert_eq!(outbox.step(Input::Claimed(None), Now::ZERO), []);
        assert_eq!(outbox.step(Input::Changed, Now::ZERO), [Action::Claim]);
    }

    #[test]
    fn a_channel_that_leaves_without_a_word_makes_the_message_ambiguous() {
        let mut outbox = Outbox::default();
        outbox.step(Input::Attach { channel: 1, redeliver: false }, Now::ZERO);
        outbox.step(Input::Claimed(Some((id(1), ()))), Now::ZERO);
        assert_eq!(outbox.step(Input::Detach { channel: 1 }, Now::ZERO), [Action::MarkAmbiguous(id(1))]);
        // A channel that does not recognise repeats is never sent it again.
        assert_eq!(outbox.step(Input::Attach { channel: 2, redeliver: false }, Now::ZERO), [Action::Claim]);
    }

    #[test]
    fn a_channel_that_recognises_repeats_is_sent_the_ambiguous_first() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.step(Input::Attach { channel: 1, redeliver: true }, Now::ZERO), [Action::Again]);
        let out = outbox.step(Input::Again(Some((id(1), ()))), Now::ZERO);
        assert_eq!(out, [Action::Write { channel: 1, id: id(1), message: (), repeat: true }]);
        let out = outbox.step(Input::Acked { channel: 1, id: id(1) }, Now::ZERO);
        assert_eq!(out, [Action::Delivered(id(1)), Action::Again]);
        assert_eq!(outbox.step(Input::Again(None), Now::ZERO), [Action::Claim]);
    }

    #[test]
    fn a_message_whose_claim_went_astray_is_looked_for_while_the_channel_stays() {
        let mut outbox: Outbox<()> = Outbox::default();
        outbox.step(Input::Attach { channel: 1, redeliver: true }, Now::ZERO);
        assert_eq!(outbox.step(Input::Again(None), Now::ZERO), [Action::Claim]);
        assert_eq!(outbox.step(Input::StoreFailed, Now::ZERO), []);
        assert_eq!(outbox.step(Input::Tick, limits::OPEN_RETRY), [Action::Again]);
        // A channel that does not recognise repeats gets the next one only.
        let mut outbox: Outbox<()> = Outbox::default();
        outbox.step(Input::Attach { channel: 1, redeliver: false }, Now::ZERO);
        outbox.step(Input::StoreFailed, Now::ZERO);
        assert_eq!(outbox.step(Input::Tick, limits::OPEN_RETRY), [Action::Claim]);
    }

    #[test]
    fn a_newer_channel_takes_over_and_a_silent_one_is_ended() {
        let mut outbox: Outbox<()> = Outbox::default();
        outbox.step(Input::Attach { channel: 1, redeliver: false }, Now::ZERO);
        outbox.step(Input::Claimed(Some((id(1), ()))), Now::ZERO);
        let out = outbox.step(Input::Attach { channel: 2, redeliver: false }, Now::ZERO);
        assert_eq!(out, [Action::End { channel: 1 }, Action::MarkAmbiguous(id(1)), Action::Claim]);
        outbox.step(Input::Claimed(Some((id(2), ()))), Now::ZERO);
        let out = outbox.step(Input::Tick, ACK_WITHIN);
        assert_eq!(out, [Action::End { channel: 2 }, Action::MarkAmbiguous(id(2))]);
    }

    proptest! {
        #[test]
        fn a_message_is_written_once_unless_the_channel_recognises_repeats(
            script in proptest::collection::vec((0u8..7, any::<bool>()), 0..120)
        ) {
            let mut outbox: Outbox<()> = Outbox::default();
            let mut prepared: VecDeque<u128> = (1..=20).collect();
            let mut ambiguous: Vec<u128> = Vec::new();
            let mut written: Vec<u128> = Vec::new();
            let (mut claims, mut agains, mut under_way) = (0, 0, None);
            let (mut channel, mut careful) = (0, false);
            let mut now = Now::ZERO;
            for (what, flag) in script {
                let input = match what {
                    0 => { channel += 1; careful = flag; Some(Input::Attach { channel, redeliver: flag }) }
                    1 => Some(Input::Detach { channel }),
                    2 => Some(Input::Changed),
                    3 if claims > 0 => {
                        claims = 0;
                        Some(if flag { Input::Claimed(prepared.pop_front().map(|n| (id(n), ()))) } else { Input::StoreFailed })
                    }
                    4 if agains > 0 => {
                        agains = 0;
                        Some(if flag { Input::Again(ambiguous.pop().map(|n| (id(n), ()))) } else { Input::StoreFailed })
                    }
                    5 => under_way.take().map(|n| Input::Acked { channel, id: id(n) }),
                    6 => { now += Duration::from_secs(1); Some(Input::Tick) }
                    _ => None,
                };
                let Some(input) = input else { continue };
                for action in outbox.step(input, now) {
                    match action {
                        Action::Claim => { claims += 1; prop_assert!(claims + agains <= 1); }
                        Action::Again => { agains += 1; prop_assert!(careful); }
                        Action::Write { id, repeat, .. } => {
                            prop_assert!(repeat == written.contains(&id.bits()) || repeat);
                            prop_assert!(careful || !written.contains(&id.bits()));
                            written.push(id.bits());
                            under_way = Some(id.bits());
                        }
                        Action::MarkAmbiguous(id) => ambiguous.push(id.bits()),
                        Action::Delivered(_) | Action::End { .. } => {}
                    }
                }
            }
        }
    }
}
