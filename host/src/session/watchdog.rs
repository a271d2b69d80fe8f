//! Notices silence (`choir §13.1`): an agent that has said nothing for the threshold is taken for crashed. A closed
//! link is noticed at once elsewhere; this is for the frozen.

use std::time::Duration;

use super::Now;
use super::core::Attempt;

/// The rule; the actor around it only reads the clock.
#[derive(Debug, Clone)]
pub struct Watchdog {
    threshold: Duration,
    watched: Option<(Attempt, Now)>,
}

impl Watchdog {
    /// Watches nothing yet.
    #[must_use]
    pub const fn new(threshold: Duration) -> Self {
        Self { threshold, watched: None }
    }

    /// A new threshold, from the next check on.
    pub const fn set_threshold(&mut self, threshold: Duration) {
        self.threshold = threshold;
    }

    /// Watches this sandbox from now on.
    pub const fn watch(&mut self, attempt: Attempt, now: Now) {
        self.watched = Some((attempt, now));
    }

    /// Watches nothing.
    pub const fn forget(&mut self) {
        self.watched = None;
    }

    /// A word of that sandbox.
    pub fn heard(&mut self, attempt: Attempt, now: Now) {
        if let Some((watched, last)) = &mut self.watched
            && *watched == attempt
        {
            *last = (*last).max(now);
        }
    }

    /// When to check next.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        self.watched.map(|(_, last)| last + self.threshold)
    }

    /// The sandbox that has been silent for the threshold or longer, told once.
    pub fn check(&mut self, now: Now) -> Option<(Attempt, Duration)> {
        let (attempt, last) = self.watched?;
        let silent = now.saturating_sub(last);
        if silent < self.threshold {
            return None;
        }
        self.watched = None;
        Some((attempt, silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn silence_is_told_once_and_only_at_the_threshold() {
        let mut dog = Watchdog::new(10 * S);
        assert_eq!(dog.check(100 * S), None);
        dog.watch(1, Now::ZERO);
        dog.heard(1, 5 * S);
        assert_eq!(dog.deadline(), Some(15 * S));
        assert_eq!(dog.check(14 * S), None);
        assert_eq!(dog.check(16 * S), Some((1, 11 * S)));
        assert_eq!(dog.check(17 * S), None);
    }

    #[test]
    fn a_word_of_an_earlier_sandbox_does_not_count() {
        let mut dog = Watchdog::new(10 * S);
        dog.watch(2, Now::ZERO);
        dog.heard(1, 9 * S);
        assert_eq!(dog.check(10 * S), Some((2, 10 * S)));
    }
}
