//! Commits that fail on purpose (feature `testing`): what a lost database does, without one.

use std::sync::Arc;

use choir_messages::chap::Change;

/// How a commit fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, and that is known.
    NotWritten,
    /// It is written, but nobody is told.
    UnknownWritten,
    /// It is not written, but nobody is told.
    UnknownNotWritten,
    /// Another writer was quicker, as it seems.
    Conflict,
}

type Plan = dyn Fn(&Change) -> Option<Fault> + Send + Sync;

/// Decides about each commit.
#[derive(Clone)]
pub struct Faults(Arc<Plan>);

impl Faults {
    /// Asks this of every commit.
    pub fn new(plan: impl Fn(&Change) -> Option<Fault> + Send + Sync + 'static) -> Self {
        Self(Arc::new(plan))
    }

    pub(crate) fn of(&self, change: &Change) -> Option<Fault> {
        (self.0)(change)
    }
}

impl std::fmt::Debug for Faults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faults(..)")
    }
}
