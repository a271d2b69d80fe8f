//! choir-supervisors.
