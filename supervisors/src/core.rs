//! The supervisor's rules, without actors, clocks or tasks: [`Core::step`] takes what happened and the time, and says
//! what to do. OTP's `supervisor` is the reference for every decision; what goes beyond it is back-off, the bound on
//! dynamic children, and that nothing here blocks.
//!
//! Time is a [`Duration`] since any fixed moment.

mod model;

use crate::exit::Exit;
use crate::spec::{AutoShutdown, Backoff, Intensity, Restart, Strategy};
pub use model::{Action, ChildRules, Event, Key, Reaction, Rules};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The state of one supervisor.
#[derive(Debug, Clone)]
pub struct Core {
    rules: Rules,
    /// By key, which is start order.
    children: BTreeMap<Key, Child>,
    phase: Phase,
    /// When the restarts within the period happened, oldest first.
    recent: VecDeque<Duration>,
    next: Key,
    /// Children that are not down.
    living: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Before and during the first start, left to right.
    Starting,
    Running,
    /// Stopping everything, then ending so.
    Ending(Exit),
    Ended,
}

#[derive(Debug, Clone)]
struct Child {
    rules: ChildRules,
    state: State,
    /// Whether it is to run (again) once the way is free.
    wanted: bool,
    /// Whether it is to be stopped; cleared when it is down.
    doomed: bool,
    /// Whether it is to be forgotten when it is down.
    removed: bool,
    /// Never been up: a dynamic child's first start fails without a retry.
    fresh: bool,
    /// Not to be started before.
    due: Duration,
    /// Restarts in a row, each soon after the last.
    streak: u32,
    up_since: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Down,
    Starting,
    Up,
    Stopping,
}

