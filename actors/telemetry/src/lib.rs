//! choir-telemetry.
