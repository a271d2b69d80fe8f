//! Numbered promises: components state theirs as predicates with a number and a sentence, checked in production, in
//! property tests and by model checkers alike. This is what each of them says when one does not hold.

use std::fmt;

/// An invariant that does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Broken {
    /// Its number in its component, `L1` for one.
    pub id: &'static str,
    /// What it says.
    pub says: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.says)
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
