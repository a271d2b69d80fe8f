//! choir-lanes.
