//! What was already used once: a bounded memory of single-use proofs. When it is full, new proofs are refused; to forget
//! an old one early would let it be used again.

use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::limits::{REPLAY_CAPACITY, REPLAY_PER_KEY};

/// Why a proof is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Used before.
    #[error("the proof was used before; make a new one for each request")]
    Used,
    /// It ended before it came.
    #[error("the proof is no longer good; make a new one")]
    Ended,
    /// This key has used up its share.
    #[error("too many proofs by one key; try again in a minute")]
    TooMany,
    /// The memory is full.
    #[error("too many proofs at once; try again in a minute")]
    Full,
}

/// Remembers proofs until they can no longer be good.
#[derive(Debug)]
pub struct ReplayCache {
    used: HashSet<Digest>,
    /// Who used what, by when it ends.
    ends: BTreeMap<(Timestamp, Digest), Digest>,
    owners: HashMap<Digest, usize>,
    /// The latest time seen: a clock that goes back must not bring a forgotten proof to life.
    latest: Timestamp,
}

impl Default for ReplayCache {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplayCache {
    /// An empty memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            used: HashSet::new(),
            ends: BTreeMap::new(),
            owners: HashMap::new(),
            latest: Timestamp::from_millis(0),
        }
    }

    /// Takes a proof, once. `owner` is who made it, `proof` names it, `until` is when it can no longer be good.
    pub fn admit(
        &mut self,
        owner: Digest,
        proof: Digest,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<(), ReplayError> {
        self.latest = self.latest.max(now);
        self.forget();
        if until <= self.latest {
            return Err(ReplayError::Ended);
        }
        if self.used.contains(&proof) {
            return Err(ReplayError::Used);
        }
        if self.owners.get(&owner).is_some_and(|count| *count >= REPLAY_PER_KEY) {
            return Err(ReplayError::TooMany);
        }
        if self.used.len() >= REPLAY_CAPACITY {
            return Err(ReplayError::Full);
        }
        self.used.insert(proof);
        self.ends.insert((until, proof), owner);
        *self.owners.entry(owner).or_default() += 1;
        Ok(())
    }

    /// Drops what has ended.
    fn forget(&mut self) {
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= self.latest) {
            let ((_, proof), owner) = first.remove_entry();
            self.used.remove(&proof);
            if let Some(count) = self.owners.get_mut(&owner) {
                *count -= 1;
                if *count == 0 {
                    self.owners.remove(&owner);
                }
            }
        }
    }

    /// How many proofs are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(n: u64) -> Digest {
        Digest::of(&n.to_be_bytes())
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_clock_that_goes_back_brings_no_proof_to_life() {
        let mut cache = ReplayCache::new();
        assert_eq!(cache.admit(id(0), id(1), at(10), at(0)), Ok(()));
        assert_eq!(cache.admit(id(0), id(2), at(30), at(20)), Ok(()));
        assert_eq!(cache.len(), 1);
        assert_eq!(cache.admit(id(0), id(1), at(10), at(5)), Err(ReplayError::Ended));
    }

    #[test]
    fn one_key_cannot_fill_the_memory_for_others() {
        let mut cache = ReplayCache::new();
        for n in 0..REPLAY_PER_KEY as u64 {
            assert_eq!(cache.admit(id(0), id(n), at(10), at(0)), Ok(()));
        }
        assert_eq!(cache.admit(id(0), id(u64::MAX), at(10), at(0)), Err(ReplayError::TooMany));
        assert_eq!(cache.admit(id(1), id(u64::MAX), at(10), at(0)), Ok(()));
        assert_eq!(cache.admit(id(0), id(u64::MAX - 1), at(20), at(10)), Ok(()));
        assert_eq!(cache.len(), 1);
        assert_eq!(cache.owners.len(), 1);
    }

    #[test]
    fn a_full_memory_refuses_and_forgets_nothing() {
        let mut cache = ReplayCache::new();
        for n in 0..REPLAY_CAPACITY as u64 {
            cache.admit(id(n / 4000), id(n), at(10), at(0)).unwrap();
        }
        assert_eq!(cache.admit(id(u64::MAX), id(u64::MAX), at(10), at(0)), Err(ReplayError::Full));
        assert_eq!(cache.admit(id(u64::MAX), id(0), at(10), at(0)), Err(ReplayError::Used));
    }

    proptest! {
        #[test]
        fn no_proof_is_taken_twice(
            steps in proptest::collection::vec((0u64..3, 0u64..6, 1u64..40, 0u64..40), 0..60),
        ) {
            let (mut cache, mut taken) = (ReplayCache::new(), HashSet::new());
            for (owner, proof, until, now) in steps {
                // A proof's end is part of it: the same one always ends at the same time.
                if cache.admit(id(owner), id(proof * 100 + until), at(until), at(now)).is_ok() {
                    prop_assert!(taken.insert((proof, until)));
                }
                prop_assert_eq!(cache.ends.len(), cache.used.len());
                prop_assert_eq!(cache.owners.values().sum::<usize>(), cache.used.len());
            }
        }
    }
}
