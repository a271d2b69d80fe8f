//! What each participant may ask for: a token bucket and a count of calls under way. Plain rules, to which the
//! clock is passed in, and the one set of accounts that all who admit calls share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::gauge::{Gauge, Held};
use crate::limits::PARTICIPANTS;
use crate::settings::Quota;

/// The account that calls share whose sender is not told, and newcomers when there are too many accounts.
const SHARED: &str = "";

/// The accounts, with a clock, for all who admit calls.
#[derive(Debug, Clone)]
pub(crate) struct Quotas(Arc<Mutex<Rates>>, Instant);

impl Quotas {
    pub(crate) fn new(quota: Quota) -> Self {
        Self(Arc::new(Mutex::new(Rates::new(quota))), Instant::now())
    }

    /// Admits one call, or not. What is returned must live until the call is answered.
    pub(crate) fn admit(&self, participant: Option<&str>) -> Option<Held> {
        // No critical section here calls out.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).admit(participant, self.1.elapsed())
    }
}

/// The accounts of all participants.
#[derive(Debug)]
struct Rates {
    quota: Quota,
    accounts: HashMap<Box<str>, Account>,
    most: usize,
}

#[derive(Debug)]
struct Account {
    tokens: f64,
    /// When the tokens were counted, since the clock's start.
    at: Duration,
    under_way: Gauge,
}

impl Account {
    fn refill(&mut self, quota: &Quota, now: Duration) {
        let gained = now.saturating_sub(self.at).as_secs_f64() * quota.calls_per_second;
        self.tokens = (self.tokens + gained).min(quota.burst);
        self.at = self.at.max(now);
    }
}

impl Rates {
    fn new(quota: Quota) -> Self {
        Self { quota, accounts: HashMap::new(), most: PARTICIPANTS }
    }

    /// See [`Quotas::admit`].
    fn admit(&mut self, participant: Option<&str>, now: Duration) -> Option<Held> {
        let quota = self.quota;
        let name = participant.unwrap_or(SHARED);
        let known = self.accounts.contains_key(name);
        let name = if known || self.has_room(now) { name } else { SHARED };
        if !known {
            let fresh = || Account { tokens: quota.burst, at: now, under_way: Gauge::new() };
            self.accounts.entry(name.into()).or_insert_with(fresh);
        }
        let account = self.accounts.get_mut(name)?;
        account.refill(&quota, now);
        if account.tokens < 1.0 || account.under_way.count() >= quota.outstanding {
            return None;
        }
        account.tokens -= 1.0;
        Some(account.under_way.hold())
    }

    /// Makes room by forgetting accounts that say nothing: full again, and nothing under way.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.accounts.len() >= self.most {
            let quota = self.quota;
            self.accounts.retain(|_, account| {
                account.refill(&quota, now);
                account.under_way.count() > 0 || account.tokens < quota.burst
            });
        }
        self.accounts.len() < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUOTA: Quota = Quota { calls_per_second: 10.0, burst: 20.0, outstanding: 5 };

    #[test]
    fn a_participant_at_its_bound_does_not_hold_up_another() {
        let mut rates = Rates::new(QUOTA);
        let held: Vec<Held> = (0..5).filter_map(|_| rates.admit(Some("a"), Duration::ZERO)).collect();
        assert_eq!(held.len(), 5);
        assert!(rates.admit(Some("a"), Duration::ZERO).is_none(), "five are under way");
        assert!(rates.admit(Some("b"), Duration::ZERO).is_some());
        drop(held);
        assert!(rates.admit(Some("a"), Duration::ZERO).is_some());
    }

    #[test]
    fn strangers_in_any_number_cost_bounded_memory_and_not_each_others_silence() {
        let mut rates = Rates { most: 100, ..Rates::new(QUOTA) };
        for n in 0..1000u32 {
            rates.admit(Some(&n.to_string()), Duration::ZERO);
        }
        assert!(rates.accounts.len() <= 101);
        let later = Duration::from_secs(60);
        assert!(rates.admit(Some("late"), later).is_some());
        assert!(rates.accounts.contains_key("late"), "those who fell silent made room");
    }

    proptest! {
        /// In any span the calls admitted are at most the burst and what the rate gives meanwhile.
        #[test]
        fn no_more_is_admitted_than_burst_and_rate_allow(gaps in prop::collection::vec(0u64..400, 1..300)) {
            let mut rates = Rates::new(QUOTA);
            let (mut now, mut admitted) = (Duration::ZERO, 0u32);
            for gap in gaps {
                now += Duration::from_millis(gap);
                admitted += u32::from(rates.admit(Some("a"), now).is_some());
                prop_assert!(f64::from(admitted) <= QUOTA.burst + QUOTA.calls_per_second * now.as_secs_f64() + 1e-6);
            }
        }

        /// A clock that stands still or goes back gives nothing away and locks nobody out for good.
        #[test]
        fn a_clock_that_goes_back_gives_no_calls_away(times in prop::collection::vec(0u64..1000, 1..200)) {
            let mut rates = Rates::new(QUOTA);
            let mut admitted = 0u32;
            for at in times {
                admitted += u32::from(rates.admit(Some("a"), Duration::from_millis(at)).is_some());
            }
            prop_assert!(f64::from(admitted) <= QUOTA.burst + QUOTA.calls_per_second);
            prop_assert!(rates.admit(Some("a"), Duration::from_secs(100)).is_some());
        }
    }
}
