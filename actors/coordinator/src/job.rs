//! One call on its way from the router to its answer. Whoever drops it, drops it somewhere: a job that was not answered
//! goes back to its workspace's mailbox, or its asker is told what is known. So a crash is a latency, never a silence.

use std::time::Instant;

use choir_chap::{Answer, Attested, Call};
use choir_messages::mail::{CallAnswer, Caller, Unanswered};
use choir_messages::reply::ReplyTo;
use choir_supervisors::Address;
use serde_json::Value;
use tracing::Level;

use crate::gauge::Held;
use crate::limits::TRIES;
use crate::workspace::WorkspaceMsg;

/// Where an answer goes.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To a transport, as bytes.
    Bytes(ReplyTo<Result<CallAnswer, Unanswered>>),
    /// To another actor, as a value.
    Value(ReplyTo<Result<Result<Value, Value>, Unanswered>>),
}

/// Who waits for an answer. Dropped without one, it says that the Coordinator is busy and that nothing was done.
#[derive(Debug)]
pub(crate) struct Asker {
    reply: Option<Reply>,
    since: Instant,
    /// What the call counts in, until it is answered.
    held: Vec<Held>,
}

impl Asker {
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply: Some(reply), since: Instant::now(), held: Vec::new() }
    }

    /// Counts in this until the answer.
    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push(held);
    }

    /// Answers.
    pub(crate) fn answer(mut self, method: &'static str, answer: Answer) {
        let outcome = if answer.refusal().is_some() { "refused" } else { "accepted" };
        self.measure(method, outcome);
        match self.reply.take() {
            Some(Reply::Bytes(reply)) => reply.send(Ok(answer.to_bytes().into())),
            Some(Reply::Value(reply)) => reply.send(Ok(answer.into_result())),
            None => {}
        }
    }

    /// Says why there is no answer.
    pub(crate) fn fail(mut self, why: Unanswered) {
        self.refuse(why);
    }

    fn refuse(&mut self, why: Unanswered) {
        let Some(reply) = self.reply.take() else { return };
        self.measure("none", "unanswered");
        match reply {
            Reply::Bytes(reply) => reply.send(Err(why)),
            Reply::Value(reply) => reply.send(Err(why)),
        }
    }

    fn measure(&self, method: &'static str, outcome: &'static str) {
        let seconds = self.since.elapsed().as_secs_f64();
        tracing::event!(target: "choir::metric", Level::INFO, histogram.choir.chap.call = seconds, method, outcome);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.refuse(Unanswered::Busy);
    }
}

/// One call with everything its step is given.
#[derive(Debug)]
pub(crate) struct Job(Option<Box<Inner>>);

#[derive(Debug)]
struct Inner {
    call: Call,
    caller: Caller,
    attested: Attested,
    asker: Asker,
    /// The mailbox it goes back to, once it has come out of it.
    home: Option<Address<WorkspaceMsg>>,
    /// How often it was taken in hand and not put down again.
    tries: u32,
    /// A commit that carries it may have been made.
    committing: bool,
}

impl Job {
    pub(crate) fn new(call: Call, caller: Caller, attested: Attested, asker: Asker) -> Self {
        Self(Some(Box::new(Inner { call, caller, attested, asker, home: None, tries: 0, committing: false })))
    }

    /// What a step needs of it; none once it was answered.
    pub(crate) fn parts(&self) -> Option<(&Call, &Caller, &Attested)> {
        self.0.as_ref().map(|inner| (&inner.call, &inner.caller, &inner.attested))
    }

    pub(crate) fn hold(&mut self, held: Held) {
        if let Some(inner) = &mut self.0 {
            inner.asker.hold(held);
        }
    }

    /// It has come out of this mailbox, and goes back there if it is dropped.
    pub(crate) fn arrived(&mut self, home: Address<WorkspaceMsg>) {
        if let Some(inner) = &mut self.0 {
            inner.home = Some(home);
        }
    }

    /// Its step begins: if the actor does not survive it, the job is to blame.
    pub(crate) fn in_hand(&mut self) {
        if let Some(inner) = &mut self.0 {
            inner.tries = inner.tries.saturating_add(1);
        }
    }

    /// Its step is over.
    pub(crate) fn put_down(&mut self) {
        if let Some(inner) = &mut self.0 {
            inner.tries = inner.tries.saturating_sub(1);
        }
    }

    /// From here on a loss means that nobody knows whether it was done.
    pub(crate) fn committing(&mut self, committing: bool) {
        if let Some(inner) = &mut self.0 {
            inner.committing = committing;
        }
    }

    pub(crate) fn answer(mut self, answer: Answer) {
        if let Some(inner) = self.0.take() {
            let method = inner.call.method().name;
            inner.asker.answer(method, answer);
        }
    }

    pub(crate) fn fail(mut self, why: Unanswered) {
        if let Some(inner) = self.0.take() {
            inner.asker.fail(why);
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(mut inner) = self.0.take() else { return };
        if inner.committing {
            let why = "the writer was lost in mid-commit";
            inner.asker.fail(Unanswered::Unknown(why.to_owned()));
        } else if inner.tries >= TRIES {
            let why = "the Coordinator gave this call up after several attempts";
            tracing::error!(method = inner.call.method().name, tries = inner.tries, "a call was given up");
            inner.asker.fail(Unanswered::NotStored(why.to_owned()));
        } else if let Some(home) = inner.home.take() {
            // A mailbox that is full or closed drops it, and then its asker is told that nothing was done.
            let _ = home.try_send(WorkspaceMsg::Call(Self(Some(inner))));
        }
    }
}
