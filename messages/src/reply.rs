//! Reply ports. A request variant of a mailbox carries a [`ReplyTo`]; whoever holds it answers once. Dropping it
//! unanswered (a crash, a full mailbox, a stop) tells the asker so at once, so nobody hangs.

use futures_channel::oneshot;

/// Where the answer to one request goes.
pub struct ReplyTo<R> {
    port: oneshot::Sender<R>,
}

/// Where the asker waits. Resolves to `Err` when the port was dropped without an answer.
pub type Answer<R> = oneshot::Receiver<R>;

/// A port and its other end.
pub fn reply_port<R>() -> (ReplyTo<R>, Answer<R>) {
    let (port, answer) = oneshot::channel();
    (ReplyTo { port }, answer)
}

impl<R> ReplyTo<R> {
    /// Answers. An asker that no longer waits is not an error.
    pub fn send(self, answer: R) {
        let _ = self.port.send(answer);
    }

    /// Whether the asker has given up.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.port.is_canceled()
    }
}

impl<R> std::fmt::Debug for ReplyTo<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplyTo(..)")
    }
}
