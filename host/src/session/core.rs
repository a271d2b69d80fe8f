//! The life of one agent's session, as rules: start, crash, back-off, stop (`choir §6.4`, `choir §13`, `choir §17.2`).
//!
//! The one promise everything rests on: a sandbox is launched only when the one before it is known to be gone, and its
//! session's lease is closed in the store in between. So an agent runs at most once.

use std::collections::VecDeque;
use std::time::Duration;

use super::Now;
use crate::limits;

mod types;

pub use types::{Action, Attempt, Input, Phase};

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Stopped,
    Opening { fresh: bool, retry_at: Option<Now> },
    Starting { launched: bool, until: Now },
    Up,
    Stopping { until: Now },
    Killing { until: Now, crashed: Option<String> },
    Closing { crashed: Option<String>, retry_at: Option<Now> },
    BackingOff { until: Now, fresh: bool },
    Failed { why: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Run { fresh: bool },
    Stop,
}

/// The rules; see the module's text.
#[derive(Debug, Clone)]
pub struct SessionCore {
    state: State,
    goal: Goal,
    quitting: bool,
    attempt: Attempt,
    /// Whether the current sandbox made a durable event.
    progress: bool,
    /// Until when a closed link may be made anew before the sandbox counts as crashed; its process may be well.
    lost: Option<(Now, String)>,
    /// Crashes in a row without progress.
    barren: u32,
    /// Moments of recent crashes.
    crashes: VecDeque<Now>,
    /// Crashes in all, for operators.
    restarts: u64,
    trouble: Option<String>,
}

impl Default for SessionCore {
    fn default() -> Self {
        Self::new()
    }
}

impl SessionCore {
    /// A stopped session.
    #[must_use]
    pub const fn new() -> Self {
        Self::after(0)
    }

    /// A stopped session whose sandboxes are counted on from an earlier incarnation's.
    #[must_use]
    pub const fn after(attempt: Attempt) -> Self {
        Self {
            state: State::Stopped,
            goal: Goal::Stop,
            quitting: false,
            attempt,
            progress: false,
            lost: None,
            barren: 0,
            crashes: VecDeque::new(),
            restarts: 0,
            trouble: None,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Stopped => Phase::Stopped,
            State::Opening { .. } => Phase::Opening,
            State::Starting { .. } => Phase::Starting,
            State::Up => Phase::Up,
            State::Stopping { .. } => Phase::Stopping,
            State::Killing { .. } => Phase::Killing,
            State::Closing { .. } => Phase::Closing,
            State::BackingOff { .. } => Phase::BackingOff,
            State::Failed { why } => Phase::Failed { why: why.clone() },
        }
    }

    /// The current or last sandbox.
    #[must_use]
    pub const fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Times it was restarted after a crash.
    #[must_use]
    pub const fn restarts(&self) -> u64 {
        self.restarts
    }

    /// What went wrong last, until it runs again.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the current sandbox may be served: its lease is open and it is not being killed.
    #[must_use]
    pub const fn serves(&self) -> bool {
        matches!(self.state, State::Starting { .. } | State::Up | State::Stopping { .. })
    }

    /// When [`Input::Tick`] must come at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let lost = self.lost.as_ref().map(|(until, _)| *until);
        match (self.state_deadline(), lost) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    const fn state_deadline(&self) -> Option<Now> {
        match &self.state {
            State::Opening { retry_at, .. } | State::Closing { retry_at, .. } => *retry_at,
            State::Starting { until, .. }
            | State::Stopping { until }
            | State::Killing { until, .. }
            | State::BackingOff { until, .. } => Some(*until),
            State::Stopped | State::Up | State::Failed { .. } => None,
        }
    }