impl Core {
    /// A supervisor that has started nothing yet; [`Event::Begin`] starts it.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            children: BTreeMap::new(),
            phase: Phase::Starting,
            recent: VecDeque::new(),
            next: 0,
            living: 0,
        }
    }

    /// Adds a child after all others. It is started by the next [`Event::Begin`], or by [`Event::Added`] when the
    /// supervisor runs. `None` when the bound on children is reached or the supervisor is ending.
    pub fn add(&mut self, rules: ChildRules) -> Option<Key> {
        if self.children.len() >= self.rules.max_children || self.is_ending() {
            return None;
        }
        let key = self.next;
        self.next += 1;
        let child = Child {
            rules,
            state: State::Down,
            wanted: true,
            doomed: false,
            removed: false,
            fresh: true,
            due: Duration::ZERO,
            streak: 0,
            up_since: Duration::ZERO,
        };
        self.children.insert(key, child);
        Some(key)
    }

    /// Restarts within the period that ends `now`.
    #[must_use]
    pub fn recent_restarts(&self, now: Duration) -> usize {
        let within = self.rules.intensity.within;
        self.recent.iter().filter(|at| now.saturating_sub(**at) <= within).count()
    }

    /// Whether it is stopping its children or has ended.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(_) | Phase::Ended)
    }

    /// Takes an event and appends what is to be done to `out`, in order.
    pub fn step(&mut self, event: Event, now: Duration, out: &mut Vec<Action>) {
        if self.phase == Phase::Ended {
            return;
        }
        let focus = match &event {
            Event::Added(key) | Event::Due(key) | Event::Started(key) | Event::Remove(key) => Some(*key),
            Event::Ended(key, _) | Event::NotStarted(key, _) => Some(*key),
            Event::Begin | Event::Stop | Event::Immovable(_) => None,
        };
        match event {
            Event::Begin | Event::Added(_) | Event::Due(_) => {}
            Event::Started(key) => self.started(key, now),
            Event::Ended(key, exit) => self.ended(key, exit, false, now, out),
            Event::NotStarted(key, exit) => self.ended(key, exit, true, now, out),
            Event::Remove(key) => self.remove(key, out),
            Event::Stop => self.finish(Exit::Shutdown),
            Event::Immovable(key) => {
                self.down(key);
                self.finish(Exit::Failed(
                    "a child could not be stopped: its thread is blocked, so no replacement may start"
                        .to_owned(),
                ));
            }
        }
        self.settle(focus, now, out);
    }

    fn started(&mut self, key: Key, now: Duration) {
        if let Some(child) = self.children.get_mut(&key)
            && child.state == State::Starting
        {
            child.state = State::Up;
            child.fresh = false;
            child.up_since = now;
        }
    }

    /// An incarnation is gone, or (`in_start`) did not come to be.
    fn ended(&mut self, key: Key, exit: Exit, in_start: bool, now: Duration, out: &mut Vec<Action>) {
        let ending = self.is_ending();
        let Some(child) = self.children.get(&key) else { return };
        let (state, doomed, fresh, restart) = (child.state, child.doomed, child.fresh, child.rules.restart);
        match state {
            State::Down => {}
            State::Stopping | State::Starting | State::Up if doomed || state == State::Stopping || ending => {
                self.down(key);
                out.push(Action::Report { key, exit, reaction: Reaction::Stopped });
                let gone = self.children.get(&key).is_some_and(|c| c.removed || !c.wanted);
                if gone && !ending {
                    self.forget(key, out);
                }
            }
            _ if in_start && self.phase == Phase::Starting => {
                self.down(key);
                let reason = exit.to_string();
                out.push(Action::Report { key, exit, reaction: Reaction::NotStarted });
                self.finish(Exit::Failed(format!("a child did not start: it {reason}")));
            }
            _ if in_start && fresh && self.rules.dynamic => {
                self.down(key);
                out.push(Action::Report { key, exit, reaction: Reaction::NotStarted });
                self.forget(key, out);
            }
            _ if !in_start && !restart.restarts_after(&exit) => self.left(key, exit, out),
            _ => self.failed(key, exit, now, out),
        }
    }

    /// A child ended and stays so.
    fn left(&mut self, key: Key, exit: Exit, out: &mut Vec<Action>) {
        self.down(key);
        out.push(Action::Report { key, exit, reaction: Reaction::Left });
        let significant = self.children.get(&key).is_some_and(|child| child.rules.significant);
        if let Some(child) = self.children.get_mut(&key) {
            child.wanted = false;
        }
        self.forget(key, out);
        let last =
            |core: &Self| !core.children.values().any(|c| c.rules.significant && c.state != State::Down);
        let over = significant
            && match self.rules.auto_shutdown {
                AutoShutdown::Never => false,
                AutoShutdown::AnySignificant => true,
                AutoShutdown::AllSignificant => last(self),
            };
        if over {
            self.finish(Exit::Shutdown);
        }
    }

    /// A child ended and is to be restarted, unless that is once too often.
    fn failed(&mut self, key: Key, exit: Exit, now: Duration, out: &mut Vec<Action>) {
        self.down(key);
        let within = self.rules.intensity.within;
        while self.recent.front().is_some_and(|at| now.saturating_sub(*at) > within) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() > self.rules.intensity.restarts as usize {
            let reason = format!(
                "more than {} restarts within {:?}; the last child {exit}",
                self.rules.intensity.restarts, within
            );
            out.push(Action::Report { key, exit, reaction: Reaction::Escalated });
            self.finish(Exit::Failed(reason));
            return;
        }
        let Some(child) = self.children.get_mut(&key) else { return };
        let backoff = child.rules.backoff;
        if !child.fresh && now.saturating_sub(child.up_since) >= backoff.stable_after {
            child.streak = 0;
        }
        let after = backoff.delay(child.streak);
        child.streak = child.streak.saturating_add(1);
        child.due = now + after;
        child.wanted = true;
        // A second failure before it was up again must not look like a long stable run.
        child.up_since = now;
        out.push(Action::Report { key, exit, reaction: Reaction::Restarting { after } });
        match self.rules.strategy {
            Strategy::OneForOne => {}
            Strategy::OneForAll => self.take_along(|other| other != key),
            Strategy::RestForOne => self.take_along(|other| other > key),
        }
    }

    /// Stops the other members of the group; they start again afterwards, except temporary ones. As in OTP, a
    /// transient member that had ended normally starts again too.
    fn take_along(&mut self, member: impl Fn(Key) -> bool) {
        for (_, child) in self.children.iter_mut().filter(|(key, _)| member(**key)) {
            child.wanted = child.rules.restart != Restart::Temporary;
            child.doomed = child.state != State::Down;
        }
    }

    fn remove(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(child) = self.children.get_mut(&key) else { return };
        child.removed = true;
        child.wanted = false;
        child.doomed = child.state != State::Down;
        if child.state == State::Down {
            self.forget(key, out);
        }
    }

    fn finish(&mut self, exit: Exit) {
        if self.is_ending() {
            return;
        }
        self.phase = Phase::Ending(exit);
        for child in self.children.values_mut() {
            child.wanted = false;
            child.doomed = child.state != State::Down;
        }
    }

    fn down(&mut self, key: Key) {
        if let Some(child) = self.children.get_mut(&key)
            && child.state != State::Down
        {
            child.state = State::Down;
            child.doomed = false;
            self.living -= 1;
        }
    }

    /// The child has ended for good. A static one stays in the list, since a group restart may start it again.
    fn forget(&mut self, key: Key, out: &mut Vec<Action>) {
        if self.rules.dynamic {
            self.children.remove(&key);
        }
        out.push(Action::Forget(key));
    }

    /// Issues the stops and starts that the present state asks for.
    fn settle(&mut self, focus: Option<Key>, now: Duration, out: &mut Vec<Action>) {
        let focus = focus.filter(|_| self.rules.dynamic && self.phase == Phase::Running);
        self.settle_stops(focus, out);
        if let Phase::Ending(exit) = &self.phase {
            if self.living == 0 {
                out.push(Action::Done(exit.clone()));
                self.phase = Phase::Ended;
            }
            return;
        }
        if !self.rules.dynamic && self.children.values().any(|child| child.doomed) {
            return;
        }
        self.settle_starts(focus, now, out);
        let settled =
            |child: &Child| child.state == State::Up || (child.state == State::Down && !child.wanted);
        if self.phase == Phase::Starting && self.children.values().all(settled) {
            self.phase = Phase::Running;
            out.push(Action::Ready);
        }
    }

    /// Children of a dynamic supervisor are stopped all at once, others one by one from the last to the first.
    fn settle_stops(&mut self, focus: Option<Key>, out: &mut Vec<Action>) {
        let doomed = |child: &Child| child.doomed && matches!(child.state, State::Starting | State::Up);
        if self.rules.dynamic {
            let (from, to) = span(focus);
            for (key, child) in self.children.range_mut(from..=to).filter(|(_, child)| doomed(child)) {
                child.state = State::Stopping;
                out.push(Action::Stop(*key));
            }
        } else if !self.children.values().any(|child| child.state == State::Stopping)
            && let Some((key, child)) = self.children.iter_mut().rev().find(|(_, child)| doomed(child))
        {
            child.state = State::Stopping;
            out.push(Action::Stop(*key));
        }
    }

    /// The first start and group restarts go left to right, each child after the one before is up.
    fn settle_starts(&mut self, focus: Option<Key>, now: Duration, out: &mut Vec<Action>) {
        let ordered = !self.rules.dynamic
            && (self.phase == Phase::Starting || self.rules.strategy != Strategy::OneForOne);
        if ordered && self.children.values().any(|child| child.state == State::Starting) {
            return;
        }
        let (from, to) = span(focus);
        for (key, child) in self.children.range_mut(from..=to) {
            match child.state {
                State::Down if child.wanted && child.due > now => {
                    out.push(Action::Wake { key: *key, at: child.due });
                    if ordered {
                        break;
                    }
                }
                State::Down if child.wanted => {
                    child.state = State::Starting;
                    self.living += 1;
                    out.push(Action::Start(*key));
                    if ordered {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
}

/// The keys to look at.
fn span(focus: Option<Key>) -> (Key, Key) {
    focus.map_or((0, Key::MAX), |key| (key, key))
}

impl Restart {
    /// Whether a child of this kind is restarted after this exit.
    #[must_use]
    pub const fn restarts_after(self, exit: &Exit) -> bool {
        match self {
            Self::Permanent => true,
            Self::Transient => !exit.is_normal(),
            Self::Temporary => false,
        }
    }
}

impl Backoff {
    /// How long to wait before the restart that follows `streak` others in a row.
    #[must_use]
    pub fn delay(&self, streak: u32) -> Duration {
        let Some(step) = streak.checked_sub(self.immediate) else { return Duration::ZERO };
        // 64 doublings of a nanosecond are five centuries; more steps cannot change the outcome.
        let mut delay = self.initial;
        for _ in 0..step.min(64) {
            delay = delay.saturating_mul(self.factor.max(1));
            if delay >= self.max {
                break;
            }
        }
        delay.min(self.max)
    }
}

impl Intensity {
    /// `restarts` within `within`; one more and the supervisor gives up.
    #[must_use]
    pub const fn new(restarts: u32, within: Duration) -> Self {
        Self { restarts, within }
    }
}

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
