//! choir-chaos-tests.
