//! The lock manager in the tree: answers every request, looks at the deadlines in time, and fails when its table is no
//! longer what it should be.

use std::collections::BTreeMap;
use std::time::Duration;

use choir_messages::id::InvocationId;
use choir_messages::mail::{Acquire, LockRefused, LocksMsg};
use choir_messages::reply::ReplyTo;
use choir_messages::tool::Lane;
use choir_supervisors::{
    Actor, ChildSpec, Context, Failure, MailboxSpec, Restart, Shutdown, Slot, TimerHandle, WhenFull,
};
use tokio::time::Instant;
use tracing::Level;

use crate::bounds::{MAILBOX_CAPACITY, SEND_WAIT, SHUTDOWN_WITHIN, STUCK_AFTER};
use crate::invariants::check_invariants;
use crate::manager::{Action, LockEvent, LockManager, Origin, Request};

type Verdict = Result<(), LockRefused>;

/// Who waits for a verdict.
struct Asker {
    reply: ReplyTo<Verdict>,
    /// The kind of lane, for the metric: a core job's name would make a series of its own.
    lane: &'static str,
    since: Instant,
}

impl Asker {
    fn new(reply: ReplyTo<Verdict>, owner: &Lane) -> Self {
        let lane = match owner {
            Lane::Edge => "edge",
            Lane::Core(_) => "core",
        };
        Self { reply, lane, since: Instant::now() }
    }

    fn send(self, verdict: Verdict) {
        let seconds = self.since.elapsed().as_secs_f64();
        let outcome = if verdict.is_ok() { "granted" } else { "refused" };
        tracing::event!(target: "choir::metric", Level::INFO, histogram.choir.lock.wait = seconds, lane = self.lane, outcome);
        self.reply.send(verdict);
    }
}

/// The mailbox the lock manager wants: roomy enough that a release never waits behind a burst for long, and a sender
/// that does find it full waits rather than lose a release.
#[must_use]
pub const fn mailbox_spec() -> MailboxSpec {
    MailboxSpec { capacity: MAILBOX_CAPACITY, when_full: WhenFull::Wait(SEND_WAIT) }
}

/// The lock manager as a child: permanent. Everything that runs under its locks must be started after it in a
/// `rest_for_one` supervisor, for its table dies with it (DESIGN §3).
#[must_use]
pub fn child_spec(slot: Slot<LocksMsg>) -> ChildSpec {
    ChildSpec::worker(slot, |_| async { Ok(LocksActor::new()) })
        .restart(Restart::Permanent)
        .shutdown(Shutdown::Within(SHUTDOWN_WITHIN))
        .stuck_after(STUCK_AFTER)
}

/// The lock manager's actor. Its whole state is the table and the ports of those who wait.
pub struct LocksActor {
    table: LockManager,
    /// The port of every request in the queue.
    ports: BTreeMap<InvocationId, Asker>,
    /// Time 0 of the table's clock.
    born: Instant,
    /// The timer for the earliest deadline, and that deadline.
    alarm: Option<(u64, TimerHandle)>,
}

impl LocksActor {
    /// An empty lock manager whose clock starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { table: LockManager::new(), ports: BTreeMap::new(), born: Instant::now(), alarm: None }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Steps the table and carries its actions out. `arriving` is the port of the request in `event`, if it is one.
    fn take(&mut self, event: LockEvent, arriving: Option<(InvocationId, Asker)>) {
        let now_ms = self.now_ms();
        let mut todo = vec![(event, arriving)];
        while let Some((event, mut arriving)) = todo.pop() {
            for action in self.table.step(event, now_ms) {
                let (invocation, from, verdict) = match action {
                    Action::Grant { invocation, from, waited_ms } => {
                        tracing::debug!(target: "choir::locks", %invocation, waited_ms, "granted");
                        (invocation, from, Ok(()))
                    }
                    Action::Refuse { invocation, from, why } => {
                        tracing::debug!(target: "choir::locks", %invocation, %why, "refused");
                        (invocation, from, Err(why))
                    }
                    Action::Released { invocation, held_ms } => {
                        tracing::debug!(target: "choir::locks", %invocation, held_ms, "released");
                        continue;
                    }
                };
                let port = match from {
                    Origin::Door => arriving.take().map(|(_, port)| port),
                    Origin::Queue => self.ports.remove(&invocation),
                };
                match port {
                    // Nobody is there to use the locks or to let go of them.
                    Some(port) if verdict.is_ok() && port.reply.is_abandoned() => {
                        todo.push((LockEvent::Release { invocation }, None));
                    }
                    Some(port) => port.send(verdict),
                    None => {}
                }
            }
            if let Some((invocation, port)) = arriving {
                self.ports.insert(invocation, port);
            }
        }
    }

