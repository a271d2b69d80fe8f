//! When a provider's keys are fetched and how long they are believed, without fetching anything: the caller asks, and
//! when it is told to fetch, it fetches and reports. At most one fetch is under way; a provider that fails is asked
//! less and less often; and key ids that nobody has seen cannot make it be asked more than once a minute.

use choir_messages::time::Timestamp;
use std::time::Duration;

use crate::instant::later;
use crate::jwk::Jwks;
use crate::limits::{
    JWKS_DEFAULT_AGE, JWKS_FETCH_DEADLINE, JWKS_MAX_AGE, JWKS_RETRY_PAUSE, JWKS_STALE_IF_ERROR,
    JWKS_UNKNOWN_KID_PAUSE,
};

/// What to do for a token.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Verify with these keys.
    Use(&'a Jwks),
    /// Fetch the keys, report with [`JwksCache::fetched`] or [`JwksCache::failed`], then ask again.
    Fetch,
    /// A fetch is under way; ask again when it has been reported, at this time at the latest.
    Wait {
        /// When the fetch is given up.
        until: Timestamp,
    },
    /// The provider cannot be reached and its keys are too old to believe, or it has no such key. Ask again then.
    Unavailable {
        /// When the provider is next asked.
        until: Timestamp,
    },
}

#[derive(Debug)]
struct Held {
    keys: Jwks,
    fresh_until: Timestamp,
}

/// One provider's keys.
#[derive(Debug, Default)]
pub struct JwksCache {
    held: Option<Held>,
    /// When the fetch under way is given up.
    fetching: Option<Timestamp>,
    /// Before this the provider is not asked again after failures.
    pause: Option<Timestamp>,
    /// Before this the provider is not asked again for an unknown key.
    unknown_pause: Option<Timestamp>,
    failures: u32,
}

/// The deadline, unless it has passed or lies further ahead than it was ever set: then the clock has gone back.
fn pending(deadline: Option<Timestamp>, now: Timestamp, longest: Duration) -> Option<Timestamp> {
    deadline.filter(|deadline| *deadline > now && *deadline <= later(now, longest))
}

