//! choir-host.