    /// Takes those out of the queue whose asker has given up, so that nobody waits behind them.
    fn drop_abandoned(&mut self) {
        let gone: Vec<InvocationId> = self
            .ports
            .iter()
            .filter(|(_, port)| port.reply.is_abandoned())
            .map(|(invocation, _)| *invocation)
            .collect();
        for invocation in gone {
            self.take(LockEvent::Release { invocation }, None);
        }
    }

    /// Sees to it that a tick comes when the next wait runs out.
    fn set_alarm(&mut self, cx: &mut Context<LocksMsg>) -> Result<(), Failure> {
        let Some(deadline_ms) = self.table.next_deadline_ms() else { return Ok(()) };
        if self.alarm.as_ref().is_some_and(|(set_for, _)| *set_for <= deadline_ms) {
            // It rings early at worst, and is then set anew.
            return Ok(());
        }
        let delay = Duration::from_millis(deadline_ms).saturating_sub(self.born.elapsed());
        match cx.send_after(delay, LocksMsg::Tick) {
            Ok(timer) => {
                if let Some((_, old)) = self.alarm.replace((deadline_ms, timer)) {
                    old.cancel();
                }
                Ok(())
            }
            // Cancelled timers count until they are gone. The old alarm rings too late for this wait, but it rings.
            Err(_) if self.alarm.is_some() => Ok(()),
            // A wait without an alarm might never end.
            Err(error) => Err(error.into()),
        }
    }
}

impl Default for LocksActor {
    fn default() -> Self {
        Self::new()
    }
}

impl Actor for LocksActor {
    type Msg = LocksMsg;

    async fn handle(&mut self, msg: LocksMsg, cx: &mut Context<LocksMsg>) -> Result<(), Failure> {
        self.drop_abandoned();
        match msg {
            LocksMsg::Acquire(Acquire { owner, invocation, locks, wait_ms, reply }) => {
                let asker = Asker::new(reply, &owner);
                let request = Request { owner, invocation, locks, wait_ms };
                self.take(LockEvent::Acquire(request), Some((invocation, asker)));
            }
            LocksMsg::Release { invocation } => self.take(LockEvent::Release { invocation }, None),
            LocksMsg::NewEpoch { reply } => {
                self.take(LockEvent::NewEpoch, None);
                reply.send(());
            }
            LocksMsg::Table { reply } => {
                // The table shown must not hold waits that are over.
                self.take(LockEvent::Tick, None);
                reply.send(self.table.table(self.now_ms()));
            }
            LocksMsg::Tick => {
                // Most likely it is the alarm that rang; if it was an older one, a new alarm is set below.
                if let Some((_, alarm)) = self.alarm.take() {
                    alarm.cancel();
                }
                self.take(LockEvent::Tick, None);
                // Debug builds check after every step. Here a check is cheap enough for every build, and a wrong table
                // must not live on: failing restarts whatever runs under it, too.
                if let Some(broken) = check_invariants(&self.table).first() {
                    return Err(Failure::new(format!("the lock table is inconsistent ({broken})")));
                }
            }
        }
        self.set_alarm(cx)
    }

    async fn stopping(&mut self, _cx: &mut Context<LocksMsg>) {
        // Whoever waits is told; whoever holds is stopped by the same shutdown.
        self.take(LockEvent::NewEpoch, None);
    }
}
