//! choir-arbiter.