    /// Takes one input in.
    pub fn step(&mut self, input: Input, now: Now) -> Vec<Action> {
        let mut out = Vec::new();
        if let Input::Launched { attempt, .. }
        | Input::LaunchFailed { attempt, .. }
        | Input::Ready { attempt }
        | Input::Progress { attempt }
        | Input::LinkUp { attempt }
        | Input::LinkDown { attempt, .. }
        | Input::Silent { attempt, .. }
        | Input::Leaving { attempt, .. }
        | Input::Gone { attempt, .. } = &input
            && *attempt != self.attempt
        {
            return out;
        }
        match input {
            Input::Start { fresh } => self.start(fresh, &mut out),
            Input::Stop => self.stop(now, &mut out),
            Input::Restart { fresh } => self.restart(fresh, now, &mut out),
            Input::Quit => {
                self.quitting = true;
                self.wind_down(now, &mut out);
            }
            Input::Opened => self.opened(now, &mut out),
            Input::OpenRefused { reason } => {
                if matches!(self.state, State::Opening { .. }) {
                    self.give_up(reason, &mut out);
                }
            }
            Input::OpenFailed { reason } => {
                if let State::Opening { retry_at, .. } = &mut self.state {
                    *retry_at = Some(now + limits::OPEN_RETRY);
                    self.trouble = Some(reason);
                    self.settle_if_unwanted();
                }
            }
            Input::Launched { .. } => {
                if let State::Starting { launched, .. } = &mut self.state {
                    *launched = true;
                    if self.ending() {
                        self.kill(None, "no longer wanted", now, &mut out);
                    }
                }
            }
            Input::LaunchFailed { reason, .. } => {
                if matches!(self.state, State::Starting { .. } | State::Killing { .. }) {
                    self.close(Some(format!("the sandbox did not start: {reason}")), &mut out);
                }
            }
            Input::Ready { .. } => {
                if matches!(self.state, State::Starting { .. }) {
                    self.state = State::Up;
                    self.trouble = None;
                    out.push(report(false, "the agent is up".into()));
                }
            }
            Input::Progress { .. } => {
                self.progress = true;
                self.barren = 0;
            }
            Input::LinkUp { .. } => self.lost = None,
            Input::LinkDown { reason, for_good, .. } => {
                if matches!(self.state, State::Starting { .. } | State::Up) {
                    let why = format!("its link closed: {reason}");
                    if for_good {
                        self.kill(Some(why.clone()), &why, now, &mut out);
                    } else {
                        self.lost = Some((now + limits::LINK_GRACE, why));
                    }
                }
            }
            Input::Silent { silent, .. } => {
                if matches!(self.state, State::Starting { .. } | State::Up) {
                    let why = format!("no heartbeat for {} ms", silent.as_millis());
                    self.kill(Some(why.clone()), &why, now, &mut out);
                }
            }
            Input::Leaving { reason, .. } => {
                if matches!(self.state, State::Starting { .. } | State::Up) {
                    // Unasked. It may finish leaving by itself; what it was doing goes on in the next sandbox.
                    out.push(report(true, format!("the agent is leaving by itself: {reason}")));
                    self.state = State::Stopping { until: now + limits::STOP_WITHIN };
                    self.trouble = Some(reason);
                }
            }
            Input::Gone { how, .. } => self.gone(how, &mut out),
            Input::Closed => self.closed(now, &mut out),
            Input::CloseFailed { reason } if self.quitting => {
                if matches!(self.state, State::Closing { .. }) {
                    // The next choird takes the lease back before it starts anyone.
                    self.state = State::Stopped;
                    let why = format!("the agent is stopped; its lease is left to the next choird: {reason}");
                    out.push(report(true, why));
                }
            }
            Input::CloseFailed { reason } => {
                if let State::Closing { retry_at, .. } = &mut self.state {
                    *retry_at = Some(now + limits::OPEN_RETRY);
                    self.trouble = Some(reason);
                }
            }
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    const fn ending(&self) -> bool {
        self.quitting || matches!(self.goal, Goal::Stop)
    }

    fn start(&mut self, fresh: bool, out: &mut Vec<Action>) {
        if self.quitting {
            return;
        }
        out.push(Action::Remember { wanted: true });
        self.goal = Goal::Run { fresh };
        match self.state {
            State::Stopped | State::Failed { .. } | State::BackingOff { .. } => {
                self.barren = 0;
                self.crashes.clear();
                self.trouble = None;
                self.open(fresh, out);
            }
            // Running already, or on its way: at most one instance.
            State::Opening { .. } | State::Starting { .. } | State::Up => {
                self.goal = Goal::Run { fresh: false }
            }
            // On its way out: it comes back once it is gone.
            State::Stopping { .. } | State::Killing { .. } | State::Closing { .. } => {}
        }
    }

    fn stop(&mut self, now: Now, out: &mut Vec<Action>) {
        out.push(Action::Remember { wanted: false });
        self.goal = Goal::Stop;
        self.wind_down(now, out);
    }

    fn restart(&mut self, fresh: bool, now: Now, out: &mut Vec<Action>) {
        match self.state {
            State::Starting { .. } | State::Up if !self.quitting => {
                out.push(Action::Remember { wanted: true });
                self.goal = Goal::Run { fresh };
                self.leave(now, out);
            }
            _ => self.start(fresh, out),
        }
    }

    /// Goes towards the end from wherever it is.
    fn wind_down(&mut self, now: Now, out: &mut Vec<Action>) {
        match self.state {
            State::Up => self.leave(now, out),
            State::Starting { launched: true, .. } => self.kill(None, "stopped while starting", now, out),
            // The launch is under way: its result is awaited, so that no process is ever lost sight of.
            State::Starting { launched: false, .. } => {}
            State::Opening { retry_at: Some(_), .. } | State::BackingOff { .. } => {
                self.state = State::Stopped;
                out.push(report(false, "the agent is stopped".into()));
            }
            // The store may be granting it right now: its answer is awaited.
            State::Opening { retry_at: None, .. } => {}
            State::Failed { .. } if !self.quitting => {
                self.state = State::Stopped;
                self.trouble = None;
            }
            State::Stopped
            | State::Stopping { .. }
            | State::Killing { .. }
            | State::Closing { .. }
            | State::Failed { .. } => {}
        }
    }

    fn leave(&mut self, now: Now, out: &mut Vec<Action>) {
        if let State::Starting { .. } = self.state {
            self.wind_down_start(now, out);
            return;
        }
        self.state = State::Stopping { until: now + limits::STOP_WITHIN };
        out.push(Action::AskToLeave { attempt: self.attempt, within: limits::STOP_WITHIN });
    }

    fn wind_down_start(&mut self, now: Now, out: &mut Vec<Action>) {
        if matches!(self.state, State::Starting { launched: true, .. }) {
            self.kill(None, "restarted while starting", now, out);
        }
    }

    fn open(&mut self, fresh: bool, out: &mut Vec<Action>) {
        self.state = State::Opening { fresh, retry_at: None };
        out.push(Action::Open { fresh });
    }

    fn opened(&mut self, now: Now, out: &mut Vec<Action>) {
        if !matches!(self.state, State::Opening { .. }) {
            return;
        }
        self.goal = match self.goal {
            Goal::Run { .. } => Goal::Run { fresh: false },
            Goal::Stop => Goal::Stop,
        };
        if self.ending() {
            self.close(None, out);
            return;
        }
        self.attempt += 1;
        self.progress = false;
        self.lost = None;
        self.state = State::Starting { launched: false, until: now + limits::START_WITHIN };
        out.push(Action::Launch { attempt: self.attempt });
    }

    fn settle_if_unwanted(&mut self) {
        if self.ending() {
            self.state = State::Stopped;
        }
    }

    fn kill(&mut self, crashed: Option<String>, why: &str, now: Now, out: &mut Vec<Action>) {
        self.lost = None;
        self.state = State::Killing { until: now + limits::GONE_WITHIN, crashed };
        out.push(Action::Kill { attempt: self.attempt, why: why.to_owned() });
    }

    fn gone(&mut self, how: String, out: &mut Vec<Action>) {
        match std::mem::replace(&mut self.state, State::Stopped) {
            State::Starting { .. } => self.close(Some(format!("the agent ended while starting: {how}")), out),
            State::Up => self.close(Some(format!("the agent ended: {how}")), out),
            State::Stopping { .. } => {
                let unasked = self.trouble.take().filter(|_| !self.ending());
                self.close(unasked.map(|why| format!("it left by itself: {why}")), out);
            }
            State::Killing { crashed, .. } => self.close(crashed, out),
            other => self.state = other,
        }
    }

    fn close(&mut self, crashed: Option<String>, out: &mut Vec<Action>) {
        self.lost = None;
        self.state = State::Closing { crashed: crashed.clone(), retry_at: None };
        if let Some(why) = &crashed {
            out.push(report(true, format!("the agent crashed: {why}")));
        }
        // Kill also reaches what a process left behind, and frees the link.
        out.push(Action::Kill { attempt: self.attempt, why: "its lease is being closed".into() });
        out.push(Action::Close { crashed });
    }

    fn closed(&mut self, now: Now, out: &mut Vec<Action>) {
        let State::Closing { crashed, .. } = &self.state else { return };
        let crashed = crashed.clone();
        if self.ending() {
            self.state = State::Stopped;
            self.trouble = None;
            out.push(report(false, "the agent is stopped".into()));
            return;
        }
        let Goal::Run { fresh } = self.goal else { return };
        let Some(why) = crashed else { return self.open(fresh, out) };
        self.restarts += 1;
        if !self.progress {
            self.barren += 1;
        }
        self.crashes.push_back(now);
        while self.crashes.front().is_some_and(|at| *at + limits::CRASH_WINDOW <= now) {
            self.crashes.pop_front();
        }
        if self.barren >= limits::CRASHES_WITHOUT_PROGRESS {
            let why = format!(
                "it crashed {} times in a row without getting anywhere; the last time: {why}",
                self.barren
            );
            return self.give_up(why, out);
        }
        if self.crashes.len() > limits::CRASHES_IN_WINDOW {
            let why =
                format!("it crashed {} times within ten minutes; the last time: {why}", self.crashes.len());
            return self.give_up(why, out);
        }
        self.trouble = Some(why);
        let wait = back_off(self.barren);
        if wait.is_zero() {
            self.open(fresh, out);
        } else {
            self.state = State::BackingOff { until: now + wait, fresh };
        }
    }

    fn give_up(&mut self, why: String, out: &mut Vec<Action>) {
        if self.ending() {
            self.state = State::Stopped;
            return;
        }
        out.push(report(true, format!("the agent is given up: {why}")));
        self.trouble = Some(why.clone());
        self.state = State::Failed { why };
    }

    fn tick(&mut self, now: Now, out: &mut Vec<Action>) {
        if let Some((_, why)) = self.lost.take_if(|(until, _)| *until <= now)
            && matches!(self.state, State::Starting { .. } | State::Up)
        {
            return self.kill(Some(why.clone()), &why, now, out);
        }
        if self.state_deadline().is_none_or(|at| at > now) {
            return;
        }
        match self.state.clone() {
            State::Opening { fresh, .. } => self.open(fresh, out),
            State::Closing { crashed, .. } => {
                self.state = State::Closing { crashed: crashed.clone(), retry_at: None };
                out.push(Action::Close { crashed });
            }
            State::Starting { .. } => {
                let why = format!("it said no hello within {} s", limits::START_WITHIN.as_secs());
                self.kill(Some(why.clone()), &why, now, out);
            }
            State::Stopping { .. } => {
                self.trouble = None;
                self.kill(None, "it did not leave in time", now, out);
            }
            State::Killing { crashed, .. } => {
                // Still there after a kill: the kernel holds it (uninterruptible sleep). Nothing may start beside it.
                out.push(report(true, "the killed sandbox is still there; killing it again".into()));
                self.kill(crashed, "it is still there", now, out);
            }
            State::BackingOff { fresh, .. } => self.open(fresh, out),
            State::Stopped | State::Up | State::Failed { .. } => {}
        }
    }
}

fn report(bad: bool, text: String) -> Action {
    Action::Report { bad, text }
}

/// The wait after so many crashes in a row without progress; none after a crash that followed progress.
fn back_off(barren: u32) -> Duration {
    match barren {
        0 => Duration::ZERO,
        n => (limits::BACKOFF_FIRST * 2u32.saturating_pow(n.min(16) - 1)).min(limits::BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests;
