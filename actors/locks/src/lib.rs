//! choir-locks.
