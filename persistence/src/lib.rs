//! choir-persistence.
