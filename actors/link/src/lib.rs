//! choir-link.
