//! choir-tools.