impl JwksCache {
    /// A cache that holds nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What to do for a token that names this key. [`Lookup::Fetch`] is answered to one caller only; it must report.
    pub fn lookup(&mut self, kid: Option<&str>, now: Timestamp) -> Lookup<'_> {
        let fetching = pending(self.fetching, now, JWKS_FETCH_DEADLINE);
        let pause = pending(self.pause, now, JWKS_RETRY_PAUSE.1);
        let unknown_pause = pending(self.unknown_pause, now, JWKS_UNKNOWN_KID_PAUSE);
        let fresh = |held: &Held| pending(Some(held.fresh_until), now, JWKS_MAX_AGE.1).is_some();
        let usable = |held: &Held| pause.is_some() && now < later(held.fresh_until, JWKS_STALE_IF_ERROR);
        let blocked = match &self.held {
            Some(held) if fresh(held) && kid.is_none_or(|kid| held.keys.has(kid)) => None,
            Some(held) if fresh(held) => Some(pause.max(unknown_pause)),
            // Old keys are used only while the provider fails, since a key missing from the new set may be stolen.
            Some(held) if usable(held) && kid.is_none_or(|kid| held.keys.has(kid)) => None,
            _ => Some(pause),
        };
        match (blocked, &self.held) {
            (None, Some(held)) => Lookup::Use(&held.keys),
            (Some(Some(until)), _) => Lookup::Unavailable { until },
            (_, held) => match fetching {
                Some(until) => Lookup::Wait { until },
                None => {
                    if held.as_ref().is_some_and(fresh) {
                        self.unknown_pause = Some(later(now, JWKS_UNKNOWN_KID_PAUSE));
                    }
                    self.fetching = Some(later(now, JWKS_FETCH_DEADLINE));
                    Lookup::Fetch
                }
            },
        }
    }

    /// The keys have come. `max_age` is what the provider's cache headers say.
    pub fn fetched(&mut self, keys: Jwks, max_age: Option<Duration>, now: Timestamp) {
        let age = max_age.unwrap_or(JWKS_DEFAULT_AGE).clamp(JWKS_MAX_AGE.0, JWKS_MAX_AGE.1);
        self.held = Some(Held { keys, fresh_until: later(now, age) });
        (self.fetching, self.pause, self.failures) = (None, None, 0);
    }

    /// The fetch failed: no answer, an error, or no key set.
    pub fn failed(&mut self, now: Timestamp) {
        let pause = JWKS_RETRY_PAUSE.0.saturating_mul(1 << self.failures.min(16)).min(JWKS_RETRY_PAUSE.1);
        self.failures = self.failures.saturating_add(1);
        self.pause = Some(later(now, pause));
        self.fetching = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instant::at_second;
    use crate::test_keys::SigningJwk;
    use proptest::prelude::*;
    use serde_json::json;

    fn keys(kid: &str) -> Jwks {
        let mut jwk = SigningJwk::ed25519(1).public().to_json();
        jwk["kid"] = json!(kid);
        Jwks::parse(json!({"keys": [jwk]}).to_string().as_bytes()).unwrap()
    }

    fn filled(now: u64) -> JwksCache {
        let mut cache = JwksCache::new();
        assert_eq!(cache.lookup(Some("a"), at_second(now)), Lookup::Fetch);
        cache.fetched(keys("a"), Some(Duration::from_secs(600)), at_second(now));
        cache
    }

    #[test]
    fn one_caller_fetches_while_the_others_wait() {
        let mut cache = JwksCache::new();
        assert_eq!(cache.lookup(Some("a"), at_second(0)), Lookup::Fetch);
        assert_eq!(cache.lookup(Some("b"), at_second(9)), Lookup::Wait { until: at_second(10) });
        assert_eq!(
            cache.lookup(Some("a"), at_second(10)),
            Lookup::Fetch,
            "a fetch that never reports is given up"
        );
        cache.fetched(keys("a"), None, at_second(11));
        assert_eq!(cache.lookup(Some("a"), at_second(12)), Lookup::Use(&keys("a")));
        assert_eq!(cache.lookup(None, at_second(12)), Lookup::Use(&keys("a")));
    }

    #[test]
    fn unknown_keys_cause_one_fetch_a_minute() {
        let mut cache = filled(0);
        assert_eq!(cache.lookup(Some("b"), at_second(1)), Lookup::Fetch);
        cache.fetched(keys("a"), Some(Duration::from_secs(600)), at_second(2));
        for second in [2, 30, 60] {
            assert_eq!(
                cache.lookup(Some("c"), at_second(second)),
                Lookup::Unavailable { until: at_second(61) }
            );
        }
        assert_eq!(cache.lookup(Some("a"), at_second(60)), Lookup::Use(&keys("a")));
        assert_eq!(cache.lookup(Some("c"), at_second(61)), Lookup::Fetch);
    }

    #[test]
    fn old_keys_are_used_only_while_the_provider_fails_and_not_for_ever() {
        let mut cache = filled(0);
        assert_eq!(cache.lookup(Some("a"), at_second(600)), Lookup::Fetch);
        cache.failed(at_second(601));
        assert_eq!(cache.lookup(Some("a"), at_second(602)), Lookup::Use(&keys("a")));
        assert_eq!(cache.lookup(Some("b"), at_second(602)), Lookup::Unavailable { until: at_second(606) });
        assert_eq!(cache.lookup(Some("a"), at_second(606)), Lookup::Fetch);
        let end = 600 + JWKS_STALE_IF_ERROR.as_secs();
        cache.failed(at_second(end - 1));
        assert_eq!(cache.lookup(Some("a"), at_second(end - 1)), Lookup::Use(&keys("a")));
        assert_eq!(
            cache.lookup(Some("a"), at_second(end)),
            Lookup::Unavailable { until: at_second(end + 9) }
        );
    }

    #[test]
    fn pauses_after_failures_double_up_to_five_minutes() {
        let (mut cache, mut pauses) = (JwksCache::new(), vec![]);
        let mut now = 0;
        for _ in 0..9 {
            assert_eq!(cache.lookup(None, at_second(now)), Lookup::Fetch);
            cache.failed(at_second(now));
            let Lookup::Unavailable { until } = cache.lookup(None, at_second(now)) else {
                panic!("no pause")
            };
            pauses.push(until.since(at_second(now)).as_secs());
            now = until.millis() / 1000;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn cache_headers_are_held_within_bounds() {
        for (said, holds_until) in [(0, 60), (100, 100), (u64::MAX, 24 * 3600)] {
            let mut cache = JwksCache::new();
            cache.fetched(keys("a"), Some(Duration::from_secs(said)), at_second(0));
            assert_eq!(cache.lookup(Some("a"), at_second(holds_until - 1)), Lookup::Use(&keys("a")));
            assert_eq!(cache.lookup(Some("a"), at_second(holds_until)), Lookup::Fetch);
        }
    }

    #[test]
    fn a_clock_that_goes_back_blocks_nothing_for_long() {
        let mut cache = JwksCache::new();
        assert_eq!(cache.lookup(None, at_second(1_000_000)), Lookup::Fetch);
        cache.failed(at_second(1_000_000));
        assert_eq!(cache.lookup(None, at_second(10)), Lookup::Fetch);
    }

    proptest! {
        #[test]
        fn fetches_are_bounded_whatever_is_asked(
            steps in proptest::collection::vec((0u64..5, prop::option::of(0u8..4), 0u8..3), 1..300),
        ) {
            let (mut cache, mut now, mut fetches) = (JwksCache::new(), 0, 0u64);
            for (wait, kid, outcome) in steps {
                now += wait;
                let kid = kid.map(|kid| format!("k{kid}"));
                if cache.lookup(kid.as_deref(), at_second(now)) == Lookup::Fetch {
                    fetches += 1;
                    match outcome {
                        0 => cache.fetched(keys("k0"), None, at_second(now)),
                        1 => cache.failed(at_second(now)),
                        _ => {}
                    }
                }
            }
            // At worst one for every first pause, whether by failures or by fetches that never report.
            prop_assert!(fetches <= 2 + now / 5 + now / 60);
        }
    }
}
