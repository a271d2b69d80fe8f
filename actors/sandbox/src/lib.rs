//! choir-sandbox.
