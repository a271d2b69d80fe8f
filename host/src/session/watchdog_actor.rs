//! The watchdog as an actor: hears every verb, wakes at the deadline, tells the session.

use std::sync::Arc;

use choir_messages::mail::Mail;
use choir_supervisors::{Actor, ChildSpec, Context, Failure, Slot};

use super::alarm::Alarm;
use super::core::Attempt;
use super::parts::Shared;
use super::session_mail::SessionMsg;
use super::watchdog::Watchdog;

/// What the watchdog is told.
#[derive(Debug)]
pub(crate) enum WatchdogMsg {
    /// Watch this sandbox from now on.
    Watch(Attempt),
    /// Watch nothing.
    Forget,
    /// A word of that sandbox.
    Heard(Attempt),
    /// Look at the clock.
    Tick,
}

impl Mail for WatchdogMsg {
    fn label(&self) -> &'static str {
        match self {
            Self::Watch(_) => "watch",
            Self::Forget => "forget",
            Self::Heard(_) => "heard",
            Self::Tick => "tick",
        }
    }
}

struct WatchdogActor {
    shared: Arc<Shared>,
    dog: Watchdog,
    alarm: Alarm,
}

pub(super) fn child_spec(slot: Slot<WatchdogMsg>, shared: Arc<Shared>) -> ChildSpec {
    ChildSpec::worker(slot, move |_| {
        let shared = Arc::clone(&shared);
        async move {
            let mut dog = Watchdog::new(shared.host.settings().config.crash_threshold());
            // After a restart the running sandbox is given a full threshold anew; it must not go unwatched.
            let running = super::sandbox::running(&shared);
            if let Some((attempt, _)) = running {
                dog.watch(attempt, shared.host.now());
            }
            Ok(WatchdogActor { shared, dog, alarm: Alarm::default() })
        }
    })
}

impl Actor for WatchdogActor {
    type Msg = WatchdogMsg;

    async fn started(&mut self, cx: &mut Context<WatchdogMsg>) -> Result<(), Failure> {
        self.arm(cx)
    }

    async fn handle(&mut self, msg: WatchdogMsg, cx: &mut Context<WatchdogMsg>) -> Result<(), Failure> {
        let now = self.shared.host.now();
        self.dog.set_threshold(self.shared.host.settings().config.crash_threshold());
        match msg {
            WatchdogMsg::Watch(attempt) => self.dog.watch(attempt, now),
            WatchdogMsg::Forget => self.dog.forget(),
            WatchdogMsg::Heard(attempt) => self.dog.heard(attempt, now),
            WatchdogMsg::Tick => {
                self.alarm.rang();
                if let Some((attempt, silent)) = self.dog.check(now) {
                    let told = self.shared.session.send(SessionMsg::Silent { attempt, silent }).await;
                    if told.is_err() {
                        self.dog.watch(attempt, now);
                    }
                }
            }
        }
        self.arm(cx)
    }
}

impl WatchdogActor {
    fn arm(&mut self, cx: &mut Context<WatchdogMsg>) -> Result<(), Failure> {
        let now = self.shared.host.now();
        self.alarm.set(self.dog.deadline(), now, cx, || WatchdogMsg::Tick)?;
        Ok(())
    }
}
