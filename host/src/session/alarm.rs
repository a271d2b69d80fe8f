//! One timer an actor, set to the earliest moment its rules want to look at the clock: an idle agent costs no wakeups.

use choir_supervisors::{Context, Mail, TimerHandle, TooManyTasks};

use super::Now;

/// The timer. A tick that comes too early is harmless: the rules look and the alarm is set again.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    set: Option<(Now, TimerHandle)>,
}

impl Alarm {
    /// Makes sure that `tick` comes at `wanted` or before. One that is set for later is replaced; one for earlier stays.
    pub(super) fn set<M: Mail>(
        &mut self,
        wanted: Option<Now>,
        now: Now,
        cx: &mut Context<M>,
        tick: impl FnOnce() -> M,
    ) -> Result<(), TooManyTasks> {
        let Some(wanted) = wanted else { return Ok(()) };
        if self.set.as_ref().is_some_and(|(at, _)| *at <= wanted) {
            return Ok(());
        }
        if let Some((_, later)) = self.set.take() {
            later.cancel();
        }
        self.set = Some((wanted, cx.send_after(wanted.saturating_sub(now), tick())?));
        Ok(())
    }

    /// The tick has come.
    pub(super) fn rang(&mut self) {
        self.set = None;
    }
}
